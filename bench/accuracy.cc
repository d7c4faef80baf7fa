// What a real model says when K and V are stored in one type or another: its perplexity over a
// text, and how many questions about a handbook it answers rightly. Nothing is timed against a
// limit here.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <span>
#include <stdexcept>

#include "bench/benches.h"
#include "bench/text_windows.h"
#include "tools/chat/chat_cache.h"
#include "tools/chat/chat_template.h"
#include "tools/demo/questions.h"
#include "tools/kv_dtypes.h"
#include "tools/llm/model.h"
#include "tools/llm/model_files.h"
#include "tools/text_file.h"
#include "tools/tokeniser/utf8.h"

namespace kvc::bench {
namespace {

// Tokens of a forward: enough to use each weight often. Each may need logits, up to 1 MiB.
constexpr size_t kForwardTokens = 128;
constexpr int64_t kAnswerTokens = 48;

std::string read_text(const std::string& path) {
  if (path.empty()) return std::string(demo::handbook());
  std::string text = read_text_file(path);
  if (text.empty()) throw Refusal(path + " is empty");
  for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
    bytes = tokeniser::character_bytes(text, at);
    if (bytes == 0) throw Refusal(path + " is no UTF-8 at byte " + std::to_string(at));
  }
  return text;
}

void show_progress(const char* what, size_t done, size_t all) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, done < all ? "\r%s %zu of %zu " : "\r%40s\r", done < all ? what : "",
               done + 1, all);
}

void show_loading(double done) {
  show_progress("weights, per cent:", static_cast<size_t>(done * 100), 100);
}

// -log of the probability that softmax gives a token.
double surprise(std::span<const float> logits, int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum) - logits[static_cast<size_t>(token)];
}

// A model with its cache, one sequence at work.
class Reader {
 public:
  // Borrows all.
  Reader(const llm::Shape& shape, const tokeniser::Tokeniser& tokeniser, llm::WorkerPool& pool,
         llm::Network& network, chat::ChatCache& cache)
      : tokeniser_(tokeniser),
        pool_(pool),
        network_(network),
        cache_(cache),
        vocabulary_(static_cast<size_t>(shape.vocabulary)) {}

  double perplexity(std::span<const int32_t> text, int64_t window, int64_t stride);

  // Answers a question's turn behind the tokens of a sequence, which stays as it is.
  std::string answer(kvc_seq prompt, std::span<const int32_t> turn,
                     const chat::ChatTemplate& chat_template);

  // Appends tokens, whose logits nobody needs.
  void append(kvc_seq seq, std::span<const int32_t> tokens) {
    for (size_t at = 0; at < tokens.size(); at += kForwardTokens)
      cache_.forward(seq, tokens.subspan(at, std::min(kForwardTokens, tokens.size() - at)),
                     network_, nullptr);
  }

 private:
  void judge(std::span<const int32_t> tokens, size_t first);

  const tokeniser::Tokeniser& tokeniser_;
  llm::WorkerPool& pool_;
  llm::Network& network_;
  chat::ChatCache& cache_;
  size_t vocabulary_;
  std::vector<float> logits_;
  std::vector<double> surprises_;  // One per judged token, in the order of the text.
};

constexpr kvc_seq kPrompt = 1, kWork = 2;

// Adds the surprises of tokens[first..] in a sequence of its own. The last token is never appended,
// as no token is judged by it.
void Reader::judge(std::span<const int32_t> tokens, size_t first) {
  cache_.add(kWork);
  std::vector<int64_t> wanted;
  for (size_t at = 0; at + 1 < tokens.size(); at += kForwardTokens) {
    const size_t count = std::min(kForwardTokens, tokens.size() - 1 - at);
    wanted.clear();
    for (size_t i = 0; i < count; ++i) {
      if (at + i + 1 >= first) wanted.push_back(static_cast<int64_t>(i));
    }
    logits_.resize(wanted.size() * vocabulary_);
    cache_.forward(kWork, tokens.subspan(at, count), network_, wanted, logits_.data());
    const size_t before = surprises_.size();
    surprises_.resize(before + wanted.size());
    pool_.for_each(static_cast<int64_t>(wanted.size()), [&](int64_t row, int32_t) {
      const auto i = static_cast<size_t>(row);
      const std::span<const float> logits(logits_.data() + i * vocabulary_, vocabulary_);
      surprises_[before + i] = surprise(logits, tokens[at + static_cast<size_t>(wanted[i]) + 1]);
    });
  }
  cache_.remove(kWork);
}

double Reader::perplexity(std::span<const int32_t> text, int64_t window, int64_t stride) {
  const std::vector<TextWindow> windows =
      text_windows(static_cast<int64_t>(text.size()), window, stride);
  surprises_.clear();
  for (size_t i = 0; i < windows.size(); ++i) {
    show_progress("window", i, windows.size());
    const TextWindow& part = windows[i];
    std::vector<int32_t> tokens;
    if (tokeniser_.add_bos() && tokeniser_.bos()) tokens.push_back(*tokeniser_.bos());
    const auto first = tokens.size() + static_cast<size_t>(part.judged - part.begin);
    tokens.insert(tokens.end(), text.begin() + part.begin, text.begin() + part.end);
    judge(tokens, first);
  }
  show_progress("", windows.size(), windows.size());
  double sum = 0;
  for (const double one : surprises_) sum += one;
  const double result = std::exp(sum / static_cast<double>(surprises_.size()));
  if (!std::isfinite(result)) throw std::runtime_error("the model's perplexity is not finite");
  return result;
}

