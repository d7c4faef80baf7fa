// Linear attention of one token: bound by reading and writing the state, so each head's state comes
// from memory once. A block of columns at a time: the delta rule's S^T k first, then decay, update,
// S^T q and the store in one walk, which finds the block in a near cache. Columns of the state
// never meet, so blocks are independent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_tile-inl.h"

namespace kvc::kernels::cpu {
namespace {

// Vectors of a column block: two accumulators each stay in registers. 128 columns of the widest
// vectors are whole rows of a common state, which memory likes better than a block that fits the
// first-level cache (measured: 97 against 110 us for 2 MiB of states).
constexpr int kStepColumns = kVectorRegisters >= 32 ? 8 : kVectorRegisters >= 16 ? 4 : 2;

struct StepRows {
  float* decay;      // [k_dim] factor of each row of S.
  float* decayed_k;  // [k_dim] decay * k.
  float* k;          // [k_dim]
  float* q;          // [k_dim]
};

struct StepHead {
  const LinearParams* params;
  StepRows rows;
  const std::byte* state_in;
  std::byte* state_out;
  const std::byte* next_state;  // State of the next head, fetched meanwhile.
  const std::byte* v;
  std::byte* out;
  float beta;
  float skip;
};

template <int64_t kBytes>
KVC_VEC_INLINE void fetch_lines(const std::byte* p) {
  KVC_UNROLL
  for (int64_t at = 0; at < kBytes; at += kCacheLine) prefetch_far(p + at);
}

// Columns [column, column + count); count is kColumns whole vectors, or less than one when kColumns
// is 1.
template <DType kType, int kColumns>
inline void step_columns(const StepHead& head, int64_t column, int count) {
  const LinearParams& params = *head.params;
  constexpr int64_t kElement = dtype_bytes(kType);
  constexpr int64_t kVectorBytes = kLanes * kElement;
  const bool whole = kColumns > 1 || count == kLanes;
  const int lanes = whole ? kLanes : count;
  const int64_t stride = params.state_row_stride;
  const int32_t k_dim = params.k_dim;
  const std::byte* in = head.state_in + column * kElement;
  std::byte* out = head.state_out + column * kElement;
  // The next head's state in the order of its addresses, whatever the order of the walk: half of a
  // block's share in each pass.
  constexpr int64_t kFetched = kColumns * kVectorBytes / 2;
  const std::byte* next = head.next_state + column * kElement * k_dim;

  Vec update[kColumns], sum[kColumns];
  KVC_UNROLL
  for (int c = 0; c < kColumns; ++c) sum[c] = zero();
  if (params.delta != 0) {
    Vec odd[kColumns];  // Rows in turn, so that sums wait for each other half as long.
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) odd[c] = zero();
    const auto add_row = [&](int32_t i, Vec(&to)[kColumns]) {
      fetch_lines<kFetched>(next + i * kFetched);
      const std::byte* row = in + i * stride;
      const Vec key = set1(head.rows.decayed_k[i]);
      KVC_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        const Vec s =
            whole ? load_as<kType>(row + c * kVectorBytes) : load_as_tail<kType>(row, lanes);
        to[c] = fma(key, s, to[c]);
      }
    };
    int32_t i = 0;
    for (; i + 2 <= k_dim; i += 2) add_row(i, sum), add_row(i + 1, odd);
    if (i < k_dim) add_row(i, sum);
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) sum[c] = add(sum[c], odd[c]);
  }
  const int64_t v_bytes = dtype_bytes(params.v.dtype);
  KVC_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    const Vec value = load_any(head.v + (column + c * kLanes) * v_bytes, params.v.dtype, lanes);
    update[c] = mul(set1(head.beta), params.delta != 0 ? sub(value, sum[c]) : value);
    sum[c] = zero();
  }
  next += k_dim * kFetched;
  for (int32_t i = 0; i < k_dim; ++i) {
    fetch_lines<kFetched>(next + i * kFetched);
    if (params.delta == 0) fetch_lines<kFetched>(next - k_dim * kFetched + i * kFetched);
    const std::byte* from = in + i * stride;
    std::byte* to = out + i * stride;
    const Vec decay = set1(head.rows.decay[i]), key = set1(head.rows.k[i]),
              query = set1(head.rows.q[i]);
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const Vec s =
          whole ? load_as<kType>(from + c * kVectorBytes) : load_as_tail<kType>(from, lanes);
      const Vec grown = fma(key, update[c], mul(decay, s));
      if (whole) {
        store_as<kType>(to + c * kVectorBytes, grown);
      } else {
        store_as_tail<kType>(to, grown, lanes);
      }
      sum[c] = fma(query, grown, sum[c]);
    }
  }
  const int64_t out_bytes = dtype_bytes(params.out.dtype);
  KVC_UNROLL
  for (int c = 0; c < kColumns; ++c) {
    Vec result = mul(set1(params.scale), sum[c]);
    if (params.skip != nullptr) {
      const Vec value = load_any(head.v + (column + c * kLanes) * v_bytes, params.v.dtype, lanes);
      result = fma(set1(head.skip), value, result);
    }
    store_any(head.out + (column + c * kLanes) * out_bytes, params.out.dtype, result, lanes);
  }
}

template <DType kType>
inline void step_head(const StepHead& head) {
  const int64_t v_dim = head.params->v_dim;
  int64_t column = 0;
  for (; column + kStepColumns * kLanes <= v_dim; column += kStepColumns * kLanes)
    step_columns<kType, kStepColumns>(head, column, kStepColumns * kLanes);
  for (; column < v_dim; column += kLanes)
    step_columns<kType, 1>(head, column, lanes_from(column, v_dim));
}

inline StepRows allocate_step(const LinearParams& params, ScratchCursor& cursor) {
  const int64_t floats = whole_vectors(params.k_dim);
  return {take_array<float>(cursor, floats), take_array<float>(cursor, floats),
          take_array<float>(cursor, floats), take_array<float>(cursor, floats)};
}

// One token of one head; the state is read as it lies in memory and may be replaced in place.
inline void linear_step(const LinearParams& params, const LinearSequence& sequence, int64_t h,
                        int64_t next_h, const StepRows& rows) {
  const int64_t token = sequence.row_begin;
  const int64_t k_head = h / (params.num_heads / params.num_k_heads);
  widen_row(rows.q, row_of(params.q, token, k_head), params.q.dtype, params.k_dim);
  widen_row(rows.k, row_of(params.k, token, k_head), params.k.dtype, params.k_dim);
  const float* decay = params.decay == nullptr ? nullptr : decay_of(params, token, h);
  for (int64_t i = 0; i < params.k_dim; i += kLanes) {
    Vec factor = set1(1.0f);
    if (decay != nullptr) {
      factor = decay_factor(params.decay_per_channel != 0
                                ? load_tail(decay + i, lanes_from(i, params.k_dim))
                                : set1(*decay));
    }
    store(rows.decay + i, factor);
    store(rows.decayed_k + i, mul(factor, load(rows.k + i)));
  }
  const StepHead head = {
      &params,
      rows,
      sequence.state_in + h * params.state_head_stride,
      sequence.state_out + h * params.state_head_stride,
      sequence.state_in + next_h * params.state_head_stride,
      row_of(params.v, token, h),
      params.out.base + token * params.out.token_stride + h * params.out.head_stride,
      beta_of(params, token, h),
      params.skip == nullptr ? 0.0f : params.skip[h]};
  with_dtype(params.state_dtype, [&](auto type) { step_head<decltype(type)::value>(head); });
}

}  // namespace
}  // namespace kvc::kernels::cpu
