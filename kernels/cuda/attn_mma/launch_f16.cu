#include "kernels/cuda/attn_mma/instances.cuh"

namespace kvc::cuda::attn_mma {

cudaError_t launch_f16(int rows, int dims, const AttnLaunch& launch, cudaStream_t stream) {
  return launch_type<Kv::kF16>(rows, dims, launch, stream);
}

}  // namespace kvc::cuda::attn_mma
