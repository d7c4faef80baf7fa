// kvcache.h, section "Plan".
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "src/base/dtype.h"
#include "src/cache/most_bytes.h"
#include "src/capi/call.h"
#include "src/capi/guard.h"

namespace {

using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::require;

// The C structs behind a config, read by the sized-struct rules.
struct ReadConfig {
  kvc_config config;
  std::vector<kvc::LayerInput> layers;
  kvc_allocator allocator;
  kvc_executor executor;
};

// The states of a STATE layer; other kinds have none, which the plan checks.
void read_states(const kvc_layer& layer, const std::string& name, kvc::LayerInput* out) {
  if (layer.num_states == 0 && layer.states == nullptr) return;
  if (layer.num_states < 0 || layer.num_states > kvc::kMaxStates) {
    fail_with(KVC_E_OUT_OF_RANGE, layer.num_states, "%s.num_states = %d out of range: 0 to %d",
              name.c_str(), layer.num_states, kvc::kMaxStates);
  }
  if (layer.num_states == 0 || layer.states == nullptr) {
    fail(KVC_E_INVALID_ARGUMENT, "%s.states is %s with num_states = %d", name.c_str(),
         layer.states == nullptr ? "NULL" : "set", layer.num_states);
  }
  const size_t stride = layer.states->struct_size;
  const auto* element = reinterpret_cast<const std::byte*>(layer.states);
  for (int32_t i = 0; i < layer.num_states; ++i, element += stride) {
    const std::string state = name + ".states[" + std::to_string(i) + "]";
    out->states.push_back(kvc::read_struct_at<kvc_state_spec>(element, stride, state.c_str()));
  }
}

void read_layers(const kvc_config& config, ReadConfig* out) {
  if (config.num_layers < 1 || config.num_layers > kvc::kMaxLayers) {
    fail_with(KVC_E_OUT_OF_RANGE, config.num_layers, "config.num_layers = %d out of range: 1 to %d",
              config.num_layers, kvc::kMaxLayers);
  }
  if (config.layers == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "config.layers is NULL with config.num_layers = %d",
         config.num_layers);
  const size_t stride = config.layers->struct_size;
  const auto* element = reinterpret_cast<const std::byte*>(config.layers);
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const std::string name = "config.layers[" + std::to_string(i) + "]";
    const kvc_layer layer = kvc::read_struct_at<kvc_layer>(
        element + static_cast<size_t>(i) * stride, stride, name.c_str());
    size_t own_size = 0;
    std::memcpy(&own_size, element + static_cast<size_t>(i) * stride, sizeof own_size);
    if (own_size != stride && own_size != 0) {
      fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(own_size),
                "%s.struct_size = %zu differs from the first layer's %zu", name.c_str(), own_size,
                stride);
    }
    kvc::LayerInput input;
    input.layer = layer;
    input.has_rope = layer.rope != nullptr;
    if (input.has_rope) input.rope = kvc::read_struct(layer.rope, (name + ".rope").c_str());
    read_states(layer, name, &input);
    out->layers.push_back(std::move(input));
  }
}

ReadConfig read_config(const kvc_config* caller) {
  ReadConfig read{};
  read.config = kvc::read_struct(caller, "config");
  kvc::refuse_extensions(read.config.ext, "config");
  read_layers(read.config, &read);
  if (read.config.allocator != nullptr)
    read.allocator = kvc::read_struct(read.config.allocator, "config.allocator");
  if (read.config.executor != nullptr)
    read.executor = kvc::read_struct(read.config.executor, "config.executor");
  return read;
}

kvc_plan_info plan_info(const kvc::Plan& plan) {
  const kvc::Spec& spec = plan.spec();
  kvc_plan_info info{};
  info.page_size = spec.base_page_size;
  info.num_layers = spec.num_layers;
  info.layer_begin = spec.layer_begin;
  info.layer_end = spec.layer_end;
  info.num_groups = static_cast<int32_t>(spec.groups.size());
  info.num_layer_regions = static_cast<int32_t>(plan.layout().regions.size());
  info.num_pages = plan.num_pages();
  info.page_bytes = static_cast<uint64_t>(plan.layout().page_bytes);
  info.bytes_per_token = static_cast<uint64_t>(plan.layout().bytes_per_token);
  info.pool_bytes = info.page_bytes * static_cast<uint64_t>(info.num_pages);
  info.max_tokens = plan.max_tokens(info.num_pages);
  info.max_seq_len = plan.max_seq_len(info.num_pages);
  info.state_slot_bytes = static_cast<uint64_t>(plan.layout().state_slot_bytes);
  info.num_state_slots = spec.num_state_slots;
  info.state_slot_pages = plan.state_slot_pages();
  info.cos_sin_bytes_per_token =
      static_cast<uint64_t>(kvc::cos_sin_bytes_per_token(plan.spec().ropes));
  info.prefix_block = static_cast<int32_t>(
      std::min(int64_t{spec.prefix_block()} * spec.cp_size, int64_t{INT32_MAX}));
  info.forwards_in_flight = spec.forwards_in_flight;
  info.num_host_pages = plan.num_host_pages();
  info.request_pages = plan.request_pages(plan.reference_tokens());
  info.concurrency = plan.concurrency();
  info.waste = plan.waste();
  info.host_bytes = kvc::most_host_bytes(plan);
  return info;
}

