// Loads the queries of an item into shared memory: packed rows, rotated, as the K-major A operand
// of wgmma.
#pragma once

#include "kernels/cuda/attn/visible_range.h"
#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/ptx/wgmma_layout.h"

namespace kvc::cuda::wgmma {

// Loads eight elements that are 16-byte aligned.
template <kernels::DType T>
KVC_DEVICE void load_eight(const std::byte* row, int32_t index, float (&out)[8]) {
  const Words4 words = load_16(row + 2 * index);
#pragma unroll
  for (int i = 0; i < 4; ++i) unpack<T>(words.x[i], out[2 * i], out[2 * i + 1]);
}

// The same, rotated by row `cos_sin_row` of the RoPE table. The rotary dims and their half are
// multiples of eight elements.
template <kernels::DType T>
KVC_DEVICE void load_eight_rotated(const std::byte* row, int32_t index,
                                   const kernels::Rotation& rotation, int64_t cos_sin_row,
                                   float (&out)[8]) {
  load_eight<T>(row, index, out);
  const int32_t inside = index - rotation.begin, half = rotation.rotary_dim / 2;
  if (inside < 0 || inside >= rotation.rotary_dim) return;
  if (rotation.interleaved != 0) {
    const float* cos = rotation.cos + cos_sin_row * half + inside / 2;
    const float* sin = rotation.sin + cos_sin_row * half + inside / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = out[2 * i], y = out[2 * i + 1], c = cos[i], s = sin[i];
      out[2 * i] = rotated_element(x, y, c, s, false);
      out[2 * i + 1] = rotated_element(y, x, c, s, true);
    }
    return;
  }
  const bool second = inside >= half;
  const int32_t pair = second ? inside - half : inside;
  float other[8];
  load_eight<T>(row, second ? index - half : index + half, other);
  const float* cos = rotation.cos + cos_sin_row * half + pair;
  const float* sin = rotation.sin + cos_sin_row * half + pair;
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = rotated_element(out[i], other[i], cos[i], sin[i], second);
}

KVC_HD bool aligned_16(const kernels::TokenRows& rows) {
  return ((reinterpret_cast<uintptr_t>(rows.base) | static_cast<uint64_t>(rows.token_stride) |
           static_cast<uint64_t>(rows.head_stride)) &
          15u) == 0;
}

// Where a packed row of queries lies.
struct QueryRow {
  const std::byte* from;
  int64_t packed;  // Its token among those of the batch.
};
KVC_DEVICE QueryRow query_row(const kernels::AttnParams& params,
                              const kernels::AttnSequence& sequence, int32_t kv_head, int32_t row) {
  const int32_t group_size = params.num_q_heads / params.num_kv_heads;
  const int64_t packed = packed_row_of(sequence, row / group_size);
  const int64_t head = int64_t{kv_head} * group_size + row % group_size;
  return {params.q.base + packed * params.q.token_stride + head * params.q.head_stride, packed};
}

// Eight elements of a query, as they are stored in shared memory.
struct QueryVector {
  Words4 words;
  std::byte* to;
};

// Vector `vector` of a tile of Rows rows, rotated. See load_queries.
template <kernels::DType T, int Dim, int Rows>
KVC_DEVICE QueryVector load_vector(const kernels::AttnParams& params,
                                   const kernels::AttnSequence& sequence,
                                   const kernels::Rotation& rotation, int32_t kv_head,
                                   int32_t first_row, int32_t row_end, std::byte* shared,
                                   int32_t vector) {
  const int32_t row = vector / (Dim / 8), index = vector % (Dim / 8) * 8;
  QueryVector out = {Words4{}, shared + block_offset(Rows, row, index)};
  if (first_row + row >= row_end || index >= params.k_dim) return out;
  const auto [from, packed] = query_row(params, sequence, kv_head, first_row + row);
  if (rotation.rotary_dim == 0) {
    out.words = load_16(from + 2 * index);
    return out;
  }
  float values[8];
  load_eight_rotated<T>(from, index, rotation, packed, values);
#pragma unroll
  for (int j = 0; j < 4; ++j) out.words.x[j] = pack<T>(values[2 * j], values[2 * j + 1]);
  return out;
}

// Loads `Rows` packed rows of the sequence's KV head from `first_row` on; rows from `row_end` on
// become zeros. `thread` is the index of this thread among `Threads`. k_dim is a multiple of 8.
// Element addresses in `shared` are those of block_offset(Rows, ...).
template <kernels::DType T, int Dim, int Rows, int Threads>
KVC_DEVICE void load_queries(const kernels::AttnParams& params,
                             const kernels::AttnSequence& sequence,
                             const kernels::Rotation& rotation, int32_t kv_head, int32_t first_row,
                             int32_t row_end, std::byte* shared, int thread) {
  constexpr int32_t kVectors = Rows * (Dim / 8);
  // A thread's loads in flight: one after the other, each would wait for the memory.
  constexpr int kInFlight = 3;
  // Eight elements at a time where memory and RoPE allow it, as in known models; otherwise one
  // element at a time.
  const bool whole = params.q.dtype == T && aligned_16(params.q) && rotation.begin % 8 == 0 &&
                     rotation.rotary_dim % 16 == 0;
  if (whole) {
#pragma unroll 1
    for (int32_t first = thread; first < kVectors; first += Threads * kInFlight) {
      QueryVector vectors[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (first + i * Threads < kVectors)
          vectors[i] = load_vector<T, Dim, Rows>(params, sequence, rotation, kv_head, first_row,
                                                 row_end, shared, first + i * Threads);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (first + i * Threads < kVectors)
          *reinterpret_cast<Words4*>(vectors[i].to) = vectors[i].words;
      }
    }
    return;
  }
#pragma unroll 1
  for (int32_t i = thread; i < kVectors; i += Threads) {
    const int32_t row = i / (Dim / 8), index = i % (Dim / 8) * 8;
    std::byte* to = shared + block_offset(Rows, row, index);
    if (first_row + row >= row_end || index >= params.k_dim) {
      *reinterpret_cast<Words4*>(to) = Words4{};
      continue;
    }
    const QueryRow query = query_row(params, sequence, kv_head, first_row + row);
#pragma unroll 1
    for (int32_t j = 0; j < 8; ++j) {
      const float value = rotated(rotation, query.packed, index + j, [&](int32_t at) {
        return load_element(query.from, params.q.dtype, at);
      });
      store_element(to, T, j, value);
    }
  }
}

}  // namespace kvc::cuda::wgmma
