#include "src/plan/plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/print.h"
#include "src/plan/layout.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

constexpr int64_t kMaxPages = INT32_MAX - 1;

unsigned long long ull(uint64_t value) { return static_cast<unsigned long long>(value); }

// The alignment of the pages of a borrowed tensor: that of its elements.
int64_t pool_alignment(const Spec& spec, const Layout& layout, size_t tensor) {
  if (spec.pool_layout == KVC_POOL_LAYER_FIRST) return layout.regions[tensor].alignment;
  int64_t bytes = 1;
  for (const RegionLayout& region : layout.regions) bytes = std::max(bytes, region.alignment);
  return bytes;
}

int64_t pages_in(uint64_t bytes, int64_t page_bytes) {
  return static_cast<int64_t>(std::min<uint64_t>(bytes / static_cast<uint64_t>(page_bytes),
                                                 static_cast<uint64_t>(kMaxPages)));
}

// Callers may ask for any number of tokens, so sums saturate at the largest integer.
void add_up_to_max(int64_t* sum, int64_t value) {
  if (__builtin_add_overflow(*sum, value, sum)) *sum = INT64_MAX;
}

// The largest number of tokens, at most `most`, whose pages are at most `num_pages`. The number of
// pages never decreases with the tokens.
template <typename Pages>
int64_t most_tokens(int64_t num_pages, int64_t most, const Pages& pages) {
  int64_t fits = 0, too_many = most + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (pages(middle) <= num_pages ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace

Plan::Plan(Spec spec)
    : spec_(std::move(spec)), layout_(make_layout(spec_)), num_pages_(spec_.num_pages) {
  if (spec_.byte_budget != 0) {
    plan_states();
    plan_pages();
  }
  if (spec_.host_byte_budget != 0) plan_host_pages();
  check_pool_tensors();
  check_pool_size(num_pages_);
  if (num_pages_ != 0) check_capacity(num_pages_);
}

uint64_t Plan::set_aside_bytes() const {
  // The product cannot overflow: 2^31 slots of less than 2^57 bytes.
  const auto bytes = static_cast<__uint128_t>(spec_.num_state_slots) *
                     static_cast<__uint128_t>(layout_.state_slot_bytes);
  return bytes > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(bytes);
}

void Plan::plan_states() {
  if (layout_.state_slot_bytes == 0) return;
  if (spec_.byte_budget < set_aside_bytes()) {
    fail_with(KVC_E_INVALID_ARGUMENT,
              static_cast<int64_t>(std::min<uint64_t>(set_aside_bytes(), INT64_MAX)),
              "config.byte_budget = %llu is less than config.num_state_slots = %lld slots of %lld "
              "bytes take: %llu",
              ull(spec_.byte_budget), ll(spec_.num_state_slots), ll(layout_.state_slot_bytes),
              ull(set_aside_bytes()));
  }
  if (spec_.groups.empty()) {
    // A model with only states uses the pages for them.
    layout_.page_bytes = layout_.state_slot_bytes;
    state_slot_pages_ = 1;
  } else if (spec_.num_state_slots == 0 && layout_.page_bytes != 0) {
    state_slot_pages_ = ceil_div(layout_.state_slot_bytes, layout_.page_bytes);
  }
}

void Plan::plan_pages() {
  if (layout_.page_bytes == 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, 0,
              "config.byte_budget = %llu, but no layer here keeps anything that grows: give "
              "config.num_pages",
              ull(spec_.byte_budget));
  }
  num_pages_ = pages_for_bytes(spec_.byte_budget);
  if (num_pages_ == 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, layout_.page_bytes,
              "config.byte_budget = %llu holds no page: one takes %lld bytes",
              ull(spec_.byte_budget), ll(layout_.page_bytes));
  }
}

void Plan::plan_host_pages() {
  if (layout_.page_bytes != 0)
    num_host_pages_ = pages_in(spec_.host_byte_budget, layout_.page_bytes);
  if (num_host_pages_ == 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, layout_.page_bytes,
              "config.host_byte_budget = %llu holds no page: one takes %lld bytes",
              ull(spec_.host_byte_budget), ll(layout_.page_bytes));
  }
}

void Plan::check_pool_tensors() const {
  for (size_t i = 0; i < spec_.pool_tensors.size(); ++i) {
    const bool page_first = spec_.pool_layout == KVC_POOL_PAGE_FIRST;
    const int64_t expected = page_first ? layout_.page_bytes : layout_.regions[i].bytes;
    const PoolTensor& pool = spec_.pool_tensors[i];
    if (pool.page_bytes != expected) {
      fail_with(KVC_E_SHAPE, pool.page_bytes,
                "config.pool_tensors[%zu] has %lld bytes per page, expected %lld", i,
                ll(pool.page_bytes), ll(expected));
    }
    const auto alignment = static_cast<uintptr_t>(pool_alignment(spec_, layout_, i));
    if (reinterpret_cast<uintptr_t>(pool.data) % alignment != 0 ||
        static_cast<uintptr_t>(pool.page_stride) % alignment != 0) {
      fail(KVC_E_SHAPE,
           "config.pool_tensors[%zu] is misaligned: address and page stride must be multiples of "
           "%d bytes",
           i, static_cast<int>(alignment));
    }
  }
}

