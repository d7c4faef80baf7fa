#include "src/pages/pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/plan/layout.h"

namespace kvc {
namespace {

constexpr int64_t kCacheLine = 64;
// Pages that one in use may take up, with the gap that the allocator leaves behind it.
constexpr int64_t kMostSpread = 20;
// Reserved address space costs nothing, so there is room for kvc_cache_resize to grow in place.
constexpr int64_t kGrowthFactor = 8;

}  // namespace

PoolMemory::PoolMemory(const kvc_allocator& allocator, DLDevice device, int64_t bytes)
    : allocator_(allocator), device_(device), bytes_(bytes) {
  void* data = allocator_.alloc(allocator_.user, device, static_cast<uint64_t>(bytes), kCacheLine);
  if (data == nullptr) {
    fail_with(KVC_E_NO_MEMORY, bytes, "config.allocator returned NULL for %lld bytes", ll(bytes));
  }
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % kCacheLine);
  if (misaligned != 0) {
    allocator_.free(allocator_.user, device, data, static_cast<uint64_t>(bytes));
    fail_with(KVC_E_INVALID_ARGUMENT, misaligned,
              "config.allocator returned an address %lld bytes past a multiple of the asked "
              "alignment %lld",
              ll(misaligned), ll(kCacheLine));
  }
  data_ = static_cast<std::byte*>(data);
}

PoolMemory::~PoolMemory() {
  if (bytes_ != 0) allocator_.free(allocator_.user, device_, data_, static_cast<uint64_t>(bytes_));
}

void PoolMemory::make_usable(int64_t begin, int64_t end) {
  if (on_device_.data() != nullptr) {
    on_device_.commit(begin, end);
  } else {
    reserved_.make_usable(begin, end);
  }
}

int64_t PoolMemory::discard(int64_t begin, int64_t end) {
  if (on_device_.data() == nullptr) return reserved_.discard(begin, end);
  on_device_.discard(begin, end);
  return 0;
}

struct PagePool::Arrangement {
  int64_t total_bytes = 0;
  std::vector<int64_t> region_offset;  // Offset of each region in page 0.
  std::vector<int64_t> page_stride;
};

PagePool::Arrangement PagePool::arrange(int64_t capacity_pages) const {
  const Layout& layout = plan_->layout();
  Arrangement result;
  const bool page_first = plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST;
  for (const RegionLayout& region : layout.regions) {
    result.region_offset.push_back(page_first ? region.offset : result.total_bytes);
    result.page_stride.push_back(page_first ? layout.page_bytes : region.bytes);
    if (!page_first) {
      const int64_t bytes = capacity_pages * region.bytes;
      result.total_bytes += align_up(bytes, bytes >= kHugePage ? kHugePage : kCacheLine);
    }
  }
  if (page_first) result.total_bytes = capacity_pages * layout.page_bytes;
  return result;
}

PagePool::PagePool(std::shared_ptr<const Plan> plan, int64_t num_pages, PoolPlace place,
                   const Gpu* device)
    : plan_(std::move(plan)), place_(place), device_(device), num_pages_(num_pages) {
  const Spec& spec = plan_->spec();
  capacity_pages_ = num_pages;
  regions_.resize(plan_->layout().regions.size());
  if (spec.storage == KVC_STORAGE_NONE || regions_.empty()) return;
  if (place == PoolPlace::kHost) {
    if (num_pages > 0) adopt(allocate(num_pages, num_pages));
    return;
  }
  if (spec.storage == KVC_STORAGE_BORROWED) {
    if (!plan_->lend_pool_tensors())
      fail(KVC_E_BUSY, "config.pool_tensors of this plan serve another cache: one at a time");
    borrowed_from_.reset(plan_.get());
    for (size_t i = 0; i < regions_.size(); ++i) {
      const bool page_first = spec.pool_layout == KVC_POOL_PAGE_FIRST;
      const PoolTensor& tensor = spec.pool_tensors[page_first ? 0 : i];
      regions_[i] = {tensor.data + (page_first ? plan_->layout().regions[i].offset : 0),
                     tensor.page_stride};
    }
    return;
  }
  if (!spec.has_allocator) {
    const int64_t page_bytes = plan_->layout().page_bytes;
    const int64_t memory_bytes = device_ == nullptr
                                     ? physical_memory_bytes()
                                     : static_cast<int64_t>(device_info(*device_).memory_bytes);
    const int64_t most = std::max(num_pages, 4 * memory_bytes / page_bytes);
    capacity_pages_ = std::min({num_pages * kGrowthFactor, most, int64_t{INT32_MAX - 1}});
  }
  try {
    adopt(allocate(num_pages, capacity_pages_));
  } catch (const Error&) {
    // The address space may be limited, so this tries again without room to grow.
    if (capacity_pages_ == num_pages) throw;
    capacity_pages_ = num_pages;
    adopt(allocate(num_pages, capacity_pages_));
  }
}

