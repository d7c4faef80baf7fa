// kvcache.h, section "Forward".
#include "tests/capi/fixture.h"

namespace kvc::test {
namespace {

class Forward : public testing::Test {
 protected:
  kvc_cache* get() const { return cache_.get(); }
  kvc_forward* open() const { return cache_.forward; }
  Model model_;
  Cache cache_{model_.config};
};

TEST_F(Forward, MixesPrefillAndDecode) {
  cache_.fill({1, 2}, {3, 9});
  ASSERT_EQ(kvc_seq_add(get(), 3, nullptr), KVC_OK);
  ASSERT_EQ(cache_.begin({2, 3, 1}, {1, 5, 2}), KVC_OK);
  EXPECT_EQ(kvc_forward_num_tokens(open()), 8);
  HostTensor positions(Elem::kI32, {8}, {.extra_rows = 3, .byte_offset = 8});
  expect_ok([&](kvc_error* err) { return kvc_forward_positions(open(), positions.dl(), err); });
  const int32_t expected[] = {9, 0, 1, 2, 3, 4, 3, 4};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(positions.get(i), expected[i]);
  EXPECT_TRUE(positions.padding_untouched());
  for (int32_t layer = 0; layer < 2; ++layer)
    ASSERT_EQ(append_some(cache_, layer, nullptr), KVC_OK);
  kvc_forward* forward = open();
  expect_ok([&](kvc_error* err) { return kvc_forward_end(forward, err); });
  cache_.forward = nullptr;
  EXPECT_EQ(kvc_cache_total_length(get()), 20);
}

TEST_F(Forward, AbortIsAsIfBeginHadNotHappened) {
  cache_.fill({1, 2}, {6, 3});
  ASSERT_EQ(kvc_seq_fork(get(), 1, 3, -1, nullptr), KVC_OK);
  const Snapshot before = cache_.snapshot();
  HostTensor k_before(Elem::kF32, {2, 6, 2, 8}), v_before(Elem::kF32, {2, 6, 2, 8});
  HostTensor k_after(Elem::kF32, {2, 6, 2, 8}), v_after(Elem::kF32, {2, 6, 2, 8});
  ASSERT_EQ(kvc_debug_get_kv(get(), 3, 0, 6, k_before.dl(), v_before.dl(), nullptr, nullptr),
            KVC_OK);
  ASSERT_EQ(cache_.begin({3, 1, 2}, {3, 5, 1}), KVC_OK);
  for (int32_t layer = 0; layer < 2; ++layer) {
    HostTensor k(Elem::kF32, {9, 2, layer == 0 ? 8 : 6}), v(Elem::kF32, {9, 2, layer == 0 ? 8 : 4});
    Random random(1);
    k.fill_random(random);
    v.fill_random(random);
    ASSERT_EQ(kvc_kv_append(open(), layer, k.dl(), v.dl(), nullptr), KVC_OK);
  }
  expect_ok([&](kvc_error* err) { return kvc_forward_abort(open(), err); });
  cache_.forward = nullptr;
  Snapshot after = cache_.snapshot();
  EXPECT_EQ(after.stats.forwards_aborted, before.stats.forwards_aborted + 1);
  after.stats = before.stats;
  EXPECT_EQ(difference(before, after), "");
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
  ASSERT_EQ(kvc_debug_get_kv(get(), 3, 0, 6, k_after.dl(), v_after.dl(), nullptr, nullptr), KVC_OK);
  EXPECT_TRUE(k_before.same_bytes(k_after));
  EXPECT_TRUE(v_before.same_bytes(v_after));
}

TEST_F(Forward, AbortGivesAPageBackWhoseOtherHolderIsGone) {
  cache_.fill({1}, {6});
  ASSERT_EQ(kvc_seq_fork(get(), 1, 2, -1, nullptr), KVC_OK);
  HostTensor before(Elem::kF32, {2, 6, 2, 8}), after(Elem::kF32, {2, 6, 2, 8});
  ASSERT_EQ(kvc_debug_get_kv(get(), 2, 0, 6, before.dl(), nullptr, nullptr, nullptr), KVC_OK);
  ASSERT_EQ(cache_.begin({2}, {1}), KVC_OK);
  ASSERT_EQ(kvc_seq_remove(get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_add(get(), 9, nullptr), KVC_OK);
  ASSERT_EQ(kvc_forward_abort(open(), nullptr), KVC_OK);
  cache_.forward = nullptr;
  ASSERT_EQ(kvc_debug_get_kv(get(), 2, 0, 6, after.dl(), nullptr, nullptr, nullptr), KVC_OK);
  EXPECT_TRUE(before.same_bytes(after));
  EXPECT_EQ(kvc_cache_available_pages(get()), 6);
}

TEST_F(Forward, OneIsOpenAtATime) {
  cache_.fill({1, 2}, {1, 1});
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
  kvc_forward* first = open();
  kvc_forward* second = nullptr;
  const kvc_seq seq = 2;
  const int64_t one = 1;
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = 1;
  desc.seqs = &seq;
  desc.append_lengths = &one;
  expect_refused(cache_, KVC_E_BUSY, {"open"},
                 [&](kvc_error* err) { return kvc_forward_begin(get(), &desc, &second, err); });
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(kvc_forward_num_tokens(first), 1);
}

TEST_F(Forward, DeadHandlesAreRecognised) {
  cache_.fill({1}, {2});
  std::vector<kvc_forward*> dead;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
    dead.push_back(cache_.forward);
    if (i == 1) {
      ASSERT_EQ(kvc_forward_abort(cache_.forward, nullptr), KVC_OK);
      cache_.forward = nullptr;
    } else {
      cache_.finish();
    }
  }
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK) << "a forward is open while dead handles are tried";
  HostTensor any(Elem::kF32, {1, 4, 8}), kv(Elem::kF32, {1, 2, 8}), lse(Elem::kF32, {1, 4}),
      ids(Elem::kI32, {1});
  DLManagedTensorVersioned* exported = nullptr;
  for (kvc_forward* fwd : dead) {
    EXPECT_EQ(kvc_forward_num_tokens(fwd), -1);
    const auto invalid = [&](const Call& fn) {
      expect_refused(cache_, KVC_E_INVALID_STATE, {"open"}, fn);
    };
    invalid([&](kvc_error* err) { return kvc_forward_end(fwd, err); });
    invalid([&](kvc_error* err) { return kvc_forward_abort(fwd, err); });
    invalid([&](kvc_error* err) { return kvc_forward_positions(fwd, ids.dl(), err); });
    invalid([&](kvc_error* err) {
      return kvc_attn(fwd, 0, nullptr, any.dl(), kv.dl(), kv.dl(), any.dl(), nullptr, err);
    });
    invalid([&](kvc_error* err) {
      return kvc_attn_self(fwd, 0, nullptr, any.dl(), kv.dl(), kv.dl(), any.dl(), nullptr, err);
    });
    invalid([&](kvc_error* err) {
      return kvc_attn_cached(fwd, 0, nullptr, any.dl(), any.dl(), nullptr, err);
    });
    invalid([&](kvc_error* err) {
      return kvc_attn_fused_qkv(fwd, 0, nullptr, any.dl(), any.dl(), err);
    });
    invalid([&](kvc_error* err) {
      return kvc_attn_merge(fwd, any.dl(), lse.dl(), any.dl(), lse.dl(), err);
    });
    invalid([&](kvc_error* err) { return kvc_kv_append(fwd, 0, kv.dl(), kv.dl(), err); });
    invalid([&](kvc_error* err) { return kvc_kv_gather(fwd, 0, 1, kv.dl(), kv.dl(), err); });
    invalid([&](kvc_error* err) {
      return kvc_export_page_table(fwd, 0, KVC_TABLE_INDPTR, &exported, err);
    });
  }
  EXPECT_TRUE(ids.is_untouched());
  EXPECT_EQ(exported, nullptr);
}

TEST_F(Forward, DeadHandlesAreRefusedHoweverManyForwardsFollow) {
  cache_.fill({1}, {2});
  std::vector<kvc_forward*> dead;
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
    for (kvc_forward* fwd : dead) {
      ASSERT_EQ(kvc_forward_end(fwd, nullptr), KVC_E_INVALID_STATE) << "after " << i << " forwards";
      ASSERT_EQ(kvc_forward_num_tokens(fwd), -1);
    }
    ASSERT_EQ(kvc_forward_num_tokens(cache_.forward), 1) << "and the open one is not ended by them";
    dead.push_back(cache_.forward);
    cache_.abort();
  }
}

