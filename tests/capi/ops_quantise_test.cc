// kvcache.h, section "Operators": rows quantised and read again, against arithmetic in double and
// against what a cache stores.
#include <cmath>
#include <limits>

#include "tests/capi/code_tensor.h"
#include "tests/capi/layers.h"
#include "tests/capi/ops_fixture.h"
#include "tests/stress/executor.h"

namespace kvc::test {
namespace {

struct RowKind {
  kvc_quant quant;
  Code code;
};
constexpr RowKind kRowKinds[] = {
    {KVC_QUANT_PER_TOKEN_HEAD, Code::kInt8}, {KVC_QUANT_PER_TOKEN_HEAD, Code::kE4M3},
    {KVC_QUANT_PER_TOKEN_HEAD, Code::kE5M2}, {KVC_QUANT_PER_TENSOR, Code::kInt8},
    {KVC_QUANT_PER_TENSOR, Code::kE4M3},     {KVC_QUANT_PER_TENSOR, Code::kE5M2}};

bool has_row_scales(const RowKind& kind) { return kind.quant == KVC_QUANT_PER_TOKEN_HEAD; }

// A scale that some of the values 2 * symmetric() do not fit.
float shared_scale(Code code) { return 1.7f / static_cast<float>(largest_code(code)); }

NaiveStorage row_storage(const RowKind& kind) {
  return {Elem::kF32, kind.code, has_row_scales(kind) ? 0.0f : shared_scale(kind.code)};
}

std::vector<int64_t> scales_shape(const RowKind& kind, int64_t rows, int64_t heads) {
  return has_row_scales(kind) ? std::vector<int64_t>{rows, heads} : std::vector<int64_t>{1};
}

// Both ends of a call, with gaps.
struct QuantisedRows {
  QuantisedRows(const RowKind& kind, int64_t rows, int64_t heads, int64_t dim, int64_t gap = 0)
      : codes(kind.code, {rows, heads, dim}, gap),
        scales(Elem::kF32, scales_shape(kind, rows, heads),
               has_row_scales(kind) ? Placement{.row_gap = gap} : Placement{}) {
    if (!has_row_scales(kind)) scales.set(shared_scale(kind.code), 0);
  }
  CodeTensor codes;
  HostTensor scales;
};

// The elements outside of the type's range.
uint64_t count_saturated(const RowKind& kind, HostTensor& x) {
  if (has_row_scales(kind)) return 0;
  const double largest = largest_code(kind.code),
               least = kind.code == Code::kInt8 ? -128 : -largest;
  uint64_t count = 0;
  x.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
    const float element = static_cast<float>(x.get(t, h, d)) / shared_scale(kind.code);
    if (element > largest || element < least) ++count;
  });
  return count;
}

void expect_codes(const RowKind& kind, HostTensor& x, QuantisedRows& rows) {
  const int64_t dim = x.size(2);
  for (int64_t t = 0; t < x.size(0); ++t) {
    for (int64_t h = 0; h < x.size(1); ++h) {
      std::vector<double> values;
      for (int64_t d = 0; d < dim; ++d) values.push_back(x.get(t, h, d));
      const float scale = row_scale(row_storage(kind), values.data(), dim);
      if (has_row_scales(kind)) {
        ASSERT_EQ(rows.scales.get(t, h), scale) << "token " << t;
      }
      for (int64_t d = 0; d < dim; ++d) {
        const float element = static_cast<float>(values[static_cast<size_t>(d)]) / scale;
        ASSERT_EQ(rows.codes.get(t, h, d), round_code(kind.code, element))
            << "token " << t << " head " << h << " element " << d;
      }
    }
  }
}

