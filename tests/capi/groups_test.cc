// Several page tables per sequence: groups of the plan, what a request needs, the tables that are
// exported.
#include <set>

#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

kvc_plan_info plan_info_of(const kvc_plan* plan) {
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
  return info;
}

int32_t group_of_layer(const Cache& cache, int32_t layer) {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_layer_get(cache.plan(), layer, &info, nullptr), KVC_OK);
  return info.group;
}

int64_t request_pages(const Cache& cache, int64_t tokens) {
  int64_t pages = -1;
  EXPECT_EQ(kvc_plan_request_pages(cache.plan(), tokens, &pages, nullptr), KVC_OK);
  return pages;
}

TEST(Groups, LayersThatSeeTheSameKeysShareATable) {
  kvc_layer narrow = attention_layer(8);
  narrow.k_dim = 4;
  Net net({attention_layer(), narrow, narrow, attention_layer(0, 12), attention_layer(),
           attention_layer(0, 12), cross_layer(), cross_layer(), shared_layer(1),
           layer_of_kind(KVC_LAYER_NONE)});
  net.config.flags = KVC_CONFIG_PAD_PAGES;
  Cache cache(net.config);
  const kvc_plan_info plan = plan_info_of(cache.plan());
  ASSERT_EQ(plan.num_groups, 4);
  EXPECT_EQ(plan.num_layer_regions, 2);
  const uint64_t row = kDim * 4 * 4;  // K or V of a page of one layer
  EXPECT_EQ(plan.page_bytes, 4 * row) << "room for the largest group";
  EXPECT_EQ(plan.bytes_per_token, uint64_t{4} * 2 * kDim * 4 + uint64_t{2} * 2 * 4 * 4)
      << "of encoder tokens: none";
  EXPECT_EQ(group_of_layer(cache, 0), group_of_layer(cache, 4));
  EXPECT_EQ(group_of_layer(cache, 1), group_of_layer(cache, 2));
  EXPECT_EQ(group_of_layer(cache, 3), group_of_layer(cache, 5));
  EXPECT_EQ(group_of_layer(cache, 6), group_of_layer(cache, 7));
  EXPECT_EQ(group_of_layer(cache, 8), group_of_layer(cache, 1)) << "the source's";
  EXPECT_EQ(group_of_layer(cache, 9), -1);
  std::set<int32_t> seen;
  for (const int32_t layer : {0, 1, 3, 6}) seen.insert(group_of_layer(cache, layer));
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1, 2, 3}));
  for (const auto& [layer, window, chunk, cross] :
       {std::tuple<int32_t, int64_t, int64_t, int32_t>{0, 0, 0, 0},
        {1, 8, 0, 0},
        {3, 0, 12, 0},
        {6, 0, 0, 1}}) {
    kvc_group_info info{};
    info.struct_size = sizeof info;
    expect_ok([&, l = layer](kvc_error* err) {
      return kvc_plan_group_get(cache.plan(), group_of_layer(cache, l), &info, err);
    });
    EXPECT_EQ(info.num_layers, 2);
    EXPECT_EQ(info.window, window);
    EXPECT_EQ(info.chunk, chunk);
    EXPECT_EQ(info.is_cross, cross);
    EXPECT_EQ(info.page_bytes, layer == 1 ? 2 * row : 4 * row);
    EXPECT_EQ(info.page_bytes + info.padding_bytes, plan.page_bytes);
  }
}

TEST(Groups, ALongKindIsCutIntoGroupsOfTheShortOne) {
  std::vector<kvc_layer> layers;  // Gemma-3: five of six layers have a window
  for (int i = 0; i < 12; ++i) layers.push_back(attention_layer(i % 6 == 5 ? 0 : 8));
  Net net(layers, 60);
  net.config.flags = KVC_CONFIG_PAD_PAGES;
  Cache cache(net.config);
  const kvc_plan_info plan = plan_info_of(cache.plan());
  EXPECT_EQ(plan.num_groups, 6);
  EXPECT_EQ(plan.num_layer_regions, 2);
  for (int32_t group = 0; group < 6; ++group) {
    EXPECT_EQ(group_of(cache.plan(), group).num_layers, 2);
    EXPECT_EQ(group_of(cache.plan(), group).padding_bytes, 0u);
  }
  add_tokens(cache, 1, 40);
  EXPECT_EQ(info_of(cache, 1).num_pages, 10 + 5 * 2) << "tokens 33..39 of each windowed group";
}

