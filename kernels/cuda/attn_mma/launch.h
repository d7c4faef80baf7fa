// Attention by mma.sync: 16 packed rows (decode) or 64, sm_80 and later, any page size. See
// README.md.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

// Whether the kernel can do a launch on an architecture whose CTAs can have `shared_bytes`; `why`
// (nullable) gets the reason, a literal.
bool attn_mma16_fits(const AttnLaunch& launch, int arch, int32_t shared_bytes, const char** why);
bool attn_mma64_fits(const AttnLaunch& launch, int arch, int32_t shared_bytes, const char** why);

AttnGeometry attn_mma16_geometry(int num_sms, int32_t k_dim, int32_t v_dim);
AttnGeometry attn_mma64_geometry(int num_sms, int32_t k_dim, int32_t v_dim);

// The items of launch.plan, one CTA per entry of plan.cta_begin.
cudaError_t attn_mma16(const AttnLaunch& launch, cudaStream_t stream);
cudaError_t attn_mma64(const AttnLaunch& launch, cudaStream_t stream);

}  // namespace kvc::cuda
