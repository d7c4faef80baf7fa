// Host side of attn_wgmma: long appends and prefill on sm_90a.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"
#include "kernels/cuda/work.h"

namespace kvc::cuda {

// Host only; `why` (nullable) gets the reason, a literal.
bool attn_wgmma_fits(const AttnLaunch& launch, int arch, const char** why);
AttnGeometry attn_wgmma_geometry(int num_sms, int32_t k_dim, int32_t v_dim);
cudaError_t attn_wgmma(const AttnLaunch& launch, cudaStream_t stream);

}  // namespace kvc::cuda
