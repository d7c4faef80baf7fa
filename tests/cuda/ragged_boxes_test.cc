// The end of ragged keys: boxes of all that is left and nothing else, however long the sequence is.
#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cudasim/cudasim.h"
#include "kernels/cuda/attn/latent/config.h"
#include "kernels/cuda/attn/tensor_map.h"
#include "kernels/cuda/attn/wgmma/producer.cuh"
#include "kernels/cuda/launches.h"
#include "tests/cuda/hopper_attention.h"

namespace kvc::cuda::hopper_test {
namespace {

constexpr int32_t kBoxRows = wgmma::kRaggedBoxRows, kDigits = wgmma::kRaggedMaps;

TEST(RaggedBoxes, KeysAndZerosFillTheBoxOnceInFewAlignedParts) {
  for (int32_t rows = 0; rows < kBoxRows; ++rows) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    std::vector<int> times(kBoxRows);
    int boxes = 0;
    for (const bool of_zeros : {false, true}) {
      for (int32_t digit = 0; digit < 8; ++digit) {
        const wgmma::RaggedBox box = wgmma::ragged_box(rows, digit, of_zeros);
        if (!box.exists) continue;
        ++boxes;
        ASSERT_LT(digit, kDigits);  // there is a map of so many rows
        ASSERT_EQ(box.digit, digit);
        ASSERT_EQ(box.row % (1 << digit), 0);
        for (int32_t row = box.row; row < box.row + (1 << digit); ++row) {
          ASSERT_EQ(row >= rows, of_zeros);
          ++times.at(static_cast<size_t>(row));
        }
      }
    }
    ASSERT_EQ(times, std::vector<int>(kBoxRows, 1));
    ASSERT_LE(boxes, kDigits);
  }
}

TEST(RaggedBoxes, MapsOfAllHeightsAreKept) {
  alignas(16) static std::byte memory[2][64];
  TensorMap maps[2][kDigits];
  const auto make = [&] {
    for (int half = 0; half < 2; ++half) {
      const kernels::PagedRows rows{memory[half], 512, 256, 256, DType::kBF16};
      ASSERT_EQ(paged_maps(paged_map_key(rows, 128, INT_MAX, 1, kBoxRows), wgmma::num_maps(INT_MAX),
                           maps[half]),
                cudaSuccess);
    }
  };
  make();
  EXPECT_NE(std::memcmp(&maps[0][0], &maps[0][1], sizeof(TensorMap)), 0);
  EXPECT_NE(std::memcmp(&maps[0][0], &maps[1][0], sizeof(TensorMap)), 0);
  cudasim::reset_counters();
  make();
  EXPECT_EQ(cudasim::counters().calls, 0u);  // none is encoded again
}

// Sequences of every length that a box can be cut at, one row and head each: `pieces` of 64
// elements per block.
template <typename Kernel>
void run_every_length(HopperCase of, uint64_t seed, int64_t boxes_of_block, uint64_t pieces,
                      Kernel kernel) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  of.page_size = INT_MAX, of.causal = false;
  of.num_kv_heads = 1;
  of.num_sequences = kBoxRows;
  HopperProblem problem(seed, of);
  cudasim::reset_counters();
  problem.run(kernel);
  if (::testing::Test::HasFailure()) return;
  // Whole boxes, and of each sequence's last one the digits; the rest of the block is zeros.
  uint64_t most = 0;
  for (int32_t i = 0; i < kBoxRows; ++i) {
    const int64_t keys = of.first_keys + i, boxes = (keys + kBoxRows - 1) / kBoxRows;
    const int64_t blocks = (boxes + boxes_of_block - 1) / boxes_of_block;
    most += pieces * static_cast<uint64_t>(blocks * boxes_of_block +
                                           (keys % kBoxRows != 0 ? kDigits - 1 : 0));
  }
  EXPECT_LE(cudasim::counters().tma_boxes, most);
}

TEST(RaggedBoxes, AnyLengthIsReadToItsEndByWgmma) {
  for (const int64_t first_keys : {1, 65}) {
    for (const int64_t dim : {64, 256}) {
      HopperCase of;
      of.first_keys = first_keys;
      of.k_dim = of.v_dim = dim;
      of.group_size = 2;
      const int64_t boxes_of_block = dim == 256 ? 1 : 2;
      run_every_length(of, 700 + static_cast<uint64_t>(first_keys), boxes_of_block,
                       static_cast<uint64_t>(2 * dim / 64), [](const AttnLaunch& launch) {
                         ASSERT_TRUE(attn_wgmma_fits(launch, {.arch = 90}, nullptr));
                         ASSERT_EQ(attn_wgmma(launch, nullptr), cudaSuccess);
                       });
      if (HasFailure()) return;
    }
  }
}

TEST(RaggedBoxes, AnyLengthIsReadToItsEndByLatent) {
  HopperCase of;
  of.first_keys = 1;
  of.k_dim = latent::kKDim, of.v_dim = latent::kVDim;
  of.group_size = 2, of.tile_rows = latent::kTileRows;
  of.same_rows = true;
  run_every_length(of, 800, 1, latent::kColumnBoxes, [](const AttnLaunch& launch) {
    ASSERT_TRUE(attn_latent_fits(launch, {.arch = 90}, nullptr));
    ASSERT_EQ(attn_latent(launch, nullptr), cudaSuccess);
  });
}

}  // namespace
}  // namespace kvc::cuda::hopper_test