TEST(ForwardHandles, OfACacheThatIsGoneAreRefused) {
  Model model;
  std::vector<kvc_forward*> dead;
  for (int i = 0; i < 20; ++i) {
    Cache cache(model.config);  // mostly at the address of the one before
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
    for (kvc_forward* fwd : dead) {
      ASSERT_EQ(kvc_forward_num_tokens(fwd), -1);
      ASSERT_EQ(kvc_forward_abort(fwd, nullptr), KVC_E_INVALID_STATE) << "after " << i << " caches";
    }
    EXPECT_EQ(kvc_forward_num_tokens(cache.forward), 1);
    dead.push_back(cache.forward);
    if (i % 2 == 0) cache.abort();
  }
  for (kvc_forward* fwd : dead)
    EXPECT_EQ(kvc_forward_end(fwd, nullptr), KVC_E_INVALID_STATE) << "without a cache";
}

TEST(ForwardHandles, OfManyCachesAreTheirOwn) {
  Model model;
  std::vector<std::unique_ptr<Cache>> caches;
  for (int64_t i = 0; i < 300; ++i) {  // more than one piece of the table
    caches.push_back(std::make_unique<Cache>(model.config));
    ASSERT_EQ(kvc_seq_add(caches.back()->get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(caches.back()->begin({1}, {1 + i % 7}), KVC_OK);
  }
  for (int64_t i = 0; i < 300; ++i) {
    Cache& cache = *caches[static_cast<size_t>(i)];
    ASSERT_EQ(kvc_forward_num_tokens(cache.forward), 1 + i % 7);
    cache.abort();
  }
}

TEST(ForwardHandles, AreNoAddresses) {
  int64_t memory[8] = {};
  auto* address = reinterpret_cast<kvc_forward*>(memory);
  EXPECT_EQ(kvc_forward_num_tokens(address), -1);
  expect_error(KVC_E_INVALID_STATE, {"fwd", "open"},
               [&](kvc_error* err) { return kvc_forward_end(address, err); });
  for (const uint64_t number : {uint64_t{1}, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 51}) {
    auto* handle = reinterpret_cast<kvc_forward*>(static_cast<uintptr_t>(number));
    EXPECT_EQ(kvc_forward_num_tokens(handle), -1) << number;
  }
}

TEST_F(Forward, NullHandlesAreAnswered) {
  HostTensor any(Elem::kF32, {1, 4, 8}), lse(Elem::kF32, {1, 4}), ids(Elem::kI32, {1});
  DLManagedTensorVersioned* exported = nullptr;
  EXPECT_EQ(kvc_forward_num_tokens(nullptr), -1);
  expect_ok([&](kvc_error* err) { return kvc_forward_abort(nullptr, err); });
  const auto null = [&](const Call& fn) { expect_error(KVC_E_INVALID_ARGUMENT, {"fwd"}, fn); };
  null([&](kvc_error* err) { return kvc_forward_end(nullptr, err); });
  null([&](kvc_error* err) { return kvc_forward_positions(nullptr, ids.dl(), err); });
  null([&](kvc_error* err) {
    return kvc_attn(nullptr, 0, nullptr, any.dl(), nullptr, nullptr, any.dl(), nullptr, err);
  });
  null([&](kvc_error* err) {
    return kvc_attn_self(nullptr, 0, nullptr, any.dl(), any.dl(), any.dl(), any.dl(), nullptr, err);
  });
  null([&](kvc_error* err) {
    return kvc_attn_cached(nullptr, 0, nullptr, any.dl(), any.dl(), nullptr, err);
  });
  null([&](kvc_error* err) {
    return kvc_attn_fused_qkv(nullptr, 0, nullptr, any.dl(), any.dl(), err);
  });
  null([&](kvc_error* err) {
    return kvc_attn_merge(nullptr, any.dl(), lse.dl(), any.dl(), lse.dl(), err);
  });
  null([&](kvc_error* err) { return kvc_kv_append(nullptr, 0, any.dl(), any.dl(), err); });
  null([&](kvc_error* err) { return kvc_kv_gather(nullptr, 0, 1, any.dl(), any.dl(), err); });
  null([&](kvc_error* err) {
    return kvc_export_page_table(nullptr, 0, KVC_TABLE_INDPTR, &exported, err);
  });
}

TEST_F(Forward, BeginRefusesBadDescriptions) {
  cache_.fill({1}, {3});
  const kvc_seq seq = 1;
  const int64_t one = 1;
  kvc_forward_desc good{};
  good.struct_size = sizeof good;
  good.num_seqs = 1;
  good.seqs = &seq;
  good.append_lengths = &one;
  kvc_forward* fwd = nullptr;
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const std::function<void(kvc_forward_desc&)>& change) {
    kvc_forward_desc desc = good;
    change(desc);
    expect_refused(cache_, status, parts,
                   [&](kvc_error* err) { return kvc_forward_begin(get(), &desc, &fwd, err); });
    EXPECT_EQ(fwd, nullptr);
  };
  const int32_t numbers[] = {-1};
  kvc_ext ext{5, nullptr};
  refused(KVC_E_UNSUPPORTED, {"flags", "8"}, [&](kvc_forward_desc& d) { d.flags = 8; });
  refused(KVC_E_UNSUPPORTED, {"KVC_FORWARD_REPLAY", "CPU"},
          [&](kvc_forward_desc& d) { d.flags = KVC_FORWARD_REPLAY; });
  refused(KVC_E_UNSUPPORTED, {"ext", "5"}, [&](kvc_forward_desc& d) { d.ext = &ext; });
  refused(KVC_E_INVALID_ARGUMENT, {"struct_size", "0"},
          [&](kvc_forward_desc& d) { d.struct_size = 0; });
  refused(KVC_E_INVALID_ARGUMENT, {"struct_size", "4"},
          [&](kvc_forward_desc& d) { d.struct_size = 4; });
  refused(KVC_E_INVALID_ARGUMENT, {"seqs"}, [&](kvc_forward_desc& d) { d.seqs = nullptr; });
  refused(KVC_E_INVALID_ARGUMENT, {"append_lengths"},
          [&](kvc_forward_desc& d) { d.append_lengths = nullptr; });
  refused(KVC_E_INVALID_ARGUMENT, {"num_seqs", "0"}, [&](kvc_forward_desc& d) { d.num_seqs = 0; });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"cache"},
                 [&](kvc_error* err) { return kvc_forward_begin(nullptr, &good, &fwd, err); });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"desc"},
                 [&](kvc_error* err) { return kvc_forward_begin(get(), nullptr, &fwd, err); });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"out"},
                 [&](kvc_error* err) { return kvc_forward_begin(get(), &good, nullptr, err); });
  struct {
    kvc_forward_desc desc;
    uint64_t tail;
  } longer{good, 1};
  longer.desc.struct_size = sizeof longer;
  expect_refused(
      cache_, KVC_E_VERSION,
      {"desc", std::to_string(sizeof longer).c_str(), std::to_string(sizeof good).c_str()},
      [&](kvc_error* err) { return kvc_forward_begin(get(), &longer.desc, &fwd, err); });
  longer.tail = 0;
  ASSERT_EQ(kvc_forward_begin(get(), &longer.desc, &fwd, nullptr), KVC_OK)
      << "a longer struct with a zero tail";
  ASSERT_EQ(kvc_forward_abort(fwd, nullptr), KVC_OK);
  kvc_forward_desc shorter = good;
  shorter.struct_size = offsetof(kvc_forward_desc, tree_parents);
  shorter.tokens = shorter.tree_parents = numbers;
  ASSERT_EQ(kvc_forward_begin(get(), &shorter, &fwd, nullptr), KVC_OK)
      << "the missing tail counts as zero";
  cache_.forward = fwd;
  for (int32_t layer = 0; layer < 2; ++layer)
    ASSERT_EQ(append_some(cache_, layer, nullptr), KVC_OK);
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_forward_end(fwd, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_info_get(get(), 1, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.length, 4) << "the token was a plain one";
  EXPECT_EQ(info.tree_nodes, 0);
}