TEST(OpQuantize, FollowsTheRuleOfKvcQuantOnEveryInstructionSet) {
  for (const kvc_cpu_isa isa : isas()) {
    for (const RowKind& kind : kRowKinds) {
      for (const int64_t dim : {1, 65, 80, 512, 1024}) {
        for (const int64_t count : {0, 1, 5}) {
          const int64_t heads = dim == 80 ? 3 : 1;
          SCOPED_TRACE(testing::Message() << "isa " << isa << " " << name_of(row_storage(kind))
                                          << " dim " << dim << " rows " << count);
          Random random(static_cast<uint64_t>(dim + count));
          const Elem elem = random.pick_of({Elem::kF32, Elem::kF16, Elem::kBF16});
          HostTensor x(elem, {count, heads, dim}, {.row_gap = 4, .inner_gap = 1});
          x.fill_random(random, 2);
          QuantisedRows rows(kind, count, heads, dim, 5);
          kvc_op_opt opt = op_options();
          opt.cpu_isa = isa;
          uint64_t saturated = 77;
          expect_ok([&](kvc_error* err) {
            return kvc_op_quantize(&opt, kind.quant, x.dl(), rows.codes.dl(), rows.scales.dl(),
                                   &saturated, err);
          });
          EXPECT_EQ(saturated, count_saturated(kind, x));
          expect_codes(kind, x, rows);
          EXPECT_TRUE(rows.codes.padding_untouched() && rows.scales.padding_untouched());
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(OpDequantize, GivesElementTimesScaleInAnyTypeOnEveryInstructionSet) {
  for (const kvc_cpu_isa isa : isas()) {
    for (const RowKind& kind : kRowKinds) {
      for (const Elem elem : {Elem::kF32, Elem::kF16, Elem::kBF16}) {
        SCOPED_TRACE(testing::Message() << "isa " << isa << " " << name_of(row_storage(kind))
                                        << " to " << name_of(elem));
        Random random(3);
        for (const int64_t dim : {65, 80}) {
          HostTensor x(Elem::kF32, {4, 3, dim});
          x.fill_random(random, 2);
          QuantisedRows rows(kind, 4, 3, dim, 3);
          kvc_op_opt opt = op_options();
          opt.cpu_isa = isa;
          ASSERT_EQ(kvc_op_quantize(&opt, kind.quant, x.dl(), rows.codes.dl(), rows.scales.dl(),
                                    nullptr, nullptr),
                    KVC_OK);
          HostTensor out(elem, {4, 3, dim}, {.extra_rows = 2, .row_gap = 7, .inner_gap = 2});
          expect_ok([&](kvc_error* err) {
            return kvc_op_dequantize(&opt, kind.quant, rows.codes.dl(), rows.scales.dl(), out.dl(),
                                     err);
          });
          out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
            const double scale = has_row_scales(kind) ? rows.scales.get(t, h) : rows.scales.get(0);
            const float value = static_cast<float>(rows.codes.get(t, h, d) * scale);
            ASSERT_EQ(out.get(t, h, d), round_to(elem, value));
          });
          EXPECT_TRUE(out.padding_untouched());
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(OpQuantize, WritesTheBytesThatACacheStores) {
  constexpr int64_t kTokens = 37, kKvHeads = 3, kPageSize = 16;
  for (const kvc_cpu_isa isa : isas()) {
    for (const RowKind& kind : kRowKinds) {
      for (const int64_t dim : {65, 80}) {
        SCOPED_TRACE(testing::Message()
                     << "isa " << isa << " " << name_of(row_storage(kind)) << " dim " << dim);
        kvc_layer layer = attention_layer();
        layer.num_q_heads = layer.num_kv_heads = kKvHeads;
        layer.k_dim = layer.v_dim = static_cast<int32_t>(dim);
        layer.quant = kind.quant;
        layer.k_dtype = dl_type(row_storage(kind));
        layer.k_scale = layer.v_scale = row_storage(kind).shared;
        Net net({layer}, 4);
        net.config.page_size = kPageSize;
        net.config.cpu_isa = isa;
        Cache cache(net.config);
        ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
        ASSERT_EQ(cache.begin({1}, {kTokens}), KVC_OK);
        Random random(5);
        HostTensor k(Elem::kBF16, {kTokens, kKvHeads, dim}),
            v(Elem::kF32, {kTokens, kKvHeads, dim});
        k.fill_random(random, 2), v.fill_random(random, 2);
        ASSERT_EQ(kvc_kv_append(cache.forward, 0, k.dl(), v.dl(), nullptr), KVC_OK);
        cache.end();

        kvc_layer_info info{};
        info.struct_size = sizeof info;
        ASSERT_EQ(kvc_plan_layer_get(cache.plan(), 0, &info, nullptr), KVC_OK);
        ASSERT_EQ(info.page_size, kPageSize);
        DLManagedTensorVersioned* ids = nullptr;
        ASSERT_EQ(kvc_export_seq_pages(cache.get(), 1, 0, &ids, nullptr), KVC_OK);
        const auto* page_of = static_cast<const int32_t*>(ids->dl_tensor.data);
        Indices<int64_t> pages({page_of[0], page_of[1], page_of[2]});
        ids->deleter(ids);
        CodeTensor bytes(Code::kInt8, {3, static_cast<int64_t>(info.page_bytes)});
        bytes.dl()->dtype = {kDLUInt, 8, 1};
        ASSERT_EQ(kvc_pages_export(cache.get(), 0, pages.dl(), bytes.dl(), nullptr, nullptr),
                  KVC_OK);

        const int64_t half = kKvHeads * kPageSize * dim;
        for (const bool is_v : {false, true}) {
          QuantisedRows rows(kind, kTokens, kKvHeads, dim);
          kvc_op_opt opt = op_options();
          opt.cpu_isa = isa;
          ASSERT_EQ(kvc_op_quantize(&opt, kind.quant, (is_v ? v : k).dl(), rows.codes.dl(),
                                    rows.scales.dl(), nullptr, nullptr),
                    KVC_OK);
          for (int64_t t = 0; t < kTokens; ++t) {
            for (int64_t h = 0; h < kKvHeads; ++h) {
              const int64_t row = h * kPageSize + t % kPageSize;
              ASSERT_EQ(
                  std::memcmp(rows.codes.at(t, h), bytes.at(t / kPageSize, is_v * half + row * dim),
                              static_cast<size_t>(dim)),
                  0)
                  << (is_v ? "V" : "K") << " of token " << t;
              if (!has_row_scales(kind)) continue;
              const int64_t first = 2 * half + is_v * kKvHeads * kPageSize * 4;
              ASSERT_EQ(std::memcmp(rows.scales.at(t, h), bytes.at(t / kPageSize, first + 4 * row),
                                    sizeof(float)),
                        0)
                  << "scale of " << (is_v ? "V" : "K") << " of token " << t;
            }
          }
        }
      }
    }
  }
}

TEST(OpQuantize, RowsThatAreNotFiniteBecomeWhatAnAppendMakesOfThem) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const kvc_cpu_isa isa : isas()) {
    for (const RowKind& kind : kRowKinds) {
      SCOPED_TRACE(testing::Message() << "isa " << isa << " " << name_of(row_storage(kind)));
      HostTensor x(Elem::kF32, {3, 1, 20}), out(Elem::kF32, {3, 1, 20});
      x.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) { x.set(0.25, t, h, d); });
      x.set(std::nan(""), 1, 0, 3), x.set(inf, 2, 0, 4), x.set(-inf, 2, 0, 19);
      QuantisedRows rows(kind, 3, 1, 20);
      kvc_op_opt opt = op_options();
      opt.cpu_isa = isa;
      uint64_t saturated = 0;
      ASSERT_EQ(kvc_op_quantize(&opt, kind.quant, x.dl(), rows.codes.dl(), rows.scales.dl(),
                                &saturated, nullptr),
                KVC_OK);
      ASSERT_EQ(
          kvc_op_dequantize(&opt, kind.quant, rows.codes.dl(), rows.scales.dl(), out.dl(), nullptr),
          KVC_OK);
      EXPECT_EQ(saturated, has_row_scales(kind) ? 0u : 2u) << "infinities, not NaN";
      for (int64_t d = 0; d < 20; ++d) {
        EXPECT_NEAR(out.get(0, 0, d), 0.25, 0.03);
        if (has_row_scales(kind)) {
          EXPECT_EQ(rows.codes.get(1, 0, d), 0);
          EXPECT_TRUE(std::isnan(out.get(1, 0, d)) && std::isnan(out.get(2, 0, d)));
        }
      }
      if (has_row_scales(kind)) continue;
      const float largest = static_cast<float>(largest_code(kind.code)) * shared_scale(kind.code);
      const double least = kind.code == Code::kInt8 ? -128.0f * shared_scale(kind.code) : -largest;
      EXPECT_EQ(out.get(2, 0, 4), largest);
      EXPECT_EQ(out.get(2, 0, 19), least);
      EXPECT_EQ(std::isnan(out.get(1, 0, 3)), kind.code != Code::kInt8);
      if (kind.code == Code::kInt8) {
        EXPECT_EQ(out.get(1, 0, 3), 0);
      }
    }
  }
}

TEST(OpQuantize, TheHostsThreadsGiveTheSameBitsAndCount) {
  for (const RowKind& kind : {kRowKinds[0], kRowKinds[3]}) {
    ThreadedExecutor threads;
    const kvc_executor hooks = threads.hooks();
    kvc_op_opt spread = op_options();
    spread.executor = &hooks;
    Random random(6);
    HostTensor x(Elem::kF32, {700, 4, 64});
    x.fill_random(random, 2);
    QuantisedRows one(kind, 700, 4, 64), many(kind, 700, 4, 64);
    uint64_t one_count = 0, many_count = 0;
    ASSERT_EQ(kvc_op_quantize(nullptr, kind.quant, x.dl(), one.codes.dl(), one.scales.dl(),
                              &one_count, nullptr),
              KVC_OK);
    ASSERT_EQ(kvc_op_quantize(&spread, kind.quant, x.dl(), many.codes.dl(), many.scales.dl(),
                              &many_count, nullptr),
              KVC_OK);
    EXPECT_GT(threads.tasks, 0);
    EXPECT_TRUE(one.codes.same_bytes(many.codes) && one.scales.same_bytes(many.scales));
    EXPECT_EQ(one_count, many_count);
    EXPECT_EQ(one_count, count_saturated(kind, x));
    const int64_t before = threads.tasks;
    HostTensor alone(Elem::kF32, {700, 4, 64}), together(Elem::kF32, {700, 4, 64});
    ASSERT_EQ(kvc_op_dequantize(nullptr, kind.quant, one.codes.dl(), one.scales.dl(), alone.dl(),
                                nullptr),
              KVC_OK);
    ASSERT_EQ(kvc_op_dequantize(&spread, kind.quant, one.codes.dl(), one.scales.dl(), together.dl(),
                                nullptr),
              KVC_OK);
    EXPECT_GT(threads.tasks, before);
    EXPECT_TRUE(alone.same_bytes(together));
  }
}

// One call that both functions accept, with one thing wrong at a time.
class OpQuantizeRefusals : public testing::Test {
 protected:
  OpQuantizeRefusals() {
    Random random(7);
    x.fill_random(random);
  }
  kvc_status quantize(kvc_quant quant, DLTensor* scales_tensor, kvc_error* err) {
    return kvc_op_quantize(&opt, quant, x.dl(), codes.dl(), scales_tensor, &saturated, err);
  }
  kvc_status dequantize(kvc_quant quant, DLTensor* scales_tensor, kvc_error* err) {
    return kvc_op_dequantize(&opt, quant, codes.dl(), scales_tensor, out.dl(), err);
  }
  void refused(kvc_status status, std::initializer_list<const char*> parts, const Call& fn) {
    expect_error(status, parts, fn);
    EXPECT_TRUE(codes.is_untouched() && out.is_untouched()) << "a refused call wrote";
    EXPECT_EQ(saturated, 77u) << "a refused call counted";
  }
  void both_refuse(kvc_status status, std::initializer_list<const char*> parts, kvc_quant quant,
                   DLTensor* scales_tensor) {
    refused(status, parts, [&](kvc_error* err) { return quantize(quant, scales_tensor, err); });
    refused(status, parts, [&](kvc_error* err) { return dequantize(quant, scales_tensor, err); });
  }

  kvc_op_opt opt = op_options();
  HostTensor x{Elem::kF32, {4, 3, 8}}, out{Elem::kF32, {4, 3, 8}};
  CodeTensor codes{Code::kInt8, {4, 3, 8}};
  HostTensor scales{Elem::kF32, {4, 3}}, shared{Elem::kF32, {1}};
  uint64_t saturated = 77;
};

TEST_F(OpQuantizeRefusals, KindsThatAreNotServed) {
  both_refuse(KVC_E_INVALID_ARGUMENT, {"quant", "NONE (0)", "PER_TENSOR (1)"}, KVC_QUANT_NONE,
              scales.dl());
  both_refuse(KVC_E_UNSUPPORTED, {"quant", "BLOCK16, 3", "PER_TOKEN_HEAD (2)"}, KVC_QUANT_BLOCK16,
              scales.dl());
  both_refuse(KVC_E_UNSUPPORTED, {"quant", "7"}, 7, scales.dl());
  both_refuse(KVC_E_UNSUPPORTED, {"quant", "-1"}, -1, scales.dl());
  codes.dl()->dtype = {kDLInt, 4, 1};
  refused(KVC_E_UNSUPPORTED, {"out is int4", "8 bits", "4"},
          [&](kvc_error* err) { return quantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err); });
  codes.dl()->dtype = {kDLFloat4_e2m1fn, 4, 1};
  refused(KVC_E_UNSUPPORTED, {"x is float4_e2m1fn", "8 bits", "4"},
          [&](kvc_error* err) { return dequantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err); });
}

TEST_F(OpQuantizeRefusals, ScalesThatAreNoDivisors) {
  for (const double bad :
       {0.0, -0.5, std::nan(""), static_cast<double>(std::numeric_limits<float>::infinity())}) {
    shared.set(bad, 0);
    both_refuse(KVC_E_OUT_OF_RANGE, {"scales[0] = ", "finite"}, KVC_QUANT_PER_TENSOR, shared.dl());
  }
  shared.set(-0.5, 0);
  both_refuse(KVC_E_OUT_OF_RANGE, {"scales[0] = -0.5"}, KVC_QUANT_PER_TENSOR, shared.dl());
}

TEST_F(OpQuantizeRefusals, TensorsThatDoNotFit) {
  const auto both = [&](kvc_status status, std::initializer_list<const char*> parts,
                        DLTensor* scales_tensor) {
    both_refuse(status, parts, KVC_QUANT_PER_TOKEN_HEAD, scales_tensor);
  };
  const auto quantizes = [&](kvc_error* err) {
    return quantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  };
  const auto dequantizes = [&](kvc_error* err) {
    return dequantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  };
  both(KVC_E_INVALID_ARGUMENT, {"scales is NULL"}, nullptr);
  HostTensor few(Elem::kF32, {3, 3}), narrow(Elem::kF32, {4, 2}), half(Elem::kF16, {4, 3});
  both(KVC_E_SHAPE, {"scales", "[3, 3]", "4"}, few.dl());
  both(KVC_E_SHAPE, {"scales", "[4, 2]", "3"}, narrow.dl());
  both(KVC_E_DTYPE, {"scales is float16", "float32"}, half.dl());
  both_refuse(KVC_E_SHAPE, {"scales", "[4, 3]"}, KVC_QUANT_PER_TENSOR, scales.dl());
  EXPECT_TRUE(scales.is_untouched());
  refused(KVC_E_INVALID_ARGUMENT, {"x is NULL"}, [&](kvc_error* err) {
    return kvc_op_quantize(&opt, KVC_QUANT_PER_TOKEN_HEAD, nullptr, codes.dl(), scales.dl(),
                           &saturated, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"x is NULL"}, [&](kvc_error* err) {
    return kvc_op_dequantize(&opt, KVC_QUANT_PER_TOKEN_HEAD, nullptr, scales.dl(), out.dl(), err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"out is NULL"}, [&](kvc_error* err) {
    return kvc_op_quantize(&opt, KVC_QUANT_PER_TOKEN_HEAD, x.dl(), nullptr, scales.dl(), &saturated,
                           err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"out is NULL"}, [&](kvc_error* err) {
    return kvc_op_dequantize(&opt, KVC_QUANT_PER_TOKEN_HEAD, codes.dl(), scales.dl(), nullptr, err);
  });
  codes.dl()->dtype = {kDLUInt, 8, 1};
  refused(KVC_E_DTYPE, {"out is uint8", "int8, float8_e4m3fn or float8_e5m2"}, quantizes);
  refused(KVC_E_DTYPE, {"x is uint8", "int8, float8_e4m3fn or float8_e5m2"}, dequantizes);
  codes.dl()->dtype = {kDLInt, 8, 1};
  x.dl()->dtype = out.dl()->dtype = {kDLFloat, 64, 1};
  refused(KVC_E_DTYPE, {"x is float64", "float32"}, quantizes);
  refused(KVC_E_DTYPE, {"out is float64", "float32"}, dequantizes);
  x.dl()->dtype = out.dl()->dtype = {kDLFloat, 32, 1};
  codes.dl()->shape[2] = 7;
  refused(KVC_E_SHAPE, {"out has shape [4, 3, 7]", "8"}, quantizes);
  refused(KVC_E_SHAPE, {"out has shape [4, 3, 8]", "7"}, dequantizes);
  codes.dl()->shape[2] = 8, codes.dl()->shape[0] = 3;
  refused(KVC_E_SHAPE, {"out has shape [3, 3, 8]", "4"}, quantizes);
  codes.dl()->shape[0] = 4, out.dl()->shape[0] = 3;
  refused(KVC_E_SHAPE, {"out has shape [3, 3, 8]", "4"}, dequantizes);
  out.dl()->shape[0] = 4;
  int64_t strides[] = {48, 16, 2};
  codes.dl()->strides = strides;
  refused(KVC_E_SHAPE, {"out has stride 2"}, quantizes);
  refused(KVC_E_SHAPE, {"x has stride 2"}, dequantizes);
  codes.dl()->strides = nullptr;
  codes.dl()->device = {kDLROCM, 0};
  refused(KVC_E_DEVICE_MISMATCH, {"out lives"}, quantizes);
  refused(KVC_E_DEVICE_MISMATCH, {"x lives"}, dequantizes);
  codes.dl()->device = {kDLCPU, 0};
  HostTensor wide(Elem::kF32, {1, 1, 1025});
  CodeTensor wide_codes(Code::kInt8, {1, 1, 1025});
  refused(KVC_E_SHAPE, {"x has shape [1, 1, 1025]", "1024"}, [&](kvc_error* err) {
    return kvc_op_quantize(&opt, KVC_QUANT_PER_TOKEN_HEAD, wide.dl(), wide_codes.dl(), scales.dl(),
                           &saturated, err);
  });
  refused(KVC_E_SHAPE, {"x has shape [1, 1, 1025]", "1024"}, [&](kvc_error* err) {
    return kvc_op_dequantize(&opt, KVC_QUANT_PER_TOKEN_HEAD, wide_codes.dl(), scales.dl(),
                             wide.dl(), err);
  });
}

TEST_F(OpQuantizeRefusals, OutputsThatOverlap) {
  const auto aliased = [](DLTensor* tensor, DLTensor* other) {
    void* const own = tensor->data;
    tensor->data = other->data;
    return own;
  };
  void* own = aliased(codes.dl(), x.dl());
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "x"}, [&](kvc_error* err) {
    return quantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  });
  codes.dl()->data = own;
  own = aliased(scales.dl(), x.dl());
  expect_error(KVC_E_INVALID_ARGUMENT, {"scales", "x"}, [&](kvc_error* err) {
    return quantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  });
  scales.dl()->data = codes.dl()->data;
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "scales"}, [&](kvc_error* err) {
    return quantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  });
  scales.dl()->data = out.dl()->data;
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "scales"}, [&](kvc_error* err) {
    return dequantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  });
  scales.dl()->data = own;
  own = aliased(out.dl(), codes.dl());
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "x"}, [&](kvc_error* err) {
    return dequantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  });
  out.dl()->data = own;
  shared.set(0.5, 0);
  own = aliased(codes.dl(), shared.dl());
  codes.dl()->shape[0] = codes.dl()->shape[1] = 1, codes.dl()->shape[2] = 4;
  x.dl()->shape[0] = x.dl()->shape[1] = 1, x.dl()->shape[2] = 4;
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "scales"},
               [&](kvc_error* err) { return quantize(KVC_QUANT_PER_TENSOR, shared.dl(), err); });
  codes.dl()->data = own;
}

