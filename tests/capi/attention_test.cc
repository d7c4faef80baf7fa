// kvcache.h, section "Attention": what is accepted, what is refused, what is written. Values
// against the oracle: tests/model.
#include <cmath>
#include <limits>

#include "tests/capi/fixture.h"

namespace kvc::test {
namespace {

// Layer 0 of a cache with sequences 1 (6 tokens) and 2 (3 tokens); an open forward of 2 and 3 new
// tokens.
class Attention : public testing::Test {
 protected:
  static constexpr int64_t kRows = 5;

  Attention() {
    Random random(11);
    for (HostTensor* tensor : {&q, &k, &v, &qkv}) tensor->fill_random(random);
    cache.fill({1, 2}, {6, 3});
    EXPECT_EQ(cache.begin({1, 2}, {2, 3}), KVC_OK);
  }
  kvc_forward* fwd() const { return cache.forward; }
  kvc_status attend(const kvc_attn_opt* opt, HostTensor* to, kvc_error* err = nullptr) {
    return kvc_attn(fwd(), 0, opt, q.dl(), k.dl(), v.dl(), to->dl(), nullptr, err);
  }
  // Refused, and neither the outputs nor the cache changed.
  void refused(kvc_status status, std::initializer_list<const char*> parts, const Call& fn) {
    expect_refused(cache, status, parts, fn);
    EXPECT_TRUE(out.is_untouched());
    EXPECT_TRUE(lse.is_untouched());
  }

  Model model;
  Cache cache{model.config};
  HostTensor q{Elem::kF32, {kRows, 4, 8}}, k{Elem::kF32, {kRows, 2, 8}},
      v{Elem::kF32, {kRows, 2, 8}};
  HostTensor qkv{Elem::kF32, {kRows, 8, 8}};
  HostTensor out{Elem::kF32, {kRows, 4, 8}}, lse{Elem::kF32, {kRows, 4}};
};

TEST_F(Attention, EveryEntryPointSucceedsWithAndWithoutError) {
  HostTensor other(Elem::kF32, {kRows, 4, 8}), other_lse(Elem::kF32, {kRows, 4});
  HostTensor k_out(Elem::kF32, {8, 2, 8}), v_out(Elem::kF32, {8, 2, 8});
  expect_ok([&](kvc_error* err) {
    return kvc_attn(fwd(), 0, nullptr, q.dl(), k.dl(), v.dl(), out.dl(), lse.dl(), err);
  });
  EXPECT_EQ(kvc_attn(fwd(), 0, nullptr, q.dl(), nullptr, nullptr, out.dl(), nullptr, nullptr),
            KVC_OK);
  expect_ok([&](kvc_error* err) {
    return kvc_attn_fused_qkv(fwd(), 0, nullptr, qkv.dl(), out.dl(), err);
  });
  EXPECT_EQ(kvc_attn_fused_qkv(fwd(), 0, nullptr, qkv.dl(), out.dl(), nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) { return kvc_kv_append(fwd(), 0, k.dl(), v.dl(), err); });
  EXPECT_EQ(kvc_kv_append(fwd(), 0, k.dl(), v.dl(), nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) {
    return kvc_attn_self(fwd(), 0, nullptr, q.dl(), k.dl(), v.dl(), out.dl(), lse.dl(), err);
  });
  EXPECT_EQ(kvc_attn_self(fwd(), 0, nullptr, q.dl(), k.dl(), v.dl(), out.dl(), lse.dl(), nullptr),
            KVC_OK);
  expect_ok([&](kvc_error* err) {
    return kvc_attn_cached(fwd(), 0, nullptr, q.dl(), other.dl(), other_lse.dl(), err);
  });
  EXPECT_EQ(kvc_attn_cached(fwd(), 0, nullptr, q.dl(), other.dl(), other_lse.dl(), nullptr),
            KVC_OK);
  expect_ok([&](kvc_error* err) {
    return kvc_attn_merge(fwd(), out.dl(), lse.dl(), other.dl(), other_lse.dl(), err);
  });
  EXPECT_EQ(kvc_attn_merge(fwd(), out.dl(), lse.dl(), other.dl(), other_lse.dl(), nullptr), KVC_OK);
  expect_ok(
      [&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 1, k_out.dl(), v_out.dl(), err); });
  EXPECT_EQ(kvc_kv_gather(fwd(), 0, 1, k_out.dl(), nullptr, nullptr), KVC_OK);
  EXPECT_EQ(k_out.get(6, 1, 3), k.get(0, 1, 3)) << "the first new token of sequence 1";
}

TEST_F(Attention, AcceptsAnyPlacementOfTensorsAndTouchesNoPadding) {
  ASSERT_EQ(attend(nullptr, &out), KVC_OK);
  const std::vector<Placement> placements = {
      {.extra_rows = 3},
      {.row_gap = 5},
      {.inner_gap = 3},
      {.byte_offset = 12},
      {.extra_rows = 1, .row_gap = 7, .inner_gap = 1, .byte_offset = 20},
      {.null_strides = false}};
  for (const Placement& placement : placements) {
    HostTensor q2(Elem::kF32, {kRows, 4, 8}, placement), k2(Elem::kF32, {kRows, 2, 8}, placement),
        v2(Elem::kF32, {kRows, 2, 8}, placement);
    HostTensor out2(Elem::kF32, {kRows, 4, 8}, placement), lse2(Elem::kF32, {kRows, 4}, placement);
    q2.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) { q2.set(q.get(t, h, d), t, h, d); });
    k2.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) { k2.set(k.get(t, h, d), t, h, d); });
    v2.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) { v2.set(v.get(t, h, d), t, h, d); });
    ASSERT_EQ(kvc_attn(fwd(), 0, nullptr, q2.dl(), k2.dl(), v2.dl(), out2.dl(), lse2.dl(), nullptr),
              KVC_OK);
    out2.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
      EXPECT_EQ(out2.get(t, h, d), out.get(t, h, d));
    });
    lse2.for_each([&](int64_t t, int64_t h, int64_t, int64_t) {
      EXPECT_TRUE(std::isfinite(lse2.get(t, h)));
    });
    EXPECT_TRUE(out2.padding_untouched() && lse2.padding_untouched());
    EXPECT_TRUE(q2.padding_untouched() && k2.padding_untouched() && v2.padding_untouched())
        << "padding holds NaN and was not needed";
  }
}