std::string Reader::answer(kvc_seq prompt, std::span<const int32_t> turn,
                           const chat::ChatTemplate& chat_template) {
  cache_.fork(prompt, kWork);
  logits_.resize(vocabulary_);
  cache_.forward(kWork, turn, network_, logits_.data());
  std::string text;
  for (int64_t n = 1;; ++n) {
    const auto likeliest = std::max_element(logits_.begin(), logits_.end());
    const auto id = static_cast<int32_t>(likeliest - logits_.begin());
    if (chat_template.is_end(id)) break;
    text += tokeniser_.bytes(id);
    if (n == kAnswerTokens) break;
    cache_.forward(kWork, {&id, 1}, network_, logits_.data());
  }
  cache_.remove(kWork);
  return text;
}

// The handbook's prompt and the turns of its questions.
struct Interview {
  Interview(const llm::Model& model, const std::string& name)
      : chat_template(model.file(), model.tokeniser(), name),
        questions(demo::questions()),
        prompt(demo::handbook_prompt(chat_template)) {
    for (const demo::Question& question : questions)
      turns.push_back(chat_template.user_turn(question.text));
  }

  // Tokens of the longest conversation.
  int64_t longest() const {
    size_t longest = 0;
    for (const std::vector<int32_t>& turn : turns) longest = std::max(longest, turn.size());
    return static_cast<int64_t>(prompt.size() + longest) + kAnswerTokens;
  }

  chat::ChatTemplate chat_template;
  std::vector<demo::Question> questions;
  std::vector<int32_t> prompt;
  std::vector<std::vector<int32_t>> turns;
};

// The prompt is computed once; each question is asked in a fork of it.
void ask(const Interview& interview, Reader& reader, chat::ChatCache& cache, Report& report) {
  cache.add(kPrompt);
  reader.append(kPrompt, interview.prompt);
  int64_t right = 0;
  Report wrong = Report::array();
  for (size_t i = 0; i < interview.questions.size(); ++i) {
    show_progress("question", i, interview.questions.size());
    const demo::Question& question = interview.questions[i];
    const std::string answer = reader.answer(kPrompt, interview.turns[i], interview.chat_template);
    if (demo::contains_word(answer, question.expected)) {
      ++right;
    } else {
      wrong.push_back(
          {{"question", question.text}, {"expected", question.expected}, {"answer", answer}});
    }
  }
  show_progress("", 1, 1);
  report["right"] = right;
  report["questions"] = interview.questions.size();
  report["wrong"] = std::move(wrong);
}

std::string name_of(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace

Report run_accuracy(const AccuracyOptions& options) {
  const double start = now_seconds();
  const KvDtype dtype = cpu_kv_dtype(options.kv_dtype, static_cast<int32_t>(options.keep_tokens));
  const int64_t stride = options.stride > 0 ? options.stride : options.window / 2;
  if (stride >= options.window)
    throw Refusal("--stride " + std::to_string(stride) + " has to be less than --window " +
                  std::to_string(options.window));
  const std::string text = read_text(options.text);
  const std::string path = options.model.empty() ? llm::default_model() : options.model;
  llm::Model model(path);
  const llm::Shape& shape = model.shape();
  const tokeniser::Tokeniser& tokeniser = model.tokeniser();
  const std::vector<int32_t> tokens = tokeniser.encode(text, false);
  const auto count = static_cast<int64_t>(tokens.size());
  if (count < 2) throw Refusal(options.text + " has one token: the first one is not judged");
  int64_t context = std::min(options.window, count) + 1;
  if (context > shape.context + 1)
    throw Refusal("--window " + std::to_string(options.window) + ": the model was trained for " +
                  std::to_string(shape.context) + " tokens");
  std::optional<Interview> interview;
  if (!options.no_questions) {
    interview.emplace(model, options.chat_template);
    context = std::max(context, interview->longest());
    if (interview->longest() > shape.context)
      throw Refusal("the handbook with a question and its answer takes " +
                    std::to_string(interview->longest()) +
                    " tokens, and the model was trained for " + std::to_string(shape.context) +
                    ": --no-questions leaves them out");
  }

  const int threads = threads_of(options.common);
  llm::WorkerPool pool(threads);
  llm::Network& network =
      model.load({llm::weight_type(options.weights), show_loading}, pool, llm::block_kernels());
  chat::ChatCache cache(shape, dtype.type, context, pool, dtype.quant, dtype.keep_tokens);
  Reader reader(shape, tokeniser, pool, network, cache);

  Report report = new_report("accuracy", isa_name(resolve_isa(KVC_CPU_ISA_AUTO)), threads);
  report["model"] = name_of(path);
  report["weights"] = options.weights;
  report["kv_dtype"] = options.kv_dtype;
  report["keep_tokens"] = options.keep_tokens;
  report["bytes_per_token"] = cache.plan().bytes_per_token;
  report["text"] = options.text.empty() ? "handbook" : name_of(options.text);
  report["tokens"] = count;
  report["window"] = options.window;
  report["stride"] = stride;
  report["perplexity"] = reader.perplexity(tokens, options.window, stride);
  if (interview) ask(*interview, reader, cache, report);
  report["seconds"] = rounded(now_seconds() - start);
  return report;
}

void print_accuracy(Report report, bool json) {
  if (!json) {
    report.erase("wrong");
    char perplexity[32];
    std::snprintf(perplexity, sizeof perplexity, "%.4f", report["perplexity"].get<double>());
    report["perplexity"] = perplexity;
  }
  print_report(report, json);
}

}  // namespace kvc::bench
