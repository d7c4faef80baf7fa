// Devices whose CTAs can have 99 KiB of shared memory (sm_86, sm_89, sm_120): what does not fit is
// done by another kernel, and right.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cudasim/cudasim.h"
#include "kernels/reference/elements.h"
#include "tests/cuda/attn_mma_run.h"
#include "tests/cuda/cache_support.h"

namespace kvc::cuda {
namespace {

using ::kvc::test::CudaCache;
using ::kvc::test::expect_close;
using ::kvc::test::OneCache;
using ::kvc::test::SmallModel;

constexpr int32_t kSmallShared = 101376;

// What is known of a device is kept: no other test uses these numbers for others.
constexpr int kSmallDevice = 5, kLargeDevice = 4;

void add_devices() {
  cudasim::set_num_devices(8);
  cudasim::DeviceFacts facts;
  facts.major = 8;
  facts.minor = 9;
  facts.num_sms = 4;
  facts.shared_bytes = kSmallShared;
  cudasim::set_device(kSmallDevice, facts);
  facts.minor = 0;
  facts.shared_bytes = 163 * 1024;
  cudasim::set_device(kLargeDevice, facts);
}

uint64_t launches_of(const char* name) {
  uint64_t launches = 0;
  for (const auto& [kernel, count] : cudasim::counters().launches_by_kernel)
    if (kernel.find(name) != std::string::npos) launches += count;
  return launches;
}

// ---- attn_mma

class SmallDeviceAttnMma : public ::testing::Test {
 protected:
  void SetUp() override {
    cudasim::reset();
    add_devices();
    ASSERT_EQ(cudaSetDevice(kSmallDevice), cudaSuccess);
    (void)cudaGetLastError();
  }
  void TearDown() override {
    cudasim::reset();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
};

struct Dims {
  int32_t k, v;
};

TEST_F(SmallDeviceAttnMma, WhatFitsRunsAndIsTheReference) {
  struct Case {
    Dims dims;
    Element stored;
    int32_t tile_rows;
    bool fits;
  };
  const Case cases[] = {
      {{64, 64}, Element::kBF16, 16, true},    {{64, 64}, Element::kF16, 64, true},
      {{128, 128}, Element::kBF16, 16, true},  {{128, 128}, Element::kF16, 16, true},
      {{128, 128}, Element::kBF16, 64, true},  {{192, 128}, Element::kBF16, 16, true},
      {{192, 128}, Element::kBF16, 64, false}, {{256, 256}, Element::kF16, 16, false},
      {{256, 256}, Element::kBF16, 64, false}, {{64, 64}, Element::kInt8, 16, true},
      {{128, 128}, Element::kInt8, 16, true},  {{128, 128}, Element::kE4M3, 16, true},
      {{128, 128}, Element::kE5M2, 16, true},  {{128, 128}, Element::kInt8, 64, true},
      {{256, 256}, Element::kInt8, 16, false}, {{256, 256}, Element::kE4M3, 64, false},
  };
  uint64_t seed = 7000;
  for (const Case& of : cases) {
    test::AttnProblemShape shape;
    shape.k_dim = of.dims.k, shape.v_dim = of.dims.v, shape.stored = of.stored;
    shape.scales_per_row = seed % 2 == 0;
    shape.rows = {2, 1}, shape.keys = {300, 47};
    test::DeviceAttnProblem problem(++seed, shape);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", tile of " + std::to_string(of.tile_rows) +
                 ": " + problem.describe());
    AttnLaunch launch = problem.device_launch();
    launch.schedule.tile_rows = of.tile_rows;
    const auto fits = [&](int32_t shared_bytes) {
      const char* why = nullptr;
      const bool it_does =
          of.tile_rows == 16
              ? attn_mma16_fits(launch, {.arch = 89, .shared_bytes = shared_bytes}, &why)
              : attn_mma64_fits(launch, {.arch = 89, .shared_bytes = shared_bytes}, &why);
      EXPECT_EQ(it_does, why == nullptr);
      return it_does;
    };
    EXPECT_EQ(fits(kSmallShared), of.fits);
    EXPECT_TRUE(fits(163 * 1024));
    EXPECT_FALSE(fits(32 * 1024));
    if (!of.fits) continue;
    const test::AttnResult actual = run_mma(problem, test::plan_for(problem, of.tile_rows, 3));
    std::vector<float> out, lse;
    problem.reference(&out, &lse);
    const test::AttnErrors errors = test::errors_of(actual, out, lse, shape.v_dim);
    EXPECT_LT(errors.out, 1e-2);
    EXPECT_LT(errors.lse, 2e-2);
  }
}

// ---- Whole caches

class SmallDeviceCache : public CudaCache {
 protected:
  void SetUp() override {
    CudaCache::SetUp();
    add_devices();
  }
};

TEST_F(SmallDeviceCache, AttentionIsDoneByTheNextKernelWhereTheFirstDoesNotFit) {
  struct Case {
    int32_t dim;
    const char *decode, *prompt;
  };
  for (const Case& of : {Case{64, "attn_mma", "attn_mma"},
                         {128, "attn_mma", "attn_mma"},
                         {256, "attn_simt", "attn_simt"}}) {
    SCOPED_TRACE(::testing::Message() << "dims of " << of.dim);
    SmallModel model;
    model.storage = {kDLBfloat, 16, 1};
    model.dim = of.dim;
    model.page_size = 16;
    model.num_pages = 8;
    OneCache device(model, {kDLCUDA, kSmallDevice}), cpu(model, {kDLCPU, 0});
    ASSERT_EQ(kvc_seq_add(device.cache, 1, nullptr), KVC_OK) << device.message;
    ASSERT_EQ(kvc_seq_add(cpu.cache, 1, nullptr), KVC_OK);
    uint64_t seed = 40;
    for (const int64_t tokens : {40, 1, 1}) {
      cudasim::reset_counters();
      const std::vector<float> actual = device.step({1}, {tokens}, ++seed);
      EXPECT_EQ(device.status, KVC_OK) << device.message;
      EXPECT_EQ(launches_of(tokens > 1 ? of.prompt : of.decode), 2u) << tokens << " tokens";
      expect_close(actual, cpu.step({1}, {tokens}, seed), 2e-2f);
    }
  }
}

// ---- The recurrence

// One long sequence, bf16 q and k of unit length: outputs, then the state.
std::vector<float> run_linear(int32_t device, int32_t k_dim, uint64_t seed) {
  constexpr int32_t kRows = 70, kHeads = 2, kVDim = 32;
  const BackendTable& table = *kvc_cuda_backend();
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto bf16_rows = [&] {
    std::vector<std::byte> rows(size_t{2} * kRows * kHeads * static_cast<size_t>(k_dim));
    for (int64_t i = 0; i < int64_t{kRows} * kHeads * k_dim; ++i)
      kernels::reference::write_element(rows.data(), kernels::DType::kBF16, i,
                                        normal(random) / std::sqrt(k_dim));
    return rows;
  };
  std::vector<std::byte> q = bf16_rows(), k = bf16_rows();
  std::vector<float> v(size_t{kRows} * kHeads * kVDim), out(v.size(), std::nanf(""));
  for (float& value : v) value = static_cast<float>(normal(random));
  std::vector<float> decay(size_t{kRows} * kHeads, -0.1f);
  std::vector<float> state(size_t{kHeads} * static_cast<size_t>(k_dim) * kVDim, std::nanf(""));
  kernels::LinearSequence sequence{};
  sequence.num_rows = kRows;
  sequence.state_out = reinterpret_cast<std::byte*>(state.data());
  const int32_t count = 1;

  kernels::LinearParams params{};
  params.q = {q.data(), 2 * kHeads * k_dim, 2 * k_dim, kernels::DType::kBF16};
  params.k = {k.data(), 2 * kHeads * k_dim, 2 * k_dim, kernels::DType::kBF16};
  params.v = {reinterpret_cast<std::byte*>(v.data()), 4 * kHeads * kVDim, 4 * kVDim,
              kernels::DType::kF32};
  params.out = {reinterpret_cast<std::byte*>(out.data()), 4 * kHeads * kVDim, 4 * kVDim,
                kernels::DType::kF32};
  params.decay = decay.data();
  params.decay_token_stride = kHeads;
  params.decay_head_stride = 1;
  params.delta = 1;
  params.scale = 1;
  params.num_heads = params.num_k_heads = kHeads;
  params.k_dim = k_dim;
  params.v_dim = kVDim;
  params.state_dtype = kernels::DType::kF32;
  params.state_row_stride = 4 * kVDim;
  params.state_head_stride = int64_t{4} * k_dim * kVDim;
  params.sequences = &sequence;
  Failure failure{};
  EXPECT_EQ(table.linear(device, params, 1, &count, kRows, nullptr, &failure), Result::kOk)
      << failure.text;
  cudasim::finish_all();
  out.insert(out.end(), state.begin(), state.end());
  return out;
}

TEST(SmallDeviceLinear, LongSequencesGoTokenByTokenWhereAChunkDoesNotFit) {
  cudasim::reset();
  add_devices();
  uint64_t seed = 11;
  for (const int32_t k_dim : {64, 112, 113, 128}) {
    SCOPED_TRACE(::testing::Message() << "k_dim " << k_dim);
    cudasim::reset_counters();
    const std::vector<float> expected = run_linear(kLargeDevice, k_dim, ++seed);
    EXPECT_EQ(launches_of("linear_chunk_kernel"), 1u);
    cudasim::reset_counters();
    const std::vector<float> actual = run_linear(kSmallDevice, k_dim, seed);
    EXPECT_EQ(launches_of("linear_chunk_kernel"), k_dim <= 112 ? 1u : 0u);
    // Chunks multiply rounded factors, tokens do not.
    expect_close(actual, expected, 2e-2f);
  }
  cudasim::reset();
}

}  // namespace
}  // namespace kvc::cuda
