// How the kinds of layers of a hybrid model are cut into groups, and how many tokens the pages of
// each have.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/groups.h"

namespace kvc {

// Layers that see the same keys, all of them.
struct LayerKind {
  GroupSpec group;
  std::vector<int64_t> layer_bytes;  // per token, in the order of group.layers

  int32_t num_layers() const { return static_cast<int32_t>(layer_bytes.size()); }
};

// A group that a kind is cut into.
struct GroupPart {
  int32_t num_layers;
  int32_t page_size;
};

struct GroupPlan {
  std::vector<LayerKind> kinds;               // those given, or finer ones
  std::vector<std::vector<GroupPart>> parts;  // per kind
};

// Numbers of parts that kinds of so many layers are cut into so that all are of about equal length:
// that of the largest kind when it is below 1.5 times the smallest, else that of the smallest. The
// rule of vLLM's hybrid planner.
std::vector<int32_t> equal_parts(const std::vector<int32_t>& layer_counts);

// Layers of one of the parts of an even cut: the first ones get what is left over.
constexpr int32_t even_part(int32_t num_layers, int32_t parts, int32_t part) {
  return (num_layers - part + parts - 1) / parts;
}

// Deterministic, so that every rank of a model finds the same. At least two kinds.
GroupPlan search_groups(const std::vector<LayerKind>& kinds, const GroupingOptions& options);

}  // namespace kvc
