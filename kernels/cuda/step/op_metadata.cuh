// The caller's tensors on the device, checked and converted into what the kernels of the cache
// read. See op.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/table.h"

namespace kvc::cuda::op_metadata_config {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kWarps = kThreads / 32;

}  // namespace kvc::cuda::op_metadata_config

namespace kvc::cuda::op_metadata {

constexpr int32_t kThreads = op_metadata_config::kThreads;

struct Range {
  int64_t begin;
  int64_t count;
};

// Warp. Whether `indptr` ascends from 0 or more to at most `limit`.
KVC_DEVICE bool ascends(const int32_t* indptr, int32_t num_sequences, int64_t limit) {
  bool wrong = false;
  for (int32_t i = lane_id(); i < num_sequences; i += 32)
    wrong = wrong || indptr[i] < 0 || indptr[i] > indptr[i + 1] || indptr[i + 1] > limit;
  return !any(wrong);
}

// Warp. The rows of a sequence.
KVC_DEVICE Range rows_of(const int32_t* indptr, int32_t num_sequences, int64_t num_rows,
                         int32_t s) {
  if (indptr == nullptr) return {s, 1};
  if (!ascends(indptr, num_sequences, num_rows)) return {0, 0};
  return {indptr[s], int64_t{indptr[s + 1]} - indptr[s]};
}

// The keys of one sequence. length < 0: they are out of range.
struct Keys {
  const int32_t* pages;
  int64_t length;
};

KVC_DEVICE Keys ragged_keys(const OpSequencesParams& params, int32_t s) {
  const int64_t begin = params.key_indptr[s], end = params.key_indptr[s + 1];
  if (begin < 0 || begin > end || end > params.num_keys) return {nullptr, -1};
  return {params.key_indptr + s, end - begin};
}

KVC_DEVICE Keys paged_keys(const OpSequencesParams& params, int32_t s) {
  const int64_t length = params.seq_lens[s];
  const int64_t num_pages = (length + params.page_size - 1) / params.page_size;
  if (length < 0) return {nullptr, -1};
  if (params.page_indptr == nullptr) {
    if (num_pages > params.table_columns) return {nullptr, -1};
    return {params.block_table + s * params.table_stride, length};
  }
  const int64_t begin = params.page_indptr[s], end = params.page_indptr[s + 1];
  if (begin < 0 || end > params.num_indices || num_pages > end - begin) return {nullptr, -1};
  return {params.page_indices + begin, length};
}

// Warp. Whether the page ids of keys [first_key, length) lie in the pool.
KVC_DEVICE bool has_pages(const OpSequencesParams& params, const Keys& keys, int64_t first_key) {
  const int64_t end = (keys.length + params.page_size - 1) / params.page_size;
  bool wrong = false;
  for (int64_t page = first_key / params.page_size + lane_id(); page < end; page += 32)
    wrong = wrong || keys.pages[page] < 0 || keys.pages[page] >= params.num_pages;
  return !any(wrong);
}

__global__ void __launch_bounds__(op_metadata_config::kThreads)
    sequences_kernel(const __grid_constant__ OpSequencesParams params) {
  const auto s = static_cast<int32_t>(blockIdx.x * op_metadata_config::kWarps) + warp_id();
  if (s == 0 && lane_id() == 0) *params.count = params.num_sequences;
  if (s >= params.num_sequences) return;
  const Range rows = rows_of(params.row_indptr, params.num_sequences, params.num_rows, s);
  const bool is_ragged = params.key_indptr != nullptr;
  const Keys keys = is_ragged ? ragged_keys(params, s) : paged_keys(params, s);
  const bool full = params.full != 0;
  // End of the visible range of row 0.
  const int64_t first_end = full ? keys.length : keys.length - rows.count + 1;
  bool has_keys =
      keys.length >= 0 && keys.length <= params.max_keys && (full || rows.count <= keys.length);
  if (has_keys && !is_ragged && rows.count > 0) {
    const int64_t begin =
        params.window == 0 || first_end <= params.window ? 0 : first_end - params.window;
    has_keys = has_pages(params, keys, begin);
  }
  const bool hides = has_keys && params.window != 0 && params.window < keys.length;
  for (int64_t row = lane_id(); row < rows.count; row += 32) {
    if (!has_keys) params.key_ends[rows.begin + row] = 0;
    if (!hides) continue;
    const int64_t begin = first_end + row - params.window;
    params.key_begins[rows.begin + row] = begin < 0 ? 0 : static_cast<int32_t>(begin);
  }
  if (lane_id() != 0) return;
  kernels::AttnSequence sequence{};
  sequence.row_begin = rows.begin;
  sequence.num_rows = rows.count;
  if (has_keys) {
    sequence.pages = keys.pages;
    sequence.position = keys.length - rows.count;
    sequence.first_key_end = first_end;
    if (hides) sequence.key_begins = params.key_begins + rows.begin;
  } else {
    sequence.key_ends = params.key_ends + rows.begin;
  }
  params.sequences[s] = sequence;
}

__global__ void __launch_bounds__(op_metadata_config::kThreads)
    states_kernel(const __grid_constant__ OpStatesParams params) {
  const auto s = static_cast<int32_t>(blockIdx.x * op_metadata_config::kWarps) + warp_id();
  if (s >= params.num_sequences) return;
  const Range rows = rows_of(params.row_indptr, params.num_sequences, params.num_rows, s);
  if (lane_id() != 0) return;
  std::byte* const state = params.states + s * params.stride;
  static_cast<kernels::LinearSequence*>(params.sequences)[s] = {rows.begin, rows.count, state,
                                                                state};
}

KVC_HD int64_t num_runs(const OpPairsParams::Half& half) {
  return half.base == nullptr ? 0 : half.outer_count * half.inner_count;
}
KVC_HD int64_t num_runs(const OpPairsParams& params) {
  return num_runs(params.halves[0]) + num_runs(params.halves[1]);
}

__global__ void __launch_bounds__(op_metadata_config::kThreads)
    pairs_kernel(const __grid_constant__ OpPairsParams params) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index < params.num_pairs) {
    const int64_t from = params.pairs[index * params.stride],
                  to = params.pairs[index * params.stride + 1];
    const bool inside = from >= 0 && from < params.num_pages && to >= 0 && to < params.num_pages;
    params.from[index] = inside ? static_cast<int32_t>(from) : -1;
    params.to[index] = inside ? static_cast<int32_t>(to) : -1;
  }
  const int64_t first_runs = num_runs(params.halves[0]);
  if (index >= first_runs + num_runs(params.halves[1])) return;
  const OpPairsParams::Half& half = params.halves[index < first_runs ? 0 : 1];
  const int64_t run = index < first_runs ? index : index - first_runs;
  const int64_t outer = run / half.inner_count, inner = run - outer * half.inner_count;
  params.layers[index] = {half.base + outer * half.outer_stride + inner * half.inner_stride,
                          half.page_stride, half.bytes, 0, 0};
}

__global__ void __launch_bounds__(op_metadata_config::kThreads)
    slots_kernel(const __grid_constant__ OpSlotsParams params) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index < params.num_slots) params.slots[index] = index;
}

__global__ void __launch_bounds__(op_metadata_config::kThreads)
    constants_kernel(const __grid_constant__ OpConstantsParams params) {
  const auto index = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (index < params.count) params.to[index] = params.values[index];
}

}  // namespace kvc::cuda::op_metadata
