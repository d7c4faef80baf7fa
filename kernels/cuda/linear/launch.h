// Launch of the recurrence of linear attention.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace kvc::cuda {

// num_sequences_at (nullable): the number lies on the device and max_sequences is the most it can
// be. num_long: sequences of kLongSequence rows or more, whose work is started; a wrong number
// costs time and nothing else, with 0 all go token by token. States have up to linear_most_k_dim()
// rows; cudaErrorInvalidValue beyond.
cudaError_t linear(const kernels::LinearParams& params, int32_t max_sequences,
                   const int32_t* num_sequences_at, int32_t num_long, cudaStream_t stream);
int32_t linear_most_k_dim();

}  // namespace kvc::cuda
