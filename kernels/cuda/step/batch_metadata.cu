#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/cuda/step/batch_metadata.cuh"

namespace kvc::cuda {

cudaError_t batch_metadata(const BatchMetadataParams& params, int32_t max_sequences,
                           cudaStream_t stream) {
  if (max_sequences <= 0) return cudaSuccess;
  return launch(batch_metadata_kernels::batch_metadata_kernel,
                {.grid = {batch_metadata_config::kCtas, 1, 1},
                 .threads = batch_metadata_config::kThreads,
                 .shared_bytes = batch_metadata_config::kSharedBytes},
                stream, params);
}

}  // namespace kvc::cuda
