// Resident memory of the process: what a pool costs follows what is in use.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <vector>

#include "tests/capi/prefix_support.h"

namespace kvc::test {
namespace {

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * int64_t{sysconf(_SC_PAGESIZE)};
}

// 1,000 pages of 256 KiB in four layers.
class ResidentMemory : public testing::Test {
 protected:
  static constexpr int64_t kPageTokens = 16, kHeadsOfLayer = 8, kDimOfLayer = 128;
  static constexpr int64_t kPageBytes = 4 * 2 * kPageTokens * kHeadsOfLayer * kDimOfLayer * 2;

  ResidentMemory() : net_(layers(), 1000) {
    net_.config.page_size = kPageTokens;
    cache_ = std::make_unique<Cache>(net_.config);
    row_ = std::make_unique<HostTensor>(
        Elem::kBF16, std::vector<int64_t>{kMostTokens, kHeadsOfLayer, kDimOfLayer});
    Random random(1);
    row_->fill_random(random);
    append(0, 1);  // What the first forward allocates beside the pool.
    remove_seq(*cache_, 0);
    before_ = resident_bytes();
  }
  static std::vector<kvc_layer> layers() {
    kvc_layer layer = attention_layer();
    layer.num_q_heads = layer.num_kv_heads = kHeadsOfLayer;
    layer.k_dim = kDimOfLayer;
    layer.k_dtype = dl_type(Elem::kBF16);
    return std::vector<kvc_layer>(4, layer);
  }
  void append(kvc_seq seq, int64_t pages) {
    ASSERT_EQ(kvc_seq_add(cache_->get(), seq, nullptr), KVC_OK);
    ASSERT_EQ(cache_->begin({seq}, {pages * kPageTokens}), KVC_OK);
    for (int32_t layer = 0; layer < 4; ++layer)
      ASSERT_EQ(kvc_kv_append(cache_->forward, layer, row_->dl(), row_->dl(), nullptr), KVC_OK);
    cache_->end();
  }
  int64_t grown() const { return resident_bytes() - before_; }

  static constexpr int64_t kMostTokens = 100 * kPageTokens;
  Net net_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<HostTensor> row_;
  int64_t before_ = 0;
};

TEST_F(ResidentMemory, OfRequestsOneAfterTheOtherIsThatOfOne) {
  append(1, 3);
  const int64_t one = std::max(grown(), 3 * kPageBytes);
  remove_seq(*cache_, 1);
  for (kvc_seq seq = 2; seq < 402; ++seq) {
    append(seq, 3);
    remove_seq(*cache_, seq);
  }
  EXPECT_LE(grown(), 2 * one);
}

// Four at a time, of 1 to 8 pages.
TEST_F(ResidentMemory, OfRequestsSideBySideIsThatOfTheirMost) {
  for (kvc_seq seq = 1; seq <= 4; ++seq) append(seq, 8);
  const int64_t most = std::max(grown(), 32 * kPageBytes);
  Random random(3);
  for (kvc_seq seq = 5; seq < 205; ++seq) {
    remove_seq(*cache_, seq - 4);
    append(seq, random.range(1, 8));
  }
  EXPECT_LE(grown(), 2 * most);
}

}  // namespace
}  // namespace kvc::test
