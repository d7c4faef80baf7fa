// The host pool as the place of evicted pages.
#pragma once

#include <cstdint>

#include "src/device/device.h"
#include "src/pages/pool.h"

namespace kvc {

// Has no room once the host program uses the pool by page ids. Borrows the pool and the device.
class HostTier {
 public:
  HostTier(HostPool* pool, Device* device) : pool_(pool), device_(device) {}

  int64_t num_available() const noexcept {
    return pool_->use() == HostUse::kByPage ? 0 : pool_->allocator().num_available();
  }
  // Copies a device page to the host, which has room, and returns the host page.
  PageId demote(PageId device_page, CallStream stream) noexcept {
    pool_->start_use(HostUse::kManaged);
    const PageId page = pool_->allocator().take(kNoPage, 0);
    device_->copy_pages(CopyDirection::kDeviceToHost, &device_page, &page, 1, stream);
    return page;
  }
  // Copies a host page to the device. The host page stays.
  void promote(PageId host_page, PageId device_page, CallStream stream) noexcept {
    device_->copy_pages(CopyDirection::kHostToDevice, &host_page, &device_page, 1, stream);
  }
  void release(PageId host_page) noexcept { pool_->allocator().drop_ref(host_page); }

 private:
  HostPool* pool_;
  Device* device_;
};

}  // namespace kvc
