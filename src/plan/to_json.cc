// The plan as JSON for programs. It has only names and numbers, so nothing needs escaping.
#include <string>

#include "src/base/error.h"
#include "src/plan/names.h"
#include "src/plan/plan.h"
#include "src/plan/rows.h"

namespace kvc {
namespace {

const char* kind_name(kvc_layer_kind kind) {
  static constexpr const char* kNames[] = {"attention", "mla", "cross", "state", "shared", "none"};
  return kNames[kind];
}

const char* json_quant_name(kvc_quant quant) {
  static constexpr const char* kNames[] = {"none", "per_tensor", "per_token_head", "block16"};
  return kNames[quant];
}

void write_totals(const Plan& plan, std::string& text) {
  const Spec& spec = plan.spec();
  const int64_t pages = plan.num_pages(), page_bytes = plan.layout().page_bytes;
  append_format(text,
                "\"page_size\": %d, \"num_layers\": %d, \"layer_begin\": %d, \"layer_end\": %d, ",
                spec.base_page_size, spec.num_layers, spec.layer_begin, spec.layer_end);
  append_format(text, "\"num_pages\": %lld, \"page_bytes\": %lld, \"bytes_per_token\": %lld, ",
                ll(pages), ll(page_bytes), ll(plan.layout().bytes_per_token));
  append_format(text, "\"pool_bytes\": %lld, \"max_tokens\": %lld, \"max_seq_len\": %lld, ",
                ll(pages * page_bytes), ll(plan.max_tokens(pages)), ll(plan.max_seq_len(pages)));
  append_format(text, "\"request_pages\": %lld, \"concurrency\": %.17g, \"waste\": %.17g, ",
                ll(plan.request_pages(plan.reference_tokens())), plan.concurrency(), plan.waste());
  append_format(text,
                "\"prefix_block\": %d, \"forwards_in_flight\": %d, \"num_host_pages\": %lld, ",
                spec.prefix_block(), spec.forwards_in_flight, ll(plan.num_host_pages()));
  append_format(
      text, "\"state_slot_bytes\": %lld, \"num_state_slots\": %lld, \"state_slot_pages\": %lld, ",
      ll(plan.layout().state_slot_bytes), ll(spec.num_state_slots), ll(plan.state_slot_pages()));
  append_format(text, "\"cos_sin_bytes_per_token\": %lld, ",
                ll(cos_sin_bytes_per_token(plan.spec().ropes)));
  append_format(text, "\"num_groups\": %zu, \"num_layer_regions\": %zu, ", spec.groups.size(),
                plan.layout().regions.size());
  append_format(text, "\"storage\": \"%s\", \"pool_layout\": \"%s\", ", storage_name(spec.storage),
                pool_layout_name(spec.pool_layout));
}

void write_group(const Plan& plan, const GroupSpec& group, std::string& text) {
  int64_t used = 0, bytes_per_token = 0;
  text += "{\"layers\": [";
  for (size_t i = 0; i < group.layers.size(); ++i) {
    const LayerLayout& layer = plan.layout().layers[group.layers[i]];
    used += layer.page_bytes;
    bytes_per_token += layer.bytes_per_token;
    append_format(text, "%s%d", i == 0 ? "" : ", ", plan.spec().layer_begin + group.layers[i]);
  }
  append_format(text, "], \"kind\": \"%s\", \"window\": %lld, \"chunk\": %lld, \"page_size\": %d, ",
                group_kind_name(group), ll(group.window), ll(group.chunk), group.page_size);
  append_format(text,
                "\"page_bytes\": %lld, \"padding_bytes\": %lld, \"request_pages\": %lld, "
                "\"bytes_per_token\": %lld}",
                ll(used), ll(plan.layout().page_bytes - used),
                ll(plan.request_pages(group, plan.reference_tokens())), ll(bytes_per_token));
}

void write_layer(const Plan& plan, size_t local, std::string& text) {
  const Spec& spec = plan.spec();
  const LayerSpec& layer = spec.layers[local];
  const LayerLayout& layout = plan.layout().layers[local];
  const auto source = static_cast<size_t>(layer.source);
  append_format(
      text,
      "{\"layer\": %d, \"kind\": \"%s\", \"group\": %d, \"num_q_heads\": %d, \"num_kv_heads\": %d, "
      "\"k_dim\": %d, \"v_dim\": %d, \"window\": %lld, \"chunk\": %lld, ",
      spec.layer_begin + static_cast<int>(local), kind_name(layer.kind), spec.layers[source].group,
      layer.num_q_heads, layer.num_kv_heads, layer.k_dim, layer.v_dim, ll(layer.window),
      ll(layer.chunk));
  append_format(text,
                "\"k_dtype\": \"%s\", \"v_dtype\": \"%s\", \"quant\": \"%s\", \"region\": %d, "
                "\"region_offset\": %lld, ",
                k_type_name(layer).c_str(), v_type_name(layer).c_str(),
                json_quant_name(layer.quant), plan.layout().layers[source].region,
                ll(plan.layout().layers[source].region_offset));
  append_format(text, "\"page_bytes\": %lld, \"bytes_per_token\": %lld, \"state_bytes\": %lld}",
                ll(layout.page_bytes), ll(layout.bytes_per_token), ll(layout.state_bytes));
}

}  // namespace

std::string Plan::to_json() const {
  std::string text = "{";
  write_totals(*this, text);
  text += "\"groups\": [";
  for (size_t i = 0; i < spec_.groups.size(); ++i) {
    if (i != 0) text += ", ";
    write_group(*this, spec_.groups[i], text);
  }
  text += "], \"layers\": [";
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    if (i != 0) text += ", ";
    write_layer(*this, i, text);
  }
  return text + "]}";
}

}  // namespace kvc
