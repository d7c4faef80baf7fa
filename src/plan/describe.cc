// The plan as a table for people and as JSON for programs.
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <string>

#include "src/base/dtype.h"
#include "src/plan/plan.h"

namespace kvc {
namespace {

[[gnu::format(printf, 2, 3)]] void append(std::string& text, const char* format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  text += line;
}

long long ll(int64_t value) { return static_cast<long long>(value); }

// "1.50 GiB"
std::string bytes_text(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) bytes /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, kUnits[unit]);
  return text;
}

bool same_shape(const LayerSpec& a, const LayerSpec& b) {
  // Layers that own their pages name themselves as source; only SHARED ones must agree on it.
  if (a.kind == KVC_LAYER_SHARED && a.source != b.source) return false;
  return a.kind == b.kind && a.num_q_heads == b.num_q_heads && a.num_kv_heads == b.num_kv_heads &&
         a.k_dim == b.k_dim && a.v_dim == b.v_dim && a.k_dtype == b.k_dtype && a.v_dtype == b.v_dtype &&
         a.v_in_k == b.v_in_k && a.window == b.window && a.chunk == b.chunk &&
         a.states.size() == b.states.size();
}

// "ATTENTION window 1024"
std::string kind_text(const LayerSpec& layer, int32_t layer_begin) {
  std::string text = layer_kind_name(layer.kind);
  if (layer.window != 0) text += " window " + std::to_string(layer.window);
  if (layer.chunk != 0) text += " chunk " + std::to_string(layer.chunk);
  if (layer.v_in_k && !layer.is_mla()) text += " V = K";
  if (layer.kind == KVC_LAYER_SHARED) text += " of layer " + std::to_string(layer_begin + layer.source);
  if (layer.kind == KVC_LAYER_STATE) text += " " + std::to_string(layer.states.size()) + " states";
  return text;
}

const char* json_kind(kvc_layer_kind kind) {
  static constexpr const char* kNames[] = {"attention", "mla", "cross", "state", "shared", "none"};
  return kNames[kind];
}

const char* storage_name(kvc_storage storage) {
  return storage == KVC_STORAGE_OWNED ? "owned" : storage == KVC_STORAGE_BORROWED ? "borrowed" : "none";
}

const char* pool_layout_name(kvc_pool_layout layout) {
  return layout == KVC_POOL_LAYER_FIRST ? "layer_first" : "page_first";
}

}  // namespace

