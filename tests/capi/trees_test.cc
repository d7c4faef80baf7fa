// Token trees of speculative decoding: what a node sees, what a commit keeps, what is refused.
#include <utility>

#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

constexpr float kLatentScale = 0.25f;

// A rotated layer, a plain one, K = V, and MLA with rope: everything whose rows a commit moves.
struct TreeNet {
  TreeNet() {
    layers[0].rope = &rope;
    layers[3].rope = &rope;
  }
  kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  std::vector<kvc_layer> layers{attention_layer(), attention_layer(), joint_layer(), mla_layer()};
};

// The inputs of all four layers for one token stream.
struct Streams {
  explicit Streams(int64_t count)
      : heads(count, 11),
        plain(count, 12),
        joint(count, 13),
        latent(count, 14, kHeads, kRank + kRopeDim, kRank) {}
  Tokens heads, plain, joint, latent;
  std::vector<Tokens*> all() { return {&heads, &plain, &joint, &latent}; }
};

// One forward over rows [begin, begin + count) of the streams: all layers, outputs of the plain
// layer and of MLA into `out`, `mla_out`.
void run_forward(Cache& cache, const Request& request, Streams& streams, int64_t begin,
                 int64_t count, HostTensor& out, HostTensor& mla_out) {
  kvc_error error{};
  ASSERT_EQ(cache.begin_with(request, &error), KVC_OK) << error.message;
  kvc_attn_opt opt = attn_opt();
  opt.scale = kLatentScale;
  const std::vector<Tokens*> tokens = streams.all();
  for (int32_t layer = 0; layer < 4; ++layer) {
    Tokens& own = *tokens[static_cast<size_t>(layer)];
    HostTensor& to = layer == 3 ? mla_out : out;
    Rows q(own.q, begin, count), k(own.k, begin, count), v(own.v, begin, count),
        rows(to, begin, count);
    ASSERT_EQ(kvc_attn(cache.forward, layer, layer == 3 ? &opt : nullptr, q.dl(), k.dl(),
                       layer < 2 ? v.dl() : nullptr, rows.dl(), nullptr, &error),
              KVC_OK)
        << error.message;
  }
  cache.finish();
}

// What a tree may grow to at most is its deepest path: fixed trees of many nodes serve to the end.
TEST(Tree, ItsDeepestPathCountsAgainstTheLongestSequence) {
  Net net({attention_layer()}, 64);
  net.config.max_seq_len = 16;
  Cache cache(net.config);
  add_tokens(cache, 1, 14);
  const auto begin = [&](std::vector<int32_t> parents) {
    return [&cache, parents](kvc_error* err) {
      Request request{{1}, {static_cast<int64_t>(parents.size())}};
      request.parents = parents;
      return cache.begin_with(request, err);
    };
  };
  const auto append = [&](int64_t rows) {
    Tokens tokens(rows);
    ASSERT_EQ(kvc_kv_append(cache.forward, 0, tokens.k.dl(), tokens.v.dl(), nullptr), KVC_OK);
    cache.finish();
  };
  expect_refused(cache, KVC_E_NEVER_FITS, {"sequence 1 with 14 tokens", "3 more", "longest", "16"},
                 begin({-1, 0, 1}));
  expect_refused(cache, KVC_E_NEVER_FITS, {"8 more"}, begin({-1, -1, 0, 0, 1, 1, 5, -1}));
  expect_ok(begin({-1, -1, 0, 0, 1, 1, -1, 6}));  // Eight nodes, two deep.
  append(8);
  int64_t missing = -1;
  const kvc_seq seq = 1;
  const int64_t more = 3;
  EXPECT_EQ(kvc_seq_can_append(cache.get(), 1, &seq, &more, &missing, nullptr), KVC_OK);
  expect_refused(cache, KVC_E_NEVER_FITS, {"1 more"}, begin({7}));
  expect_ok(begin({6, -1, 9}));
  append(3);
  const int32_t leaf = 10;
  ASSERT_EQ(kvc_tree_commit(cache.get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(length_of(cache, 1), 16);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  EXPECT_EQ(kvc_seq_can_append(cache.get(), 1, &seq, &more, &missing, nullptr), KVC_E_NEVER_FITS);
  expect_refused(cache, KVC_E_NEVER_FITS, {"sequence 1 with 16 tokens"}, begin({-1}));
  ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 1, nullptr), KVC_OK);
  expect_refused(cache, KVC_E_NEVER_FITS, {"2 more", "16"}, begin({-2, -2}));
  expect_ok(begin(std::vector<int32_t>(40, -1)));
  ASSERT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
}

