// Which layers share a page table.
#pragma once

#include <cstdint>
#include <vector>

namespace kvc {

struct LayerSpec;

// Layers that see the same keys: one page table per sequence serves all of them. All groups take pages from one pool; layer k of a
// group lies in slot k of a page.
struct GroupSpec {
  std::vector<int32_t> layers;  // local ids, ascending
  bool is_cross = false;        // counts encoder tokens
  int64_t window = 0;           // 0: none
  int64_t chunk = 0;            // 0: none

  bool is_windowed() const { return window != 0 || chunk != 0; }
};

// Fills LayerSpec::group and slot and returns the groups, in the order in which their kinds first appear among the layers.
//
// Kinds with many layers are cut into groups of about equal length, by stride, so that a page wastes little room: the length is the
// largest count when that is below 1.5 times the smallest, else the smallest (the rule of vLLM's hybrid planner).
std::vector<GroupSpec> make_groups(std::vector<LayerSpec>& layers);

}  // namespace kvc
