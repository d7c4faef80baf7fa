// Quantised storage on the CPU: what is stored, and results with the same bits wherever the rows
// have been and however the work was cut. Values are compared with an oracle by the random
// operations of tests/model.
#include "tests/capi/borrowed.h"
#include "tests/capi/layers.h"
#include "tests/capi/state_files.h"
#include "tests/model/naive_quant.h"

namespace kvc::test {
namespace {

constexpr int64_t kPromptTokens = 150;
constexpr int64_t kQueryHeads = 6, kKvHeads = 3, kRowDim = 80;

// How K is stored, and V where that differs.
struct Kind {
  kvc_quant quant;
  NaiveStorage k;
  kvc_quant v_quant = 0;
  NaiveStorage v = k;
  int32_t keep_tokens = 0;
};
constexpr float kShared = 0.0123f;
constexpr NaiveStorage kInt8{Elem::kF32, Code::kInt8}, kE4M3{Elem::kF32, Code::kE4M3},
    kE5M2{Elem::kF32, Code::kE5M2}, kSharedInt8{Elem::kF32, Code::kInt8, kShared},
    kSharedE4M3{Elem::kF32, Code::kE4M3, kShared};
constexpr Kind kKinds[] = {{KVC_QUANT_PER_TOKEN_HEAD, kInt8},
                           {KVC_QUANT_PER_TOKEN_HEAD, kE4M3},
                           {KVC_QUANT_PER_TOKEN_HEAD, kE5M2},
                           {KVC_QUANT_PER_TENSOR, kSharedE4M3},
                           {KVC_QUANT_PER_TENSOR, kSharedInt8},
                           {KVC_QUANT_PER_TOKEN_HEAD, kInt8, KVC_QUANT_OFF, {Elem::kBF16}},
                           {KVC_QUANT_PER_TENSOR, kSharedE4M3, KVC_QUANT_OFF, {Elem::kF16}},
                           {KVC_QUANT_NONE, {Elem::kF32}, KVC_QUANT_PER_TOKEN_HEAD, kE5M2},
                           {KVC_QUANT_NONE, {Elem::kBF16}, KVC_QUANT_PER_TENSOR, kSharedInt8},
                           {KVC_QUANT_PER_TOKEN_HEAD, kInt8, KVC_QUANT_PER_TENSOR, kSharedInt8},
                           {KVC_QUANT_PER_TENSOR, kSharedE4M3, KVC_QUANT_PER_TOKEN_HEAD, kE4M3},
                           {KVC_QUANT_PER_TENSOR, kSharedE4M3, 0, kSharedE4M3, 4},
                           {KVC_QUANT_PER_TOKEN_HEAD, kE5M2, 0, kE5M2, 70},
                           {KVC_QUANT_PER_TOKEN_HEAD, kInt8, KVC_QUANT_OFF, {Elem::kF32}, 7},
                           {KVC_QUANT_NONE, {Elem::kF16}, KVC_QUANT_PER_TOKEN_HEAD, kE4M3, 1}};

std::string name_of(const Kind& kind) {
  return name_of(kind.k) + " " + name_of(kind.v) + " keep " + std::to_string(kind.keep_tokens);
}

// How the rows of a token are stored.
NaiveStorage storage_of(const Kind& kind, int half, int64_t token) {
  const NaiveStorage& storage = half == 0 ? kind.k : kind.v;
  const bool is_kept = token < kind.keep_tokens && storage.code != Code::kNone;
  return is_kept ? NaiveStorage{Elem::kBF16} : storage;
}

kvc_layer quantised_layer(const Kind& kind, const kvc_rope* rope = nullptr) {
  kvc_layer layer = attention_layer();
  layer.num_q_heads = kQueryHeads;
  layer.num_kv_heads = kKvHeads;
  layer.k_dim = layer.v_dim = kRowDim;
  layer.quant = kind.quant;
  layer.v_quant = kind.v_quant;
  layer.k_dtype = dl_type(kind.k);
  layer.v_dtype = dl_type(kind.v);
  layer.k_scale = kind.k.shared;
  layer.v_scale = kind.v.shared;
  layer.keep_tokens = kind.keep_tokens;
  layer.rope = rope;
  return layer;
}

// One token of a sequence in a batch.
using OutputBits = std::vector<float>;

class Runner {
 public:
  explicit Runner(const Kind& kind, kvc_rope_mode rope = KVC_ROPE_NONE, int32_t threads = 1,
                  kvc_cpu_isa isa = KVC_CPU_ISA_AUTO)
      : rope_(rope_of(rope)), net_({quantised_layer(kind, &rope_)}, 400) {
    net_.config.page_size = 3;
    net_.config.num_threads = threads;
    net_.config.cpu_isa = isa;
    set_host_pages(net_.config, 200);
    cache_ = std::make_unique<Cache>(net_.config);
  }
  Cache& cache() { return *cache_; }