TEST(Tree, FourRoundsOfCommitsEqualThePlainSequence) {
  const TreeNet layers;
  Net net(layers.layers, 64);
  Cache tree(net.config), plain(net.config);
  Streams streams(200), path_streams(200);
  HostTensor out(Elem::kF32, {200, kHeads, kDim}), mla_out(Elem::kF32, {200, kHeads, kRank});
  HostTensor path_out(Elem::kF32, {200, kHeads, kDim}),
      path_mla_out(Elem::kF32, {200, kHeads, kRank});
  for (Cache* cache : {&tree, &plain}) ASSERT_EQ(kvc_seq_add(cache->get(), 1, nullptr), KVC_OK);
  const uint64_t seed = 77;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  int64_t used = 0, length = 0;  // rows of the streams; committed tokens
  // Row `from` of the tree's streams is the next token of the plain sequence.
  const auto accept = [&](int64_t from) {
    for (size_t i = 0; i < 4; ++i) {
      Tokens &a = *streams.all()[i], &b = *path_streams.all()[i];
      copy_row(a.q, from, b.q, length), copy_row(a.k, from, b.k, length),
          copy_row(a.v, from, b.v, length);
    }
    ++length;
  };
  run_forward(tree, {{1}, {6}}, streams, 0, 6, out, mla_out);
  for (int64_t i = 0; i < 6; ++i) accept(i);
  run_forward(plain, {{1}, {6}}, path_streams, 0, 6, path_out, path_mla_out);
  used = 6;
  for (int round = 0; round < 4; ++round) {
    std::vector<int32_t> parents;
    const int64_t first_row = used;
    for (const int64_t nodes : {int64_t{3}, random.range(1, 9)}) {
      std::vector<int32_t> added;
      for (int64_t i = 0; i < nodes; ++i) {
        added.push_back(
            static_cast<int32_t>(random.range(-1, static_cast<int64_t>(parents.size()) - 1)));
        parents.push_back(added.back());
      }
      run_forward(tree, {{1}, {nodes}, added}, streams, used, nodes, out, mla_out);
      used += nodes;
    }
    EXPECT_EQ(length_of(tree, 1), length) << "uncommitted nodes don't count";
    EXPECT_EQ(info_of(tree, 1).tree_nodes, static_cast<int64_t>(parents.size()));
    const auto leaf =
        static_cast<int32_t>(random.range(0, static_cast<int64_t>(parents.size()) - 1));
    std::vector<int64_t> path;
    for (int32_t node = leaf; node >= 0; node = parents[static_cast<size_t>(node)])
      path.insert(path.begin(), node);
    const int64_t before = length;
    for (const int64_t node : path) accept(first_row + node);
    const auto count = static_cast<int64_t>(path.size());
    run_forward(plain, {{1}, {count}}, path_streams, before, count, path_out, path_mla_out);
    for (int64_t i = 0; i < count; ++i) {  // what the nodes saw was what the plain tokens see
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t d = 0; d < kDim; ++d) {
          EXPECT_NEAR(out.get(first_row + path[static_cast<size_t>(i)], h, d),
                      path_out.get(before + i, h, d), 1e-5);
          EXPECT_NEAR(mla_out.get(first_row + path[static_cast<size_t>(i)], h, d),
                      path_mla_out.get(before + i, h, d), 1e-5);
        }
      }
    }
    const kvc_seq seq = 1;
    ASSERT_EQ(kvc_tree_commit(tree.get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
    EXPECT_EQ(kvc_cache_check(tree.get(), nullptr), KVC_OK);
    EXPECT_EQ(length_of(tree, 1), length);
    EXPECT_EQ(info_of(tree, 1).num_pages, info_of(plain, 1).num_pages);
    for (int32_t layer = 0; layer < 4; ++layer) {
      const int64_t dim = layer == 3 ? kRank + kRopeDim : kDim;
      HostTensor k(Elem::kF32, {length, 1, dim}), plain_k(Elem::kF32, {length, 1, dim});
      HostTensor v(Elem::kF32, {length, 1, kDim}), plain_v(Elem::kF32, {length, 1, kDim});
      ASSERT_EQ(kvc_debug_get_layer(tree.get(), 1, layer, 0, length, k.dl(),
                                    layer < 2 ? v.dl() : nullptr, nullptr, nullptr),
                KVC_OK);
      ASSERT_EQ(kvc_debug_get_layer(plain.get(), 1, layer, 0, length, plain_k.dl(),
                                    layer < 2 ? plain_v.dl() : nullptr, nullptr, nullptr),
                KVC_OK);
      EXPECT_TRUE(k.same_bytes(plain_k) && v.same_bytes(plain_v))
          << "layer " << layer << ", round " << round;
    }
  }
  // The next plain step.
  const int64_t next = length;
  for (size_t i = 0; i < 4; ++i) {
    Tokens &a = *streams.all()[i], &b = *path_streams.all()[i];
    copy_row(b.q, next, a.q, used), copy_row(b.k, next, a.k, used), copy_row(b.v, next, a.v, used);
  }
  run_forward(tree, {{1}, {1}}, streams, used, 1, out, mla_out);
  run_forward(plain, {{1}, {1}}, path_streams, next, 1, path_out, path_mla_out);
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t d = 0; d < kDim; ++d) {
      EXPECT_NEAR(out.get(used, h, d), path_out.get(next, h, d), 1e-5);
      EXPECT_NEAR(mla_out.get(used, h, d), path_mla_out.get(next, h, d), 1e-5);
    }
  }
}

