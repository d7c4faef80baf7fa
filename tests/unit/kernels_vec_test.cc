// The vector layer: accuracy of exp2 and tanh, conversion of every 16-bit code, lane order.
#include "kernels_support.h"
#include "kernels_vec_table.h"

namespace kvc::kernels::test {
namespace {

struct NamedChecks {
  const char* name;
  const VecChecks* checks;
};

std::vector<NamedChecks> available_checks() {
  std::vector<NamedChecks> all{{"scalar", &kScalarChecks}};
#if defined(__x86_64__)
  if (cpu::kernel_table(Isa::kAvx2) != nullptr) all.push_back({"avx2", &kAvx2Checks});
  if (cpu::kernel_table(Isa::kAvx512) != nullptr) all.push_back({"avx512", &kAvx512Checks});
#endif
  return all;
}

double value_of(DType dtype, uint32_t code) {
  return dtype == DType::kF16 ? reference::from_small_float(code, 5, 10)
                              : reference::from_small_float(code, 8, 7);
}
uint32_t code_of(DType dtype, double value) {
  return dtype == DType::kF16 ? reference::to_small_float(value, 5, 10)
                              : reference::to_small_float(value, 8, 7);
}

class Vectors : public testing::TestWithParam<NamedChecks> {
 protected:
  const VecChecks& checks() const { return *GetParam().checks; }
};

INSTANTIATE_TEST_SUITE_P(Isa, Vectors, testing::ValuesIn(available_checks()),
                         [](const auto& info) { return std::string(info.param.name); });

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_P(Vectors, Exp2IsWithinFourUlps) {
  EXPECT_LE(checks().exp2_worst_ulps(std::exp2), 4.0);
  EXPECT_EQ(checks().exp2_at(-kInfinity), 0.0f);
  EXPECT_EQ(checks().exp2_at(-1e30f), 0.0f);
  EXPECT_EQ(checks().exp2_at(0.0f), 1.0f);
  EXPECT_EQ(checks().exp2_at(-3.0f), 0.125f);
  EXPECT_TRUE(std::isnan(checks().exp2_at(NAN)));
}

TEST_P(Vectors, TanhIsWithinFourUlps) {
  EXPECT_LE(checks().tanh_worst_ulps(std::tanh), 4.0);
  EXPECT_EQ(checks().tanh_at(kInfinity), 1.0f);
  EXPECT_EQ(checks().tanh_at(-kInfinity), -1.0f);
  EXPECT_EQ(checks().tanh_at(0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(checks().tanh_at(NAN)));
}

TEST_P(Vectors, EverySixteenBitCodeHasItsValueAndComesBack) {
  std::vector<float> values(65536);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const bool f16 = dtype == DType::kF16;
    ASSERT_EQ((f16 ? checks().convert_f16 : checks().convert_bf16)(values.data()), -1)
        << "first code that differs";
    for (uint32_t code = 0; code < 65536; ++code) {
      const double want = value_of(dtype, code);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(values[code])) << code;
      } else {
        ASSERT_EQ(values[code], want) << code;
        ASSERT_EQ(std::signbit(values[code]), std::signbit(want)) << code;
      }
    }
  }
}

// Between two neighbouring codes: below, at and above the middle.
TEST_P(Vectors, StoresRoundToNearestEven) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> in;
    for (uint32_t code = 0; code < 65535; ++code) {
      const double a = value_of(dtype, code), b = value_of(dtype, code + 1);
      if (!std::isfinite(a)) continue;
      const float middle = static_cast<float>(std::isfinite(b) ? (a + b) / 2 : a);
      in.insert(in.end(),
                {middle, std::nextafter(middle, -kInfinity), std::nextafter(middle, kInfinity)});
    }
    for (float edge : {65504.0f, 65519.0f, 65520.0f, 65536.0f, 1e30f, 3.4e38f, kInfinity,
                       -kInfinity, 1e-40f, -0.0f})
      in.push_back(edge);
    while (in.size() % 16 != 0) in.push_back(0.0f);
    std::vector<uint16_t> out(in.size());
    const bool f16 = dtype == DType::kF16;
    (f16 ? checks().round_f16 : checks().round_bf16)(in.data(), out.data(),
                                                     static_cast<int>(in.size()));
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], code_of(dtype, in[i])) << in[i];
    }
  }
}

constexpr DType kQuantised[] = {DType::kInt8, DType::kE4M3, DType::kE5M2};

