// Launch of the state view kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

cudaError_t state_view(const StateViewParams& params, int32_t max_sequences, cudaStream_t stream);

}  // namespace kvc::cuda
