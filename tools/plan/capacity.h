// What the memory of all ranks of a model holds together.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tools/plan/model.h"

namespace kvc::plan_tool {

struct Slice {
  int32_t begin = 0, end = 0;
};

// Layers cut into `stages` runs of equal length; what is left over goes to the first ones, a layer
// each. The last `at_end` layers are not counted: they all belong to the last stage.
std::vector<Slice> cut_layers(int32_t num_layers, int32_t stages, int32_t at_end = 0);

struct PlanDeleter {
  void operator()(kvc_plan* plan) const { kvc_plan_destroy(plan); }
};
using PlanHandle = std::unique_ptr<kvc_plan, PlanDeleter>;

struct Stage {
  Slice slice;
  PlanHandle plan;
  kvc_plan_info info{};
};

// Requests of one length at once.
struct Requests {
  int64_t tokens = 0;
  int64_t pages = 0;  // pages per request
  double count = 0;
};

// Most memory of a cache on a CPU that has so many sequences, its pool included.
struct HostBytes {
  int64_t sequences = 0;
  uint64_t bytes = 0;
};

struct Capacity {
  uint64_t memory = 0;        // bytes per rank
  std::vector<Stage> stages;  // one plan each; its tensor parallel ranks are alike
  size_t tightest = 0;        // the stage with the fewest pages
  int32_t tensor_ranks = 1;
  int32_t context_ranks = 1;  // Some of the tensor parallel ones.
  int32_t num_layers = 0;  // All of them; the last ones are those of MTP, then the draft model's.
  int32_t num_mtp_layers = 0, num_draft_layers = 0;
  int64_t num_pages = 0;  // Pages that every rank has.
  int64_t max_len = 0;    // Length asked for, or the model's; 0: none.
  // Length the plan is made for: max_len where it fits, else what fits.
  int64_t planned_len = 0;
  int64_t max_tokens_per_forward = 0;  // 0: a prompt comes in one forward.
  Requests longest;                    // Requests of planned_len tokens.
  int64_t longest_request = 0;         // Tokens of one request that has all pages to itself.
  std::vector<Requests> by_length;
  // For the longest requests that the reported stage holds at once, and for the shortest ones
  // listed where these are more.
  std::vector<HostBytes> host;
  int64_t pages_with_one_more_gib = 0;
  bool leaves_out_encoder = false;    // no limit of encoder tokens is known: they are not counted
  bool drops_behind_windows = false;  // Some layer keeps fewer tokens than planned_len.

  const Stage& reported() const { return stages[tightest]; }
  bool fits() const { return planned_len == max_len; }
};

// Pages that a request of `tokens` takes on the rank that needs most.
int64_t request_pages(const Capacity& capacity, int64_t tokens);
// Requests of so many pages each that `num_pages` and the state slots of all ranks hold at once.
double requests_in(const Capacity& capacity, int64_t num_pages, int64_t pages_each);

// A message of the library in the words of the command: --memory for config.byte_budget.
std::string in_option_names(std::string message);

// Where the longest request does not fit, the plan is for the longest that does; fits() tells.
// `pages`: those of stages whose layers keep states alone; 0: such a stage is refused. Throws
// Failure where nothing fits.
Capacity plan_capacity(const Model& model, uint64_t memory, int32_t tensor_ranks, int32_t stages,
                       int64_t pages = 0);

}  // namespace kvc::plan_tool
