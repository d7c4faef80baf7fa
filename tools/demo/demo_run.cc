#include "tools/demo/demo_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "tools/chat/terminal_io.h"
#include "tools/demo/contiguous_store.h"
#include "tools/demo/questions.h"
#include "tools/demo/random_model.h"
#include "tools/demo/restart.h"
#include "tools/demo/terminal.h"
#include "tools/isa_names.h"
#include "tools/llm/model.h"

namespace kvc::demo {
namespace {

int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

kvc_device_caps cpu_caps() {
  kvc_device_caps caps{};
  caps.struct_size = sizeof(caps);
  kvc_error error{};
  if (kvc_device_query({kDLCPU, 0}, &caps, &error) != KVC_OK) throw LibraryError(error.message);
  return caps;
}

llm::KernelLevel kernel_level(kvc_cpu_isa isa) {
  if (isa == KVC_CPU_ISA_REFERENCE || isa == KVC_CPU_ISA_SCALAR) return llm::KernelLevel::kBaseline;
  return isa == KVC_CPU_ISA_AVX2 ? llm::KernelLevel::kAvx2 : llm::KernelLevel::kBest;
}

// How many conversations like these the memory of row 1 would hold at their full length.
int64_t paged_fit(const DemoRun& run, const DemoRow& row, const PagedStore& store) {
  const int64_t system = row.shared ? static_cast<int64_t>(run.workload.system.size()) : 0;
  int64_t own = 0;
  for (const Conversation& c : run.workload.conversations)
    own += store.own_pages(c.longest(), system);
  const int64_t pages =
      static_cast<int64_t>(run.contiguous_bytes) / row.page_bytes - store.own_pages(system, 0);
  return pages * static_cast<int64_t>(run.workload.conversations.size()) / own;
}

// The longest conversation alone must fit, beside the system prompt that row 3 keeps.
void check_memory(const DemoRun& run) {
  if (run.options.memory_mib == 0) return;
  const int64_t page_bytes = int64_t{2} * run.layers * run.kv_heads *
                             row_bytes(run.options.dtype, run.head_dim) * run.options.page_size;
  const int64_t pages = ceil_div(run.workload.longest_request(), run.options.page_size) + 1;
  const int64_t least = ceil_div(pages * page_bytes, 1 << 20);
  if (run.options.memory_mib < least) {
    throw UsageError(format("--memory %lld: one conversation needs %lld MiB",
                            static_cast<long long>(run.options.memory_mib),
                            static_cast<long long>(least)));
  }
}

class Progress {
 public:
  Progress(int row, const std::string& title)
      : row_(row), title_(title), active_(stderr_is_terminal()) {}
  ~Progress() { hide(); }
  // Until the next part.
  void hide() {
    if (active_) std::fprintf(stderr, "\r\x1b[K");
    shown_ = -1;
  }
  void operator()(double part) {
    const int percent = static_cast<int>(part * 100.0);
    if (!active_ || percent == shown_) return;
    shown_ = percent;
    const int cells = percent * 40 / 100;
    const double seconds = seconds_since(start_);
    const std::string left =
        part > 0.02 && seconds > 1 ? format(", %.0f s left", seconds / part * (1 - part)) : "";
    std::fprintf(stderr, "\r  row %d of 3, %-15s [%-40s] %3d %%%s\x1b[K", row_, title_.c_str(),
                 std::string(static_cast<size_t>(cells), '#').c_str(), percent, left.c_str());
    std::fflush(stderr);
  }

 private:
  int row_;
  std::string title_;
  bool active_;
  int shown_ = -1;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

ServeOptions serve_options(const DemoRun& run, bool shares) {
  ServeOptions options;
  options.tokens_per_step = run.options.tokens_per_step;
  options.temperature = run.options.temperature;
  options.seed = run.options.workload.seed;
  options.share_system_prompt = shares;
  return options;
}

// What every row computes with.
struct Setup {
  DemoRun run;
  const llm::BlockKernels* kernels;
  std::unique_ptr<llm::WorkerPool> pool;
  // One of the two.
  std::unique_ptr<llm::Model> model;
  std::unique_ptr<RandomModel> random;
  llm::Network* network = nullptr;

