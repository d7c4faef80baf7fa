// How kernels are started: which may begin before the one before them, and what is asked once per
// context.
#include "kernels/cuda/runtime/launch.cuh"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cudasim/cudasim.h"
#include "kernels/cuda/schedule/bounds.h"
#include "tests/cuda/cache_support.h"

namespace kvc::cuda {
namespace {

using ::kvc::test::CudaCache;
using ::kvc::test::expect_close;
using ::kvc::test::OneCache;
using ::kvc::test::SmallModel;

void add_one(uint32_t* to) {
  wait_for_previous_kernel();
  to[threadIdx.x] += 1;
}
void twice(uint32_t* to) {
  wait_for_previous_kernel();
  launch_dependents();
  to[threadIdx.x] *= 2;
}
void forgets_to_wait(uint32_t* to) { to[threadIdx.x] *= 2; }
void loads_too_early(uint32_t* to) {
  const Words4 words = load_16(to);
  wait_for_previous_kernel();
  to[threadIdx.x] = words.x[0];
}

LaunchShape one_warp(bool may_overlap, uint32_t shared_bytes = 0) {
  LaunchShape shape;
  shape.threads = 32;
  shape.shared_bytes = shared_bytes;
  shape.may_overlap = may_overlap;
  return shape;
}

uint64_t overlapping() {
  uint64_t launches = 0;
  for (const auto& [name, count] : cudasim::counters().overlapping_by_kernel) launches += count;
  return launches;
}

class CudaLaunch : public ::testing::Test {
 protected:
  void SetUp() override {
    cudasim::reset();
    cudasim::set_stream_order(cudasim::StreamOrder::kEager);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    (void)cudaGetLastError();
    cudasim::reset_counters();
  }
  void TearDown() override { cudasim::reset(); }

  static void set_device(int major, int ptx_version) {
    cudasim::DeviceFacts facts;
    facts.major = major;
    facts.ptx_version = ptx_version;
    cudasim::set_device(0, facts);
  }

