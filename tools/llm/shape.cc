#include "tools/llm/shape.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "tools/gguf/unpack.h"

namespace kvc::llm {
namespace {

// Keys of a file's architecture.
class Keys {
 public:
  Keys(const gguf::File& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  std::string name(const char* key) const { return prefix_ + key; }
  std::optional<int64_t> integer(const char* key, int64_t low, int64_t high) const {
    const std::optional<int64_t> value = file_.integer(name(key));
    if (value && (*value < low || *value > high))
      fail(key, std::to_string(*value), std::to_string(low) + " to " + std::to_string(high));
    return value;
  }
  int64_t required(const char* key, int64_t high) const {
    const std::optional<int64_t> value = integer(key, 1, high);
    if (!value) throw std::runtime_error(file_.path() + ": has no " + name(key));
    return *value;
  }
  double number(const char* key, double otherwise) const {
    const std::optional<double> value = file_.number(name(key));
    if (!value) return otherwise;
    if (!std::isfinite(*value) || *value <= 0)
      fail(key, std::to_string(*value), "a positive number");
    return *value;
  }
  std::string text(const char* key) const {
    return std::string(file_.text(name(key)).value_or(""));
  }
  [[noreturn]] void fail(const char* key, const std::string& value,
                         const std::string& expected) const {
    throw std::runtime_error(file_.path() + ": " + name(key) + " = " + value + ", expected " +
                             expected);
  }

 private:
  const gguf::File& file_;
  std::string prefix_;
};

kvc_rope rope_of(const Keys& keys, const Shape& shape, kvc_rope_style style) {
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_APPEND;
  rope.style = style;
  rope.rotary_dim = static_cast<int32_t>(
      keys.integer("rope.dimension_count", 2, shape.head_dim).value_or(shape.head_dim));
  if (rope.rotary_dim % 2 != 0)
    keys.fail("rope.dimension_count", std::to_string(rope.rotary_dim), "an even number");
  rope.theta = keys.number("rope.freq_base", 10000.0);
  const std::string scaling = keys.text("rope.scaling.type");
  const double factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0));
  if (scaling == "yarn") {
    rope.scaling = KVC_ROPE_SCALING_YARN;
    rope.factor = factor;
    rope.original_context =
        keys.integer("rope.scaling.original_context_length", 1, INT32_MAX).value_or(shape.context);
    rope.attention_factor = keys.number("rope.scaling.attn_factor", 0.0);
  } else if (scaling == "linear" || scaling.empty()) {
    rope.scale = 1.0 / factor;
  } else if (scaling != "none") {
    keys.fail("rope.scaling.type", "\"" + scaling + "\"", "none, linear or yarn");
  }
  return rope;
}

// Five layers with a window, then one without, which is rotated by larger wavelengths (Gemma 3,
// arXiv:2503.19786).
void set_gemma_layers(const gguf::File& file, const Keys& keys, Shape& shape) {
  constexpr size_t kPeriod = 6;
  constexpr size_t kLayersOf27B = 62;
  const std::optional<int64_t> window = keys.integer("attention.sliding_window", 1, INT32_MAX);
  if (!window)
    throw std::runtime_error(file.path() + ": has no " + keys.name("attention.sliding_window"));
  kvc_rope local{};
  local.struct_size = sizeof local;
  local.mode = KVC_ROPE_ON_APPEND;
  local.style = KVC_ROPE_HALF;
  local.theta = keys.number("rope.freq_base_swa", 10000.0);
  shape.ropes.push_back(local);
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    if (i % kPeriod != kPeriod - 1) shape.layers[i] = {*window, 1};
  }
  shape.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(shape.width)));
  shape.activation = Activation::kGelu;
  shape.has_head_norms = shape.has_post_norms = true;
  if (shape.layers.size() == kLayersOf27B)
    shape.attention_scale =
        1.0 / std::sqrt(static_cast<double>(shape.width) / static_cast<double>(shape.q_heads));
}

}  // namespace

