// Calls that name pages, in caches whose pages have no memory.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

// int64 [n, 2].
class PairTensor {
 public:
  explicit PairTensor(std::vector<int64_t> ids)
      : ids_(std::move(ids)), shape_{static_cast<int64_t>(ids_.size()) / 2, 2} {
    view_ = {ids_.data(), {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape_, nullptr, 0};
  }
  PairTensor(const PairTensor&) = delete;
  PairTensor& operator=(const PairTensor&) = delete;
  const DLTensor* dl() const { return &view_; }

 private:
  std::vector<int64_t> ids_;
  int64_t shape_[2];
  DLTensor view_{};
};

TEST(PagesCopy, OfAModelWithoutLayersThatKeepPagesMovesNothing) {
  const std::vector<int64_t> shape{4};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    for (const bool is_stage :
         {false, true}) {  // states alone, or a stage that keeps none of the model's pages
      Net net({state_layer(states), is_stage ? attention_layer() : state_layer(states)}, 8);
      net.config.pool_layout = layout;
      if (is_stage) net.config.layer_end = 1;
      Cache cache(net.config);
      ASSERT_NE(cache.get(), nullptr);
      const PairTensor copied({0, 5, 1, 6});
      add_tokens(cache, 1, 9);
      expect_ok([&](kvc_error* err) {
        return kvc_pages_copy(cache.get(), copied.dl(), nullptr, nullptr, err);
      });
      // There is no host pool of pages without bytes.
      EXPECT_EQ(kvc_pages_swap(cache.get(), copied.dl(), KVC_SWAP_OUT, nullptr, nullptr, nullptr),
                KVC_E_UNSUPPORTED);
      ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
      add_tokens(cache, 2, 1);
      EXPECT_EQ(kvc_cache_resize(cache.get(), 16, nullptr), KVC_OK);
      EXPECT_EQ(kvc_cache_resize(cache.get(), 12, nullptr), KVC_OK);
      EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
    }
  }
}

}  // namespace
}  // namespace kvc::test
