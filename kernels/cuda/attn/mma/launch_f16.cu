// The kernels for K and V of f16.
#include "kernels/cuda/attn/mma/kernel.cuh"

namespace kvc::cuda::attn_mma {

template cudaError_t launch_mma<Kv::kF16>(int rows, int dims, const AttnLaunch& launch,
                                          cudaStream_t stream);

}  // namespace kvc::cuda::attn_mma
