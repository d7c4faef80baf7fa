// Layers whose first tokens are kept unquantised beside 8-bit storage: what is planned, what is
// refused by name, and where the kept rows go. Values are compared by the random operations of
// tests/model and by tests/capi/quantised_test.cc.
#include "tests/capi/borrowed.h"
#include "tests/capi/layers.h"
#include "tests/capi/prefix_support.h"
#include "tests/capi/state_files.h"

namespace kvc::test {
namespace {

TEST(KeepTokens, GroupsOfTheirOwnFollowThePageOfTheOthers) {
  // 8 layers of int8: 16 tokens of a page are 8 of the same layers in bfloat16.
  const struct {
    int32_t keep_tokens, page_size, num_groups;
    int64_t pages;  // Of a sequence that has them all.
  } cases[] = {{1, 1, 1, 1}, {3, 4, 1, 1},  {4, 4, 1, 1},
               {8, 8, 1, 1}, {9, 16, 2, 2}, {33, 16, 2, 6}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.keep_tokens);
    Net plain(std::vector<kvc_layer>(8, kept_layer(0)));
    Net kept(std::vector<kvc_layer>(8, kept_layer(one.keep_tokens)));
    plain.config.page_size = kept.config.page_size = 16;
    const PlanHandle without(plain.config), with(kept.config);
    EXPECT_EQ(with.info().page_bytes, without.info().page_bytes);
    EXPECT_EQ(with.info().bytes_per_token, without.info().bytes_per_token);
    EXPECT_EQ(with.info().num_layer_regions, one.keep_tokens > 8 ? 4 : 8) << "cut as without";
    EXPECT_EQ(with.info().prefix_block, without.info().prefix_block);
    ASSERT_EQ(with.info().num_groups, 1 + one.num_groups);
    int64_t pages = 0, more = 0;
    ASSERT_EQ(kvc_plan_request_pages(without.get(), 1000, &pages, nullptr), KVC_OK);
    ASSERT_EQ(kvc_plan_request_pages(with.get(), 1000, &more, nullptr), KVC_OK);
    EXPECT_EQ(more, pages + one.pages);
    EXPECT_EQ(group_of(with.get(), 0).keep_tokens, 0);
    int32_t layers = 0;
    for (int32_t group = 1; group <= one.num_groups; ++group) {
      const kvc_group_info info = group_of(with.get(), group);
      EXPECT_EQ(info.keep_tokens, one.keep_tokens);
      EXPECT_EQ(info.page_size, one.page_size);
      EXPECT_LE(info.page_bytes, with.info().page_bytes);
      EXPECT_EQ(info.window, 0);
      layers += info.num_layers;
    }
    EXPECT_EQ(layers, 8);
    EXPECT_EQ(group_of(with.get(), 1).first_layer, 0);
    kvc_layer_info layer{};
    layer.struct_size = sizeof layer;
    ASSERT_EQ(kvc_plan_layer_get(with.get(), 7, &layer, nullptr), KVC_OK);
    EXPECT_EQ(layer.keep_tokens, one.keep_tokens);
    EXPECT_EQ(layer.group, 0);
    EXPECT_EQ(layer.kept_group, one.num_groups);
    ASSERT_EQ(kvc_plan_layer_get(without.get(), 7, &layer, nullptr), KVC_OK);
    EXPECT_EQ(layer.kept_group, -1);
    EXPECT_NE(fingerprint(with.get()), fingerprint(without.get()));
  }
}

TEST(KeepTokens, SlicesAgreeOnTheGroups) {
  Net net({kept_layer(4), attention_layer(), kept_layer(4), kept_layer(9)});
  const PlanHandle whole(net.config);
  net.config.layer_begin = 1;
  net.config.layer_end = 3;
  const PlanHandle slice(net.config);
  const kvc_plan* const plans[] = {whole.get(), slice.get()};
  int64_t pages = 0;
  expect_ok([&](kvc_error* err) { return kvc_plan_min_pages(plans, 2, &pages, err); });
  ASSERT_EQ(slice.info().num_groups, whole.info().num_groups);
  const int32_t last = whole.info().num_groups - 1;
  EXPECT_EQ(group_of(whole.get(), last).keep_tokens, 9);
  EXPECT_EQ(group_of(whole.get(), last).first_layer, 3);
  EXPECT_EQ(group_of(slice.get(), last).first_layer, -1);
  EXPECT_EQ(group_of(slice.get(), last - 1).first_layer, 2);
  net.layers[3].keep_tokens = 8;
  const PlanHandle other(net.config);
  const kvc_plan* const unlike[] = {whole.get(), other.get()};
  expect_error(KVC_E_INVALID_ARGUMENT, {"plans[1] has groups[", "].keep_tokens = 8", "has 9"},
               [&](kvc_error* err) { return kvc_plan_min_pages(unlike, 2, &pages, err); });
}

TEST(KeepTokens, BadFieldsAreRefusedByName) {
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const std::vector<kvc_layer>& layers) {
    Net net(layers);
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  refused(KVC_E_OUT_OF_RANGE, {"layers[0].keep_tokens = -1", "0 to 2147483647"}, {kept_layer(-1)});
  kvc_layer plain = attention_layer();
  plain.keep_tokens = 4;
  refused(KVC_E_INVALID_ARGUMENT,
          {"layers[1].keep_tokens = 4", "quant = NONE (0)", "v_quant = NONE (0)", "expected 0"},
          {attention_layer(), plain});
  kvc_layer cross = kept_layer(4);
  cross.kind = KVC_LAYER_CROSS;
  refused(KVC_E_INVALID_ARGUMENT, {"layers[0].keep_tokens = 4", "CROSS", "expected 0"}, {cross});
  kvc_layer none = layer_of_kind(KVC_LAYER_NONE);
  none.keep_tokens = 1;
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].keep_tokens = 1", "NONE"}, {attention_layer(), none});
  kvc_layer shared = shared_layer(0);
  shared.keep_tokens = 3;
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].keep_tokens = 3", "source layer 0 has 4"},
          {kept_layer(4), shared});
  shared.keep_tokens = 4;
  Net net({kept_layer(4), shared});
  const PlanHandle plan(net.config);
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_layer_get(plan.get(), 1, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.keep_tokens, 4);
  EXPECT_EQ(info.kept_group, 1);
}