  // Appends tokens of `tokens` from the end of each sequence on; the outputs of the first sequence.
  OutputBits step(const std::vector<kvc_seq>& seqs, int64_t count, uint64_t flags = 0) {
    std::vector<int64_t> lengths(seqs.size(), count), begins;
    for (const kvc_seq seq : seqs) {
      const kvc_status added = kvc_seq_add(cache_->get(), seq, nullptr);
      EXPECT_TRUE(added == KVC_OK || added == KVC_E_ALREADY_EXISTS);
      begins.push_back(length_of(*cache_, seq));
    }
    const auto rows = static_cast<int64_t>(seqs.size()) * count;
    HostTensor q(Elem::kF32, {rows, kQueryHeads, kRowDim}),
        k(Elem::kF32, {rows, kKvHeads, kRowDim}), v(Elem::kF32, {rows, kKvHeads, kRowDim}),
        out(Elem::kF32, {rows, kQueryHeads, kRowDim});
    for (int64_t row = 0; row < rows; ++row) {
      // A token's values are those of its sequence and its place.
      const size_t entry = static_cast<size_t>(row / count);
      Random random(static_cast<uint64_t>(seqs[entry] % 10 * 1000 + begins[entry] + row % count));
      for (HostTensor* tensor : {&q, &k, &v}) {
        for (int64_t h = 0; h < tensor->size(1); ++h) {
          for (int64_t d = 0; d < kRowDim; ++d)
            tensor->set(round_to(Elem::kF32, random.symmetric()), row, h, d);
        }
      }
    }
    EXPECT_EQ(cache_->begin(seqs, lengths), KVC_OK);
    kvc_attn_opt opt = attn_opt();
    opt.flags = flags;
    kvc_error error{};
    EXPECT_EQ(kvc_attn(cache_->forward, 0, &opt, q.dl(), k.dl(), v.dl(), out.dl(), nullptr, &error),
              KVC_OK)
        << error.message;
    cache_->end();
    OutputBits bits;
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t h = 0; h < kQueryHeads; ++h) {
        for (int64_t d = 0; d < kRowDim; ++d)
          bits.push_back(static_cast<float>(out.get(row, h, d)));
      }
    }
    return bits;
  }
  std::vector<float> stored(kvc_seq seq) {
    const int64_t count = length_of(*cache_, seq);
    HostTensor k(Elem::kF32, {count, kKvHeads, kRowDim}), v(Elem::kF32, {count, kKvHeads, kRowDim});
    EXPECT_EQ(
        kvc_debug_get_layer(cache_->get(), seq, 0, 0, count, k.dl(), v.dl(), nullptr, nullptr),
        KVC_OK);
    std::vector<float> all;
    for (HostTensor* tensor : {&k, &v}) {
      tensor->for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
        all.push_back(static_cast<float>(tensor->get(t, h, d)));
      });
    }
    return all;
  }

 private:
  kvc_rope rope_;
  Net net_;
  std::unique_ptr<Cache> cache_;
};

