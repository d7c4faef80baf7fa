#include "kernels/cuda/launches.h"
#include "kernels/cuda/reduce/reduce_splits.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {

cudaError_t reduce_splits(const AttnLaunch& launch, cudaStream_t stream) {
  const kernels::AttnParams& params = launch.params;
  const reducing::Launch parameters{.schedule = launch.schedule,
                                    .sequences = params.sequences,
                                    .out = params.out,
                                    .lse = params.lse,
                                    .lse_token_stride = params.lse_token_stride,
                                    .sinks = params.sinks,
                                    .v_dim = params.v_dim,
                                    .group_size = params.num_q_heads / params.num_kv_heads};
  LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>(launch.schedule.num_ctas);
  shape.threads = reducing::kThreads;
  shape.may_overlap = true;
  const auto any = reinterpret_cast<uintptr_t>(params.out.base) |
                   static_cast<uintptr_t>(params.out.token_stride) |
                   static_cast<uintptr_t>(params.out.head_stride);
  const bool in_pairs =
      params.v_dim % 2 == 0 &&
      any % static_cast<uintptr_t>(2 * kernels::dtype_bytes(params.out.dtype)) == 0;
  return in_pairs ? kvc::cuda::launch(reducing::reduce_splits_kernel<2>, shape, stream, parameters)
                  : kvc::cuda::launch(reducing::reduce_splits_kernel<1>, shape, stream, parameters);
}

}  // namespace kvc::cuda