PagePool::Memory PagePool::allocate(int64_t num_pages, int64_t capacity_pages) const {
  const Arrangement arrangement = arrange(capacity_pages);
  std::vector<LayerPages> placed(arrangement.region_offset.size());
  std::shared_ptr<PoolMemory> fresh;
  if (plan_->spec().has_allocator && place_ == PoolPlace::kDevice) {
    fresh = std::make_shared<PoolMemory>(plan_->spec().allocator, plan_->spec().device,
                                         arrangement.total_bytes);
  } else if (device_ != nullptr && place_ == PoolPlace::kHost) {
    fresh = std::make_shared<PoolMemory>(PinnedMemory(*device_, arrangement.total_bytes));
  } else {
    fresh = device_ != nullptr
                ? std::make_shared<PoolMemory>(DeviceReservation(*device_, arrangement.total_bytes))
                : std::make_shared<PoolMemory>(ReservedMemory(arrangement.total_bytes));
    make_usable(*fresh, 0, num_pages, capacity_pages);
  }
  for (size_t i = 0; i < placed.size(); ++i) {
    placed[i] = {fresh->data() + arrangement.region_offset[i], arrangement.page_stride[i]};
  }
  const int64_t small_until = choose_page_sizes(placed, num_pages, *fresh);
  return {std::move(fresh), std::move(placed), small_until};
}

void PagePool::adopt(Memory made) noexcept {
  memory_ = std::move(made.memory);
  regions_ = std::move(made.regions);
  small_until_ = made.small_until;
}

// A layer whose pages fill no huge page commits none. Larger ones are read faster from huge pages:
// with the first 2 MiB in small ones, decode over 16,384 tokens was slower by some 3 %. So they get
// them when their used pages would fill one each, and what has small pages is moved then. Returns
// the number of pages; kNever where the system cannot move them.
int64_t PagePool::choose_page_sizes(const std::vector<LayerPages>& regions, int64_t num_pages,
                                    PoolMemory& memory) const noexcept {
  if (!plan_->spec().has_huge_pages) {
    memory.use_small_pages(0, INT64_MAX);
    return kNever;
  }
  const bool page_first = plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST;
  const size_t count = page_first ? 1 : regions.size();
  int64_t num_large = 0, bytes_of_large = 0;
  for (size_t i = 0; i < count; ++i) {
    if (num_pages * regions[i].page_stride < kHugePage) continue;
    ++num_large;
    bytes_of_large += regions[i].page_stride;
  }
  const int64_t until = num_large == 0 ? 0 : ceil_div(num_large * kHugePage, bytes_of_large);
  const bool begins_small =
      place_ == PoolPlace::kDevice && memory.is_reserved_on_host() && until > 1 && has_collapse();
  for (size_t i = 0; i < count; ++i) {
    const int64_t begin = regions[i].base - memory.data();
    const int64_t end = i + 1 < count ? regions[i + 1].base - memory.data() : INT64_MAX;
    if (num_pages * regions[i].page_stride < kHugePage) {
      memory.use_small_pages(begin, std::min(begin + kHugePage, end));
    } else if (begins_small) {
      memory.use_small_pages(begin, end);
    }
  }
  return begins_small ? until : kNever;
}

void PagePool::use_huge_pages(const PageAllocator& allocator) noexcept {
  // What was written so far: fewer pages than small_until_, each with a gap behind it at most. The
  // others are those of the present call.
  const int64_t used_end = std::min(allocator.end_of_used(), small_until_ * kMostSpread);
  for (int64_t i = 0; i < num_stripes(); ++i) {
    const LayerPages& region = regions_[static_cast<size_t>(i)];
    if (num_pages_ * region.page_stride < kHugePage) continue;
    const int64_t begin = region.base - memory_->data();
    memory_->use_huge_pages(begin,
                            align_up(begin + capacity_pages_ * region.page_stride, kHugePage));
    memory_->collapse(begin, align_up(begin + used_end * region.page_stride, kHugePage));
  }
  small_until_ = kNever;
}

