// Groups whose pages hold different numbers of tokens: steps, forks, pops, shifts, trees, windows,
// exports and operators on such pages.
#include "tests/capi/ops_fixture.h"
#include "tests/capi/twin.h"

namespace kvc::test {
namespace {

kvc_group_info group_info(const Cache& cache, int32_t group) {
  kvc_group_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_group_get(cache.plan(), group, &info, nullptr), KVC_OK);
  return info;
}

int32_t group_count(const Cache& cache) {
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_info_get(cache.plan(), &info, nullptr), KVC_OK);
  return info.num_groups;
}

struct Mix {
  const char* name;
  std::vector<kvc_layer> layers;
  bool differ;  // page_size differ for certain
};

std::vector<Mix> mixes() {
  const auto windowed = [](int32_t kv_heads, int32_t k_dim, int64_t window) {
    return sized_layer(kv_heads, k_dim, 0, window);
  };
  return {
      {"a window twice as wide", {sized_layer(1, 8), windowed(2, 8, 9)}, true},
      {"a window half as wide", {sized_layer(2, 8), windowed(1, 8, 9)}, true},
      {"a window three times as wide", {sized_layer(1, 8), windowed(3, 8, 11)}, true},
      {"other dims", {sized_layer(1, 16, 8), windowed(2, 4, 6), sized_layer(1, 4, 4, 0, 12)}, true},
      {"two full layers and five windows",
       {sized_layer(1, 8), windowed(1, 8, 7), windowed(1, 8, 7), windowed(1, 8, 7),
        sized_layer(1, 8), windowed(1, 8, 7), windowed(1, 8, 7)},
       false},
      {"one full layer and three windows",
       {sized_layer(1, 8), windowed(1, 8, 10), windowed(1, 8, 10), windowed(1, 8, 10)},
       false},
      {"widths that don't divide",
       {sized_layer(2, 8), windowed(3, 8, 8), sized_layer(1, 6, 10, 0, 10)},
       false},
      {"keys that nobody sees again",
       {sized_layer(4, 8), windowed(1, 8, 1), sized_layer(1, 8, 0, 0, 6),
        sized_layer(2, 8, 0, 0, 3)},
       true},
      {"four kinds",
       {sized_layer(4, 8), windowed(2, 8, 5), windowed(1, 8, 21), sized_layer(1, 8, 0, 0, 16)},
       true},
  };
}

TEST(GroupTokens, NarrowGroupsHaveMoreTokensPerPage) {
  Net net({sized_layer(1, 8), sized_layer(4, 8, 0, 16), sized_layer(2, 8, 0, 0, 32)});
  Cache cache(net.config);
  ASSERT_EQ(group_count(cache), 3);
  EXPECT_EQ(group_info(cache, 0).page_size, 16);
  EXPECT_EQ(group_info(cache, 1).page_size, 4) << "page_size is the widest group's";
  EXPECT_EQ(group_info(cache, 2).page_size, 8);
  for (int32_t group = 0; group < 3; ++group) {
    EXPECT_EQ(group_info(cache, group).padding_bytes, 0u);
    EXPECT_EQ(group_info(cache, group).bytes_per_token *
                  static_cast<uint64_t>(group_info(cache, group).page_size),
              group_info(cache, group).page_bytes);
  }
  add_tokens(cache, 1, 17);
  EXPECT_EQ(pages_of(cache, 1, 0).size(), 2u);
  EXPECT_EQ(pages_of(cache, 1, 1).size(), 5u) << "the query at 17 sees tokens 2 to 17";
  EXPECT_EQ(pages_of(cache, 1, 2).size(), 3u);
  net.config.flags = KVC_CONFIG_PAD_PAGES;
  Cache padded(net.config);
  for (int32_t group = 0; group < group_count(padded); ++group)
    EXPECT_EQ(group_info(padded, group).page_size, 4);
}

