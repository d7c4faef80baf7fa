// kvc_stats.host_bytes against what operator new has really handed out, for caches of every kind.
// The pools are mapped, so that their pages count as kvc_stats says them.
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/capi/host_memory/counted_allocations.h"
#include "tests/capi/prefix_support.h"

namespace kvc::test {
namespace {

// The plan, which a cache shares, and objects that don't grow.
constexpr int64_t kSlack = 8 << 10;

// A cache, and what was allocated before it was made.
class Counted {
 public:
  explicit Counted(const kvc_config& config)
      : before_(allocated_bytes()),
        has_pool_(config.storage == KVC_STORAGE_OWNED),
        cache_(std::make_unique<Cache>(config)) {}
  Cache& operator*() const { return *cache_; }
  Cache* operator->() const { return cache_.get(); }

  int64_t host_bytes() const { return static_cast<int64_t>(stats_of(*cache_).host_bytes); }
  // Mapped and allocated; `own`: bytes that the test has allocated meanwhile.
  int64_t really(int64_t own = 0) const {
    const kvc_stats stats = stats_of(*cache_);
    const int64_t pages = stats.host_pages_total + (has_pool_ ? stats.pages_total : 0);
    return pages * static_cast<int64_t>(stats.page_bytes) + allocated_bytes() - before_ - own;
  }
  // kvc_plan_info.host_bytes.
  int64_t most_host_bytes() const {
    return static_cast<int64_t>(plan_of(cache_->plan()).host_bytes);
  }
  // The cache does what the plan's bound leaves out.
  void leave_bound() { is_bounded = false; }
  void expect_within_plan(const char* when) const {
    EXPECT_LE(host_bytes(), most_host_bytes()) << when;
  }
  void expect_counted(const char* when, int64_t own = 0) const {
    const int64_t told = host_bytes(), found = really(own);
    EXPECT_LE(told, found) << when;
    EXPECT_LE(found - told, kSlack) << when;
    if (is_bounded) {
      EXPECT_LE(told, most_host_bytes()) << when;
    }
    expect_sound(*cache_);
  }

 private:
  const int64_t before_;
  const bool has_pool_;
  bool is_bounded = true;
  const std::unique_ptr<Cache> cache_;
};

// Bytes that a test holds on to, which are not the library's.
template <typename T>
int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.capacity() * sizeof(T));
}

// Appends rows to a layer of kind ATTENTION or MLA and attends.
void attend_layer(Cache& cache, int32_t layer, int64_t count) {
  const kvc_layer_info info = layer_of(cache, layer);
  const bool is_mla = info.kind == KVC_LAYER_MLA;
  LayerRows rows(info, count);
  fill_pattern(rows.k, 1, layer, 0, 0);
  fill_pattern(rows.v, 1, layer, 1, 0);
  HostTensor q(Elem::kF32, {count, info.num_q_heads,
                            is_mla ? info.latent_rank + info.latent_rope_dim : info.k_dim});
  HostTensor out(Elem::kF32, {count, info.num_q_heads, is_mla ? info.latent_rank : info.v_dim});
  fill_pattern(q, 2, layer, 0, 0);
  kvc_error error{};
  const kvc_attn_opt opt = scaled();
  ASSERT_EQ(kvc_attn(cache.forward, layer, &opt, q.dl(), rows.k.dl(), rows.v_or_null(), out.dl(),
                     nullptr, &error),
            KVC_OK)
      << error.message;
}

// Appends `counts[i]` tokens to sequence i and attends in every layer.
void attend_all(Cache& cache, const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& counts,
                int32_t num_layers) {
  for (const kvc_seq seq : seqs) (void)kvc_seq_add(cache.get(), seq, nullptr);
  const int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  ASSERT_EQ(cache.begin(seqs, counts), KVC_OK);
  for (int32_t layer = 0; layer < num_layers; ++layer) attend_layer(cache, layer, count);
  cache.finish();
}

