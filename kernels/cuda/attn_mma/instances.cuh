// The table of what is compiled for one type of K and V: 16 and 64 rows, every entry of kDims; 8-bit rows of 192/128 use 256/256.
#pragma once

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
  constexpr bool kEightBit = Stored != Kv::kBF16 && Stored != Kv::kF16;
  switch (dims) {
    case 0: return launch_kernel<Config<Rows, kDims[0].k, kDims[0].v, Stored>>(params, stream);
    case 1: return launch_kernel<Config<Rows, kDims[1].k, kDims[1].v, Stored>>(params, stream);
    case 2:
      if constexpr (!kEightBit)
        return launch_kernel<Config<Rows, kDims[2].k, kDims[2].v, Stored>>(params, stream);
      [[fallthrough]];
    case 3: return launch_kernel<Config<Rows, kDims[3].k, kDims[3].v, Stored>>(params, stream);
    default: return cudaErrorInvalidValue;
  }
}

template <Kv Stored>
cudaError_t launch_type(int rows, int dims, const AttnLaunch& params, cudaStream_t stream) {
  return rows == 16 ? launch_rows<Stored, 16>(dims, params, stream)
                    : launch_rows<Stored, 64>(dims, params, stream);
}

}  // namespace kvc::cuda::attn_mma
