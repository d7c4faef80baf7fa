// Pages in host memory beside the device pool, in the same format, so that a swap is a plain copy.
#pragma once

#include <cstdint>
#include <memory>

#include "src/pages/allocator.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

// Who manages the host pages, from the first use until clear().
enum class HostUse {
  kNone,     // Nobody yet.
  kManaged,  // The library: swapped sequences and the prefix index, through the allocator.
  kByPage    // The host program, by page ids.
};

// Without storage or without pages it is bookkeeping only. External exclusion, as the cache's.
class HostPool {
 public:
  // The memory is reserved and becomes physical as pages are written. Throws NO_MEMORY,
  // std::bad_alloc.
  HostPool(const std::shared_ptr<const Plan>& plan, int64_t num_pages, const Gpu* device = nullptr);

  int64_t num_pages() const { return allocator_.num_pages(); }
  const PagePool& pool() const { return pool_; }
  // References to managed pages. Under any other use all pages are free here.
  PageAllocator& allocator() { return allocator_; }
  const PageAllocator& allocator() const { return allocator_; }

  HostUse use() const { return use_; }
  // Throws UNSUPPORTED when there are no pages, INVALID_STATE when the pool is used the other way.
  // `what`: the name of the function, for the message.
  void check_use(HostUse use, const char* what) const;
  // Call it when nothing can fail any more.
  void start_use(HostUse use) noexcept { use_ = use; }
  // Drops all references, and lets any use come first again. Page contents are not touched.
  void clear() noexcept;

 private:
  std::shared_ptr<const Plan> plan_;
  PagePool pool_;
  PageAllocator allocator_;
  HostUse use_ = HostUse::kNone;
};

}  // namespace kvc