TEST(HostBytes, OfADenseCacheWithAttention) {
  for (const kvc_cpu_isa isa :
       {KVC_CPU_ISA_AVX512_BF16, KVC_CPU_ISA_AVX512, KVC_CPU_ISA_AVX2, KVC_CPU_ISA_SCALAR}) {
    for (const int32_t page_size : {1, 16, 48}) {
      SCOPED_TRACE(testing::Message() << "isa " << isa << " page size " << page_size);
      kvc_layer layer = attention_layer();
      layer.num_q_heads = 6;
      layer.num_kv_heads = 3;
      layer.k_dim = 80;
      layer.v_dim = 65;
      const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
      layer.rope = &rope;
      Net net({layer, layer, attention_layer(8)}, 6000 / page_size);
      net.config.page_size = page_size;
      net.config.cpu_isa = isa;
      net.config.num_threads = 3;
      kvc_error error{};
      if (plan_status(net.config, &error) == KVC_E_UNSUPPORTED) continue;
      kvc_plan* plan = nullptr;
      kvc_cache* probe = nullptr;
      ASSERT_EQ(kvc_plan_create(&net.config, &plan, &error), KVC_OK) << error.message;
      const kvc_status made = kvc_cache_create(plan, &probe, &error);
      kvc_cache_destroy(probe);
      kvc_plan_destroy(plan);
      if (made == KVC_E_UNSUPPORTED) continue;
      Counted cache(net.config);
      cache.expect_counted("empty");
      attend_all(*cache, {1, 2, 3}, {700, 1, 300}, 3);
      cache.expect_counted("after a prompt");
      for (int step = 0; step < 20; ++step) attend_all(*cache, {1, 2, 3}, {1, 1, 1}, 3);
      cache.expect_counted("after decode steps");
      ASSERT_EQ(kvc_cache_clear(cache->get(), nullptr), KVC_OK);
      cache.expect_counted("cleared");
    }
  }
}

TEST(HostBytes, OfLatents) {
  kvc_layer layer = mla_layer();
  layer.latent_rank = 512;
  layer.latent_rope_dim = 64;
  layer.num_q_heads = 16;
  Net net({layer, layer}, 200);
  net.config.page_size = 16;
  Counted cache(net.config);
  attend_all(*cache, {1, 2}, {600, 33}, 2);
  cache.expect_counted("after a prompt");
  for (int step = 0; step < 20; ++step) attend_all(*cache, {1, 2}, {1, 1}, 2);
  cache.expect_counted("after decode steps");
}

TEST(HostBytes, OfRecurrentStatesAndCheckpoints) {
  const std::vector<int64_t> shape{2, 3};
  const std::vector<int64_t> large{64, 128, 33};
  const std::vector<kvc_state_spec> specs{state_spec(shape), state_spec(large)};
  Net net({state_layer(specs), attention_layer()}, 400);
  net.config.state_stride = 4;
  Counted cache(net.config);
  cache.expect_counted("empty");
  for (kvc_seq seq = 0; seq < 5; ++seq) {
    append_pattern(*cache, seq, 4, 7);
    append_pattern(*cache, seq, 4, 7);
    ASSERT_EQ(kvc_state_checkpoint(cache->get(), seq, nullptr), KVC_OK);
  }
  EXPECT_GT(cache.host_bytes(), 10 * static_cast<int64_t>(64 * 128 * 33 * sizeof(float)));
  cache.expect_counted("with checkpoints");
}

// Blocks with their tokens, in a pool and on the host, and the events of both.
TEST(HostBytes, OfThePrefixIndexTheHostPoolAndEvents) {
  Net net({attention_layer(), attention_layer(8)}, 2000);
  set_host_pages(net.config, 300);
  net.config.event_capacity = 5000;
  Counted cache(net.config);
  cache.expect_counted("empty");
  for (kvc_seq seq = 0; seq < 12; ++seq) {
    append_ids(*cache, seq, token_ids(700, static_cast<int32_t>(seq)));
    if (seq % 3 != 2) remove_seq(*cache, seq);
  }
  EXPECT_GT(stats_of(*cache).prefix_blocks_host, 0);
  cache.expect_counted("after evictions");
  const Query query(token_ids(690, 11));
  EXPECT_GT(attach(*cache, 100, query), 0);
  cache.expect_counted("after a hit", bytes_of(query.tokens));
  ASSERT_EQ(kvc_prefix_quota_set(cache->get(), "tenant", 6, 1 << 20, nullptr), KVC_OK);
  append_ids(*cache, 101, token_ids(40, 50));
  cache.expect_counted("with a quota", bytes_of(query.tokens));
}