TEST_F(Attention, EachTensorMayHaveItsOwnActivationType) {
  for (const Elem type : {Elem::kF16, Elem::kBF16}) {
    HostTensor narrow(type, {kRows, 4, 8}), wide(Elem::kF32, {kRows, 4, 8}),
        result(type, {kRows, 4, 8});
    narrow.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
      wide.set(narrow.set(q.get(t, h, d), t, h, d), t, h, d);
    });
    ASSERT_EQ(kvc_attn(fwd(), 0, nullptr, wide.dl(), k.dl(), v.dl(), out.dl(), nullptr, nullptr),
              KVC_OK);
    ASSERT_EQ(
        kvc_attn(fwd(), 0, nullptr, narrow.dl(), k.dl(), v.dl(), result.dl(), nullptr, nullptr),
        KVC_OK);
    result.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
      EXPECT_EQ(result.get(t, h, d), round_to(type, out.get(t, h, d)));
    });
  }
}

TEST_F(Attention, RefusesWrongTensorsByName) {
  struct Case {
    const char* name;
    HostTensor* right;
  };
  for (const Case& wrong : {Case{"q", &q}, Case{"k", &k}, Case{"v", &v}, Case{"out", &out}}) {
    const auto call = [&](DLTensor* tensor) {
      return [&, tensor](kvc_error* err) {
        const auto given = [&](HostTensor& right) {
          return &right == wrong.right ? tensor : right.dl();
        };
        return kvc_attn(fwd(), 0, nullptr, given(q), given(k), given(v), given(out), nullptr, err);
      };
    };
    const int64_t heads = wrong.right->size(1);
    const std::string heads_text = std::to_string(heads);
    HostTensor rank(Elem::kF32, {kRows, heads * 8}), few(Elem::kF32, {kRows - 1, heads, 8}),
        head(Elem::kF32, {kRows, heads + 1, 8});
    HostTensor dim(Elem::kF32, {kRows, heads, 7}), integers(Elem::kI32, {kRows, heads, 8});
    refused(KVC_E_SHAPE, {wrong.name, "2", "3"}, call(rank.dl()));
    refused(KVC_E_SHAPE, {wrong.name, "4", "5"}, call(few.dl()));
    refused(KVC_E_SHAPE, {wrong.name, heads_text.c_str(), std::to_string(heads + 1).c_str()},
            call(head.dl()));
    refused(KVC_E_SHAPE, {wrong.name, "7", "8"}, call(dim.dl()));
    refused(KVC_E_DTYPE, {wrong.name, "int32", "float32"}, call(integers.dl()));
    const DLTensor good = *wrong.right->dl();
    DLTensor bad = good;
    bad.device = {kDLCUDA, 0};
    refused(KVC_E_DEVICE_MISMATCH, {wrong.name, "2", "1"}, call(&bad));
    bad = good;
    bad.dtype.lanes = 2;
    refused(KVC_E_DTYPE, {wrong.name, "float32"}, call(&bad));
    bad = good;
    int64_t strides[] = {heads * 16, 16, 2};
    bad.strides = strides;
    refused(KVC_E_SHAPE, {wrong.name, "2", "1"}, call(&bad));
    int64_t far[] = {int64_t{1} << 55, 8, 1};
    bad.strides = far;
    refused(KVC_E_SHAPE, {wrong.name, "36028797018963968", "cannot be addressed"}, call(&bad));
    bad = good;
    bad.byte_offset = 2;
    refused(KVC_E_SHAPE, {wrong.name, "2", "4"}, call(&bad));
    bad = good;
    bad.data = nullptr;
    refused(KVC_E_INVALID_ARGUMENT, {wrong.name, "data", "NULL"}, call(&bad));
    bad = good;
    bad.shape = nullptr;
    refused(KVC_E_INVALID_ARGUMENT, {wrong.name, "shape"}, call(&bad));
    // Rank is looked at before the type, the type before the device, the device before the shape.
    bad = *integers.dl();
    bad.device = {kDLCUDA, 0};
    refused(KVC_E_DTYPE, {wrong.name}, call(&bad));
    bad = *few.dl();
    bad.device = {kDLCUDA, 0};
    refused(KVC_E_DEVICE_MISMATCH, {wrong.name}, call(&bad));
  }
  refused(KVC_E_INVALID_ARGUMENT, {"q"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, nullptr, nullptr, k.dl(), v.dl(), out.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"out"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, nullptr, q.dl(), k.dl(), v.dl(), nullptr, nullptr, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"k", "v"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, nullptr, q.dl(), k.dl(), nullptr, out.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"k", "v"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, nullptr, q.dl(), nullptr, v.dl(), out.dl(), nullptr, err);
  });
}

