// A trace through the bookkeeping of a pool, and what came of it.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tools/replay/bookkeeper.h"
#include "tools/replay/trace.h"

namespace kvc::replay {

enum class Policy {
  kLru,  // prompts are looked up and published; what was not used for longest goes first
  kNone  // no prefix cache
};
const char* policy_name(Policy policy);

struct ReplayOptions {
  int64_t block = kMooncakeBlock;  // tokens of a page
  Policy policy = Policy::kLru;
  int64_t window = 0;        // A second group of layers has it; 0: there is none.
  bool whole_blocks = true;  // else hits end inside blocks, too, where tokens are known
  bool outputs = false;      // outputs take pages, too; published where their tokens are known
  int64_t concurrency = 0;   // a request is removed when so many more have come; 0: at once
  int repeat =
      // Replays per pool size, each from an empty cache; the one with the lowest mean cost counts
      1;
  std::function<void(double)> progress;  // nullable; fraction of the requests

  int64_t num_groups() const { return window != 0 ? 2 : 1; }
  // Tokens that so many pages hold, as long as no window has dropped any.
  int64_t tokens_of(int64_t pages) const { return pages / num_groups() * block; }
};

constexpr int64_t kUnlimited = 0;  // pages: as many as the whole trace takes

// Neighbouring requests of the trace together, for figures.
struct Window {
  // Last request of the window: its arrival in seconds after the first request, or its number.
  double x = 0;
  int64_t requests = 0;
  int64_t prompt_tokens = 0, hit_tokens = 0;
  uint64_t evicted = 0;      // blocks
  int64_t pages_used = 0;    // pages held by requests at the window's end
  int64_t pages_filled = 0;  // the same plus pages of the prefix cache
  double mean_us = 0, largest_us = 0;
};

struct Cost {
  double mean = 0, p50 = 0, p99 = 0, largest = 0;  // microseconds of a request
};

struct RunResult {
  int64_t pages = kUnlimited;  // asked for
  int64_t pool_pages = 0;
  int64_t requests = 0;  // requests of the trace
  int64_t refused = 0;   // requests larger than the pool; the figures below leave them out
  int64_t prompt_tokens = 0, output_tokens = 0;
  int64_t hit_tokens = 0, hit_blocks = 0;
  int64_t waited = 0;       // requests for which others had to be removed earlier
  int64_t peak_filled = 0;  // largest Window::pages_filled
  Cost cost;                // cost of a request's calls; making keys is not counted
  double key_us = 0;        // mean time of making a request's keys
  bool x_is_time = false;
  std::vector<Window> windows;
  kvc_stats stats{};  // at the end

  int64_t served() const { return requests - refused; }
  // The pool that the run filled when it was not limited.
  int64_t needed_pages() const { return std::max<int64_t>({1, peak_filled, stats.pages_peak}); }
  double hit_rate() const {
    return prompt_tokens == 0
               ? 0
               : static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
};

// Why this trace cannot be cut into pages of `block` tokens; empty: it can.
std::string block_problem(const Trace& trace, int64_t block);

// Pages that hold everything the trace brings, nothing shared.
int64_t pages_for_all(const Trace& trace, const ReplayOptions& options);
// Pages of the largest request.
int64_t pages_for_largest(const Trace& trace, const ReplayOptions& options);

// Pool sizes worth a look, ascending: round numbers below `needed`, each about half of the next,
// none below `largest`.
std::vector<int64_t> sizes_below(int64_t needed, int64_t largest);

RunResult replay(const Trace& trace, const ReplayOptions& options, int64_t pages,
                 int64_t pool_pages, Bookkeeper& books);

// One replay per pool size, each with a bookkeeper of its own. `make` takes tokens of a page and
// pages.
using MakeBookkeeper = std::function<std::unique_ptr<Bookkeeper>(int64_t, int64_t)>;
std::vector<RunResult> sweep(const Trace& trace, const ReplayOptions& options,
                             const std::vector<int64_t>& pages, const MakeBookkeeper& make);

Cost cost_of(std::vector<float>* microseconds);  // reorders them

}  // namespace kvc::replay