TEST(Groups, GroupGetRefusesBadArguments) {
  Net net({attention_layer(), attention_layer(8)});
  Cache cache(net.config);
  kvc_group_info info{};
  info.struct_size = sizeof info;
  for (const int32_t group : {-1, 2, INT32_MAX}) {
    expect_error(
        KVC_E_OUT_OF_RANGE, {"group", std::to_string(group).c_str(), "2 groups"},
        [&](kvc_error* err) { return kvc_plan_group_get(cache.plan(), group, &info, err); });
  }
  expect_error(KVC_E_INVALID_ARGUMENT, {"plan"},
               [&](kvc_error* err) { return kvc_plan_group_get(nullptr, 0, &info, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out"},
               [&](kvc_error* err) { return kvc_plan_group_get(cache.plan(), 0, nullptr, err); });
  info.struct_size = 4;
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "struct_size", "4"},
               [&](kvc_error* err) { return kvc_plan_group_get(cache.plan(), 0, &info, err); });
  info.struct_size = offsetof(kvc_group_info, window);
  info.window = 77;
  expect_ok([&](kvc_error* err) { return kvc_plan_group_get(cache.plan(), 0, &info, err); });
  EXPECT_EQ(info.window, 77) << "an older caller's struct ends here";
}

TEST(Groups, ARequestNeedsTheSumOverItsGroups) {
  for (const int64_t step : {0, 1, 7, 64}) {
    Net net({attention_layer(), attention_layer(21), attention_layer(0, 10), cross_layer()}, 500);
    net.config.max_tokens_per_forward = step;
    net.config.max_cross_len = 9;
    Cache cache(net.config);
    EXPECT_EQ(request_pages(cache, 0), 0);
    for (const int64_t tokens : {1, 4, 5, 20, 21, 33, 100, 400}) {
      const int64_t m = step == 0 ? tokens : std::min(step, tokens), whole = (tokens + 3) / 4;
      const auto windowed = [&](int64_t window) {
        return std::min(whole, (window - 1 + m + 3) / 4 + 1);
      };
      // Chunks of 10 tokens begin at every other token of a page.
      const int64_t chunked = std::min(whole, (std::max<int64_t>(0, 10 - 1 + m - 2) + 3) / 4 + 1);
      EXPECT_EQ(request_pages(cache, tokens), whole + windowed(21) + chunked + 3)
          << tokens << " tokens by " << step;
    }
  }
}

TEST(Groups, ARequestOfAnyLengthIsCounted) {
  for (const int32_t page_size : {1, 2, 4, 65536}) {
    Net net({attention_layer(), attention_layer(8), attention_layer(0, 8)});
    net.config.page_size = page_size;
    Cache cache(net.config);
    const int64_t whole = INT64_MAX / page_size + (page_size > 1 ? 1 : 0);
    EXPECT_EQ(request_pages(cache, INT64_MAX),
              page_size < 4 ? INT64_MAX : std::min<int64_t>(whole, INT64_MAX / 3) * 3)
        << "pages of " << page_size;
  }
}