TEST(GroupTokens, EveryGroupsTokensAreAMultipleOfThePageSize) {
  for (const Mix& mix : mixes()) {
    SCOPED_TRACE(mix.name);
    Twin twin(mix.layers, 1);
    kvc_plan_info plan{};
    plan.struct_size = sizeof plan;
    ASSERT_EQ(kvc_plan_info_get(twin.mixed->plan(), &plan, nullptr), KVC_OK);
    int32_t least = INT32_MAX;
    for (int32_t group = 0; group < plan.num_groups; ++group) {
      const kvc_group_info info = group_info(*twin.mixed, group);
      EXPECT_EQ(info.page_size % 4, 0);
      EXPECT_EQ(plan.prefix_block % info.page_size, 0);
      EXPECT_LE(info.page_bytes, plan.page_bytes);
      EXPECT_EQ(info.page_bytes + info.padding_bytes, plan.page_bytes);
      least = std::min(least, info.page_size);
    }
    EXPECT_EQ(least, 4) << "of the widest";
    EXPECT_TRUE(!mix.differ || twin.page_size().size() > 1);
  }
}

// Random steps on a few sequences.
class Walk {
 public:
  explicit Walk(Twin& twin) : twin_(twin), random_(twin.random) {}

  void run(int steps) {
    for (int i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      one();
      twin_.check();
      if (testing::Test::HasFailure()) return;
    }
    for (const kvc_seq seq : seqs_) twin_.compare_contents(seq);
  }

 private:
  int64_t length(kvc_seq seq) const { return length_of(*twin_.mixed, seq); }
  kvc_seq add() {
    const kvc_seq seq = next_++;
    twin_.each([&](Cache& cache, kvc_error* err) { return kvc_seq_add(cache.get(), seq, err); });
    seqs_.push_back(seq);
    return seq;
  }
  void one() {
    if (seqs_.empty() || (seqs_.size() < 4 && random_.chance(0.1))) add();
    const kvc_seq seq = random_.pick(seqs_);
    switch (random_.range(0, 9)) {
      case 0:
      case 1:
      case 2:
      case 3: return forward();
      case 4: return tree(seq);
      case 5: return fork(seq);
      case 6: return pop(seq);
      case 7: return shift(seq);
      case 8: return window(seq);
      default: return remove(seq);
    }
  }
  void forward() {
    std::vector<kvc_seq> seqs;
    std::vector<int64_t> lengths;
    for (const kvc_seq seq : seqs_) {
      if (!random_.chance(0.7)) continue;
      seqs.push_back(seq);
      lengths.push_back(random_.chance(0.5) ? 1 : random_.range(1, 19));
    }
    if (!seqs.empty()) twin_.step(seqs, lengths);
  }
  void tree(kvc_seq seq) {
    const int64_t nodes = random_.range(1, 9);
    std::vector<int32_t> parents;
    for (int64_t i = 0; i < nodes; ++i)
      parents.push_back(static_cast<int32_t>(random_.range(-1, i - 1)));
    twin_.step({seq}, {nodes}, parents);
    const auto leaf = static_cast<int32_t>(random_.range(-1, nodes - 1));
    twin_.each([&](Cache& cache, kvc_error* err) {
      return kvc_tree_commit(cache.get(), 1, &seq, &leaf, nullptr, err);
    });
    if (random_.chance(0.3)) twin_.compare_contents(seq);
  }
  void fork(kvc_seq seq) {
    if (seqs_.size() >= 5) return;
    const int64_t at = random_.range(0, length(seq));
    const kvc_seq child = next_++;
    const bool done =
        twin_.where_possible(seq, KVC_SEQ_FORK, at, [&](Cache& cache, kvc_error* err) {
          return kvc_seq_fork(cache.get(), seq, child, at, err);
        });
    if (done) seqs_.push_back(child);
    if (done && has_window(seq)) windowed_.insert(child);
  }
  void pop(kvc_seq seq) {
    const int64_t n = random_.range(0, std::min<int64_t>(length(seq), 12));
    twin_.where_possible(seq, KVC_SEQ_POP, length(seq) - n, [&](Cache& cache, kvc_error* err) {
      return kvc_seq_pop(cache.get(), seq, n, err);
    });
  }
  void shift(kvc_seq seq) {
    if (length(seq) == 0) return;
    int64_t at = random_.range(0, length(seq) - 1), end = random_.range(at + 1, length(seq));
    if (random_.chance(0.5)) at -= at % 8, end += 8 - end % 8;  // whole pages of some groups
    end = std::min(end, length(seq));
    twin_.where_accepted(seq, [&](Cache& cache, kvc_seq id, kvc_error* err) {
      return kvc_seq_shift(cache.get(), id, at, end, at - end, err);
    });
  }
  void window(kvc_seq seq) {
    for (const kvc_layer_info& info : twin_.infos) {
      if (info.chunk != 0) return;  // refused by name
    }
    if (has_window(seq)) return;
    const int64_t size = random_.range(3, 30);
    twin_.each([&](Cache& cache, kvc_error* err) {
      return kvc_seq_set_window(cache.get(), seq, size, 0, err);
    });
    windowed_.insert(seq);
  }
  void remove(kvc_seq seq) {
    twin_.each([&](Cache& cache, kvc_error* err) { return kvc_seq_remove(cache.get(), seq, err); });
    std::erase(seqs_, seq);
  }
  bool has_window(kvc_seq seq) const { return windowed_.count(seq) != 0; }

