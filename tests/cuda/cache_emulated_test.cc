// A whole cache on the emulated device: what it sends, when it waits, and devices that are missing,
// short of memory or broken.
#include <cuda_runtime_api.h>

#include "cudasim/cudasim.h"
#include "tests/cuda/cache_support.h"

namespace kvc::test {
namespace {

TEST_F(CudaCache, SendsOneMessageOfAtMost32BytesPerSequenceAndNeverWaits) {
  for (const int64_t num_seqs : {1, 4, 33}) {
    SmallModel model;
    model.num_pages = 8 * num_seqs;
    model.page_size = 16;
    OneCache cache(model, kGpu);
    ASSERT_EQ(cache.status, KVC_OK) << cache.message;
    std::vector<kvc_seq> seqs;
    std::vector<int64_t> prompts, ones;
    for (kvc_seq id = 0; id < num_seqs; ++id) {
      ASSERT_EQ(kvc_seq_add(cache.cache, id, nullptr), KVC_OK);
      seqs.push_back(id), prompts.push_back(3), ones.push_back(1);
    }
    (void)cache.step(seqs, prompts, 1);
    (void)cache.step(seqs, ones, 2);
    for (int i = 0; i < 8; ++i) {
      cudasim::reset_counters();
      kvc_forward* forward = cache.begin(seqs, ones, nullptr, 0);
      ASSERT_NE(forward, nullptr) << cache.message;
      cache.run_layers(forward, 3);
      cache.end(forward);
      const cudasim::Counters counters = cudasim::counters();
      EXPECT_EQ(counters.synchronizations, 0u);
      EXPECT_EQ(counters.copy_calls, 0u) << "the step kernel reads the one message itself";
      EXPECT_EQ(counters.host_to_device_bytes, 0u);
      EXPECT_LE(cache.stats().step_bytes, 32u * static_cast<uint64_t>(num_seqs));
      EXPECT_EQ(cache.stats().step_copies, 1u);
    }
  }
}

TEST_F(CudaCache, ComputesSixteenBitStorageWithMatrixInstructions) {
  SmallModel model;
  model.storage = {kDLBfloat, 16, 1};
  model.page_size = 16;
  OneCache cache(model, kGpu);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  const auto used = [&](const char* name, int64_t tokens) {
    cudasim::reset_counters();
    (void)cache.step({1}, {tokens}, 1);
    uint64_t launches = 0;
    std::string others;
    for (const auto& [kernel, count] : cudasim::counters().launches_by_kernel) {
      if (kernel.find(name) != std::string::npos) launches += count;
      others += kernel + " ";
    }
    EXPECT_EQ(launches, 2u) << name << " for " << tokens
                            << " tokens, one per layer; launched: " << others;
  };
  used("attn_wgmma", 40);
  used("attn_mma", 1);
}

TEST_F(CudaCache, SaysWhyThereIsNoDevice) {
  cudasim::set_has_driver(false);
  OneCache without_driver({}, kGpu);
  EXPECT_EQ(without_driver.status, KVC_E_UNSUPPORTED);
  EXPECT_NE(without_driver.message.find("driver"), std::string::npos) << without_driver.message;
  cudasim::set_has_driver(true);
  OneCache no_such_device({}, {kDLCUDA, 7});
  EXPECT_EQ(no_such_device.status, KVC_E_OUT_OF_RANGE) << no_such_device.message;
  std::string why;
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  ASSERT_EQ(kvc_device_query(kGpu, &caps, nullptr), KVC_OK);
  EXPECT_EQ(caps.backend_present, 1);
  EXPECT_GT(caps.memory_bytes, 0u);
}

TEST_F(CudaCache, GivesBackWhatItTookWhenMemoryRunsOut) {
  for (uint64_t nth = 1; nth < 200; nth += 1 + nth / 8) {
    const cudasim::Live before = cudasim::live();
    cudasim::fail_allocation(nth);
    bool failed = false;
    {
      OneCache cache({}, kGpu);
      failed = cache.status != KVC_OK;
      if (failed) {
        EXPECT_EQ(cache.status, KVC_E_NO_MEMORY) << cache.message;
      } else {
        ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
        (void)cache.step({1}, {9}, 7);
        if (cache.status != KVC_OK) {
          failed = true;
          EXPECT_EQ(cache.status, KVC_E_NO_MEMORY) << cache.message;
        }
        cudasim::clear_failures();
        cache.check();
      }
    }
    cudasim::clear_failures();
    const cudasim::Live after = cudasim::live();
    EXPECT_EQ(after.device_allocations, before.device_allocations) << "failure " << nth;
    EXPECT_EQ(after.pinned_allocations, before.pinned_allocations) << "failure " << nth;
    EXPECT_EQ(after.reservations, before.reservations) << "failure " << nth;
    if (!failed) return;
  }
  FAIL() << "more than 200 allocations for a small cache";
}

TEST_F(CudaCache, GrowsItsScratchInAForwardWithoutWaiting) {
  size_t free_before = 0, free_after = 0, all = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &all), cudaSuccess);
  {
    SmallModel model;
    model.max_seqs = 1, model.max_seq_len = 256;  // page tables do not move; rows are left open
    model.num_pages = 70;
    CachePair pair(model, kGpu);
    cudaStream_t streams[2];
    for (cudaStream_t& stream : streams)
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    pair.both([](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, 1, error); });
    uint64_t seed = seed_of_run();
    pair.step({1}, {1}, ++seed);
    int64_t grown = 0;
    for (const int64_t length : {20, 70, 150}) {
      cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
      cudasim::reset_counters();
      const uint64_t pool_before = cudasim::live().device_bytes;
      pair.step({1}, {length}, ++seed, streams[length % 4 / 2]);
      EXPECT_EQ(cudasim::counters().synchronizations, 0u) << length << " tokens";
      grown += cudasim::live().device_bytes > pool_before ? 1 : 0;
      cudasim::set_stream_order(cudasim::StreamOrder::kEager);
    }
    EXPECT_GE(grown, 2) << "scratch has grown";
    for (cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
  }
  ASSERT_EQ(cudaMemGetInfo(&free_after, &all), cudaSuccess);
  EXPECT_EQ(free_after, free_before) << "a cache that goes leaves nothing in the pool";
}

