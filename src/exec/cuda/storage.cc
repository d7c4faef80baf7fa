#include "src/exec/cuda/storage.h"

#include "src/plan/rows.h"

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
                            DLDataType type, float scale, int64_t scale_bytes,
                            int64_t scale_offset) {
  const LayerSpec& layer = plan.spec().layers[local_layer];
  cuda::RowStorage storage{};
  if (!layer.is_quantised()) return storage;
  const LayerPages pages = pool.layer(local_layer);
  storage.quant = static_cast<cuda::Quant>(layer.quant);
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
  return storage_of(plan, pool, local_layer, layer.k_type, layer.k_scale, row_bytes(layer).k_scale,
                    layout.k_scale_offset);
}

cuda::RowStorage v_storage(const Plan& plan, const PagePool& pool, int32_t local_layer) {
  const LayerSpec& layer = plan.spec().layers[local_layer];
  const LayerLayout& layout = plan.layout().layers[local_layer];
  if (layer.v_in_k) return k_storage(plan, pool, local_layer);
  return storage_of(plan, pool, local_layer, layer.v_type, layer.v_scale, row_bytes(layer).v_scale,
                    layout.k_scale_offset + layout.k_scale_bytes);
}

}  // namespace kvc