TEST_F(Attention, RefusesAWrongLse) {
  HostTensor rank(Elem::kF32, {kRows * 4}), few(Elem::kF32, {4, 4}), heads(Elem::kF32, {kRows, 3}),
      narrow(Elem::kBF16, {kRows, 4});
  const auto call = [&](HostTensor& wrong) {
    return [&](kvc_error* err) {
      return kvc_attn(fwd(), 0, nullptr, q.dl(), k.dl(), v.dl(), out.dl(), wrong.dl(), err);
    };
  };
  refused(KVC_E_SHAPE, {"lse", "1", "2"}, call(rank));
  refused(KVC_E_SHAPE, {"lse", "4", "5"}, call(few));
  refused(KVC_E_SHAPE, {"lse", "3", "4"}, call(heads));
  refused(KVC_E_DTYPE, {"lse", "bfloat16", "float32"}, call(narrow));
}

TEST_F(Attention, RefusesWrongLayersAndUnfilledSlots) {
  for (const int32_t layer : {-1, 2, INT32_MAX}) {
    const std::string id = std::to_string(layer);
    refused(KVC_E_OUT_OF_RANGE, {("layer " + id + " out of range: the cache has 2 layers").c_str()},
            [&](kvc_error* err) {
              return kvc_attn(fwd(), layer, nullptr, q.dl(), k.dl(), v.dl(), out.dl(), nullptr,
                              err);
            });
    refused(KVC_E_OUT_OF_RANGE, {"layer", id.c_str()},
            [&](kvc_error* err) { return kvc_kv_append(fwd(), layer, k.dl(), v.dl(), err); });
  }
  refused(KVC_E_INVALID_STATE, {"layer 0"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, nullptr, q.dl(), nullptr, nullptr, out.dl(), nullptr, err);
  });
  HostTensor other(Elem::kF32, {kRows, 8, 6}), other_out(Elem::kF32, {kRows, 4, 4});
  expect_refused(cache, KVC_E_UNSUPPORTED, {"6", "4"}, [&](kvc_error* err) {
    return kvc_attn_fused_qkv(fwd(), 1, nullptr, other.dl(), other_out.dl(), err);
  });
  EXPECT_TRUE(other_out.is_untouched());
}

