// How the kinds of layers of a hybrid model are cut into groups, and how many tokens the pages of each have.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/groups.h"

namespace kvc {

// Layers that see the same keys, all of them.
struct LayerKind {
  GroupSpec group;
  std::vector<int64_t> layer_bytes;  // per token, in the order of group.layers
};

struct GroupPlan {
  std::vector<int32_t> parts;                     // per kind: groups that it is cut into, by stride
  std::vector<std::vector<int32_t>> page_tokens;  // per kind and part
};

// Deterministic, so that every rank of a model finds the same. At least two kinds.
GroupPlan search_groups(const std::vector<LayerKind>& kinds, const GroupingOptions& options);

}  // namespace kvc
