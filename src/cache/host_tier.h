// Page copies that the prefix index asks for: from and to the host pool, its tier for evicted
// pages, and inside the device pool.
#pragma once

#include "src/exec/cpu/page_copies.h"
#include "src/pages/host_pool.h"
#include "src/prefix/index.h"

namespace kvc {

// Copies pages inside the device pool.
class PoolPageMover final : public PageMover {
 public:
  // The copier is borrowed, and set before the first copy.
  void set_copier(PageCopier* copier) { copier_ = copier; }
  void copy(PageId from, PageId to) noexcept override {
    copier_->copy(CopyDirection::kInsideDevice, &from, &to, 1);
  }

 private:
  PageCopier* copier_ = nullptr;
};

// Evicted pages in the host pool; has no room once the host program uses the pool by page ids.
// Borrows the pool and the copier.
class PoolHostTier final : public HostTier {
 public:
  explicit PoolHostTier(HostPool* pool) : pool_(pool) {}
  void set_copier(PageCopier* copier) { copier_ = copier; }

  int64_t num_available() const noexcept override {
    return pool_->use() == HostUse::kByPage ? 0 : pool_->allocator().num_available();
  }

  PageId demote(PageId device_page) noexcept override {
    if (num_available() == 0) return kNoPage;
    pool_->start_use(HostUse::kManaged);
    const PageId page = pool_->allocator().take(kNoPage, 0);
    copier_->copy(CopyDirection::kDeviceToHost, &device_page, &page, 1);
    return page;
  }

  void promote(PageId host_page, PageId device_page) noexcept override {
    copier_->copy(CopyDirection::kHostToDevice, &host_page, &device_page, 1);
  }

  void release(PageId host_page) noexcept override { pool_->allocator().drop_ref(host_page); }

 private:
  HostPool* pool_;
  PageCopier* copier_ = nullptr;
};

}  // namespace kvc
