#include "src/plan/plan.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

// What a borrowed tensor's pages must be aligned to: the elements that lie in it.
int64_t pool_alignment(const Spec& spec, const Layout& layout, size_t tensor) {
  if (spec.pool_layout == KVC_POOL_LAYER_FIRST) return layout.slots[tensor].alignment;
  int64_t bytes = 1;
  for (const SlotLayout& slot : layout.slots) bytes = std::max(bytes, slot.alignment);
  return bytes;
}

}  // namespace

Plan::Plan(Spec spec) : spec_(std::move(spec)), layout_(make_layout(spec_)), num_pages_(spec_.num_pages) {
  if (spec_.byte_budget != 0) {
    num_pages_ = pages_for_bytes(spec_.byte_budget);
    if (num_pages_ == 0) {
      fail_with(KVC_E_INVALID_ARGUMENT, layout_.page_bytes,
                "config.byte_budget = %llu holds no page: one takes %lld bytes",
                static_cast<unsigned long long>(spec_.byte_budget), ll(layout_.page_bytes));
    }
  }
  for (size_t i = 0; i < spec_.pool_tensors.size(); ++i) {
    const bool page_first = spec_.pool_layout == KVC_POOL_PAGE_FIRST;
    const int64_t expected = page_first ? layout_.page_bytes : layout_.slots[i].bytes;
    const PoolTensor& pool = spec_.pool_tensors[i];
    if (pool.page_bytes != expected) {
      fail_with(KVC_E_SHAPE, pool.page_bytes,
                "config.pool_tensors[%zu] has %lld bytes per page, expected %lld", i, ll(pool.page_bytes),
                ll(expected));
    }
    const auto alignment = static_cast<uintptr_t>(pool_alignment(spec_, layout_, i));
    if (reinterpret_cast<uintptr_t>(pool.data) % alignment != 0 ||
        static_cast<uintptr_t>(pool.page_stride) % alignment != 0) {
      fail(KVC_E_SHAPE,
           "config.pool_tensors[%zu] is misaligned: address and page stride must be multiples of %d bytes", i,
           static_cast<int>(alignment));
    }
  }
  check_pool_size(num_pages_);
  if (num_pages_ != 0) check_capacity(num_pages_);
}

int64_t Plan::max_seq_len(int64_t num_pages) const {
  // request_pages never decreases: the largest length that still fits, by bisection.
  int64_t fits = 0, too_many = (spec_.max_seq_len == 0 ? kMaxSequenceLength : spec_.max_seq_len) + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (request_pages(middle) <= num_pages ? fits : too_many) = middle;
  }
  return fits;
}

int64_t Plan::pages_for_tokens(int64_t num_tokens) const {
  return num_tokens / spec_.page_size + (num_tokens % spec_.page_size != 0 ? 1 : 0);
}

int64_t Plan::request_pages(int64_t num_tokens) const {
  int64_t pages = 0;
  // Any number of tokens may be asked for: sums stop at the largest integer.
  const auto add = [&](int64_t more) {
    if (__builtin_add_overflow(pages, more, &pages)) pages = INT64_MAX;
  };
  for (const GroupSpec& group : spec_.groups) {
    if (group.is_cross) {
      if (num_tokens > 0) add(pages_for_tokens(spec_.max_cross_len));
      continue;
    }
    const int64_t whole = pages_for_tokens(num_tokens);
    if (!group.is_windowed()) {
      add(whole);
      continue;
    }
    // What the first query of a forward sees behind it, the forward itself, and one page for a window that straddles an edge.
    const int64_t per_forward =
        spec_.max_tokens_per_forward == 0 ? num_tokens : std::min(num_tokens, spec_.max_tokens_per_forward);
    const int64_t behind = (group.window != 0 ? group.window : group.chunk) - 1;
    add(behind > INT64_MAX - 1 - per_forward ? whole
                                             : std::min(whole, pages_for_tokens(behind + per_forward) + 1));
  }
  return pages;
}

int64_t Plan::max_tokens(int64_t num_pages) const {
  const auto tables = std::count_if(spec_.groups.begin(), spec_.groups.end(),
                                    [](const GroupSpec& group) { return !group.is_cross; });
  return tables == 0 ? 0 : num_pages / tables * spec_.page_size;
}

int64_t Plan::pages_for_bytes(uint64_t byte_budget) const {
  if (layout_.page_bytes == 0) return 0;
  const uint64_t pages = byte_budget / static_cast<uint64_t>(layout_.page_bytes);
  return static_cast<int64_t>(std::min<uint64_t>(pages, INT32_MAX - 1));
}

void Plan::check_capacity(int64_t num_pages) const {
  if (spec_.max_seq_len == 0) return;
  const int64_t needed = request_pages(spec_.max_seq_len);
  if (needed > num_pages) {
    const int64_t longest = max_seq_len(num_pages);
    fail_with(KVC_E_NEVER_FITS, longest,
              "config.max_seq_len = %lld needs %lld pages, there are %lld: the longest that fits is %lld",
              ll(spec_.max_seq_len), ll(needed), ll(num_pages), ll(longest));
  }
}

void Plan::check_pool_size(int64_t num_pages) const {
  int64_t bytes = 0;
  if (!multiply(num_pages, layout_.page_bytes, &bytes) || bytes > (int64_t{1} << 56)) {
    fail_with(KVC_E_OUT_OF_RANGE, num_pages, "num_pages = %lld with %lld bytes per page cannot be addressed",
              ll(num_pages), ll(layout_.page_bytes));
  }
}

int32_t Plan::local_layer(int32_t layer) const {
  return layer >= spec_.layer_begin && layer < spec_.layer_end ? layer - spec_.layer_begin : -1;
}

}  // namespace kvc
