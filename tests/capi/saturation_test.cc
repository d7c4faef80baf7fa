// kvc_stats.values_saturated: elements of K and V that callers gave and that did not fit their type
// of 8 bits. The count is the oracle's, on every way in, and nothing that moves rows changes it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "tests/capi/borrowed.h"
#include "tests/capi/layers.h"
#include "tests/capi/ops_fixture.h"
#include "tests/capi/state_files.h"
#include "tests/model/naive_quant.h"

namespace kvc::test {
namespace {

// A third of values in [-1, 1] lies outside.
constexpr double kLimit = 0.66;

NaiveStorage storage_of(Code code, bool has_scales = false) {
  return {Elem::kF32, code, has_scales ? 0 : static_cast<float>(kLimit / largest_code(code))};
}

constexpr Code kCodes[] = {Code::kInt8, Code::kE4M3, Code::kE5M2};

// Gives a layer this storage for K and V.
kvc_layer stored_as(kvc_layer layer, const NaiveStorage& storage) {
  layer.quant = storage.has_scales() ? KVC_QUANT_PER_TOKEN_HEAD : KVC_QUANT_PER_TENSOR;
  layer.k_dtype = dl_type(storage);
  layer.k_scale = storage.shared;
  const bool v_is_k = layer.kind == KVC_LAYER_MLA || (layer.flags & KVC_LAYER_V_IS_K) != 0;
  if (!v_is_k) layer.v_scale = storage.shared;
  return layer;
}

uint64_t count_of(const NaiveStorage& storage, HostTensor& tensor) {
  std::vector<double> values;
  tensor.for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
    values.push_back(tensor.get(i, j, k, l));
  });
  return num_saturated(storage, values);
}

uint64_t counted(const Cache& cache) { return stats_of(cache).values_saturated; }

struct Shape {
  kvc_cpu_isa isa = KVC_CPU_ISA_AUTO;
  int32_t threads = 1, page_size = 16;
  int64_t heads = 1, dim = 80;
};

// Appends to one layer, by kvc_attn and kvc_kv_append in turn; returns what the oracle counts.
uint64_t append_in_turn(Cache& cache, const NaiveStorage& storage, const Shape& shape) {
  uint64_t want = 0;
  Random random(static_cast<uint64_t>(shape.dim));
  EXPECT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(kvc_seq_add(cache.get(), 2, nullptr), KVC_OK);  // Stays empty.
  int turn = 0;
  for (const int64_t count : {1, 170, 5, 1}) {
    const Elem elem = random.pick_of({Elem::kF32, Elem::kF16, Elem::kBF16});
    HostTensor q(elem, {count, 2 * shape.heads, shape.dim}),
        k(elem, {count, shape.heads, shape.dim}, {.row_gap = 3}),
        v(elem, {count, shape.heads, shape.dim}, {.extra_rows = 2}),
        out(elem, {count, 2 * shape.heads, shape.dim});
    for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(random);
    want += count_of(storage, k) + count_of(storage, v);
    EXPECT_EQ(cache.begin({1}, {count}), KVC_OK);
    expect_ok([&](kvc_error* err) {
      return turn % 2 == 1 ? kvc_kv_append(cache.forward, 0, k.dl(), v.dl(), err)
                           : kvc_attn(cache.forward, 0, nullptr, q.dl(), k.dl(), v.dl(), out.dl(),
                                      nullptr, err);
    });
    EXPECT_EQ(counted(cache), want) << "with the forward open";
    cache.end();
    ++turn;
  }
  return want;
}

