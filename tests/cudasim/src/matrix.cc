// ldmatrix, mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type")
// and conversions.
#include "cudasim/matrix.h"

#include <cstring>

#include "cudasim/engine.h"

namespace cudasim {
namespace {

struct LoadMatrix {
  const std::byte* row;
  uint32_t* r;
};

uint16_t element(void* const* arguments, int matrix, int row, int column) {
  uint16_t value;
  const auto* of = static_cast<const LoadMatrix*>(arguments[8 * matrix + row]);
  std::memcpy(&value, of->row + 2 * column, 2);
  return value;
}

template <bool Transposed>
void do_load_matrix(Cta&, void* const* arguments) {
  for (int lane = 0; lane < 32; ++lane) {
    const int major = lane / 4, minor = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const uint16_t low =
          Transposed ? element(arguments, i, minor, major) : element(arguments, i, major, minor);
      const uint16_t high = Transposed ? element(arguments, i, minor + 1, major)
                                       : element(arguments, i, major, minor + 1);
      static_cast<LoadMatrix*>(arguments[lane])->r[i] = low | (uint32_t{high} << 16);
    }
  }
}

struct Mma {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

template <bool Bf16>
float half(uint32_t pair, int which) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * which));
  return Bf16 ? std::bit_cast<float>(uint32_t{bits} << 16) : f16_to_float(bits);
}

template <bool Bf16>
void do_mma(Cta&, void* const* arguments) {
  double a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const Mma*>(arguments[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 2; ++i) {
      a[group][pair + i] = half<Bf16>(mine.a[0], i);
      a[group + 8][pair + i] = half<Bf16>(mine.a[1], i);
      a[group][pair + 8 + i] = half<Bf16>(mine.a[2], i);
      a[group + 8][pair + 8 + i] = half<Bf16>(mine.a[3], i);
      b[pair + i][group] = half<Bf16>(mine.b[0], i);
      b[pair + 8 + i][group] = half<Bf16>(mine.b[1], i);
      d[group][pair + i] = mine.d[i];
      d[group + 8][pair + i] = mine.d[2 + i];
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane) {
    float* mine = static_cast<const Mma*>(arguments[lane])->d;
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 2; ++i) {
      mine[i] = static_cast<float>(d[group][pair + i]);
      mine[2 + i] = static_cast<float>(d[group + 8][pair + i]);
    }
  }
}

constexpr Meeting kLoadMatrix = {"load_matrix_x4", do_load_matrix<false>};
constexpr Meeting kLoadMatrixTransposed = {"load_matrix_x4_transposed", do_load_matrix<true>};
constexpr Meeting kMmaF16 = {"mma_16816 of f16", do_mma<false>};
constexpr Meeting kMmaBf16 = {"mma_16816 of bf16", do_mma<true>};

}  // namespace

void load_matrix(uint32_t (&r)[4], const void* shared_row, bool transposed) {
  require_shared(shared_row, 16, 16, "load_matrix_x4");
  LoadMatrix mine{static_cast<const std::byte*>(shared_row), r};
  meet_warp(transposed ? kLoadMatrixTransposed : kLoadMatrix, &mine);
}

void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool is_bf16) {
  Mma mine{d, a, {b0, b1}};
  meet_warp(is_bf16 ? kMmaBf16 : kMmaF16, &mine);
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Shifted into place the exponent is 112 too small; the product is exact, subnormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // from 65520 on
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves multiples of 2^-24, rounded to even.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace cudasim
