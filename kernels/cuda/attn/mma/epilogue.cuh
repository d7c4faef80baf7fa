// The epilogue of a work item: reduces the warps' results, divides by their sums, and writes the
// output or a split.
#pragma once

#include "kernels/cuda/attn/mma/layout.h"
#include "kernels/cuda/attn/mma/tile.cuh"

namespace kvc::cuda::attn_mma {

// Maximum and sum of a row over the warps that worked on it, in the order of the warps.
struct RowSums {
  float m, l;
};
template <typename C>
KVC_DEVICE RowSums reduce_warps(const Shared<C>& shared, int row) {
  if constexpr (C::kRows != kWarpRows) {
    return {shared.maxima()[row], shared.sums()[row]};
  } else {
    RowSums all = {-__builtin_inff(), 0.0f};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      all.m = fmaxf(all.m, shared.maxima()[warp * kWarpRows + row]);
    const float base = all.m == -__builtin_inff() ? 0.0f : all.m;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      all.l += shared.sums()[warp * kWarpRows + row] *
               exp2_fast(shared.maxima()[warp * kWarpRows + row] - base);
    return all;
  }
}

// Stores four dims of a row of `out`.
KVC_DEVICE void store_dims(std::byte* row, kernels::DType dtype, bool aligned, int dim,
                           const float (&x)[4]) {
  if (aligned) {
    store_four(row, dtype, dim, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) store_element(row, dtype, dim + i, x[i]);
}

// Returns the factor for the accumulators of row `index`. Writes the LSE, or m and l of the split.
template <typename C>
KVC_DEVICE float write_row_sums(const AttnLaunch& launch, const WorkItem& work,
                                const Shared<C>& shared, int index) {
  const kernels::AttnParams& params = launch.params;
  const Row& row = shared.rows()[index];
  const RowSums sums = reduce_warps(shared, index);
  const bool is_nan = sums.l != sums.l;
  if (work.split >= 0) {
    float* to = launch.schedule.partials + work.split * split_floats(C::kRows, params.v_dim) +
                index * int64_t{2 + params.v_dim};
    to[0] = is_nan ? sums.l : sums.m;
    to[1] = sums.l;
    return 1.0f;
  }
  if (params.lse != nullptr)
    params.lse[row.packed * params.lse_token_stride + row.head] =
        kLn2 * (sums.m + log2_fast(sums.l));
  if (sums.l == 0.0f) return 0.0f;
  const float sink =
      params.sinks != nullptr ? exp2_fast(params.sinks[row.head] * kLog2E - sums.m) : 0.0f;
  return 1.0f / (sums.l + sink);
}

template <typename C>
KVC_DEVICE void write_item(const AttnLaunch& launch, const WorkItem& work, const Shared<C>& shared,
                           OnlineSoftmax<C>& state) {
  const kernels::AttnParams& params = launch.params;
  const int thread = static_cast<int>(threadIdx.x), lane = lane_id(), warp = warp_id();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    state.l[i] += shuffle_xor(state.l[i], 1);
    state.l[i] += shuffle_xor(state.l[i], 2);
    if (lane % 4 == 0) {
      shared.maxima()[warp * kWarpRows + lane / 4 + 8 * i] = state.m[i];
      shared.sums()[warp * kWarpRows + lane / 4 + 8 * i] = state.l[i];
    }
  }
  sync_cta();  // From here on nobody reads the ring; the accumulators take its place.

  if (thread < work.num_rows)
    shared.factors()[thread] = write_row_sums(launch, work, shared, thread);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    float factor = state.v_unit;
    if (C::kEightBit && launch.v_storage.quant == Quant::kPerTensor)
      factor = launch.v_storage.scale;
    if constexpr (C::kRows == kWarpRows) {
      const float m = reduce_warps(shared, row).m;
      factor *= exp2_fast(state.m[i] - (m == -__builtin_inff() ? 0.0f : m));
    }
    float* out = shared.out() + (warp * kWarpRows + row) * C::kOutStride;
#pragma unroll
    for (int n = 0; n < C::kVDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        out[output_dim<C::kEightBit>(lane, n, e)] = state.o[n][2 * i + e] * factor;
    }
  }
  sync_cta();

  const int quads = params.v_dim / 4;
  const uint64_t out_bits = reinterpret_cast<uint64_t>(params.out.base) |
                            static_cast<uint64_t>(params.out.token_stride) |
                            static_cast<uint64_t>(params.out.head_stride);
  const bool aligned = (out_bits & (params.out.dtype == kernels::DType::kF32 ? 15u : 7u)) == 0;
#pragma unroll 1
  for (int index = thread; index < work.num_rows * quads; index += kThreads) {
    const int r = index / quads, dim = index % quads * 4;
    const float factor = shared.factors()[r];
    float x[4] = {};
#pragma unroll
    for (int slice = 0; slice < (C::kRows == kWarpRows ? kWarps : 1); ++slice) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] += shared.out()[(slice * kWarpRows + r) * C::kOutStride + dim + i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] *= factor;
    if (work.split >= 0) {
      float* to = launch.schedule.partials + work.split * split_floats(C::kRows, params.v_dim) +
                  r * int64_t{2 + params.v_dim} + 2 + dim;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = x[i];
    } else {
      const Row& row = shared.rows()[r];
      std::byte* to = params.out.base + row.packed * params.out.token_stride +
                      row.head * params.out.head_stride;
      store_dims(to, params.out.dtype, aligned, dim, x);
    }
  }
  sync_cta();  // The next work item may overwrite all of shared memory.
}

}  // namespace kvc::cuda::attn_mma