TEST(Groups, EveryAcceptedPlanRunsItsLongestSequence) {
  const uint64_t seed = 31;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int i = 0; i < 40; ++i) {
    std::vector<kvc_layer> layers;
    const int64_t count = random.range(1, 4);
    for (int64_t l = 0; l < count; ++l) {
      const bool window = random.chance(0.5);
      const int64_t size = random.range(1, 40);
      layers.push_back(random.chance(0.3) ? attention_layer()
                       : window           ? attention_layer(size)
                                          : attention_layer(0, size));
    }
    if (random.chance(0.3)) layers.push_back(cross_layer());
    Net net(layers, random.range(20, 90));
    net.config.storage = KVC_STORAGE_NONE;
    net.config.page_size = static_cast<int32_t>(random.range(1, 9));
    net.config.max_tokens_per_forward = random.range(1, 30);
    net.config.max_cross_len = random.range(1, 12);
    kvc_plan* probe = nullptr;
    ASSERT_EQ(kvc_plan_create(&net.config, &probe, nullptr), KVC_OK);
    const int64_t longest = std::min<int64_t>(2000, plan_info_of(probe).max_seq_len);
    kvc_plan_destroy(probe);
    if (longest == 0) continue;  // the encoder's tokens fill the pool
    SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(longest) + " tokens");
    net.config.max_seq_len = longest;
    Cache cache(net.config);
    ASSERT_LE(request_pages(cache, longest), net.config.num_pages);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    for (int64_t done = 0; done < longest;) {
      const int64_t length =
          random.chance(0.8) ? std::min(longest - done, net.config.max_tokens_per_forward) : 1;
      Request request{{1}, {length}};
      if (done == 0 && layers.back().kind == KVC_LAYER_CROSS)
        request.cross_lengths = {net.config.max_cross_len};
      kvc_error error{};
      ASSERT_EQ(cache.begin_with(request, &error), KVC_OK) << error.message << " at " << done;
      ASSERT_LE(stats_of(cache).pages_used, request_pages(cache, done + length));
      cache.finish();
      done += length;
    }
    expect_refused(cache, KVC_E_NEVER_FITS, {"sequence 1", std::to_string(longest).c_str()},
                   [&](kvc_error* err) { return cache.begin({1}, {1}, err); });
    EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  }
}

TEST(Groups, APlanWhoseWindowsDontFitIsRefused) {
  Net net({attention_layer(), attention_layer(8)}, 30);
  net.config.max_tokens_per_forward = 4;
  net.config.max_seq_len = 104;  // 26 + (7 + 4 + 3) / 4 + 1
  EXPECT_EQ(plan_status(net.config, nullptr), KVC_OK);
  net.config.max_seq_len = 105;
  const kvc_error error =
      expect_error(KVC_E_NEVER_FITS, {"max_seq_len", "105", "31", "30", "104"},
                   [&](kvc_error* err) { return plan_status(net.config, err); });
  EXPECT_EQ(error.detail, 104);
}

TEST(Groups, TakeTheirPagesFromOnePool) {
  Net net({attention_layer(), attention_layer(8), cross_layer()});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin_with({{1}, {18}, {}, {6}}), KVC_OK);
  cache.finish();
  std::set<int64_t> ids;
  size_t count = 0;
  for (int32_t group = 0; group < 3; ++group) {
    for (const int64_t page : pages_of(cache, 1, group)) ids.insert(page), ++count;
  }
  EXPECT_EQ(ids.size(), count) << "no page has two users";
  EXPECT_EQ(static_cast<int64_t>(count), info_of(cache, 1).num_pages);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 32 - static_cast<int64_t>(count));
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  EXPECT_EQ(info_of(cache, 2).num_shared_pages, static_cast<int64_t>(count));
  const kvc_seq two = 2;
  const int64_t one = 1;
  int64_t missing = -1;
  ASSERT_EQ(kvc_cache_resize(cache.get(), *ids.rbegin() + 1, nullptr), KVC_OK);
  const int64_t free = kvc_cache_available_pages(cache.get());
  ASSERT_EQ(kvc_seq_can_append(cache.get(), 1, &two, &one, &missing, nullptr), KVC_OK);
  EXPECT_EQ(missing, std::max<int64_t>(0, 2 - free))
      << "a copy of the partial page of each group of tokens";
}

// Sequence 1: 18 old tokens and 4 new ones, 6 encoder tokens. Sequence 2: empty, 5 new tokens.
// Pages of 4, window 8.
class GroupTables : public testing::Test {
 protected:
  GroupTables() {
    EXPECT_EQ(kvc_seq_add(cache_.get(), 1, nullptr), KVC_OK);
    EXPECT_EQ(kvc_seq_add(cache_.get(), 2, nullptr), KVC_OK);
    EXPECT_EQ(cache_.begin_with({{1}, {18}, {}, {6}}), KVC_OK);
    cache_.finish();
    EXPECT_EQ(cache_.begin({1, 2}, {4, 5}), KVC_OK);
    full_ = group_of_layer(cache_, 0);
    windowed_ = group_of_layer(cache_, 1);
    cross_ = group_of_layer(cache_, 2);
  }
  using Values = std::vector<int64_t>;
  Values table(int32_t group, kvc_table_kind kind) { return table_of(cache_, group, kind); }
  Net net_{{attention_layer(), attention_layer(8), cross_layer()}};
  Cache cache_{net_.config};
  int32_t full_ = -1, windowed_ = -1, cross_ = -1;
};