TEST(KeepTokens, OnlyOwnedStorageOnTheCpuIsServed) {
  const auto refused = [](const kvc_config& config, std::initializer_list<const char*> parts) {
    const PlanHandle plan(config);
    kvc_cache* cache = nullptr;
    const kvc_error error = expect_error(KVC_E_UNSUPPORTED, parts, [&](kvc_error* err) {
      return kvc_cache_create(plan.get(), &cache, err);
    });
    EXPECT_EQ(error.detail, 4);
    EXPECT_EQ(cache, nullptr);
  };
  Net net({attention_layer(), kept_layer(4)});
  net.config.device = {kDLCUDA, 0};
  net.config.num_threads = 0;
  refused(net.config, {"layers[1].keep_tokens = 4", "device.device_type = CUDA (2)", "OWNED (0)",
                       "the CPU (1)", "NONE (2)"});
  Net borrowed({attention_layer(), kept_layer(4)});
  const BorrowedPool pool(borrowed.config);
  refused(borrowed.config, {"layers[1].keep_tokens = 4", "storage = BORROWED (1)"});
  Net none({attention_layer(), kept_layer(4)});
  none.config.storage = KVC_STORAGE_NONE;
  Cache cache(none.config);
  add_tokens(cache, 1, 9);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, 3, nullptr), KVC_OK);
  expect_sound(cache);
}

