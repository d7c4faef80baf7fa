#include "src/prefix/block_shape.h"

#include <numeric>

namespace kvc {
namespace {

int32_t block_tokens_of(const Spec& spec) {
  int32_t tokens = 1;
  bool has_pages = false;
  for (const GroupSpec& group : spec.groups) {
    if (group.is_cross) continue;
    tokens = std::lcm(tokens, group.page_size);
    has_pages = true;
  }
  return has_pages ? tokens : spec.base_page_size;
}

}  // namespace

BlockShape::BlockShape(const Plan& plan)
    : specs(plan.spec().groups),
      block_tokens(block_tokens_of(plan.spec())),
      has_states(plan.spec().has_states()),
      page_bytes(static_cast<uint64_t>(plan.layout().page_bytes)),
      state_bytes(static_cast<uint64_t>(plan.layout().state_slot_bytes)) {
  for (const GroupSpec& spec : specs) {
    const bool is_windowed = spec.is_windowed() && !spec.is_cross;
    const int32_t num_pages = spec.is_cross ? 0 : block_tokens / spec.page_size;
    groups.push_back(
        {&spec, pages_per_block, num_pages, spec.page_size, is_windowed ? num_windows : -1});
    pages_per_block += num_pages;
    if (is_windowed) {
      ++num_windows;
    } else {
      full_pages += num_pages;
    }
  }
}

const BlockGroup& BlockShape::group_of_page(int32_t index) const {
  size_t group = 0;
  while (index >= groups[group].end_page()) ++group;
  return groups[group];
}

}  // namespace kvc