TEST_F(OpQuantizeRefusals, OptionsThatAreNotUsedOrNotServed) {
  const auto quantizes = [&](kvc_error* err) {
    return quantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  };
  const auto dequantizes = [&](kvc_error* err) {
    return dequantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), err);
  };
  const kvc_attn_opt attn = attn_options();
  const kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 8);
  Indices<int32_t> positions({0, 1, 2, 3});
  const auto both = [&](kvc_status status, const char* part) {
    refused(status, {part}, quantizes);
    refused(status, {part}, dequantizes);
    opt = op_options();
  };
  opt.struct_size = 3;
  both(KVC_E_INVALID_ARGUMENT, "struct_size");
  opt.full = 1;
  both(KVC_E_INVALID_ARGUMENT, "opt.full");
  opt.attn = &attn;
  both(KVC_E_INVALID_ARGUMENT, "opt.attn");
  opt.rope = &rope;
  both(KVC_E_INVALID_ARGUMENT, "opt.rope");
  opt.positions = positions.dl();
  both(KVC_E_INVALID_ARGUMENT, "opt.positions");
  opt.cpu_isa = 77;
  both(KVC_E_OUT_OF_RANGE, "opt.cpu_isa = 77");
  EXPECT_EQ(quantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), nullptr), KVC_OK);
  EXPECT_EQ(saturated, 0u);
  EXPECT_EQ(kvc_op_quantize(nullptr, KVC_QUANT_PER_TOKEN_HEAD, x.dl(), codes.dl(), scales.dl(),
                            nullptr, nullptr),
            KVC_OK);
  EXPECT_EQ(dequantize(KVC_QUANT_PER_TOKEN_HEAD, scales.dl(), nullptr), KVC_OK);
}

}  // namespace
}  // namespace kvc::test
