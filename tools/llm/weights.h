// The weights of a model, unpacked from its GGUF file to float32 or bfloat16 and laid out for
// BlockKernels::multiply.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tools/gguf/file.h"
#include "tools/llm/block_kernels.h"
#include "tools/llm/shape.h"
#include "tools/llm/worker_pool.h"

namespace kvc::llm {

// A matrix [depth][width] in panels, the width padded with zeros to whole panels.
struct PackedMatrix {
  int64_t depth = 0, width = 0, padded_width = 0;
  WeightType type = WeightType::kFloat32;
  std::vector<float> floats;
  std::vector<uint16_t> halves;  // bfloat16

  const void* data() const {
    return type == WeightType::kFloat32 ? static_cast<const void*>(floats.data()) : halves.data();
  }
};

// Empty where the architecture has no such norm or bias.
struct LayerWeights {
  std::vector<float> attention_norm, q_norm, k_norm, post_attention_norm;
  std::vector<float> ffn_norm, post_ffn_norm;
  std::vector<float> qkv_bias;           // [padded width of qkv]
  PackedMatrix qkv, out, gate_up, down;  // Queries, keys, values side by side; so gate and up.
};

struct Weights {
  WeightType type = WeightType::kBfloat16;
  gguf::Tensor embedding;  // Rows of it are unpacked when they are needed.
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;
  PackedMatrix head;             // [width][vocabulary]
  std::vector<float> head_bias;  // [vocabulary]; empty: none.

  int64_t bytes() const;
};

// "fp32" or "bf16", as on the command line.
inline WeightType weight_type(std::string_view name) {
  return name == "fp32" ? WeightType::kFloat32 : WeightType::kBfloat16;
}

struct LoadOptions {
  WeightType type = WeightType::kBfloat16;
  std::function<void(double)> progress;  // Part of the work done, 0 to 1; may be empty.
};

// The file has to live as long as the weights. Throws std::runtime_error: a tensor is missing or
// has another shape; the weights need more memory than the machine has left.
Weights load_weights(const gguf::File& file, const Shape& shape, const LoadOptions& options,
                     WorkerPool& pool, const BlockKernels& kernels);

// Round to nearest, ties to even.
uint16_t to_bfloat16(float value);
float from_bfloat16(uint16_t half);

}  // namespace kvc::llm
