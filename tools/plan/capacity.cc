#include "tools/plan/capacity.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvc::plan_tool {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr int64_t kLengths[] = {512, 2048, 8192, 32768, 131072};

[[noreturn]] void fail(const kvc_error& error) { throw Failure(in_option_names(error.message)); }

// A request of `config.max_seq_len` tokens does not fit; `longest` is the longest that does by the
// library's count.
struct TooLong {
  int64_t longest;
  std::string message;
};

Stage make_stage(const kvc_config& config, Slice slice, const std::string& context) {
  Stage stage;
  stage.slice = slice;
  kvc_plan* plan = nullptr;
  kvc_error error{};
  if (const kvc_status status = kvc_plan_create(&config, &plan, &error); status != KVC_OK) {
    const std::string message = context + in_option_names(error.message);
    if (status == KVC_E_NEVER_FITS) throw TooLong{error.detail, message};
    throw Failure(message);
  }
  stage.plan.reset(plan);
  stage.info.struct_size = sizeof stage.info;
  if (kvc_plan_info_get(plan, &stage.info, &error) != KVC_OK) fail(error);
  return stage;
}

// The layers of the slice keep states, or nothing, and others of the model keep pages.
bool keeps_states_alone(const kvc_config& config, Slice slice) {
  const auto keeps_pages = [](const kvc_layer& layer) {
    return layer.kind != KVC_LAYER_STATE && layer.kind != KVC_LAYER_NONE;
  };
  return std::any_of(config.layers, config.layers + config.num_layers, keeps_pages) &&
         std::none_of(config.layers + slice.begin, config.layers + slice.end, keeps_pages);
}

// Such a stage has page tables without bytes. Its memory holds state slots.
Stage plan_states(kvc_config config, Slice slice, const std::string& context, int64_t pages) {
  const uint64_t memory = std::exchange(config.byte_budget, 0);
  config.num_pages = pages;
  const Stage shape = make_stage(config, slice, context);
  const uint64_t slot_bytes = shape.info.state_slot_bytes;
  if (slot_bytes == 0) return make_stage(config, slice, context);
  const auto slots = static_cast<int64_t>(std::min<uint64_t>(memory / slot_bytes, INT32_MAX - 1));
  if (slots < 2 || config.num_state_slots > slots) {
    throw Failure(context + "--memory = " + std::to_string(memory) + " holds " +
                  std::to_string(slots) + " states of " + std::to_string(slot_bytes) +
                  " bytes, expected at least " +
                  std::to_string(std::max<int64_t>(2, config.num_state_slots)));
  }
  if (config.num_state_slots == 0) config.num_state_slots = slots;
  return make_stage(config, slice, context);
}

Stage plan_stage(const kvc_config& whole, Slice slice, const std::string& context, int64_t pages) {
  kvc_config config = whole;
  config.layer_begin = slice.begin;
  config.layer_end = slice.end;
  if (pages != 0 && keeps_states_alone(config, slice))
    return plan_states(config, slice, context, pages);
  return make_stage(config, slice, context);
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

Requests requests_of(const Capacity& capacity, int64_t tokens) {
  Requests out;
  out.tokens = tokens;
  out.pages = request_pages(capacity, tokens);
  if (out.pages != 0) out.count = requests_in(capacity, capacity.num_pages, out.pages);
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

// Stages that keep states alone have as many pages as they were given.
int64_t most_pages(const Capacity& capacity) {
  int64_t most = INT64_MAX;
  for (const Stage& stage : capacity.stages) {
    if (stage.info.page_bytes == 0) most = std::min(most, stage.info.num_pages);
  }
  return most;
}

int64_t pages_for(const Capacity& capacity, uint64_t memory) {
  int64_t least = INT64_MAX;
  for (const Stage& stage : capacity.stages) {
    if (stage.info.page_bytes == 0) continue;  // More memory holds more states there.
    int64_t pages = 0;
    kvc_error error{};
    if (kvc_plan_pages_for(stage.plan.get(), memory, &pages, &error) != KVC_OK) fail(error);
    least = std::min(least, pages);
  }
  return least == INT64_MAX ? capacity.num_pages : std::min(least, most_pages(capacity));
}

// How a model is cut. The last `at_end` layers belong to the last stage. Stages that keep states
// alone have `pages` pages; 0: such stages are refused.
struct Stages {
  int32_t count, at_end;
  int64_t pages;
};

std::vector<Stage> plan_stages(const kvc_config& config, const Stages& stages) {
  std::vector<Stage> out;
  for (const Slice slice : cut_layers(config.num_layers, stages.count, stages.at_end)) {
    const std::string context = stages.count == 1
                                    ? ""
                                    : "layers " + std::to_string(slice.begin) + " to " +
                                          std::to_string(slice.end - 1) + ": ";
    out.push_back(plan_stage(config, slice, context, stages.pages));
  }
  return out;
}

// Groups are chosen for the longest request, so a shorter one may be planned otherwise: lengths go
// down until one fits. Sets config.max_seq_len to it.
std::vector<Stage> plan_what_fits(kvc_config& config, const Stages& stages) {
  const int64_t asked = config.max_seq_len;
  while (true) {
    try {
      return plan_stages(config, stages);
    } catch (const TooLong& too_long) {
      const int64_t shorter = std::min(too_long.longest, config.max_seq_len - 1);
      if (shorter < 1)
        throw Failure("not one token of a request of " + std::to_string(asked) +
                      " fits: " + too_long.message);
      config.max_seq_len = shorter;
    }
  }
}

// `config` plans the capacity. The library's bound without a number of sequences is for one per
// page, far more than any program has.
std::vector<HostBytes> host_bytes_of(kvc_config config, const Capacity& capacity, int64_t pages) {
  const Slice slice = capacity.reported().slice;
  std::vector<HostBytes> out;
  const auto add = [&](double requests) {
    const double most = std::min(requests, static_cast<double>(INT32_MAX));
    const auto sequences = std::max(int64_t{1}, static_cast<int64_t>(most));
    if (!out.empty() && sequences <= out.back().sequences) return;
    config.max_seqs = static_cast<int32_t>(sequences);
    out.push_back({sequences, plan_stage(config, slice, "", pages).info.host_bytes});
  };
  add(capacity.longest.count);
  if (!capacity.by_length.empty()) add(capacity.by_length.front().count);
  return out;
}

bool keeps_less_than(const kvc_layer& layer, int64_t tokens) {
  return (layer.window != 0 && layer.window < tokens) || (layer.chunk != 0 && layer.chunk < tokens);
}

}  // namespace

std::string in_option_names(std::string message) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"config.host_byte_budget", "--host-memory"},
      {"config.byte_budget", "--memory"},
      {"config.max_seq_len", "--max-len"},
      {"config.max_tokens_per_forward", "--max-tokens-per-forward"},
      {"config.max_cross_len", "--max-cross-len"},
      {"config.page_size", "--page-size"},
      {"config.forwards_in_flight", "--in-flight"},
      {"config.num_state_slots", "--state-slots"},
      {"config.num_pages", "--pages"},
      {"config.num_layers", "--layers"},
      {"config.cp_size", "--cp"},
      {"opt->assume", "--assume"},
      {"opt->mtp_layers", "--mtp"}};
  for (const auto& [field, option] : kNames) {
    for (size_t at = 0; (at = message.find(field, at)) != std::string::npos; at += option.size())
      message.replace(at, field.size(), option);
  }
  return message;
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