void PagePool::make_usable(PoolMemory& memory, int64_t begin_page, int64_t end_page,
                           int64_t capacity_pages) const {
  const Arrangement arrangement = arrange(capacity_pages);
  if (plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST) {
    const int64_t stride = plan_->layout().page_bytes;
    memory.make_usable(begin_page * stride, end_page * stride);
    return;
  }
  for (size_t i = 0; i < arrangement.region_offset.size(); ++i) {
    const int64_t base = arrangement.region_offset[i];
    memory.make_usable(base + begin_page * arrangement.page_stride[i],
                       base + end_page * arrangement.page_stride[i]);
  }
}

kernels::RowScales PagePool::row_scales(int32_t local_layer, bool is_v) const {
  const LayerSpec& spec = plan_->spec().layers[local_layer];
  const kvc_quant quant = is_v ? spec.v_quant : spec.k_quant;
  if (quant == KVC_QUANT_PER_TENSOR)
    return {.shared = is_v && !spec.v_in_k ? spec.v_scale : spec.k_scale};
  if (quant != KVC_QUANT_PER_TOKEN_HEAD) return {};
  const LayerLayout& layout = plan_->layout().layers[local_layer];
  const LayerPages pages = layer(local_layer);
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  return {.base = pages.base + (is_v ? layout.v_scale_offset : layout.k_scale_offset),
          .page_stride = pages.page_stride,
          .head_stride = plan_->spec().layer_page_size(local_layer) * kBytes,
          .token_stride = kBytes};
}

kernels::PagedRows PagePool::k_rows(int32_t local_layer) const {
  const LayerSpec& spec = plan_->spec().layers[local_layer];
  const LayerPages pages = layer(local_layer);
  const int64_t row_bytes = kvc::row_bytes(spec).k;
  return {pages.base, pages.page_stride, plan_->spec().layer_page_size(local_layer) * row_bytes,
          row_bytes,  spec.k_dtype,      row_scales(local_layer, false)};
}

kernels::PagedRows PagePool::v_rows(int32_t local_layer) const {
  const LayerSpec& spec = plan_->spec().layers[local_layer];
  if (spec.v_in_k) return k_rows(local_layer);
  const LayerLayout& layout = plan_->layout().layers[local_layer];
  const LayerPages pages = layer(local_layer);
  const int64_t row_bytes = kvc::row_bytes(spec).v;
  return {pages.base + layout.v_offset,
          pages.page_stride,
          plan_->spec().layer_page_size(local_layer) * row_bytes,
          row_bytes,
          spec.v_dtype,
          row_scales(local_layer, true)};
}

void PagePool::copy_token(int32_t local_layer, int64_t from_page, int64_t from_offset,
                          int64_t to_page, int64_t to_offset) const noexcept {
  const LayerSpec& spec = plan_->spec().layers[local_layer];
  if (spec.is_quantised())
    return copy_quantised_token(local_layer, from_page, from_offset, to_page, to_offset);
  const auto copy = [&](const kernels::PagedRows& rows, int32_t dim) {
    const auto bytes = static_cast<size_t>(dim * kernels::dtype_bytes(rows.dtype));
    for (int32_t head = 0; head < spec.num_kv_heads; ++head) {
      std::memcpy(row_address(rows, to_page, head, to_offset),
                  row_address(rows, from_page, head, from_offset), bytes);
    }
  };
  copy(k_rows(local_layer), spec.k_dim);
  if (!spec.v_in_k) copy(v_rows(local_layer), spec.v_dim);
}

void PagePool::copy_quantised_token(int32_t local_layer, int64_t from_page, int64_t from_offset,
                                    int64_t to_page, int64_t to_offset) const noexcept {
  const LayerSpec& spec = plan_->spec().layers[local_layer];
  const LayerLayout& layout = plan_->layout().layers[local_layer];
  const int64_t page_size = plan_->spec().layer_page_size(local_layer);
  const LayerPages pages = layer(local_layer);
  const std::byte* from = pages.base + from_page * pages.page_stride;
  std::byte* to = pages.base + to_page * pages.page_stride;
  const auto copy = [&](int64_t begin, int64_t bytes) {  // rows [head][token] of so many bytes
    for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
      const int64_t rows = begin + head * page_size * bytes;
      std::memcpy(to + rows + to_offset * bytes, from + rows + from_offset * bytes,
                  static_cast<size_t>(bytes));
    }
  };
  const RowBytes row = row_bytes(spec);
  copy(0, row.k);
  copy(layout.v_offset, row.v);
  copy(layout.k_scale_offset, row.k_scale);
  copy(layout.v_scale_offset, row.v_scale);
}