TEST_F(Forward, NoPagesTellsHowManyAreMissing) {
  cache_.fill({1, 2}, {14, 10});
  kvc_error error = expect_refused(cache_, KVC_E_NO_PAGES, {"2 missing"}, [&](kvc_error* err) {
    return cache_.begin({1, 2}, {7, 4}, err);
  });
  EXPECT_EQ(error.detail, 2);
  ASSERT_EQ(kvc_seq_fork(get(), 1, 3, -1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_fork(get(), 1, 4, 13, nullptr), KVC_OK);
  error = expect_refused(cache_, KVC_E_NO_PAGES, {"1 missing"}, [&](kvc_error* err) {
    return cache_.begin({3, 4}, {1, 1}, err);
  });
  EXPECT_EQ(error.detail, 1) << "two copies, one free page";
  EXPECT_EQ(cache_.begin({3}, {1}), KVC_OK);
}

TEST_F(Forward, WhatCanNeverFitIsSaidAtOnce) {
  cache_.fill({1}, {30});
  expect_refused(cache_, KVC_E_NEVER_FITS, {"sequence", "1", "30", "3", "32"},
                 [&](kvc_error* err) { return cache_.begin({1}, {3}, err); });
  Model small;
  small.config.max_seq_len = 10;
  Cache cache(small.config);
  cache.fill({1}, {8});
  expect_refused(cache, KVC_E_NEVER_FITS, {"1", "8", "3", "10"},
                 [&](kvc_error* err) { return cache.begin({1}, {3}, err); });
  EXPECT_EQ(cache.begin({1}, {2}), KVC_OK);
}

TEST_F(Forward, PositionsChecksItsTensor) {
  cache_.fill({1}, {3});
  ASSERT_EQ(cache_.begin({1}, {4}), KVC_OK);
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           DLTensor* tensor) {
    expect_refused(cache_, status, parts,
                   [&](kvc_error* err) { return kvc_forward_positions(open(), tensor, err); });
  };
  HostTensor few(Elem::kI32, {3}), matrix(Elem::kI32, {4, 1}), floats(Elem::kF32, {4}),
      there(Elem::kI32, {4}), apart(Elem::kI32, {4}), rows(Elem::kI32, {2, 4}),
      cube(Elem::kI32, {1, 1, 4});
  refused(KVC_E_INVALID_ARGUMENT, {"out"}, nullptr);
  refused(KVC_E_SHAPE, {"out", "3", "4"}, few.dl());
  refused(KVC_E_SHAPE, {"out", "1", "4"}, matrix.dl());
  refused(KVC_E_SHAPE, {"out", "2", "1"}, rows.dl());
  refused(KVC_E_SHAPE, {"out", "3", "1 or 2"}, cube.dl());
  refused(KVC_E_DTYPE, {"out", "float32", "int32"}, floats.dl());
  there.dl()->device = {kDLCUDA, 0};
  refused(KVC_E_DEVICE_MISMATCH, {"out", "2", "1"}, there.dl());
  int64_t stride = 2;
  apart.dl()->strides = &stride;
  refused(KVC_E_SHAPE, {"out", "2", "1"}, apart.dl());
  EXPECT_TRUE(rows.is_untouched() && cube.is_untouched());
  EXPECT_TRUE(few.is_untouched() && matrix.is_untouched() && floats.is_untouched() &&
              there.is_untouched() && apart.is_untouched());
}

}  // namespace
}  // namespace kvc::test
