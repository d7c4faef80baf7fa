// The search for layer groups of a hybrid model: how each kind of layers is cut, and how many
// tokens the pages of each group have.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/groups.h"

namespace kvc {

// All layers with the same visible ranges.
struct LayerKind {
  GroupSpec group;
  std::vector<int64_t> layer_bytes;  // Bytes per token, in the order of group.layers.

  int32_t num_layers() const { return static_cast<int32_t>(layer_bytes.size()); }
};

// A layer group that a kind is cut into.
struct GroupPart {
  int32_t num_layers;
  int32_t page_size;
};

struct GroupPlan {
  std::vector<LayerKind> kinds;               // The given kinds, or finer ones.
  std::vector<std::vector<GroupPart>> parts;  // [kind]
};

// Numbers of groups per kind, so that groups have about equal length. That length is the size of
// the largest kind when it is below 1.5 times the smallest, else the size of the smallest. This is
// the rule of vLLM's hybrid planner.
std::vector<int32_t> equal_parts(const std::vector<int32_t>& layer_counts);

// Layers of one part of an even cut; the first parts get the remainder.
constexpr int32_t even_part(int32_t num_layers, int32_t parts, int32_t part) {
  return (num_layers - part + parts - 1) / parts;
}

// Deterministic, so that every rank of a model finds the same. Needs at least two kinds.
GroupPlan search_groups(const std::vector<LayerKind>& kinds, const GroupingOptions& options);

}  // namespace kvc
