// Shape of the append kernels, and what the host tells them of K and of V.
#pragma once

#include <cstdint>

#include "kernels/cuda/elements.h"

namespace kvc::cuda::appending {

// No shared memory, up to 64 registers: four CTAs on a multiprocessor
constexpr int32_t kThreads = 256;
constexpr int32_t kTasks = 512;  // of a CTA at least, so that small rows do not make a CTA each

// K or V.
struct Half {
  kernels::TokenRows from;  // base null: nothing to do
  kernels::PagedRows to;
  RowStorage storage;
  kernels::Rotation rotation;
  int32_t dim;
  int32_t pairs;  // chunks of 8 elements that turn with the one half a rotary dim away
  int32_t tasks;  // of a row and head: pairs, then the other chunks one by one
};

struct Launch {
  Half halves[2];
  const int64_t* slots;
  int64_t num_slots;
  int32_t page_size;
  int32_t num_heads;
  int64_t num_rows;
  const int32_t* num_rows_at;
  int32_t rows_per_cta;
};

// Whether rows can be read and written 8 elements at a time: 16-bit elements, stored as such or as
// 8 bits with one scale, all aligned.
KVC_HD bool fits_chunks(const Half& half) {
  const auto aligned = [](uint64_t bits, uint64_t bytes) { return (bits & (bytes - 1)) == 0; };
  const Element stored = element_of(half.storage, half.to.dtype);
  const bool plain = half.storage.quant == Quant::kNone && element_bits(stored) == 16;
  const bool scaled = half.storage.quant == Quant::kPerTensor && element_bits(stored) == 8;
  if (half.from.dtype == kernels::DType::kF32 || (!plain && !scaled) || half.dim % 8 != 0)
    return false;
  if (!aligned(reinterpret_cast<uint64_t>(half.from.base) |
                   static_cast<uint64_t>(half.from.token_stride) |
                   static_cast<uint64_t>(half.from.head_stride),
               16))
    return false;
  if (!aligned(reinterpret_cast<uint64_t>(half.to.base) |
                   static_cast<uint64_t>(half.to.page_stride) |
                   static_cast<uint64_t>(half.to.head_stride) |
                   static_cast<uint64_t>(half.to.token_stride),
               plain ? 16 : 8))
    return false;
  const kernels::Rotation& rotation = half.rotation;
  if (rotation.rotary_dim == 0) return true;
  const uint64_t angles =
      reinterpret_cast<uint64_t>(rotation.cos) | reinterpret_cast<uint64_t>(rotation.sin);
  const int32_t chunk = rotation.interleaved != 0 ? 8 : 16;  // whole chunks of pairs
  return rotation.begin % 8 == 0 && rotation.rotary_dim % chunk == 0 && aligned(angles, 16);
}

}  // namespace kvc::cuda::appending