  alignas(16) uint32_t words_[32] = {};
};
using CudaLaunchDeath = CudaLaunch;

// PTX of compute_80 runs on devices that launch early, but has no instruction that waits.
TEST_F(CudaLaunch, OverlapsOnlyWhereTheCodeThatRunsCanWait) {
  struct Case {
    int major, ptx_version;
    bool overlaps;
  };
  for (const Case& of : {Case{8, 80, false},
                         {9, 80, false},
                         {9, 90, true},
                         {10, 80, false},
                         {10, 90, true},
                         {12, 89, false},
                         {12, 120, true}}) {
    SCOPED_TRACE(::testing::Message() << "device " << of.major << ".0, PTX " << of.ptx_version);
    set_device(of.major, of.ptx_version);
    cudasim::reset_counters();
    ASSERT_EQ(launch(add_one, one_warp(true), nullptr, words_), cudaSuccess);
    EXPECT_EQ(overlapping(), of.overlaps ? 1u : 0u);
    ASSERT_EQ(launch(add_one, one_warp(false), nullptr, words_), cudaSuccess);
    EXPECT_EQ(overlapping(), of.overlaps ? 1u : 0u) << "only launches that ask for it";
    EXPECT_EQ(cudasim::counters().kernel_launches, 2u);
  }
}

TEST_F(CudaLaunch, AsksForAKernelOncePerContext) {
  ASSERT_EQ(launch(add_one, one_warp(true), nullptr, words_), cudaSuccess);
  cudasim::fail_call("cudaFuncGetAttributes", 1, cudaErrorInvalidKernelImage);
  ASSERT_EQ(launch(add_one, one_warp(true), nullptr, words_), cudaSuccess);
  EXPECT_EQ(words_[0], 2u);
  cudasim::renew_context(0);
  EXPECT_EQ(launch(add_one, one_warp(true), nullptr, words_), cudaErrorInvalidKernelImage);
  EXPECT_EQ(words_[0], 2u) << "what could not be asked is not started";
  ASSERT_EQ(launch(add_one, one_warp(true), nullptr, words_), cudaSuccess);
  EXPECT_EQ(words_[0], 3u);
}

// The limit belongs to the kernel in a context: an application's own, or the one after
// cudaDeviceReset(), begins at 48 KiB.
TEST_F(CudaLaunch, AllowsSharedMemoryInEveryContext) {
  for (int context = 0; context < 3; ++context) {
    cudasim::fail_call("cudaFuncSetAttribute", 2, cudaErrorInvalidValue);
    for (const uint32_t bytes : {100000u, 60000u, 100000u}) {
      ASSERT_EQ(allow_shared(add_one, bytes), cudaSuccess) << "asked again in context " << context;
      ASSERT_EQ(launch(add_one, one_warp(true, bytes), nullptr, words_), cudaSuccess);
    }
    cudasim::clear_failures();
    cudasim::renew_context(0);
  }
  EXPECT_EQ(words_[0], 9u);
}

TEST_F(CudaLaunch, KnowsHowMuchSharedMemoryThereIs) {
  EXPECT_TRUE(can_have_shared(232448));
  EXPECT_FALSE(can_have_shared(232449));
  cudasim::DeviceFacts facts;
  facts.shared_bytes = 101376;
  cudasim::set_device(0, facts);
  EXPECT_TRUE(can_have_shared(101376));
  EXPECT_FALSE(can_have_shared(101377));
}

// The emulator's own: a kernel that begins early sees nothing of the one before until it has waited
// for it.
TEST_F(CudaLaunch, KernelsThatBeginEarlyWaitInOrder) {
  uint64_t early = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    cudasim::seed(seed);
    cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
    std::fill_n(words_, 32, 0u);
    ASSERT_EQ(launch(add_one, one_warp(false), nullptr, words_), cudaSuccess);
    ASSERT_EQ(launch(twice, one_warp(true), nullptr, words_), cudaSuccess);
    ASSERT_EQ(launch(add_one, one_warp(true), nullptr, words_), cudaSuccess);
    ASSERT_EQ(launch(twice, one_warp(true), nullptr, words_), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (const uint32_t word : words_) EXPECT_EQ(word, 6u) << "seed " << seed;
    early += cudasim::counters().early_launches;
    cudasim::reset_counters();
  }
  EXPECT_GT(early, 10u);
}

TEST_F(CudaLaunchDeath, AKernelThatMayBeginEarlyMustWaitBeforeItTouchesMemory) {
  EXPECT_DEATH((void)launch(forgets_to_wait, one_warp(true), nullptr, words_), "ends without wait");
  EXPECT_DEATH((void)launch(loads_too_early, one_warp(true), nullptr, words_),
               "load_16 before wait");
}

// ---- Whole caches

SmallModel sixteen_bit_model() {
  SmallModel model;
  model.storage = {kDLBfloat, 16, 1};
  model.page_size = 16;
  return model;
}

using CudaLaunches = CudaCache;

TEST_F(CudaLaunches, AttentionItsPlanAndItsMergeMayAllBeginEarly) {
  OneCache cache(sixteen_bit_model(), kGpu);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  cudasim::reset_counters();
  (void)cache.step({1}, {40}, 1);
  (void)cache.step({1}, {1}, 2);
  const cudasim::Counters counters = cudasim::counters();
  for (const char* name :
       {"append_", "attn_wgmma", "attn_mma", "schedule_kernel", "reduce_splits_kernel"}) {
    uint64_t all = 0, overlapping = 0;
    for (const auto& [kernel, count] : counters.launches_by_kernel)
      all += kernel.find(name) != std::string::npos ? count : 0;
    for (const auto& [kernel, count] : counters.overlapping_by_kernel)
      overlapping += kernel.find(name) != std::string::npos ? count : 0;
    EXPECT_GT(all, 0u) << name;
    EXPECT_EQ(overlapping, all) << name;
  }
}

// A build without code for sm_90a, or a newer device: the kernels come from PTX that does not wait.
TEST_F(CudaLaunches, NothingOverlapsWhereCodeComesFromOlderPtx) {
  cudasim::DeviceFacts facts;
  facts.ptx_version = 80;
  cudasim::set_device(0, facts);
  OneCache cache(sixteen_bit_model(), kGpu);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  cudasim::reset_counters();
  (void)cache.step({1}, {40}, 1);
  (void)cache.step({1}, {1}, 2);
  EXPECT_EQ(cache.status, KVC_OK) << cache.message;
  EXPECT_GT(cudasim::counters().kernel_launches, 8u);
  EXPECT_EQ(overlapping(), 0u);
}

TEST_F(CudaLaunches, ResultsAreThoseOfTheCpuWhereKernelsBeginEarly) {
  uint64_t early = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    cudasim::seed(seed);
    cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
    SmallModel model = sixteen_bit_model();
    model.storage = seed % 2 == 0 ? DLDataType{kDLFloat, 32, 1} : model.storage;
    OneCache device(model, kGpu), cpu(model, {kDLCPU, 0});
    for (const kvc_seq id : {1, 2}) {
      ASSERT_EQ(kvc_seq_add(device.cache, id, nullptr), KVC_OK);
      ASSERT_EQ(kvc_seq_add(cpu.cache, id, nullptr), KVC_OK);
    }
    cudasim::reset_counters();
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{40, 3}, {1, 1}, {1, 30}, {1, 1}}) {
      const std::vector<float> expected = cpu.step({1, 2}, lengths, seed);
      expect_close(device.step({1, 2}, lengths, seed), expected, seed % 2 == 0 ? 2e-5f : 2e-2f);
    }
    early += cudasim::counters().early_launches;
  }
  EXPECT_GT(early, 10u);
}

