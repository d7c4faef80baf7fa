#include "src/pages/pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {
namespace {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
// Reserved address space costs nothing, so leave room for kvc_cache_resize to grow in place.
constexpr int64_t kGrowthFactor = 8;

}  // namespace

PoolMemory::PoolMemory(const kvc_allocator& allocator, int64_t bytes) : allocator_(allocator), bytes_(bytes) {
  const DLDevice device{kDLCPU, 0};
  void* data = allocator_.alloc(allocator_.user, device, static_cast<uint64_t>(bytes), kCacheLine);
  if (data == nullptr) {
    fail_with(KVC_E_NO_MEMORY, bytes, "config.allocator returned NULL for %lld bytes",
              static_cast<long long>(bytes));
  }
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % kCacheLine);
  if (misaligned != 0) {
    allocator_.free(allocator_.user, device, data, static_cast<uint64_t>(bytes));
    fail_with(KVC_E_INVALID_ARGUMENT, misaligned,
              "config.allocator returned an address %lld bytes past a multiple of the asked alignment %lld",
              static_cast<long long>(misaligned), static_cast<long long>(kCacheLine));
  }
  data_ = static_cast<std::byte*>(data);
}

PoolMemory::~PoolMemory() {
  if (bytes_ != 0)
    allocator_.free(allocator_.user, DLDevice{kDLCPU, 0}, data_, static_cast<uint64_t>(bytes_));
}

struct PagePool::Arrangement {
  int64_t total_bytes = 0;
  std::vector<int64_t> layer_offset;  // of page 0
  std::vector<int64_t> page_stride;
};

PagePool::Arrangement PagePool::arrange(int64_t capacity_pages) const {
  const Layout& layout = plan_->layout();
  Arrangement result;
  const bool page_first = plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST;
  for (const LayerLayout& layer : layout.layers) {
    result.layer_offset.push_back(page_first ? layer.page_offset : result.total_bytes);
    result.page_stride.push_back(page_first ? layout.page_bytes : layer.page_bytes);
    if (!page_first) {
      const int64_t bytes = capacity_pages * layer.page_bytes;
      result.total_bytes += align_up(bytes, bytes >= kHugePage ? kHugePage : kCacheLine);
    }
  }
  if (page_first) result.total_bytes = capacity_pages * layout.page_bytes;
  return result;
}

PagePool::PagePool(std::shared_ptr<const Plan> plan, int64_t num_pages)
    : plan_(std::move(plan)), num_pages_(num_pages) {
  const Spec& spec = plan_->spec();
  capacity_pages_ = num_pages;
  layers_.resize(spec.layers.size());
  if (spec.storage == KVC_STORAGE_NONE) return;
  if (spec.storage == KVC_STORAGE_BORROWED) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool page_first = spec.pool_layout == KVC_POOL_PAGE_FIRST;
      const PoolTensor& tensor = spec.pool_tensors[page_first ? 0 : i];
      layers_[i] = {tensor.data + (page_first ? plan_->layout().layers[i].page_offset : 0),
                    tensor.page_stride};
    }
    return;
  }
  if (!spec.has_allocator) {
    const int64_t page_bytes = plan_->layout().page_bytes;
    const int64_t most = std::max(num_pages, 4 * physical_memory_bytes() / page_bytes);
    capacity_pages_ = std::min({num_pages * kGrowthFactor, most, int64_t{INT32_MAX - 1}});
  }
  try {
    allocate(num_pages, capacity_pages_, &memory_, &layers_);
  } catch (const Error&) {
    if (capacity_pages_ == num_pages) throw;  // the address space may be limited: try without room to grow
    capacity_pages_ = num_pages;
    allocate(num_pages, capacity_pages_, &memory_, &layers_);
  }
}