TEST(HostBytes, OfTenThousandSequences) {
  for (const bool stores : {false, true}) {
    constexpr int64_t kSeqs = 10000;
    Net net({attention_layer(), attention_layer(8)}, 3 * kSeqs);
    if (!stores) net.config.storage = KVC_STORAGE_NONE;
    Counted cache(net.config);
    std::vector<kvc_seq> seqs(kSeqs);
    std::iota(seqs.begin(), seqs.end(), 0);
    const std::vector<int64_t> counts(kSeqs, 3);
    const int64_t own = bytes_of(seqs) + bytes_of(counts);
    for (const kvc_seq seq : seqs) ASSERT_EQ(kvc_seq_add(cache->get(), seq, nullptr), KVC_OK);
    cache.expect_counted("empty sequences", own);
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = seqs.size();
    desc.seqs = seqs.data();
    desc.append_lengths = counts.data();
    desc.flags = stores ? KVC_FORWARD_PARTIAL : 0;
    ASSERT_EQ(kvc_forward_begin(cache->get(), &desc, &cache->forward, nullptr), KVC_OK);
    cache.expect_counted("in a forward", own);
    cache->finish();
    cache.expect_counted("with pages", own);
    const int64_t most = cache.host_bytes();
    for (const kvc_seq seq : seqs) remove_seq(*cache, seq);
    cache.expect_counted("removed", own);
    EXPECT_LT(cache.host_bytes(), most - kSeqs * 400) << "sequences of some 500 bytes each";
  }
}

