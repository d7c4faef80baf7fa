// What vLLM's hybrid planner would make of the same layers: the measure that our plans should not
// stay below.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/group_search.h"

namespace kvc {

// Its rule: every kind in groups of about equal length (equal_parts), pages as long as the longest
// of them, base_page_size tokens in a page, of smaller layers several times as many where that
// fills it.
class FormulaPlan {
 public:
  // Groups of one kind.
  struct Groups {
    int32_t parts;
    int32_t times;    // that base_page_size tokens fit a page
    GroupSpec group;  // one of them, without its layers
  };

  // At least one kind; the layers of each have the same bytes.
  FormulaPlan(const std::vector<LayerKind>& kinds, int32_t base_page_size);

  // Per kind.
  const std::vector<Groups>& groups() const { return groups_; }
  // Bytes of a page, divided by base_page_size.
  int64_t capacity() const { return capacity_; }
  // Bytes that a request takes, divided by base_page_size.
  double request_bytes(int64_t num_tokens, const RequestLimits& limits) const;

 private:
  std::vector<Groups> groups_;
  int64_t capacity_ = 0;
};

}  // namespace kvc