TEST_P(Vectors, EveryEightBitCodeHasItsValue) {
  for (int type = 0; type < 3; ++type) {
    SCOPED_TRACE("type " + std::to_string(type));
    float values[256];
    ASSERT_EQ(checks().read_codes[type](values), -1) << "first code whose tail differs";
    for (int code = 0; code < 256; ++code) {
      const double want = reference::from_code(static_cast<uint8_t>(code), kQuantised[type]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(values[code])) << code;
      } else {
        ASSERT_EQ(values[code], want) << code;
        ASSERT_EQ(std::signbit(values[code]), std::signbit(want)) << code;
      }
    }
  }
}

TEST_P(Vectors, EveryE4M3CodeShiftedHasItsFields) {
  float values[256];
  ASSERT_EQ(checks().read_codes[3](values), -1) << "first code that differs";
  for (int code = 0; code < 256; ++code) {
    const bool is_nan = code % 128 == 127;
    const double want = is_nan ? (code < 128 ? 480 : -480)
                               : reference::from_code(static_cast<uint8_t>(code), DType::kE4M3);
    ASSERT_EQ(values[code] * 0x1p120, want) << code;
  }
}

// By a specification of its own: the nearest code of all, of two the one with an even last bit.
TEST_P(Vectors, EightBitCodesRoundToNearestEvenAndSaturate) {
  for (int type = 0; type < 3; ++type) {
    SCOPED_TRACE("type " + std::to_string(type));
    const DType dtype = kQuantised[type];
    std::vector<float> codes;  // Ascending, without -0.
    for (int code = 0; code < 256; ++code) {
      const double value = reference::from_code(static_cast<uint8_t>(code), dtype);
      if (std::isfinite(value)) codes.push_back(static_cast<float>(value));
    }
    std::sort(codes.begin(), codes.end());
    std::vector<float> in;
    for (size_t i = 0; i + 1 < codes.size(); ++i) {
      const float middle = (codes[i] + codes[i + 1]) / 2;
      in.insert(in.end(), {codes[i], middle, std::nextafter(middle, -kInfinity),
                           std::nextafter(middle, kInfinity)});
    }
    for (float edge : {127.49f, 127.5f, 1000.0f, 448.0f, 464.0f, 57344.0f, 61440.0f, 3.4e38f,
                       kInfinity, 1e-40f, 0.0f, 1e-9f})
      in.insert(in.end(), {edge, -edge});
    in.push_back(NAN);
    while (in.size() % 16 != 0) in.push_back(0.0f);
    std::vector<uint8_t> out(in.size());
    checks().round_to_codes[type](in.data(), out.data(), static_cast<int>(in.size()));
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], reference::to_code(in[i], dtype)) << in[i];
      const double have = reference::from_code(out[i], dtype);
      if (std::isnan(in[i])) {
        ASSERT_TRUE(dtype == DType::kInt8 ? out[i] == 0 : std::isnan(have));
        continue;
      }
      const double wanted = std::clamp<double>(in[i], codes.front(), codes.back());
      for (const float other : codes)
        ASSERT_LE(std::fabs(have - wanted), std::fabs(other - wanted)) << in[i];
      const double distance = std::fabs(have - wanted), mirrored = 2 * wanted - have;
      if (distance > 0 && std::find(codes.begin(), codes.end(), mirrored) != codes.end()) {
        ASSERT_EQ(out[i] % 2, 0) << in[i] << " is in the middle";
      }
    }
  }
}

TEST_P(Vectors, NoOperationMixesUpItsLanes) { EXPECT_EQ(checks().wrong_shuffle(), 0); }

TEST(Dispatch, OffersWhatTheMachineHasAndNothingElse) {
  const Isa best = cpu::detect();
  EXPECT_GE(best, Isa::kScalar);
  EXPECT_EQ(cpu::kernel_table(Isa::kAuto), cpu::kernel_table(best));
  for (Isa isa : {Isa::kReference, Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    const KernelTable* table = cpu::kernel_table(isa);
    EXPECT_EQ(table != nullptr, isa <= best);
    if (table != nullptr) {
      EXPECT_EQ(table->isa, isa);
    }
  }
  EXPECT_EQ(cpu::kernel_table(static_cast<Isa>(99)), nullptr);
}

#if defined(__x86_64__)
TEST(Dispatch, AgreesWithTheCompilersView) {
  EXPECT_EQ(cpu::kernel_table(Isa::kAvx2) != nullptr,
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(cpu::kernel_table(Isa::kAvx512) != nullptr,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512cd"));
}
#endif

}  // namespace
}  // namespace kvc::kernels::test