TEST(HostBytes, OfLongSequencesForksTreesAndShifts) {
  Net net({attention_layer()}, 60000);
  net.config.storage = KVC_STORAGE_NONE;
  Counted cache(net.config);
  for (const kvc_seq seq : {1, 2})
    append_ids(*cache, seq, token_ids(90000, static_cast<int32_t>(seq)));
  cache.expect_counted("two long sequences");
  for (kvc_seq child = 10; child < 30; ++child)
    ASSERT_EQ(kvc_seq_fork(cache->get(), 1, child, -1, nullptr), KVC_OK);
  cache.expect_counted("forks");
  ASSERT_EQ(kvc_seq_shift(cache->get(), 10, 50000, 80000, -30000, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_pop(cache->get(), 11, 80000, nullptr), KVC_OK);
  cache.expect_counted("a shift and a pop");
  Request tree{{12}, {40}};
  for (int32_t node = 0; node < 40; ++node) tree.parents.push_back(node - 1);
  ASSERT_EQ(cache->begin_with(tree), KVC_OK);
  cache->finish();
  cache.expect_counted("a token tree");
  const kvc_seq twelve = 12;
  const int32_t leaf = 20;
  ASSERT_EQ(kvc_tree_commit(cache->get(), 1, &twelve, &leaf, nullptr, nullptr), KVC_OK);
  const Query query(token_ids(90000, 2));
  ASSERT_GT(attach(*cache, 40, query), 0);
  const int64_t own = bytes_of(query.tokens) + bytes_of(tree.parents);
  cache.expect_counted("a committed tree and a hit", own);
  for (kvc_seq child = 10; child < 30; ++child) remove_seq(*cache, child);
  cache.expect_counted("the forks removed", own);
}

TEST(HostBytes, OfSwappedSequencesOfAllKinds) {
  AllKinds kinds;
  set_host_pages(kinds.net.config, 64);
  Counted cache(kinds.net.config);
  append_pattern(*cache, 1, 21, 1, 9);
  append_pattern(*cache, 2, 5, 2, 3);
  cache.expect_counted("before");
  ASSERT_EQ(swap_out(*cache, {1, 2}), KVC_OK);
  cache.expect_counted("swapped out");
  ASSERT_EQ(swap_in(*cache, {1, 2}), KVC_OK);
  cache.expect_counted("back");
}

// Rows by position, and a ring of its own for a sequence far from position 0.
TEST(HostBytes, OfCosAndSin) {
  kvc_layer layer = attention_layer(64);
  layer.num_q_heads = layer.num_kv_heads = 1;
  layer.k_dim = 128;
  const kvc_rope rope = rope_of(KVC_ROPE_ON_READ);
  layer.rope = &rope;
  Net net({layer}, 400);
  net.config.page_size = 16;
  Counted cache(net.config);
  attend_all(*cache, {1}, {2000}, 1);
  cache.expect_counted("a long prompt");
  EXPECT_GE(stats_of(*cache).cos_sin_bytes, uint64_t{2000 * 128 * 4});
  for (int step = 0; step < 5; ++step) attend_all(*cache, {1}, {2000}, 1);
  cache.expect_counted("far from position 0");
}

TEST(HostBytes, OfABorrowedPoolAreTheBookkeepingAlone) {
  kvc_layer layer = attention_layer();
  layer.num_q_heads = layer.num_kv_heads = 8;
  layer.k_dim = 128;
  Net net({layer}, 64);
  const PlanHandle plan(net.config);
  HostTensor pool(Elem::kF32, {64, static_cast<int64_t>(plan.info().page_bytes / sizeof(float))});
  const DLTensor* tensors[] = {pool.dl()};
  net.config.num_pages = 0;
  net.config.storage = KVC_STORAGE_BORROWED;
  net.config.pool_tensors = tensors;
  net.config.num_pool_tensors = 1;
  Counted cache(net.config);
  cache.expect_counted("empty");
  EXPECT_LT(cache.host_bytes(), 64 << 10);
  ASSERT_EQ(kvc_seq_add(cache->get(), 1, nullptr), KVC_OK);
  cache.expect_counted("one sequence");
}

// ---- kvc_plan_info.host_bytes -----------------------------------------------------------------

// Appends prompts of up to `most` tokens with their ids until no page is left, and attends.
// Sequences are removed where there are more than `max_seqs`, so that the prefix index fills.
void fill_up(const Counted& cache, int64_t most, size_t max_seqs) {
  const kvc_plan_info plan = plan_of(cache->plan());
  const bool computes = plan.num_groups > 0 && plan.max_tokens < 20000;
  Random random(7);
  std::vector<kvc_seq> seqs;
  for (kvc_seq next = 1; next < 40; ++next) {
    if (seqs.size() == max_seqs) {
      remove_seq(*cache, seqs.front());
      seqs.erase(seqs.begin());
    }
    ASSERT_EQ(kvc_seq_add(cache->get(), next, nullptr), KVC_OK);
    seqs.push_back(next);
    for (int part = 0; part < 3; ++part) {
      const int64_t count = 1 + static_cast<int64_t>(random.next() % static_cast<uint64_t>(most));
      Request request{{next}, {count}};
      request.tokens = token_ids(count, static_cast<int32_t>(next * 3 + part));
      kvc_error error{};
      const kvc_status status = cache->begin_with(request, &error);
      if (status == KVC_E_NO_PAGES || status == KVC_E_NEVER_FITS) return;
      ASSERT_EQ(status, KVC_OK) << error.message;
      for (int32_t layer = 0; layer < plan.num_layers; ++layer) {
        const kvc_layer_info info = layer_of(*cache, layer);
        if (info.kind == KVC_LAYER_STATE) {
          HostTensor state(Elem::kF32, {1, 2, 16, 9});
          ASSERT_EQ(kvc_state_set(cache->forward, layer, 0, state.dl(), &error), KVC_OK)
              << error.message;
        } else if (computes) {
          attend_layer(*cache, layer, count);
        }
      }
      cache->finish();
    }
    cache.expect_within_plan("filling");
  }
}

TEST(HostBytes, OfAFullCacheAreWithinItsPlan) {
  const std::vector<int64_t> shape{2, 16, 9};
  const std::vector<kvc_state_spec> specs{state_spec(shape)};
  const kvc_rope on_append = rope_of(KVC_ROPE_ON_APPEND), on_read = rope_of(KVC_ROPE_ON_READ);
  kvc_layer plain = attention_layer();
  plain.num_q_heads = 6;
  plain.num_kv_heads = 3;
  plain.k_dim = 80;
  plain.v_dim = 65;
  kvc_layer appended = plain, read = plain, windowed = plain;
  appended.rope = &on_append;
  read.rope = &on_read;
  read.v_dim = 80;
  windowed.window = 40;
  windowed.rope = &on_read;
  const std::vector<std::pair<const char*, std::vector<kvc_layer>>> models{
      {"plain", {plain, plain}},
      {"rotated", {appended, appended}},
      {"rotated on read", {read, windowed}},
      {"windows", {windowed, plain}},
      {"windows alone", {windowed}},
      {"latents", {mla_layer(), mla_layer()}},
      {"kept", {kept_layer(5), kept_layer(40, 40)}},
      {"states", {state_layer(specs), plain}}};
  for (const auto& [name, layers] : models) {
    for (const int32_t page_size : {1, 16, 48}) {
      for (const bool is_small : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << name << " page size " << page_size << " small " << is_small);
        Net net(layers, (is_small ? 192 : 1536) / page_size);
        net.config.page_size = page_size;
        net.config.max_seqs = is_small ? 0 : 3;
        net.config.max_tokens_per_forward = is_small ? 0 : 200;
        net.config.num_threads = is_small ? 1 : 4;
        net.config.event_capacity = is_small ? 0 : 300;
        if (is_small) set_host_pages(net.config, 100 / page_size);
        Counted cache(net.config);
        cache.expect_within_plan("empty");
        fill_up(cache, is_small ? 60 : 200, is_small ? 8 : 3);
        cache.expect_within_plan("full");
        if (is_small) {
          std::vector<kvc_seq> seqs(64);
          size_t count = seqs.size();
          ASSERT_EQ(kvc_seq_list(cache->get(), seqs.data(), &count, nullptr), KVC_OK);
          if (count > 0 && swap_out(*cache, {seqs[0]}) == KVC_OK)
            cache.expect_within_plan("swapped");
        }
        expect_sound(*cache);
      }
    }
  }
}

