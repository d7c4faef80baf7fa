// The end of an item: the warps' results merged, divided by their sums, written out or kept as a
// partial result.
#pragma once

#include "kernels/cuda/attn/mma/layout.h"
#include "kernels/cuda/attn/mma/tile.cuh"

namespace kvc::cuda::attn_mma {

// Maxima and sums of a row over the warps that worked on it, in the order of the warps.
struct RowSums {
  float m, l;
};
template <typename C>
KVC_DEVICE RowSums merged_sums(const Shared<C>& shared, int row) {
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

// Four dims of a row of `out`.
KVC_DEVICE void store_dims(std::byte* row, kernels::DType dtype, bool aligned, int dim,
                           const float (&x)[4]) {
  if (aligned) {
    store_four(row, dtype, dim, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) store_element(row, dtype, dim + i, x[i]);
}

// Row `row` of the item: what its accumulators are multiplied by; writes the LSE, or m and l of the
// slot.
template <typename C>
KVC_DEVICE float finish_row(const AttnLaunch& launch, const WorkItem& work, const Shared<C>& shared,
                            int index) {
  const kernels::AttnParams& params = launch.params;
  const Row& row = shared.rows()[index];
  const RowSums sums = merged_sums(shared, index);
  const bool is_nan = sums.l != sums.l;
  if (work.slot >= 0) {
    float* to = launch.plan.partials + work.slot * slot_floats(C::kRows, params.v_dim) +
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
KVC_DEVICE void finish_item(const AttnLaunch& launch, const WorkItem& work, const Shared<C>& shared,
                            Running<C>& running) {
  const kernels::AttnParams& params = launch.params;
  const int thread = static_cast<int>(threadIdx.x), lane = lane_id(), warp = warp_id();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    running.l[i] += shuffle_xor(running.l[i], 1);
    running.l[i] += shuffle_xor(running.l[i], 2);
    if (lane % 4 == 0) {
      shared.maxima()[warp * kWarpRows + lane / 4 + 8 * i] = running.m[i];
      shared.sums()[warp * kWarpRows + lane / 4 + 8 * i] = running.l[i];
    }
  }
  sync_cta();  // also: nobody reads the ring any more, the accumulators take its place

  if (thread < work.num_rows) shared.factors()[thread] = finish_row(launch, work, shared, thread);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane / 4 + 8 * i;
    float factor = running.v_unit;
    if (C::kEightBit && launch.v_storage.quant == Quant::kPerTensor)
      factor = launch.v_storage.scale;
    if constexpr (C::kRows == kWarpRows) {
      const float m = merged_sums(shared, row).m;
      factor *= exp2_fast(running.m[i] - (m == -__builtin_inff() ? 0.0f : m));
    }
    float* out = shared.out() + (warp * kWarpRows + row) * C::kOutStride;
#pragma unroll
    for (int n = 0; n < C::kVDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        out[output_dim<C::kEightBit>(lane, n, e)] = running.o[n][2 * i + e] * factor;
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
    for (int part = 0; part < (C::kRows == kWarpRows ? kWarps : 1); ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] += shared.out()[(part * kWarpRows + r) * C::kOutStride + dim + i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] *= factor;
    if (work.slot >= 0) {
      float* to = launch.plan.partials + work.slot * slot_floats(C::kRows, params.v_dim) +
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
  sync_cta();  // the next item may overwrite all of it
}

}  // namespace kvc::cuda::attn_mma
