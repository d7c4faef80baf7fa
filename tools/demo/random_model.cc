#include "tools/demo/random_model.h"

#include <array>
#include <cmath>

namespace kvc::demo {
namespace {

// Scores with a standard deviation near 3: attention that picks its keys.
constexpr double kQueryKeyGain = 1.7;
constexpr size_t kWindowPeriod = 3;

llm::Shape make_shape(const RandomShape& of) {
  llm::Shape shape;
  shape.architecture = "random";
  shape.width = of.width;
  shape.q_heads = of.q_heads;
  shape.kv_heads = of.kv_heads;
  shape.head_dim = of.head_dim;
  shape.ffn_width = of.ffn_width;
  shape.vocabulary = RandomModel::kVocabulary;
  shape.norm_epsilon = 1e-6;
  shape.layers.resize(static_cast<size_t>(of.layers));
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    if (i % kWindowPeriod != kWindowPeriod - 1) shape.layers[i].window = of.window;
  }
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_APPEND;
  rope.style = KVC_ROPE_HALF;
  rope.theta = of.rope_theta;
  shape.ropes.push_back(rope);
  return shape;
}

// The log frequency of each byte, as the output bias would be early in training.
std::vector<float> log_frequencies(std::span<const Token> texts) {
  constexpr float kNeverSeen = -30.0f;
  std::array<double, RandomModel::kVocabulary> counts{};
  for (const Token byte : texts) counts[static_cast<size_t>(byte)] += 1.0;
  std::vector<float> bias;
  for (const double count : counts)
    bias.push_back(count > 0
                       ? static_cast<float>(std::log(count / static_cast<double>(texts.size())))
                       : kNeverSeen);
  return bias;
}

}  // namespace

RandomModel::RandomModel(const RandomShape& shape, uint64_t seed, std::span<const Token> texts,
                         llm::WorkerPool& pool, const llm::BlockKernels& kernels)
    : seed_(seed),
      panel_(kernels.panel),
      shape_(make_shape(shape)),
      network_(shape_, weights_, pool, kernels) {
  const int64_t width = shape_.width;
  embedding_.resize(static_cast<size_t>(kVocabulary * width));
  const uint64_t stream = next_stream_++;
  for (size_t i = 0; i < embedding_.size(); ++i)
    embedding_[i] =
        static_cast<float>((2.0 * random_unit(seed_, stream, i) - 1.0) * std::sqrt(3.0));
  weights_.type = llm::WeightType::kFloat32;
  weights_.embedding.shape = {width, kVocabulary};
  weights_.embedding.type = gguf::TensorType::kF32;
  weights_.embedding.data = reinterpret_cast<const std::byte*>(embedding_.data());
  const std::vector<float> ones(static_cast<size_t>(width), 1.0f);
  for (size_t i = 0; i < shape_.layers.size(); ++i) {
    llm::LayerWeights layer;
    layer.attention_norm = layer.ffn_norm = ones;
    layer.qkv = random_matrix(width, shape_.qkv_width(), kQueryKeyGain);
    layer.out = random_matrix(shape_.q_width(), width, 1.0);
    layer.gate_up = random_matrix(width, 2 * shape_.ffn_width, 1.0);
    layer.down = random_matrix(shape_.ffn_width, width, 1.0);
    weights_.layers.push_back(std::move(layer));
  }
  weights_.output_norm = ones;
  weights_.head = random_matrix(width, kVocabulary, 1.5);
  weights_.head_bias = log_frequencies(texts);
}

// Uniform, of variance gain^2 / depth.
llm::PackedMatrix RandomModel::random_matrix(int64_t depth, int64_t width, double gain) {
  llm::PackedMatrix matrix;
  matrix.depth = depth;
  matrix.width = width;
  matrix.padded_width = (width + panel_ - 1) / panel_ * panel_;
  matrix.floats.assign(static_cast<size_t>(depth * matrix.padded_width), 0.0f);
  const uint64_t stream = next_stream_++;
  const double limit = gain * std::sqrt(3.0 / static_cast<double>(depth));
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t j = 0; j < width; ++j) {
      const double unit = random_unit(seed_, stream, static_cast<uint64_t>(k * width + j));
      matrix.floats[static_cast<size_t>((j / panel_ * depth + k) * panel_ + j % panel_)] =
          static_cast<float>((2.0 * unit - 1.0) * limit);
    }
  }
  return matrix;
}

int64_t RandomModel::parameters() const {
  const auto elements = [](const llm::PackedMatrix& matrix) { return matrix.depth * matrix.width; };
  int64_t count = static_cast<int64_t>(embedding_.size()) + elements(weights_.head);
  for (const llm::LayerWeights& layer : weights_.layers) {
    for (const llm::PackedMatrix* matrix : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
      count += elements(*matrix);
  }
  return count;
}

}  // namespace kvc::demo
