// A pair that turns has the same bits wherever that is computed: by append (append_test.cc),
// element by element, and eight at a time for queries.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cudasim/cudasim.h"
#include "kernels/cuda/attn/mma/query.cuh"
#include "kernels/cuda/attn/wgmma/queries.cuh"
#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/runtime/launch.cuh"
#include "tests/unit/kernels_support.h"

namespace kvc::cuda {
namespace {

using kernels::DType;
using kernels::Rotation;
using kernels::test::Random;

constexpr int kDim = 64;

// One row of bf16, turned by row 0 of the angles: element by element, and in eights by either
// attention kernel.
struct Turned {
  float single[kDim], mma[kDim], wgmma[kDim];
};
void turn(const std::byte* row, Rotation rotation, Turned* out) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int d = lane; d < kDim; d += 32) {
    out->single[d] = rotated(rotation, 0, d,
                             [&](int32_t index) { return load_element(row, DType::kBF16, index); });
  }
  if (lane >= kDim / 8) return;
  float eight[8];
  attn_mma::load_eight_rotated(row, DType::kBF16, rotation, 0, 8 * lane, eight);
  std::memcpy(out->mma + 8 * lane, eight, sizeof(eight));
  wgmma::load_eight_rotated<DType::kBF16>(row, 8 * lane, rotation, 0, eight);
  std::memcpy(out->wgmma + 8 * lane, eight, sizeof(eight));
}

uint32_t bits(float value) { return __builtin_bit_cast(uint32_t, value); }

TEST(CudaRotation, APairHasTheSameBitsWhereverItTurns) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const bool interleaved = random.chance(0.5);
    const int32_t rotary = random.pick<int32_t>({16, 32, 64}), half = rotary / 2;
    const int32_t begin = random.pick<int32_t>({0, kDim - rotary});
    alignas(16) uint16_t row[kDim];
    std::vector<float> values(kDim);
    for (int d = 0; d < kDim; ++d) {
      row[d] = static_cast<uint16_t>(bits(static_cast<float>(random.normal())) >> 16);
      values[static_cast<size_t>(d)] = __builtin_bit_cast(float, uint32_t{row[d]} << 16);
    }
    const auto place = [&](int32_t pair, bool second) {
      return static_cast<size_t>(begin + (interleaved ? 2 * pair : pair) +
                                 (second ? (interleaved ? 1 : half) : 0));
    };
    // Angles that leave one of a pair next to nothing: what is rounded on the way is all that there
    // is.
    alignas(16) float cos[kDim / 2], sin[kDim / 2];
    for (int32_t pair = 0; pair < half; ++pair) {
      const float x = values[place(pair, false)], y = values[place(pair, true)];
      const auto t = static_cast<float>(random.normal());
      cos[pair] = (pair % 2 == 0 ? y : x) * t;
      sin[pair] = (pair % 2 == 0 ? x : -y) * t;
    }
    const Rotation rotation{cos, sin, rotary, interleaved ? 1 : 0, begin};
    Turned found;
    LaunchShape shape;
    shape.threads = 32;
    ASSERT_EQ(
        launch(turn, shape, nullptr, reinterpret_cast<const std::byte*>(row), rotation, &found),
        cudaSuccess);
    for (int32_t pair = 0; pair < half; ++pair) {
      const float x = values[place(pair, false)], y = values[place(pair, true)], c = cos[pair],
                  s = sin[pair];
      values[place(pair, false)] = std::fmaf(x, c, -(y * s));
      values[place(pair, true)] = std::fmaf(y, c, x * s);
    }
    for (size_t d = 0; d < kDim; ++d) {
      ASSERT_EQ(bits(found.single[d]), bits(values[d])) << "element " << d;
      ASSERT_EQ(bits(found.mma[d]), bits(values[d])) << "element " << d << " of attn_mma";
      ASSERT_EQ(bits(found.wgmma[d]), bits(values[d])) << "element " << d << " of attn_wgmma";
    }
  }
}

}  // namespace
}  // namespace kvc::cuda
