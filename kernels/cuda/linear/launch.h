// Launch of the recurrence of linear attention.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace kvc::cuda {

// num_sequences_at (nullable): the number lies on the device and max_sequences is the most it can be. max_rows: most rows of a sequence. States have up to
// linear_most_k_dim() rows; cudaErrorInvalidValue beyond.
cudaError_t linear(const kernels::LinearParams& params, int32_t max_sequences,
                   const int32_t* num_sequences_at, int64_t max_rows, cudaStream_t stream);
int32_t linear_most_k_dim();

}  // namespace kvc::cuda