  Twin& twin_;
  Random& random_;
  std::vector<kvc_seq> seqs_;
  std::set<kvc_seq> windowed_;
  kvc_seq next_ = 1;
};

TEST(GroupTokens, AMixedModelAnswersAsItsLayersByThemselves) {
  uint64_t seed = 500;
  for (const Mix& mix : mixes()) {
    for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
      for (int run = 0; run < 3; ++run, ++seed) {
        SCOPED_TRACE(std::string(mix.name) + ", seed " + std::to_string(seed));
        Twin twin(mix.layers, seed, 600, layout);
        Walk walk(twin);
        walk.run(60);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(GroupTokens, RotatedKeysShiftInEveryGroup) {
  kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  std::vector<kvc_layer> layers{sized_layer(1, 8), sized_layer(2, 8), sized_layer(4, 8, 0, 64)};
  for (kvc_layer& layer : layers) layer.rope = &rope;
  Twin twin(layers, 3);
  ASSERT_GT(twin.page_size().size(), 1u);
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_add(cache.get(), 1, err); });
  twin.step({1}, {37});
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 2, 30, err); });
  twin.each(
      [](Cache& cache, kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 3, 14, -11, err); });
  twin.step({1, 2}, {5, 3});
  for (const kvc_seq seq : {1, 2}) twin.compare_contents(seq);
  twin.check();
}

TEST(GroupTokens, SinksStayInEveryGroup) {
  kvc_rope rope = rope_of(KVC_ROPE_ON_READ);
  std::vector<kvc_layer> layers{sized_layer(1, 8), sized_layer(3, 8, 0, 7)};
  for (kvc_layer& layer : layers) layer.rope = &rope;
  Twin twin(layers, 4);
  ASSERT_GT(twin.page_size().size(), 1u);
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_add(cache.get(), 1, err); });
  twin.each(
      [](Cache& cache, kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 14, 5, err); });
  for (const int64_t length : {20, 1, 1, 9, 1, 30, 1}) twin.step({1}, {length});
  EXPECT_EQ(info_of(*twin.mixed, 1).sink, 5);
  twin.compare_contents(1);
  twin.check();
}

TEST(GroupTokens, AForkPaysForThePartialPageOfEachGroup) {
  Twin twin({sized_layer(1, 8), sized_layer(4, 8, 0, 100)}, 5, 20);
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_add(cache.get(), 1, err); });
  twin.step({1}, {20});  // 16 + 4 tokens; 5 full pages of 4
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 2, -1, err); });
  const uint64_t copied = stats_of(*twin.mixed).pages_copied;
  const int64_t used = stats_of(*twin.mixed).pages_used;
  ASSERT_EQ(used, 2 + 5);
  twin.step({2}, {1});
  EXPECT_EQ(stats_of(*twin.mixed).pages_copied - copied, 1u)
      << "the full group's, whose page of 16 has room";
  EXPECT_EQ(stats_of(*twin.mixed).pages_used, used + 2);
  EXPECT_EQ(stats_of(*twin.mixed).slots_unused, (32 - 20) + (32 - 21) + 3);
  for (const kvc_seq seq : {1, 2}) twin.compare_contents(seq);
}

TEST(GroupTokens, AForkAtTheEndOfAPageOfEveryGroupCopiesNothing) {
  Twin twin({sized_layer(1, 8), sized_layer(4, 8, 0, 100)}, 5, 30);
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_add(cache.get(), 1, err); });
  twin.step({1}, {32});
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 2, -1, err); });
  twin.step({2, 1}, {1, 1});
  EXPECT_EQ(stats_of(*twin.mixed).pages_copied, 0u);
  EXPECT_EQ(stats_of(*twin.mixed).pages_used, 2 + 8 + 2 * 2);
  EXPECT_EQ(stats_of(*twin.mixed).slots_unused, 2 * (15 + 3));
}