double requests_in(const Capacity& capacity, int64_t num_pages, int64_t pages_each) {
  double requests = static_cast<double>(num_pages) / static_cast<double>(pages_each);
  for (const Stage& stage : capacity.stages) {
    // A request has a state before and one after a forward.
    if (stage.info.num_state_slots != 0)
      requests = std::min(requests, static_cast<double>(stage.info.num_state_slots) / 2);
  }
  return requests;
}

std::vector<Slice> cut_layers(int32_t num_layers, int32_t stages, int32_t at_end) {
  std::vector<Slice> out;
  int32_t begin = 0;
  num_layers -= at_end;
  for (int32_t i = 0; i < stages; ++i) {
    const int32_t count = num_layers / stages + (i < num_layers % stages ? 1 : 0);
    out.push_back({begin, begin + count});
    begin += count;
  }
  out.back().end += at_end;
  return out;
}

Capacity plan_capacity(const Model& model, uint64_t memory, int32_t tensor_ranks, int32_t stages,
                       int64_t pages) {
  const int32_t at_end = model.num_mtp_layers + model.num_draft_layers;
  if (stages > model.config.num_layers - at_end) {
    throw Failure("--pp " + std::to_string(stages) + " is more than the " +
                  std::to_string(model.config.num_layers - at_end) + " layers of the model");
  }
  kvc_config config = model.config;
  config.byte_budget = memory;
  Capacity capacity;
  capacity.memory = memory;
  capacity.tensor_ranks = tensor_ranks;
  capacity.context_ranks = config.cp_size;
  capacity.max_len = config.max_seq_len;
  capacity.leaves_out_encoder =
      config.max_cross_len == 0 &&
      std::any_of(config.layers, config.layers + config.num_layers,
                  [](const kvc_layer& layer) { return layer.kind == KVC_LAYER_CROSS; });
  capacity.max_tokens_per_forward = config.max_tokens_per_forward;
  capacity.num_mtp_layers = model.num_mtp_layers;
  capacity.num_draft_layers = model.num_draft_layers;
  capacity.num_layers = config.num_layers;
  capacity.stages = plan_what_fits(config, {stages, at_end, pages});
  capacity.planned_len = config.max_seq_len;
  capacity.drops_behind_windows =
      std::any_of(config.layers, config.layers + config.num_layers,
                  [&](const kvc_layer& layer) { return keeps_less_than(layer, capacity.max_len); });
  capacity.num_pages = common_pages(capacity.stages);
  const auto fewest = std::min_element(
      capacity.stages.begin(), capacity.stages.end(), [](const Stage& a, const Stage& b) {
        // The table of a stage without pages would say little.
        const bool a_keeps = a.info.page_bytes != 0, b_keeps = b.info.page_bytes != 0;
        return a_keeps != b_keeps ? a_keeps : a.info.num_pages < b.info.num_pages;
      });
  capacity.tightest = static_cast<size_t>(fewest - capacity.stages.begin());
  capacity.longest_request = longest_request(capacity);
  capacity.longest = requests_of(
      capacity, capacity.planned_len != 0 ? capacity.planned_len : capacity.longest_request);
  for (const int64_t tokens : kLengths) {
    if (capacity.planned_len == 0 || tokens <= capacity.planned_len)
      capacity.by_length.push_back(requests_of(capacity, tokens));
  }
  capacity.pages_with_one_more_gib = pages_for(capacity, memory + kGiB);
  capacity.host = host_bytes_of(config, capacity, pages);
  return capacity;
}

}  // namespace kvc::plan_tool