TEST_F(Attention, MessagesShowTheWholeShapeAndTheExpectedOne) {
  HostTensor transposed(Elem::kF32, {1, 3, 512}), flat(Elem::kF32, {5, 32});
  refused(KVC_E_SHAPE, {"q has shape [1, 3, 512], expected [T = 5 or more, heads = 4, dim = 8]"},
          [&](kvc_error* err) {
            return kvc_attn(fwd(), 0, nullptr, transposed.dl(), k.dl(), v.dl(), out.dl(), nullptr,
                            err);
          });
  refused(KVC_E_SHAPE,
          {"q has 2 dimensions, expected 3: its shape is [5, 32], expected [T = 5 or more, heads = "
           "4, dim = 8]"},
          [&](kvc_error* err) {
            return kvc_attn(fwd(), 0, nullptr, flat.dl(), k.dl(), v.dl(), out.dl(), nullptr, err);
          });
}

TEST_F(Attention, APoolTheHostCanWriteMayBeReadWithoutAnAppend) {
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_K, &exported, nullptr), KVC_OK);
  EXPECT_EQ(kvc_attn(fwd(), 0, nullptr, q.dl(), nullptr, nullptr, out.dl(), nullptr, nullptr),
            KVC_OK);
  exported->deleter(exported);
}

TEST_F(Attention, OptionsOfLaterVersionsAndBadValuesAreRefused) {
  kvc_attn_opt good{};
  good.struct_size = sizeof good;
  const auto bad = [&](kvc_status status, std::initializer_list<const char*> parts,
                       const std::function<void(kvc_attn_opt&)>& change) {
    kvc_attn_opt opt = good;
    change(opt);
    refused(status, parts, [&](kvc_error* err) { return attend(&opt, &out, err); });
  };
  kvc_ext ext{3, nullptr};
  bad(KVC_E_OUT_OF_RANGE, {"window", "-1"}, [](kvc_attn_opt& o) { o.window = -1; });
  bad(KVC_E_OUT_OF_RANGE, {"window"}, [](kvc_attn_opt& o) { o.window = INT64_MIN; });
  bad(KVC_E_UNSUPPORTED, {"flags", "0x8"}, [](kvc_attn_opt& o) { o.flags = 8; });
  bad(KVC_E_UNSUPPORTED, {"flags"}, [](kvc_attn_opt& o) { o.flags = uint64_t{1} << 63; });
  bad(KVC_E_UNSUPPORTED, {"ext", "3"}, [&](kvc_attn_opt& o) { o.ext = &ext; });
  bad(KVC_E_OUT_OF_RANGE, {"soft_cap", "-2"}, [](kvc_attn_opt& o) { o.soft_cap = -2; });
  bad(KVC_E_OUT_OF_RANGE, {"soft_cap"},
      [](kvc_attn_opt& o) { o.soft_cap = std::numeric_limits<float>::infinity(); });
  bad(KVC_E_OUT_OF_RANGE, {"scale"},
      [](kvc_attn_opt& o) { o.scale = std::numeric_limits<float>::quiet_NaN(); });
  bad(KVC_E_INVALID_ARGUMENT, {"opt", "struct_size", "0"},
      [](kvc_attn_opt& o) { o.struct_size = 0; });
  bad(KVC_E_INVALID_ARGUMENT, {"opt", "struct_size", "4"},
      [](kvc_attn_opt& o) { o.struct_size = 4; });
  HostTensor three(Elem::kF32, {3}), matrix(Elem::kF32, {4, 1}), half(Elem::kF16, {4});
  bad(KVC_E_SHAPE, {"sink_logits", "3", "4"}, [&](kvc_attn_opt& o) { o.sink_logits = three.dl(); });
  bad(KVC_E_SHAPE, {"sink_logits", "2", "1"},
      [&](kvc_attn_opt& o) { o.sink_logits = matrix.dl(); });
  bad(KVC_E_DTYPE, {"alibi_slopes", "float16", "float32"},
      [&](kvc_attn_opt& o) { o.alibi_slopes = half.dl(); });
  bad(KVC_E_SHAPE, {"alibi_slopes", "3", "4"},
      [&](kvc_attn_opt& o) { o.alibi_slopes = three.dl(); });
  HostTensor narrow(Elem::kF32, {kRows, 7}), few(Elem::kF32, {4, 8}),
      heads(Elem::kF32, {3, kRows, 8}), four(Elem::kF32, {1, 4, kRows, 8});
  bad(KVC_E_SHAPE, {"bias", "7", "8"}, [&](kvc_attn_opt& o) { o.bias = narrow.dl(); });
  bad(KVC_E_SHAPE, {"bias", "4", "5"}, [&](kvc_attn_opt& o) { o.bias = few.dl(); });
  bad(KVC_E_SHAPE, {"bias", "3", "4"}, [&](kvc_attn_opt& o) { o.bias = heads.dl(); });
  bad(KVC_E_SHAPE, {"bias", "4", "2 or 3"}, [&](kvc_attn_opt& o) { o.bias = four.dl(); });
  for (const uint64_t flag :
       {KVC_ATTN_DETERMINISTIC, KVC_ATTN_BATCH_INVARIANT, KVC_ATTN_NO_CASCADE}) {
    kvc_attn_opt opt = good;
    opt.flags = flag;
    EXPECT_EQ(attend(&opt, &out), KVC_OK) << flag;
  }
  out.poison();
  struct {
    kvc_attn_opt opt;
    uint64_t tail;
  } longer{good, 1};
  longer.opt.struct_size = sizeof longer;
  refused(KVC_E_VERSION, {"opt", std::to_string(sizeof longer).c_str()},
          [&](kvc_error* err) { return attend(&longer.opt, &out, err); });
  longer.tail = 0;
  EXPECT_EQ(attend(&longer.opt, &out), KVC_OK);
  kvc_attn_opt shorter = good;
  shorter.struct_size = offsetof(kvc_attn_opt, window);
  shorter.window = 5;
  EXPECT_EQ(attend(&shorter, &out), KVC_OK);
}