void PagePool::allocate(int64_t num_pages, int64_t capacity_pages, std::shared_ptr<PoolMemory>* memory,
                        std::vector<LayerPages>* layers) const {
  const Arrangement arrangement = arrange(capacity_pages);
  std::vector<LayerPages> placed(arrangement.layer_offset.size());
  std::shared_ptr<PoolMemory> fresh;
  if (plan_->spec().has_allocator) {
    fresh = std::make_shared<PoolMemory>(plan_->spec().allocator, arrangement.total_bytes);
  } else {
    fresh = std::make_shared<PoolMemory>(ReservedMemory(arrangement.total_bytes));
    make_usable(fresh->reserved(), 0, num_pages, capacity_pages);
  }
  for (size_t i = 0; i < placed.size(); ++i) {
    placed[i] = {fresh->data() + arrangement.layer_offset[i], arrangement.page_stride[i]};
  }
  *layers = std::move(placed);
  *memory = std::move(fresh);
}

void PagePool::make_usable(ReservedMemory& memory, int64_t begin_page, int64_t end_page,
                           int64_t capacity_pages) const {
  const Arrangement arrangement = arrange(capacity_pages);
  if (plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST) {
    const int64_t stride = plan_->layout().page_bytes;
    memory.make_usable(begin_page * stride, end_page * stride);
    return;
  }
  for (size_t i = 0; i < arrangement.layer_offset.size(); ++i) {
    const int64_t base = arrangement.layer_offset[i];
    memory.make_usable(base + begin_page * arrangement.page_stride[i],
                       base + end_page * arrangement.page_stride[i]);
  }
}

kernels::PagedRows PagePool::k_rows(int32_t local_layer) const {
  const LayerSpec& spec = plan_->spec().layers[static_cast<size_t>(local_layer)];
  const LayerPages& pages = layer(local_layer);
  const int64_t row_bytes = spec.k_dim * kernels::dtype_bytes(spec.k_dtype);
  return {pages.base, pages.page_stride, plan_->spec().page_size * row_bytes, row_bytes, spec.k_dtype};
}

kernels::PagedRows PagePool::v_rows(int32_t local_layer) const {
  const LayerSpec& spec = plan_->spec().layers[static_cast<size_t>(local_layer)];
  const LayerLayout& layout = plan_->layout().layers[static_cast<size_t>(local_layer)];
  const LayerPages& pages = layer(local_layer);
  const int64_t row_bytes = spec.v_dim * kernels::dtype_bytes(spec.v_dtype);
  return {pages.base + layout.v_offset, pages.page_stride, plan_->spec().page_size * row_bytes, row_bytes,
          spec.v_dtype};
}

void PagePool::resize(int64_t num_pages) {
  if (num_pages == num_pages_) return;
  const Spec& spec = plan_->spec();
  const bool owned = spec.storage == KVC_STORAGE_OWNED;
  const bool in_place = !owned || (!spec.has_allocator && num_pages <= capacity_pages_);
  if (!in_place) {
    if (memory_.use_count() > 1) {
      fail(KVC_E_BUSY, "the pool has to move to hold %lld pages, and exported tensors hold it",
           static_cast<long long>(num_pages));
    }
    std::shared_ptr<PoolMemory> memory;
    std::vector<LayerPages> layers;
    allocate(num_pages, num_pages, &memory, &layers);
    const int64_t kept = std::min(num_pages, num_pages_);
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto bytes = static_cast<size_t>(plan_->layout().layers[i].page_bytes);
      for (int64_t page = 0; page < kept; ++page) {
        std::memcpy(layers[i].base + page * layers[i].page_stride,
                    layers_[i].base + page * layers_[i].page_stride, bytes);
      }
    }
    memory_ = std::move(memory);
    layers_ = std::move(layers);
    capacity_pages_ = num_pages;
  } else if (owned && num_pages > num_pages_) {
    make_usable(memory_->reserved(), num_pages_, num_pages, capacity_pages_);
  } else if (owned) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (spec.pool_layout == KVC_POOL_PAGE_FIRST && i != 0) break;
      const int64_t base = spec.pool_layout == KVC_POOL_PAGE_FIRST ? 0 : layers_[i].base - memory_->data();
      memory_->reserved().discard(base + num_pages * layers_[i].page_stride,
                                  base + num_pages_ * layers_[i].page_stride);
    }
  }
  num_pages_ = num_pages;
}

}  // namespace kvc