// Both arrangements belong to the library, so pages lie one behind the other.
void PagePool::move_pages(const std::vector<LayerPages>& to, int64_t count) const {
  DeviceStream stream;
  if (device_ != nullptr) stream = DeviceStream(*device_);
  for (size_t i = 0; i < to.size(); ++i) {
    const bool page_first = plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST;
    if (page_first && i != 0) break;
    const int64_t bytes = count * to[i].page_stride;
    if (device_ != nullptr) {
      device_->copy(to[i].base, regions_[i].base, bytes, stream.get());
    } else {
      std::memcpy(to[i].base, regions_[i].base, static_cast<size_t>(bytes));
    }
  }
  if (device_ != nullptr) stream.synchronize();
}

void PagePool::resize(int64_t num_pages, const std::function<void()>& save) {
  if (num_pages == num_pages_ || regions_.empty()) return save();
  const Spec& spec = plan_->spec();
  const bool owned = spec.storage == KVC_STORAGE_OWNED;
  const bool in_place = !owned || (!spec.has_allocator && num_pages <= capacity_pages_);
  if (!in_place) {
    if (memory_.use_count() > 1) {
      fail(KVC_E_BUSY, "the pool has to move to hold %lld pages, and exported tensors hold it",
           ll(num_pages));
    }
    Memory made = allocate(num_pages, num_pages);
    save();
    move_pages(made.regions, std::min(num_pages, num_pages_));
    adopt(std::move(made));
    capacity_pages_ = num_pages;
  } else if (num_pages > num_pages_) {
    if (owned) make_usable(*memory_, num_pages_, num_pages, capacity_pages_);
    save();
  } else {
    save();
    for (size_t i = 0; owned && i < regions_.size(); ++i) {
      if (spec.pool_layout == KVC_POOL_PAGE_FIRST && i != 0) break;
      const int64_t base =
          spec.pool_layout == KVC_POOL_PAGE_FIRST ? 0 : regions_[i].base - memory_->data();
      memory_->discard(base + num_pages * regions_[i].page_stride,
                       base + num_pages_ * regions_[i].page_stride);
    }
  }
  num_pages_ = num_pages;
}

int64_t PagePool::trim(PageAllocator& allocator) noexcept {
  if (memory_ == nullptr || !memory_->is_reserved_on_host()) return 0;
  int64_t bytes = 0;
  allocator.for_each_freed_run([&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < num_stripes(); ++i) {
      const LayerPages& region = regions_[static_cast<size_t>(i)];
      const int64_t base = region.base - memory_->data();
      bytes += memory_->discard(base + begin * region.page_stride, base + end * region.page_stride);
    }
  });
  allocator.forget_freed();
  if (allocator.num_free() == allocator.num_pages() && small_until_ == kNever)
    small_until_ = choose_page_sizes(regions_, num_pages_, *memory_);
  return bytes;
}

namespace {

const char* name_of(HostUse use) {
  return use == HostUse::kByPage ? "page ids (kvc_pages_swap)" : "sequences and the prefix index";
}

}  // namespace

HostPool::HostPool(const std::shared_ptr<const Plan>& plan, int64_t num_pages, const Gpu* device)
    : plan_(plan), pool_(plan, num_pages, PoolPlace::kHost, device), allocator_(num_pages) {}

void HostPool::check_use(HostUse use, const char* what) const {
  if (num_pages() == 0) {
    fail(KVC_E_UNSUPPORTED,
         "%s needs a host pool: config.host_byte_budget = %llu holds no page of %lld bytes", what,
         static_cast<unsigned long long>(plan_->spec().host_byte_budget),
         ll(plan_->layout().page_bytes));
  }
  if (use_ != HostUse::kNone && use_ != use) {
    fail(KVC_E_INVALID_STATE,
         "%s uses the host pool by %s, and it is in use by %s until kvc_cache_clear", what,
         name_of(use), name_of(use_));
  }
}

void HostPool::clear() noexcept {
  allocator_.clear();
  use_ = HostUse::kNone;
}

}  // namespace kvc
