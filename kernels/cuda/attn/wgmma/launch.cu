// The instantiations of attn_wgmma and their choice.
#include "kernels/cuda/attn/tensor_map.h"
#include "kernels/cuda/attn/wgmma/config.h"
#include "kernels/cuda/attn/wgmma/kernel.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {
namespace {

using kernels::DType;

struct Variant {
  void (*kernel)(const wgmma::KernelParams);
  DType dtype;
  int32_t key_block;
  uint32_t shared_bytes;
};
template <class Shape, DType T>
constexpr Variant variant() {
  return {wgmma::attn_wgmma_kernel<Shape, T>, T, Shape::kKeyBlock, Shape::kSharedBytes};
}
// In the order of wgmma::shape_of, each in bf16 and f16.
constexpr Variant kVariants[] = {
    variant<wgmma::Shape64, DType::kBF16>(),  variant<wgmma::Shape64, DType::kF16>(),
    variant<wgmma::Shape128, DType::kBF16>(), variant<wgmma::Shape128, DType::kF16>(),
    variant<wgmma::Shape192, DType::kBF16>(), variant<wgmma::Shape192, DType::kF16>(),
    variant<wgmma::Shape256, DType::kBF16>(), variant<wgmma::Shape256, DType::kF16>(),
};

// The reason why the kernel does not support the launch, or null.
const char* misfit(const AttnLaunch& launch, int arch) {
  const kernels::AttnParams& params = launch.params;
  if (arch < 90 || arch >= 100) return "wgmma: the device is not of compute capability 9.0";
  if (launch.k_storage.quant != Quant::kNone || launch.v_storage.quant != Quant::kNone)
    return "wgmma: quantised K or V";
  if (params.k.dtype != params.v.dtype || params.k.dtype == DType::kF32)
    return "wgmma: K and V are not both bf16 or both f16";
  if (wgmma::shape_of(params.k_dim, params.v_dim) < 0) return "wgmma: head dims above 256/256";
  if (params.k_dim % 8 != 0 || params.v_dim % 8 != 0)
    return "wgmma: head dims are not multiples of 8";
  if (params.page_size != wgmma::kRaggedPage && params.page_size % wgmma::kLeastBoxRows != 0)
    return "wgmma: the page size is not a multiple of 16";
  const uint64_t pair_bytes = params.out.dtype == DType::kF32 ? 8 : 4;
  if (((reinterpret_cast<uintptr_t>(params.out.base) |
        static_cast<uint64_t>(params.out.token_stride) |
        static_cast<uint64_t>(params.out.head_stride)) &
       (pair_bytes - 1)) != 0)
    return "wgmma: output rows are not aligned to pairs of elements";
  if (params.alibi != nullptr || params.bias != nullptr) return "wgmma: ALiBi or a bias";
  if (params.k_rotations[0].rotary_dim != 0 || params.k_rotations[1].rotary_dim != 0)
    return "wgmma: K is rotated while it is read";
  if (!(params.q_scale > 0)) return "wgmma: the scale is not positive";
  const char* why = nullptr;
  if (!paged_map_fits(params.k, params.num_kv_heads, &why)) return why;
  if (!paged_map_fits(params.v, params.num_kv_heads, &why)) return why;
  const int32_t box_rows = wgmma::box_rows_of(
      params.page_size, kVariants[2 * wgmma::shape_of(params.k_dim, params.v_dim)].key_block);
  return driver_maps(params.k, params.k_dim, params, box_rows) &&
                 driver_maps(params.v, params.v_dim, params, box_rows)
             ? nullptr
             : "wgmma: the driver refuses a tensor map of K or V";
}

}  // namespace

bool attn_wgmma_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why) {
  const char* reason = misfit(launch, device.arch);
  if (reason != nullptr && why != nullptr) *why = reason;
  return reason == nullptr;
}

AttnGeometry attn_wgmma_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim) {
  const int32_t shape = wgmma::shape_of(k_dim, v_dim);
  const int32_t key_block = kVariants[shape < 0 ? 0 : 2 * shape].key_block;
  return {wgmma::kTileRows, key_block, device.num_sms, wgmma::kItemCost};
}

cudaError_t attn_wgmma(const AttnLaunch& launch_params, cudaStream_t stream) {
  const kernels::AttnParams& params = launch_params.params;
  const int32_t shape = wgmma::shape_of(params.k_dim, params.v_dim);
  if (shape < 0 || launch_params.schedule.tile_rows != wgmma::kTileRows)
    return cudaErrorInvalidValue;
  const Variant& variant = kVariants[2 * shape + (params.k.dtype == DType::kF16 ? 1 : 0)];
  wgmma::KernelParams kernel_params{};
  kernel_params.launch = launch_params;
  kernel_params.box_rows = wgmma::box_rows_of(params.page_size, variant.key_block);
  for (int half = 0; half < 2; ++half) {
    const kernels::PagedRows& rows = half == 0 ? params.k : params.v;
    const int32_t dim = half == 0 ? params.k_dim : params.v_dim;
    const cudaError_t mapped = paged_maps(
        paged_map_key(rows, dim, params.page_size, params.num_kv_heads, kernel_params.box_rows),
        wgmma::num_maps(params.page_size), kernel_params.maps + half * wgmma::kRaggedMaps);
    if (mapped != cudaSuccess) return mapped;
  }
  const cudaError_t allowed = allow_shared(variant.kernel, variant.shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  LaunchShape where;
  where.grid[0] = static_cast<uint32_t>(launch_params.schedule.num_ctas);
  where.threads = wgmma::kThreads;
  where.may_overlap = true;
  where.shared_bytes = variant.shared_bytes;
  return launch(variant.kernel, where, stream, kernel_params);
}

}  // namespace kvc::cuda
