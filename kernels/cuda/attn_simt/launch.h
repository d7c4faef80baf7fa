// The universal attention kernel (AttnKernel::kSimt).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

// What it cannot do: rows of more than 1024 elements. `why` (nullable) gets the reason.
bool attn_simt_fits(const AttnLaunch& launch, const char** why);
// arch: 10 * compute capability.
AttnGeometry attn_simt_geometry(int32_t arch, int32_t num_sms, int32_t k_dim, int32_t v_dim);
cudaError_t attn_simt(const AttnLaunch& launch, cudaStream_t stream);

}  // namespace kvc::cuda