TEST_F(GroupTables, ListTheKeptPagesOfTheirGroup) {
  EXPECT_EQ(table(full_, KVC_TABLE_INDPTR), (Values{0, 6, 8}));
  EXPECT_EQ(table(full_, KVC_TABLE_PAGE_POSITION), (Values{0, 4, 8, 12, 16, 20, 0, 4}));
  // The query at 18 sees 11..18: pages 0 and 1 are gone.
  EXPECT_EQ(table(windowed_, KVC_TABLE_INDPTR), (Values{0, 4, 6}));
  EXPECT_EQ(table(windowed_, KVC_TABLE_PAGE_POSITION), (Values{8, 12, 16, 20, 0, 4}));
  EXPECT_EQ(table(cross_, KVC_TABLE_INDPTR), (Values{0, 2, 2}));
  EXPECT_EQ(table(cross_, KVC_TABLE_PAGE_POSITION), (Values{0, 4}));
  const Values kept = table(windowed_, KVC_TABLE_INDICES);
  ASSERT_EQ(kept.size(), 6u);
  EXPECT_EQ(table(windowed_, KVC_TABLE_BLOCK_TABLE),
            (Values{-1, -1, kept[0], kept[1], kept[2], kept[3], kept[4], kept[5], -1, -1, -1, -1}));
  for (const int32_t group : {full_, windowed_}) {
    EXPECT_EQ(table(group, KVC_TABLE_SEQ_LENS), (Values{22, 5}));
    EXPECT_EQ(table(group, KVC_TABLE_LAST_PAGE_LEN), (Values{2, 1}));
    EXPECT_EQ(table(group, KVC_TABLE_QO_INDPTR), (Values{0, 4, 9}));
    const Values blocks = table(group, KVC_TABLE_BLOCK_TABLE);
    Values slots;
    for (const int64_t token : {18, 19, 20, 21})
      slots.push_back(blocks[static_cast<size_t>(token / 4)] * 4 + token % 4);
    for (const int64_t token : {0, 1, 2, 3, 4})
      slots.push_back(blocks[static_cast<size_t>(6 + token / 4)] * 4 + token % 4);
    EXPECT_EQ(table(group, KVC_TABLE_SLOT_MAPPING), slots);
  }
  EXPECT_EQ(table(cross_, KVC_TABLE_SEQ_LENS), (Values{6, 0})) << "encoder tokens";
  EXPECT_EQ(table(cross_, KVC_TABLE_SLOT_MAPPING), Values{}) << "none are written in this forward";
  EXPECT_EQ(pages_of(cache_, 1, windowed_), (Values{kept[0], kept[1], kept[2]}))
      << "of the committed tokens";
}

TEST_F(GroupTables, EncoderTokensHaveSlotsWhereTheyAreWritten) {
  cache_.abort();
  ASSERT_EQ(cache_.begin_with({{1, 2}, {1, 1}, {}, {0, 5}}), KVC_OK);
  const Values blocks = table(cross_, KVC_TABLE_BLOCK_TABLE);
  Values slots;
  for (const int64_t token : {0, 1, 2, 3, 4})
    slots.push_back(blocks[static_cast<size_t>(2 + token / 4)] * 4 + token % 4);
  EXPECT_EQ(table(cross_, KVC_TABLE_SLOT_MAPPING), slots);
  EXPECT_EQ(table(cross_, KVC_TABLE_SEQ_LENS), (Values{6, 5}));
  EXPECT_EQ(table(cross_, KVC_TABLE_LAST_PAGE_LEN), (Values{2, 1}));
}

TEST_F(GroupTables, IncludeTreeNodes) {
  cache_.abort();
  ASSERT_EQ(cache_.begin_with({{1}, {5}, {-1, 0, 0, 1, 1}}), KVC_OK);
  EXPECT_EQ(table(full_, KVC_TABLE_SEQ_LENS), Values{23});
  EXPECT_EQ(table(full_, KVC_TABLE_SLOT_MAPPING).size(), 5u);
  EXPECT_EQ(pages_of(cache_, 1, full_).size(), 5u) << "nodes of the open forward are not there yet";
  cache_.finish();
  EXPECT_EQ(pages_of(cache_, 1, full_).size(), 6u) << "uncommitted nodes";
  EXPECT_EQ(info_of(cache_, 1).num_pages, 6 + 4 + 2);
  EXPECT_EQ(length_of(cache_, 1), 18);
}

