#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/cuda/schedule/bounds.h"
#include "kernels/cuda/schedule/kernel.cuh"

namespace kvc::cuda {

cudaError_t plan(const PlanLaunch& launch, cudaStream_t stream) {
  LaunchShape shape;
  shape.threads = planning::kThreads;
  shape.shared_bytes = sizeof(planning::Shared);
  shape.may_overlap = true;
  const cudaError_t allowed = allow_shared(planning::plan_kernel, shape.shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  return kvc::cuda::launch(planning::plan_kernel, shape, stream, planning::work_of(launch),
                           launch.num_sequences_at, launch.limits.max_sequences);
}

}  // namespace kvc::cuda
