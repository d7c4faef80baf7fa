// The plan as a table for people.
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/print.h"
#include "src/plan/names.h"
#include "src/plan/plan.h"
#include "src/plan/rows.h"

namespace kvc {
namespace {

// Text such as "1.50 GiB".
std::string bytes_text(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) bytes /= 1024, ++unit;
  char text[32];
  print(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, kUnits[unit]);
  return text;
}

std::string bytes_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

// A key that is equal for layers of one line of the table. Layers that own pages have themselves as
// source, so the source counts only for SHARED layers.
std::string shape_key(const LayerSpec& layer) {
  std::string key = k_type_name(layer) + " " + v_type_name(layer);
  for (const int64_t number :
       {int64_t{layer.kind}, int64_t{layer.kind == KVC_LAYER_SHARED ? layer.source : -1},
        int64_t{layer.num_q_heads}, int64_t{layer.num_kv_heads}, int64_t{layer.k_dim},
        int64_t{layer.v_dim}, int64_t{layer.quant}, int64_t{layer.v_in_k}, int64_t{layer.window},
        int64_t{layer.chunk}, static_cast<int64_t>(layer.states.size())})
    key += " " + std::to_string(number);
  return key;
}

// Text such as "0-4, 6-10, 12-16, ...".
std::string ids_text(const std::vector<int32_t>& ids) {
  constexpr int kMostRanges = 3;
  std::string text;
  int ranges = 0;
  for (size_t first = 0; first < ids.size(); ++ranges) {
    size_t last = first;
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    if (ranges == kMostRanges) return text + ", ...";
    if (ranges != 0) text += ", ";
    text += std::to_string(ids[first]);
    if (last != first) text += "-" + std::to_string(ids[last]);
    first = last + 1;
  }
  return text;
}

// Text such as "ATTENTION window 1024".
std::string kind_text(const LayerSpec& layer, int32_t layer_begin) {
  std::string text = layer_kind_name(layer.kind);
  if (layer.window != 0) text += " window " + std::to_string(layer.window);
  if (layer.chunk != 0) text += " chunk " + std::to_string(layer.chunk);
  if (layer.v_in_k && !layer.is_mla()) text += " V = K";
  if (layer.kind == KVC_LAYER_SHARED)
    text += " of layer " + std::to_string(layer_begin + layer.source);
  if (layer.kind == KVC_LAYER_STATE) text += " " + std::to_string(layer.states.size()) + " states";
  return text;
}

void describe_layers(const Plan& plan, std::string& text) {
  const Spec& spec = plan.spec();
  append_format(text, "%6s  %-24s %8s %9s %6s %6s %-13s %-13s %-14s %12s  %s\n", "layers", "kind",
                "q heads", "kv heads", "k dim", "v dim", "k type", "v type", "quantised",
                "bytes/token", "ids");
  std::vector<std::vector<int32_t>> lines;  // local layers of each
  std::map<std::string, size_t> line_of;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const size_t line = line_of.emplace(shape_key(spec.layers[i]), lines.size()).first->second;
    if (line == lines.size()) lines.emplace_back();
    lines[line].push_back(static_cast<int32_t>(i));
  }
  for (std::vector<int32_t>& ids : lines) {
    const auto first = static_cast<size_t>(ids.front());
    const LayerSpec& layer = spec.layers[first];
    for (int32_t& id : ids) id += spec.layer_begin;
    append_format(text, "%6zu  %-24s ", ids.size(), kind_text(layer, spec.layer_begin).c_str());
    if (layer.num_q_heads != 0) {
      append_format(text, "%8d %9d %6d %6d %-13s %-13s %-14s %12lld", layer.num_q_heads,
                    layer.num_kv_heads, layer.k_dim, layer.v_dim, k_type_name(layer).c_str(),
                    v_type_name(layer).c_str(),
                    layer.is_quantised() ? quant_name(layer.quant) : "-",
                    ll(plan.layout().layers[first].bytes_per_token));
    } else {
      append_format(text, "%88s", "");
    }
    append_format(text, "  %s\n", ids_text(ids).c_str());
  }
}

void describe_groups(const Plan& plan, std::string& text) {
  const Spec& spec = plan.spec();
  if (spec.groups.empty()) return;
  append_format(text, "\n%-5s  %-18s %6s %11s %12s %12s %16s %14s  %s\n", "group", "sees", "layers",
                "tokens/page", "bytes/token", "of a page", "padding", "pages/request",
                "first layer");
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const GroupSpec& group = spec.groups[i];
    int64_t used = 0, bytes_per_token = 0;
    for (const int32_t layer : group.layers) {
      used += plan.layout().layers[layer].page_bytes;
      bytes_per_token += plan.layout().layers[layer].bytes_per_token;
    }
    const int64_t page_bytes = plan.layout().page_bytes, padding = page_bytes - used;
    std::string sees = group_kind_name(group);
    if (group.is_windowed()) sees += " " + std::to_string(group.window + group.chunk);
    char share[48];
    print(share, sizeof share, "%s %4.1f %%", bytes_text(padding).c_str(),
          page_bytes == 0 ? 0.0
                          : 100.0 * static_cast<double>(padding) / static_cast<double>(page_bytes));
    append_format(
        text, "%5zu  %-18s %6zu %11d %12lld %12s %16s %14lld  %s\n", i, sees.c_str(),
        group.layers.size(), group.page_size, ll(bytes_per_token), bytes_text(used).c_str(), share,
        ll(plan.request_pages(group, plan.reference_tokens())),
        group.layers.empty() ? "none here"
                             : std::to_string(spec.layer_begin + group.layers.front()).c_str());
  }
}

