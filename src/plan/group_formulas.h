// The plan that vLLM's hybrid planner would make of the same layers. Ours should not be worse.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/group_search.h"

namespace kvc {

// Its rule: every kind is cut into groups of about equal length (equal_parts). A page is as long as
// the longest group with base_page_size tokens; smaller groups get several times as many tokens
// when those fill it.
class FormulaPlan {
 public:
  // The groups of one kind.
  struct Groups {
    int32_t parts;
    int32_t times;    // Multiples of base_page_size tokens per page.
    GroupSpec group;  // One of them, without its layers.
  };

  // At least one kind. The layers of a kind have the same bytes.
  FormulaPlan(const std::vector<LayerKind>& kinds, int32_t base_page_size);

  // [kind]
  const std::vector<Groups>& groups() const { return groups_; }
  // Bytes of a page, divided by base_page_size.
  int64_t capacity() const { return capacity_; }
  // Bytes of the pages of a request, divided by base_page_size.
  double request_bytes(int64_t num_tokens, const RequestLimits& limits) const;

 private:
  std::vector<Groups> groups_;
  int64_t capacity_ = 0;
};

}  // namespace kvc
