// The forward pass of a model. K and V of earlier tokens are the business of the attention that it
// is handed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/llm/block_kernels.h"
#include "tools/llm/shape.h"
#include "tools/llm/weights.h"
#include "tools/llm/worker_pool.h"

namespace kvc::llm {

// Attention of the new tokens of a step in one layer.
class Attention {
 public:
  virtual ~Attention() = default;
  // qkv: row t, `stride` floats long, begins with the query heads, key heads and value heads of new
  // token t; not rotated. out [T][q heads][head_dim].
  virtual void attend(int32_t layer, const float* qkv, int64_t stride, float* out) = 0;
};

// Results do not depend on the number of threads, nor a token's on the tokens beside it, but by
// attention.
class Network {
 public:
  // Borrows all.
  Network(const Shape& shape, const Weights& weights, WorkerPool& pool,
          const BlockKernels& kernels);

  // `tokens` are the new tokens of a step, packed; for each row index in `wanted`, `logits` gets
  // shape.vocabulary floats. `attention` is called once per layer, in order.
  void forward(Attention& attention, std::span<const int32_t> tokens,
               std::span<const int64_t> wanted, float* logits);

  int64_t vocabulary() const { return shape_.vocabulary; }

  // Of forwards, by the thread that called them.
  struct Seconds {
    double products = 0, attention = 0;
  };
  const Seconds& seconds() const { return seconds_; }

 private:
  // Rows of floats, `stride` apart, a whole number of panels long.
  struct Rows {
    std::vector<float> data;
    int64_t stride = 0;

    void resize(int64_t rows, int64_t width, int64_t panel);
    float* row(int64_t index) { return data.data() + index * stride; }
  };

  // Calls row(index) for each row, on several threads where that is worth waking them.
  template <class Row>
  void for_rows(int64_t rows, int64_t width, const Row& row);
  void embed(std::span<const int32_t> tokens);
  void normalise(const Rows& in, const std::vector<float>& weights, int64_t rows, Rows& out);
  void normalise_heads(const LayerWeights& layer, int64_t rows);
  void multiply(const PackedMatrix& matrix, const float* in, int64_t in_stride, int64_t rows,
                float* out, int64_t out_stride, bool accumulate);
  // hidden += in * matrix, after a norm where the model has one there.
  void add_product(const PackedMatrix& matrix, const float* in, int64_t in_stride, int64_t rows,
                   const std::vector<float>& post_norm);
  void finish_logits(std::span<const int64_t> wanted, float* logits);

  const Shape& shape_;
  const Weights& weights_;
  WorkerPool& pool_;
  const BlockKernels& kernels_;
  Rows hidden_, normed_, qkv_, attended_, gate_up_, added_, head_;
  Seconds seconds_;
};

}  // namespace kvc::llm