// ---- Tensor maps

TEST_F(CudaLaunches, AttentionIsDoneByAnotherKernelWhereTheDriverRefusesATensorMap) {
  SmallModel model = sixteen_bit_model();
  model.page_size = 48;  // no other test has such maps, which are kept
  OneCache device(model, kGpu), cpu(model, {kDLCPU, 0});
  ASSERT_EQ(kvc_seq_add(device.cache, 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_add(cpu.cache, 1, nullptr), KVC_OK);
  uint64_t seed = 1;
  for (const bool refuses : {true, false}) {
    for (uint64_t nth = 1; refuses && nth <= 20; ++nth)
      cudasim::fail_call("cuTensorMapEncodeTiled", nth, cudaErrorInvalidValue);
    cudasim::reset_counters();
    const std::vector<float> actual = device.step({1}, {40}, ++seed);
    EXPECT_EQ(device.status, KVC_OK) << device.message;
    uint64_t by_wgmma = 0, by_mma = 0;
    for (const auto& [kernel, count] : cudasim::counters().launches_by_kernel) {
      by_wgmma += kernel.find("attn_wgmma") != std::string::npos ? count : 0;
      by_mma += kernel.find("attn_mma") != std::string::npos ? count : 0;
    }
    EXPECT_EQ(by_wgmma, refuses ? 0u : 2u);
    EXPECT_EQ(by_mma, refuses ? 2u : 0u);
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    cudasim::clear_failures();
    expect_close(actual, cpu.step({1}, {40}, seed), 2e-2f);
  }
}

// ---- No merge where nothing can be cut

TEST(CudaPlanBytes, APlanWithoutSlotsHasNothingToMerge) {
  std::mt19937 random(7);
  int without = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto upto = [&](int32_t most) {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(most + 1));
    };
    ScheduleShape shape{};
    shape.num_kv_heads = 1 + upto(7);
    shape.group_size = 1 + upto(7);
    shape.split_sinks = upto(1);
    shape.fixed_keys = upto(1) * 1024;
    shape.max_rows = upto(1) != 0 ? 16 : INT32_MAX;
    shape.geometry = {upto(1) != 0 ? 16 : 64, 64, 1 + upto(300), 2};
    const ScheduleLimits limits{.max_sequences = 1 + upto(50),
                                .max_rows = 1 + upto(500),
                                .max_keys = 1 + upto(3000),
                                .max_prefixes = upto(3) == 0 ? 2 : 0};
    const ScheduleBytes bytes = schedule_bytes(shape, limits);
    if (bytes.num_splits > 0) continue;
    ++without;
    EXPECT_EQ(bytes.reductions, 0) << "round " << i;
  }
  EXPECT_GT(without, 50);
}

TEST_F(CudaLaunches, ShortSequencesAtFixedCutsAreNotMerged) {
  for (const int64_t longest : {int64_t{1000}, int64_t{3000}}) {
    SmallModel model = sixteen_bit_model();
    model.max_seqs = 2;
    model.max_tokens = 64;
    model.max_seq_len = longest;
    model.num_pages = 256;
    OneCache cache(model, kGpu);
    ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK) << cache.message;
    cudasim::reset_counters();
    kvc_forward* forward = cache.begin({1}, {20}, nullptr, 0);
    ASSERT_NE(forward, nullptr) << cache.message;
    kvc_attn_opt opt{};
    opt.struct_size = sizeof opt;
    opt.flags = KVC_ATTN_BATCH_INVARIANT;
    kvc::test::Tensor q({20, 4, 16}, kGpu), k({20, 2, 16}, kGpu), v({20, 2, 16}, kGpu),
        out({20, 4, 16}, kGpu);
    uint64_t seed = 1;
    for (kvc::test::Tensor* tensor : {&q, &k, &v}) tensor->fill(seed++);
    for (int32_t layer = 0; layer < 2; ++layer) {
      kvc_error error = OneCache::blank();
      ASSERT_EQ(
          kvc_attn(forward, layer, &opt, q.view(), k.view(), v.view(), out.view(), nullptr, &error),
          KVC_OK)
          << error.message;
    }
    cache.end(forward);
    kvc::test::finish_runtime();
    uint64_t merges = 0;
    for (const auto& [kernel, count] : cudasim::counters().launches_by_kernel)
      merges += kernel.find("reduce_splits_kernel") != std::string::npos ? count : 0;
    EXPECT_EQ(merges, longest > 1024 ? 2u : 0u) << "longest sequence " << longest;
  }
}

}  // namespace
}  // namespace kvc::cuda