// Masks of other frameworks hold the least float32 where a key is hidden. log2(e) times that is no
// float32.
TEST(AttentionMask, KeysThatAllHaveTheLeastBiasCountAlike) {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  ASSERT_EQ(kvc_device_query({kDLCPU, 0}, &caps, nullptr), KVC_OK);
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  for (kvc_cpu_isa isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if ((caps.isas >> isa & 1) == 0) continue;
    for (const int64_t rows : {1, 9}) {
      Model model;
      model.config.cpu_isa = isa;
      Cache cache(model.config);
      cache.fill({1}, {6});
      HostTensor q(Elem::kF32, {rows, 4, 8}), k(Elem::kF32, {rows, 2, 8}),
          v(Elem::kF32, {rows, 2, 8});
      Random random(3);
      for (HostTensor* tensor : {&k, &v}) tensor->fill_random(random);
      q.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) { q.set(0.0, t, h, d); });
      const auto attend = [&](double of_key, HostTensor& out) {
        HostTensor lse(Elem::kF32, {rows, 4}), bias(Elem::kF32, {rows, 16});
        bias.for_each([&](int64_t t, int64_t j, int64_t, int64_t) { bias.set(of_key, t, j); });
        kvc_attn_opt opt{};
        opt.struct_size = sizeof opt;
        opt.bias = bias.dl();
        EXPECT_EQ(cache.begin({1}, {rows}), KVC_OK);
        EXPECT_EQ(
            kvc_attn(cache.forward, 0, &opt, q.dl(), k.dl(), v.dl(), out.dl(), lse.dl(), nullptr),
            KVC_OK);
        EXPECT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
        cache.forward = nullptr;
        for (int64_t t = 0; t < rows; ++t) EXPECT_TRUE(std::isfinite(lse.get(t, 0))) << of_key;
      };
      HostTensor expected(Elem::kF32, {rows, 4, 8});
      attend(0, expected);
      for (const double of_key :
           {-kMost, -2.4e38, 2.4e38, kMost, std::numeric_limits<double>::infinity()}) {
        HostTensor out(Elem::kF32, {rows, 4, 8});
        attend(of_key, out);
        double largest = 0;
        out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          const double error = std::fabs(out.get(t, h, d) - expected.get(t, h, d));
          largest = error <= largest ? largest : error;  // keeps a NaN
        });
        EXPECT_LE(largest, 1e-6) << "isa " << isa << ", " << rows << " rows, bias " << of_key;
      }
    }
  }
}

