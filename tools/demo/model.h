// The models of the demo: a small transformer of today's kind with random weights (grouped-query
// attention, rotary positions, RMSNorm, SwiGLU), so that what it says means nothing and how it
// computes is real; or one from a GGUF file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/demo/kv_store.h"
#include "tools/demo/workload.h"
#include "tools/gguf/file.h"
#include "tools/llm/block_kernels.h"
#include "tools/llm/network.h"
#include "tools/llm/shape.h"
#include "tools/llm/weights.h"
#include "tools/llm/worker_pool.h"

namespace kvc::demo {

class Model {
 public:
  virtual ~Model() = default;
  // One step: `tokens` are the new tokens of the batch the store has begun, packed; for each row
  // index in `wanted`, logits gets vocabulary() floats.
  virtual void forward(KvStore& store, std::span<const Token> tokens,
                       std::span<const int64_t> wanted, float* logits) = 0;
  virtual int64_t vocabulary() const = 0;
  virtual int64_t num_parameters() const = 0;
  virtual int64_t width() const = 0;
  virtual AttentionShape attention() const = 0;
};

struct ModelShape {
  int layers = 6;
  int d_model = 256;
  int q_heads = 8, kv_heads = 2, head_dim = 64;
  int ffn_dim = 704;
  double rope_theta = 10000.0;

  static constexpr int kVocabulary = 256;
  AttentionShape attention() const {
    kvc_rope rope{};
    rope.struct_size = sizeof rope;
    rope.mode = KVC_ROPE_ON_APPEND;
    rope.style = KVC_ROPE_HALF;
    rope.theta = rope_theta;
    return {layers, q_heads, kv_heads, head_dim, rope};
  }
};

// A matrix [depth][width] in panels for llm::BlockKernels::multiply, the width padded with zeros.
struct RandomMatrix {
  int64_t depth = 0, width = 0, padded_width = 0;
  std::vector<float> data;
};

class RandomModel final : public Model {
 public:
  // `texts`: what the output bias is fitted to, so that the bytes drawn have at least the
  // frequencies of the language.
  RandomModel(const ModelShape& shape, uint64_t seed, std::span<const Token> texts,
              llm::WorkerPool& pool, const llm::BlockKernels& kernels);

  void forward(KvStore& store, std::span<const Token> tokens, std::span<const int64_t> wanted,
               float* logits) override;
  int64_t vocabulary() const override { return ModelShape::kVocabulary; }
  int64_t num_parameters() const override;
  int64_t width() const override { return shape_.d_model; }
  AttentionShape attention() const override { return shape_.attention(); }

 private:
  struct Layer {
    RandomMatrix qkv, out, gate, up, down;
  };
  struct Scratch {
    std::vector<float> normed, gate, up, projected;
  };

  RandomMatrix random_matrix(int64_t depth, int64_t width, double gain);
  void multiply(const RandomMatrix& matrix, const float* in, int64_t rows, float* out) const;
  void project_qkv(const Layer& layer, int64_t begin, int64_t rows, Scratch& scratch);
  void finish_layer(const Layer& layer, int64_t begin, int64_t rows, Scratch& scratch);

  ModelShape shape_;
  uint64_t seed_;
  uint64_t next_stream_ = 1u << 20;
  llm::WorkerPool& pool_;
  const llm::BlockKernels& kernels_;
  std::vector<float> embedding_;  // [vocabulary][d_model]
  std::vector<Layer> layers_;
  RandomMatrix head_;
  std::vector<float> head_bias_;
  std::vector<float> hidden_, qkv_, attended_;  // [T][...]
  std::vector<Scratch> scratch_;                // one per worker
};

// Throws std::runtime_error where the model has what row 1 does not serve (windows, scaled RoPE).
class GgufModel final : public Model {
 public:
  GgufModel(const std::string& path, llm::WeightType weights, llm::WorkerPool& pool,
            const llm::BlockKernels& kernels, const std::function<void(double)>& progress);

  void forward(KvStore& store, std::span<const Token> tokens, std::span<const int64_t> wanted,
               float* logits) override;
  int64_t vocabulary() const override { return shape_.vocabulary; }
  int64_t num_parameters() const override { return num_parameters_; }
  int64_t width() const override { return shape_.width; }
  AttentionShape attention() const override;

  const gguf::File& file() const { return file_; }

 private:
  gguf::File file_;
  llm::Shape shape_;
  llm::Weights weights_;
  llm::Network network_;
  int64_t num_parameters_ = 0;
};

}  // namespace kvc::demo
