// Copies of whole pages: sequences to the host pool and back, and pages by ids, which the host
// program moves itself.
#pragma once

#include <cstddef>

#include "kvcache.h"
#include "src/device/device.h"

namespace kvc {

struct CacheCore;

// Every function throws Error or std::bad_alloc; nothing has changed then. What is enqueued does
// not throw.
class SwapStore {
 public:
  explicit SwapStore(CacheCore& core) : core_(core) {}

  // Pages, states and checkpoints of the sequences; what they share stays shared.
  void out(size_t num_seqs, const kvc_seq* seqs, CallStream stream);
  void in(size_t num_seqs, const kvc_seq* seqs, CallStream stream);

  // `pairs`: int64 [n, 2] of (from, to), between the pools or inside the device pool.
  void swap_pages(const DLTensor* pairs, kvc_swap_direction direction, CallStream stream);
  void copy_pages(const DLTensor* pairs, CallStream stream);

 private:
  CacheCore& core_;
};

}  // namespace kvc
