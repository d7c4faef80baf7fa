#include "src/plan/plan.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"

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
  return {.tokens_in_flight = spec_.tokens_in_flight(), .max_cross_len = spec_.max_cross_len};
}

int64_t Plan::max_tokens(int64_t num_pages) const {
  int64_t widest = 0;
  for (const GroupSpec& group : spec_.groups) {
    if (!group.is_cross) widest = std::max<int64_t>(widest, group.page_size);
  }
  return most_tokens(num_pages, num_pages * widest, [&](int64_t tokens) {
    int64_t pages = 0;
    for (const GroupSpec& group : spec_.groups) {
      if (!group.is_cross) add_up_to_max(&pages, group.pages_for(tokens));
    }
    return pages;
  });
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

}  // namespace kvc
