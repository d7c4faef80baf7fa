// Shapes of recurrent states, as kvc_state_conv and kvc_attn_linear take them.
#pragma once

#include <cstdint>

#include "src/model_config/fields.h"
#include "src/model_config/model.h"

namespace kvc::hf {

// A convolution of `kernel` taps keeps its last inputs: [channels, kernel - 1], in the dtype of the
// model.
State conv_state(const Model& model, int64_t channels, int64_t kernel);
// The sum of a recurrence, in the dtype that the configuration names, else float32.
State recurrent_state(const Fields& config, const Model& model, std::vector<int64_t> shape);

// Mamba (Gu and Dao, arXiv:2312.00752): [channels, state_size]. Returns the index of the set in
// model.states.
struct MambaShape {
  int64_t channels = 0;
  int64_t state_size = 0;
  int64_t kernel = 0;
};
int32_t add_mamba(const Fields& config, const MambaShape& shape, Model& model);

// Mamba-2 (arXiv:2405.21060): the convolution runs over x, B and C; the state is [heads,
// state_size, head_dim].
struct Mamba2Shape {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t state_size = 0;
  int64_t groups = 0;
  int64_t kernel = 0;
};
int32_t add_mamba2(const Fields& config, const Mamba2Shape& shape, Model& model);

// Bounds that keep the product of any two of them in int64.
constexpr int64_t kMaxWidth = 1 << 24;
constexpr int64_t kMaxKernel = 4096;

}  // namespace kvc::hf