// Key 2 of both sequences is masked, then its K and V become NaN: nothing may change. Decode and
// prefill, every instruction set.
TEST(AttentionMask, MaskedKeysMayHoldNaN) {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  ASSERT_EQ(kvc_device_query({kDLCPU, 0}, &caps, nullptr), KVC_OK);
  for (kvc_cpu_isa isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if ((caps.isas >> isa & 1) == 0) continue;
    for (const auto& [first, second] :
         {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {9, 1}, {10, 8}}) {
      for (const uint64_t flags : {uint64_t{0}, uint64_t{KVC_ATTN_BATCH_INVARIANT}}) {
        Model model;
        model.config.cpu_isa = isa;
        Cache cache(model.config);
        cache.fill({1, 2}, {6, 3});
        const int64_t rows = first + second;
        HostTensor q(Elem::kF32, {rows, 4, 8}), k(Elem::kF32, {rows, 2, 8}),
            v(Elem::kF32, {rows, 2, 8});
        HostTensor clean(Elem::kF32, {rows, 4, 8}), clean_lse(Elem::kF32, {rows, 4});
        HostTensor got(Elem::kF32, {rows, 4, 8}), got_lse(Elem::kF32, {rows, 4});
        HostTensor bias(Elem::kF32, {rows, 16}), poison(Elem::kF32, {2, 1, 2, 8});
        Random random(3);
        for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(random);
        bias.for_each([&](int64_t t, int64_t j, int64_t, int64_t) {
          bias.set(j == 2 ? -std::numeric_limits<double>::infinity() : 0.25, t, j);
        });
        kvc_attn_opt opt{};
        opt.struct_size = sizeof opt;
        opt.flags = flags;
        opt.bias = bias.dl();
        const auto attend = [&](HostTensor& out, HostTensor& lse) {
          ASSERT_EQ(cache.begin({1, 2}, {first, second}), KVC_OK);
          ASSERT_EQ(
              kvc_attn(cache.forward, 0, &opt, q.dl(), k.dl(), v.dl(), out.dl(), lse.dl(), nullptr),
              KVC_OK);
          ASSERT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
          cache.forward = nullptr;
        };
        attend(clean, clean_lse);
        for (const kvc_seq seq : {1, 2}) {
          ASSERT_EQ(
              kvc_debug_set_kv(cache.get(), seq, 2, poison.dl(), poison.dl(), nullptr, nullptr),
              KVC_OK);
        }
        attend(got, got_lse);
        double largest = 0;
        got.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          const double error = std::fabs(got.get(t, h, d) - clean.get(t, h, d));
          largest = error <= largest ? largest : error;  // keeps a NaN
        });
        EXPECT_LE(largest, 1e-6) << "isa " << isa << ", " << first << " and " << second
                                 << " rows, flags " << flags;
        got_lse.for_each([&](int64_t t, int64_t h, int64_t, int64_t) {
          EXPECT_NEAR(got_lse.get(t, h), clean_lse.get(t, h), 1e-6)
              << "isa " << isa << ", row " << t << ", flags " << flags;
        });
      }
    }
  }
}

TEST_F(Attention, ARowThatSeesNothingIsZero) {
  kvc_attn_opt opt{};
  opt.struct_size = sizeof opt;
  HostTensor bias(Elem::kF32, {kRows, 8}), sinks(Elem::kF32, {4});
  bias.for_each([&](int64_t t, int64_t j, int64_t, int64_t) {
    bias.set(t == 1 ? -std::numeric_limits<double>::infinity() : 0, t, j);
  });
  for (int h = 0; h < 4; ++h) sinks.set(0.5, h);
  opt.bias = bias.dl();
  opt.sink_logits = sinks.dl();
  ASSERT_EQ(kvc_attn(fwd(), 0, &opt, q.dl(), k.dl(), v.dl(), out.dl(), lse.dl(), nullptr), KVC_OK);
  for (int h = 0; h < 4; ++h) {
    for (int d = 0; d < 8; ++d) EXPECT_EQ(out.get(1, h, d), 0);
    EXPECT_EQ(lse.get(1, h), -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isfinite(lse.get(0, h)));
  }
  ASSERT_EQ(kvc_forward_abort(fwd(), nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_add(cache.get(), 9, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({9, 1}, {3, 2}), KVC_OK);
  ASSERT_EQ(kvc_attn_cached(fwd(), 0, nullptr, q.dl(), out.dl(), lse.dl(), nullptr), KVC_OK);
  for (int t = 0; t < 3; ++t) {
    for (int h = 0; h < 4; ++h) {
      EXPECT_EQ(out.get(t, h, 5), 0) << "the sequence was empty";
      EXPECT_EQ(lse.get(t, h), -std::numeric_limits<double>::infinity());
    }
  }
  EXPECT_NE(out.get(3, 0, 0), 0);
}

TEST_F(Attention, MergingIgnoresAPartWithoutKeys) {
  HostTensor other(Elem::kF32, {kRows, 4, 8}), none(Elem::kF32, {kRows, 4});
  other.for_each(
      [&](int64_t t, int64_t h, int64_t d, int64_t) { other.set(std::nan(""), t, h, d); });
  none.for_each([&](int64_t t, int64_t h, int64_t, int64_t) {
    none.set(-std::numeric_limits<double>::infinity(), t, h);
  });
  ASSERT_EQ(kvc_attn(fwd(), 0, nullptr, q.dl(), k.dl(), v.dl(), out.dl(), lse.dl(), nullptr),
            KVC_OK);
  HostTensor before(Elem::kF32, {kRows, 4, 8});
  before.for_each(
      [&](int64_t t, int64_t h, int64_t d, int64_t) { before.set(out.get(t, h, d), t, h, d); });
  ASSERT_EQ(kvc_attn_merge(fwd(), out.dl(), lse.dl(), other.dl(), none.dl(), nullptr), KVC_OK);
  EXPECT_TRUE(out.same_bytes(before));
  ASSERT_EQ(kvc_attn_merge(fwd(), other.dl(), none.dl(), out.dl(), lse.dl(), nullptr), KVC_OK);
  other.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
    EXPECT_EQ(other.get(t, h, d), out.get(t, h, d));
  });
}

