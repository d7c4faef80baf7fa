// The memory of the pages: one region per cache, owned (mmap or the host's allocator), borrowed
// tensors, or none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/params.h"
#include "src/base/memory.h"
#include "src/device/gpu.h"
#include "src/pages/allocator.h"
#include "src/plan/plan.h"

namespace kvc {

// Memory that exports keep alive after the cache is gone. Never moves while somebody else holds it.
class PoolMemory {
 public:
  explicit PoolMemory(ReservedMemory reserved)
      : reserved_(std::move(reserved)), data_(reserved_.data()) {}
  explicit PoolMemory(DeviceReservation reserved)
      : on_device_(std::move(reserved)), data_(on_device_.data()) {}
  explicit PoolMemory(PinnedMemory pinned) : pinned_(std::move(pinned)), data_(pinned_.data()) {}
  PoolMemory(const kvc_allocator& allocator, DLDevice device, int64_t bytes);  // Throws NO_MEMORY.
  ~PoolMemory();
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  std::byte* data() const { return data_; }
  // For reserved memory, on the host or a device. Throws NO_MEMORY.
  void make_usable(int64_t begin, int64_t end);
  // As ReservedMemory does it; other memory has the pages that it has.
  void use_small_pages(int64_t begin, int64_t end) noexcept {
    if (is_reserved_on_host()) reserved_.use_small_pages(begin, end);
  }
  void use_huge_pages(int64_t begin, int64_t end) noexcept {
    if (is_reserved_on_host()) reserved_.use_huge_pages(begin, end);
  }
  void collapse(int64_t begin, int64_t end) noexcept {
    if (is_reserved_on_host()) reserved_.collapse(begin, end);
  }
  // The same: gives physical memory back, where that can be made usable again by a write. Returns
  // how many bytes had some.
  int64_t discard(int64_t begin, int64_t end);
  // Memory of the library on the host, which discard() leaves usable.
  bool is_reserved_on_host() const { return reserved_.data() != nullptr; }

 private:
  ReservedMemory reserved_;
  DeviceReservation on_device_;
  PinnedMemory pinned_;
  kvc_allocator allocator_{};
  DLDevice device_{kDLCPU, 0};
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

// Where the pages of one region, or of one layer's part of it, lie: page p at base + p *
// page_stride, content as LayerLayout says.
struct LayerPages {
  std::byte* base = nullptr;
  int64_t page_stride = 0;
};

// The place of the pages: on the device, in memory that the configuration names, or on the host
// beside it, in memory of the library.
enum class PoolPlace { kDevice, kHost };

class PagePool {
 public:
  // `device` of a cache on a GPU, else null; with a device the host's pages are pinned. Throws
  // NO_MEMORY, and BUSY when another pool has the borrowed tensors of the plan.
  PagePool(std::shared_ptr<const Plan> plan, int64_t num_pages,
           PoolPlace place = PoolPlace::kDevice, const Gpu* device = nullptr);

  bool has_storage() const { return plan_->spec().storage != KVC_STORAGE_NONE; }
  // The pages of a layer that keeps pages.
  LayerPages layer(int32_t local_layer) const {
    const LayerLayout& layout = plan_->layout().layers[local_layer];
    LayerPages pages = regions_[layout.region];
    if (pages.base != nullptr) pages.base += layout.region_offset;
    return pages;
  }
  const std::vector<LayerPages>& regions() const { return regions_; }
  // A part of every page that lies together: a region, or the whole page where its regions do. Page
  // p at base + p * stride.
  struct Stripe {
    std::byte* base;
    int64_t stride;
    int64_t bytes;
    int64_t offset;  // In the packed page, whose stripes lie one behind the other.
  };
  int64_t num_stripes() const {
    const bool is_whole = plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST;
    return is_whole && !regions_.empty() ? 1 : static_cast<int64_t>(regions_.size());
  }
  Stripe stripe(int64_t index) const {
    const auto region = static_cast<size_t>(index);
    const Layout& layout = plan_->layout();
    const bool is_whole = plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST;
    return {regions_[region].base, regions_[region].page_stride,
            is_whole ? layout.page_bytes : layout.regions[region].bytes,
            is_whole ? 0 : layout.regions[region].offset};
  }
  size_t layer_page_bytes(int32_t local_layer) const {
    return static_cast<size_t>(plan_->layout().layers[local_layer].page_bytes);
  }
  // The dtype and the scales are those of kernels of the CPU, for the layers that they serve.
  kernels::PagedRows k_rows(int32_t local_layer) const;
  // The K rows when V is their beginning.
  kernels::PagedRows v_rows(int32_t local_layer) const;
  // Copies one token's rows of one layer, with their scales.
  void copy_token(int32_t local_layer, int64_t from_page, int64_t from_offset, int64_t to_page,
                  int64_t to_offset) const noexcept;
  const std::shared_ptr<PoolMemory>& memory() const { return memory_; }
  // All pages that the library has allocated in host memory, whether they were written or not.
  int64_t host_bytes() const {
    const bool is_on_host =
        memory_ != nullptr && (device_ == nullptr || place_ == PoolPlace::kHost);
    return kvc::host_bytes(regions_) + (is_on_host ? num_pages_ * plan_->layout().page_bytes : 0);
  }

