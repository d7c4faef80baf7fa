// What is compiled for one type of K and V: 16 and 64 rows, see configs.cuh.
#pragma once

#include "kernels/cuda/attn_mma/configs.cuh"
#include "kernels/cuda/attn_mma/instances.h"
#include "kernels/cuda/attn_mma/kernel.cuh"
#include "kernels/cuda/launch.cuh"

namespace kvc::cuda::attn_mma {

template <typename C>
cudaError_t launch_kernel(const AttnLaunch& params, cudaStream_t stream) {
  static_assert(Shared<C>::kBytes <= 163 * 1024, "sm_80 has no more");
  static_assert(C::kMinCtas == 1 || Shared<C>::kBytes <= 113 * 1024, "two CTAs on an SM of sm_90");
  const cudaError_t error = allow_shared(attn_mma<C>, Shared<C>::kBytes);
  if (error != cudaSuccess) return error;
  LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>(params.plan.num_ctas);
  shape.threads = kThreads;
  shape.shared_bytes = Shared<C>::kBytes;
  shape.may_overlap = true;
  return launch(attn_mma<C>, shape, stream, params);
}

template <Kv Stored, int Rows>
cudaError_t launch_rows(int dims, const AttnLaunch& params, cudaStream_t stream) {
  if (dims < 0 || dims >= kNumDims) return cudaErrorInvalidValue;
  int32_t shared_bytes = 0;
  const cudaError_t error = most_shared_bytes(&shared_bytes);
  if (error != cudaSuccess) return error;
  return with_config<Stored, Rows>(dims, shared_bytes,
                                   [&]<typename C>(C) { return launch_kernel<C>(params, stream); });
}

template <Kv Stored>
cudaError_t launch_type(int rows, int dims, const AttnLaunch& params, cudaStream_t stream) {
  return rows == 16 ? launch_rows<Stored, 16>(dims, params, stream)
                    : launch_rows<Stored, 64>(dims, params, stream);
}

}  // namespace kvc::cuda::attn_mma
