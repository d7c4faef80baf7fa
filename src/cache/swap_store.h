// Copies of whole pages: sequences to the host pool and back, and pages by ids, which the host
// program moves itself.
#pragma once

#include <cstddef>

#include "kvcache.h"

namespace kvc {

struct CacheCore;

// Every function throws Error or std::bad_alloc; nothing has changed then. What is enqueued does
// not throw.
class SwapStore {
 public:
  explicit SwapStore(CacheCore& core) : core_(core) {}

  // Pages, states and checkpoints of the sequences; what they share stays shared.
  void out(size_t num_seqs, const kvc_seq* seqs);
  void in(size_t num_seqs, const kvc_seq* seqs);

  // `pairs`: int64 [n, 2] of (from, to), between the pools or inside the device pool.
  void swap_pages(const DLTensor* pairs, kvc_swap_direction direction);
  void copy_pages(const DLTensor* pairs);

 private:
  CacheCore& core_;
};

}  // namespace kvc
