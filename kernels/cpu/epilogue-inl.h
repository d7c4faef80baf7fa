// The last step of every attention kernel: (m, l, accumulators) of one query row -> out and lse, or
// a partial result.
//
//   store_row(params, item, row, q_head, m, l, acc)
//     row: token row inside the sequence; q_head: absolute query head; m: running max (log2 units);
//     l: sum of 2^(s - m); acc: v_dim floats, un-normalised. A row that saw nothing: m = -inf, l =
//   0, acc = 0.
//   Accumulators of -0 leave as +0: keys that a row does not see may turn one into the other, and
//   must not show.
//   Writes out/lse when item.partial < 0, else the row's slot of the item's partial result.
//
// Included by the isa_<name>.cc files after a vec_<isa>.h.
#pragma once

#include "kernels/cpu/visibility-inl.h"

namespace kvc::kernels::cpu {
namespace {

struct Normaliser {
  float scale;  // Multiplies the accumulators.
  float lse;    // Natural logarithm, without the sink.
};

inline Normaliser normaliser(const AttnParams& params, int64_t q_head, float m, float l) {
  if (m == kMinusInfinity) return {0.0f, kMinusInfinity};
  const float lse = 0.6931471805599453f * (m + __builtin_log2f(l));
  if (params.sinks == nullptr) return {1.0f / l, lse};
  // Relative to the larger of m and the sink: neither power overflows.
  const float sink = params.sinks[q_head];
  const float top = sink > m ? sink : m;
  const float weight = exp2_scalar(m - top);
  return {weight / (l * weight + exp2_scalar(sink - top)), lse};
}

inline std::byte* out_row(const AttnParams& params, int64_t packed_row, int64_t q_head) {
  return params.out.base + packed_row * params.out.token_stride + q_head * params.out.head_stride;
}

inline void store_lse(const AttnParams& params, int64_t packed_row, int64_t q_head, float lse) {
  if (params.lse != nullptr) params.lse[packed_row * params.lse_token_stride + q_head] = lse;
}

inline float* partial_row(const AttnParams& params, const AttnItem& item, int64_t row,
                          int64_t q_head) {
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  const int64_t heads = (item.head_end - item.head_begin) * group;
  const int64_t index = (row - item.row_begin) * heads + (q_head - item.head_begin * group);
  return params.partials + item.partial + index * (2 + params.v_dim);
}

inline void store_row(const AttnParams& params, const AttnItem& item, int64_t row, int64_t q_head,
                      float m, float l, const float* acc) {
  const int dim = params.v_dim;
  if (item.partial >= 0) {
    float* partial = partial_row(params, item, row, q_head);
    partial[0] = m;
    partial[1] = l;
    for (int d = 0; d < dim; d += kLanes) {
      if (dim - d >= kLanes) {
        store(partial + 2 + d, add(load(acc + d), zero()));
      } else {
        store_tail(partial + 2 + d, add(load_tail(acc + d, dim - d), zero()), dim - d);
      }
    }
    return;
  }
  const int64_t packed_row = packed_row_of(params.sequences[item.sequence], row);
  const Normaliser normal = normaliser(params, q_head, m, l);
  std::byte* out = out_row(params, packed_row, q_head);
  const int64_t element = dtype_bytes(params.out.dtype);
  for (int d = 0; d < dim; d += kLanes) {
    const int n = dim - d < kLanes ? dim - d : kLanes;
    const Vec sum = n == kLanes ? load(acc + d) : load_tail(acc + d, n);
    store_any(out + d * element, params.out.dtype, mul(add(sum, zero()), set1(normal.scale)), n);
  }
  store_lse(params, packed_row, q_head, normal.lse);
}

// Merges the splits of one output in index order; see AttnMergeGroup.
inline void attn_merge_splits(const AttnParams& params, const AttnMergeGroup& group) {
  constexpr int kBlock = 8;  // Vectors of accumulators held at once.
  const int64_t heads_per_kv = params.num_q_heads / params.num_kv_heads;
  const int64_t heads = (group.head_end - group.head_begin) * heads_per_kv;
  const int64_t row_floats = 2 + params.v_dim;
  const int64_t element = dtype_bytes(params.out.dtype);
  const int64_t* offsets = params.split_offsets + group.first_split;
  for (int64_t row = group.row_begin; row < group.row_end; ++row) {
    const int64_t packed_row = packed_row_of(params.sequences[group.sequence], row);
    for (int64_t head = 0; head < heads; ++head) {
      const float* first = params.partials + ((row - group.row_begin) * heads + head) * row_floats;
      float m = kMinusInfinity;
      for (int32_t split = 0; split < group.num_splits; ++split) {
        const float split_m = first[offsets[split]];
        m = split_m > m || split_m != split_m ? split_m : m;
      }
      const float reference = m == kMinusInfinity ? 0.0f : m;
      float l = 0.0f;
      for (int32_t split = 0; split < group.num_splits; ++split) {
        const float* partial = first + offsets[split];
        l += partial[1] * exp2_scalar(partial[0] - reference);
      }
      const int64_t q_head = group.head_begin * heads_per_kv + head;
      const Normaliser normal = normaliser(params, q_head, m, l);
      std::byte* out = out_row(params, packed_row, q_head);
      for (int begin = 0; begin < params.v_dim; begin += kBlock * kLanes) {
        Vec sums[kBlock];
        for (int i = 0; i < kBlock; ++i) sums[i] = zero();
        for (int32_t split = 0; split < group.num_splits; ++split) {
          const float* partial = first + offsets[split];
          const Vec weight = set1(exp2_scalar(partial[0] - reference));
          for (int i = 0, d = begin; i < kBlock && d < params.v_dim; ++i, d += kLanes) {
            const int n = params.v_dim - d < kLanes ? params.v_dim - d : kLanes;
            const Vec part = n == kLanes ? load(partial + 2 + d) : load_tail(partial + 2 + d, n);
            sums[i] = fma(weight, part, sums[i]);
          }
        }
        for (int i = 0, d = begin; i < kBlock && d < params.v_dim; ++i, d += kLanes) {
          const int n = params.v_dim - d < kLanes ? params.v_dim - d : kLanes;
          store_any(out + d * element, params.out.dtype, mul(sums[i], set1(normal.scale)), n);
        }
      }
      store_lse(params, packed_row, q_head, normal.lse);
    }
  }
}

}  // namespace
}  // namespace kvc::kernels::cpu
