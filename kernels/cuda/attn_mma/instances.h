// One function per type of K and V, so that each compiles in a file of its own. `dims`: place in
// kDims.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/work.h"

namespace kvc::cuda::attn_mma {

cudaError_t launch_bf16(int rows, int dims, const AttnLaunch& launch, cudaStream_t stream);
cudaError_t launch_f16(int rows, int dims, const AttnLaunch& launch, cudaStream_t stream);
cudaError_t launch_e4m3(int rows, int dims, const AttnLaunch& launch, cudaStream_t stream);
cudaError_t launch_e5m2(int rows, int dims, const AttnLaunch& launch, cudaStream_t stream);
cudaError_t launch_int8(int rows, int dims, const AttnLaunch& launch, cudaStream_t stream);

}  // namespace kvc::cuda::attn_mma