// A cache with sequences 1 (5 tokens) and 2 (3 tokens), one plain layer.
class TreeCalls : public testing::Test {
 protected:
  TreeCalls() {
    add_tokens(cache_, 1, 5);
    add_tokens(cache_, 2, 3);
  }
  kvc_cache* get() const { return cache_.get(); }
  void grow(kvc_seq seq, const std::vector<int32_t>& parents) {
    kvc_error error{};
    ASSERT_EQ(cache_.begin_with({{seq}, {static_cast<int64_t>(parents.size())}, parents}, &error),
              KVC_OK)
        << error.message;
    cache_.finish();
  }
  kvc_status commit(const std::vector<kvc_seq>& seqs, const std::vector<int32_t>& leaves,
                    kvc_error* err = nullptr) {
    return kvc_tree_commit(get(), seqs.size(), seqs.data(), leaves.data(), nullptr, err);
  }
  Net net_{{attention_layer()}};
  Cache cache_{net_.config};
};

TEST_F(TreeCalls, ANodeSeesTheCommittedTokensAndItsAncestors) {
  Net net({attention_layer()});
  Cache cache(net.config);
  Tokens tokens(20);
  HostTensor out(Elem::kF32, {20, kHeads, kDim});
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  attend_rows(cache, 1, 0, tokens, 0, 5, out);
  // Two roots; node 7 hangs below node 5
  const std::vector<int32_t> first{-1, 0, 0, -1, 1}, second{4, 3, 5};
  std::vector<int32_t> all;
  int64_t row = 5;
  for (const std::vector<int32_t>& parents : {first, second}) {
    const auto count = static_cast<int64_t>(parents.size());
    ASSERT_EQ(cache.begin_with({{1}, {count}, parents}), KVC_OK);
    Rows q(tokens.q, row, count), k(tokens.k, row, count), v(tokens.v, row, count),
        to(out, row, count);
    ASSERT_EQ(
        kvc_attn(cache.forward, 0, nullptr, q.dl(), k.dl(), v.dl(), to.dl(), nullptr, nullptr),
        KVC_OK);
    HostTensor gathered(Elem::kF32, {row + count, 1, kDim});
    ASSERT_EQ(kvc_kv_gather(cache.forward, 0, 1, gathered.dl(), nullptr, nullptr), KVC_OK);
    for (int64_t i = 0; i < row + count; ++i)
      EXPECT_EQ(gathered.get(i, 0, 3), tokens.k.get(i, 0, 3)) << "in slot order";
    cache.finish();
    all.insert(all.end(), parents.begin(), parents.end());
    row += count;
  }
  for (int32_t node = 0; node < static_cast<int32_t>(all.size()); ++node) {
    std::vector<int64_t> keys = key_range(0, 5);
    for (int32_t at = node; at >= 0; at = all[static_cast<size_t>(at)]) keys.push_back(5 + at);
    expect_row(out, 5 + node, {tokens, keys}, 5 + node);
  }
}

