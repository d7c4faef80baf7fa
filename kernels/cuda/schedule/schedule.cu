#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/cuda/schedule/bounds.h"
#include "kernels/cuda/schedule/kernel.cuh"

namespace kvc::cuda {

cudaError_t schedule(const ScheduleLaunch& launch, cudaStream_t stream) {
  LaunchShape shape;
  shape.threads = scheduling::kThreads;
  shape.shared_bytes = sizeof(scheduling::Shared);
  shape.may_overlap = true;
  const cudaError_t allowed = allow_shared(scheduling::schedule_kernel, shape.shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  return kvc::cuda::launch(scheduling::schedule_kernel, shape, stream,
                           scheduling::scheduler_of(launch), launch.num_sequences_at,
                           launch.limits.max_sequences);
}

}  // namespace kvc::cuda
