// Page copies by page ids: what the host program moves itself.
#pragma once

#include "kvcache.h"

namespace kvc {

struct CacheCore;

// Every function throws Error or std::bad_alloc; nothing has changed then.
class PageCopies {
 public:
  explicit PageCopies(CacheCore& core) : core_(core) {}

  // Between the device pool and the host pool. `pairs`: int64 [n, 2] of (from, to).
  void swap(const DLTensor* pairs, kvc_swap_direction direction);
  // Inside the device pool.
  void copy(const DLTensor* pairs);

 private:
  CacheCore& core_;
};

}  // namespace kvc
