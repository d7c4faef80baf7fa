// Launch of the planner.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

// BackendTable::plan_bytes is kvc::cuda::plan_bytes of planner/bounds.h.
cudaError_t plan(const PlanLaunch& launch, cudaStream_t stream);

}  // namespace kvc::cuda
