// Plain-data parameters of linear attention and of the short convolution in front of it. As
// params.h: pointers are borrowed for the call, strides are in bytes unless the name says
// otherwise.
#pragma once

#include "kernels/params.h"

namespace kvc::kernels {

// One sequence of the batch and its state, all heads. The state that comes out is written once,
// after the last token, whatever the number of tokens: 0 tokens carry it on. state_out is state_in
// or does not overlap it.
struct LinearSequence {
  int64_t row_begin;  // First packed row in q, k, v, decay, beta, out.
  int64_t num_rows;   // Tokens
  // Nullable (zeros) [num_heads][k_dim][v_dim], strides and dtype in LinearParams.
  const std::byte* state_in;
  std::byte* state_out;  // The same layout.
};

// Per head, with state S [k_dim][v_dim] in float32 between the tokens t of a sequence:
//   S = a_t * S                      a_t = e^decay: of the token, or of the token and the row of S
//   u = beta_t * (v_t - S^T k_t)     delta = 0: u = beta_t * v_t
//   S = S + k_t u^T
//   out_t = scale * S^T q_t + skip * v_t
// decay is <= 0; -inf forgets everything.
struct LinearParams {
  TokenRows q, k;    // [T][num_k_heads][k_dim]
  TokenRows v, out;  // [T][num_heads][v_dim]
  const float*
      // Nullable: none. (t, h) or (t, h, i) at decay + t*decay_token_stride + h*decay_head_stride +
      // i.
      decay;
  int64_t decay_token_stride;  // In elements; 0: the same for all tokens.
  int64_t decay_head_stride;   // In elements.
  int32_t decay_per_channel;   // 1: one per row i of S.
  int32_t delta;               // 1: the delta rule.
  const float* beta;           // Nullable: 1. (t, h) at beta + t*beta_token_stride + h.
  int64_t beta_token_stride;   // In elements.
  const float* skip;           // Nullable: 0. [num_heads].
  float scale;
  int32_t num_heads;
  int32_t num_k_heads;  // Head h reads q and k head h / (num_heads / num_k_heads).
  int32_t k_dim;
  int32_t v_dim;
  DType state_dtype;
  int64_t state_head_stride;  // Rows of v_dim elements are contiguous.
  int64_t state_row_stride;
  const LinearSequence* sequences;
};

enum class Activation : int32_t { kNone = 0, kSilu = 1 };

// state_out is state_in or does not overlap it.
struct ConvSequence {
  int64_t row_begin;  // First packed row in x and out.
  int64_t num_rows;   // Tokens; 0: the state is carried on.
  // Nullable (zeros) [channels][width - 1]: the last inputs, newest last.
  const std::byte* state_in;
  std::byte* state_out;
};

// out[t][c] = act(bias[c] + sum_j weight[c][j] * x[t - width + 1 + j][c]); inputs before row 0 of a
// sequence come from its state.
struct ConvParams {
  TokenRows x, out;       // [T][channels]: one head.
  const float* weight;    // [channels][width]
  int64_t weight_stride;  // In elements, between channels.
  const float* bias;      // Nullable [channels]
  Activation activation;
  int32_t channels;
  int32_t width;  // >= 2.
  DType state_dtype;
  const ConvSequence* sequences;
};

}  // namespace kvc::kernels
