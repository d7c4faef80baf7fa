// The deepest block that keys lead to.
#include "src/prefix/index.h"

namespace kvc {

NodeId PrefixIndex::find_deepest(KeyChain& chain) const {
  const int32_t space = spaces_.find(chain.query().root);
  NodeId node = kNoNode;
  for (int64_t block = 0; block < chain.num_blocks(); ++block) {
    const NodeId next = find_in(space, chain.key(block));
    if (next == kNoNode || nodes_[next].parent != node) break;
    node = next;
  }
  return node;
}

}  // namespace kvc