void for_each_kind(const std::function<void(const Kind&, kvc_rope_mode)>& check) {
  for (const Kind& kind : kKinds) {
    for (const kvc_rope_mode rope : {KVC_ROPE_NONE, KVC_ROPE_ON_APPEND, KVC_ROPE_ON_READ}) {
      SCOPED_TRACE(testing::Message() << name_of(kind) << " rope " << rope);
      check(kind, rope);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(Quantised, RowsAreStoredAsTheirTypeAndScaleSay) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(name_of(kind));
    Runner run(kind);
    (void)run.step({1}, 20);
    const std::vector<float> stored = run.stored(1);
    size_t at = 0;
    for (int half = 0; half < 2; ++half) {
      for (int64_t token = 0; token < 20; ++token) {
        Random random(1000 + static_cast<uint64_t>(token));
        for (int64_t i = 0; i < (kQueryHeads + half * kKvHeads) * kRowDim; ++i)
          (void)random.symmetric();
        std::vector<double> row;
        for (int64_t i = 0; i < kKvHeads * kRowDim; ++i)
          row.push_back(round_to(Elem::kF32, random.symmetric()));
        for (const double want : stored_row(storage_of(kind, half, token), row, kKvHeads)) {
          ASSERT_EQ(stored[at], static_cast<float>(want)) << "element " << at;
          ++at;
        }
      }
    }
    EXPECT_EQ(at, stored.size());
  }
}

TEST(Quantised, BitsDoNotDependOnThreads) {
  for_each_kind([](const Kind& kind, kvc_rope_mode rope) {
    Runner one(kind, rope), many(kind, rope, 3);
    EXPECT_EQ(one.step({1, 2}, kPromptTokens), many.step({1, 2}, kPromptTokens));
    EXPECT_EQ(one.step({1, 2}, 1), many.step({1, 2}, 1));
  });
}

TEST(Quantised, BitsDoNotDependOnHowTokensWereAppended) {
  for_each_kind([](const Kind& kind, kvc_rope_mode rope) {
    Runner whole(kind, rope), split(kind, rope);
    (void)whole.step({1}, kPromptTokens);
    for (int64_t done = 0; done < kPromptTokens; done += 25) (void)split.step({1}, 25);
    EXPECT_EQ(whole.stored(1), split.stored(1));
    EXPECT_EQ(whole.step({1}, 1), split.step({1}, 1));
    EXPECT_EQ(whole.step({1}, 40), split.step({1}, 40));
  });
}

TEST(Quantised, BitsDoNotDependOnTheBatch) {
  for_each_kind([](const Kind& kind, kvc_rope_mode rope) {
    Runner alone(kind, rope), together(kind, rope);
    (void)alone.step({1}, kPromptTokens);
    (void)together.step({1, 2, 3, 4}, kPromptTokens);
    EXPECT_EQ(alone.step({1}, 1, KVC_ATTN_BATCH_INVARIANT),
              together.step({1, 2, 3, 4}, 1, KVC_ATTN_BATCH_INVARIANT));
    EXPECT_EQ(alone.step({1}, 9, KVC_ATTN_BATCH_INVARIANT),
              together.step({1, 2, 3, 4}, 9, KVC_ATTN_BATCH_INVARIANT));
  });
}

// What is kept of a shared prefix is read for each sequence, the rest of it once for all.
TEST(Quantised, ASharedPrefixGivesWhatASequenceAloneGives) {
  for (const int32_t keep_tokens : {0, 5, 70}) {
    Kind kind{KVC_QUANT_PER_TOKEN_HEAD, kInt8};
    kind.keep_tokens = keep_tokens;
    for (const kvc_rope_mode rope : {KVC_ROPE_NONE, KVC_ROPE_ON_READ}) {
      SCOPED_TRACE(testing::Message() << "keep " << keep_tokens << " rope " << rope);
      Runner run(kind, rope);
      (void)run.step({1}, 700);
      std::vector<kvc_seq> forks;
      for (kvc_seq child = 11; child <= 161; child += 10) {
        ASSERT_EQ(kvc_seq_fork(run.cache().get(), 1, child, -1, nullptr), KVC_OK);
        forks.push_back(child);
      }
      const uint64_t before = stats_of(run.cache()).cascades;
      const OutputBits together = run.step(forks, 1);
      EXPECT_GT(stats_of(run.cache()).cascades, before);
      const OutputBits alone = run.step({1}, 1);
      ASSERT_EQ(together.size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i)
        ASSERT_NEAR(together[i], alone[i], 5e-4) << "element " << i;
    }
  }
}

TEST(Quantised, BitsStayWhereverASequenceGoes) {
  for_each_kind([](const Kind& kind, kvc_rope_mode rope) {
    Runner first(kind, rope), second(kind, rope);
    (void)first.step({1}, kPromptTokens);
    ASSERT_EQ(kvc_seq_fork(first.cache().get(), 1, 11, -1, nullptr), KVC_OK);
    ASSERT_EQ(kvc_seq_fork(first.cache().get(), 1, 21, kPromptTokens - 2, nullptr), KVC_OK);
    const Bytes file = saved(first.cache(), {1});
    (void)second.step({2}, 4);  // so that its pages are others
    ASSERT_EQ(load(second.cache(), {1}, file), KVC_OK);
    ASSERT_EQ(swap_out(first.cache(), {11}), KVC_OK);
    (void)first.step({3}, 7);
    ASSERT_EQ(swap_in(first.cache(), {11}), KVC_OK);
    const std::vector<float> stored = first.stored(1);
    EXPECT_EQ(second.stored(1), stored);
    EXPECT_EQ(first.stored(11), stored);
    (void)first.step({21}, 2);
    EXPECT_EQ(first.stored(21), stored) << "a page that two sequences had was copied";
    const OutputBits expected = first.step({1}, 1);
    EXPECT_EQ(second.step({1}, 1), expected);
    EXPECT_EQ(first.step({11}, 1), expected);
    EXPECT_EQ(first.step({21}, 1), expected);
    EXPECT_EQ(kvc_cache_check(first.cache().get(), nullptr), KVC_OK);
  });
}

TEST(Quantised, FilesConvertTheHalfThatIsNotQuantised) {
  const Kind k_wide{KVC_QUANT_PER_TOKEN_HEAD, kInt8, KVC_QUANT_OFF, {Elem::kF32}},
      k_short{KVC_QUANT_PER_TOKEN_HEAD, kInt8, KVC_QUANT_OFF, {Elem::kBF16}},
      v_wide{KVC_QUANT_NONE, {Elem::kF32}, KVC_QUANT_PER_TOKEN_HEAD, kE4M3},
      v_short{KVC_QUANT_NONE, {Elem::kF16}, KVC_QUANT_PER_TOKEN_HEAD, kE4M3};
  const auto kept = [](Kind kind) { return kind.keep_tokens = 5, kind; };
  for (const auto& [from, to, name] : {std::tuple{k_wide, k_short, "v_dtype"},
                                       {v_wide, v_short, "k_dtype"},
                                       {kept(k_wide), kept(k_short), "v_dtype"},
                                       {kept(v_wide), kept(v_short), "k_dtype"}}) {
    Runner first(from), second(to);
    (void)first.step({1}, 20);
    const Bytes file = saved(first.cache(), {1});
    kvc_load_desc desc = load_desc(file);
    expect_error(KVC_E_UNSUPPORTED, {name},
                 [&](kvc_error* err) { return load(second.cache(), {1}, desc, err); });
    desc.flags = KVC_LOAD_CONVERT;
    expect_ok([&](kvc_error* err) { return load(second.cache(), {1}, desc, err); });
    const std::vector<float> before = first.stored(1), after = second.stored(1);
    ASSERT_EQ(before.size(), after.size());
    const size_t half = before.size() / 2;
    for (size_t i = 0; i < before.size(); ++i) {
      const NaiveStorage& storage = i < half ? to.k : to.v;
      const double want =
          storage.code == Code::kNone ? round_to(storage.elem, before[i]) : before[i];
      ASSERT_EQ(after[i], static_cast<float>(want)) << "element " << i;
    }
    // What is quantised stays what it is.
    Runner whole(Kind{KVC_QUANT_NONE, {Elem::kF32}});
    expect_error(KVC_E_UNSUPPORTED, {"in the file, float32 in this cache"},
                 [&](kvc_error* err) { return load(whole.cache(), {1}, desc, err); });
  }
}

// Pages that nobody here can read or write would only be found out by the first attention.
TEST(Quantised, OwnedStorageOfFourBitsIsRefusedOnTheCpu) {
  const struct {
    kvc_quant quant;
    DLDataType k_type, v_type;
    const char* names;
  } kinds[] = {
      {KVC_QUANT_PER_TOKEN_HEAD, {kDLInt, 4, 1}, {}, "k_dtype = int4 with quant = PER_TOKEN_HEAD"},
      {KVC_QUANT_PER_TOKEN_HEAD,
       {kDLInt, 8, 1},
       {kDLInt, 4, 1},
       "v_dtype = int4 with quant = PER_TOKEN_HEAD (2)"},
      {KVC_QUANT_BLOCK16,
       {kDLFloat4_e2m1fn, 4, 1},
       {},
       "k_dtype = float4_e2m1fn with quant = BLOCK16 (3)"}};
  for (const auto& kind : kinds) {
    SCOPED_TRACE(kind.names);
    kvc_layer four_bit = attention_layer();
    four_bit.k_dim = four_bit.v_dim = 32;
    four_bit.quant = kind.quant;
    four_bit.k_dtype = kind.k_type;
    four_bit.v_dtype = kind.v_type;
    // The ids are those of the whole model.
    Net net({four_bit, attention_layer(), four_bit, shared_layer(2)});
    net.config.layer_begin = 1;
    net.config.layer_end = 4;
    {
      const PlanHandle plan(net.config);
      kvc_cache* cache = nullptr;
      const kvc_error error = expect_error(
          KVC_E_UNSUPPORTED,
          {"config.layers[2].", kind.names, "8 bits", "OWNED (0)", "BORROWED (1)", "NONE (2)"},
          [&](kvc_error* err) { return kvc_cache_create(plan.get(), &cache, err); });
      EXPECT_EQ(error.detail, kind.quant);
      EXPECT_EQ(cache, nullptr);
    }
    const BorrowedPool pool(net.config);
    for (const kvc_storage storage : {KVC_STORAGE_BORROWED, KVC_STORAGE_NONE}) {
      if (storage == KVC_STORAGE_NONE) {
        net.config.num_pages = 8;
        net.config.num_pool_tensors = 0;
        net.config.pool_tensors = nullptr;
      }
      net.config.storage = storage;
      Cache cache(net.config);
      add_tokens(cache, 1, 9);
      EXPECT_EQ(length_of(cache, 1), 9);
      ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, 7, nullptr), KVC_OK);
      EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
    }
    // A slice without the layer is served.
    net.config.storage = KVC_STORAGE_OWNED;
    net.config.layer_end = 2;
    Cache served(net.config);
    add_tokens(served, 1, 9);
  }
}

