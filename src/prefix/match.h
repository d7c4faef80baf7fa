// The longest prefix of a query that the index can serve.
#pragma once

#include <cstdint>
#include <vector>

#include "src/prefix/block_tree.h"

namespace kvc {

struct PrefixMatch {
  int64_t num_tokens = 0;  // Hit tokens, those of the tail included.
  int64_t num_blocks = 0;  // Whole blocks that hit.
  NodeId last = kNoNode;   // Block num_blocks - 1; its ancestors are the blocks before it.
  NodeId tail = kNoNode;   // A block whose first tail_tokens tokens hit as well.
  int64_t tail_tokens = 0;

  NodeId deepest() const { return tail != kNoNode ? tail : last; }
};

// A page of a block, wherever it lies.
struct BlockPage {
  NodeId node;
  int32_t index;

  friend bool operator<(const BlockPage& a, const BlockPage& b) {
    return a.node != b.node ? a.node < b.node : a.index < b.index;
  }
};

// The host pages that a match counts as present.
struct HostPages {
  bool all = false;
  const std::vector<BlockPage>* some = nullptr;  // Sorted. Nullable: none.
};

// The longest hit of at most `max_tokens` tokens that every layer group can serve. `whole_blocks`:
// without a tail. Throws std::bad_alloc, because keys are computed.
PrefixMatch find_match(const BlockTree& tree, KeyChain& chain, int64_t max_tokens,
                       bool whole_blocks, const HostPages& host);

}  // namespace kvc
