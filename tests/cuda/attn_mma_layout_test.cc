// The maps of attn_mma/layout.h: every byte has one place, phases of eight lanes meet no bank
// twice, fragments hold what the product needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/cuda/attn/mma/config.h"
#include "kernels/cuda/attn/mma/layout.h"

namespace kvc::cuda::attn_mma {
namespace {

// How often the busiest of the 32 banks is met by eight accesses of 16 bytes: 1 is free of
// conflicts.
int passes(const std::vector<int>& offsets) {
  std::vector<int> meetings(32, 0);
  for (const int offset : offsets)
    for (int word = 0; word < 4; ++word) ++meetings[static_cast<size_t>(offset / 4 + word) % 32];
  return *std::max_element(meetings.begin(), meetings.end());
}

template <int kRowBytes>
void check_tile() {
  constexpr int kChunks = kRowBytes / 16;
  std::set<int> places;
  for (int row = 0; row < 64; ++row)
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int offset = chunk_offset<kRowBytes>(row, chunk);
      EXPECT_EQ(offset % 16, 0);
      EXPECT_EQ(offset / kRowBytes, row);
      EXPECT_TRUE(places.insert(offset).second);
    }
  EXPECT_EQ(places.size(), size_t{64 * kChunks});

  // ldmatrix: eight rows of one matrix at a time, by both ways to spread matrices.
  for (int way = 0; way < 2; ++way)
    for (int t = 0; t < 4; ++t)
      for (int pair = 0; pair < kChunks / 2; ++pair)
        for (int matrix = 0; matrix < 4; ++matrix) {
          std::vector<int> offsets;
          for (int r = 0; r < 8; ++r) {
            const MatrixLane lane =
                way == 0 ? key_lane(8 * matrix + r) : value_lane(8 * matrix + r);
            const MatrixAddress address = matrix_address<kRowBytes>(lane);
            const int offset =
                t * 16 * kRowBytes + address.row_offset + ((pair * 32) ^ address.chunk_mask);
            EXPECT_EQ(offset, chunk_offset<kRowBytes>(16 * t + lane.row, 2 * pair + lane.chunk));
            offsets.push_back(offset);
          }
          EXPECT_EQ(passes(offsets), 1);
        }

  // Copies: lane -> row and chunk as in copy_rows.
  constexpr int kLanes = lanes_per_row<kRowBytes>();
  for (int c = 0; c < kChunks; c += kLanes)
    for (int phase = 0; phase < 4; ++phase) {
      std::vector<int> offsets;
      for (int lane = 8 * phase; lane < 8 * phase + 8; ++lane)
        offsets.push_back(chunk_offset<kRowBytes>(lane / kLanes, c + lane % kLanes));
      EXPECT_EQ(passes(offsets), 1);
    }
}

TEST(AttnMmaLayout, SwizzlesWithoutBankConflicts) {
  check_tile<64>();
  check_tile<128>();
  check_tile<256>();
  check_tile<384>();
  check_tile<512>();
}

TEST(AttnMmaLayout, SpreadsMatricesOverRowsAndChunks) {
  std::set<int> key, value;
  for (int lane = 0; lane < 32; ++lane) {
    key.insert(key_lane(lane).row * 2 + key_lane(lane).chunk);
    value.insert(value_lane(lane).row * 2 + value_lane(lane).chunk);
  }
  EXPECT_EQ(key.size(), 32u);
  EXPECT_EQ(value.size(), 32u);
}

// Dims that the B fragment of 8-bit K holds in columns c of 16: lane p of a quad loads dims 4p ..
// 4p + 3, the first two become b0 (columns 2p, 2p + 1), the others b1 (columns 2p + 8, 2p + 9). Q
// stands in the same columns.
TEST(AttnMmaLayout, OrdersQueriesAsEightBitKeysLie) {
  for (int p = 0; p < 4; ++p)
    for (int i = 0; i < 4; ++i) {
      const int dim = 4 * p + i, column = 2 * p + i % 2 + (i / 2) * 8;
      EXPECT_EQ(eight_bit_column_pair(dim / 2) * 2 + dim % 2, column);
    }
}

template <bool kEightBit>
void check_output_dims() {
  std::set<int> dims;
  for (int n = 0; n < 16; ++n)
    for (int quad_lane = 0; quad_lane < 4; ++quad_lane)
      for (int e = 0; e < 2; ++e) {
        dims.insert(output_dim<kEightBit>(quad_lane, n, e));
        EXPECT_EQ(output_dim<kEightBit>(quad_lane, n, e),
                  output_dim<kEightBit>(quad_lane + 4, n, e + 2));
      }
  EXPECT_EQ(dims.size(), 128u);
  EXPECT_EQ(*dims.rbegin(), 127);
}
TEST(AttnMmaLayout, WritesEveryOutputDimOnce) {
  check_output_dims<false>();
  check_output_dims<true>();
}

// Accumulators on their way out: pairs of floats (16-bit), the lanes of a half warp together.
TEST(AttnMmaLayout, StoresAccumulatorsWithoutBankConflicts) {
  const auto busiest = [](int stride, int floats, int lanes, auto dim_of) {
    std::vector<int> meetings(32, 0);
    for (int lane = 0; lane < lanes; ++lane)
      for (int i = 0; i < floats; ++i)
        ++meetings[static_cast<size_t>((lane / 4) * stride + dim_of(lane) + i) % 32];
    return *std::max_element(meetings.begin(), meetings.end());
  };
  using Wide = Config<16, 128, 128, Kv::kBF16>;
  using Narrow = Config<16, 128, 128, Kv::kE4M3>;
  EXPECT_EQ(
      busiest(Wide::kOutStride, 2, 16, [](int lane) { return output_dim<false>(lane, 0, 0); }), 1);
  // 8-bit: four dims of a lane are stored one after the other; a quarter warp's four dims cover all
  // banks.
  EXPECT_EQ(
      busiest(Narrow::kOutStride, 4, 8, [](int lane) { return output_dim<true>(lane, 0, 0); }), 1);
}

}  // namespace
}  // namespace kvc::cuda::attn_mma
