// The limits and the launch of attn_latent.
#include "kernels/cuda/attn/latent/config.h"
#include "kernels/cuda/attn/latent/kernel.cuh"
#include "kernels/cuda/attn/tensor_map.h"
#include "kernels/cuda/attn/wgmma/config.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {
namespace {

using kernels::DType;

// The reason why the kernel does not support the launch, or null.
const char* misfit(const AttnLaunch& launch, int arch) {
  const kernels::AttnParams& params = launch.params;
  if (arch < 90 || arch >= 100) return "latent: the device is not of compute capability 9.0";
  if (launch.k_storage.quant != Quant::kNone || launch.v_storage.quant != Quant::kNone)
    return "latent: quantised latents";
  if (params.k.dtype != DType::kBF16 || params.v.dtype != DType::kBF16)
    return "latent: latents are not bf16";
  if (params.k_dim != latent::kKDim || params.v_dim != latent::kVDim)
    return "latent: dims are not 576/512";
  if (params.v.base != params.k.base || params.v.page_stride != params.k.page_stride ||
      params.v.token_stride != params.k.token_stride ||
      (params.num_kv_heads > 1 && params.v.head_stride != params.k.head_stride))
    return "latent: V is not the beginning of the K rows";
  if (params.page_size != wgmma::kRaggedPage && params.page_size % wgmma::kLeastBoxRows != 0)
    return "latent: the page size is not a multiple of 16";
  const uint64_t pair_bytes = params.out.dtype == DType::kF32 ? 8 : 4;
  if (((reinterpret_cast<uintptr_t>(params.out.base) |
        static_cast<uint64_t>(params.out.token_stride) |
        static_cast<uint64_t>(params.out.head_stride)) &
       (pair_bytes - 1)) != 0)
    return "latent: output rows are not aligned to pairs of elements";
  if (params.alibi != nullptr || params.bias != nullptr) return "latent: ALiBi or a bias";
  if (params.k_rotations[0].rotary_dim != 0 || params.k_rotations[1].rotary_dim != 0)
    return "latent: K is rotated while it is read";
  if (!(params.q_scale > 0)) return "latent: the scale is not positive";
  const char* why = nullptr;
  if (!paged_map_fits(params.k, params.num_kv_heads, &why)) return why;
  return driver_maps(params.k, params.k_dim, params,
                     wgmma::box_rows_of(params.page_size, latent::kKeyBlock))
             ? nullptr
             : "latent: the driver refuses a tensor map of the latents";
}

}  // namespace

bool attn_latent_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why) {
  const char* reason = misfit(launch, device.arch);
  if (reason != nullptr && why != nullptr) *why = reason;
  return reason == nullptr;
}

AttnGeometry attn_latent_geometry(const DeviceLimits& device, int32_t, int32_t) {
  return {latent::kTileRows, latent::kKeyBlock, device.num_sms, latent::kItemCost};
}

cudaError_t attn_latent(const AttnLaunch& launch_params, cudaStream_t stream) {
  const kernels::AttnParams& params = launch_params.params;
  if (launch_params.schedule.tile_rows != latent::kTileRows) return cudaErrorInvalidValue;
  latent::KernelParams kernel_params{};
  kernel_params.launch = launch_params;
  kernel_params.box_rows = wgmma::box_rows_of(params.page_size, latent::kKeyBlock);
  const cudaError_t mapped = paged_maps(paged_map_key(params.k, params.k_dim, params.page_size,
                                                      params.num_kv_heads, kernel_params.box_rows),
                                        wgmma::num_maps(params.page_size), kernel_params.maps);
  if (mapped != cudaSuccess) return mapped;
  const cudaError_t allowed = allow_shared(latent::attn_latent_kernel, latent::kSharedBytes);
  if (allowed != cudaSuccess) return allowed;
  LaunchShape where;
  where.grid[0] = static_cast<uint32_t>(launch_params.schedule.num_ctas);
  where.threads = latent::kThreads;
  where.may_overlap = true;
  where.shared_bytes = latent::kSharedBytes;
  return launch(latent::attn_latent_kernel, where, stream, kernel_params);
}

}  // namespace kvc::cuda
