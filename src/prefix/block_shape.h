// The shape of a block of the prefix index: how many tokens it has, and which pages of each layer
// group and which state belong to it.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/plan.h"

namespace kvc {

// The pages of one layer group in a block.
struct BlockGroup {
  const GroupSpec* spec;
  int32_t first_page;    // Index of its first page among the pages of the block.
  int32_t num_pages;     // 0 for CROSS layers.
  int32_t page_size;     // Tokens per page.
  int32_t window_order;  // Index of its eviction order; -1: full attention, leaves with the node.

  bool is_windowed() const { return window_order >= 0; }
  int32_t end_page() const { return first_page + num_pages; }
};

// Pages of a block are numbered by layer group, in the order of groups: block_tokens / page_size
// pages per group, none for CROSS layers.
struct BlockShape {
  explicit BlockShape(const Plan& plan);
  BlockShape(const BlockShape&) = delete;
  BlockShape& operator=(const BlockShape&) = delete;

  // Some layer group has several pages in a block, so a sequence may leave whole pages in a block
  // that it does not fill.
  bool has_inner_pages() const { return pages_per_block > static_cast<int32_t>(groups.size()); }
  const BlockGroup& group_of_page(int32_t index) const;

  std::vector<GroupSpec> specs;
  std::vector<BlockGroup> groups;
  int32_t block_tokens = 0;
  int32_t pages_per_block = 0;
  int32_t full_pages = 0;   // Pages per block of groups with full attention.
  int32_t num_windows = 0;  // Groups with an eviction order of their own.
  bool has_states = false;
  uint64_t page_bytes = 0;
  uint64_t state_bytes = 0;
};

}  // namespace kvc