TEST(HostBytes, OfAPlanForBookkeepingAloneAreNoneOfThePool) {
  Net net({attention_layer(), attention_layer(8)}, 20000);
  net.config.storage = KVC_STORAGE_NONE;
  net.config.max_seqs = 500;
  Counted cache(net.config);
  fill_up(cache, 300, 500);
  cache.expect_within_plan("filled");
  EXPECT_LT(cache.most_host_bytes(), 60 << 20);
}

// A model as they are served: the bound is not much more than the pool.
TEST(HostBytes, OfAPlanWithLimitsAreLittleBesideThePool) {
  kvc_layer layer = attention_layer();
  layer.num_q_heads = 32;
  layer.num_kv_heads = 8;
  layer.k_dim = 128;
  layer.k_dtype = dl_type(Elem::kBF16);
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  layer.rope = &rope;
  Net net(std::vector<kvc_layer>(32, layer), 16384);
  net.config.page_size = 16;
  net.config.max_seqs = 64;
  net.config.max_tokens_per_forward = 2048;
  const PlanHandle plan(net.config);
  EXPECT_GT(plan.info().host_bytes, plan.info().pool_bytes);
  EXPECT_LT(plan.info().host_bytes, plan.info().pool_bytes + plan.info().pool_bytes / 50);
  net.config.num_pages = 0;
  EXPECT_EQ(PlanHandle(net.config).info().host_bytes, 0u) << "no pages";
  net.config.num_pages = INT32_MAX - 1;
  net.config.max_seqs = 0;
  net.config.max_tokens_per_forward = 0;
  net.config.storage = KVC_STORAGE_NONE;
  EXPECT_GT(PlanHandle(net.config).info().host_bytes, uint64_t{1} << 31) << "no overflow";
}

}  // namespace
}  // namespace kvc::test