TEST_F(TreeCalls, WindowsCountDepthsNotSlots) {
  Net net({attention_layer(4)});
  Cache cache(net.config);
  Tokens tokens(20);
  HostTensor out(Elem::kF32, {20, kHeads, kDim});
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  attend_rows(cache, 1, 0, tokens, 0, 9, out);
  const std::vector<int32_t> parents{-1, -1, 0, 1, 2, 4};
  ASSERT_EQ(cache.begin_with({{1}, {6}, parents}), KVC_OK);
  Rows q(tokens.q, 9, 6), k(tokens.k, 9, 6), v(tokens.v, 9, 6), to(out, 9, 6);
  ASSERT_EQ(kvc_attn(cache.forward, 0, nullptr, q.dl(), k.dl(), v.dl(), to.dl(), nullptr, nullptr),
            KVC_OK);
  cache.finish();
  for (int32_t node = 0; node < 6; ++node) {
    std::vector<int64_t> path;
    for (int32_t at = node; at >= 0; at = parents[static_cast<size_t>(at)])
      path.insert(path.begin(), 9 + at);
    std::vector<int64_t> chain = key_range(0, 9);
    chain.insert(chain.end(), path.begin(), path.end());
    chain.erase(chain.begin(), chain.end() - 4);
    expect_row(out, 9 + node, {tokens, chain}, 9 + node);
  }
  const kvc_seq seq = 1;
  const int32_t leaf = 5;
  ASSERT_EQ(kvc_tree_commit(cache.get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(length_of(cache, 1), 13);
  EXPECT_EQ(pages_of(cache, 1, 0).size(), 2u) << "tokens 8..12: a commit moves the window on";
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST_F(TreeCalls, PositionsAreTheCommittedLengthPlusTheDepth) {
  grow(1, {-1, 0});
  ASSERT_EQ(cache_.begin_with({{2, 1}, {2, 3}, {KVC_TREE_NONE, KVC_TREE_NONE, 1, 0, -1}}), KVC_OK)
      << "chains and trees mix";
  HostTensor positions(Elem::kI32, {5});
  ASSERT_EQ(kvc_forward_positions(cache_.forward, positions.dl(), nullptr), KVC_OK);
  const int32_t expected[] = {3, 4, 7, 6, 5};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(positions.get(i), expected[i]);
  EXPECT_EQ(info_of(cache_, 1).tree_nodes, 2) << "the open forward's nodes count from its end on";
  cache_.finish();
  EXPECT_EQ(info_of(cache_, 1).tree_nodes, 5);
  EXPECT_EQ(info_of(cache_, 2).tree_nodes, 0);
  EXPECT_EQ(length_of(cache_, 2), 5);
  EXPECT_EQ(stats_of(cache_).tree_tokens, 5u);
}

TEST_F(TreeCalls, PartsMergeIntoTheWhole) {
  Net net({attention_layer()});
  Cache cache(net.config);
  Tokens tokens(12);
  HostTensor out(Elem::kF32, {12, kHeads, kDim});
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  attend_rows(cache, 1, 0, tokens, 0, 7, out);
  ASSERT_EQ(cache.begin_with({{1}, {5}, {-1, 0, 0, 2, -1}}), KVC_OK);
  HostTensor whole(Elem::kF32, {5, kHeads, kDim}), own(Elem::kF32, {5, kHeads, kDim}),
      old(Elem::kF32, {5, kHeads, kDim});
  HostTensor own_lse(Elem::kF32, {5, kHeads}), old_lse(Elem::kF32, {5, kHeads});
  Rows q(tokens.q, 7, 5), k(tokens.k, 7, 5), v(tokens.v, 7, 5);
  kvc_forward* fwd = cache.forward;
  ASSERT_EQ(kvc_attn_self(fwd, 0, nullptr, q.dl(), k.dl(), v.dl(), own.dl(), own_lse.dl(), nullptr),
            KVC_OK);
  ASSERT_EQ(kvc_attn_cached(fwd, 0, nullptr, q.dl(), old.dl(), old_lse.dl(), nullptr), KVC_OK);
  for (int64_t node = 0; node < 5; ++node)
    expect_row(old, node, {tokens, key_range(0, 7)}, 7 + node);
  ASSERT_EQ(kvc_attn_merge(fwd, own.dl(), own_lse.dl(), old.dl(), old_lse.dl(), nullptr), KVC_OK);
  ASSERT_EQ(kvc_attn(fwd, 0, nullptr, q.dl(), k.dl(), v.dl(), whole.dl(), nullptr, nullptr),
            KVC_OK);
  EXPECT_LE(largest_difference(whole, own), 1e-5);
}

TEST_F(TreeCalls, AttentionAmongNewTokensNeedsATreeOfOneForward) {
  grow(1, {-1, 0});
  ASSERT_EQ(cache_.begin_with({{1}, {1}, {1}}), KVC_OK);
  Tokens tokens(1);
  HostTensor out(Elem::kF32, {1, kHeads, kDim});
  expect_refused(cache_, KVC_E_UNSUPPORTED, {"sequence 1", "tree", "2"}, [&](kvc_error* err) {
    return kvc_attn_self(cache_.forward, 0, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(),
                         out.dl(), nullptr, err);
  });
  EXPECT_TRUE(out.is_untouched());
  EXPECT_EQ(kvc_attn_cached(cache_.forward, 0, nullptr, tokens.q.dl(), out.dl(), nullptr, nullptr),
            KVC_OK);
}

TEST_F(TreeCalls, BeginRefusesWhatIsNoTree) {
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const Request& request) {
    kvc_error error = expect_refused(
        cache_, status, parts, [&](kvc_error* err) { return cache_.begin_with(request, err); });
    EXPECT_EQ(cache_.forward, nullptr);
    return error;
  };
  EXPECT_EQ(refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[1] = 1", "node 1", "sequence 1"},
                    {{1}, {2}, {-1, 1}})
                .detail,
            1)
      << "its own parent";
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[0] = 0", "node 0"}, {{1}, {1}, {0}});
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[1] = 2", "node 1"},
          {{1}, {3}, {-1, 2, 1}});  // a forward reference, and a cycle
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[1] = 2147483647"}, {{1}, {2}, {-1, INT32_MAX}});
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[0] = -3"}, {{1}, {1}, {-3}});
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[0] = -2147483648"}, {{1}, {1}, {INT32_MIN}});
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[1] = -2", "node 1"},
          {{1}, {2}, {-1, KVC_TREE_NONE}});
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[1] = 0", "-2"}, {{1}, {2}, {KVC_TREE_NONE, 0}});
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[3] = 3", "node 1", "sequence 1"},
          {{2, 1}, {2, 2}, {KVC_TREE_NONE, KVC_TREE_NONE, -1, 3}});
  grow(1, {-1, 0});
  refused(KVC_E_INVALID_ARGUMENT, {"tree_parents[0] = 2", "node 2"}, {{1}, {1}, {2}});
  refused(KVC_E_INVALID_STATE, {"sequence 1", "tree", "2 nodes"}, {{1}, {1}});
  refused(KVC_E_INVALID_STATE, {"sequence 1", "tree"}, {{2, 1}, {1, 1}, {-1, KVC_TREE_NONE}});
  int64_t pages = -1;
  const kvc_seq seq = 1;
  const int64_t one = 1;
  EXPECT_EQ(kvc_seq_can_append(get(), 1, &seq, &one, &pages, nullptr), KVC_OK)
      << "an extension of the tree";
  EXPECT_EQ(pages, 0);
}