void describe_states(const Plan& plan, std::string& text) {
  const int64_t bytes = plan.layout().state_slot_bytes;
  if (bytes == 0) return;
  append_format(text, "state        %s per sequence and checkpoint", bytes_text(bytes).c_str());
  if (plan.spec().num_state_slots != 0)
    append_format(text, ", at most %lld", ll(plan.spec().num_state_slots));
  if (plan.state_slot_pages() != 0) {
    append_format(text, ", %lld pages out of the pool, %s of them unused",
                  ll(plan.state_slot_pages()),
                  bytes_text(plan.state_slot_pages() * plan.layout().page_bytes - bytes).c_str());
  }
  text += "\n";
}

void describe_cos_sin(const Plan& plan, std::string& text) {
  const int64_t bytes = cos_sin_bytes_per_token(plan.spec().ropes);
  if (bytes == 0) return;
  append_format(text,
                "rotation     on read: %s of cos and sin beside the pool per token in sight\n",
                bytes_text(bytes).c_str());
}

void describe_request(const Plan& plan, std::string& text) {
  const int64_t tokens = plan.reference_tokens(), pages = plan.request_pages(tokens);
  const double bytes = static_cast<double>(pages) * static_cast<double>(plan.layout().page_bytes);
  append_format(text, "one request  of %lld tokens takes %lld pages, %s\n", ll(tokens), ll(pages),
                bytes_text(bytes).c_str());
  append_format(
      text,
      "waste        %.2f %% of such a request, %s: padding and what lies behind its last tokens\n",
      100 * plan.waste(), bytes_text(plan.waste() * bytes).c_str());
}

void describe_pool(const Plan& plan, std::string& text) {
  const Spec& spec = plan.spec();
  if (plan.num_pages() == 0) {
    text += "pool         no pages planned: num_pages and byte_budget are both 0\n";
    return;
  }
  const double pool_bytes =
      static_cast<double>(plan.num_pages()) * static_cast<double>(plan.layout().page_bytes);
  append_format(text, "pool         %lld pages, %s, %s, %s\n", ll(plan.num_pages()),
                bytes_text(pool_bytes).c_str(), storage_name(spec.storage),
                pool_layout_name(spec.pool_layout));
  if (!spec.groups.empty())
    append_format(text, "tokens       %lld in all pages together\n",
                  ll(plan.max_tokens(plan.num_pages())));
  append_format(text, "longest      request has %lld tokens\n",
                ll(plan.max_seq_len(plan.num_pages())));
  append_format(text, "concurrency  %.2f requests of %lld tokens at once\n", plan.concurrency(),
                ll(plan.reference_tokens()));
  if (spec.byte_budget == 0) return;
  const double states = spec.groups.empty()
                            ? 0
                            : static_cast<double>(spec.num_state_slots) *
                                  static_cast<double>(plan.layout().state_slot_bytes);
  append_format(text, "budget       %s, of which",
                bytes_text(static_cast<double>(spec.byte_budget)).c_str());
  if (states != 0)
    append_format(text, " %s are set aside for states and", bytes_text(states).c_str());
  append_format(text, " %s stay unused\n",
                bytes_text(static_cast<double>(spec.byte_budget) - states - pool_bytes).c_str());
}

}  // namespace

std::string Plan::describe() const {
  std::string text;
  describe_layers(*this, text);
  describe_groups(*this, text);
  text += "\n";
  if (layout_.page_bytes != 0) {
    append_format(text, "page         %s", bytes_text(layout_.page_bytes).c_str());
    if (!spec_.groups.empty()) {
      append_format(text,
                    " in %zu regions, %d tokens of the widest group; prefixes are shared in blocks "
                    "of %d tokens",
                    layout_.regions.size(), spec_.base_page_size, spec_.prefix_block());
    }
    text += "\n";
  }
  describe_states(*this, text);
  describe_cos_sin(*this, text);
  if (layout_.page_bytes == 0) return text;
  describe_pool(*this, text);
  if (reference_tokens() != 0) describe_request(*this, text);
  if (num_host_pages_ != 0) {
    append_format(text, "host         %lld pages, %s\n", ll(num_host_pages_),
                  bytes_text(num_host_pages_ * layout_.page_bytes).c_str());
  }
  return text;
}

}  // namespace kvc