TEST(KeepTokens, PartsOfPagesThatLeaveThemOutAreRefused) {
  Net net({attention_layer(), kept_layer(4)});
  Cache cache(net.config);
  append_pattern(cache, 1, 10, 7);
  int64_t id = 0, one = 1;
  const DLTensor ids{&id, {kDLCPU, 0}, 1, {kDLInt, 64, 1}, &one, nullptr, 0};
  std::vector<uint8_t> bytes(layer_of(cache, 1).page_bytes);
  int64_t shape[] = {1, static_cast<int64_t>(bytes.size())};
  DLTensor rows{bytes.data(), {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, nullptr, 0};
  expect_error(
      KVC_E_UNSUPPORTED, {"kvc_pages_export", "layer 1", "keep_tokens = 4"},
      [&](kvc_error* err) { return kvc_pages_export(cache.get(), 1, &ids, &rows, nullptr, err); });
  expect_error(
      KVC_E_UNSUPPORTED, {"kvc_pages_import", "layer 1", "keep_tokens = 4"},
      [&](kvc_error* err) { return kvc_pages_import(cache.get(), 1, &ids, &rows, nullptr, err); });
  DLManagedTensorVersioned* exported = nullptr;
  expect_error(
      KVC_E_UNSUPPORTED, {"kvc_export_pool", "layer 1", "keep_tokens = 4"},
      [&](kvc_error* err) { return kvc_export_pool(cache.get(), 1, KVC_POOL_K, &exported, err); });
  EXPECT_EQ(exported, nullptr);
  EXPECT_EQ(pattern_difference(cache, 1, 7), "");
}

TEST(KeepTokens, ATreeThatReachesAcrossThemIsRefused) {
  Net net({kept_layer(4), kept_layer(9)});
  Cache cache(net.config);
  append_pattern(cache, 1, 2, 7);
  const Snapshot before = take_snapshot(cache.get(), nullptr, 3);
  const auto begin = [&](int64_t nodes) {
    return [&cache, nodes](kvc_error* err) {
      return cache.begin_with({{1}, {nodes}, std::vector<int32_t>(static_cast<size_t>(nodes), -1)},
                              err);
    };
  };
  const kvc_error error =
      expect_error(KVC_E_UNSUPPORTED,
                   {"sequence 1", "2 committed tokens", "3 nodes", "keep_tokens = 4"}, begin(3));
  EXPECT_EQ(error.detail, 4);
  EXPECT_EQ(difference(before, take_snapshot(cache.get(), nullptr, 3)), "");
  append_pattern(cache, 1, 2, 7);
  expect_error(KVC_E_UNSUPPORTED, {"4 committed tokens", "6 nodes", "keep_tokens = 9"}, begin(6));
  ASSERT_EQ(begin(5)(nullptr), KVC_OK);
  ASSERT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
  EXPECT_EQ(pattern_difference(cache, 1, 7), "");
}

TEST(KeepTokens, AShiftThatWouldFillThemUpIsRefused) {
  Net net({kept_layer(4)});
  Cache cache(net.config);
  append_pattern(cache, 1, 12, 7);
  const auto shift = [&](int64_t begin, int64_t end) {
    return [&cache, begin, end](kvc_error* err) {
      return kvc_seq_shift(cache.get(), 1, begin, end, begin - end, err);
    };
  };
  const Snapshot before = take_snapshot(cache.get(), nullptr, 2);
  const kvc_error error = expect_error(
      KVC_E_UNSUPPORTED,
      {"[3, 6)", "token 6 of sequence 1 would move to 3", "keep_tokens = 4", "begin of at least 4"},
      shift(3, 6));
  EXPECT_EQ(error.detail, 4);
  expect_error(KVC_E_UNSUPPORTED, {"[0, 1)", "token 4", "to 3"}, shift(0, 1));
  EXPECT_EQ(difference(before, take_snapshot(cache.get(), nullptr, 2)), "");
  int64_t below = 0, above = 0;
  expect_ok([&](kvc_error* err) {
    return kvc_seq_positions(cache.get(), 1, KVC_SEQ_SHIFT, 2, &below, &above, err);
  });
  EXPECT_EQ(below, -1);
  EXPECT_EQ(above, 4);
  expect_ok(shift(4, 6));  // What is kept stays.
  EXPECT_EQ(length_of(cache, 1), 10);
  expect_ok(shift(3, 10));  // Nothing follows.
  EXPECT_EQ(length_of(cache, 1), 3);
  expect_ok(shift(1, 2));  // All that follows is kept too.
  append_pattern(cache, 2, 2, 7);
  EXPECT_EQ(length_of(cache, 1), 2);
  expect_sound(cache);
}

TEST(KeepTokens, TheRowsGoWhereverASequenceGoes) {
  for (const int32_t page_size : {1, 3, 16, 48}) {
    SCOPED_TRACE(page_size);
    Net net({kept_layer(5), attention_layer(7), kept_layer(2, 7), kept_layer(20)}, 400);
    net.config.page_size = page_size;
    set_host_pages(net.config, 200);
    Cache cache(net.config);
    append_pattern(cache, 1, 1, 7);
    append_pattern(cache, 1, 3, 7);
    ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, 3, nullptr), KVC_OK);
    append_pattern(cache, 1, 30, 7);
    append_pattern(cache, 2, 4, 7);
    EXPECT_EQ(pattern_difference(cache, 1, 7), "");
    EXPECT_EQ(pattern_difference(cache, 2, 7), "") << "a page of kept rows was copied on write";
    const Bytes file = saved(cache, {1, 2});
    ASSERT_EQ(swap_out(cache, {1, 2}), KVC_OK);
    append_pattern(cache, 3, 50, 8);
    ASSERT_EQ(swap_in(cache, {1, 2}), KVC_OK);
    ASSERT_EQ(load(cache, {4, 5}, file), KVC_OK);
    for (const kvc_seq seq : {1, 2, 4, 5}) EXPECT_EQ(pattern_difference(cache, seq, 7), "");
    ASSERT_EQ(kvc_seq_remove(cache.get(), 3, nullptr), KVC_OK);
    int64_t used = 0;
    for (const kvc_seq seq : {1, 2, 4, 5}) used += info_of(cache, seq).num_pages;
    expect_ok([&](kvc_error* err) { return kvc_cache_resize(cache.get(), used, err); });
    for (const kvc_seq seq : {1, 2, 4, 5}) EXPECT_EQ(pattern_difference(cache, seq, 7), "");
    expect_sound(cache);
  }
}