TEST_F(TreeCalls, ATreeHasAtMost4096Nodes) {
  Net net({attention_layer()}, 3000);
  Cache cache(net.config);
  add_tokens(cache, 1, 1);
  const std::vector<int32_t> most(KVC_MAX_TREE_NODES, -1), more(KVC_MAX_TREE_NODES + 1, -1);
  const auto refused = [&](const std::vector<int32_t>& parents) {
    const kvc_error error = expect_refused(
        cache, KVC_E_OUT_OF_RANGE, {"sequence 1", "4097", "4096"}, [&](kvc_error* err) {
          return cache.begin_with({{1}, {static_cast<int64_t>(parents.size())}, parents}, err);
        });
    EXPECT_EQ(error.detail, 4097);
  };
  refused(more);
  ASSERT_EQ(cache.begin_with({{1}, {KVC_MAX_TREE_NODES}, most}), KVC_OK);
  cache.finish();
  refused({4095});
  const kvc_seq seq = 1;
  const int32_t leaf = 4095;
  EXPECT_EQ(kvc_tree_commit(cache.get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(length_of(cache, 1), 2);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 2999);
}

TEST_F(TreeCalls, ACacheWithStatesHasNoTrees) {
  const std::vector<int64_t> shape{2};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  Net net({attention_layer(), state_layer(states)});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  expect_refused(cache, KVC_E_UNSUPPORTED, {"tree_parents", "sequence 1", "STATE"},
                 [&](kvc_error* err) {
                   return cache.begin_with({{1}, {1}, {-1}}, err);
                 });
  EXPECT_EQ(cache.begin_with({{1}, {1}, {KVC_TREE_NONE}}), KVC_OK) << "a plain append";
}

TEST_F(TreeCalls, CommitRefusesBadArgumentsAndChangesNothingThen) {
  grow(1, {-1, 0, 0});
  const kvc_seq seq = 1;
  const int32_t leaf = 0;
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const std::vector<kvc_seq>& seqs, const std::vector<int32_t>& leaves) {
    return expect_refused(cache_, status, parts,
                          [&](kvc_error* err) { return commit(seqs, leaves, err); });
  };
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"n = 0"}, [&](kvc_error* err) {
    return kvc_tree_commit(get(), 0, &seq, &leaf, nullptr, err);
  });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"seqs"}, [&](kvc_error* err) {
    return kvc_tree_commit(get(), 1, nullptr, &leaf, nullptr, err);
  });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"leaves"}, [&](kvc_error* err) {
    return kvc_tree_commit(get(), 1, &seq, nullptr, nullptr, err);
  });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_tree_commit(nullptr, 1, &seq, &leaf, nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"sequence 2", "tree"}, {2}, {-1});
  refused(KVC_E_OUT_OF_RANGE, {"leaves[0] = 3", "sequence 1", "3 nodes"}, {1}, {3});
  refused(KVC_E_OUT_OF_RANGE, {"leaves[0] = -2", "sequence 1"}, {1}, {-2});
  refused(KVC_E_OUT_OF_RANGE, {"leaves[0]"}, {1}, {INT32_MAX});
  refused(KVC_E_INVALID_ARGUMENT, {"sequence 1", "twice"}, {1, 1}, {0, 0});
  EXPECT_EQ(refused(KVC_E_NOT_FOUND, {"sequence 9"}, {1, 9}, {2, 0}).detail, 9);
  refused(KVC_E_INVALID_STATE, {"sequence 2"}, {1, 2}, {2, 0});
  grow(2, {-1});
  refused(KVC_E_OUT_OF_RANGE, {"leaves[1] = 1", "sequence 2"}, {1, 2}, {2, 1});
  ASSERT_EQ(cache_.begin_with({{2}, {1}, {0}}), KVC_OK);
  refused(KVC_E_BUSY, {"sequence 2", "open forward"}, {1, 2}, {2, 0});
  expect_ok([&](kvc_error* err) { return commit({1}, {2}, err); });
  EXPECT_EQ(length_of(cache_, 1), 7);
  cache_.finish();
  expect_ok([&](kvc_error* err) { return commit({2}, {1}, err); });
  EXPECT_EQ(length_of(cache_, 2), 5);
}

