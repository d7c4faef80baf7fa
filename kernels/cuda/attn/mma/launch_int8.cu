// The kernels for K and V of int8.
#include "kernels/cuda/attn/mma/kernel.cuh"

namespace kvc::cuda::attn_mma {

template cudaError_t launch_mma<Kv::kInt8>(int rows, int dims, const AttnLaunch& launch,
                                           cudaStream_t stream);

}  // namespace kvc::cuda::attn_mma
