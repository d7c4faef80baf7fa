// A small transformer of today's kind with random weights, for when there is no model: what it says
// means nothing, and how it computes is real.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/demo/workload.h"
#include "tools/llm/network.h"
#include "tools/llm/shape.h"
#include "tools/llm/weights.h"

namespace kvc::demo {

struct RandomShape {
  int layers = 6;
  int64_t width = 256;
  int q_heads = 8, kv_heads = 2, head_dim = 64;
  int64_t ffn_width = 704;
  double rope_theta = 10000.0;
  int64_t window = 0;  // Every third layer has none; 0: no layer has one.
};

class RandomModel {
 public:
  static constexpr int64_t kVocabulary = 256;  // A byte is a token.

  // `texts`: what the output bias is fitted to, so that the bytes drawn have at least the
  // frequencies of the language. Pool and kernels are borrowed.
  RandomModel(const RandomShape& shape, uint64_t seed, std::span<const Token> texts,
              llm::WorkerPool& pool, const llm::BlockKernels& kernels);
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;

  const llm::Shape& shape() const { return shape_; }
  llm::Network& network() { return network_; }
  int64_t parameters() const;

 private:
  llm::PackedMatrix random_matrix(int64_t depth, int64_t width, double gain);

  uint64_t seed_;
  uint64_t next_stream_ = 1u << 20;
  int64_t panel_;
  llm::Shape shape_;
  std::vector<float> embedding_;  // [vocabulary][width]
  llm::Weights weights_;
  llm::Network network_;
};

}  // namespace kvc::demo
