// Accepting a path of token trees (kvc_tree_commit).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache.h"
#include "src/cache/cache_core.h"

namespace kvc {

// Keeps root -> leaves[i] of the tree of sequence seqs[i] and drops the other nodes; -1 keeps none.
// Throws Error or std::bad_alloc; nothing has changed then. What is enqueued does not throw.
void commit_trees(CacheCore& core, size_t num_seqs, const kvc_seq* seqs, const int32_t* leaves,
                  CallStream stream);

}  // namespace kvc
