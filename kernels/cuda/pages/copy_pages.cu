#include <algorithm>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/pages/copy_pages.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {

cudaError_t copy_pages(const PageCopyParams& params, cudaStream_t stream) {
  const int64_t num_tasks = params.num_pairs * params.num_layers;
  if (num_tasks == 0) return cudaSuccess;
  LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>(std::min(num_tasks, copying::kMaxCtas));
  shape.threads = copying::kThreads;
  return launch(copying::copy_pages_kernel, shape, stream, params);
}

}  // namespace kvc::cuda
