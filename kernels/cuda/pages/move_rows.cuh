// Moves rows from slot to slot inside the pool, with their scales. K is rotated where its positions
// change. See MoveParams. The pairs of a list run in order, so a warp processes all of them for one
// head.
#pragma once

#include <cstdint>

#include "kernels/cuda/pages/quantise.cuh"
#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/table.h"

namespace kvc::cuda::moving {

constexpr int32_t kThreads = 128;  // A warp has the rows of one list and head.
constexpr int32_t kWarps = kThreads / 32;
// Max dims of rotated rows: they pass through shared memory as float32.
constexpr int32_t kMaxDim = 1024;

// Warp. Copies a row of any alignment; `to` and `from` are equal or do not overlap.
KVC_DEVICE void copy_row(std::byte* to, const std::byte* from, int32_t bytes) {
  const uint64_t any = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) |
                       static_cast<uint64_t>(bytes);
  if (any % 16 == 0) {
    for (int32_t at = 16 * lane_id(); at < bytes; at += 512) store_16(to + at, load_16(from + at));
  } else if (any % 2 == 0) {
    for (int32_t at = 2 * lane_id(); at < bytes; at += 64)
      store_word<uint16_t>(to + at, load_word<uint16_t>(from + at));
  } else {
    for (int32_t at = lane_id(); at < bytes; at += 32) to[at] = from[at];
  }
}

KVC_DEVICE int32_t bytes_of_scales(const MoveParams& params) {
  return params.storage.quant == Quant::kPerTokenHead ? 4
         : params.storage.quant == Quant::kBlock16    ? params.dim / 16
                                                      : 0;
}

KVC_DEVICE RowAddress address_of_slot(const MoveParams& params, int64_t slot, int32_t head) {
  const PageOffset at = page_offset(slot, params.page_size);
  return address_of(params.rows, params.storage, at.page, head, at.offset);
}

// Warp. Reads a row as float32 into `row`, rotates it, and stores it like append does.
KVC_DEVICE void rotate_row(const MoveParams& params, const RowAddress& to, const RowAddress& from,
                           float* row) {
  const Element element = element_of(params.storage, params.rows.dtype);
  const Quant quant = params.storage.quant;
  const float factor = quant == Quant::kPerTensor      ? params.storage.scale
                       : quant == Quant::kPerTokenHead ? load_word<float>(from.scales)
                                                       : 1.0f;
#pragma unroll 1
  for (int32_t d = lane_id(); d < params.dim; d += 32) {
    const float value = load_element(from.row, element, d);
    row[d] = value * (quant == Quant::kBlock16 ? block_scale(from.scales, d) : factor);
  }
  sync_warp();
  store_row(to, params.storage, params.rows.dtype, params.dim, [&](int32_t d) {
    return rotated(params.rotation, 0, d, [&](int32_t j) { return row[j]; });
  });
}

__global__ void __launch_bounds__(kThreads, 6)
    move_rows_kernel(const __grid_constant__ MoveParams params) {
  wait_for_previous_kernel();
  const int64_t task = int64_t{blockIdx.x} * kWarps + warp_id();
  const int64_t list = task / params.num_heads;
  if (list >= params.num_lists) return;
  const auto head = static_cast<int32_t>(task - list * params.num_heads);
  const bool is_rotated = params.rotation.rotary_dim != 0;
  const auto row_size =
      static_cast<int32_t>(row_bytes(element_of(params.storage, params.rows.dtype), params.dim));
  const int32_t scale_size = bytes_of_scales(params);
  float* own = reinterpret_cast<float*>(cta_shared()) + warp_id() * params.dim;
  const int64_t end = params.first[list + 1];
#pragma unroll 1
  for (int64_t pair = params.first[list]; pair < end; ++pair) {
    const RowAddress from = address_of_slot(params, params.from[pair], head);
    const RowAddress to = address_of_slot(params, params.to[pair], head);
    if (is_rotated) {
      rotate_row(params, to, from, own);
    } else if (from.row != to.row) {
      copy_row(to.row, from.row, row_size);
      if (scale_size > 0) copy_row(to.scales, from.scales, scale_size);
    }
    sync_warp();  // The next pair may read what other lanes wrote.
  }
}

}  // namespace kvc::cuda::moving
