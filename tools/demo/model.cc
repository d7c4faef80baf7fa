#include "tools/demo/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

namespace kvc::demo {
namespace {

// Rows of the batch that one task takes through all products of a layer
constexpr int64_t kLargestTask = 96;
constexpr double kQueryKeyGain =
    1.7;  // scores with a standard deviation near 3: attention that picks its keys

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// RMSNorm (Zhang and Sennrich, arXiv:1910.07467) with unit weights.
void rms_norm(const float* in, int64_t dim, float* out) {
  float partial[16] = {};
  for (int64_t i = 0; i < dim; i += 16) {
    for (int64_t j = 0; j < 16; ++j) partial[j] += in[i + j] * in[i + j];
  }
  float sum = 0.0f;
  for (const float p : partial) sum += p;
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(dim) + 1e-6f);
  for (int64_t i = 0; i < dim; ++i) out[i] = in[i] * scale;
}

}  // namespace

RandomModel::RandomModel(const ModelShape& shape, uint64_t seed, std::span<const Token> texts,
                         llm::WorkerPool& pool, const llm::BlockKernels& kernels)
    : shape_(shape), seed_(seed), pool_(pool), kernels_(kernels) {
  const int64_t d = shape_.d_model;
  const AttentionShape attention = shape_.attention();
  embedding_.resize(static_cast<size_t>(ModelShape::kVocabulary * d));
  const uint64_t stream = next_stream_++;
  for (size_t i = 0; i < embedding_.size(); ++i) {
    embedding_[i] =
        static_cast<float>((2.0 * random_unit(seed_, stream, i) - 1.0) * std::sqrt(3.0));
  }
  for (int i = 0; i < shape_.layers; ++i) {
    Layer layer;
    layer.qkv = random_matrix(d, attention.qkv_width(), kQueryKeyGain);
    layer.out = random_matrix(attention.out_width(), d, 1.0);
    layer.gate = random_matrix(d, shape_.ffn_dim, 1.0);
    layer.up = random_matrix(d, shape_.ffn_dim, 1.0);
    layer.down = random_matrix(shape_.ffn_dim, d, 1.0);
    layers_.push_back(std::move(layer));
  }
  head_ = random_matrix(d, ModelShape::kVocabulary, 1.5);

  // The output bias is the log frequency of each byte, as it would be early in training.
  std::array<double, ModelShape::kVocabulary> counts{};
  for (const Token byte : texts) counts[static_cast<size_t>(byte)] += 1.0;
  for (const double count : counts) {
    head_bias_.push_back(static_cast<float>(
        count > 0 ? std::log(count / static_cast<double>(texts.size())) : -30.0));
  }

  scratch_.resize(static_cast<size_t>(pool_.size()));
  for (Scratch& s : scratch_) {
    s.normed.resize(static_cast<size_t>(kLargestTask * d));
    s.gate.resize(static_cast<size_t>(kLargestTask * layers_[0].gate.padded_width));
    s.up.resize(s.gate.size());
    s.projected.resize(static_cast<size_t>(kLargestTask * layers_[0].out.padded_width));
  }
}

RandomMatrix RandomModel::random_matrix(int64_t depth, int64_t width, double gain) {
  RandomMatrix matrix{depth, width, round_up(width, kernels_.panel), {}};
  matrix.data.assign(static_cast<size_t>(depth * matrix.padded_width), 0.0f);
  const uint64_t stream = next_stream_++;
  const double limit =
      gain * std::sqrt(3.0 / static_cast<double>(depth));  // uniform, variance gain^2 / depth
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t j = 0; j < width; ++j) {
      const double unit = random_unit(seed_, stream, static_cast<uint64_t>(k * width + j));
      const int64_t panel = j / kernels_.panel;
      matrix.data[static_cast<size_t>((panel * depth + k) * kernels_.panel + j % kernels_.panel)] =
          static_cast<float>((2.0 * unit - 1.0) * limit);
    }
  }
  return matrix;
}

int64_t RandomModel::num_parameters() const {
  int64_t count = ModelShape::kVocabulary * int64_t{shape_.d_model} + head_.depth * head_.width;
  for (const Layer& layer : layers_) {
    for (const RandomMatrix* m : {&layer.qkv, &layer.out, &layer.gate, &layer.up, &layer.down}) {
      count += m->depth * m->width;
    }
  }
  return count;
}

void RandomModel::multiply(const RandomMatrix& matrix, const float* in, int64_t rows,
                           float* out) const {
  kernels_.multiply({rows, matrix.padded_width, matrix.depth, in, matrix.depth, matrix.data.data(),
                     kernels_.panel, matrix.depth * kernels_.panel, out, matrix.padded_width,
                     false});
}

void RandomModel::project_qkv(const Layer& layer, int64_t begin, int64_t rows, Scratch& s) {
  const int64_t d = shape_.d_model;
  for (int64_t r = 0; r < rows; ++r)
    rms_norm(hidden_.data() + (begin + r) * d, d, s.normed.data() + r * d);
  multiply(layer.qkv, s.normed.data(), rows, qkv_.data() + begin * layer.qkv.padded_width);
}

