// The attention kernels behind BackendTable: one row each.
#pragma once

#include <cstdint>

#include "kernels/cuda/table.h"

namespace kvc::cuda::runtime {

bool attention_fits(int32_t device, AttnKernel kernel, const AttnLaunch& launch, const char** why);
AttnGeometry attention_geometry(int32_t device, AttnKernel kernel, int32_t k_dim, int32_t v_dim);
Result attention(int32_t device, AttnKernel kernel, const AttnLaunch& launch, Stream stream,
                 Failure* failure);

}  // namespace kvc::cuda::runtime
