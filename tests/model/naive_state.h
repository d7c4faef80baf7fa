// Recurrent layers by their formulas in double, one token after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "tests/model/host_tensor.h"

namespace kvc::test {

using StateValue = std::vector<double>;  // row-major

struct NaiveState {
  std::vector<int64_t> shape;
  Elem elem = Elem::kF32;
  StateValue init;

  int64_t size() const {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    return size;
  }
};

// One token of a linear attention layer, all heads. `ln_decay`: empty, [heads] or [heads * k_dim];
// `skip` and `beta`: empty or [heads].
struct LinearToken {
  std::vector<double> q, k, v, ln_decay, beta;
};
struct LinearShape {
  int heads = 1, qk_heads = 1, k_dim = 1, v_dim = 1;
  bool delta = false;
  double scale = 1;
  std::vector<double> skip;
};

// Updates state [heads][k_dim][v_dim] and returns the token's output [heads][v_dim].
std::vector<double> linear_step(const LinearShape& shape, const LinearToken& token,
                                StateValue* state);

// Depthwise convolution of one token's channels; state [channels][width - 1], newest last; weight
// [channels][width].
std::vector<double> conv_step(int64_t channels, int64_t width, const std::vector<double>& weight,
                              const std::vector<double>& bias, kvc_activation activation,
                              const std::vector<double>& x, StateValue* state);

}  // namespace kvc::test
