#include "kernels/cuda/launches.h"
#include "kernels/cuda/rope/cos_sin.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {

cudaError_t angles(const AngleParams& params, cudaStream_t stream) {
  const int64_t pairs = params.num_rows * params.num_pairs;
  if (pairs <= 0) return cudaSuccess;
  const int64_t ctas = (pairs + angle_config::kThreads - 1) / angle_config::kThreads;
  const uint32_t num_ctas =
      ctas < angle_config::kMostCtas ? static_cast<uint32_t>(ctas) : angle_config::kMostCtas;
  return launch(angles_kernel, {.grid = {num_ctas, 1, 1}, .threads = angle_config::kThreads},
                stream, params);
}

}  // namespace kvc::cuda
