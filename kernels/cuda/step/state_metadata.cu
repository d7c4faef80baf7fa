#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/cuda/step/state_metadata.cuh"

namespace kvc::cuda {

cudaError_t state_metadata(const StateMetadataParams& params, int32_t max_sequences,
                           cudaStream_t stream) {
  if (max_sequences <= 0) return cudaSuccess;
  const uint32_t num_ctas =
      (static_cast<uint32_t>(max_sequences) + state_metadata_config::kThreads - 1) /
      state_metadata_config::kThreads;
  return launch(state_metadata_kernel,
                {.grid = {num_ctas, 1, 1}, .threads = state_metadata_config::kThreads}, stream,
                params);
}

}  // namespace kvc::cuda