TEST_F(TreeCalls, ACommitKeepsASubsetInAnyOrder) {
  add_tokens(cache_, 3, 4);
  ASSERT_EQ(cache_.begin_with({{1, 2, 3}, {3, 2, 4}, {-1, 0, 1, -1, 0, -1, -1, 0, 2}}), KVC_OK);
  cache_.finish();
  const int64_t free_before = kvc_cache_available_pages(get());
  ASSERT_EQ(commit({3, 1}, {3, -1}), KVC_OK);
  EXPECT_EQ(length_of(cache_, 1), 5) << "leaf -1 keeps nothing";
  EXPECT_EQ(length_of(cache_, 2), 3);
  EXPECT_EQ(length_of(cache_, 3), 7);
  EXPECT_EQ(info_of(cache_, 2).tree_nodes, 2);
  EXPECT_EQ(stats_of(cache_).tree_tokens, 2u);
  EXPECT_EQ(kvc_cache_total_length(get()), 15);
  EXPECT_GE(kvc_cache_available_pages(get()), free_before);
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
  ASSERT_EQ(commit({2}, {1}), KVC_OK);
  EXPECT_EQ(length_of(cache_, 2), 5);
  add_tokens(cache_, 1, 1);
}

TEST_F(TreeCalls, AnUncommittedTreeLocksItsSequence) {
  grow(1, {-1, 0});
  int64_t number = -7;
  const auto refused = [&](const Call& fn) {
    expect_refused(cache_, KVC_E_INVALID_STATE, {"sequence 1", "tree", "2"}, fn);
  };
  refused([&](kvc_error* err) { return kvc_seq_fork(get(), 1, 9, -1, err); });
  refused([&](kvc_error* err) { return kvc_seq_pop(get(), 1, 1, err); });
  refused([&](kvc_error* err) { return kvc_seq_shift(get(), 1, 0, 1, -1, err); });
  refused([&](kvc_error* err) { return kvc_seq_set_window(get(), 1, 8, 0, err); });
  for (const kvc_seq_op op : {KVC_SEQ_FORK, KVC_SEQ_POP, KVC_SEQ_SHIFT})
    refused([&](kvc_error* err) { return kvc_seq_can(get(), 1, op, 0, &number, err); });
  EXPECT_EQ(number, -7);
  expect_ok([&](kvc_error* err) { return kvc_seq_remove(get(), 1, err); });
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
}

