#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/cuda/step/state_metadata.cuh"

namespace kvc::cuda {

cudaError_t state_view(const StateViewParams& params, int32_t max_sequences, cudaStream_t stream) {
  if (max_sequences <= 0) return cudaSuccess;
  const uint32_t num_ctas =
      (static_cast<uint32_t>(max_sequences) + state_view_config::kThreads - 1) /
      state_view_config::kThreads;
  return launch(state_view_kernel,
                {.grid = {num_ctas, 1, 1}, .threads = state_view_config::kThreads}, stream, params);
}

}  // namespace kvc::cuda