std::string Plan::describe() const {
  std::string text;
  append(text, "%-9s %-22s %8s %9s %6s %6s %-9s %-9s %12s\n", "layers", "kind", "q heads", "kv heads",
         "k dim", "v dim", "k type", "v type", "bytes/token");
  for (size_t first = 0; first < spec_.layers.size();) {
    size_t next = first + 1;
    while (next < spec_.layers.size() && same_shape(spec_.layers[first], spec_.layers[next])) ++next;
    const LayerSpec& layer = spec_.layers[first];
    char range[32];
    std::snprintf(range, sizeof range, next - first == 1 ? "%d" : "%d-%d",
                  spec_.layer_begin + static_cast<int>(first),
                  spec_.layer_begin + static_cast<int>(next) - 1);
    const std::string kind = kind_text(layer, spec_.layer_begin);
    if (layer.num_q_heads != 0) {
      append(text, "%-9s %-22s %8d %9d %6d %6d %-9s %-9s %12lld\n", range, kind.c_str(), layer.num_q_heads,
             layer.num_kv_heads, layer.k_dim, layer.v_dim, dtype_name(layer.k_dtype),
             dtype_name(layer.v_dtype), ll(layout_.layers[first].bytes_per_token));
    } else {
      append(text, "%-9s %s\n", range, kind.c_str());
    }
    first = next;
  }
  for (size_t group = 0; spec_.groups.size() > 1 && group < spec_.groups.size(); ++group) {
    int64_t used = 0;
    for (const int32_t layer : spec_.groups[group].layers)
      used += layout_.layers[static_cast<size_t>(layer)].page_bytes;
    append(text, "group %-6zu %zu layers from layer %d on, %s of a page, %.1f %% of it padding\n", group,
           spec_.groups[group].layers.size(), spec_.layer_begin + spec_.groups[group].layers.front(),
           bytes_text(static_cast<double>(used)).c_str(),
           100.0 * (1.0 - static_cast<double>(used) / static_cast<double>(layout_.page_bytes)));
  }
  if (layout_.state_slot_bytes != 0) {
    append(text, "state        %s per sequence and checkpoint\n",
           bytes_text(static_cast<double>(layout_.state_slot_bytes)).c_str());
  }
  if (spec_.groups.empty()) return text;
  append(text, "page         %d tokens, %s", spec_.page_size,
         bytes_text(static_cast<double>(layout_.page_bytes)).c_str());
  if (spec_.groups.size() == 1 && !spec_.groups.front().is_cross) {
    append(text, ", of which padding %lld B",
           ll(layout_.page_bytes - layout_.bytes_per_token * spec_.page_size));
  }
  text += "\n";
  if (num_pages_ == 0) {
    text += "pool         no pages planned: num_pages and byte_budget are both 0\n";
    return text;
  }
  const double pool_bytes = static_cast<double>(num_pages_) * static_cast<double>(layout_.page_bytes);
  append(text, "pool         %lld pages, %s, %s, %s\n", ll(num_pages_), bytes_text(pool_bytes).c_str(),
         storage_name(spec_.storage), pool_layout_name(spec_.pool_layout));
  append(text, "tokens       %lld in all pages together\n", ll(max_tokens(num_pages_)));
  append(text, "one request  up to %lld tokens\n", ll(max_seq_len(num_pages_)));
  append(text, "waste        at most %d unused slots per sequence (%s), %s on average\n", spec_.page_size - 1,
         bytes_text(static_cast<double>((spec_.page_size - 1) * layout_.bytes_per_token)).c_str(),
         bytes_text((spec_.page_size - 1) * 0.5 * static_cast<double>(layout_.bytes_per_token)).c_str());
  if (spec_.byte_budget != 0) {
    const double left = static_cast<double>(spec_.byte_budget) - pool_bytes;
    append(text, "budget       %s, of which %s stay unused\n",
           bytes_text(static_cast<double>(spec_.byte_budget)).c_str(), bytes_text(left).c_str());
  }
  return text;
}

std::string Plan::to_json() const {
  std::string text = "{";
  append(text, "\"page_size\": %d, \"num_layers\": %d, \"layer_begin\": %d, \"layer_end\": %d, ",
         spec_.page_size, spec_.num_layers, spec_.layer_begin, spec_.layer_end);
  append(text, "\"num_pages\": %lld, \"page_bytes\": %lld, \"bytes_per_token\": %lld, ", ll(num_pages_),
         ll(layout_.page_bytes), ll(layout_.bytes_per_token));
  append(text, "\"pool_bytes\": %lld, \"max_tokens\": %lld, \"max_seq_len\": %lld, ",
         ll(num_pages_ * layout_.page_bytes), ll(max_tokens(num_pages_)), ll(max_seq_len(num_pages_)));
  append(text, "\"num_groups\": %zu, \"state_slot_bytes\": %lld, ", spec_.groups.size(),
         ll(layout_.state_slot_bytes));
  append(text, "\"storage\": \"%s\", \"pool_layout\": \"%s\", \"layers\": [", storage_name(spec_.storage),
         pool_layout_name(spec_.pool_layout));
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const LayerSpec& layer = spec_.layers[i];
    append(text,
           "%s{\"layer\": %d, \"kind\": \"%s\", \"group\": %d, \"num_q_heads\": %d, \"num_kv_heads\": %d, "
           "\"k_dim\": %d, \"v_dim\": %d, \"window\": %lld, \"chunk\": %lld, ",
           i == 0 ? "" : ", ", spec_.layer_begin + static_cast<int>(i), json_kind(layer.kind),
           spec_.layers[static_cast<size_t>(layer.source)].group, layer.num_q_heads, layer.num_kv_heads,
           layer.k_dim, layer.v_dim, ll(layer.window), ll(layer.chunk));
    append(text,
           "\"k_dtype\": \"%s\", \"v_dtype\": \"%s\", \"page_bytes\": %lld, \"bytes_per_token\": %lld, "
           "\"state_bytes\": %lld}",
           dtype_name(layer.k_dtype), dtype_name(layer.v_dtype), ll(layout_.layers[i].page_bytes),
           ll(layout_.layers[i].bytes_per_token), ll(layout_.layers[i].state_bytes));
  }
  return text + "]}";
}

}  // namespace kvc
