#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/cuda/step/batch_metadata.cuh"

namespace kvc::cuda {

cudaError_t view(const ViewParams& params, int32_t max_sequences, cudaStream_t stream) {
  if (max_sequences <= 0) return cudaSuccess;
  return launch(view_kernels::view_kernel,
                {.grid = {view_config::kCtas, 1, 1},
                 .threads = view_config::kThreads,
                 .shared_bytes = view_config::kSharedBytes},
                stream, params);
}

}  // namespace kvc::cuda
