// What a decoder of the architectures llama, qwen2, qwen3 and gemma3 is made of, as its GGUF file
// says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tools/gguf/file.h"

namespace kvc::llm {

enum class Activation { kSilu, kGelu };

struct LayerShape {
  int64_t window = 0;  // Tokens that a token attends to, itself included. 0: all before it.
  size_t rope = 0;     // Index into Shape::ropes.
};

// Attention layers with grouped queries, RMSNorm before attention and feed-forward, and a gated
// feed-forward.
struct Shape {
  std::string architecture;
  int64_t width = 0;  // Elements of a token between layers.
  int32_t q_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t ffn_width = 0;
  int64_t vocabulary = 0;
  int64_t context = 0;  // Tokens that the model was trained for.
  double norm_epsilon = 0;
  double embedding_scale = 1;
  double attention_scale = 0;  // Factor of scores; 0: 1 / sqrt(head_dim).
  Activation activation = Activation::kSilu;
  bool has_head_norms = false;  // RMSNorm of each head of q and k (Qwen3, Gemma 3).
  bool has_post_norms = false;  // RMSNorm of what is added to the residual (Gemma 3).
  std::vector<LayerShape> layers;
  std::vector<kvc_rope> ropes;
  std::vector<float> freq_factors;  // Memory of ropes[0].freq_factors.

  Shape() = default;
  Shape(Shape&&) = default;
  Shape& operator=(Shape&&) = default;

  int64_t q_width() const { return int64_t{q_heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

// Throws std::runtime_error that names the key, its value and what is served.
Shape read_shape(const gguf::File& file);

// A cache's layers for this model. They borrow the shape.
std::vector<kvc_layer> kv_layers(const Shape& shape, DLDataType dtype,
                                 kvc_quant quant = KVC_QUANT_NONE, int32_t keep_tokens = 0);

}  // namespace kvc::llm
