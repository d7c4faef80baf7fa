// Pages to other pages, or to pinned host memory.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

// Destinations are distinct, and no source is another pair's destination.
cudaError_t copy_pages(const PageCopyParams& params, cudaStream_t stream);

}  // namespace kvc::cuda
