// The bodies of the block kernels for vectors of any width, in the compiler's vector extension.
// Everything is inlined into wrappers that carry the instruction set, so no function here has
// vector arguments.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tools/llm/block_kernels.h"

namespace kvc::llm {

#define KVC_LLM_INLINE inline __attribute__((always_inline))
#define KVC_LLM_INLINE_LAMBDA __attribute__((always_inline))

// VectorBytes / 4 values of bfloat16 as float32. GCC 12 knows no __builtin_convertvector of
// dependent types.
template <int VectorBytes>
struct Widening;
#define KVC_LLM_WIDENING(Bytes)                                           \
  template <>                                                             \
  struct Widening<Bytes> {                                                \
    typedef uint16_t Halves __attribute__((vector_size(Bytes / 2)));      \
    typedef uint32_t Words __attribute__((vector_size(Bytes)));           \
    static KVC_LLM_INLINE void bfloat16(const uint16_t* from, void* to) { \
      Halves halves;                                                      \
      std::memcpy(&halves, from, sizeof halves);                          \
      const Words words = __builtin_convertvector(halves, Words) << 16;   \
      std::memcpy(to, &words, sizeof words);                              \
    }                                                                     \
  };
KVC_LLM_WIDENING(16)
KVC_LLM_WIDENING(32)
KVC_LLM_WIDENING(64)
#undef KVC_LLM_WIDENING

template <int VectorBytes, int TileRows>
struct BlockBody {
  static constexpr int kLanes = VectorBytes / 4;
  static constexpr int64_t kPanel = 2 * kLanes;
  typedef float Vector __attribute__((vector_size(VectorBytes)));
  typedef int32_t Integers __attribute__((vector_size(VectorBytes)));

  static KVC_LLM_INLINE void load(Vector& out, const float* from) {
    std::memcpy(&out, from, VectorBytes);
  }
  static KVC_LLM_INLINE void load(Vector& out, const uint16_t* from) {
    Widening<VectorBytes>::bfloat16(from, &out);
  }