TEST(KeepTokens, AHitBringsTheirPages) {
  for (const int32_t keep_tokens : {1, 4, 6, 21}) {
    SCOPED_TRACE(keep_tokens);
    Net net({kept_layer(keep_tokens), attention_layer()}, 100);
    net.config.page_size = 4;
    Cache cache(net.config);
    append_pattern(cache, 1, 30, 7, 0, token_ids(30, 7));
    ASSERT_EQ(kvc_seq_remove(cache.get(), 1, nullptr), KVC_OK);
    for (const int64_t count : {1, 3, 9, 28}) {
      const Query query(token_ids(count, 7), KVC_PREFIX_ALL_TOKENS);
      ASSERT_EQ(attach(cache, 2, query), count);
      EXPECT_EQ(pattern_difference(cache, 2, 7), "");
      append_pattern(cache, 2, 6, 7);
      EXPECT_EQ(pattern_difference(cache, 2, 7), "");
      ASSERT_EQ(kvc_seq_remove(cache.get(), 2, nullptr), KVC_OK);
      expect_sound(cache);
    }
  }
}

TEST(KeepTokens, AWindowOfASequenceDropsNoneOfThem) {
  Net net({kept_layer(4)}, 100);
  net.config.page_size = 2;
  Cache cache(net.config);
  append_pattern(cache, 1, 6, 7);
  expect_ok([&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 8, 4, err); });
  append_pattern(cache, 1, 40, 7);
  // 4 sinks and the last 3, in pages of 2; and the pages of the kept rows.
  EXPECT_EQ(info_of(cache, 1).num_pages, 2 + 2 + 2);
  HostTensor k(Elem::kF32, {4, 1, kDim});
  expect_ok([&](kvc_error* err) {
    return kvc_debug_get_layer(cache.get(), 1, 0, 0, 4, k.dl(), nullptr, nullptr, err);
  });
  k.for_each([&](int64_t token, int64_t head, int64_t d, int64_t) {
    ASSERT_EQ(k.get(token, head, d), pattern(7, 0, 0, token, head, d));
  });
  expect_sound(cache);
}

}  // namespace
}  // namespace kvc::test
