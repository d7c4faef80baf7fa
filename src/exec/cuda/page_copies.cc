#include "src/exec/cuda/page_copies.h"

#include <algorithm>

#include "src/exec/page_pairs.h"
#include "src/plan/layout.h"

namespace kvc {
namespace {

cuda::Stored stored_type(DLDataType type) {
  if (type.code == kDLFloat8_e5m2) return cuda::Stored::kE5M2;
  if (type.code == kDLFloat4_e2m1fn) return cuda::Stored::kE2M1;
  if (type.code == kDLInt) return type.bits == 4 ? cuda::Stored::kInt4 : cuda::Stored::kInt8;
  return cuda::Stored::kE4M3;
}

// `scale_offset`: of the scales of this half inside the layer's part of a page.
cuda::RowStorage storage_of(const Plan& plan, const PagePool& pool, int32_t local_layer,
                            kvc_quant quant, DLDataType type, float scale, int64_t scale_bytes,
                            int64_t scale_offset) {
  cuda::RowStorage storage{};
  if (quant == KVC_QUANT_NONE) return storage;
  const LayerPages pages = pool.layer(local_layer);
  storage.quant = static_cast<cuda::Quant>(quant);
  storage.type = stored_type(type);
  storage.scale = scale;
  storage.scales = scale_bytes == 0 ? nullptr : pages.base + scale_offset;
  storage.scale_page_stride = pages.page_stride;
  storage.scale_token_stride = scale_bytes;
  storage.scale_head_stride = plan.spec().layer_page_size(local_layer) * scale_bytes;
  return storage;
}

}  // namespace

cuda::RowStorage k_storage(const Plan& plan, const PagePool& pool, int32_t local_layer) {
  const LayerSpec& layer = plan.spec().layers[local_layer];
  const LayerLayout& layout = plan.layout().layers[local_layer];
  return storage_of(plan, pool, local_layer, layer.k_quant, layer.k_type, layer.k_scale,
                    row_bytes(layer).k_scale, layout.k_scale_offset);
}

cuda::RowStorage v_storage(const Plan& plan, const PagePool& pool, int32_t local_layer) {
  const LayerSpec& layer = plan.spec().layers[local_layer];
  const LayerLayout& layout = plan.layout().layers[local_layer];
  if (layer.v_in_k) return k_storage(plan, pool, local_layer);
  return storage_of(plan, pool, local_layer, layer.v_quant, layer.v_type, layer.v_scale,
                    row_bytes(layer).v_scale, layout.v_scale_offset);
}

TakenClearer::TakenClearer(const Spec* spec, const PagePool* pool, const StatePool* states,
                           const Gpu* gpu, DevicePages* pages)
    : spec_(spec), pool_(pool), states_(states), gpu_(gpu), pages_(pages) {
  if (spec_->clears_pages) make_zeros();
}

void TakenClearer::make_zeros() {
  std::vector<cuda::PageRegion> parts;
  int64_t largest = 1;
  for (const GroupSpec& group : spec_->groups) {
    for (const int32_t layer : group.layers) {
      const auto bytes = static_cast<int64_t>(pool_->layer_page_bytes(layer));
      parts.push_back(
          {.base = nullptr, .page_stride = 0, .bytes = bytes, .group = -1, .reserved = 0});
      largest = std::max(largest, bytes);
    }
  }
  if (parts.empty()) return;
  zeros_ = DeviceMemory(*gpu_, largest);
  for (cuda::PageRegion& part : parts) part.base = zeros_.data();
  const auto bytes = static_cast<int64_t>(parts.size() * sizeof(cuda::PageRegion));
  zero_slots_ = DeviceMemory(*gpu_, bytes);
  const DeviceStream stream(*gpu_);
  gpu_->fill(zeros_.data(), 0, largest, stream.get());
  gpu_->copy(zero_slots_.data(), parts.data(), bytes, stream.get());
  stream.synchronize();
}

void TakenClearer::clear(const Batch& batch, cuda::Stream stream, DeviceUploads& uploads) {
  if (!spec_->clears_pages) return;
  const std::vector<PageId>& pages = batch.taken_pages();
  if (!pages.empty() && zero_slots_.data() != nullptr) {
    zero_pages_.assign(pages.size(), 0);
    cuda::PageCopyParams params{};
    params.from_layers = reinterpret_cast<const cuda::PageRegion*>(zero_slots_.data());
    params.to_layers = pages_->get().layers;
    params.num_layers = pages_->get().num_layers;
    params.from = uploads.put(zero_pages_, stream);
    params.to = uploads.put(pages, stream);
    params.num_pairs = static_cast<int64_t>(pages.size());
    params.group = -1;
    gpu_->call("copy_pages", gpu_->table->copy_pages, params, stream);
    uploads.finish(stream);
  }
  if (!states_->is_used()) return;
  for (const BatchEntry& entry : batch.entries()) states_->memory().clear(entry.new_state, stream);
}

namespace {

// How many page pairs, and how many stripes of the pool, one launch of the copy kernel takes.
constexpr int64_t kPairs = 2048, kStripes = 64;
static_assert(2 * DeviceUploads::room_of(kPairs * sizeof(PageId)) +
                  DeviceUploads::room_of(kStripes * sizeof(cuda::PageRegion)) <=
              CudaPageCopies::kUploadBytes);

int64_t count_runs(const PageId* from, const PageId* to, int64_t count, bool is_inside) {
  int64_t runs = 0;
  for (int64_t i = 0; i < count;) {
    const PageRun run = run_at(from, to, i, count);
    i += run.count;
    if (!is_inside || run.from != run.to) ++runs;
  }
  return runs;
}

}  // namespace

void CudaPageCopies::enqueue(CopyDirection direction, const PageId* from, const PageId* to,
                             int64_t count, DeviceUploads& uploads, cuda::Stream stream) {
  const bool is_inside = direction == CopyDirection::kInsideDevice;
  const PagePool& source = direction == CopyDirection::kHostToDevice ? *host_pool_ : *device_pool_;
  const PagePool& target = direction == CopyDirection::kDeviceToHost ? *host_pool_ : *device_pool_;
  const int64_t runs = count_runs(from, to, count, is_inside);
  num_runs_ += static_cast<uint64_t>(runs);
  if (runs == 0) return;
  if (is_inside)
    copy_by_kernel(from, to, count, uploads, stream);
  else
    copy_by_driver(source, target, from, to, count, stream);
}

void CudaPageCopies::copy_by_driver(const PagePool& source_pool, const PagePool& target_pool,
                                    const PageId* from, const PageId* to, int64_t count,
                                    cuda::Stream stream) {
  CopyBatch batch(gpu_, stream);
  for (int64_t index = 0; index < device_pool_->num_stripes(); ++index) {
    const PagePool::Stripe source = source_pool.stripe(index), target = target_pool.stripe(index);
    const bool is_dense = source.stride == source.bytes && target.stride == target.bytes;
    for (int64_t i = 0; i < count;) {
      const PageRun run = run_at(from, to, i, is_dense ? count : i + 1);
      i += run.count;
      batch.add(target.base + run.to * target.stride, source.base + run.from * source.stride,
                source.bytes * run.count);
    }
  }
  batch.flush();
}

void CudaPageCopies::copy_by_kernel(const PageId* from, const PageId* to, int64_t count,
                                    DeviceUploads& uploads, cuda::Stream stream) {
  const auto put_ids = [&](const PageId* ids, int64_t number) {
    const std::byte* at = uploads.put(ids, number * static_cast<int64_t>(sizeof(PageId)), stream);
    return reinterpret_cast<const PageId*>(at);
  };
  const auto put_stripes = [&](int64_t begin, int64_t number) {
    cuda::PageRegion stripes[kStripes];
    for (int64_t i = 0; i < number; ++i) {
      const PagePool::Stripe stripe = device_pool_->stripe(begin + i);
      stripes[i] = {stripe.base, stripe.stride, stripe.bytes, -1, 0};
    }
    const std::byte* at =
        uploads.put(stripes, number * static_cast<int64_t>(sizeof(cuda::PageRegion)), stream);
    return reinterpret_cast<const cuda::PageRegion*>(at);
  };
  const int64_t num_stripes = device_pool_->num_stripes();
  for (int64_t stripe = 0; stripe < num_stripes; stripe += kStripes) {
    const int64_t number = std::min(kStripes, num_stripes - stripe);
    for (int64_t first = 0; first < count; first += kPairs) {
      cuda::PageCopyParams params{};
      params.num_layers = static_cast<int32_t>(number);
      params.from_layers = params.to_layers = put_stripes(stripe, number);
      params.num_pairs = std::min(kPairs, count - first);
      params.from = put_ids(from + first, params.num_pairs);
      params.to = put_ids(to + first, params.num_pairs);
      params.group = -1;
      gpu_->call("copy_pages", gpu_->table->copy_pages, params, stream);
      uploads.finish(stream);
    }
  }
}

}  // namespace kvc
