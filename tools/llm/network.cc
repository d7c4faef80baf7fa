#include "tools/llm/network.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tools/gguf/unpack.h"

namespace kvc::llm {
namespace {

// Rows that one task multiplies with a matrix: enough for each weight to be used often.
constexpr int64_t kTaskRows = 96;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// RMSNorm (Zhang and Sennrich, arXiv:1910.07467). in may be out.
void rms_norm(const float* in, const float* weights, int64_t dim, double epsilon, float* out) {
  float partial[16] = {};
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    for (int64_t j = 0; j < 16; ++j) partial[j] += in[i + j] * in[i + j];
  }
  for (; i < dim; ++i) partial[i % 16] += in[i] * in[i];
  double sum = 0;
  for (const float p : partial) sum += p;
  const auto scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(dim) + epsilon));
  for (i = 0; i < dim; ++i) out[i] = in[i] * scale * weights[i];
}

}  // namespace

void Network::Rows::resize(int64_t rows, int64_t width, int64_t panel) {
  stride = (width + panel - 1) / panel * panel;
  data.resize(static_cast<size_t>(rows * stride));
}

Network::Network(const Shape& shape, const Weights& weights, WorkerPool& pool,
                 const BlockKernels& kernels)
    : shape_(shape), weights_(weights), pool_(pool), kernels_(kernels) {}

template <class Row>
void Network::for_rows(int64_t rows, int64_t width, const Row& row) {
  constexpr int64_t kWorthThreads = 1 << 16;  // Elements.
  if (rows * width < kWorthThreads) {
    for (int64_t t = 0; t < rows; ++t) row(t);
    return;
  }
  // A task has several rows: most are a few microseconds of work.
  constexpr int64_t kTaskRowsAtLeast = 8;
  const int64_t tasks = (rows + kTaskRowsAtLeast - 1) / kTaskRowsAtLeast;
  pool_.for_each(tasks, [&](int64_t task, int32_t) {
    const int64_t end = std::min(rows, (task + 1) * kTaskRowsAtLeast);
    for (int64_t t = task * kTaskRowsAtLeast; t < end; ++t) row(t);
  });
}

void Network::embed(std::span<const int32_t> tokens) {
  const auto scale = static_cast<float>(shape_.embedding_scale);
  for_rows(static_cast<int64_t>(tokens.size()), shape_.width, [&](int64_t t) {
    float* row = hidden_.row(t);
    gguf::unpack(weights_.embedding, tokens[static_cast<size_t>(t)] * shape_.width, shape_.width,
                 row);
    for (int64_t i = 0; i < shape_.width; ++i) {
      if (weights_.type == WeightType::kBfloat16) row[i] = from_bfloat16(to_bfloat16(row[i]));
      row[i] *= scale;
    }
    std::fill(row + shape_.width, row + hidden_.stride, 0.0f);
  });
}

void Network::normalise(const Rows& in, const std::vector<float>& weights, int64_t rows,
                        Rows& out) {
  for_rows(rows, shape_.width, [&](int64_t t) {
    rms_norm(in.data.data() + t * in.stride, weights.data(), shape_.width, shape_.norm_epsilon,
             out.row(t));
  });
}

void Network::normalise_heads(const LayerWeights& layer, int64_t rows) {
  for_rows(rows, shape_.q_width(), [&](int64_t t) {
    float* head = qkv_.row(t);
    for (int32_t h = 0; h < shape_.q_heads + shape_.kv_heads; ++h, head += shape_.head_dim) {
      const std::vector<float>& weights = h < shape_.q_heads ? layer.q_norm : layer.k_norm;
      rms_norm(head, weights.data(), shape_.head_dim, shape_.norm_epsilon, head);
    }
  });
}

// Tasks are blocks of rows, and of columns where there are few rows. An element is one sum whatever
// the blocks.
void Network::multiply(const PackedMatrix& matrix, const float* in, int64_t in_stride, int64_t rows,
                       float* out, int64_t out_stride, bool accumulate) {
  constexpr int64_t kTasksPerThread = 2;
  const int64_t panel = kernels_.panel, panels = matrix.padded_width / panel;
  const int64_t row_tasks = (rows + kTaskRows - 1) / kTaskRows;
  const int64_t task_rows = (rows + row_tasks - 1) / row_tasks;
  // A weight takes as long to be read as eight are multiplied. Less than some 30 us in all is done
  // before another thread wakes.
  constexpr int64_t kReads = 8, kWorthThreads = 2 << 20;
  const bool is_small = (rows + kReads) * matrix.depth * matrix.padded_width < kWorthThreads;
  const int64_t wanted = pool_.size() == 1 || is_small ? 1 : kTasksPerThread * pool_.size();
  const int64_t column_tasks = std::clamp<int64_t>((wanted + row_tasks - 1) / row_tasks, 1, panels);
  const auto* weights = static_cast<const std::byte*>(matrix.data());
  pool_.for_each(row_tasks * column_tasks, [&](int64_t task, int32_t) {
    const int64_t first = task / column_tasks * task_rows, part = task % column_tasks;
    const int64_t begin = panels * part / column_tasks, end = panels * (part + 1) / column_tasks;
    const int64_t offset = begin * panel * matrix.depth * weight_bytes(matrix.type);
    kernels_.multiply({std::min(task_rows, rows - first), (end - begin) * panel, matrix.depth,
                       in + first * in_stride, in_stride, weights + offset, panel,
                       matrix.depth * panel, out + first * out_stride + begin * panel, out_stride,
                       accumulate, matrix.type});
  });
}