TEST(GroupTokens, SharedPrefixesAreReadTogetherOnPagesOfAnySize) {
  Twin twin({sized_layer(1, 8), sized_layer(4, 8), sized_layer(4, 8, 0, 5000)}, 8, 2500);
  ASSERT_GT(twin.page_size().size(), 1u);
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_add(cache.get(), 1, err); });
  twin.step({1}, {2100});
  std::vector<kvc_seq> seqs{1};
  for (kvc_seq child = 2; child <= 12; ++child) {
    twin.each(
        [&](Cache& cache, kvc_error* err) { return kvc_seq_fork(cache.get(), 1, child, -1, err); });
    seqs.push_back(child);
  }
  const uint64_t before = stats_of(*twin.mixed).cascades;
  for (int i = 0; i < 3; ++i) twin.step(seqs, std::vector<int64_t>(seqs.size(), 1));
  EXPECT_GT(stats_of(*twin.mixed).cascades, before);
  twin.compare_contents(7);
}

TEST(GroupTokens, DebuggingWritesThroughTheGroupsPages) {
  Twin twin({sized_layer(1, 8), sized_layer(4, 8, 6, 9), sized_layer(1, 4, 4)}, 6);
  ASSERT_GT(twin.page_size().size(), 1u);
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_add(cache.get(), 1, err); });
  twin.step({1}, {21});
  twin.each([](Cache& cache, kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 2, -1, err); });
  HostTensor k(Elem::kF32, {3, 5, 4, 8}), v(Elem::kF32, {3, 5, 4, 8});
  k.fill_random(twin.random);
  v.fill_random(twin.random);
  ASSERT_EQ(kvc_debug_set_kv(twin.mixed->get(), 2, 15, k.dl(), v.dl(), nullptr, nullptr), KVC_OK);
  for (size_t l = 0; l < 3; ++l) {
    const kvc_layer_info& info = twin.infos[l];
    HostTensor k1(Elem::kF32, {5, info.num_kv_heads, info.k_dim}),
        v1(Elem::kF32, {5, info.num_kv_heads, info.v_dim});
    const auto copy = [&](HostTensor& from, HostTensor& to) {
      to.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
        to.set(from.get(static_cast<int64_t>(l), t, h, d), t, h, d);
      });
    };
    copy(k, k1);
    copy(v, v1);
    ASSERT_EQ(kvc_debug_set_kv(twin.singles[l]->get(), 2, 15, nullptr, nullptr, nullptr, nullptr),
              KVC_E_INVALID_ARGUMENT)
        << "neither given";
    ASSERT_EQ(
        kvc_debug_set_layer(twin.singles[l]->get(), 2, 0, 15, k1.dl(), v1.dl(), nullptr, nullptr),
        KVC_OK);
  }
  for (const kvc_seq seq : {1, 2}) twin.compare_contents(seq);
  twin.step({1, 2}, {4, 4});
  for (const kvc_seq seq : {1, 2}) twin.compare_contents(seq);
  twin.check();
}

// A view of an exported pool that the operators take, for as long as it lives.
class ExportedPool {
 public:
  ExportedPool(const Cache& cache, int32_t layer) {
    for (const kvc_pool_kind kind : {KVC_POOL_K, KVC_POOL_V}) {
      kvc_error error{};
      EXPECT_EQ(kvc_export_pool(cache.get(), layer, kind, &halves_[kind], &error), KVC_OK)
          << error.message;
    }
    pool_.struct_size = sizeof pool_;
    pool_.k = &halves_[0]->dl_tensor;
    pool_.v = &halves_[1]->dl_tensor;
    pool_.layout = KVC_OP_HND;
  }
  ~ExportedPool() {
    for (DLManagedTensorVersioned* half : halves_) half->deleter(half);
  }
  ExportedPool(const ExportedPool&) = delete;
  ExportedPool& operator=(const ExportedPool&) = delete;
  const kvc_op_pool* c() const { return &pool_; }
  const int64_t* shape() const { return pool_.k->shape; }

 private:
  DLManagedTensorVersioned* halves_[2] = {};
  kvc_op_pool pool_{};
};

