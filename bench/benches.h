// What each bench can be told, and the function that runs it. bench/README.md says what the figures
// mean.
#pragma once

#include <cstdint>
#include <string>

#include "bench/fixture.h"
#include "bench/measure.h"
#include "bench/report.h"

namespace kvc::bench {

struct CommonOptions {
  bool json = false;
  int threads = 0;  // 0: all of the machine.
  Budget budget;
};

struct ModelOptions {
  std::string dtype = "bf16";
  std::string isa = "auto";
  int q_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  int page_size = 16;
};

struct DecodeOptions {
  CommonOptions common;
  ModelOptions model;
  int64_t context = 16384;
  int batch = 1;
  std::string placement = "scattered";
};

struct PrefillOptions {
  CommonOptions common;
  ModelOptions model;
  int64_t new_tokens = 512;
  int64_t context = 4096;
};

struct MlaOptions {
  CommonOptions common;
  std::string dtype = "bf16";
  std::string isa = "auto";
  int heads = 16;
  int rank = 512;
  int rope_dim = 64;
  int page_size = 16;
  int64_t context = 8192;
  int batch = 1;
};

struct AppendOptions {
  CommonOptions common;
  ModelOptions model;
  int64_t tokens = 8192;
  bool rope = true;
};

struct CopyOptions {
  CommonOptions common;
  ModelOptions model;
  int layers = 16;
  int sequences = 256;
};

struct SwapOptions {
  CommonOptions common;
  ModelOptions model;
  int layers = 16;
  std::string layout = "layer-first";
};

struct FilesOptions {
  CommonOptions common;
  ModelOptions model;
  int layers = 16;
  std::string layout = "layer-first";
  int64_t tokens = 4096;
  std::string folder;  // Empty: that of temporary files.
};

struct TierOptions {
  CommonOptions common;
  ModelOptions model;
  int layers = 16;
  int64_t tokens = 512;  // Each prompt has so many.
  int prompts = 16;
  int rounds = 5;
  std::string folder;  // Empty: that of temporary files.
  std::string redis;   // "host:port"; empty: a tier of files.
};

struct TransferOptions {
  CommonOptions common;
  ModelOptions model{.kv_heads = 2};  // Pages of 16 KiB.
  int64_t tokens = 65536;
  int rounds = 15;
  int64_t in_flight = 64;  // MiB.
};

struct OverlapOptions {
  CommonOptions common;
  ModelOptions model{.kv_heads = 2};
  int layers = 16;
  int64_t tokens = 4096;
  int rounds = 15;
  double prefill = 2;      // Duration of the prefill: so many transfers.
  int64_t in_flight = 64;  // MiB.
};

struct StepOptions {
  CommonOptions common;
  int sequences = 64;
  int64_t context = 4096;
  int64_t versus_context = 0;  // 0: no comparison.
  int page_size = 16;
  int layers = 32;
  int groups = 1;  // More: the layers take turns with windows of different lengths.
  bool aligned = false;
  int many = 1024;  // Sequences of two more batches, of one group and of six; 0: none.
};

struct PrefixOptions {
  CommonOptions common;
  int64_t tokens = 50000;
  int page_size = 16;
  int layers = 32;
};

// The shape of a Gated DeltaNet layer.
struct LinearOptions {
  CommonOptions common;
  std::string isa = "auto";
  int heads = 32;
  int k_heads = 16;
  int dim = 128;
  int batch = 32;
  int64_t tokens = 2048;
};

struct CascadeOptions {
  CommonOptions common;
  ModelOptions model{.kv_heads = 32};  // Llama-2-7B
  int sequences = 32;
  int64_t prefix = 16384;
  int64_t tail = 16;
};

struct TreeOptions {
  CommonOptions common;
  ModelOptions model;
  int64_t context = 4096;
  int nodes = 32;
  int branching = 2;
};

struct WindowOptions {
  CommonOptions common;
  ModelOptions model;
  int64_t window = 1024;
  int64_t context = 16384;
  int64_t new_tokens = 2048;
};

struct BookkeepingOptions {
  CommonOptions common;
  int sequences = 256;
  int64_t tokens = 1024;  // Each sequence has so many, and so does an append.
  int page_size = 16;
};

struct ClearOptions {
  CommonOptions common;
  ModelOptions model;
  int layers = 8;
  int64_t tokens = 512;
};

struct KernelsOptions {
  CommonOptions common;
};

struct ScheduleOptions {
  CommonOptions common;
  int64_t context = 8192;
};

struct InfoOptions {
  CommonOptions common;
};

struct AccuracyOptions {
  CommonOptions common;  // Without its budget.
  std::string text;      // A file; empty: the handbook.
  std::string model;     // A GGUF file; empty: the one that `make demo` fetches.
  std::string kv_dtype = "fp32", weights = "bf16";
  std::string chat_template;  // Empty: the one of the file.
  int64_t window = 1024;
  int64_t stride = 0;  // 0: half of the window.
  int64_t keep_tokens = 0;
  bool no_questions = false;
};

Report run_decode(const DecodeOptions& options);
Report run_prefill(const PrefillOptions& options);
Report run_mla(const MlaOptions& options);
Report run_append(const AppendOptions& options);
Report run_copy(const CopyOptions& options);
Report run_swap(const SwapOptions& options);
Report run_files(const FilesOptions& options);
Report run_tier(const TierOptions& options);
Report run_transfer(const TransferOptions& options);
Report run_overlap(const OverlapOptions& options);
Report run_step(const StepOptions& options);
Report run_prefix(const PrefixOptions& options);
Report run_linear(const LinearOptions& options);
Report run_cascade(const CascadeOptions& options);
Report run_tree(const TreeOptions& options);
Report run_window(const WindowOptions& options);
Report run_bookkeeping(const BookkeepingOptions& options);
Report run_clear(const ClearOptions& options);
Report run_kernels(const KernelsOptions& options);
Report run_schedule(const ScheduleOptions& options);
Report run_info(const InfoOptions& options);

// Throws Refusal: a text or an option cannot be used.
Report run_accuracy(const AccuracyOptions& options);
// As JSON, or as a table without the wrong answers.
void print_accuracy(Report report, bool json);

// The main figures of all benches, each measured for a second or two.
Report run_overview(const CommonOptions& options);

// Shared by the benches: the cache of a model, and its parameters in the report.
int threads_of(const CommonOptions& options);
CacheShape shape_of(const ModelOptions& model, const CommonOptions& common);
Report model_report(const std::string& bench, const ModelOptions& model,
                    const CommonOptions& common);

// The peak of an arithmetic on all threads of the team, in portions of a few milliseconds. The team
// must outlive it.
Side arithmetic_side(ThreadTeam& team, Arithmetic arithmetic);
// The shortest portion that is worth timing, in seconds.
constexpr double kShortestPortion = 4e-3;

// KV memory that a bench walks in turn: far more than any last-level cache, so that nothing is left
// of it when its turn comes.
constexpr int64_t kFootprintBytes = int64_t{512} << 20;
constexpr int64_t kLargestPoolBytes = int64_t{8} << 30;

// The fewest layers, at least two, that make the footprint. Throws when the pool would be too large
// to measure.
int layers_for_footprint(int64_t bytes_per_layer);

}  // namespace kvc::bench
