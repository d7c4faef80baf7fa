// The class behind kvc_plan: a Spec, its Layout and the number of pages. Immutable.
#pragma once

#include <cstdint>
#include <string>

#include "src/plan/layout.h"
#include "src/plan/spec.h"

namespace kvc {

class Plan {
 public:
  // Throws INVALID_ARGUMENT (a budget that holds no page), NEVER_FITS (max_seq_len), SHAPE (pool tensors), OUT_OF_RANGE.
  explicit Plan(Spec spec);

  const Spec& spec() const { return spec_; }
  const Layout& layout() const { return layout_; }
  int64_t num_pages() const { return num_pages_; }

  // Longest single sequence with this many pages.
  int64_t max_seq_len(int64_t num_pages) const;
  // Pages that hold this many tokens of one group.
  int64_t pages_for_tokens(int64_t num_tokens) const;
  // Most pages that one request of this many tokens needs at any time while it is computed, all groups together.
  int64_t request_pages(int64_t num_tokens) const;
  // Tokens that this many pages hold together while no window has dropped any.
  int64_t max_tokens(int64_t num_pages) const;
  int64_t pages_for_bytes(uint64_t byte_budget) const;
  // Throws NEVER_FITS when the pages can't hold one sequence of the configured max_seq_len.
  void check_capacity(int64_t num_pages) const;
  // Throws OUT_OF_RANGE when this many pages can't be addressed.
  void check_pool_size(int64_t num_pages) const;

  // Index into spec().layers of a global layer id; -1 when it is not in the slice.
  int32_t local_layer(int32_t layer) const;

  std::string describe() const;
  std::string to_json() const;

 private:
  Spec spec_;
  Layout layout_;
  int64_t num_pages_ = 0;
};

}  // namespace kvc
