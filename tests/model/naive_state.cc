#include "tests/model/naive_state.h"

#include <cmath>

namespace kvc::test {

std::vector<double> linear_step(const LinearShape& shape, const LinearToken& token,
                                StateValue* state) {
  const auto k_dim = static_cast<size_t>(shape.k_dim), v_dim = static_cast<size_t>(shape.v_dim);
  const auto heads = static_cast<size_t>(shape.heads);
  std::vector<double> out(heads * v_dim);
  for (size_t h = 0; h < heads; ++h) {
    double* s = state->data() + h * k_dim * v_dim;
    const size_t qk_head = h / (heads / static_cast<size_t>(shape.qk_heads));
    const double* q = token.q.data() + qk_head * k_dim;
    const double* k = token.k.data() + qk_head * k_dim;
    const double* v = token.v.data() + h * v_dim;
    for (size_t i = 0; i < k_dim && !token.ln_decay.empty(); ++i) {
      const double ln =
          token.ln_decay.size() == heads ? token.ln_decay[h] : token.ln_decay[h * k_dim + i];
      for (size_t j = 0; j < v_dim; ++j) s[i * v_dim + j] *= std::exp(ln);
    }
    for (size_t j = 0; j < v_dim; ++j) {
      double known = 0;
      for (size_t i = 0; i < k_dim && shape.delta; ++i) known += s[i * v_dim + j] * k[i];
      const double u = (token.beta.empty() ? 1 : token.beta[h]) * (v[j] - known);
      double read = 0;
      for (size_t i = 0; i < k_dim; ++i) {
        s[i * v_dim + j] += k[i] * u;
        read += s[i * v_dim + j] * q[i];
      }
      out[h * v_dim + j] = shape.scale * read + (shape.skip.empty() ? 0 : shape.skip[h]) * v[j];
    }
  }
  return out;
}

std::vector<double> conv_step(int64_t channels, int64_t width, const std::vector<double>& weight,
                              const std::vector<double>& bias, kvc_activation activation,
                              const std::vector<double>& x, StateValue* state) {
  std::vector<double> out;
  for (int64_t c = 0; c < channels; ++c) {
    double* last = state->data() + c * (width - 1);
    double sum = bias.empty() ? 0 : bias[static_cast<size_t>(c)];
    for (int64_t j = 0; j < width; ++j) {
      const double input = j + 1 < width ? last[j] : x[static_cast<size_t>(c)];
      sum += weight[static_cast<size_t>(c * width + j)] * input;
    }
    for (int64_t j = 0; j + 2 < width; ++j) last[j] = last[j + 1];
    last[width - 2] = x[static_cast<size_t>(c)];
    out.push_back(activation == KVC_ACTIVATION_SILU ? sum / (1 + std::exp(-sum)) : sum);
  }
  return out;
}

}  // namespace kvc::test
