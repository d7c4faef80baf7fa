// Rows of a sequence out of the pool.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/work.h"

namespace kvc::cuda {

cudaError_t gather(const kernels::GatherParams& params, const RowStorage& storage,
                   int64_t key_begin, int64_t key_end, cudaStream_t stream);

}  // namespace kvc::cuda
