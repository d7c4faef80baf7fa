// Pages that move to other places of the pool, because it is to end before them.
#pragma once

#include <cstdint>
#include <vector>

#include "src/pages/allocator.h"

namespace kvc {

struct CacheCore;

// The pages with references at or above a limit. Borrows the core.
class PageMoves {
 public:
  // Throws std::bad_alloc; nothing has changed then.
  PageMoves(CacheCore& core, int64_t limit);

  // Evicts until each has a free page below the limit, copies it there, and lets whoever refers to
  // it refer to the copy: it is free. No more pages than `limit` have references. When it returns,
  // the bytes have arrived.
  void run() noexcept;

 private:
  void copy() noexcept;
  PageId target(PageId page) const noexcept;

  CacheCore& core_;
  int64_t limit_;
  std::vector<PageId> from_, to_;  // Ascending.
};

}  // namespace kvc