kvc_layer_info layer_info(const kvc::Plan& plan, size_t local) {
  const kvc::Spec& spec = plan.spec();
  const kvc::LayerSpec& layer = spec.layers[local];
  const kvc::LayerLayout& layout = plan.layout().layers[local];
  const auto source = static_cast<size_t>(layer.source);
  kvc_layer_info info{};
  info.kind = layer.kind;
  info.group = spec.layers[source].group;
  info.num_q_heads = layer.num_q_heads;
  info.num_kv_heads = layer.num_kv_heads;
  info.k_dim = layer.k_dim;
  info.v_dim = layer.v_dim;
  info.k_dtype =
      layer.k_quant != KVC_QUANT_NONE ? layer.k_type : kvc::dtype_to_dlpack(layer.k_dtype);
  info.v_dtype =
      layer.v_quant != KVC_QUANT_NONE ? layer.v_type : kvc::dtype_to_dlpack(layer.v_dtype);
  info.page_bytes = static_cast<uint64_t>(layout.page_bytes);
  info.k_page_bytes = static_cast<uint64_t>(layout.k_bytes);
  info.v_page_bytes = static_cast<uint64_t>(layout.v_bytes);
  info.bytes_per_token = static_cast<uint64_t>(layout.bytes_per_token);
  info.window = layer.window;
  info.chunk = layer.chunk;
  info.source_layer = layer.kind == KVC_LAYER_SHARED ? spec.layer_begin + layer.source : -1;
  info.latent_rank = layer.latent_rank;
  info.latent_rope_dim = layer.latent_rope_dim;
  info.flags = layer.v_in_k && !layer.is_mla() ? KVC_LAYER_V_IS_K : 0;
  info.num_states = static_cast<int32_t>(layer.states.size());
  info.state_bytes = static_cast<uint64_t>(layout.state_bytes);
  const kvc::LayerLayout& place = plan.layout().layers[source];
  info.region = place.region;
  if (info.region >= 0) {
    info.region_bytes = static_cast<uint64_t>(plan.layout().regions[info.region].bytes);
    info.region_offset = static_cast<uint64_t>(place.region_offset);
  }
  info.quant = layer.k_quant;
  info.v_quant = layer.v_quant;
  info.keep_tokens = layer.keep_tokens;
  info.kept_group = layer.kept_rows < 0 ? -1 : spec.layers[layer.kept_rows].group;
  if (info.group >= 0) info.page_size = spec.layer_page_size(static_cast<int32_t>(local));
  info.k_scale_bytes = static_cast<uint64_t>(layout.k_scale_bytes);
  info.v_scale_bytes = static_cast<uint64_t>(layout.v_scale_bytes);
  return info;
}

kvc_group_info group_info(const kvc::Plan& plan, size_t index) {
  const kvc::Spec& spec = plan.spec();
  const kvc::GroupSpec& group = spec.groups[index];
  kvc_group_info info{};
  info.num_layers = static_cast<int32_t>(group.layers.size());
  info.is_cross = group.is_cross ? 1 : 0;
  info.window = group.window;
  info.chunk = group.chunk;
  for (const int32_t layer : group.layers) {
    const kvc::LayerLayout& layout = plan.layout().layers[layer];
    info.page_bytes += static_cast<uint64_t>(layout.page_bytes);
    info.bytes_per_token += static_cast<uint64_t>(layout.bytes_per_token);
  }
  info.padding_bytes = static_cast<uint64_t>(plan.layout().page_bytes) - info.page_bytes;
  info.page_size = group.page_size;
  info.first_layer = group.layers.empty() ? -1 : spec.global_id(group.layers.front());
  info.keep_tokens = group.keep_tokens;
  info.request_pages = plan.request_pages(group, plan.reference_tokens());
  return info;
}

// The message names the layer groups of both plans.
void check_same_groups(const kvc::Spec& first, const kvc::Spec& other, size_t index) {
  const auto check = [&](const char* field, int64_t value, int64_t expected) {
    if (value != expected) {
      fail_with(KVC_E_INVALID_ARGUMENT, value,
                "plans[%zu] has %s = %lld, plans[0] has %lld: expected the same", index, field,
                static_cast<long long>(value), static_cast<long long>(expected));
    }
  };
  check("cp_size", other.cp_size, first.cp_size);
  check("num_groups", static_cast<int64_t>(other.groups.size()),
        static_cast<int64_t>(first.groups.size()));
  for (size_t i = 0; i < first.groups.size(); ++i) {
    const kvc::GroupSpec &a = first.groups[i], &b = other.groups[i];
    const std::string group = "groups[" + std::to_string(i) + "].";
    check((group + "page_size").c_str(), b.page_size, a.page_size);
    check((group + "window").c_str(), b.window, a.window);
    check((group + "chunk").c_str(), b.chunk, a.chunk);
    check((group + "is_cross").c_str(), b.is_cross ? 1 : 0, a.is_cross ? 1 : 0);
    check((group + "keep_tokens").c_str(), b.keep_tokens, a.keep_tokens);
  }
}

