// Guards against Inf and NaN in V. Where the rows of a tile have different masks, they would reach
// rows that do not see their key through a weight of 0. So V of such tiles is checked in shared
// memory: values that are not finite become 0, and rows that do see the key get NaN through their
// sums (in all dims).
#pragma once

#include "kernels/cuda/attn/mma/item.cuh"
#include "kernels/cuda/attn/mma/tile.cuh"

namespace kvc::cuda::attn_mma {

// A mask of the 16-bit halves that hold Inf or NaN.
template <kernels::DType Type>
KVC_DEVICE uint32_t not_finite(uint32_t pair) {
  constexpr uint32_t kExponent = Type == kernels::DType::kBF16 ? 0x7f80u : 0x7c00u;
  return ((pair & kExponent) == kExponent ? 0xffffu : 0u) |
         ((pair >> 16 & kExponent) == kExponent ? 0xffff0000u : 0u);
}
// The same mask for stored elements.
template <typename C>
KVC_DEVICE uint32_t not_finite_stored(uint32_t word) {
  if constexpr (!C::kEightBit) {
    return not_finite<C::kMma>(word);
  } else {
    uint32_t first, second;
    widen_8<C::kStored8>(word, first, second);
    return permute_bytes(not_finite<C::kMma>(first), not_finite<C::kMma>(second), 0x6420);
  }
}

// Warp. Clears the warp's slice of the tile (kLoadKeys keys). Bit k of the result: key k of the
// tile held Inf or NaN. With 64 rows all warps call it.
template <typename C>
KVC_DEVICE uint64_t clear_nonfinite(Item& item, std::byte* stage, int slice) {
  std::byte* v = stage + C::kTileKeys * C::kKRowBytes + slice * C::kLoadKeys * C::kVRowBytes;
  uint64_t nonfinite_keys = 0;
#pragma unroll 1
  for (int at = lane_id() * 16; at < C::kLoadKeys * C::kVRowBytes; at += 32 * 16) {
    Words4* words = reinterpret_cast<Words4*>(v + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bad = not_finite_stored<C>(words->x[i]);
      if (bad != 0) {
        words->x[i] &= ~bad;
        nonfinite_keys |= uint64_t{1} << (slice * C::kLoadKeys + at / C::kVRowBytes);
      }
    }
  }
  if (any(nonfinite_keys != 0)) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      nonfinite_keys |= shuffle_xor(nonfinite_keys, distance);
  }
  if constexpr (C::kRows != kWarpRows) {
    if (lane_id() == 0) item.nonfinite_keys[slice] = nonfinite_keys;
    sync_cta();
    nonfinite_keys = item.nonfinite_keys[0] | item.nonfinite_keys[1] | item.nonfinite_keys[2] |
                     item.nonfinite_keys[3];
  } else {
    sync_warp();
  }
  return nonfinite_keys;
}

}  // namespace kvc::cuda::attn_mma
