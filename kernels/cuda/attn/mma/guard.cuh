// Where rows differ in what they see, Inf or NaN in V would reach rows that do not see it through a
// weight of 0. So V of such tiles is looked through in shared memory: what is not finite becomes 0,
// and the rows that do see it get NaN by their sums (all their dims, not only those).
#pragma once

#include "kernels/cuda/attn/mma/item.cuh"
#include "kernels/cuda/attn/mma/tile.cuh"

namespace kvc::cuda::attn_mma {

// The low and the high 16 bits that hold Inf or NaN.
template <kernels::DType Type>
KVC_DEVICE uint32_t not_finite(uint32_t pair) {
  constexpr uint32_t kExponent = Type == kernels::DType::kBF16 ? 0x7f80u : 0x7c00u;
  return ((pair & kExponent) == kExponent ? 0xffffu : 0u) |
         ((pair >> 16 & kExponent) == kExponent ? 0xffff0000u : 0u);
}
// The same of stored elements.
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

// warp. Its `part` of the tile (kLoadKeys keys). Bit k of the result: key k of the tile held Inf or
// NaN. With 64 rows all warps come here.
template <typename C>
KVC_DEVICE uint64_t guard_values(Item& item, std::byte* stage, int part) {
  std::byte* v = stage + C::kTileKeys * C::kKRowBytes + part * C::kLoadKeys * C::kVRowBytes;
  uint64_t bad_keys = 0;
#pragma unroll 1
  for (int at = lane_id() * 16; at < C::kLoadKeys * C::kVRowBytes; at += 32 * 16) {
    Words4* words = reinterpret_cast<Words4*>(v + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bad = not_finite_stored<C>(words->x[i]);
      if (bad != 0) {
        words->x[i] &= ~bad;
        bad_keys |= uint64_t{1} << (part * C::kLoadKeys + at / C::kVRowBytes);
      }
    }
  }
  if (any(bad_keys != 0)) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
      bad_keys |= shuffle_xor(bad_keys, distance);
  }
  if constexpr (C::kRows != kWarpRows) {
    if (lane_id() == 0) item.bad_keys[part] = bad_keys;
    sync_cta();
    bad_keys = item.bad_keys[0] | item.bad_keys[1] | item.bad_keys[2] | item.bad_keys[3];
  } else {
    sync_warp();
  }
  return bad_keys;
}

}  // namespace kvc::cuda::attn_mma
