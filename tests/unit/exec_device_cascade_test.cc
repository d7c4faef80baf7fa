// Whether a device reads a shared prefix once, with which kernel, and what its planner is told.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <numeric>
#include <random>
#include <vector>

#include "src/exec/cuda/cascade.h"

namespace kvc {
namespace {

using cuda::AttnKernel;

// As kernels/cuda/attn says for 132 multiprocessors and dims of 128.
constexpr int32_t kSms = 132;
constexpr cuda::AttnGeometry kGeometry[cuda::kNumAttnKernels] = {
    {16, 32, 396, 2}, {16, 64, 264, 2}, {64, 64, 264, 2}, {128, 128, 132, 2}, {64, 64, 132, 2}};

constexpr uint32_t bit(AttnKernel kernel) { return 1u << static_cast<uint32_t>(kernel); }

CascadeCall call_of(int32_t kv_heads, int32_t group, int32_t dim, AttnKernel small,
                    AttnKernel large, uint32_t kernels) {
  CascadeCall call{.num_kv_heads = kv_heads,
                   .group_size = group,
                   .k_dim = dim,
                   .v_dim = dim,
                   .key_bytes = 4 * dim,
                   .small = small,
                   .large = large,
                   .small_rows = 16,
                   .kernels = kernels,
                   .geometry = {}};
  std::copy(std::begin(kGeometry), std::end(kGeometry), std::begin(call.geometry));
  return call;
}
// 32 query heads over 8 kv heads in 16 bits, as sm_90a does them.
CascadeCall usual_call() {
  return call_of(8, 4, 128, AttnKernel::kMma16, AttnKernel::kWgmma,
                 bit(AttnKernel::kMma16) | bit(AttnKernel::kMma64) | bit(AttnKernel::kWgmma));
}

// Page tables of 16 tokens a page.
struct Batch {
  std::vector<std::vector<int32_t>> pages;
  std::vector<CascadeSequence> sequences;
  int32_t next_page = 0;
  int64_t num_rows = 0;

