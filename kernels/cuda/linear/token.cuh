// The inputs of one token for the recurrence of one head.
#pragma once

#include "kernels/cuda/ptx/floats.cuh"
#include "kernels/linear_params.h"

namespace kvc::cuda::linear_kernels {

// The head of a CTA, and its tile of columns.
struct LinearHead {
  const kernels::LinearParams& params;
  int32_t head;
  int32_t k_head;
  int32_t first_column;  // First column of the thread.
  int32_t columns;       // Number of existing columns from it on, up to 4. 0 or less: none.
};

// Elements as stored: they are loaded one token ahead and converted when needed. The thread loads
// one element of k, q and (per channel) decay for the whole CTA.
struct TokenElement {
  uint32_t k, q;
  float log_decay;
};
// The other inputs of a token that a thread needs.
struct TokenValues {
  uint32_t v[4];
  float beta;
  float log_decay;  // Decay of all rows. With a decay per channel: 0.
};

KVC_DEVICE const std::byte* token_row(const kernels::TokenRows& rows, int64_t token, int32_t head) {
  return rows.base + token * rows.token_stride + head * rows.head_stride;
}

// Rows that the state does not have are zero, and so are their k and q.
KVC_DEVICE TokenElement read_token_element(const LinearHead& at, int64_t token, int32_t i) {
  const kernels::LinearParams& params = at.params;
  TokenElement element{0, 0, 0};
  if (i >= params.k_dim) return element;
  element.k = load_bits(token_row(params.k, token, at.k_head), params.k.dtype, i);
  element.q = load_bits(token_row(params.q, token, at.k_head), params.q.dtype, i);
  if (params.decay != nullptr && params.decay_per_channel != 0)
    element.log_decay =
        params.decay[token * params.decay_token_stride + at.head * params.decay_head_stride + i];
  return element;
}

KVC_DEVICE TokenValues read_token_values(const LinearHead& at, int64_t token) {
  const kernels::LinearParams& params = at.params;
  TokenValues values{{0, 0, 0, 0}, 1, 0};
  const std::byte* v = token_row(params.v, token, at.head);
  if (params.v.dtype == kernels::DType::kF32) {
    const auto* from = reinterpret_cast<const uint32_t*>(v) + at.first_column;
    for (int c = 0; c < 4; ++c) {
      if (c < at.columns) values.v[c] = from[c];
    }
  } else {
    const auto* from = reinterpret_cast<const uint16_t*>(v) + at.first_column;
    for (int c = 0; c < 4; ++c) {
      if (c < at.columns) values.v[c] = from[c];
    }
  }
  if (params.beta != nullptr) values.beta = params.beta[token * params.beta_token_stride + at.head];
  if (params.decay != nullptr && params.decay_per_channel == 0)
    values.log_decay =
        params.decay[token * params.decay_token_stride + at.head * params.decay_head_stride];
  return values;
}

}  // namespace kvc::cuda::linear_kernels