// Before and after the failure the same memory serves: what could not grow is as it was.
TEST_F(CudaCache, AForwardWhoseScratchCannotGrowGivesTheResultsOfTheNextTry) {
  SmallModel model;
  model.max_seqs = 1, model.max_seq_len = 256, model.num_pages = 70;
  model.num_layers = 1;
  for (uint64_t nth = 1;; ++nth) {
    CachePair pair(model, kGpu);
    pair.both([](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, 1, error); });
    pair.step({1}, {3}, 5);
    cudasim::fail_call("cudaMallocFromPoolAsync", nth, cudaErrorMemoryAllocation);
    cudasim::fail_call("cudaMallocFromPoolAsync", nth, cudaErrorMemoryAllocation);
    kvc_forward* forward = pair.device.begin({1}, {100}, nullptr, 0);
    bool has_failed = forward == nullptr;
    if (has_failed) {
      EXPECT_EQ(pair.device.status, KVC_E_NO_MEMORY) << pair.device.message;
    } else {
      pair.device.run_layers(forward, 6);
      has_failed = pair.device.status != KVC_OK;
      EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
    }
    cudasim::clear_failures();
    pair.step({1}, {100}, 7);
    pair.step({1}, {2}, 8);
    pair.device.check();
    if (HasFailure()) FAIL() << "allocation " << nth;
    if (!has_failed) {
      EXPECT_GT(nth, 2u) << "scratch has grown";
      return;
    }
  }
}

TEST_F(CudaCache, ReportsADeviceThatFailsAndKeepsItsBooks) {
  OneCache cache({}, kGpu);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  (void)cache.step({1}, {5}, 1);
  ASSERT_EQ(cache.status, KVC_OK) << cache.message;
  cudasim::set_sticky_error(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cache.begin({1}, {1}, nullptr, 0), nullptr);
  EXPECT_EQ(cache.status, KVC_E_DEVICE) << cache.message;
  int64_t length = 0;
  EXPECT_EQ(kvc_seq_length(cache.cache, 1, &length, nullptr), KVC_OK);
  EXPECT_EQ(length, 5);
  cache.check();
  int64_t pair[] = {0, 40};
  int64_t shape[] = {1, 2};
  const DLTensor pairs{pair, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, nullptr, 0};
  for (int i = 0; i < 2; ++i) {
    kvc_error error = OneCache::blank();
    EXPECT_EQ(kvc_pages_copy(cache.cache, &pairs, nullptr, nullptr, &error), KVC_E_DEVICE)
        << "call " << i;
    EXPECT_NE(std::string(error.message).find("copying pages"), std::string::npos) << error.message;
  }
  EXPECT_EQ(kvc_seq_shift(cache.cache, 1, 1, 2, -1, nullptr), KVC_E_DEVICE);
  cache.check();
  EXPECT_EQ(kvc_seq_remove(cache.cache, 1, nullptr), KVC_OK);
  EXPECT_EQ(cache.stats().pages_used, 0);
  cudasim::set_sticky_error(0, cudaSuccess);  // so that what the cache holds can be given back
}

}  // namespace
}  // namespace kvc::test
