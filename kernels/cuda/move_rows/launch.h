// Rows moved inside the pool: accepted paths of token trees, shifted positions.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

cudaError_t move_rows(const MoveParams& params, cudaStream_t stream);

}  // namespace kvc::cuda
