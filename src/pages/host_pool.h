// Pages in host memory beside the device pool, in the same format, so that a swap is a plain copy.
#pragma once

#include <cstdint>
#include <memory>

#include "src/pages/allocator.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

// Who says what a host page holds. One of them from the first use on, until clear().
enum class HostUse {
  kNone,     // nobody yet
  kManaged,  // the library: swapped sequences and the prefix index, through the allocator
  kByPage    // the host program, by page ids
};

// Without storage, or without pages, there is no memory: bookkeeping only. External exclusion, as
// the cache's.
class HostPool {
 public:
  // Throws NO_MEMORY, std::bad_alloc. The memory is reserved; it becomes physical as pages are
  // written.
  HostPool(const std::shared_ptr<const Plan>& plan, int64_t num_pages,
           const Device* device = nullptr);

  int64_t num_pages() const { return allocator_.num_pages(); }
  const PagePool& pool() const { return pool_; }
  // Holders of managed pages: all of them are free under any other use.
  PageAllocator& allocator() { return allocator_; }
  const PageAllocator& allocator() const { return allocator_; }

  HostUse use() const { return use_; }
  // Throws UNSUPPORTED when there are no pages, INVALID_STATE when the pool is used the other way.
  // `what` is the function.
  void check_use(HostUse use, const char* what) const;
  // Once nothing can fail any more.
  void start_use(HostUse use) noexcept { use_ = use; }
  // No page has a holder and any use may come first again; what the pages hold is not touched.
  void clear() noexcept;

 private:
  std::shared_ptr<const Plan> plan_;
  PagePool pool_;
  PageAllocator allocator_;
  HostUse use_ = HostUse::kNone;
};

}  // namespace kvc
