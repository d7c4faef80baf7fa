#include "kernels/cuda/attn/simt/kernel.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {
namespace {

uint32_t shared_bytes(int32_t rows, int32_t k_dim, int32_t v_dim) {
  return 4u * static_cast<uint32_t>(simt::shared_layout(rows, k_dim, v_dim).size);
}

template <int Rows>
cudaError_t launch_rows(const AttnLaunch& launch_params, cudaStream_t stream) {
  LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>(launch_params.schedule.num_ctas);
  shape.threads = simt::kThreads;
  shape.shared_bytes = shared_bytes(Rows, launch_params.params.k_dim, launch_params.params.v_dim);
  shape.may_overlap = true;
  if (shape.shared_bytes > 48 * 1024) {
    const cudaError_t error = allow_shared(simt::attn_simt_kernel<Rows>, shape.shared_bytes);
    if (error != cudaSuccess) return error;
  }
  return launch(simt::attn_simt_kernel<Rows>, shape, stream, launch_params);
}

}  // namespace

bool attn_simt_fits(const AttnLaunch& launch, const DeviceLimits&, const char** why) {
  const bool fits = launch.params.k_dim <= simt::kMaxDim && launch.params.v_dim <= simt::kMaxDim;
  if (!fits && why != nullptr) *why = "rows of more than 1024 elements";
  return fits;
}

AttnGeometry attn_simt_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim) {
  const int32_t arch = device.arch;
  AttnGeometry geometry{};
  geometry.tile_rows = simt::tile_rows(k_dim, v_dim);
  geometry.key_block = simt::kKeys;
  // Shared memory of an SM, from the table of technical specifications in the CUDA programming
  // guide. Each CTA reserves 1 KiB.
  const uint32_t available = arch == 80 ? 164 : arch >= 90 && arch < 120 ? 228 : 100;
  const uint32_t needed = shared_bytes(geometry.tile_rows, k_dim, v_dim) + 1024;
  const uint32_t fitting = available * 1024 / needed;
  geometry.num_ctas =
      device.num_sms * static_cast<int32_t>(fitting < 1                  ? 1
                                            : fitting > simt::kCtasPerSm ? simt::kCtasPerSm
                                                                         : fitting);
  geometry.item_cost = 2;
  return geometry;
}

cudaError_t attn_simt(const AttnLaunch& launch, cudaStream_t stream) {
  // The instantiations, by tile rows.
  if (launch.schedule.tile_rows == 16) return launch_rows<16>(launch, stream);
  if (launch.schedule.tile_rows == 8) return launch_rows<8>(launch, stream);
  return cudaErrorInvalidValue;
}

}  // namespace kvc::cuda
