#include "kernels/cuda/attn_mma/instances.cuh"

namespace kvc::cuda::attn_mma {

cudaError_t launch_e4m3(int rows, int dims, const AttnLaunch& launch, cudaStream_t stream) {
  return launch_type<Kv::kE4M3>(rows, dims, launch, stream);
}

}  // namespace kvc::cuda::attn_mma