  std::vector<int32_t> fresh(int64_t tokens) {
    std::vector<int32_t> taken(static_cast<size_t>(tokens / 16));
    std::iota(taken.begin(), taken.end(), next_page);
    next_page += static_cast<int32_t>(taken.size());
    return taken;
  }
  void add(const std::vector<int32_t>& prefix, int64_t own_tokens, int64_t rows = 1) {
    pages.push_back(prefix);
    const std::vector<int32_t> own = fresh(own_tokens + 16 * rows);
    pages.back().insert(pages.back().end(), own.begin(), own.end());
    const int64_t keys = static_cast<int64_t>(prefix.size()) * 16 + own_tokens + 1;
    sequences.push_back({nullptr, nullptr, num_rows, rows, keys, keys - 1});
    num_rows += rows;
  }
  void add(int count, const std::vector<int32_t>& prefix, int64_t own_tokens, int64_t rows = 1) {
    for (int i = 0; i < count; ++i) add(prefix, own_tokens, rows);
  }
  DeviceCascade choose(const CascadeCall& call) {
    for (size_t i = 0; i < pages.size(); ++i)
      sequences[i].pages = sequences[i].device_pages = pages[i].data();
    DeviceCascade cascade;
    cascade.choose(sequences, call, 16, kSms);
    return cascade;
  }
};

TEST(DeviceCascade, TakesALongPrefixOfManyWithAKernelOfManyRows) {
  Batch batch;
  batch.add(64, batch.fresh(4096), 512);
  const DeviceCascade cascade = batch.choose(usual_call());
  ASSERT_EQ(cascade.entries.size(), 1u);
  EXPECT_EQ(cascade.entries[0].first_key_end, 4096);
  EXPECT_EQ(cascade.entries[0].num_rows, 64);
  EXPECT_TRUE(cascade.kernel == AttnKernel::kMma64 || cascade.kernel == AttnKernel::kWgmma);
  EXPECT_EQ(cascade.shares.size(), 65u);
}

TEST(DeviceCascade, TakesTheSmallKernelWhereItsTileHoldsAll) {
  Batch batch;
  batch.add(4, batch.fresh(8192), 4096);
  const DeviceCascade cascade = batch.choose(usual_call());
  ASSERT_EQ(cascade.entries.size(), 1u);
  EXPECT_EQ(cascade.kernel, AttnKernel::kMma16) << "16 packed rows";
}

TEST(DeviceCascade, LeavesAloneWhatDoesNotPay) {
  Batch none, brief, slight, few;
  for (int i = 0; i < 64; ++i) none.add({}, 4096);
  EXPECT_TRUE(none.choose(usual_call()).empty());
  brief.add(8, brief.fresh(64), 4096);
  EXPECT_TRUE(brief.choose(usual_call()).empty()) << "64 of 4,160 keys";
  few.add(2, few.fresh(256), 16);
  EXPECT_TRUE(few.choose(usual_call()).empty()) << "less to read than sharing costs";
  // Two share everything, and that is less than a twentieth of the work.
  slight.add(2, slight.fresh(2048), 16);
  for (int i = 0; i < 60; ++i) slight.add({}, 4096);
  EXPECT_TRUE(slight.choose(usual_call()).empty());
}

// 128 query heads read each latent: two tiles of 64 rows per token, whoever they belong to.
TEST(DeviceCascade, GainsNothingWhereOneTokenFillsATile) {
  for (const int32_t heads : {128, 16}) {
    CascadeCall call =
        call_of(1, heads, 576, AttnKernel::kLatent, AttnKernel::kLatent, bit(AttnKernel::kLatent));
    call.v_dim = 512;
    call.key_bytes = 1152;
    Batch batch;
    batch.add(64, batch.fresh(8192), 64);
    EXPECT_EQ(batch.choose(call).empty(), heads == 128) << heads << " heads";
  }
}

// What kernels/cuda/schedule/README.md asks for, over random trees of prefixes.
TEST(DeviceCascade, TellsThePlannerWhatItAsksFor) {
  std::mt19937_64 random(20261121);
  const auto below = [&](int64_t count) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  };
  int num_nested = 0, num_padded = 0, num_shared = 0;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    Batch batch;
    const auto group = static_cast<int32_t>(1 + below(8));
    for (int64_t root = below(3); root >= 0; --root) {
      const std::vector<int32_t> outer = batch.fresh(16 * (1 + below(300)));
      std::vector<int32_t> inner = outer;
      const std::vector<int32_t> more = batch.fresh(16 * (1 + below(300)));
      inner.insert(inner.end(), more.begin(), more.end());
      for (int64_t i = below(20); i >= 0; --i)
        batch.add(below(2) == 0 ? outer : inner, 16 * below(9), below(4) == 0 ? 1 + below(20) : 1);
    }
    CascadeCall call = usual_call();
    call.group_size = group;
    const DeviceCascade cascade = batch.choose(call);
    if (cascade.empty()) continue;
    ++num_shared;
    const cuda::AttnGeometry& geometry = kGeometry[static_cast<size_t>(cascade.kernel)];
    const size_t count = batch.sequences.size();
    ASSERT_EQ(cascade.shares.size(), count + cascade.entries.size());
    std::vector<int64_t> first_row{0}, members(cascade.entries.size(), 0),
        rows(cascade.entries.size(), 0);
    for (const kernels::AttnSequence& entry : cascade.entries)
      first_row.push_back(first_row.back() + entry.num_rows);
    ASSERT_EQ(first_row.back(), static_cast<int64_t>(cascade.row_map.size()));
    ASSERT_EQ(cascade.row_positions.size(), cascade.row_map.size());
    for (size_t i = 0; i < count; ++i) {
      const cuda::PrefixShare& share = cascade.shares[i];
      const CascadeSequence& sequence = batch.sequences[i];
      ASSERT_EQ(share.key_end, 0);
      int64_t key = 0;
      for (int32_t p = 0; p < share.num_prefixes; ++p) {
        const cuda::PrefixShare& prefix = cascade.shares[static_cast<size_t>(share.prefix[p])];
        const size_t entry = static_cast<size_t>(share.prefix[p]) - count;
        EXPECT_EQ(prefix.key_begin, key) << "prefixes lie one behind the other";
        EXPECT_EQ(prefix.num_prefixes, 0);
        key = prefix.key_end;
        EXPECT_EQ(prefix.key_begin % geometry.key_block, 0);
        EXPECT_EQ(prefix.key_end % geometry.key_block, 0);
        EXPECT_TRUE(std::equal(cascade.entries[entry].pages,
                               cascade.entries[entry].pages + key / 16, sequence.pages));
        EXPECT_EQ(share.prefix_row[p] * group / geometry.tile_rows,
                  ((share.prefix_row[p] + sequence.num_rows) * group - 1) / geometry.tile_rows)
            << "rows of a member lie in one tile";
        for (int64_t row = 0; row < sequence.num_rows; ++row) {
          const auto at = static_cast<size_t>(first_row[entry] + share.prefix_row[p] + row);
          EXPECT_EQ(cascade.row_map[at], sequence.row_begin + row);
          EXPECT_EQ(cascade.row_positions[at], sequence.position + row);
        }
        ++members[entry];
        rows[entry] += sequence.num_rows;
      }
      EXPECT_EQ(share.key_begin, key);
      EXPECT_LT(key, sequence.num_keys) << "a key of its own is left";
      if (share.num_prefixes == 2) ++num_nested;
    }
    for (size_t entry = 0; entry < cascade.entries.size(); ++entry) {
      EXPECT_GE(members[entry], 2);
      EXPECT_GE(cascade.entries[entry].num_rows, rows[entry]);
      if (cascade.entries[entry].num_rows > rows[entry]) ++num_padded;
    }
  }
  EXPECT_GT(num_shared, 100);
  EXPECT_GT(num_nested, 20);
  EXPECT_GT(num_padded, 20);
}

}  // namespace
}  // namespace kvc