// Everything of a layer after its attention; tokens do not see each other here.
void RandomModel::finish_layer(const Layer& layer, int64_t begin, int64_t rows, Scratch& s) {
  const int64_t d = shape_.d_model;
  float* hidden = hidden_.data() + begin * d;
  multiply(layer.out, attended_.data() + begin * layer.out.depth, rows, s.projected.data());
  for (int64_t r = 0; r < rows; ++r) {
    float* row = hidden + r * d;
    const float* projected = s.projected.data() + r * layer.out.padded_width;
    for (int64_t i = 0; i < d; ++i) row[i] += projected[i];
    rms_norm(row, d, s.normed.data() + r * d);
  }
  multiply(layer.gate, s.normed.data(), rows, s.gate.data());
  multiply(layer.up, s.normed.data(), rows, s.up.data());
  kernels_.silu_multiply(s.gate.data(), s.up.data(), rows * layer.gate.padded_width);
  multiply(layer.down, s.gate.data(), rows, s.projected.data());
  for (int64_t r = 0; r < rows; ++r) {
    const float* projected = s.projected.data() + r * layer.down.padded_width;
    for (int64_t i = 0; i < d; ++i) hidden[r * d + i] += projected[i];
  }
}

void RandomModel::forward(KvStore& store, std::span<const Token> tokens,
                          std::span<const int64_t> wanted, float* logits) {
  const int64_t d = shape_.d_model;
  const auto total = static_cast<int64_t>(tokens.size());
  hidden_.resize(static_cast<size_t>(total * d));
  qkv_.resize(static_cast<size_t>(total * layers_[0].qkv.padded_width));
  attended_.resize(static_cast<size_t>(total * layers_[0].out.depth));
  for (int64_t t = 0; t < total; ++t) {
    std::copy_n(embedding_.data() + tokens[static_cast<size_t>(t)] * d, d, hidden_.data() + t * d);
  }

  // Tasks are blocks of tokens; between two attentions a block needs no other.
  const int64_t task_rows =
      std::min(kLargestTask, round_up((total + pool_.size() - 1) / pool_.size(), 4));
  const int64_t num_tasks = (total + task_rows - 1) / task_rows;
  for (size_t l = 0; l <= layers_.size(); ++l) {
    pool_.for_each(num_tasks, [&](int64_t task, int32_t worker) {
      const int64_t begin = task * task_rows;
      const int64_t rows = std::min(task_rows, total - begin);
      Scratch& scratch = scratch_[static_cast<size_t>(worker)];
      if (l > 0) finish_layer(layers_[l - 1], begin, rows, scratch);
      if (l < layers_.size()) project_qkv(layers_[l], begin, rows, scratch);
    });
    if (l < layers_.size())
      store.attention(static_cast<int>(l), qkv_.data(), layers_[0].qkv.padded_width,
                      attended_.data());
  }

  const auto num_wanted = static_cast<int64_t>(wanted.size());
  pool_.for_each(num_wanted, [&](int64_t i, int32_t worker) {
    Scratch& s = scratch_[static_cast<size_t>(worker)];
    rms_norm(hidden_.data() + wanted[static_cast<size_t>(i)] * d, d, s.normed.data());
    float* out = logits + i * ModelShape::kVocabulary;
    multiply(head_, s.normed.data(), 1, out);
    for (int b = 0; b < ModelShape::kVocabulary; ++b) out[b] += head_bias_[static_cast<size_t>(b)];
  });
}

// ---- a model of a GGUF file

namespace {

// The network's attention is that of the store.
class StoreAttention final : public llm::Attention {
 public:
  explicit StoreAttention(KvStore& store) : store_(store) {}
  void attend(int32_t layer, const float* qkv, int64_t stride, float* out) override {
    store_.attention(layer, qkv, stride, out);
  }

 private:
  KvStore& store_;
};

void require_plain_attention(const llm::Shape& shape, const std::string& path) {
  const auto refuse = [&](const char* what) {
    throw std::runtime_error(path + ": " + what +
                             ", which row 1 of the demo does not serve; `kvcache chat` does");
  };
  for (const llm::LayerShape& layer : shape.layers) {
    if (layer.window > 0) refuse("it has layers with windows");
  }
  const kvc_rope& rope = shape.ropes[0];
  if (rope.scaling != KVC_ROPE_SCALING_NONE || rope.rotary_dim != shape.head_dim)
    refuse("its RoPE is scaled, or leaves a part of the head");
  if (shape.attention_scale != 0) refuse("its scores have a scale of their own");
  if (shape.head_dim % 32 != 0 || shape.head_dim > 256)
    refuse("its heads are no multiple of 32 elements up to 256");
}

}  // namespace

GgufModel::GgufModel(const std::string& path, llm::WeightType weights, llm::WorkerPool& pool,
                     const llm::BlockKernels& kernels, const std::function<void(double)>& progress)
    : file_(path),
      shape_(llm::read_shape(file_)),
      weights_(llm::load_weights(file_, shape_, {weights, progress}, pool, kernels)),
      network_(shape_, weights_, pool, kernels) {
  require_plain_attention(shape_, path);
  for (const gguf::Tensor& tensor : file_.tensors()) num_parameters_ += tensor.elements();
}

void GgufModel::forward(KvStore& store, std::span<const Token> tokens,
                        std::span<const int64_t> wanted, float* logits) {
  StoreAttention attention(store);
  network_.forward(attention, tokens, wanted, logits);
}

AttentionShape GgufModel::attention() const {
  return {static_cast<int>(shape_.layers.size()), shape_.q_heads, shape_.kv_heads, shape_.head_dim,
          shape_.ropes[0]};
}

}  // namespace kvc::demo