// Rows that are not finite: all outputs that see them are NaN, no others are.
TEST(Quantised, ARowThatIsNotFiniteReachesThoseWhoSeeIt) {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  ASSERT_EQ(kvc_device_query({kDLCPU, 0}, &caps, nullptr), KVC_OK);
  for (kvc_cpu_isa isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if ((caps.isas >> isa & 1) == 0) continue;
    for (const Kind& kind : {kKinds[0], kKinds[1], kKinds[2]}) {
      for (const double poison : {static_cast<double>(NAN), HUGE_VAL}) {
        for (const bool in_k : {true, false}) {
          SCOPED_TRACE(testing::Message() << name_of(kind) << " isa " << isa << " " << poison
                                          << (in_k ? " in K" : " in V"));
          Runner run(kind, KVC_ROPE_NONE, 1, isa);
          (void)run.step({1}, 30);
          HostTensor row(Elem::kF32, {1, 1, kKvHeads, kRowDim});
          row.for_each(
              [&](int64_t a, int64_t b, int64_t c, int64_t d) { row.set(0.5, a, b, c, d); });
          row.set(poison, 0, 0, 1, 3);
          ASSERT_EQ(kvc_debug_set_kv(run.cache().get(), 1, 29, in_k ? row.dl() : nullptr,
                                     in_k ? nullptr : row.dl(), nullptr, nullptr),
                    KVC_OK);
          for (const int64_t count : {1, 20}) {
            const OutputBits out = run.step({1}, count);
            for (size_t i = 0; i < out.size(); ++i) {
              const int64_t q_head = static_cast<int64_t>(i) / kRowDim % kQueryHeads;
              ASSERT_EQ(std::isnan(out[i]), q_head / (kQueryHeads / kKvHeads) == 1)
                  << "element " << i;
            }
          }
          ASSERT_EQ(kvc_seq_pop(run.cache().get(), 1, 22, nullptr), KVC_OK);
          for (const float value : run.step({1}, 3)) ASSERT_FALSE(std::isnan(value));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc::test
