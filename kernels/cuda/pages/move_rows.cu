#include "kernels/cuda/launches.h"
#include "kernels/cuda/pages/move_rows.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {

cudaError_t move_rows(const MoveParams& params, cudaStream_t stream) {
  const int64_t tasks = int64_t{params.num_lists} * params.num_heads;
  if (tasks == 0 || params.num_pairs == 0) return cudaSuccess;
  const bool is_rotated = params.rotation.rotary_dim != 0;
  if (is_rotated && params.dim > moving::kMaxDim) return cudaErrorInvalidValue;
  LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>((tasks + moving::kWarps - 1) / moving::kWarps);
  shape.threads = moving::kThreads;
  shape.shared_bytes = is_rotated ? static_cast<uint32_t>(4 * moving::kWarps * params.dim) : 0;
  return launch(moving::move_rows_kernel, shape, stream, params);
}

}  // namespace kvc::cuda
