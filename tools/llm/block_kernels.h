// The float32 arithmetic of models that the command runs: blocked products, softmax and gates, once
// per instruction set, chosen at run time. It calls nothing of the library.
#pragma once

#include <cstdint>

namespace kvc::llm {

enum class WeightType { kFloat32, kBfloat16 };
constexpr int64_t weight_bytes(WeightType type) { return type == WeightType::kFloat32 ? 4 : 2; }

// c[rows][cols] = a[rows][depth] * b[depth][cols], or += when `accumulate`. b lies in panels of
// BlockKernels::panel columns: element (k, j) is at b[j / panel * panel_stride + k * row_stride + j
// % panel]. cols is a multiple of the panel. Every element is one sum over depth in ascending
// order: a row's result never depends on the rows beside it.
struct Product {
  int64_t rows, cols, depth;
  const float* a;
  int64_t a_stride;
  const void* b;  // Elements are of b_type; strides count them.
  int64_t row_stride, panel_stride;
  float* c;
  int64_t c_stride;
  bool accumulate;
  WeightType b_type = WeightType::kFloat32;
};

// One block of keys of an online softmax (Milakov and Gimelshein, arXiv:1805.02867), in place:
// scores become weights relative to the row's running maximum, and what was accumulated so far is
// rescaled to the new maximum.
struct SoftmaxBlock {
  int64_t rows, keys;  // keys: multiple of the panel
  float* scores;       // [rows][score_stride]
  int64_t score_stride;
  const int64_t*
      // [rows]: the first `visible` keys count, the others get weight 0; may be <= 0 or > keys
      visible;
  float* row_max;      // [rows], -inf before the first block
  float* row_sum;      // [rows]
  float* accumulated;  // [rows][dim]
  int64_t dim;         // multiple of the panel
};

struct BlockKernels {
  const char* name;
  int64_t panel;
  void (*multiply)(const Product& product);
  void (*softmax)(const SoftmaxBlock& block);
  // Gate = gate * sigmoid(gate) * up
  void (*silu_multiply)(float* gate, const float* up, int64_t count);
  // The same with GELU in its tanh form (Hendrycks and Gimpel, arXiv:1606.08415).
  void (*gelu_multiply)(float* gate, const float* up, int64_t count);
};

enum class KernelLevel { kBest, kBaseline, kAvx2, kAvx512 };

// The kernels of a level, or of the best one below it that this machine has.
const BlockKernels& block_kernels(KernelLevel level = KernelLevel::kBest);

}  // namespace kvc::llm
