// Launch of the short convolution.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/linear_params.h"

namespace kvc::cuda {

// num_sequences_at (nullable): the number lies on the device and max_sequences is the most it can
// be. Sequences lie in the order of their rows, all of which are below num_rows.
cudaError_t conv(const kernels::ConvParams& params, int32_t max_sequences,
                 const int32_t* num_sequences_at, int64_t num_rows, cudaStream_t stream);

}  // namespace kvc::cuda
