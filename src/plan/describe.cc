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
  return a.num_q_heads == b.num_q_heads && a.num_kv_heads == b.num_kv_heads && a.k_dim == b.k_dim &&
         a.v_dim == b.v_dim && a.k_dtype == b.k_dtype && a.v_dtype == b.v_dtype;
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
  append(text, "%-12s %8s %9s %6s %6s %-10s %-10s %12s\n", "layers", "q heads", "kv heads", "k dim", "v dim",
         "k type", "v type", "bytes/token");
  for (size_t first = 0; first < spec_.layers.size();) {
    size_t next = first + 1;
    while (next < spec_.layers.size() && same_shape(spec_.layers[first], spec_.layers[next])) ++next;
    const LayerSpec& layer = spec_.layers[first];
    char range[32];
    std::snprintf(range, sizeof range, next - first == 1 ? "%d" : "%d-%d",
                  spec_.layer_begin + static_cast<int>(first),
                  spec_.layer_begin + static_cast<int>(next) - 1);
    append(text, "%-12s %8d %9d %6d %6d %-10s %-10s %12lld\n", range, layer.num_q_heads, layer.num_kv_heads,
           layer.k_dim, layer.v_dim, dtype_name(layer.k_dtype), dtype_name(layer.v_dtype),
           ll(layout_.layers[first].bytes_per_token));
    first = next;
  }
  const int64_t padding = layout_.page_bytes - layout_.bytes_per_token * spec_.page_size;
  append(text, "page         %d tokens, %s, of which padding %lld B\n", spec_.page_size,
         bytes_text(static_cast<double>(layout_.page_bytes)).c_str(), ll(padding));
  if (num_pages_ == 0) {
    text += "pool         no pages planned: num_pages and byte_budget are both 0\n";
    return text;
  }
  const double pool_bytes = static_cast<double>(num_pages_) * static_cast<double>(layout_.page_bytes);
  append(text, "pool         %lld pages, %s, %s, %s\n", ll(num_pages_), bytes_text(pool_bytes).c_str(),
         storage_name(spec_.storage), pool_layout_name(spec_.pool_layout));
  append(text, "tokens       %lld in all pages together\n", ll(num_pages_ * spec_.page_size));
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
         ll(num_pages_ * layout_.page_bytes), ll(num_pages_ * spec_.page_size), ll(max_seq_len(num_pages_)));
  append(text, "\"storage\": \"%s\", \"pool_layout\": \"%s\", \"layers\": [", storage_name(spec_.storage),
         pool_layout_name(spec_.pool_layout));
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const LayerSpec& layer = spec_.layers[i];
    append(text,
           "%s{\"layer\": %d, \"kind\": \"attention\", \"num_q_heads\": %d, \"num_kv_heads\": %d, \"k_dim\": "
           "%d, \"v_dim\": %d, ",
           i == 0 ? "" : ", ", spec_.layer_begin + static_cast<int>(i), layer.num_q_heads, layer.num_kv_heads,
           layer.k_dim, layer.v_dim);
    append(text, "\"k_dtype\": \"%s\", \"v_dtype\": \"%s\", \"page_bytes\": %lld, \"bytes_per_token\": %lld}",
           dtype_name(layer.k_dtype), dtype_name(layer.v_dtype), ll(layout_.layers[i].page_bytes),
           ll(layout_.layers[i].bytes_per_token));
  }
  return text + "]}";
}

}  // namespace kvc
