// One run of the demo: what was asked for, and the three rows that came out. Reports read this and
// compute nothing anew.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/demo/paged_store.h"
#include "tools/demo/scheduler.h"
#include "tools/demo/workload.h"

namespace kvc::demo {

struct DemoOptions {
  WorkloadOptions workload;
  int threads = 0;  // 0: one per core that this process may use
  int page_size = 16;
  int64_t tokens_per_step = 1024;
  int64_t max_length =
      // Tokens a contiguous buffer is reserved for; 0: the longest request, up to a multiple of 512
      0;
  int64_t memory_mib = 0;  // size of the paged pools; 0: that of the contiguous buffers
  std::string model_path;  // A GGUF file; empty: random weights.
  llm::WeightType weights = llm::WeightType::kBfloat16;
  double temperature = 0.8;
  KvDtype dtype = cpu_kv_dtype("fp32");
  // Storage that rounds nothing: row 1 then judges rows 2 and 3.
  bool is_exact() const { return std::string_view(dtype.name) == "fp32"; }
  kvc_cpu_isa isa = KVC_CPU_ISA_AUTO;
  bool quick = false;
  bool verify = false;
  bool verbose = false;  // answers too
  std::string json_path, svg_path;
  std::string save_path;   // Where the state file of row 3 stays; empty: it goes with the run.
  std::string state_path;  // The new process: what row 3 has saved.
};

// How a row's answers differ from another row's. Logits are compared while the answers agree: up to
// and with the first token that differs, both rows have read the same.
struct Comparison {
  bool identical = true;
  double max_logit_difference = 0.0;
  int64_t tokens_compared = 0;
  int conversation = -1;  // first conversation that differs; -1: none
  int64_t place = -1;
  Token expected = 0, got = 0;
};

struct DemoRow {
  std::string key;    // for programs: contiguous, paged, paged_shared
  std::string title;  // for people
  bool paged = false;
  bool shared = false;
  ServeResult result;
  int64_t page_bytes = 0, num_pages = 0;  // paged rows
  uint64_t pages_copied = 0;              // copy-on-write
  int64_t sequences_that_fit = 0;         // in the memory that row 1 reserves
  Comparison against_first;               // row 1 is the reference
  // Row 2; equal storage types, so meaningful for 16-bit storage too
  Comparison against_paged;

  double waste() const;
  double tokens_per_second() const;
};

// A new process goes on with the system prompt that row 3 has saved, and answers conversation 1.
struct Restart {
  uint64_t file_bytes = 0;
  double save_seconds = 0.0, load_seconds = 0.0;
  int64_t prompt_tokens = 0;  // prompt tokens that the new process computed
  int64_t same_tokens = 0;    // leading generated tokens that equal row 3's
  int64_t answer_tokens = 0;
  std::string problem;  // why there is no answer; empty: there is one

  bool agrees() const { return problem.empty() && same_tokens == answer_tokens; }
  std::string verdict() const;  // The difference, where there is one.
};

struct DemoRun {
  DemoOptions options;
  std::string model_name;  // Empty: random weights.
  int layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t windows = 0;  // Layers with a window.
  int64_t width = 0, vocabulary = 0, num_parameters = 0;
  Workload workload;
  int threads = 0;
  std::string library_isa, demo_kernels;
  int64_t max_length = 0;
  uint64_t contiguous_bytes = 0;  // bytes that row 1 reserves at its peak
  uint64_t bytes_per_token_contiguous = 0, bytes_per_token_paged = 0;
  std::vector<DemoRow> rows;
  Restart restart;
  // Row 3's answers as text, [conversations][turns].
  std::vector<std::vector<std::string>> answers;
  int64_t same_answers = 0, num_answers = 0;  // Row 3's that are row 1's, and all.
  // Answers that contain the expected word, and those with one.
  int64_t right = 0, questions = 0;
  std::string verdict;  // one sentence
  bool verified = false;

  int root_sequence() const { return static_cast<int>(workload.conversations.size()); }
};

Comparison compare(const ServeResult& expected, const ServeResult& got);

DemoRun run_demo(const DemoOptions& options);
// The new process: prints its answer to conversation 1 for run_restart() to read.
void answer_from_state(const DemoOptions& options);

}  // namespace kvc::demo