TEST(ValuesSaturated, AreThoseOfTheOracleOnEveryInstructionSetForAnyNumberOfThreads) {
  for (const kvc_cpu_isa isa : isas()) {
    for (const Code code : kCodes) {
      for (const bool has_scales : {false, true}) {
        const NaiveStorage storage = storage_of(code, has_scales);
        for (const auto& [page_size, heads, dim] :
             {std::tuple{1, 1, 65}, {16, 3, 80}, {48, 3, 65}, {16, 1, 1}, {48, 1, 128}}) {
          for (const int32_t threads : {1, 3}) {
            const Shape shape{isa, threads, page_size, heads, dim};
            SCOPED_TRACE(testing::Message() << "isa " << isa << " " << name_of(storage) << " dim "
                                            << dim << " threads " << threads);
            kvc_layer layer = attention_layer();
            layer.num_q_heads = static_cast<int32_t>(2 * heads);
            layer.num_kv_heads = static_cast<int32_t>(heads);
            layer.k_dim = dim;
            Net net({stored_as(layer, storage)}, 400);
            net.config.page_size = page_size;
            net.config.cpu_isa = isa;
            net.config.num_threads = threads;
            Cache cache(net.config);
            EXPECT_EQ(counted(cache), 0u);
            const uint64_t want = append_in_turn(cache, storage, shape);
            EXPECT_EQ(want == 0, has_scales);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(ValuesSaturated, AreCountedOfTheHalfThatHasAScaleOfItsTensor) {
  const NaiveStorage tight = storage_of(Code::kInt8);
  for (const bool of_k : {true, false}) {
    kvc_layer layer = attention_layer();
    layer.quant = of_k ? KVC_QUANT_PER_TENSOR : KVC_QUANT_PER_TOKEN_HEAD;
    layer.v_quant = of_k ? KVC_QUANT_OFF : KVC_QUANT_PER_TENSOR;
    layer.k_dtype = dl_type(tight);
    layer.v_dtype = of_k ? dl_type(Elem::kF16) : dl_type(tight);
    (of_k ? layer.k_scale : layer.v_scale) = tight.shared;
    Net net({layer});
    Cache cache(net.config);
    Tokens tokens(9);
    HostTensor out(Elem::kF32, {9, kHeads, kDim});
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    attend_rows(cache, 1, 0, tokens, 0, 9, out);
    EXPECT_EQ(counted(cache), count_of(tight, of_k ? tokens.k : tokens.v));
  }
}

// One forward with each kind of layer: MLA, cross, K = V, a layer that reads another's rows.
TEST(ValuesSaturated, AreCountedOnceOnEveryWayIn) {
  for (const Code code : kCodes) {
    const NaiveStorage storage = storage_of(code);
    SCOPED_TRACE(name_of(storage));
    Net net({stored_as(attention_layer(), storage), stored_as(mla_layer(kDim), storage),
             stored_as(cross_layer(), storage), stored_as(joint_layer(), storage),
             shared_layer(0)});
    Cache cache(net.config);
    constexpr int64_t kCount = 7, kEncoder = 5;
    Tokens tokens(kCount), encoder(kEncoder, 2);
    HostTensor out(Elem::kF32, {kCount, kHeads, kDim}),
        latent(Elem::kF32, {kCount, kRank + kRopeDim}), qkv(Elem::kF32, {kCount, kHeads + 2, kDim}),
        self_k(Elem::kF32, {kCount, kHeads, kDim}), self_v(Elem::kF32, {kCount, kHeads, kDim});
    Random random(3);
    for (HostTensor* tensor : {&latent, &qkv, &self_k, &self_v}) tensor->fill_random(random);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(cache.begin_with({.seqs = {1}, .lengths = {kCount}, .cross_lengths = {kEncoder}}),
              KVC_OK);
    uint64_t want = 0;
    const auto expect_more = [&](uint64_t more, const char* what) {
      EXPECT_GT(more, 0u) << what;
      want += more;
      EXPECT_EQ(counted(cache), want) << what;
    };
    // Keys alone: the fused call has k behind the queries.
    ASSERT_EQ(kvc_attn_fused_qkv(cache.forward, 0, nullptr, qkv.dl(), out.dl(), nullptr), KVC_OK);
    uint64_t fused = 0;
    for (int64_t head = kHeads; head < kHeads + 2; ++head) {
      for (int64_t t = 0; t < kCount; ++t) {
        std::vector<double> row;
        for (int64_t d = 0; d < kDim; ++d) row.push_back(qkv.get(t, head, d));
        fused += num_saturated(storage, row);
      }
    }
    expect_more(fused, "kvc_attn_fused_qkv");
    const kvc_attn_opt opt = scaled();
    ASSERT_EQ(kvc_attn(cache.forward, 4, &opt, tokens.q.dl(), nullptr, nullptr, out.dl(), nullptr,
                       nullptr),
              KVC_OK);
    EXPECT_EQ(counted(cache), want) << "a layer that shares rows stores none";
    ASSERT_EQ(kvc_attn_self(cache.forward, 1, &opt, tokens.q.dl(), self_k.dl(), self_v.dl(),
                            out.dl(), nullptr, nullptr),
              KVC_OK);
    EXPECT_EQ(counted(cache), want) << "kvc_attn_self stores nothing";
    ASSERT_EQ(kvc_mla_append(cache.forward, 1, latent.dl(), nullptr), KVC_OK);
    expect_more(count_of(storage, latent), "kvc_mla_append");
    ASSERT_EQ(kvc_attn_cross(cache.forward, 2, nullptr, tokens.q.dl(), encoder.k.dl(),
                             encoder.v.dl(), out.dl(), nullptr, nullptr),
              KVC_OK);
    expect_more(count_of(storage, encoder.k) + count_of(storage, encoder.v), "kvc_attn_cross");
    ASSERT_EQ(kvc_kv_append(cache.forward, 3, tokens.k.dl(), nullptr, nullptr), KVC_OK);
    expect_more(count_of(storage, tokens.k), "a row that is K and V");
    // A second append of the same rows stores them a second time.
    ASSERT_EQ(kvc_kv_append(cache.forward, 3, tokens.k.dl(), nullptr, nullptr), KVC_OK);
    expect_more(count_of(storage, tokens.k), "rows that are written again");
    HostTensor narrow(Elem::kF32, {kCount, 1, kDim - 1});
    EXPECT_EQ(kvc_kv_append(cache.forward, 3, narrow.dl(), nullptr, nullptr), KVC_E_SHAPE);
    EXPECT_EQ(counted(cache), want) << "a refused append stores nothing";
    cache.end();

    HostTensor set_k(Elem::kF32, {3, 1, kDim}), set_v(Elem::kF32, {3, 1, kDim});
    set_k.fill_random(random);
    set_v.fill_random(random);
    ASSERT_EQ(kvc_debug_set_layer(cache.get(), 1, 0, 2, set_k.dl(), set_v.dl(), nullptr, nullptr),
              KVC_OK);
    expect_more(count_of(storage, set_k) + count_of(storage, set_v), "kvc_debug_set_layer");
    ASSERT_EQ(kvc_debug_set_layer(cache.get(), 1, 4, 2, set_k.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    expect_more(count_of(storage, set_k), "kvc_debug_set_layer through a layer that shares rows");
    EXPECT_EQ(
        kvc_debug_set_layer(cache.get(), 1, 0, kCount - 1, set_k.dl(), nullptr, nullptr, nullptr),
        KVC_E_OUT_OF_RANGE);
    EXPECT_EQ(counted(cache), want) << "a refused call stores nothing";
  }
}

TEST(ValuesSaturated, AreCountedWhereAllLayersAreSet) {
  const NaiveStorage storage = storage_of(Code::kE4M3);
  for (const bool mla : {false, true}) {
    const kvc_layer layer = stored_as(mla ? mla_layer() : attention_layer(), storage);
    Net net({layer, layer});
    Cache cache(net.config);
    add_tokens(cache, 1, 6);
    const uint64_t before = counted(cache);
    HostTensor k(Elem::kF32, {2, 4, 1, kDim}), v(Elem::kF32, {2, 4, 1, kDim}),
        latent(Elem::kF32, {2, 4, kRank + kRopeDim});
    Random random(5);
    for (HostTensor* tensor : {&k, &v, &latent}) tensor->fill_random(random);
    ASSERT_EQ(mla ? kvc_debug_set_mla(cache.get(), 1, 1, latent.dl(), nullptr, nullptr)
                  : kvc_debug_set_kv(cache.get(), 1, 1, k.dl(), v.dl(), nullptr, nullptr),
              KVC_OK);
    EXPECT_EQ(counted(cache) - before,
              mla ? count_of(storage, latent) : count_of(storage, k) + count_of(storage, v));
  }
}

// K counts as it is stored: rotated.
TEST(ValuesSaturated, OfRotatedKeysAreThoseOfWhatIsStored) {
  const NaiveStorage storage = storage_of(Code::kInt8);
  for (const kvc_rope_mode mode : {KVC_ROPE_ON_APPEND, KVC_ROPE_ON_READ}) {
    const kvc_rope rope = rope_of(mode);
    kvc_layer layer = stored_as(attention_layer(), storage);
    layer.rope = &rope;
    Net net({layer});
    Cache cache(net.config);
    // Element 0 of the first pair fits, and does not where the pair is turned by a radian; element
    // 4 the other way round.
    HostTensor k(Elem::kF32, {2, 1, kDim}), v(Elem::kF32, {2, 1, kDim});
    for (int64_t d = 0; d < kDim; ++d) {
      k.set(0, 0, 0, d), v.set(0, 0, 0, d);
      k.set(0, 1, 0, d), v.set(0, 1, 0, d);
    }
    k.set(0.3, 1, 0, 0);
    k.set(-0.65, 1, 0, 4);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(cache.begin({1}, {2}), KVC_OK);
    ASSERT_EQ(kvc_kv_append(cache.forward, 0, k.dl(), v.dl(), nullptr), KVC_OK);
    cache.end();
    EXPECT_EQ(counted(cache), mode == KVC_ROPE_ON_APPEND ? 1u : 0u)
        << "0.3 cos 1 + 0.65 sin 1 = 0.71";
  }
}

TEST(ValuesSaturated, StayWhatTheyAreWhereverRowsGo) {
  const NaiveStorage storage = storage_of(Code::kInt8);
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  kvc_layer layer = stored_as(attention_layer(), storage);
  layer.rope = &rope;
  Net net({layer}, 64);
  set_host_pages(net.config, 32);
  Cache cache(net.config);
  Tokens tokens(30);
  HostTensor out(Elem::kF32, {30, kHeads, kDim});
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  attend_rows(cache, 1, 0, tokens, 0, 10, out);
  const uint64_t first = counted(cache);
  ASSERT_GT(first, 0u);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, 6, nullptr), KVC_OK);
  const Bytes file = saved(cache, {1});
  ASSERT_EQ(load(cache, {3}, file), KVC_OK);
  ASSERT_EQ(swap_out(cache, {3}), KVC_OK);
  ASSERT_EQ(swap_in(cache, {3}), KVC_OK);
  ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 1, nullptr), KVC_OK);
  // Rows that are rotated further are rounded once more, and clipped: nobody gave them.
  ASSERT_EQ(kvc_seq_shift(cache.get(), 3, 1, 5, -4, nullptr), KVC_OK);
  HostTensor k(Elem::kF32, {6, 1, kDim});
  ASSERT_EQ(kvc_debug_get_layer(cache.get(), 3, 0, 0, 6, k.dl(), nullptr, nullptr, nullptr),
            KVC_OK);
  DLManagedTensorVersioned* pool = nullptr;
  ASSERT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_K, &pool, nullptr), KVC_OK);
  pool->deleter(pool);
  EXPECT_EQ(counted(cache), first);

  // An aborted forward leaves its count, and the next one copies a page on write.
  ASSERT_EQ(cache.begin({2}, {4}), KVC_OK);
  Rows some_k(tokens.k, 10, 4), some_v(tokens.v, 10, 4);
  ASSERT_EQ(kvc_kv_append(cache.forward, 0, some_k.dl(), some_v.dl(), nullptr), KVC_OK);
  const uint64_t second = counted(cache);
  EXPECT_GT(second, first);
  cache.abort();
  EXPECT_EQ(counted(cache), second);
  ASSERT_EQ(cache.begin({2}, {4}), KVC_OK);
  ASSERT_EQ(kvc_kv_append(cache.forward, 0, some_k.dl(), some_v.dl(), nullptr), KVC_OK);
  cache.end();
  EXPECT_EQ(counted(cache) - second, second - first);
  ASSERT_EQ(kvc_cache_clear(cache.get(), nullptr), KVC_OK);
  EXPECT_EQ(counted(cache) - second, second - first) << "as the other counters";
  ASSERT_EQ(kvc_cache_resize(cache.get(), 100, nullptr), KVC_OK);
  EXPECT_EQ(counted(cache) - second, second - first);
}

TEST(ValuesSaturated, AreInfinitiesAndNeverNaN) {
  for (const bool has_scales : {false, true}) {
    for (const Code code : kCodes) {
      const NaiveStorage storage = storage_of(code, has_scales);
      SCOPED_TRACE(name_of(storage));
      Net net({stored_as(attention_layer(), storage)});
      Cache cache(net.config);
      HostTensor k(Elem::kF32, {1, 1, kDim}), v(Elem::kF32, {1, 1, kDim});
      for (int64_t d = 0; d < kDim; ++d) {
        k.set(static_cast<double>(storage.shared) * largest_code(code), 0, 0, d);  // Just fits.
        v.set(0.1, 0, 0, d);
      }
      k.set(HUGE_VAL, 0, 0, 1);
      k.set(-HUGE_VAL, 0, 0, 2);
      k.set(std::numeric_limits<double>::quiet_NaN(), 0, 0, 3);
      v.set(3e38, 0, 0, 7);
      ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
      ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
      ASSERT_EQ(kvc_kv_append(cache.forward, 0, k.dl(), v.dl(), nullptr), KVC_OK);
      cache.end();
      EXPECT_EQ(counted(cache), has_scales ? 0u : 3u);
    }
  }
}

TEST(ValuesSaturated, OfABorrowedPoolAreThoseOfItsCallsAlone) {
  const NaiveStorage storage = storage_of(Code::kE5M2);
  Net net({stored_as(attention_layer(), storage)});
  const BorrowedPool pool(net.config);
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1}, {9}), KVC_OK);
  cache.end();
  EXPECT_EQ(counted(cache), 0u) << "whatever the host program wrote";
  Tokens tokens(9);
  HostTensor out(Elem::kF32, {9, kHeads, kDim});
  attend_rows(cache, 1, 0, tokens, 0, 9, out);
  EXPECT_EQ(counted(cache), count_of(storage, tokens.k) + count_of(storage, tokens.v));
}

}  // namespace
}  // namespace kvc::test
