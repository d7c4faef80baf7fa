#include "kernels/cuda/launches.h"
#include "kernels/cuda/reduce/merge_states.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {

cudaError_t merge_states(const kernels::MergeParams& params, int64_t num_rows,
                         const int32_t* num_rows_at, cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  const auto fits = [&](const kernels::TokenRows& rows) {
    return aligned_for_four(element_of(rows.dtype), reinterpret_cast<uint64_t>(rows.base),
                            rows.token_stride, rows.head_stride, 0);
  };
  const bool by_four = params.dim % 4 == 0 && fits(params.out) && fits(params.other_out);
  constexpr int64_t kWarps = merging::kThreads / 32;
  LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>((num_rows * params.num_heads + kWarps - 1) / kWarps);
  shape.threads = merging::kThreads;
  const merging::Launch work{params, num_rows, num_rows_at};
  return launch(by_four ? merging::merge_states_kernel<true> : merging::merge_states_kernel<false>,
                shape, stream, work);
}

}  // namespace kvc::cuda