void Network::add_product(const PackedMatrix& matrix, const float* in, int64_t in_stride,
                          int64_t rows, const std::vector<float>& post_norm) {
  if (post_norm.empty()) {
    multiply(matrix, in, in_stride, rows, hidden_.data.data(), hidden_.stride, true);
    return;
  }
  multiply(matrix, in, in_stride, rows, added_.data.data(), added_.stride, false);
  for_rows(rows, shape_.width, [&](int64_t t) {
    float* added = added_.row(t);
    rms_norm(added, post_norm.data(), shape_.width, shape_.norm_epsilon, added);
    float* hidden = hidden_.row(t);
    for (int64_t i = 0; i < shape_.width; ++i) hidden[i] += added[i];
  });
}

void Network::finish_logits(std::span<const int64_t> wanted, float* logits) {
  const auto rows = static_cast<int64_t>(wanted.size());
  if (rows == 0) return;
  head_.resize(rows, weights_.head.padded_width, kernels_.panel);
  for_rows(rows, shape_.width, [&](int64_t i) {
    rms_norm(hidden_.row(wanted[static_cast<size_t>(i)]), weights_.output_norm.data(), shape_.width,
             shape_.norm_epsilon, normed_.row(i));
  });
  multiply(weights_.head, normed_.data.data(), normed_.stride, rows, head_.data.data(),
           head_.stride, false);
  for (int64_t i = 0; i < rows; ++i) {
    float* row = logits + i * shape_.vocabulary;
    std::copy_n(head_.row(i), shape_.vocabulary, row);
    for (size_t id = 0; id < weights_.head_bias.size(); ++id) row[id] += weights_.head_bias[id];
  }
}

void Network::forward(Attention& attention, std::span<const int32_t> tokens,
                      std::span<const int64_t> wanted, float* logits) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const double start = now();
  double attending = 0;
  for (Rows* of : {&hidden_, &normed_, &added_}) of->resize(rows, shape_.width, kernels_.panel);
  qkv_.resize(rows, shape_.qkv_width(), kernels_.panel);
  attended_.resize(rows, shape_.q_width(), 1);
  gate_up_.resize(rows, 2 * shape_.ffn_width, kernels_.panel);
  embed(tokens);
  const auto activate =
      shape_.activation == Activation::kSilu ? kernels_.silu_multiply : kernels_.gelu_multiply;
  for (size_t l = 0; l < weights_.layers.size(); ++l) {
    const LayerWeights& layer = weights_.layers[l];
    normalise(hidden_, layer.attention_norm, rows, normed_);
    multiply(layer.qkv, normed_.data.data(), normed_.stride, rows, qkv_.data.data(), qkv_.stride,
             false);
    if (!layer.qkv_bias.empty()) {
      for_rows(rows, shape_.qkv_width(), [&](int64_t t) {
        float* row = qkv_.row(t);
        for (size_t i = 0; i < layer.qkv_bias.size(); ++i) row[i] += layer.qkv_bias[i];
      });
    }
    if (shape_.has_head_norms) normalise_heads(layer, rows);
    const double before = now();
    attention.attend(static_cast<int32_t>(l), qkv_.data.data(), qkv_.stride, attended_.data.data());
    attending += now() - before;
    add_product(layer.out, attended_.data.data(), attended_.stride, rows,
                layer.post_attention_norm);
    normalise(hidden_, layer.ffn_norm, rows, normed_);
    multiply(layer.gate_up, normed_.data.data(), normed_.stride, rows, gate_up_.data.data(),
             gate_up_.stride, false);
    for_rows(rows, shape_.ffn_width, [&](int64_t t) {
      float* gate = gate_up_.row(t);
      activate(gate, gate + shape_.ffn_width, shape_.ffn_width);
    });
    add_product(layer.down, gate_up_.data.data(), gate_up_.stride, rows, layer.post_ffn_norm);
  }
  finish_logits(wanted, logits);
  seconds_.attention += attending;
  seconds_.products += now() - start - attending;
}

}  // namespace kvc::llm
