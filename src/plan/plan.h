// The class behind kvc_plan: a Spec, its Layout and the number of pages. Immutable, except for the
// mark of the cache that uses its borrowed tensors.
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

  // Pages that a state slot withholds while it is in use. 0: states have memory of their own,
  // because there is no byte_budget or num_state_slots sets it aside. Rounding up wastes less than
  // one page per slot, and lets pages of attention layers stay as small as without states. A model
  // with only states has one slot per page.
  int64_t state_slot_pages() const { return state_slot_pages_; }
  int64_t num_host_pages() const { return num_host_pages_; }

  // Length of the longest single sequence with this many pages.
  int64_t max_seq_len(int64_t num_pages) const;
  // Pages of base_page_size tokens for this many tokens.
  int64_t pages_for_tokens(int64_t num_tokens) const {
    return ceil_div(num_tokens, spec_.base_page_size);
  }
  // Most pages that a request of this many tokens needs at any time while it is computed: those of
  // all layer groups, and of its states before and after a forward.
  int64_t request_pages(int64_t num_tokens) const;
  // The part of one layer group.
  int64_t request_pages(const GroupSpec& group, int64_t num_tokens) const;
  // Tokens that this many pages hold together, when no window has dropped any.
  int64_t max_tokens(int64_t num_pages) const;
  // Number of pages that config.byte_budget buys, behind the states that are set aside.
  int64_t pages_for_bytes(uint64_t byte_budget) const;
  // Length of the reference request: config.max_seq_len, else the longest that fits.
  int64_t reference_tokens() const;
  // Reference requests that fit at once; 0: no pages.
  double concurrency() const;
  // Share of the bytes of such a request's pages without tokens or states, 0..1.
  double waste() const;

  // Throws NEVER_FITS when the pages cannot hold one sequence of the configured max_seq_len.
  void check_capacity(int64_t num_pages) const;
  // Throws OUT_OF_RANGE when this many pages cannot be addressed.
  void check_pool_size(int64_t num_pages) const;

  // Index into spec().layers of a global layer id; -1 when it is not in the slice.
  int32_t local_layer(int32_t layer) const;

  // Borrowed tensors serve one cache at a time. Returns false while another one has them. Any
  // thread.
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