TEST_F(TreeCalls, AbortTakesTheForwardsNodesBack) {
  grow(1, {-1, 0});
  const Snapshot before = cache_.snapshot();
  ASSERT_EQ(cache_.begin_with({{1, 2}, {6, 3}, {1, 2, 3, 4, 5, 6, -1, 0, 1}}), KVC_OK);
  cache_.abort();
  Snapshot after = cache_.snapshot();
  EXPECT_EQ(after.stats.tree_tokens, 2u);
  after.stats = before.stats;
  EXPECT_EQ(difference(before, after), "");
  ASSERT_EQ(commit({1}, {1}), KVC_OK);
  EXPECT_EQ(length_of(cache_, 1), 7);
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
}

TEST_F(TreeCalls, ATreeOnASharedPageLeavesTheSiblingAlone) {
  Net net({attention_layer()});
  Cache cache(net.config);
  Tokens tokens(12);
  HostTensor out(Elem::kF32, {12, kHeads, kDim});
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  attend_rows(cache, 1, 0, tokens, 0, 6, out);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin_with({{2}, {4}, {-1, -1, 1, 2}}), KVC_OK);
  Rows k(tokens.k, 6, 4), v(tokens.v, 6, 4);
  ASSERT_EQ(kvc_kv_append(cache.forward, 0, k.dl(), v.dl(), nullptr), KVC_OK);
  cache.finish();
  const kvc_seq seq = 2;
  const int32_t leaf = 3;
  ASSERT_EQ(kvc_tree_commit(cache.get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
  HostTensor first(Elem::kF32, {6, 1, kDim}), second(Elem::kF32, {9, 1, kDim});
  ASSERT_EQ(kvc_debug_get_layer(cache.get(), 1, 0, 0, 6, first.dl(), nullptr, nullptr, nullptr),
            KVC_OK);
  ASSERT_EQ(kvc_debug_get_layer(cache.get(), 2, 0, 0, 9, second.dl(), nullptr, nullptr, nullptr),
            KVC_OK);
  for (int64_t t = 0; t < 9; ++t) {
    if (t < 6) {
      EXPECT_EQ(first.get(t, 0, 2), tokens.k.get(t, 0, 2));
    }
    EXPECT_EQ(second.get(t, 0, 2), tokens.k.get(t < 6 ? t : t + 1, 0, 2)) << "path 1, 2, 3";
  }
}

TEST(TreeWithoutStorage, IsBookkeepingAlone) {
  Net net({attention_layer(), attention_layer(6)});
  net.config.storage = KVC_STORAGE_NONE;
  Cache cache(net.config);
  add_tokens(cache, 1, 10);
  ASSERT_EQ(cache.begin_with({{1}, {9}, {-1, 0, 1, 2, 3, 4, 5, 6, -1}}), KVC_OK);
  cache.end();
  const kvc_seq seq = 1;
  const int32_t leaf = 7;
  expect_ok(
      [&](kvc_error* err) { return kvc_tree_commit(cache.get(), 1, &seq, &leaf, nullptr, err); });
  EXPECT_EQ(length_of(cache, 1), 18);
  EXPECT_EQ(pages_of(cache, 1, 0).size(), 5u);
  EXPECT_EQ(pages_of(cache, 1, 1).size(), 2u);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

}  // namespace
}  // namespace kvc::test
