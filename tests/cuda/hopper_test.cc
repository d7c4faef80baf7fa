// Layouts of wgmma operands as TMA writes them, and the table of tensor maps.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cuda/attn/tensor_map.h"
#include "kernels/cuda/attn/wgmma/config.h"
#include "kernels/cuda/ptx/wgmma_layout.h"

namespace kvc::cuda::hopper_test {
namespace {

// Where a TMA box of 64 elements x `box_rows` rows, written to `start`, puts an element: dense,
// then the swizzle of addresses.
uint32_t tma_address(uint32_t start, int32_t row, int32_t element) {
  return swizzled_128(start + static_cast<uint32_t>(row * kSwizzleBytes + element * 2));
}

TEST(WgmmaLayout, BoxesOfAnyHeightMakeTheSameBlock) {
  for (const int32_t rows : {64, 128}) {
    for (const int32_t box_rows : {1, 2, 4, 8, 16, 32, 64}) {
      for (int32_t row = 0; row < rows; ++row) {
        for (int32_t element = 0; element < 192; ++element) {
          const auto box =
              static_cast<uint32_t>(element / 64 * rows * 128 + row / box_rows * box_rows * 128);
          EXPECT_EQ(tma_address(4096 + box, row % box_rows, element % 64),
                    4096 + static_cast<uint32_t>(block_offset(rows, row, element)));
        }
      }
    }
  }
}

TEST(WgmmaLayout, EveryElementHasItsOwnPlace) {
  std::set<int32_t> places;
  for (int32_t row = 0; row < 64; ++row) {
    for (int32_t element = 0; element < 128; ++element)
      places.insert(block_offset(64, row, element));
  }
  EXPECT_EQ(places.size(), 64u * 128);
  EXPECT_EQ(*places.rbegin(), 64 * 128 * 2 - 2);
}

// K as B of Q * K^T: columns are keys, the sum runs over the head's elements.
TEST(WgmmaLayout, KMajorDescriptorsFindWhatTmaWrote) {
  constexpr uint32_t kStart = 8192;
  for (const int32_t rows : {64, 128}) {
    for (int32_t step = 0; step < 192 / 16; ++step) {
      const uint32_t start = kStart + static_cast<uint32_t>(k_major_step(rows, step));
      for (int32_t row = 0; row < rows; ++row) {
        for (int32_t of_sum = 0; of_sum < 16; ++of_sum) {
          EXPECT_EQ(k_major_address(start, kStrideBytes, row, of_sum),
                    kStart + static_cast<uint32_t>(block_offset(rows, row, 16 * step + of_sum)));
        }
      }
    }
  }
}

// Half of a block's keys as B, from the descriptor's start on.
TEST(WgmmaLayout, KMajorDescriptorsMayStartAtATileOfRows) {
  for (int32_t row = 0; row < 32; ++row) {
    EXPECT_EQ(k_major_address(32 * kSwizzleBytes, kStrideBytes, row, 3),
              static_cast<uint32_t>(block_offset(64, 32 + row, 3)));
  }
}

// V as B of P * V: columns are elements, the sum runs over keys.
TEST(WgmmaLayout, NMajorDescriptorsFindWhatTmaWrote) {
  for (const int32_t keys : {64, 128}) {
    for (int32_t step = 0; step < keys / 16; ++step) {
      for (int32_t column = 0; column < 256; ++column) {
        for (int32_t of_sum = 0; of_sum < 16; ++of_sum) {
          EXPECT_EQ(n_major_address(static_cast<uint32_t>(n_major_step(step)), leading_bytes(keys),
                                    kStrideBytes, column, of_sum),
                    static_cast<uint32_t>(block_offset(keys, 16 * step + of_sum, column)));
        }
      }
    }
  }
}

TEST(WgmmaLayout, BoxesNeverCrossAPage) {
  using wgmma::box_rows_of;
  EXPECT_EQ(box_rows_of(16, 128), 16);
  EXPECT_EQ(box_rows_of(48, 128), 16);
  EXPECT_EQ(box_rows_of(96, 128), 32);
  EXPECT_EQ(box_rows_of(64, 128), 64);
  EXPECT_EQ(box_rows_of(256, 128), 128);
  EXPECT_EQ(box_rows_of(256, 64), 64);
  EXPECT_EQ(box_rows_of(wgmma::kRaggedPage, 128), wgmma::kRaggedBoxRows);
}

TEST(TensorMap, RowsThatTmaCannotAddressAreRefused) {
  alignas(16) std::byte memory[64];
  const char* why = nullptr;
  kernels::PagedRows rows{memory, 4096, 2048, 256, kernels::DType::kBF16};
  EXPECT_TRUE(paged_map_fits(rows, 2, &why));
  rows.head_stride = 8;
  EXPECT_FALSE(paged_map_fits(rows, 2, &why));
  EXPECT_TRUE(paged_map_fits(rows, 1, &why));  // one head has no stride
  rows.page_stride = int64_t{1} << 40;
  EXPECT_FALSE(paged_map_fits(rows, 1, &why));
  rows = {memory + 8, 4096, 2048, 256, kernels::DType::kBF16};
  EXPECT_FALSE(paged_map_fits(rows, 1, &why));
  EXPECT_NE(why, nullptr);
}

TEST(TensorMap, MapsAreKeptPerTensorAndThreadsMayAsk) {
  alignas(16) static std::byte memory[4096];
  const auto ask = [&](int32_t i) {
    const kernels::PagedRows rows{memory + 16 * (i % 64), 4096, 2048, 256, kernels::DType::kBF16};
    TensorMap kept{}, fresh{};
    const PagedMapKey key = paged_map_key(rows, 128, 16, 2, i % 2 == 0 ? 16 : 1);
    return paged_map(key, &kept) == cudaSuccess && encode_paged_map(key, &fresh) == cudaSuccess &&
           std::memcmp(&kept, &fresh, sizeof(kept)) == 0;
  };
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t i = 0; i < 3000; ++i) wrong[static_cast<size_t>(t)] += ask(i * (t + 1)) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace kvc::cuda::hopper_test