TEST_F(Attention, MergeChecksItsTensors) {
  HostTensor a(Elem::kF32, {kRows, 4, 8}), b(Elem::kF32, {kRows, 4, 8}), la(Elem::kF32, {kRows, 4}),
      lb(Elem::kF32, {kRows, 4});
  HostTensor heads(Elem::kF32, {kRows, 3, 8}), few(Elem::kF32, {4, 4, 8}),
      dim(Elem::kF32, {kRows, 4, 9}), short_lse(Elem::kF32, {4, 4});
  const auto bad = [&](kvc_status status, std::initializer_list<const char*> parts, HostTensor* o,
                       HostTensor* l, HostTensor* oo, HostTensor* ol) {
    const auto dl = [](HostTensor* tensor) { return tensor == nullptr ? nullptr : tensor->dl(); };
    expect_refused(cache, status, parts, [&](kvc_error* err) {
      return kvc_attn_merge(fwd(), dl(o), dl(l), dl(oo), dl(ol), err);
    });
    EXPECT_TRUE(a.is_untouched() && la.is_untouched());
  };
  bad(KVC_E_INVALID_ARGUMENT, {"out"}, nullptr, &la, &b, &lb);
  bad(KVC_E_INVALID_ARGUMENT, {"lse"}, &a, nullptr, &b, &lb);
  bad(KVC_E_INVALID_ARGUMENT, {"other_out"}, &a, &la, nullptr, &lb);
  bad(KVC_E_INVALID_ARGUMENT, {"other_lse"}, &a, &la, &b, nullptr);
  bad(KVC_E_SHAPE, {"other_out", "3", "4"}, &a, &la, &heads, &lb);
  bad(KVC_E_SHAPE, {"other_out", "9", "8"}, &a, &la, &dim, &lb);
  bad(KVC_E_SHAPE, {"out", "4", "5"}, &few, &la, &b, &lb);
  bad(KVC_E_SHAPE, {"other_lse", "4", "5"}, &a, &la, &b, &short_lse);
  bad(KVC_E_SHAPE, {"out", "2", "3"}, &la, &la, &b, &lb);
  for (const int64_t extent : {int64_t{-1}, int64_t{INT32_MAX} + 1}) {
    HostTensor huge(Elem::kF32, {kRows, 4, 8});
    int64_t shape[] = {kRows, extent, 8};
    huge.dl()->shape = shape;
    bad(KVC_E_SHAPE, {"out", std::to_string(extent).c_str(), "8"}, &huge, &la, &b, &lb);
  }
}

