// Shape of the gather kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/elements.h"

namespace kvc::cuda::gathering {

constexpr int32_t kThreads = 256;
// Chunks of a CTA at least, so that small rows do not make a CTA each
constexpr int32_t kTasks = 512;

struct Launch {
  kernels::GatherParams params;
  RowStorage storage;
  int64_t key_begin, key_end;
  int32_t keys_per_cta;
};

// Whether rows are copies of 16 bytes each: the same type on both sides, all aligned.
KVC_HD bool fits_chunks(const kernels::GatherParams& params, const RowStorage& storage) {
  const uint64_t any = reinterpret_cast<uint64_t>(params.rows.base) |
                       reinterpret_cast<uint64_t>(params.out.base) |
                       static_cast<uint64_t>(params.rows.page_stride | params.rows.head_stride |
                                             params.rows.token_stride | params.out.token_stride |
                                             params.out.head_stride);
  return storage.quant == Quant::kNone && params.rows.dtype == params.out.dtype && any % 16 == 0 &&
         params.dim * bytes_of(params.rows.dtype) % 16 == 0;
}

}  // namespace kvc::cuda::gathering
