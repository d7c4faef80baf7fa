// Traces of requests: what they look like in memory, and how they are read.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tools/replay/lines.h"

namespace kvc::replay {

enum class TraceKind {
  kBlockIds,  // JSON lines: lengths, and an id per block of the prompt (Mooncake)
  kTokenIds,  // JSON lines: token ids
  kLengths    // CSV: lengths alone (Azure); every prompt counts as unlike all others
};
const char* kind_name(TraceKind kind);  // "block ids"

constexpr double kUnknownTime = std::numeric_limits<double>::quiet_NaN();

struct TraceRequest {
  double seconds = kUnknownTime;  // arrival, on the trace's own clock
  int64_t prompt_tokens = 0;      // >= 1
  int64_t output_tokens = 0;
  size_t first_id = 0;  // in Trace::block_ids or token_ids
  // Token ids: those of the prompt, then those of the output when they are known
  size_t num_ids = 0;
};

struct Trace {
  std::string name;  // name of the file without folders
  TraceKind kind = TraceKind::kBlockIds;
  int64_t block_tokens = 0;  // block ids: tokens that one id names
  std::vector<TraceRequest> requests;
  std::vector<uint64_t> block_ids;
  std::vector<int32_t> token_ids;
  int64_t skipped_lines = 0;
  std::vector<std::string> skipped;  // why, the first few

  // Every request has an arrival time, and none is before the one above it.
  bool has_times() const;
  int64_t prompt_tokens() const;
};

constexpr int64_t kMooncakeBlock = 512;

struct ReadOptions {
  std::string path;                       // "-": standard input
  int64_t block_tokens = kMooncakeBlock;  // tokens that a block id names
  int64_t limit = 0;                      // requests; 0: all
  bool skip_bad_lines = false;
  std::function<void(double)> progress;  // nullable; fraction of the file
};

// The format is told by the content: a JSON object or a CSV header in the first line, then by the
// names of the fields. Throws TraceError: the message names the file, the line and what is wrong
// with it.
Trace read_trace(const ReadOptions& options);

}  // namespace kvc::replay