  template <int Rows, class Weight>
  static KVC_LLM_INLINE void tile(const Product& p, int64_t row, const Weight* b, int64_t b_stride,
                                  float* c) {
    Vector sum[Rows][2];
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < 2; ++v) {
        sum[r][v] = Vector{};
        if (p.accumulate) std::memcpy(&sum[r][v], c + r * p.c_stride + v * kLanes, VectorBytes);
      }
    }
    const float* a = p.a + row * p.a_stride;
    for (int64_t k = 0; k < p.depth; ++k) {
      Vector b0, b1;
      load(b0, b + k * b_stride);
      load(b1, b + k * b_stride + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const float scalar = a[r * p.a_stride + k];
        sum[r][0] += scalar * b0;
        sum[r][1] += scalar * b1;
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < 2; ++v)
        std::memcpy(c + r * p.c_stride + v * kLanes, &sum[r][v], VectorBytes);
    }
  }

  static KVC_LLM_INLINE void multiply(const Product& p) {
    if (p.b_type == WeightType::kBfloat16) {
      multiply_by(p, static_cast<const uint16_t*>(p.b));
    } else {
      multiply_by(p, static_cast<const float*>(p.b));
    }
  }

  template <class Weight>
  static KVC_LLM_INLINE void multiply_by(const Product& p, const Weight* weights) {
    for (int64_t col = 0; col < p.cols; col += kPanel)
      multiply_panel(p, weights + col / kPanel * p.panel_stride, p.c + col);
  }

  static KVC_LLM_INLINE void multiply_panel(const Product& p, const uint16_t* b, float* c) {
    // Many rows read a panel that was widened once.
    if (p.rows <= 2 * TileRows) return multiply_rows(p, b, p.row_stride, c);
    thread_local std::vector<float> widened;
    widened.resize(static_cast<size_t>(p.depth * kPanel));
    float* to = widened.data();
    for (int64_t k = 0; k < p.depth; ++k) {
      Widening<VectorBytes>::bfloat16(b + k * p.row_stride, to + k * kPanel);
      Widening<VectorBytes>::bfloat16(b + k * p.row_stride + kLanes, to + k * kPanel + kLanes);
    }
    multiply_rows(p, static_cast<const float*>(to), kPanel, c);
  }
  static KVC_LLM_INLINE void multiply_panel(const Product& p, const float* b, float* c) {
    multiply_rows(p, b, p.row_stride, c);
  }

  template <class Weight>
  static KVC_LLM_INLINE void multiply_rows(const Product& p, const Weight* b, int64_t b_stride,
                                           float* c) {
    int64_t row = 0;
    for (; row + TileRows <= p.rows; row += TileRows)
      tile<TileRows>(p, row, b, b_stride, c + row * p.c_stride);
    last_rows<TileRows - 1>(p, row, b, b_stride, c + row * p.c_stride);
  }

  // One tile of at most `Rows` rows that are left.
  template <int Rows, class Weight>
  static KVC_LLM_INLINE void last_rows(const Product& p, int64_t row, const Weight* b,
                                       int64_t b_stride, float* c) {
    if constexpr (Rows > 0) {
      if (p.rows - row < Rows) return last_rows<Rows - 1>(p, row, b, b_stride, c);
      tile<Rows>(p, row, b, b_stride, c);
    }
  }

  // e^x to a few units in the last place; x outside [-87, 87] is clamped. 2^n times a polynomial on
  // [-ln2/2, ln2/2].
  static KVC_LLM_INLINE void exponential(Vector& x) {
    const Vector low = Vector{} - 87.0f;
    const Vector high = Vector{} + 87.0f;
    x = x < low ? low : x;
    x = x > high ? high : x;
    // 1.5 * 2^23: adding it rounds to an integer in the low bits
    constexpr float kRounder = 12582912.0f;
    const Vector shifted = x * 1.44269504f + kRounder;
    const Vector n = shifted - kRounder;
    const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
    Vector poly = r * 1.9841270e-4f + 1.3888889e-3f;
    poly = poly * r + 8.3333333e-3f;
    poly = poly * r + 4.1666667e-2f;
    poly = poly * r + 1.6666667e-1f;
    poly = poly * r + 0.5f;
    poly = poly * r + 1.0f;
    poly = poly * r + 1.0f;
    Integers exponent;
    std::memcpy(&exponent, &shifted, VectorBytes);
    exponent = (exponent - 0x4B400000 + 127) << 23;  // 0x4B400000: the bits of kRounder
    Vector power;
    std::memcpy(&power, &exponent, VectorBytes);
    x = poly * power;
  }

  static KVC_LLM_INLINE void softmax(const SoftmaxBlock& s) {
    int32_t lane_numbers[kLanes];
    for (int i = 0; i < kLanes; ++i) lane_numbers[i] = i;
    Integers lane;
    std::memcpy(&lane, lane_numbers, VectorBytes);
    float lanes[kLanes];
    const Vector minus_infinity = Vector{} - std::numeric_limits<float>::infinity();
    for (int64_t row = 0; row < s.rows; ++row) {
      float* scores = s.scores + row * s.score_stride;
      const int32_t visible =
          static_cast<int32_t>(s.visible[row] < s.keys ? s.visible[row] : s.keys);
      if (visible <= 0) {
        for (int64_t key = 0; key < s.keys; ++key) scores[key] = 0.0f;
        continue;
      }
      Vector highest = minus_infinity;
      for (int64_t key = 0; key < visible; key += kLanes) {
        Vector x;
        std::memcpy(&x, scores + key, VectorBytes);
        x = lane + static_cast<int32_t>(key) < visible ? x : minus_infinity;
        highest = x > highest ? x : highest;
      }
      const float old_max = s.row_max[row];
      float new_max = old_max;
      std::memcpy(lanes, &highest, VectorBytes);
      for (int i = 0; i < kLanes; ++i) new_max = lanes[i] > new_max ? lanes[i] : new_max;
      Vector total = Vector{};
      for (int64_t key = 0; key < s.keys; key += kLanes) {
        Vector x;
        std::memcpy(&x, scores + key, VectorBytes);
        x = x - new_max;
        exponential(x);
        x = lane + static_cast<int32_t>(key) < visible ? x : Vector{};
        total += x;
        std::memcpy(scores + key, &x, VectorBytes);
      }
      std::memcpy(lanes, &total, VectorBytes);
      float sum = 0.0f;
      for (int i = 0; i < kLanes; ++i) sum += lanes[i];
      const float rescale = std::exp(old_max - new_max);  // 0 for the first block
      s.row_max[row] = new_max;
      s.row_sum[row] = s.row_sum[row] * rescale + sum;
      if (rescale == 1.0f) continue;
      float* accumulated = s.accumulated + row * s.dim;
      for (int64_t i = 0; i < s.dim; i += kLanes) {
        Vector x;
        std::memcpy(&x, accumulated + i, VectorBytes);
        x *= rescale;
        std::memcpy(accumulated + i, &x, VectorBytes);
      }
    }
  }

  // gate * sigmoid(inner) * up; `inner` changes a vector of gates in place.
  template <class Inner>
  static KVC_LLM_INLINE void gated(float* gate, const float* up, int64_t count,
                                   const Inner& inner) {
    const auto part = [&](float* g_at, const float* u_at, size_t bytes) KVC_LLM_INLINE_LAMBDA {
      Vector g{}, u{};
      std::memcpy(&g, g_at, bytes);
      std::memcpy(&u, u_at, bytes);
      Vector e = g;
      inner(e);
      e = -e;
      exponential(e);
      g = g / (e + 1.0f) * u;
      std::memcpy(g_at, &g, bytes);
    };
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) part(gate + i, up + i, VectorBytes);
    if (i < count) part(gate + i, up + i, static_cast<size_t>(count - i) * sizeof(float));
  }

  static KVC_LLM_INLINE void silu_multiply(float* gate, const float* up, int64_t count) {
    gated(gate, up, count, [](Vector&) KVC_LLM_INLINE_LAMBDA {});
  }

  // (1 + tanh(y)) / 2 is sigmoid(2y), with y = sqrt(2 / pi) (x + 0.044715 x^3).
  static KVC_LLM_INLINE void gelu_multiply(float* gate, const float* up, int64_t count) {
    gated(gate, up, count, [](Vector& x) KVC_LLM_INLINE_LAMBDA {
      x = x * (1.0f + 0.044715f * x * x) * 1.5957691216f;
    });
  }
};

}  // namespace kvc::llm
