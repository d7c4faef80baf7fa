// A full recount of the index, for audits.
#pragma once

#include <cstdint>
#include <vector>

#include "src/prefix/block_contents.h"
#include "src/prefix/block_tree.h"
#include "src/prefix/eviction_order.h"

namespace kvc {

// Throws CORRUPT when links, marks, heaps or quotas disagree. Adds the reference of each pin to
// page_refs [page] and state_refs [slot].
void check_index(const BlockTree& tree, const BlockContents& contents, const EvictionOrder& order,
                 const PageAllocator& allocator, const StatePool& states,
                 std::vector<int32_t>* page_refs, std::vector<int32_t>* state_refs);

}  // namespace kvc
