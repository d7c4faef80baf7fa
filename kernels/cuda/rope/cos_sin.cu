#include "kernels/cuda/launches.h"
#include "kernels/cuda/rope/cos_sin.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {

cudaError_t cos_sin(const CosSinParams& params, cudaStream_t stream) {
  const int64_t pairs = params.num_rows * params.num_pairs;
  if (pairs <= 0) return cudaSuccess;
  const int64_t ctas = (pairs + cos_sin_config::kThreads - 1) / cos_sin_config::kThreads;
  const uint32_t num_ctas =
      ctas < cos_sin_config::kMaxCtas ? static_cast<uint32_t>(ctas) : cos_sin_config::kMaxCtas;
  return launch(cos_sin_kernel, {.grid = {num_ctas, 1, 1}, .threads = cos_sin_config::kThreads},
                stream, params);
}

}  // namespace kvc::cuda
