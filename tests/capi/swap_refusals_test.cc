// What kvc_swap_out and kvc_swap_in refuse, what a swapped sequence refuses, and caches whose pools
// are special.
#include <cstring>
#include <numeric>

#include "tests/capi/borrowed.h"
#include "tests/capi/swap.h"

namespace kvc::test {
namespace {

constexpr kvc_seq kGone = 77;

// Sequences 1 (11 tokens, 3 pages), 2 (5 tokens, 2 pages) and an empty 3; 8 pages on the device, 4
// on the host.
class SwapRefusals : public testing::Test {
 protected:
  SwapRefusals() {
    set_host_pages(net_.config, 4);
    cache_ = std::make_unique<Cache>(net_.config);
    append_pattern(*cache_, 1, 11, 1);
    append_pattern(*cache_, 2, 5, 2);
    EXPECT_EQ(kvc_seq_add(get(), 3, nullptr), KVC_OK);
  }
  kvc_cache* get() const { return cache_->get(); }
  Net net_{{attention_layer()}, 8};
  std::unique_ptr<Cache> cache_;
};

using Move = kvc_status (*)(kvc_cache*, size_t, const kvc_seq*, kvc_stream, kvc_fence**,
                            kvc_error*);

TEST_F(SwapRefusals, BadArgumentsAreNamed) {
  ASSERT_EQ(swap_out(*cache_, {3}), KVC_OK);
  for (const Move move : {Move{&kvc_swap_out}, Move{&kvc_swap_in}}) {
    const bool out = move == Move{&kvc_swap_out};
    SCOPED_TRACE(out ? "kvc_swap_out" : "kvc_swap_in");
    const kvc_seq good = out ? 1 : 3;
    kvc_fence* fence = nullptr;
    const auto call = [&](const std::vector<kvc_seq>& seqs) -> Call {
      return [this, seqs, move, &fence](kvc_error* err) {
        return move(get(), seqs.size(), seqs.data(), nullptr, &fence, err);
      };
    };
    expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
                 [&](kvc_error* err) { return move(nullptr, 1, &good, nullptr, &fence, err); });
    expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"n = 0"}, call({}));
    expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"seqs", "n = 2"},
                   [&](kvc_error* err) { return move(get(), 2, nullptr, nullptr, &fence, err); });
    expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"sequence ", std::to_string(good).c_str()},
                   call({good, good}));
    EXPECT_EQ(expect_refused(*cache_, KVC_E_NOT_FOUND, {"sequence 77"}, call({good, kGone})).detail,
              kGone);
    expect_refused(*cache_, KVC_E_NOT_FOUND, {"sequence -1"}, call({-1}));
    EXPECT_EQ(fence, nullptr) << "outputs are written on success only";
  }
}

TEST_F(SwapRefusals, OnlyWhatIsOnTheDeviceGoesAndOnlyWhatIsOnTheHostComes) {
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  expect_refused(*cache_, KVC_E_INVALID_STATE, {"sequence 1", "swapped"}, [&](kvc_error* err) {
    return swap_out(*cache_, {3, 1}, err);
  });
  expect_refused(*cache_, KVC_E_INVALID_STATE, {"sequence 2", "swapped"}, [&](kvc_error* err) {
    return swap_in(*cache_, {1, 2}, err);
  });
  EXPECT_EQ(info_of(*cache_, 1).is_swapped, 1) << "none of the call has moved";
}

