// The class behind kvc_plan: a Spec, its Layout and the number of pages. Immutable but for who has
// its borrowed tensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "src/base/math.h"
#include "src/plan/layout.h"
#include "src/plan/spec.h"

namespace kvc {

class Plan {
 public:
  // Throws INVALID_ARGUMENT (a budget that holds no page), NEVER_FITS (max_seq_len), SHAPE (pool
  // tensors), OUT_OF_RANGE.
  explicit Plan(Spec spec);

  const Spec& spec() const { return spec_; }
  const Layout& layout() const { return layout_; }
  int64_t num_pages() const { return num_pages_; }

  // Pages that a state slot takes out of use while it lives; 0 where states have memory of their
  // own (no byte_budget, or num_state_slots set aside first). Rounding up wastes less than one page
  // per slot, and leaves the pages of attention layers as small as they are without states. A model
  // that keeps nothing but states has one slot per page.
  int64_t state_slot_pages() const { return state_slot_pages_; }
  int64_t num_host_pages() const { return num_host_pages_; }

  // Longest single sequence with this many pages.
  int64_t max_seq_len(int64_t num_pages) const;
  // Pages of base_page_size tokens that hold this many.
  int64_t pages_for_tokens(int64_t num_tokens) const {
    return ceil_div(num_tokens, spec_.base_page_size);
  }
  // Most pages that one request of this many tokens needs at any time while it is computed: all
  // groups, and its states before and after a forward.
  int64_t request_pages(int64_t num_tokens) const;
  // The part of one group.
  int64_t request_pages(const GroupSpec& group, int64_t num_tokens) const;
  // Tokens that this many pages hold together while no window has dropped any.
  int64_t max_tokens(int64_t num_pages) const;
  // As config.byte_budget would be spent: behind the states that are set aside.
  int64_t pages_for_bytes(uint64_t byte_budget) const;
  // Of the request that the plan is measured by: config.max_seq_len, else the longest that fits.
  int64_t reference_tokens() const;
  // Requests of that length at once; 0: no pages.
  double concurrency() const;
  // Bytes of such a request's pages that hold none of its tokens and states, 0..1.
  double waste() const;

  // Throws NEVER_FITS when the pages can't hold one sequence of the configured max_seq_len.
  void check_capacity(int64_t num_pages) const;
  // Throws OUT_OF_RANGE when this many pages can't be addressed.
  void check_pool_size(int64_t num_pages) const;

  // Index into spec().layers of a global layer id; -1 when it is not in the slice.
  int32_t local_layer(int32_t layer) const;

  // Borrowed tensors serve one cache at a time: false while another one has them. Any thread.
  bool lend_pool_tensors() const noexcept {
    return !lent_.exchange(true, std::memory_order_acquire);
  }
  void take_back_pool_tensors() const noexcept { lent_.store(false, std::memory_order_release); }

  std::string describe() const;
  std::string to_json() const;

 private:
  void plan_states();
  void plan_pages();
  void plan_host_pages();
  void check_pool_tensors() const;
  uint64_t set_aside_bytes() const;
  RequestLimits limits() const;

  Spec spec_;
  Layout layout_;
  int64_t num_pages_ = 0;
  int64_t num_host_pages_ = 0;
  int64_t state_slot_pages_ = 0;
  mutable std::atomic<bool> lent_ = false;
};

}  // namespace kvc
