#include "tools/plan/capacity.h"

#include <algorithm>

namespace kvc::plan_tool {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr int64_t kLengths[] = {512, 2048, 8192, 32768, 131072};

[[noreturn]] void fail(const kvc_error& error) { throw Failure(error.message); }

// Why a request may need more than one expects.
std::string hint(const kvc_config& config, kvc_status status) {
  if (status != KVC_E_NEVER_FITS || config.max_tokens_per_forward != 0) return "";
  const bool has_window =
      std::any_of(config.layers, config.layers + config.num_layers,
                  [](const kvc_layer& layer) { return layer.window != 0 || layer.chunk != 0; });
  if (!has_window) return "";
  return ". A prompt in one forward needs pages for all of it: with --max-tokens-per-forward layers with a "
         "window need fewer";
}

Stage plan_stage(const kvc_config& whole, Slice slice, const std::string& context) {
  kvc_config config = whole;
  config.layer_begin = slice.begin;
  config.layer_end = slice.end;
  Stage stage;
  stage.slice = slice;
  kvc_plan* plan = nullptr;
  kvc_error error{};
  if (const kvc_status status = kvc_plan_create(&config, &plan, &error); status != KVC_OK)
    throw Failure(context + error.message + hint(config, status));
  stage.plan.reset(plan);
  stage.info.struct_size = sizeof stage.info;
  if (kvc_plan_info_get(plan, &stage.info, &error) != KVC_OK) fail(error);
  return stage;
}

int64_t common_pages(const std::vector<Stage>& stages) {
  if (stages.size() == 1) return stages[0].info.num_pages;
  std::vector<const kvc_plan*> plans;
  for (const Stage& stage : stages) plans.push_back(stage.plan.get());
  int64_t pages = 0;
  kvc_error error{};
  if (kvc_plan_min_pages(plans.data(), plans.size(), &pages, &error) != KVC_OK) fail(error);
  return pages;
}

// Stages have the same groups, but recurrent states of their own, which may take pages.
int64_t request_pages(const Capacity& capacity, int64_t tokens) {
  int64_t most = 0;
  for (const Stage& stage : capacity.stages) {
    int64_t pages = 0;
    kvc_error error{};
    if (kvc_plan_request_pages(stage.plan.get(), tokens, &pages, &error) != KVC_OK) fail(error);
    most = std::max(most, pages);
  }
  return most;
}

Requests requests_of(const Capacity& capacity, int64_t tokens) {
  Requests out;
  out.tokens = tokens;
  out.pages = request_pages(capacity, tokens);
  if (out.pages != 0) out.count = static_cast<double>(capacity.num_pages) / static_cast<double>(out.pages);
  return out;
}

// request_pages never decreases: by bisection.
int64_t longest_request(const Capacity& capacity) {
  int64_t fits = 0, too_many = int64_t{INT32_MAX} + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (request_pages(capacity, middle) <= capacity.num_pages ? fits : too_many) = middle;
  }
  return fits;
}

int64_t pages_for(const Capacity& capacity, uint64_t memory) {
  int64_t least = INT64_MAX;
  for (const Stage& stage : capacity.stages) {
    int64_t pages = 0;
    kvc_error error{};
    if (kvc_plan_pages_for(stage.plan.get(), memory, &pages, &error) != KVC_OK) fail(error);
    least = std::min(least, pages);
  }
  return least;
}

}  // namespace

std::vector<Slice> cut_layers(int32_t num_layers, int32_t stages) {
  std::vector<Slice> out;
  int32_t begin = 0;
  for (int32_t i = 0; i < stages; ++i) {
    const int32_t count = num_layers / stages + (i < num_layers % stages ? 1 : 0);
    out.push_back({begin, begin + count});
    begin += count;
  }
  return out;
}

Capacity plan_capacity(const Model& model, uint64_t memory, int32_t tensor_ranks, int32_t stages) {
  if (stages > model.config.num_layers) {
    throw Failure("--pp " + std::to_string(stages) + " is more than the " +
                  std::to_string(model.config.num_layers) + " layers of the model");
  }
  kvc_config config = model.config;
  config.byte_budget = memory;
  Capacity capacity;
  capacity.memory = memory;
  capacity.tensor_ranks = tensor_ranks;
  capacity.max_len = config.max_seq_len;
  capacity.leaves_out_encoder =
      config.max_cross_len == 0 &&
      std::any_of(config.layers, config.layers + config.num_layers,
                  [](const kvc_layer& layer) { return layer.kind == KVC_LAYER_CROSS; });
  for (const Slice slice : cut_layers(config.num_layers, stages)) {
    const std::string context =
        stages == 1 ? ""
                    : "layers " + std::to_string(slice.begin) + " to " + std::to_string(slice.end - 1) + ": ";
    capacity.stages.push_back(plan_stage(config, slice, context));
  }
  capacity.num_pages = common_pages(capacity.stages);
  const auto fewest =
      std::min_element(capacity.stages.begin(), capacity.stages.end(),
                       [](const Stage& a, const Stage& b) { return a.info.num_pages < b.info.num_pages; });
  capacity.tightest = static_cast<size_t>(fewest - capacity.stages.begin());
  capacity.longest_request = longest_request(capacity);
  capacity.longest =
      requests_of(capacity, capacity.max_len != 0 ? capacity.max_len : capacity.longest_request);
  for (const int64_t tokens : kLengths) {
    if (capacity.max_len == 0 || tokens <= capacity.max_len)
      capacity.by_length.push_back(requests_of(capacity, tokens));
  }
  capacity.pages_with_one_more_gib = pages_for(capacity, memory + kGiB);
  return capacity;
}

}  // namespace kvc::plan_tool