kvc_status write_text(const kvc_plan* plan, std::string (kvc::Plan::*text)() const, char* buf,
                      size_t* len, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    require(len, "len");
    const std::string value = (plan->plan.get()->*text)();
    kvc::write_array(value.c_str(), value.size() + 1, buf, len, "buf");
  });
}

}  // namespace

kvc_status kvc_config_init(kvc_config* config, size_t struct_size) noexcept {
  if (config == nullptr || struct_size < sizeof(size_t) || struct_size > kvc::kMaxStructSize)
    return KVC_E_INVALID_ARGUMENT;
  std::memset(static_cast<void*>(config), 0, struct_size);
  config->struct_size = struct_size;
  return KVC_OK;
}

kvc_status kvc_plan_create(const kvc_config* config, kvc_plan** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(out, "out");
    ReadConfig read = read_config(config);
    if (read.config.allocator != nullptr) read.config.allocator = &read.allocator;
    if (read.config.executor != nullptr) read.config.executor = &read.executor;
    auto plan = std::make_shared<const kvc::Plan>(kvc::make_spec(read.config, read.layers));
    *out = std::make_unique<kvc_plan>(kvc_plan{std::move(plan)}).release();
  });
}

void kvc_plan_destroy(kvc_plan* plan) noexcept { delete plan; }

kvc_status kvc_plan_info_get(const kvc_plan* plan, kvc_plan_info* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    kvc::check_output(out, "out");
    kvc::write_struct(out, plan_info(*plan->plan));
  });
}

kvc_status kvc_plan_layer_get(const kvc_plan* plan, int32_t layer, kvc_layer_info* out,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    kvc::check_output(out, "out");
    const kvc::Spec& spec = plan->plan->spec();
    const int32_t local = plan->plan->local_layer(layer);
    if (local < 0) {
      fail_with(KVC_E_OUT_OF_RANGE, layer,
                "layer %d out of range: the plan has layers %d to %d of %d", layer,
                spec.layer_begin, spec.layer_end - 1, spec.num_layers);
    }
    kvc::write_struct(out, layer_info(*plan->plan, static_cast<size_t>(local)));
  });
}

kvc_status kvc_plan_group_get(const kvc_plan* plan, int32_t group, kvc_group_info* out,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    kvc::check_output(out, "out");
    const kvc::Spec& spec = plan->plan->spec();
    const auto num_groups = static_cast<int32_t>(spec.groups.size());
    if (group < 0 || group >= num_groups)
      fail_with(KVC_E_OUT_OF_RANGE, group, "group %d out of range: the plan has %d groups", group,
                num_groups);
    kvc::write_struct(out, group_info(*plan->plan, static_cast<size_t>(group)));
  });
}

kvc_status kvc_plan_pages_for(const kvc_plan* plan, uint64_t byte_budget, int64_t* out_pages,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    require(out_pages, "out_pages");
    *out_pages = plan->plan->pages_for_bytes(byte_budget);
  });
}

kvc_status kvc_plan_max_tokens(const kvc_plan* plan, uint64_t byte_budget, int64_t* out_tokens,
                               kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    require(out_tokens, "out_tokens");
    *out_tokens = plan->plan->max_seq_len(plan->plan->pages_for_bytes(byte_budget));
  });
}

kvc_status kvc_plan_request_pages(const kvc_plan* plan, int64_t num_tokens, int64_t* out_pages,
                                  kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    require(out_pages, "out_pages");
    if (num_tokens < 0) {
      fail_with(KVC_E_OUT_OF_RANGE, num_tokens, "num_tokens = %lld out of range: at least 0",
                static_cast<long long>(num_tokens));
    }
    *out_pages = plan->plan->request_pages(num_tokens);
  });
}

kvc_status kvc_plan_describe(const kvc_plan* plan, char* buf, size_t* len,
                             kvc_error* err) noexcept {
  return write_text(plan, &kvc::Plan::describe, buf, len, err);
}

kvc_status kvc_plan_to_json(const kvc_plan* plan, char* buf, size_t* len, kvc_error* err) noexcept {
  return write_text(plan, &kvc::Plan::to_json, buf, len, err);
}

kvc_status kvc_plan_min_pages(const kvc_plan* const* plans, size_t n, int64_t* out_pages,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plans, "plans");
    require(out_pages, "out_pages");
    if (n == 0) fail(KVC_E_INVALID_ARGUMENT, "n = 0: expected at least 1 plan");
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < n; ++i) {
      if (plans[i] == nullptr) {
        fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(i), "plans[%zu] is NULL, n = %zu", i,
                  n);
      }
      check_same_groups(plans[0]->plan->spec(), plans[i]->plan->spec(), i);
      least = std::min(least, plans[i]->plan->num_pages());
    }
    *out_pages = least;
  });
}
