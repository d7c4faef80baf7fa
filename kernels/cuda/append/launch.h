// New rows into the pool.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/work.h"

namespace kvc::cuda {

cudaError_t append(const AppendLaunch& launch, cudaStream_t stream);

}  // namespace kvc::cuda