Shape read_shape(const gguf::File& file) {
  const std::string architecture(file.text("general.architecture").value_or(""));
  const bool is_llama = architecture == "llama", is_gemma = architecture == "gemma3";
  if (!is_llama && !is_gemma && architecture != "qwen2" && architecture != "qwen3")
    throw std::runtime_error(file.path() + ": general.architecture = \"" + architecture +
                             "\" is not served here: llama, qwen2, qwen3 and gemma3 are");
  const Keys keys(file, architecture);
  if (keys.integer("expert_count", 0, INT32_MAX).value_or(0) > 0)
    throw std::runtime_error(file.path() + ": " + keys.name("expert_count") +
                             " is set: models with experts are not served here");
  constexpr int64_t kMostLayers = 1024, kMostWidth = 1 << 20, kMostHeads = 4096;
  Shape shape;
  shape.architecture = architecture;
  shape.layers.resize(static_cast<size_t>(keys.required("block_count", kMostLayers)));
  shape.width = keys.required("embedding_length", kMostWidth);
  shape.ffn_width = keys.required("feed_forward_length", kMostWidth);
  shape.q_heads = static_cast<int32_t>(keys.required("attention.head_count", kMostHeads));
  shape.kv_heads = static_cast<int32_t>(
      keys.integer("attention.head_count_kv", 1, kMostHeads).value_or(shape.q_heads));
  if (shape.q_heads % shape.kv_heads != 0)
    keys.fail("attention.head_count_kv", std::to_string(shape.kv_heads),
              "a divisor of " + keys.name("attention.head_count") + " = " +
                  std::to_string(shape.q_heads));
  shape.head_dim =
      static_cast<int32_t>(keys.integer("attention.key_length", 1, kMostHeads)
                               .value_or(std::max<int64_t>(1, shape.width / shape.q_heads)));
  if (const auto v_dim = keys.integer("attention.value_length", 1, kMostHeads);
      v_dim && *v_dim != shape.head_dim)
    keys.fail("attention.value_length", std::to_string(*v_dim),
              "that of K, " + std::to_string(shape.head_dim));
  shape.context = keys.required("context_length", INT32_MAX);
  shape.norm_epsilon = keys.number("attention.layer_norm_rms_epsilon", 1e-6);
  const gguf::Tensor* embedding = file.tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    throw std::runtime_error(file.path() + ": has no matrix token_embd.weight");
  shape.vocabulary = embedding->shape[1];
  // An id that the tokeniser makes is a row of the embedding, and one that is drawn has a text.
  const std::optional<int64_t> texts = file.length("tokenizer.ggml.tokens");
  if (texts && *texts != shape.vocabulary)
    throw std::runtime_error(file.path() + ": tokenizer.ggml.tokens has " + std::to_string(*texts) +
                             " tokens, and token_embd.weight has rows for " +
                             std::to_string(shape.vocabulary));
  shape.has_head_norms = architecture == "qwen3";
  // Converters to GGUF order q and k of llama for pairs of neighbours.
  shape.ropes.push_back(rope_of(keys, shape, is_llama ? KVC_ROPE_INTERLEAVED : KVC_ROPE_HALF));
  if (const gguf::Tensor* factors = file.tensor("rope_freqs.weight")) {
    const int64_t pairs = shape.ropes[0].rotary_dim / 2;
    if (factors->elements() != pairs || factors->type != gguf::TensorType::kF32)
      throw std::runtime_error(file.path() + ": rope_freqs.weight has " +
                               std::to_string(factors->elements()) + " elements of " +
                               gguf::type_name(factors->type) + ", expected " +
                               std::to_string(pairs) + " of F32");
    shape.freq_factors.resize(static_cast<size_t>(pairs));
    gguf::unpack(*factors, 0, pairs, shape.freq_factors.data());
    shape.ropes[0].num_freq_factors = static_cast<int32_t>(pairs);
    shape.ropes[0].freq_factors = shape.freq_factors.data();
  }
  if (is_gemma) set_gemma_layers(file, keys, shape);
  return shape;
}

std::vector<kvc_layer> kv_layers(const Shape& shape, DLDataType dtype, kvc_quant quant,
                                 int32_t keep_tokens) {
  std::vector<kvc_layer> layers;
  for (const LayerShape& of : shape.layers) {
    kvc_layer layer{};
    layer.struct_size = sizeof layer;
    layer.kind = KVC_LAYER_ATTENTION;
    layer.num_q_heads = shape.q_heads;
    layer.num_kv_heads = shape.kv_heads;
    layer.k_dim = layer.v_dim = shape.head_dim;
    layer.k_dtype = layer.v_dtype = dtype;
    layer.quant = quant;
    layer.keep_tokens = keep_tokens;
    layer.window = of.window;
    layer.rope = &shape.ropes[of.rope];
    layers.push_back(layer);
  }
  return layers;
}

}  // namespace kvc::llm