int64_t Plan::max_seq_len(int64_t num_pages) const {
  const int64_t most = spec_.max_seq_len == 0 ? kMaxSequenceLength : spec_.max_seq_len;
  return most_tokens(num_pages, most, [&](int64_t tokens) { return request_pages(tokens); });
}

int64_t Plan::request_pages(int64_t num_tokens) const {
  int64_t pages = num_tokens > 0 ? kSlotsPerRequest * state_slot_pages_ : 0;
  for (const GroupSpec& group : spec_.groups)
    add_up_to_max(&pages, request_pages(group, num_tokens));
  return pages;
}

int64_t Plan::request_pages(const GroupSpec& group, int64_t num_tokens) const {
  return kvc::request_pages(group, num_tokens, limits());
}

RequestLimits Plan::limits() const {
  return {.tokens_in_flight = spec_.tokens_in_flight(),
          .max_cross_len = spec_.max_cross_len,
          .cp_size = spec_.cp_size};
}

int64_t Plan::max_tokens(int64_t num_pages) const {
  int64_t widest = 0;
  for (const GroupSpec& group : spec_.groups) {
    if (!group.is_cross) widest = std::max<int64_t>(widest, group.page_size);
  }
  const int64_t of_rank = most_tokens(num_pages, num_pages * widest, [&](int64_t tokens) {
    int64_t pages = 0;
    for (const GroupSpec& group : spec_.groups) {
      if (!group.is_cross) add_up_to_max(&pages, group.pages_for(group.tokens_of(tokens)));
    }
    return pages;
  });
  return of_rank * spec_.cp_size;
}

int64_t Plan::pages_for_bytes(uint64_t byte_budget) const {
  // When states take pages, num_state_slots sets nothing aside.
  const uint64_t aside = spec_.groups.empty() ? 0 : set_aside_bytes();
  if (layout_.page_bytes == 0 || byte_budget < aside) return 0;
  return pages_in(byte_budget - aside, layout_.page_bytes);
}

int64_t Plan::reference_tokens() const {
  return spec_.max_seq_len != 0 ? spec_.max_seq_len : max_seq_len(num_pages_);
}

double Plan::concurrency() const {
  const int64_t needed = request_pages(reference_tokens());
  if (needed == 0 && !spec_.groups.empty()) return 0;
  const double by_slots =
      static_cast<double>(spec_.num_state_slots) / static_cast<double>(kSlotsPerRequest);
  if (needed == 0) return by_slots;
  const double by_pages = static_cast<double>(num_pages_) / static_cast<double>(needed);
  return spec_.num_state_slots == 0 ? by_pages : std::min(by_pages, by_slots);
}

double Plan::waste() const {
  const int64_t tokens = reference_tokens();
  const double taken =
      static_cast<double>(request_pages(tokens)) * static_cast<double>(layout_.page_bytes);
  if (taken == 0) return 0;
  double kept =
      state_slot_pages_ == 0 ? 0 : static_cast<double>(kSlotsPerRequest * layout_.state_slot_bytes);
  for (const GroupSpec& group : spec_.groups) {
    int64_t bytes_per_token = 0;
    for (const int32_t layer : group.layers)
      bytes_per_token += layout_.layers[layer].bytes_per_token;
    kept += static_cast<double>(kept_tokens(group, tokens, limits())) *
            static_cast<double>(bytes_per_token);
  }
  return std::clamp(1 - kept / taken, 0.0, 1.0);
}

void Plan::check_capacity(int64_t num_pages) const {
  if (spec_.max_seq_len == 0) return;
  const int64_t needed = request_pages(spec_.max_seq_len);
  if (needed > num_pages) {
    const int64_t longest = max_seq_len(num_pages);
    fail_with(
        KVC_E_NEVER_FITS, longest,
        "config.max_seq_len = %lld needs %lld pages, there are %lld: the longest that fits is %lld",
        ll(spec_.max_seq_len), ll(needed), ll(num_pages), ll(longest));
  }
}

void Plan::check_pool_size(int64_t num_pages) const {
  int64_t bytes = 0;
  if (!multiply(num_pages, layout_.page_bytes, &bytes) || bytes > (int64_t{1} << 56)) {
    fail_with(KVC_E_OUT_OF_RANGE, num_pages,
              "num_pages = %lld with %lld bytes per page cannot be addressed", ll(num_pages),
              ll(layout_.page_bytes));
  }
}

int32_t Plan::local_layer(int32_t layer) const {
  return layer >= spec_.layer_begin && layer < spec_.layer_end ? layer - spec_.layer_begin : -1;
}