TEST_F(SwapRefusals, AnUncommittedTreeStays) {
  ASSERT_EQ(cache_->begin_with({{2}, {2}, {-1, 0}}), KVC_OK);
  cache_->finish();
  expect_refused(*cache_, KVC_E_INVALID_STATE, {"sequence 2", "tree"}, [&](kvc_error* err) {
    return swap_out(*cache_, {3, 2}, err);
  });
  const kvc_seq seq = 2;
  const int32_t leaf = 0;
  ASSERT_EQ(kvc_tree_commit(get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(swap_out(*cache_, {3, 2}), KVC_OK);
}

TEST_F(SwapRefusals, ASequenceOfTheOpenForwardStays) {
  ASSERT_EQ(cache_->begin({2}, {1}), KVC_OK);
  expect_refused(*cache_, KVC_E_BUSY, {"sequence 2"}, [&](kvc_error* err) {
    return swap_out(*cache_, {1, 2}, err);
  });
  EXPECT_EQ(swap_out(*cache_, {1}), KVC_OK) << "others go";
  cache_->abort();
  EXPECT_EQ(pattern_difference(*cache_, 2, 2), "");
}

TEST_F(SwapRefusals, AFullHostTellsHowManyPagesAreMissing) {
  EXPECT_EQ(expect_refused(*cache_, KVC_E_NO_PAGES, {"host", "5", "4"},
                           [&](kvc_error* err) {
                             return swap_out(*cache_, {1, 2}, err);
                           })
                .detail,
            1);
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  EXPECT_EQ(expect_refused(*cache_, KVC_E_NO_PAGES, {"host"},
                           [&](kvc_error* err) { return swap_out(*cache_, {2}, err); })
                .detail,
            1);
  EXPECT_EQ(pattern_difference(*cache_, 2, 2), "");
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  ASSERT_EQ(swap_out(*cache_, {2}), KVC_OK);
}

TEST_F(SwapRefusals, AFullDeviceTellsHowManyPagesAreMissing) {
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  append_pattern(*cache_, 2, 15, 2);
  append_pattern(*cache_, 4, 5, 4);
  ASSERT_EQ(kvc_cache_available_pages(get()), 1);
  EXPECT_EQ(expect_refused(*cache_, KVC_E_NO_PAGES, {"3 pages", "2 pages"},
                           [&](kvc_error* err) { return swap_in(*cache_, {1}, err); })
                .detail,
            2);
  ASSERT_EQ(kvc_seq_remove(get(), 4, nullptr), KVC_OK);
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  EXPECT_EQ(pattern_difference(*cache_, 1, 1), "");
  EXPECT_EQ(pattern_difference(*cache_, 2, 2), "");
}

TEST(Swap, WithoutAHostBudgetThereIsNowhereToGo) {
  Net net({attention_layer()});
  Cache cache(net.config);
  append_pattern(cache, 1, 6, 1);
  EXPECT_EQ(plan_of(cache.plan()).num_host_pages, 0);
  expect_refused(cache, KVC_E_UNSUPPORTED, {"host_byte_budget"},
                 [&](kvc_error* err) { return swap_out(cache, {1}, err); });
  expect_refused(cache, KVC_E_INVALID_STATE, {"sequence 1"},
                 [&](kvc_error* err) { return swap_in(cache, {1}, err); });
}

TEST_F(SwapRefusals, ASwappedSequenceTakesNothingElse) {
  ASSERT_EQ(kvc_seq_fork(get(), 1, 5, -1, nullptr), KVC_OK);
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  const kvc_seq one = 1;
  const int64_t length = 1;
  const int32_t leaf = 0;
  int64_t number = 0;
  HostTensor rows(Elem::kF32, {1, 1, kDim}), layers(Elem::kF32, {1, 1, 1, kDim});
  DLManagedTensorVersioned* pages = nullptr;
  const int32_t token = 3;
  kvc_prefix_query query{};
  query.struct_size = sizeof query;
  query.num_tokens = 1;
  query.tokens = &token;
  const std::pair<const char*, Call> calls[] = {
      {"fork", [&](kvc_error* err) { return kvc_seq_fork(get(), 1, 9, 4, err); }},
      {"pop", [&](kvc_error* err) { return kvc_seq_pop(get(), 1, 1, err); }},
      {"pop of nothing", [&](kvc_error* err) { return kvc_seq_pop(get(), 1, 0, err); }},
      {"shift", [&](kvc_error* err) { return kvc_seq_shift(get(), 1, 0, 1, -1, err); }},
      {"window", [&](kvc_error* err) { return kvc_seq_set_window(get(), 1, 4, 0, err); }},
      {"can append",
       [&](kvc_error* err) { return kvc_seq_can_append(get(), 1, &one, &length, &number, err); }},
      {"can",
       [&](kvc_error* err) { return kvc_seq_can(get(), 1, KVC_SEQ_FORK, -1, &number, err); }},
      {"begin",
       [&](kvc_error* err) {
         return cache_->begin({2, 1}, {1, 1}, err);
       }},
      {"commit",
       [&](kvc_error* err) { return kvc_tree_commit(get(), 1, &one, &leaf, nullptr, err); }},
      {"get kv",
       [&](kvc_error* err) {
         return kvc_debug_get_kv(get(), 1, 0, 1, layers.dl(), layers.dl(), nullptr, err);
       }},
      {"set kv",
       [&](kvc_error* err) {
         return kvc_debug_set_kv(get(), 1, 0, layers.dl(), layers.dl(), nullptr, err);
       }},
      {"get layer",
       [&](kvc_error* err) {
         return kvc_debug_get_layer(get(), 1, 0, 0, 1, rows.dl(), rows.dl(), nullptr, err);
       }},
      {"set layer",
       [&](kvc_error* err) {
         return kvc_debug_set_layer(get(), 1, 0, 0, rows.dl(), rows.dl(), nullptr, err);
       }},
      {"pages", [&](kvc_error* err) { return kvc_export_seq_pages(get(), 1, 0, &pages, err); }},
      {"insert", [&](kvc_error* err) { return kvc_prefix_insert(get(), 1, &query, &number, err); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    expect_refused(*cache_, KVC_E_INVALID_STATE, {"sequence 1"}, call);
  }
  EXPECT_EQ(pages, nullptr);
  expect_refused(*cache_, KVC_E_ALREADY_EXISTS, {"1"},
                 [&](kvc_error* err) { return kvc_seq_add(get(), 1, err); });
  expect_refused(*cache_, KVC_E_ALREADY_EXISTS, {"1"},
                 [&](kvc_error* err) { return kvc_seq_fork(get(), 2, 1, -1, err); });
  ASSERT_EQ(cache_->begin({2}, {1}), KVC_OK);
  HostTensor k(Elem::kF32, {11, 1, kDim}), v(Elem::kF32, {11, 1, kDim});
  fill_pattern(k, 2, 0, 0, 5);
  fill_pattern(v, 2, 0, 1, 5);
  ASSERT_EQ(kvc_kv_append(cache_->forward, 0, k.dl(), v.dl(), nullptr), KVC_OK);
  expect_refused(*cache_, KVC_E_INVALID_STATE, {"sequence 1"}, [&](kvc_error* err) {
    return kvc_kv_gather(cache_->forward, 0, 1, k.dl(), v.dl(), err);
  });
  cache_->finish();
  // What it does take.
  size_t count = 0;
  EXPECT_EQ(kvc_seq_list(get(), nullptr, &count, nullptr), KVC_OK);
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(kvc_seq_length(get(), 1, &number, nullptr), KVC_OK);
  EXPECT_EQ(number, 11);
  EXPECT_EQ(info_of(*cache_, 1).is_swapped, 1);
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  for (const kvc_seq seq : {1, 5}) EXPECT_EQ(pattern_difference(*cache_, seq, 1), "");
  EXPECT_EQ(pattern_difference(*cache_, 2, 2), "");
}

TEST(Swap, ASwappedSequenceKeepsItsStatesToItself) {
  const std::vector<int64_t> shape{2, 3};
  const std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net({attention_layer(), state_layer(specs), mla_layer()});
  set_host_pages(net.config, 9);
  Cache cache(net.config);
  append_pattern(cache, 1, 6, 1);
  ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
  HostTensor state(Elem::kF32, {2, 3}), latent(Elem::kF32, {3, 1, kRank + kRopeDim});
  const std::pair<const char*, Call> calls[] = {
      {"checkpoint", [&](kvc_error* err) { return kvc_state_checkpoint(cache.get(), 1, err); }},
      {"get state",
       [&](kvc_error* err) {
         return kvc_debug_get_state(cache.get(), 1, 1, 0, state.dl(), nullptr, err);
       }},
      {"set state",
       [&](kvc_error* err) {
         return kvc_debug_set_state(cache.get(), 1, 1, 0, state.dl(), nullptr, err);
       }},
      {"get mla",
       [&](kvc_error* err) {
         return kvc_debug_get_mla(cache.get(), 1, 0, 1, latent.dl(), nullptr, err);
       }},
      {"set mla",
       [&](kvc_error* err) {
         return kvc_debug_set_mla(cache.get(), 1, 0, latent.dl(), nullptr, err);
       }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    expect_refused(cache, KVC_E_INVALID_STATE, {"sequence 1"}, call);
  }
  ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
  EXPECT_EQ(pattern_difference(cache, 1, 1), "");
}

// No bytes would go to the host, so what came back would be pages that nobody filled.
TEST(Swap, HostMemoryOfACacheWithoutStorageIsPlannedButRefused) {
  Net net({attention_layer(), attention_layer(6)}, 20);
  net.config.storage = KVC_STORAGE_NONE;
  {
    Cache cache(net.config);
    add_tokens(cache, 1, 13);
    expect_refused(cache, KVC_E_UNSUPPORTED, {"host_byte_budget"},
                   [&](kvc_error* err) { return swap_out(cache, {1}, err); });
  }
  set_host_pages(net.config, 8);
  const PlanHandle plan(net.config);
  EXPECT_EQ(plan.info().num_host_pages, 8);
  kvc_cache* cache = nullptr;
  expect_error(KVC_E_UNSUPPORTED, {"storage = NONE (2)", "host_byte_budget = "},
               [&](kvc_error* err) { return kvc_cache_create(plan.get(), &cache, err); });
  EXPECT_EQ(cache, nullptr);
  EXPECT_EQ(kvc_cache_create(plan.get(), &cache, nullptr), KVC_E_UNSUPPORTED);
}

TEST(Swap, BorrowedPoolsAreCopiedFromAndTo) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    Net net({attention_layer(), attention_layer()}, 0);
    net.config.storage = KVC_STORAGE_BORROWED;
    net.config.pool_layout = layout;
    const int64_t slot = 4 * 2 * kDim, slots = layout == KVC_POOL_PAGE_FIRST ? 2 : 1;
    const int64_t gap = 24;  // floats between two pages that are not the library's
    std::vector<float> memory(static_cast<size_t>(2 * 20 * (slot + gap)), -7.0f);
    int64_t shape[] = {20, slots * slot}, strides[] = {slots * slot + gap, 1};
    DLTensor first{memory.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0},
        second = first;
    second.data = memory.data() + 20 * (slot + gap);
    const DLTensor* pools[] = {&first, &second};
    net.config.pool_tensors = pools;
    net.config.num_pool_tensors = layout == KVC_POOL_PAGE_FIRST ? 1 : 2;
    set_host_pages(net.config, 12);
    Cache cache(net.config);
    append_pattern(cache, 1, 18, 3);
    append_pattern(cache, 2, 9, 4);
    append_pattern(cache, 1, 7, 3);
    ASSERT_EQ(swap_out(cache, {2, 1}), KVC_OK);
    overwrite_free_pages(cache);
    ASSERT_EQ(swap_in(cache, {1, 2}), KVC_OK);
    EXPECT_EQ(pattern_difference(cache, 1, 3), "");
    EXPECT_EQ(pattern_difference(cache, 2, 4), "");
    for (int64_t page = 0; page < 20; ++page) {
      for (int64_t i = 0; i < gap; ++i) {
        ASSERT_EQ(memory[static_cast<size_t>(page * strides[0] + shape[1] + i)], -7.0f)
            << "between pages";
      }
    }
    expect_sound(cache);
  }
}

// Bytes of one page of a layer, writable.
class PoolBytes {
 public:
  PoolBytes(const Cache& cache, int32_t layer) {
    kvc_error error{};
    EXPECT_EQ(kvc_export_pool(cache.get(), layer, KVC_POOL_BYTES, &exported_, &error), KVC_OK)
        << error.message;
  }
  ~PoolBytes() {
    if (exported_ != nullptr) exported_->deleter(exported_);
  }
  PoolBytes(const PoolBytes&) = delete;
  PoolBytes& operator=(const PoolBytes&) = delete;
  int64_t page_bytes() const { return exported_->dl_tensor.shape[1]; }
  uint8_t* page(int64_t page) const {
    const DLTensor& tensor = exported_->dl_tensor;
    const int64_t stride = tensor.strides == nullptr ? tensor.shape[1] : tensor.strides[0];
    return static_cast<uint8_t*>(tensor.data) + tensor.byte_offset + page * stride;
  }

 private:
  DLManagedTensorVersioned* exported_ = nullptr;
};

uint8_t byte_at(int64_t layer, int64_t page, int64_t i) {
  return static_cast<uint8_t>(pattern(8, layer, 0, page, i, 0));
}

TEST(Swap, QuantisedLayersMoveWithTheirScales) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    kvc_layer scaled = attention_layer(), four_bit = attention_layer(), whole = attention_layer();
    scaled.quant = KVC_QUANT_PER_TOKEN_HEAD;
    scaled.k_dtype = {kDLInt, 8, 1};
    four_bit.quant = KVC_QUANT_PER_TOKEN_HEAD;
    four_bit.k_dtype = {kDLInt, 4, 1};
    whole.quant = KVC_QUANT_PER_TENSOR;
    whole.k_dtype = {kDLInt, 8, 1};
    Net net({scaled, four_bit, whole});
    net.config.pool_layout = layout;
    set_host_pages(net.config, 6);
    const BorrowedPool memory(net.config);  // The host writes the pages.
    Cache cache(net.config);
    add_tokens(cache, 1, 23);
    const std::vector<int64_t> before = pages_of(cache, 1, 0);
    for (int32_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(layer_of(cache, layer).k_scale_bytes > 0, layer < 2);
      const PoolBytes pool(cache, layer);
      ASSERT_EQ(pool.page_bytes(), static_cast<int64_t>(layer_of(cache, layer).page_bytes));
      for (size_t p = 0; p < before.size(); ++p) {
        for (int64_t i = 0; i < pool.page_bytes(); ++i)
          pool.page(before[p])[i] = byte_at(layer, static_cast<int64_t>(p), i);
      }
    }
    ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
    for (int32_t layer = 0; layer < 3; ++layer) {
      const PoolBytes pool(cache, layer);
      for (int64_t page = 0; page < 32; ++page)
        std::memset(pool.page(page), 0xEE, static_cast<size_t>(pool.page_bytes()));
    }
    add_tokens(cache, 2, 6);  // so that it comes back elsewhere
    ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
    const std::vector<int64_t> after = pages_of(cache, 1, 0);
    ASSERT_EQ(after.size(), before.size());
    for (int32_t layer = 0; layer < 3; ++layer) {
      const PoolBytes pool(cache, layer);
      int64_t wrong = 0;
      for (size_t p = 0; p < after.size(); ++p) {
        for (int64_t i = 0; i < pool.page_bytes(); ++i)
          wrong += pool.page(after[p])[i] != byte_at(layer, static_cast<int64_t>(p), i) ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << "bytes of layer " << layer;
    }
  }
}

TEST(Swap, TheHostPoolIsUsedInOneOfTwoWays) {
  Net net({attention_layer()});
  set_host_pages(net.config, 9);
  Cache cache(net.config);
  append_pattern(cache, 1, 6, 1);
  int64_t pairs[] = {pages_of(cache, 1, 0).front(), 3}, shape[] = {1, 2};
  const DLTensor tensor{pairs, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, nullptr, 0};
  const Call pages = [&](kvc_error* err) {
    return kvc_pages_swap(cache.get(), &tensor, KVC_SWAP_OUT, nullptr, nullptr, err);
  };
  ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
  expect_refused(cache, KVC_E_INVALID_STATE, {"host"}, pages);
  ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
  expect_refused(cache, KVC_E_INVALID_STATE, {"host"}, pages);
  ASSERT_EQ(kvc_cache_clear(cache.get(), nullptr), KVC_OK);
  expect_ok(pages);
  append_pattern(cache, 1, 6, 1);
  expect_refused(cache, KVC_E_INVALID_STATE, {"host"},
                 [&](kvc_error* err) { return swap_out(cache, {1}, err); });
  ASSERT_EQ(kvc_cache_clear(cache.get(), nullptr), KVC_OK);
  append_pattern(cache, 1, 6, 1);
  EXPECT_EQ(swap_out(cache, {1}), KVC_OK);
}

}  // namespace
}  // namespace kvc::test