TEST_F(Attention, SelfCachedAppendAndGatherCheckTheirTensors) {
  HostTensor wrong(Elem::kF32, {kRows, 5, 8});
  refused(KVC_E_SHAPE, {"q", "5", "4"}, [&](kvc_error* err) {
    return kvc_attn_cached(fwd(), 0, nullptr, wrong.dl(), out.dl(), lse.dl(), err);
  });
  refused(KVC_E_SHAPE, {"out", "5", "4"}, [&](kvc_error* err) {
    return kvc_attn_cached(fwd(), 0, nullptr, q.dl(), wrong.dl(), lse.dl(), err);
  });
  refused(KVC_E_SHAPE, {"k", "5", "2"}, [&](kvc_error* err) {
    return kvc_attn_self(fwd(), 0, nullptr, q.dl(), wrong.dl(), v.dl(), out.dl(), lse.dl(), err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"k"}, [&](kvc_error* err) {
    return kvc_attn_self(fwd(), 0, nullptr, q.dl(), nullptr, v.dl(), out.dl(), lse.dl(), err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"v"}, [&](kvc_error* err) {
    return kvc_attn_self(fwd(), 0, nullptr, q.dl(), k.dl(), nullptr, out.dl(), lse.dl(), err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"k"},
          [&](kvc_error* err) { return kvc_kv_append(fwd(), 0, nullptr, v.dl(), err); });
  refused(KVC_E_INVALID_ARGUMENT, {"v"},
          [&](kvc_error* err) { return kvc_kv_append(fwd(), 0, k.dl(), nullptr, err); });
  refused(KVC_E_SHAPE, {"v", "5", "2"},
          [&](kvc_error* err) { return kvc_kv_append(fwd(), 0, k.dl(), wrong.dl(), err); });
  refused(KVC_E_SHAPE, {"qkv", "5", "8"}, [&](kvc_error* err) {
    return kvc_attn_fused_qkv(fwd(), 0, nullptr, wrong.dl(), out.dl(), err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"qkv"}, [&](kvc_error* err) {
    return kvc_attn_fused_qkv(fwd(), 0, nullptr, nullptr, out.dl(), err);
  });
  HostTensor seven(Elem::kF32, {7, 2, 8});
  refused(KVC_E_SHAPE, {"k_out", "7", "8"},
          [&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 1, seven.dl(), nullptr, err); });
  refused(KVC_E_SHAPE, {"v_out", "7", "8"},
          [&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 1, nullptr, seven.dl(), err); });
  refused(KVC_E_INVALID_ARGUMENT, {"k_out", "v_out"},
          [&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 1, nullptr, nullptr, err); });
  refused(KVC_E_NOT_FOUND, {"sequence", "77"},
          [&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 77, seven.dl(), nullptr, err); });
  EXPECT_TRUE(seven.is_untouched());
}

TEST_F(Attention, AnEmptySequenceIsGatheredIntoAnEmptyTensor) {
  ASSERT_EQ(kvc_seq_add(cache.get(), 5, nullptr), KVC_OK);
  int64_t shape[] = {0, 2, 8};
  DLTensor empty{nullptr, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape, nullptr, 0};
  expect_ok([&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 5, &empty, &empty, err); });
}

TEST(AttentionWithoutStorage, IsRefusedByName) {
  Model model;
  model.config.storage = KVC_STORAGE_NONE;
  Cache cache(model.config);
  cache.fill({1}, {3}, false);
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  HostTensor q(Elem::kF32, {1, 4, 8}), k(Elem::kF32, {1, 2, 8}), qkv(Elem::kF32, {1, 8, 8});
  const auto refused = [&](const Call& fn) {
    expect_refused(cache, KVC_E_UNSUPPORTED, {"storage"}, fn);
  };
  refused([&](kvc_error* err) {
    return kvc_attn(cache.forward, 0, nullptr, q.dl(), k.dl(), k.dl(), q.dl(), nullptr, err);
  });
  refused([&](kvc_error* err) {
    return kvc_attn_fused_qkv(cache.forward, 0, nullptr, qkv.dl(), q.dl(), err);
  });
  refused([&](kvc_error* err) {
    return kvc_attn_self(cache.forward, 0, nullptr, q.dl(), k.dl(), k.dl(), q.dl(), nullptr, err);
  });
  refused([&](kvc_error* err) {
    return kvc_attn_cached(cache.forward, 0, nullptr, q.dl(), q.dl(), nullptr, err);
  });
  refused([&](kvc_error* err) { return kvc_kv_append(cache.forward, 0, k.dl(), k.dl(), err); });
  refused([&](kvc_error* err) { return kvc_kv_gather(cache.forward, 0, 1, k.dl(), k.dl(), err); });
  EXPECT_TRUE(q.is_untouched() && k.is_untouched());
}

}  // namespace
}  // namespace kvc::test