// The plan as a table for people.

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
        int64_t{layer.v_dim}, int64_t{layer.k_quant}, int64_t{layer.v_quant}, int64_t{layer.v_in_k},
        int64_t{layer.window}, int64_t{layer.chunk}, int64_t{layer.keep_tokens},
        static_cast<int64_t>(layer.states.size())})
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
  if (layer.keep_tokens != 0) text += " keep " + std::to_string(layer.keep_tokens);
  if (layer.v_in_k && !layer.is_mla()) text += " V = K";
  if (layer.kind == KVC_LAYER_SHARED)
    text += " of layer " + std::to_string(layer_begin + layer.source);
  if (layer.kind == KVC_LAYER_STATE) text += " " + std::to_string(layer.states.size()) + " states";
  return text;
}

// Text such as "PER_TENSOR", or "PER_TOKEN_HEAD/-" where K alone is quantised.
std::string quant_text(const LayerSpec& layer) {
  const auto name = [](kvc_quant quant) {
    return quant == KVC_QUANT_NONE ? "-" : quant_name(quant);
  };
  if (layer.k_quant == layer.v_quant) return name(layer.k_quant);
  return std::string(name(layer.k_quant)) + "/" + name(layer.v_quant);
}

void describe_layers(const Plan& plan, std::string& text) {
  const Spec& spec = plan.spec();
  append_format(text, "%6s  %-24s %8s %9s %6s %6s %-13s %-13s %-14s %12s  %s\n", "layers", "kind",
                "q heads", "kv heads", "k dim", "v dim", "k type", "v type", "quantised",
                "bytes/token", "ids");
  std::vector<std::vector<int32_t>> lines;  // local layers of each
  std::map<std::string, size_t> line_of;
  for (size_t i = 0; i < static_cast<size_t>(spec.num_local_layers()); ++i) {
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
                    v_type_name(layer).c_str(), quant_text(layer).c_str(),
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
  append_format(text, "\n%-5s  %-18s %6s %11s %12s %12s %16s %14s  %s\n", "group", "keys", "layers",
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
    std::string keys = group_kind_name(group);
    if (group.is_windowed()) keys += " " + std::to_string(group.window + group.chunk);
    if (group.has_kept_rows()) keys += " " + std::to_string(group.keep_tokens);
    char share[48];
    print(share, sizeof share, "%s %4.1f %%", bytes_text(padding).c_str(),
          page_bytes == 0 ? 0.0
                          : 100.0 * static_cast<double>(padding) / static_cast<double>(page_bytes));
    append_format(
        text, "%5zu  %-18s %6zu %11d %12lld %12s %16s %14lld  %s\n", i, keys.c_str(),
        group.layers.size(), group.page_size, ll(bytes_per_token), bytes_text(used).c_str(), share,
        ll(plan.request_pages(group, plan.reference_tokens())),
        group.layers.empty() ? "none here"
                             : std::to_string(spec.global_id(group.layers.front())).c_str());
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
  if (spec.cp_size > 1) {
    append_format(text, "ranks        %d deal out a sequence's tokens: each keeps every %d-th\n",
                  spec.cp_size, spec.cp_size);
  }
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
                    "of %lld tokens",
                    layout_.regions.size(), spec_.base_page_size,
                    ll(int64_t{spec_.prefix_block()} * spec_.cp_size));
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

// The plan as JSON for programs. It has only names and numbers, so nothing needs escaping.

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
                "\"prefix_block\": %lld, \"forwards_in_flight\": %d, \"num_host_pages\": %lld, ",
                ll(int64_t{spec.prefix_block()} * spec.cp_size), spec.forwards_in_flight,
                ll(plan.num_host_pages()));
  append_format(text, "\"cp_size\": %d, ", spec.cp_size);
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
    append_format(text, "%s%d", i == 0 ? "" : ", ", plan.spec().global_id(group.layers[i]));
  }
  append_format(text, "], \"kind\": \"%s\", \"window\": %lld, \"chunk\": %lld, \"page_size\": %d, ",
                group_kind_name(group), ll(group.window), ll(group.chunk), group.page_size);
  append_format(text, "\"keep_tokens\": %lld, ", ll(group.keep_tokens));
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
                "\"k_dtype\": \"%s\", \"v_dtype\": \"%s\", \"quant\": \"%s\", "
                "\"v_quant\": \"%s\", \"keep_tokens\": %d, \"region\": %d, "
                "\"region_offset\": %lld, ",
                k_type_name(layer).c_str(), v_type_name(layer).c_str(),
                json_quant_name(layer.k_quant), json_quant_name(layer.v_quant), layer.keep_tokens,
                plan.layout().layers[source].region,
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
  for (size_t i = 0; i < static_cast<size_t>(spec_.num_local_layers()); ++i) {
    if (i != 0) text += ", ";
    write_layer(*this, i, text);
  }
  return text + "]}";
}

}  // namespace kvc
