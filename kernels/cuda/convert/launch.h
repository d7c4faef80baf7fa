// Elements of one type into another.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

cudaError_t convert(const ConvertParams& params, cudaStream_t stream);

}  // namespace kvc::cuda
