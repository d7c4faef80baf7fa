// Linear attention and the short convolution token by token in double, straight from the formulas
// of linear_params.h.
#include <cmath>
#include <cstring>

#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace kvc::kernels::reference {
namespace {

const std::byte* row_of(const TokenRows& rows, int64_t token, int64_t head) {
  return rows.base + token * rows.token_stride + head * rows.head_stride;
}

struct Head {
  const LinearParams& params;
  int64_t head;

  int64_t k_head() const { return head / (params.num_heads / params.num_k_heads); }
  double decay(int64_t token, int64_t channel) const {
    if (params.decay == nullptr) return 1;
    const float* at =
        params.decay + token * params.decay_token_stride + head * params.decay_head_stride;
    return std::exp(static_cast<double>(at[params.decay_per_channel != 0 ? channel : 0]));
  }
  double beta(int64_t token) const {
    return params.beta == nullptr ? 1 : params.beta[token * params.beta_token_stride + head];
  }
  double skip() const { return params.skip == nullptr ? 0 : params.skip[head]; }
};

// One token: `state` [k_dim][v_dim], `update` [v_dim].
void step(const Head& at, int64_t token, double* state, double* update) {
  const LinearParams& params = at.params;
  const int64_t k_dim = params.k_dim, v_dim = params.v_dim;
  const std::byte* q = row_of(params.q, token, at.k_head());
  const std::byte* k = row_of(params.k, token, at.k_head());
  const std::byte* v = row_of(params.v, token, at.head);
  std::byte* out =
      params.out.base + token * params.out.token_stride + at.head * params.out.head_stride;
  for (int64_t i = 0; i < k_dim; ++i) {
    const double decay = at.decay(token, i);
    for (int64_t c = 0; c < v_dim; ++c) state[i * v_dim + c] *= decay;
  }
  for (int64_t c = 0; c < v_dim; ++c) {
    double predicted = 0;
    for (int64_t i = 0; params.delta != 0 && i < k_dim; ++i)
      predicted += state[i * v_dim + c] * read_element(k, params.k.dtype, i);
    update[c] = at.beta(token) * (read_element(v, params.v.dtype, c) - predicted);
  }
  for (int64_t i = 0; i < k_dim; ++i) {
    const double key = read_element(k, params.k.dtype, i);
    for (int64_t c = 0; c < v_dim; ++c) state[i * v_dim + c] += key * update[c];
  }
  for (int64_t c = 0; c < v_dim; ++c) {
    double sum = 0;
    for (int64_t i = 0; i < k_dim; ++i)
      sum += state[i * v_dim + c] * read_element(q, params.q.dtype, i);
    const double skipped =
        params.skip == nullptr ? 0 : at.skip() * read_element(v, params.v.dtype, c);
    write_element(out, params.out.dtype, c, params.scale * sum + skipped);
  }
}

}  // namespace

size_t linear_scratch_bytes(const LinearParams& params, int64_t) {
  return sizeof(double) * static_cast<size_t>((params.k_dim + 1) * int64_t{params.v_dim});
}

void linear(const LinearParams& params, int32_t sequence, int32_t head_begin, int32_t head_end,
            void* scratch) {
  const LinearSequence& s = params.sequences[sequence];
  double* state = static_cast<double*>(scratch);
  double* update = state + int64_t{params.k_dim} * params.v_dim;
  for (int64_t head = head_begin; head < head_end; ++head) {
    const int64_t offset = head * params.state_head_stride;
    for (int64_t i = 0; i < params.k_dim; ++i) {
      for (int64_t c = 0; c < params.v_dim; ++c) {
        const std::byte* row = s.state_in + offset + i * params.state_row_stride;
        state[i * params.v_dim + c] =
            s.state_in == nullptr ? 0 : read_element(row, params.state_dtype, c);
      }
    }
    for (int64_t row = 0; row < s.num_rows; ++row)
      step({params, head}, s.row_begin + row, state, update);
    for (int64_t i = 0; i < params.k_dim; ++i) {
      for (int64_t c = 0; c < params.v_dim; ++c) {
        write_element(s.state_out + offset + i * params.state_row_stride, params.state_dtype, c,
                      state[i * params.v_dim + c]);
      }
    }
  }
}

size_t conv_scratch_bytes(const ConvParams& params) {
  return sizeof(double) * static_cast<size_t>(params.width);
}

void conv(const ConvParams& params, int32_t sequence, int32_t channel_begin, int32_t channel_end,
          void* scratch) {
  const ConvSequence& s = params.sequences[sequence];
  const int64_t width = params.width, kept = width - 1;
  double* window = static_cast<double*>(scratch);  // The last `width` inputs, newest last.
  for (int64_t channel = channel_begin; channel < channel_end; ++channel) {
    for (int64_t j = 0; j < kept; ++j) {
      window[1 + j] = s.state_in == nullptr
                          ? 0
                          : read_element(s.state_in, params.state_dtype, channel * kept + j);
    }
    for (int64_t row = 0; row < s.num_rows; ++row) {
      const int64_t token = s.row_begin + row;
      std::memmove(window, window + 1, static_cast<size_t>(kept) * sizeof(double));
      window[kept] = read_element(row_of(params.x, token, 0), params.x.dtype, channel);
      double sum = params.bias == nullptr ? 0 : params.bias[channel];
      for (int64_t j = 0; j < width; ++j)
        sum += params.weight[channel * params.weight_stride + j] * window[j];
      if (params.activation == Activation::kSilu) sum = sum / (1 + std::exp(-sum));
      write_element(params.out.base + token * params.out.token_stride, params.out.dtype, channel,
                    sum);
    }
    for (int64_t j = 0; j < kept; ++j)
      write_element(s.state_out, params.state_dtype, channel * kept + j, window[1 + j]);
  }
}

}  // namespace kvc::kernels::reference
