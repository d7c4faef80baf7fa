// Two attention results into one.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/params.h"

namespace kvc::cuda {

// num_rows_at (nullable): the count lies on the device and num_rows is the most it can be.
cudaError_t merge(const kernels::MergeParams& params, int64_t num_rows, const int32_t* num_rows_at,
                  cudaStream_t stream);

}  // namespace kvc::cuda
