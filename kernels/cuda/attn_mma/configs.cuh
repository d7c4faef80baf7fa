// What is compiled for one type of K and V, and what a device gets of it. Host only.
#pragma once

#include "kernels/cuda/attn_mma/item.cuh"

namespace kvc::cuda::attn_mma {

// use(Config()) of the entry `dims` of kDims, on a device whose CTAs can have `shared_bytes`. 8-bit
// rows of 192/128 use 256/256. 8-bit decode of 128 dims has a second form of two stages, for
// devices where three do not fit.
template <Kv Of, int Rows, typename Use>
auto with_config(int dims, int32_t shared_bytes, Use use) {
  constexpr bool kEightBit = Of != Kv::kBF16 && Of != Kv::kF16;
  switch (dims) {
    case 0: return use(Config<Rows, kDims[0].k, kDims[0].v, Of>());
    case 1: {
      using Wanted = Config<Rows, kDims[1].k, kDims[1].v, Of>;
      if constexpr (kEightBit && Rows == kWarpRows) {
        if (shared_bytes < Shared<Wanted>::kBytes)
          return use(Config<Rows, kDims[1].k, kDims[1].v, Of, 2>());
      }
      return use(Wanted());
    }
    case 2:
      if constexpr (!kEightBit) return use(Config<Rows, kDims[2].k, kDims[2].v, Of>());
      [[fallthrough]];
    default: return use(Config<Rows, kDims[3].k, kDims[3].v, Of>());
  }
}

}  // namespace kvc::cuda::attn_mma
