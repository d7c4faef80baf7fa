#include "tools/chat/session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace kvc::chat {
namespace {

// Tokens of a prompt between two looks for Ctrl-C.
constexpr size_t kPromptChunk = 256;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double per_second(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

Session::Session(const llm::Shape& shape, ChatCache& cache, llm::Network& network,
                 const tokeniser::Tokeniser& tokeniser, const ChatTemplate& chat_template,
                 const SessionOptions& options)
    : cache_(cache),
      network_(network),
      tokeniser_(tokeniser),
      template_(chat_template),
      options_(options),
      sampler_(options.sampler),
      keeps_snapshots_(std::any_of(shape.layers.begin(), shape.layers.end(),
                                   [](const llm::LayerShape& layer) { return layer.window > 0; })),
      logits_(static_cast<size_t>(shape.vocabulary)) {}

void Session::append(std::span<const int32_t> tokens, float* logits) {
  cache_.forward(present().seq, tokens, network_, logits);
}

// False: interrupted.
bool Session::prefill(std::span<const int32_t> tokens) {
  for (size_t at = 0; at < tokens.size(); at += kPromptChunk) {
    if (Interrupts::is_pending()) return false;
    const size_t count = std::min(kPromptChunk, tokens.size() - at);
    append(tokens.subspan(at, count), at + count == tokens.size() ? logits_.data() : nullptr);
  }
  return true;
}

void Session::begin(std::optional<std::string_view> system) {
  const std::vector<int32_t> tokens = template_.begin(system);
  const auto count = static_cast<int64_t>(tokens.size());
  if (count >= options_.context)
    throw Refusal("the system text takes " + std::to_string(count) +
                  " tokens, and the context has " + std::to_string(options_.context));
  branches_.push_back({next_seq_++, count, {}});
  cache_.add(present().seq);
  if (count > 0 && !prefill(tokens)) throw Refusal("interrupted");
}

void Session::load(const std::string& path) {
  const kvc_seq seq = next_seq_;
  const size_t num_turns = cache_.load(seq, path, options_.model_id);
  next_seq_ += 1 + static_cast<kvc_seq>(num_turns);
  branches_.push_back({seq, cache_.length(seq), {}});
  if (cache_.length(seq) >= options_.context)
    throw Refusal(path + " holds " + std::to_string(cache_.length(seq)) +
                  " tokens, and the context has " + std::to_string(options_.context));
  for (kvc_seq beginning = seq + 1; beginning < next_seq_; ++beginning) {
    Turn turn{cache_.length(beginning), beginning};
    if (!keeps_snapshots_) {
      cache_.remove(beginning);
      turn.snapshot.reset();
    }
    present().turns.push_back(turn);
  }
  if (num_turns > 0) present().first_turn = present().turns.front().begin;
}

// Room for `tokens` and one token of an answer.
void Session::make_room(int64_t tokens) {
  Branch& branch = present();
  const auto reserve = static_cast<int64_t>(template_.after_answer().size()) + 1;
  const int64_t used = cache_.length(branch.seq), limit = options_.context - reserve;
  if (used + tokens <= limit) return;
  if (!options_.may_cut)
    throw Refusal("the turn takes " + std::to_string(tokens) + " tokens, and the context of " +
                  std::to_string(options_.context) + " has room for " +
                  std::to_string(std::max<int64_t>(0, limit - used)) +
                  ": /undo, or begin with --cut, which lets the oldest turns go");
  size_t gone = 0;
  int64_t end = branch.first_turn;
  while (gone < branch.turns.size() && used - (end - branch.first_turn) + tokens > limit) {
    ++gone;
    end = gone < branch.turns.size() ? branch.turns[gone].begin : used;
  }
  const int64_t cut = end - branch.first_turn;
  if (used - cut + tokens > limit)
    throw Refusal("the turn takes " + std::to_string(tokens) + " tokens, and the context of " +
                  std::to_string(options_.context) + " has room for " +
                  std::to_string(std::max<int64_t>(0, limit - used + cut)) +
                  " without the earlier turns");
  cache_.cut(branch.seq, branch.first_turn, end);
  for (Turn& turn : branch.turns) {
    if (turn.snapshot) cache_.remove(*turn.snapshot);
    turn.snapshot.reset();  // It holds what was cut.
    turn.begin -= cut;
  }
  branch.turns.erase(branch.turns.begin(), branch.turns.begin() + static_cast<int64_t>(gone));
  put("(" + std::to_string(gone) + (gone == 1 ? " turn" : " turns") + " cut)\n");
}

void Session::turn(std::string_view text) {
  const std::vector<int32_t> tokens = template_.user_turn(text);
  make_room(static_cast<int64_t>(tokens.size()));
  Turn turn{cache_.length(present().seq), {}};
  if (keeps_snapshots_) {
    turn.snapshot = next_seq_++;
    cache_.fork(present().seq, *turn.snapshot);
  }
  present().turns.push_back(turn);
  const auto start = std::chrono::steady_clock::now();
  bool is_whole = false;
  try {
    is_whole = prefill(tokens);
  } catch (...) {
    take_back();
    throw;
  }
  if (!is_whole) {
    Interrupts::take();
    take_back();
    put("(stopped: the turn is taken back)\n");
    return;
  }
  prompt_tokens_ = static_cast<int64_t>(tokens.size());
  prompt_seconds_ = seconds_since(start);
  answer();
}

// Afterwards the sequence ends where a user's turn begins.
void Session::answer() {
  const auto start = std::chrono::steady_clock::now();
  const auto reserve = static_cast<int64_t>(template_.after_answer().size()) + 1;
  TextFilter filter;
  std::vector<int32_t> rest;  // Written, and not yet in the cache.
  const char* why = nullptr;
  new_tokens_ = 0;
  for (;;) {
    if (Interrupts::take()) why = "stopped";
    if (new_tokens_ == options_.max_new) why = "--max-new";
    if (cache_.length(present().seq) + static_cast<int64_t>(rest.size()) + reserve >
        options_.context)
      why = "the context is full";
    if (why != nullptr) break;
    if (!rest.empty()) append(rest, logits_.data());
    rest.clear();
    const int32_t id = sampler_.draw(logits_);
    if (template_.is_end(id)) break;
    ++new_tokens_;
    rest.push_back(id);
    put(filter.add(tokeniser_.bytes(id)));
  }
  put(filter.finish());
  const std::vector<int32_t> after = template_.after_answer();
  rest.insert(rest.end(), after.begin(), after.end());
  if (!rest.empty()) append(rest, nullptr);
  new_seconds_ = seconds_since(start);
  put(why == nullptr ? "\n" : std::string(" (") + why + ")\n");
}

void Session::take_back() {
  Branch& branch = present();
  const Turn turn = branch.turns.back();
  if (turn.snapshot) {
    cache_.remove(branch.seq);
    branch.seq = *turn.snapshot;
  } else {
    cache_.pop(branch.seq, cache_.length(branch.seq) - turn.begin);
  }
  branch.turns.pop_back();
}

void Session::undo() {
  if (present().turns.empty()) throw Refusal("there is no turn to take back");
  take_back();
}

size_t Session::fork() {
  Branch copy = present();
  copy.seq = next_seq_++;
  cache_.fork(present().seq, copy.seq);
  for (Turn& turn : copy.turns) {
    if (!turn.snapshot) continue;
    cache_.fork(*turn.snapshot, next_seq_);
    turn.snapshot = next_seq_++;
  }
  branches_.push_back(std::move(copy));
  current_ = branches_.size() - 1;
  return branch();
}

void Session::go_to(size_t branch) {
  if (branch < 1 || branch > branches_.size())
    throw Refusal("there is no branch " + std::to_string(branch) + ", branches 1 to " +
                  std::to_string(branches_.size()) + " are there");
  current_ = branch - 1;
}

// A state file has no room for turns as such: each is the sequence of its beginning.
void Session::save(const std::string& path) {
  struct Beginnings {
    ~Beginnings() {
      for (const kvc_seq seq : forks) cache.remove(seq);
    }
    ChatCache& cache;
    std::vector<kvc_seq> seqs, forks;  // The last turn's first.
  } beginnings{cache_, {}, {}};
  const Branch& branch = present();
  for (auto turn = branch.turns.rbegin(); turn != branch.turns.rend(); ++turn) {
    if (!turn->snapshot) {
      try {
        cache_.fork(branch.seq, next_seq_, turn->begin);
      } catch (const CacheError& refused) {
        if (refused.status != KVC_E_OUT_OF_RANGE) throw;
        break;  // A window has dropped what the turn began with.
      }
      beginnings.forks.push_back(next_seq_++);
    }
    beginnings.seqs.push_back(turn->snapshot ? *turn->snapshot : beginnings.forks.back());
  }
  std::reverse(beginnings.seqs.begin(), beginnings.seqs.end());
  cache_.save(branch.seq, beginnings.seqs, path, options_.model_id);
}

std::string Session::stats() const {
  const kvc_stats stats = cache_.stats();
  const Branch& branch = branches_[current_];
  const llm::Network::Seconds seconds = network_.seconds();
  const double all = std::max(1e-9, seconds.products + seconds.attention);
  char text[1024];
  std::snprintf(text, sizeof text,
                "branch %zu of %zu: %lld of %lld tokens\n"
                "pages %lld of %lld used, %.1f MiB\n"
                "%lld bytes per token\n"
                "prompt %lld tokens, %.1f per second\n"
                "answer %lld tokens, %.1f per second\n"
                "time: products %.0f %%, attention %.0f %%\n",
                current_ + 1, branches_.size(), static_cast<long long>(cache_.length(branch.seq)),
                static_cast<long long>(options_.context), static_cast<long long>(stats.pages_used),
                static_cast<long long>(stats.pages_total),
                static_cast<double>(stats.pages_used) *
                    static_cast<double>(cache_.plan().page_bytes) / (1 << 20),
                static_cast<long long>(cache_.plan().bytes_per_token),
                static_cast<long long>(prompt_tokens_), per_second(prompt_tokens_, prompt_seconds_),
                static_cast<long long>(new_tokens_), per_second(new_tokens_, new_seconds_),
                100 * seconds.products / all, 100 * seconds.attention / all);
  return text;
}

}  // namespace kvc::chat