  const llm::Shape& shape() const { return model ? model->shape() : random->shape(); }
  std::string text_of(std::vector<Token> tokens) const {
    if (!tokens.empty() && run.workload.is_end(tokens.back())) tokens.pop_back();
    if (model != nullptr) return model->tokeniser().decode(tokens);
    return {tokens.begin(), tokens.end()};
  }
};

// Prints the first conversations of a model that can answer, each when it is complete.
class Transcripts {
 public:
  explicit Transcripts(const Setup& setup) : setup_(setup) {}

  void add(int conversation, const std::vector<Token>& answer, Progress& progress) {
    constexpr int kShown = 3;
    if (conversation >= kShown) return;
    std::vector<std::string>& said = answers_[conversation];
    chat::TextFilter filter;
    const std::string text = filter.add(setup_.text_of(answer));
    said.push_back(text + filter.finish());
    const std::vector<Turn>& turns =
        setup_.run.workload.conversations[static_cast<size_t>(conversation)].turns;
    if (said.size() < turns.size()) return;
    progress.hide();
    const bool colours = colours_on_stdout();
    for (size_t i = 0; i < turns.size(); ++i) {
      std::printf("  %s %s\n  %s %s\n", painted("visitor", Paint::kDim, colours).c_str(),
                  turns[i].text.c_str(), painted("clerk  ", Paint::kDim, colours).c_str(),
                  said[i].c_str());
    }
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  const Setup& setup_;
  std::map<int, std::vector<std::string>> answers_;
};

ServeResult serve_row(Setup& setup, const DemoRow& row, KvStore& store,
                      std::function<void(int)> keep_system_prompt = {}) {
  const DemoRun& run = setup.run;
  Progress progress(static_cast<int>(run.rows.size()) + 1, row.title);
  Transcripts transcripts(setup);
  ServeOptions options = serve_options(run, row.shared);
  options.keep_system_prompt = std::move(keep_system_prompt);
  options.progress = [&](double part) { progress(part); };
  if (run.rows.empty() && setup.model != nullptr) {
    options.answered = [&](int conversation, size_t, const std::vector<Token>& answer) {
      transcripts.add(conversation, answer, progress);
    };
  }
  options.progress(0.0);
  return serve(run.workload, *setup.network, store, options);
}

void read_answers(const Setup& setup, DemoRun& run) {
  const ServeResult& result = run.rows.back().result;
  for (size_t i = 0; i < result.answers.size(); ++i) {
    std::vector<std::string>& texts = run.answers.emplace_back();
    for (size_t turn = 0; turn < result.answers[i].turn_ends.size(); ++turn) {
      const std::vector<Token> answer = result.answers[i].turn(turn);
      texts.push_back(setup.text_of(answer));
      ++run.num_answers;
      run.same_answers += run.rows[0].result.answers[i].turn(turn) == answer ? 1 : 0;
      const std::string& expected = run.workload.conversations[i].turns[turn].expected;
      if (expected.empty()) continue;
      ++run.questions;
      run.right += contains_word(texts.back(), expected) ? 1 : 0;
    }
  }
}

void judge(DemoRun& run) {
  const bool exact_storage = run.options.is_exact();
  run.verified = true;
  for (size_t i = 1; i < run.rows.size(); ++i) {
    DemoRow& row = run.rows[i];
    row.against_first = compare(run.rows[0].result, row.result);
    row.against_paged = compare(run.rows[1].result, row.result);
    const Comparison& deciding = exact_storage ? row.against_first : row.against_paged;
    if (deciding.identical || !run.verified) continue;
    run.verified = false;
    run.verdict = format(
        "row %zu differs from row %d first in conversation %d at generated token %lld: token %d, "
        "not %d",
        i + 1, exact_storage ? 1 : 2, deciding.conversation + 1,
        static_cast<long long>(deciding.place + 1), deciding.got, deciding.expected);
  }
  if (run.verified && !run.restart.agrees()) {
    run.verified = false;
    run.verdict = "after the restart: " + run.restart.verdict();
  }
  if (!run.verified) return;
  const std::string tokens = grouped(run.rows[0].result.generated_tokens());
  if (exact_storage) {
    run.verdict = "all three rows agree on all " + tokens + " generated tokens";
  } else {
    run.verdict = "rows 2 and 3 agree on all " + tokens +
                  " generated tokens; row 1 keeps float32, so it is no judge of " +
                  run.options.dtype.name;
  }
}

// The model, and what it is asked.
void load_model(Setup& setup) {
  DemoRun& run = setup.run;
  const DemoOptions& options = run.options;
  if (options.model_path.empty()) {
    RandomShape shape;
    if (options.quick) shape = {2, 128, 4, 2, 64, 256};
    run.workload = make_workload(options.workload);
    std::vector<Token> texts = run.workload.system;
    for (const Conversation& c : run.workload.conversations) {
      for (const char byte : c.turns[0].text) texts.push_back(static_cast<unsigned char>(byte));
    }
    setup.random = std::make_unique<RandomModel>(shape, options.workload.seed, texts, *setup.pool,
                                                 *setup.kernels);
    setup.network = &setup.random->network();
    run.num_parameters = setup.random->parameters();
  } else {
    const auto progress = [](double part) {
      if (!stderr_is_terminal()) return;
      std::fprintf(stderr, "\r  loading the model %3.0f %%%s", 100 * part,
                   part < 1 ? "" : "\r\x1b[K");
    };
    setup.model = std::make_unique<llm::Model>(options.model_path);
    const chat::ChatTemplate chat_template(setup.model->file(), setup.model->tokeniser());
    run.workload = make_chat_workload(options.workload, chat_template);
    setup.network = &setup.model->load({options.weights, progress}, *setup.pool, *setup.kernels);
    run.model_name = setup.model->name();
    run.num_parameters = setup.model->parameters();
  }
  const llm::Shape& shape = setup.shape();
  run.layers = static_cast<int>(shape.layers.size());
  run.q_heads = shape.q_heads;
  run.kv_heads = shape.kv_heads;
  run.head_dim = shape.head_dim;
  run.windows = std::count_if(shape.layers.begin(), shape.layers.end(),
                              [](const llm::LayerShape& layer) { return layer.window > 0; });
  run.width = shape.width;
  run.vocabulary = shape.vocabulary;
}

Setup set_up(const DemoOptions& options) {
  Setup setup;
  DemoRun& run = setup.run;
  run.options = options;
  const kvc_device_caps caps = cpu_caps();
  run.threads = options.threads > 0 ? options.threads : caps.num_cores;
  if (options.isa != KVC_CPU_ISA_AUTO && !(caps.isas >> options.isa & 1)) {
    throw UsageError(format("--isa %s: this machine does not have it", isa_name(options.isa)));
  }
  run.library_isa = isa_name(options.isa == KVC_CPU_ISA_AUTO ? caps.arch : options.isa);
  setup.kernels = &llm::block_kernels(kernel_level(options.isa));
  run.demo_kernels = setup.kernels->name;
  setup.pool = std::make_unique<llm::WorkerPool>(run.threads);
  load_model(setup);

  const int64_t longest = run.workload.longest_request();
  run.max_length = options.max_length > 0 ? options.max_length : ceil_div(longest, 512) * 512;
  if (longest > run.max_length) {
    throw UsageError(format("--max-length %lld: the longest request has %lld tokens",
                            static_cast<long long>(run.max_length),
                            static_cast<long long>(longest)));
  }
  check_memory(run);
  return setup;
}

PagedOptions paged_options(const DemoOptions& options, uint64_t byte_budget) {
  PagedOptions paged;
  paged.dtype = options.dtype;
  paged.page_size = options.page_size;
  paged.isa = options.isa;
  paged.byte_budget = byte_budget;
  // Two ways to cut a prompt round alike only with this flag; a 16-bit cache would turn the last
  // bit of a float32 into a different stored value.
  paged.batch_invariant = !options.is_exact();
  return paged;
}

}  // namespace

DemoRun run_demo(const DemoOptions& options) {
  Setup setup = set_up(options);
  DemoRun& run = setup.run;
  llm::WorkerPool& pool = *setup.pool;
  const int num_conversations = static_cast<int>(run.workload.conversations.size());
  SavedPrompt saved(options.save_path);

  uint64_t slots_bytes = 0;
  {
    DemoRow row;
    row.key = "contiguous";
    row.title = "1 contiguous";
    ContiguousStore store(setup.shape(), run.max_length, num_conversations, pool, *setup.kernels);
    row.result = serve_row(setup, row, store);
    slots_bytes = store.slot_bytes() * static_cast<uint64_t>(num_conversations);
    run.contiguous_bytes = row.result.peak.reserved_bytes;
    run.bytes_per_token_contiguous = store.slot_bytes() / static_cast<uint64_t>(store.max_length());
    row.sequences_that_fit = static_cast<int64_t>(run.contiguous_bytes / store.slot_bytes());
    run.rows.push_back(std::move(row));
  }
  for (const bool shared : {false, true}) {
    DemoRow row;
    row.key = shared ? "paged_shared" : "paged";
    row.title = shared ? "3 paged, shared" : "2 paged";
    row.paged = true;
    row.shared = shared;
    const uint64_t byte_budget =
        options.memory_mib > 0 ? static_cast<uint64_t>(options.memory_mib) << 20 : slots_bytes;
    PagedStore store(setup.shape(), paged_options(options, byte_budget), pool);
    const auto save = [&](int sequence) { saved.write(store, sequence); };
    row.result = serve_row(setup, row, store, shared ? save : std::function<void(int)>());
    store.check();
    row.page_bytes = static_cast<int64_t>(store.plan_info().page_bytes);
    row.num_pages = store.plan_info().num_pages;
    row.pages_copied = store.stats().pages_copied;
    run.bytes_per_token_paged = store.plan_info().bytes_per_token;
    row.sequences_that_fit = paged_fit(run, row, store);
    run.rows.push_back(std::move(row));
  }
  run.restart = saved.restart(run.rows.back().result.answers.front().tokens);
  read_answers(setup, run);
  judge(run);
  return std::move(setup.run);
}

void answer_from_state(const DemoOptions& options) {
  Setup setup = set_up(options);
  Workload& workload = setup.run.workload;
  workload.conversations.resize(1);
  // Pages of every layer for the whole conversation, and as many again while a forward drops some.
  const auto tokens = static_cast<uint64_t>(workload.longest_request() + 2 * options.page_size);
  const llm::Shape& shape = setup.shape();
  const uint64_t token_bytes =
      2 * static_cast<uint64_t>(row_bytes(options.dtype, shape.head_dim) * shape.kv_heads) *
      shape.layers.size();
  PagedStore store(shape, paged_options(options, 2 * tokens * token_bytes), *setup.pool);
  double load_seconds = 0.0;
  ServeOptions serving = serve_options(setup.run, true);
  serving.load_system_prompt = [&](int sequence) {
    const auto start = std::chrono::steady_clock::now();
    store.load(sequence, options.state_path, static_cast<int64_t>(workload.system.size()));
    load_seconds = seconds_since(start);
  };
  const ServeResult result = serve(workload, *setup.network, store, serving);
  print_answer(result, load_seconds);
}

double DemoRow::waste() const {
  return 1.0 - static_cast<double>(result.peak.used_bytes) /
                   static_cast<double>(result.peak.reserved_bytes);
}

double DemoRow::tokens_per_second() const {
  return static_cast<double>(result.generated_tokens()) / result.seconds;
}

}  // namespace kvc::demo