TEST_F(GroupTables, RefuseAGroupThatIsNotThere) {
  DLManagedTensorVersioned* out = nullptr;
  for (const int32_t group : {-1, 3}) {
    const std::string text = "group " + std::to_string(group);
    expect_refused(cache_, KVC_E_OUT_OF_RANGE, {text.c_str(), "3 groups"}, [&](kvc_error* err) {
      return kvc_export_page_table(cache_.forward, group, KVC_TABLE_INDICES, &out, err);
    });
    expect_refused(cache_, KVC_E_OUT_OF_RANGE, {text.c_str(), "3 groups"}, [&](kvc_error* err) {
      return kvc_export_seq_pages(cache_.get(), 1, group, &out, err);
    });
  }
  EXPECT_EQ(out, nullptr);
}

TEST(Groups, BorrowedPoolsHaveATensorPerSlot) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    kvc_layer narrow = attention_layer(8);
    narrow.k_dim = 4;
    Net net({attention_layer(), narrow, attention_layer(), narrow}, 0);
    net.config.flags = KVC_CONFIG_PAD_PAGES;
    net.config.storage = KVC_STORAGE_BORROWED;
    net.config.pool_layout = layout;
    const int64_t slot = 4 * 2 * kDim;
    std::vector<float> memory(static_cast<size_t>(20 * 2 * slot));
    int64_t shape[] = {20, layout == KVC_POOL_PAGE_FIRST ? 2 * slot : slot};
    DLTensor first{memory.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0},
        second = first;
    second.data = memory.data() + 20 * slot;
    const DLTensor* pools[] = {&first, &second};
    net.config.pool_tensors = pools;
    net.config.num_pool_tensors = layout == KVC_POOL_PAGE_FIRST ? 1 : 2;
    Cache cache(net.config);
    EXPECT_EQ(plan_info_of(cache.plan()).num_layer_regions, 2);
    EXPECT_EQ(kvc_cache_available_pages(cache.get()), 20);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    for (int32_t layer = 0; layer < 4; ++layer) {
      ASSERT_EQ(cache.begin({1}, {13}), KVC_OK);
      Tokens tokens(13, static_cast<uint64_t>(layer), kHeads, layer % 2 == 1 ? 4 : kDim,
                    layer % 2 == 1 ? 4 : kDim);
      HostTensor out(Elem::kF32, {13, kHeads, tokens.v.size(2)});
      ASSERT_EQ(kvc_attn(cache.forward, layer, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(),
                         out.dl(), nullptr, nullptr),
                KVC_OK);
      for (const int64_t p : {0, 7, 12})
        expect_row(out, p, {tokens, key_range(layer % 2 == 1 ? p - 7 : 0, p + 1)}, p);
      cache.abort();
    }
    net.config.num_pool_tensors = layout == KVC_POOL_PAGE_FIRST ? 2 : 4;
    expect_error(KVC_E_INVALID_ARGUMENT, {"num_pool_tensors"},
                 [&](kvc_error* err) { return plan_status(net.config, err); });
  }
}

TEST(Groups, ThePlanDescribesThem) {
  Net net({attention_layer(), attention_layer(8), shared_layer(1), mla_layer(), cross_layer()});
  Cache cache(net.config);
  for (const auto& text : {&kvc_plan_describe, &kvc_plan_to_json}) {
    size_t len = 0;
    ASSERT_EQ(text(cache.plan(), nullptr, &len, nullptr), KVC_OK);
    std::string value(len, 0);
    ASSERT_EQ(text(cache.plan(), value.data(), &len, nullptr), KVC_OK);
    const bool json = value.front() == '{';
    for (const char* part :
         {"8", json ? "mla" : "MLA", json ? "shared" : "SHARED", json ? "cross" : "CROSS", "group"})
      EXPECT_NE(value.find(part), std::string::npos) << value << " lacks " << part;
    if (json) {
      const std::string group = "\"layer\": 2, \"kind\": \"shared\", \"group\": " +
                                std::to_string(group_of_layer(cache, 2));
      EXPECT_NE(value.find(group), std::string::npos) << value;
    }
  }
}

}  // namespace
}  // namespace kvc::test