  // Keeps the contents of pages below min(old, new). Device pools only; the device is idle. Throws
  // NO_MEMORY, or BUSY when the memory would move while exports hold it; nothing has changed then.
  // `save`, which cannot fail, runs when nothing can fail any more and all old pages are there.
  void resize(
      int64_t num_pages, const std::function<void()>& save = [] {});
  // Pages were handed out. A pool on the CPU begins with small pages, so that a small use commits
  // little, and gets huge ones when it is worth them.
  void note_pages(const PageAllocator& allocator) noexcept {
    if (allocator.num_pages() - allocator.num_free() >= small_until_) use_huge_pages(allocator);
  }
  // Gives the memory of free pages back to the system, where it is the library's own on the host:
  // they are fresh then and read zero. Returns how many bytes had memory.
  int64_t trim(PageAllocator& allocator) noexcept;

 private:
  kernels::RowScales row_scales(int32_t local_layer, bool is_v) const;
  void copy_quantised_token(int32_t local_layer, int64_t from_page, int64_t from_offset,
                            int64_t to_page, int64_t to_offset) const noexcept;

  struct Arrangement;  // Strides and sizes for a number of pages.
  Arrangement arrange(int64_t capacity_pages) const;
  // What a pool of this size consists of.
  struct Memory {
    std::shared_ptr<PoolMemory> memory;
    std::vector<LayerPages> regions;
    int64_t small_until;
  };
  Memory allocate(int64_t num_pages, int64_t capacity_pages) const;
  void adopt(Memory made) noexcept;
  int64_t choose_page_sizes(const std::vector<LayerPages>& regions, int64_t num_pages,
                            PoolMemory& memory) const noexcept;
  void use_huge_pages(const PageAllocator& allocator) noexcept;
  void make_usable(PoolMemory& memory, int64_t begin_page, int64_t end_page,
                   int64_t capacity_pages) const;
  void move_pages(const std::vector<LayerPages>& to, int64_t count) const;

  struct TakeBack {
    void operator()(const Plan* plan) const noexcept { plan->take_back_pool_tensors(); }
  };

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<const Plan, TakeBack> borrowed_from_;  // Declared behind plan_, which it needs.
  PoolPlace place_;
  const Gpu* device_;
  int64_t num_pages_ = 0;
  int64_t capacity_pages_ = 0;  // Pages that address space is reserved for.
  std::shared_ptr<PoolMemory> memory_;
  std::vector<LayerPages> regions_;
  // Pages in use from which on the pool has huge pages. kNever: it has them, or gets none.
  static constexpr int64_t kNever = INT64_MAX;
  int64_t small_until_ = kNever;
};

// Pages in host memory beside the device pool, in the same format, so that a swap is a plain copy.

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

  int64_t host_bytes() const { return pool_.host_bytes() + allocator_.host_bytes(); }

  HostUse use() const { return use_; }
  // Throws UNSUPPORTED when there are no pages, INVALID_STATE when the pool is used the other way.
  // `what`: the name of the function, for the message.
  void check_use(HostUse use, const char* what) const;
  // Call it when nothing can fail any more.
  void start_use(HostUse use) noexcept { use_ = use; }
  // Drops all references, and lets any use come first again. Page contents are not touched.
  void clear() noexcept;
  // As PagePool::trim; pages that the host program manages are not free.
  int64_t trim() noexcept { return use_ == HostUse::kByPage ? 0 : pool_.trim(allocator_); }

 private:
  std::shared_ptr<const Plan> plan_;
  PagePool pool_;
  PageAllocator allocator_;
  HostUse use_ = HostUse::kNone;
};

}  // namespace kvc