Indices<int32_t> narrow(const std::vector<int64_t>& values, std::vector<int64_t> shape = {}) {
  std::vector<int32_t> small(values.begin(), values.end());
  for (int32_t& value : small) value = std::max(0, value);  // dropped pages: no row sees them
  if (shape.empty()) shape = {static_cast<int64_t>(small.size())};
  return Indices<int32_t>(small, shape);
}

TEST(GroupTokens, OperatorsOnExportedPagesComputeTheSame) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    Twin twin({sized_layer(1, 8), sized_layer(4, 8, 0, 12), sized_layer(2, 6, 10)}, 7, 60, layout);
    ASSERT_GT(twin.page_size().size(), 1u);
    Cache& cache = *twin.mixed;
    for (const kvc_seq seq : {1, 2})
      twin.each([&](Cache& each, kvc_error* err) { return kvc_seq_add(each.get(), seq, err); });
    twin.step({1, 2}, {27, 6});
    ASSERT_EQ(cache.begin({2, 1}, {3, 7}), KVC_OK);
    for (size_t l = 0; l < 3; ++l) {
      const kvc_layer_info& info = twin.infos[l];
      const auto layer = static_cast<int32_t>(l);
      HostTensor q(Elem::kF32, {10, info.num_q_heads, info.k_dim});
      HostTensor k(Elem::kF32, {10, info.num_kv_heads, info.k_dim}),
          v(Elem::kF32, {10, info.num_kv_heads, info.v_dim});
      for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(twin.random);
      HostTensor out(Elem::kF32, {10, info.num_q_heads, info.v_dim}),
          by_op(Elem::kF32, out.shape());
      HostTensor lse(Elem::kF32, {10, info.num_q_heads}),
          op_lse(Elem::kF32, {10, info.num_q_heads});
      // The operator appends to the exported pages; kvc_attn then only reads.
      const ExportedPool pool(cache, layer);
      EXPECT_EQ(pool.shape()[0], 60);
      EXPECT_EQ(pool.shape()[1], info.num_kv_heads);
      EXPECT_EQ(pool.shape()[2], info.page_size);
      EXPECT_EQ(pool.shape()[3], info.k_dim);
      const auto table = [&](kvc_table_kind kind) { return table_of(cache, info.group, kind); };
      Indices<int64_t> slots(table(KVC_TABLE_SLOT_MAPPING));
      kvc_error error{};
      ASSERT_EQ(kvc_op_append(pool.c(), nullptr, slots.dl(), k.dl(), v.dl(), &error), KVC_OK)
          << error.message;
      ASSERT_EQ(kvc_attn(cache.forward, layer, nullptr, q.dl(), nullptr, nullptr, out.dl(),
                         lse.dl(), &error),
                KVC_OK)
          << error.message;
      Indices<int32_t> lens = narrow(table(KVC_TABLE_SEQ_LENS)),
                       rows = narrow(table(KVC_TABLE_QO_INDPTR));
      Indices<int32_t> indptr = narrow(table(KVC_TABLE_INDPTR)),
                       indices = narrow(table(KVC_TABLE_INDICES));
      const std::vector<int64_t> padded = table(KVC_TABLE_BLOCK_TABLE);
      Indices<int32_t> blocks = narrow(padded, {2, static_cast<int64_t>(padded.size() / 2)});
      kvc_op_table op_table{};
      op_table.struct_size = sizeof op_table;
      op_table.seq_lens = lens.dl();
      op_table.qo_indptr = rows.dl();
      kvc_attn_opt attn = attn_options();
      attn.window = info.window;
      kvc_op_opt opt = op_options();
      opt.attn = &attn;
      for (const bool csr : {true, false}) {
        if (csr && info.window != 0)
          continue;  // CSR lists the kept pages only, which the operator can't place
        op_table.page_indptr = csr ? indptr.dl() : nullptr;
        op_table.page_indices = csr ? indices.dl() : nullptr;
        op_table.block_table = csr ? nullptr : blocks.dl();
        ASSERT_EQ(kvc_op_attention_paged(pool.c(), &op_table, &opt, q.dl(), by_op.dl(), op_lse.dl(),
                                         &error),
                  KVC_OK)
            << error.message;
        EXPECT_LE(largest_difference(out, by_op), 1e-5)
            << "layer " << l << (csr ? " CSR" : " padded");
        EXPECT_LE(largest_difference(lse, op_lse), 1e-5);
      }
    }
    cache.end();
  }
}

}  // namespace
}  // namespace kvc::test
