// A small transformer of today's kind: grouped-query attention, rotary positions, RMSNorm, SwiGLU.
// Its weights are random numbers of a seed, so what it says means nothing; how it computes is real.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/demo/kv_store.h"
#include "tools/demo/workload.h"
#include "tools/llm/block_kernels.h"
#include "tools/llm/worker_pool.h"

namespace kvc::demo {

struct ModelShape {
  int layers = 6;
  int d_model = 256;
  int q_heads = 8, kv_heads = 2, head_dim = 64;
  int ffn_dim = 704;
  double rope_theta = 10000.0;

  static constexpr int kVocabulary = 256;
  AttentionShape attention() const { return {layers, q_heads, kv_heads, head_dim, rope_theta}; }
};

// A matrix [depth][width] in panels for llm::BlockKernels::multiply, the width padded with zeros.
struct PackedMatrix {
  int64_t depth = 0, width = 0, padded_width = 0;
  std::vector<float> data;
};

class Model {
 public:
  // `texts`: what the output bias is fitted to, so that the bytes drawn have at least the
  // frequencies of the language.
  Model(const ModelShape& shape, uint64_t seed, std::span<const Token> texts, llm::WorkerPool& pool,
        const llm::BlockKernels& kernels);

  // One step: `tokens` are the new tokens of the batch the store has begun, packed; for each row
  // index in `wanted`, logits gets kVocabulary floats.
  void forward(KvStore& store, std::span<const Token> tokens, std::span<const int64_t> wanted,
               float* logits);

  const ModelShape& shape() const { return shape_; }
  int64_t num_parameters() const;

 private:
  struct Layer {
    PackedMatrix qkv, out, gate, up, down;
  };
  struct Scratch {
    std::vector<float> normed, gate, up, projected;
  };

  PackedMatrix random_matrix(int64_t depth, int64_t width, double gain);
  void multiply(const PackedMatrix& matrix, const float* in, int64_t rows, float* out) const;
  void project_qkv(const Layer& layer, int64_t begin, int64_t rows, Scratch& scratch);
  void finish_layer(const Layer& layer, int64_t begin, int64_t rows, Scratch& scratch);

  ModelShape shape_;
  uint64_t seed_;
  uint64_t next_stream_ = 1u << 20;
  llm::WorkerPool& pool_;
  const llm::BlockKernels& kernels_;
  std::vector<float> embedding_;  // [vocabulary][d_model]
  std::vector<Layer> layers_;
  PackedMatrix head_;
  std::vector<float> head_bias_;
  std::vector<float> hidden_, qkv_, attended_;  // [T][...]
  std::vector<Scratch> scratch_;                // one per worker
};

}  // namespace kvc::demo
