// Calls that fail on a cache of the emulated device: whatever fails, and wherever, leaves the cache
// as it was, or the device is lost and says so.
#include <cuda_runtime_api.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cudasim/cudasim.h"
#include "tests/cuda/cache_support.h"

namespace kvc::test {
namespace {

using CudaErrors = CudaCache;
constexpr DLDevice kDevice{kDLCUDA, 0};

struct Stream {
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { (void)cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return handle; }
  cudaStream_t handle = nullptr;
};

// Also of what nobody has written.
std::vector<uint32_t> bits_of(std::span<const float> values) {
  std::vector<uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// What can be told of a cache from outside.
struct Picture {
  std::vector<uint32_t> rows;  // K and V of all sequences
  std::vector<int64_t> numbers;

  friend bool operator==(const Picture&, const Picture&) = default;
};

Picture picture_of(OneCache& cache, const SmallModel& model, const std::vector<kvc_seq>& seqs) {
  cache.check();
  Picture picture;
  for (const kvc_seq seq : seqs) {
    kvc_seq_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_seq_info_get(cache.cache, seq, &info, nullptr), KVC_OK);
    picture.numbers.insert(picture.numbers.end(),
                           {info.length, info.num_pages, info.num_shared_pages, info.known_tokens,
                            info.last_position, info.is_swapped});
    if (info.is_swapped != 0) continue;
    Tensor k({model.num_layers, info.length, model.kv_heads, model.dim}, kDevice);
    Tensor v({model.num_layers, info.length, model.kv_heads, model.dim}, kDevice);
    kvc_error error = OneCache::blank();
    EXPECT_EQ(
        kvc_debug_get_kv(cache.cache, seq, 0, info.length, k.view(), v.view(), nullptr, &error),
        KVC_OK)
        << error.message;
    for (const Tensor* tensor : {&k, &v}) {
      const std::vector<uint32_t> bits = bits_of(tensor->values);
      picture.rows.insert(picture.rows.end(), bits.begin(), bits.end());
    }
  }
  const kvc_stats stats = cache.stats();
  for (const auto number :
       {stats.pages_available, stats.pages_used, stats.pages_shared, stats.pages_indexed})
    picture.numbers.push_back(static_cast<int64_t>(number));
  return picture;
}

kvc_prefix_query all_of(const std::vector<int32_t>& tokens) {
  kvc_prefix_query query{};
  query.struct_size = sizeof query;
  query.flags = KVC_PREFIX_ALL_TOKENS;
  query.tokens = tokens.data();
  query.num_tokens = static_cast<int64_t>(tokens.size());
  return query;
}

using Call = std::function<kvc_status(kvc_error*)>;

// Lets the first, second, ... of the calls that `fail` names fail until `call` succeeds, which
// nothing but a lack of memory may keep it from.
void fail_each(const std::function<void(uint64_t)>& fail, const Call& call,
               const std::function<void()>& expect_unchanged) {
  for (uint64_t nth = 1; nth < 100; ++nth) {
    SCOPED_TRACE("failure " + std::to_string(nth));
    kvc_error error = OneCache::blank();
    fail(nth);
    const kvc_status status = call(&error);
    cudasim::clear_failures();
    if (status == KVC_OK) {
      EXPECT_GT(nth, 1u) << "nothing was taken, so nothing was tested";
      return;
    }
    ASSERT_EQ(status, KVC_E_NO_MEMORY) << error.message;
    expect_unchanged();
    if (::testing::Test::HasFailure()) return;
  }
  FAIL() << "more than 100 failures of one call";
}

void fail_allocation(uint64_t nth) { cudasim::fail_allocation(nth); }
void fail_event(uint64_t nth) {
  cudasim::fail_call("cudaEventCreateWithFlags", nth, cudaErrorMemoryAllocation);
}

// What changes a cache for good cannot fail for lack of memory: where nothing more can be had,
// `call` waits for the staging memory that the cache keeps. With any one allocation or event
// missing, it gives a subject of its own the same picture as with all of them.
template <typename Subject>
Picture expect_same_without_memory(const std::function<kvc_status(Subject&, kvc_error*)>& call) {
  const auto picture_after = [&](const std::function<void(uint64_t)>& fail, uint64_t nth) {
    Subject subject;
    finish_runtime();
    cudasim::reset_counters();
    kvc_error error = OneCache::blank();
    if (nth != 0) fail(nth);
    EXPECT_EQ(call(subject, &error), KVC_OK) << error.message;
    cudasim::clear_failures();
    const uint64_t taken = cudasim::counters().plain_allocations;
    EXPECT_TRUE(nth != 0 || taken > 0) << "no more was wanted, so nothing is tested";
    return subject.picture();
  };
  // Readers of the staging memory are slow: each part wants more of it.
  cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
  const Picture expected = picture_after(fail_allocation, 0);
  for (const auto& fail : {fail_allocation, fail_event}) {
    for (uint64_t nth = 1; nth <= 6; ++nth) {
      SCOPED_TRACE("failure " + std::to_string(nth));
      EXPECT_EQ(picture_after(fail, nth), expected);
    }
  }
  return expected;
}

// Two sequences that share the pages of 14 tokens, most of them known to the index.
struct Forked {
  Forked() : cache(model, kDevice) {
    EXPECT_EQ(cache.status, KVC_OK) << cache.message;
    EXPECT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
    (void)cache.step({1}, {14}, 20261122);
    const std::vector<int32_t> tokens(14, 5);
    const kvc_prefix_query query = all_of(tokens);
    EXPECT_EQ(kvc_prefix_insert(cache.cache, 1, &query, nullptr, nullptr), KVC_OK);
    EXPECT_EQ(kvc_seq_fork(cache.cache, 1, 2, -1, nullptr), KVC_OK);
  }
  Picture picture() { return picture_of(cache, model, {1, 2}); }

  SmallModel model;
  OneCache cache;
};

// The second sequence alone has changed.
void expect_sibling_unchanged(const Picture& after) {
  const Picture before = Forked().picture();
  EXPECT_NE(after, before);
  const auto half = static_cast<int64_t>(before.rows.size() / 2);
  EXPECT_TRUE(std::equal(before.rows.begin(), before.rows.begin() + half, after.rows.begin()));
}

TEST_F(CudaErrors, SettingSharedTokensNeedsNoMemory) {
  const SmallModel model;
  Tensor k({model.num_layers, 9, model.kv_heads, model.dim}, kGpu);
  Tensor v({model.num_layers, 9, model.kv_heads, model.dim}, kGpu);
  k.fill(1), v.fill(2);
  expect_sibling_unchanged(
      expect_same_without_memory<Forked>([&](Forked& forked, kvc_error* error) {
        return kvc_debug_set_kv(forked.cache.cache, 2, 3, k.view(), v.view(), nullptr, error);
      }));
}

TEST_F(CudaErrors, AShiftNeedsNoMemory) {
  expect_sibling_unchanged(
      expect_same_without_memory<Forked>([&](Forked& forked, kvc_error* error) {
        return kvc_seq_shift(forked.cache.cache, 2, 2, 5, -3, error);
      }));
}

// One sequence whose tokens are known, in a page that is not full: more tokens than are moved at
// once.
struct LongRows {
  static constexpr int64_t kTokens = 2500;

  LongRows() : model(make()), cache(model, kDevice) {
    EXPECT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
    kvc_forward* forward = cache.begin({1}, {kTokens}, nullptr, KVC_FORWARD_PARTIAL);
    EXPECT_NE(forward, nullptr) << cache.message;
    if (forward != nullptr) cache.end(forward);
    const std::vector<int32_t> tokens(kTokens, 3);
    const kvc_prefix_query query = all_of(tokens);
    EXPECT_EQ(kvc_prefix_insert(cache.cache, 1, &query, nullptr, nullptr), KVC_OK);
  }
  static SmallModel make() {
    SmallModel model;
    model.num_layers = 5;
    model.num_pages = 2;
    model.page_size = 4096;
    model.q_heads = model.kv_heads = 1;
    model.dim = 8;
    return model;
  }
  Picture picture() { return picture_of(cache, model, {1}); }

  SmallModel model;
  OneCache cache;
};

TEST_F(CudaErrors, SettingTokensOfManyLayersNeedsNoMemory) {
  Tensor k({5, LongRows::kTokens, 1, 8}, kGpu), v({5, LongRows::kTokens, 1, 8}, kGpu);
  k.fill(1), v.fill(2);
  std::vector<float> written = k.copy();
  written.insert(written.end(), v.values.begin(), v.values.end());
  const Picture after = expect_same_without_memory<LongRows>([&](LongRows& rows, kvc_error* error) {
    return kvc_debug_set_kv(rows.cache.cache, 1, 0, k.view(), v.view(), nullptr, error);
  });
  EXPECT_EQ(after.rows, bits_of(written));
}

// One list of moves that goes to the device in parts: a later part reads what an earlier one must
// not have written yet.
TEST_F(CudaErrors, AShiftOfMoreTokensThanGoAtOnceMovesThemInOrder) {
  LongRows rows;
  Tensor k({5, LongRows::kTokens, 1, 8}, kGpu), v({5, LongRows::kTokens, 1, 8}, kGpu);
  k.fill(1), v.fill(2);
  kvc_cache* cache = rows.cache.cache;
  ASSERT_EQ(kvc_debug_set_kv(cache, 1, 0, k.view(), v.view(), nullptr, nullptr), KVC_OK);
  cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
  ASSERT_EQ(kvc_seq_shift(cache, 1, 2, 5, -3, nullptr), KVC_OK);
  constexpr int64_t kLeft = LongRows::kTokens - 3;
  Tensor moved_k({5, kLeft, 1, 8}, kGpu), moved_v({5, kLeft, 1, 8}, kGpu);
  ASSERT_EQ(kvc_debug_get_kv(cache, 1, 0, kLeft, moved_k.view(), moved_v.view(), nullptr, nullptr),
            KVC_OK);
  for (int64_t layer = 0; layer < 5; ++layer) {
    const float* before = v.values.data() + layer * LongRows::kTokens * 8;
    const float* after = moved_v.values.data() + layer * kLeft * 8;
    EXPECT_TRUE(std::equal(after, after + 2 * 8, before)) << "layer " << layer;
    EXPECT_TRUE(std::equal(after + 2 * 8, after + kLeft * 8, before + 5 * 8)) << "layer " << layer;
  }
}

TEST_F(CudaErrors, AFenceThatCannotBeMadeKeepsTheCopiesFromHappening) {
  SmallModel model;
  model.host_bytes = 1 << 20;
  OneCache cache(model, kGpu);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  (void)cache.step({1}, {14}, 3);
  const Picture before = picture_of(cache, model, {1});
  kvc_fence* fence = nullptr;
  const kvc_seq id = 1;
  fail_each(
      fail_event,
      [&](kvc_error* error) { return kvc_swap_out(cache.cache, 1, &id, nullptr, &fence, error); },
      [&] {
        EXPECT_EQ(fence, nullptr);
        EXPECT_EQ(picture_of(cache, model, {1}), before);
      });
  EXPECT_EQ(kvc_fence_wait(fence, -1, nullptr), KVC_OK);
  kvc_fence_destroy(fence);
  fence = nullptr;
  const Picture swapped = picture_of(cache, model, {1});
  fail_each(
      fail_event,
      [&](kvc_error* error) { return kvc_swap_in(cache.cache, 1, &id, nullptr, &fence, error); },
      [&] {
        EXPECT_EQ(fence, nullptr);
        EXPECT_EQ(picture_of(cache, model, {1}), swapped);
      });
  kvc_fence_destroy(fence);
  fence = nullptr;
  // Of page 0, which the sequence may have, to one that nobody has.
  int64_t pair[] = {0, 60};
  int64_t shape[] = {1, 2};
  const DLTensor pairs{pair, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, nullptr, 0};
  finish_runtime();
  cudasim::reset_counters();
  fail_each(
      fail_event,
      [&](kvc_error* error) { return kvc_pages_copy(cache.cache, &pairs, nullptr, &fence, error); },
      [&] {
        EXPECT_EQ(fence, nullptr);
        EXPECT_EQ(cudasim::counters().copy_calls, 0u);
      });
  kvc_fence_destroy(fence);
}

TEST_F(CudaErrors, AFenceThatCannotBeRecordedIsDone) {
  OneCache cache({}, kGpu);
  int64_t pair[] = {0, 40};
  int64_t shape[] = {1, 2};
  const DLTensor pairs{pair, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, nullptr, 0};
  Stream stream;
  kvc_fence* fence = nullptr;
  kvc_error error = OneCache::blank();
  cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
  // The first ones tell when the page ids are read, and order other streams behind the copy.
  cudasim::fail_call("cudaEventRecord", 3, cudaErrorUnknown);
  EXPECT_EQ(kvc_pages_copy(cache.cache, &pairs, stream.handle, &fence, &error), KVC_OK)
      << error.message;
  cudasim::clear_failures();
  EXPECT_EQ(cudasim::live().queued, 0u);
  int32_t done = 0;
  EXPECT_EQ(kvc_fence_query(fence, &done, nullptr), KVC_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(kvc_fence_wait_on_stream(fence, stream.handle, nullptr), KVC_OK);
  kvc_fence_destroy(fence);
}

TEST_F(CudaErrors, AForwardWaitsForOtherCallsOrTheDeviceIsLost) {
  OneCache cache({}, kGpu);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  (void)cache.step({1}, {5}, 1);
  Stream of_forward, other;
  kvc_forward* forward = cache.begin({1}, {1}, of_forward.handle, 0);
  ASSERT_NE(forward, nullptr) << cache.message;
  int64_t pair[] = {30, 40};
  int64_t shape[] = {1, 2};
  const DLTensor pairs{pair, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, nullptr, 0};
  kvc_error error = OneCache::blank();
  const auto copy = [&] {
    return kvc_pages_copy(cache.cache, &pairs, other.handle, nullptr, &error);
  };
  // The first wait is that of the copy for what the forward has enqueued.
  cudasim::reset_counters();
  cudasim::fail_call("cudaStreamWaitEvent", 2, cudaErrorUnknown);
  EXPECT_EQ(copy(), KVC_OK) << error.message;
  EXPECT_EQ(cudasim::counters().synchronizations, 1u)
      << "the host waits where the forward's stream cannot";
  cudasim::clear_failures();
  cudasim::reset_counters();
  EXPECT_EQ(copy(), KVC_OK) << error.message;
  EXPECT_EQ(cudasim::counters().synchronizations, 0u);
  cudasim::fail_call("cudaStreamWaitEvent", 2, cudaErrorUnknown);
  cudasim::fail_call("cudaStreamSynchronize", 1, cudaErrorUnknown);
  EXPECT_EQ(copy(), KVC_E_DEVICE);
  cudasim::clear_failures();
  EXPECT_NE(std::string(error.message).find("ordering the forward"), std::string::npos)
      << error.message;
  EXPECT_EQ(copy(), KVC_E_DEVICE) << "for good";
  EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
  cache.check();
}

// Sequence 2 would take pages, and copy the last one, which it shares.
TEST_F(CudaErrors, ABeginThatFailsOnTheDeviceTakesNothing) {
  const std::vector<float> expected = Forked().cache.step({2}, {9}, 7);
  int refused = 0;
  for (uint64_t nth = 1; nth <= 60; ++nth) {
    SCOPED_TRACE("failure " + std::to_string(nth));
    reset_runtime();
    Forked forked;
    Stream stream;
    const kvc_stats before = forked.cache.stats();
    cudasim::fail_call("", nth, cudaErrorLaunchOutOfResources);
    kvc_forward* forward = forked.cache.begin({2}, {9}, stream.handle, 0);
    cudasim::clear_failures();
    if (forward != nullptr) {
      EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
    } else {
      ++refused;
    }
    const kvc_stats after = forked.cache.stats();
    EXPECT_EQ(after.pages_used, before.pages_used);
    EXPECT_EQ(after.pages_available, before.pages_available);
    EXPECT_EQ(after.pages_shared, before.pages_shared);
    EXPECT_EQ(bits_of(forked.cache.step({2}, {9}, 7)), bits_of(expected))
        << "its pages are sent again";
    EXPECT_EQ(kvc_seq_remove(forked.cache.cache, 1, nullptr), KVC_OK) << "no forward is open";
    forked.cache.check();
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 2);
}

// A full pool: pages of sequence 2, and blocks that the index alone knows, which a step of sequence
// 2 has to evict.
struct FullPool {
  explicit FullPool(DLDevice device) : cache(make(), device), tokens(16, 7), query(all_of(tokens)) {
    EXPECT_EQ(cache.status, KVC_OK) << cache.message;
    for (const kvc_seq id : {1, 2}) EXPECT_EQ(kvc_seq_add(cache.cache, id, nullptr), KVC_OK);
    (void)cache.step({1}, {16}, 5);
    EXPECT_EQ(kvc_prefix_insert(cache.cache, 1, &query, nullptr, nullptr), KVC_OK);
    EXPECT_EQ(kvc_seq_remove(cache.cache, 1, nullptr), KVC_OK);
    (void)cache.step({2}, {16}, 6);
    expect_untouched();
  }
  static SmallModel make() {
    SmallModel model;
    model.num_pages = 8;
    return model;
  }
  void expect_untouched() {
    int64_t hit = 0;
    EXPECT_EQ(kvc_prefix_match(cache.cache, &query, &hit, nullptr), KVC_OK);
    EXPECT_EQ(hit, 16);
    EXPECT_EQ(cache.stats().pages_indexed, 4);
    EXPECT_EQ(cache.stats().prefix_evicted, 0u);
    EXPECT_EQ(cache.stats().pages_available, 4);
    cache.check();
  }
  OneCache cache;
  std::vector<int32_t> tokens;
  kvc_prefix_query query;
};

TEST_F(CudaErrors, ARefusedReplayEvictsNothing) {
  const int32_t parents[] = {-1, 0};
  FullPool device(kGpu), cpu({kDLCPU, 0});
  EXPECT_EQ(cpu.cache.begin({2}, {1}, nullptr, KVC_FORWARD_REPLAY), nullptr);
  EXPECT_EQ(cpu.cache.status, KVC_E_UNSUPPORTED) << cpu.cache.message;
  cpu.expect_untouched();
  EXPECT_EQ(device.cache.begin({2}, {1}, nullptr, KVC_FORWARD_REPLAY), nullptr);
  EXPECT_EQ(device.cache.status, KVC_E_INVALID_STATE) << device.cache.message;
  device.expect_untouched();
  EXPECT_EQ(device.cache.begin({2}, {2}, nullptr, KVC_FORWARD_REPLAY, parents), nullptr);
  EXPECT_EQ(device.cache.status, KVC_E_UNSUPPORTED) << device.cache.message;
  device.expect_untouched();
  // What is not refused does evict.
  kvc_forward* forward = device.cache.begin({2}, {1}, nullptr, 0);
  ASSERT_NE(forward, nullptr) << device.cache.message;
  EXPECT_EQ(device.cache.stats().pages_indexed, 3);
  EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
}

TEST_F(CudaErrors, AGraphThatDoesNotServeTheStepEvictsNothing) {
  FullPool pool(kGpu);
  Stream stream;
  ASSERT_EQ(kvc_seq_pop(pool.cache.cache, 2, 1, nullptr), KVC_OK);
  (void)pool.cache.step({2}, {1}, 7, stream.handle);
  ASSERT_EQ(kvc_seq_pop(pool.cache.cache, 2, 1, nullptr), KVC_OK);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  const int32_t parents[] = {-1, 0};
  EXPECT_EQ(pool.cache.begin({2}, {2}, stream.handle, 0, parents), nullptr);
  EXPECT_EQ(pool.cache.status, KVC_E_UNSUPPORTED) << pool.cache.message;
  pool.expect_untouched();
  kvc_forward* forward = pool.cache.begin({2}, {1}, stream.handle, KVC_FORWARD_PARTIAL);
  ASSERT_NE(forward, nullptr) << pool.cache.message;
  pool.cache.end(forward);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  finish_runtime();
  // 17 tokens are more than config.max_seq_len and the captured step say.
  EXPECT_EQ(pool.cache.begin({2}, {1}, stream.handle, KVC_FORWARD_REPLAY | KVC_FORWARD_PARTIAL),
            nullptr);
  EXPECT_EQ(pool.cache.status, KVC_E_INVALID_STATE) << pool.cache.message;
  EXPECT_NE(pool.cache.message.find("max_seq_len"), std::string::npos) << pool.cache.message;
  pool.expect_untouched();
  // Nor is a pool that has grown out of its address space where the graph has it.
  ASSERT_EQ(kvc_seq_pop(pool.cache.cache, 2, 2, nullptr), KVC_OK);
  ASSERT_EQ(kvc_cache_resize(pool.cache.cache, 100, nullptr), KVC_OK);
  EXPECT_EQ(pool.cache.begin({2}, {1}, stream.handle, KVC_FORWARD_REPLAY | KVC_FORWARD_PARTIAL),
            nullptr);
  EXPECT_EQ(pool.cache.status, KVC_E_INVALID_STATE) << pool.cache.message;
  EXPECT_NE(pool.cache.message.find("have moved"), std::string::npos) << pool.cache.message;
  (void)pool.cache.step({2}, {1}, 8, stream.handle);
  EXPECT_EQ(pool.cache.status, KVC_OK) << pool.cache.message;
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
}

TEST_F(CudaErrors, AttentionWithoutMemoryWritesNothing) {
  // A decode step beside a prefill: two kernels, which take memory for a plan and partial results
  // each.
  SmallModel model;
  model.num_layers = 1;
  model.storage = {kDLBfloat, 16, 1};
  model.page_size = 16;
  std::vector<float> expected;
  for (uint64_t nth = 0; nth < 100; ++nth) {
    SCOPED_TRACE("failure " + std::to_string(nth));
    OneCache cache(model, kGpu);
    for (const kvc_seq id : {1, 2}) ASSERT_EQ(kvc_seq_add(cache.cache, id, nullptr), KVC_OK);
    kvc_forward* forward = cache.begin({1, 2}, {1, 40}, nullptr, 0);
    ASSERT_NE(forward, nullptr) << cache.message;
    cudasim::reset_counters();
    if (nth != 0) cudasim::fail_allocation(nth);
    cache.run_layers(forward, 9);
    cudasim::clear_failures();
    finish_runtime();
    const bool failed = cache.status != KVC_OK;
    if (failed) {
      EXPECT_EQ(cache.status, KVC_E_NO_MEMORY) << cache.message;
      for (const auto& [kernel, count] : cudasim::counters().launches_by_kernel) {
        for (const char* writes : {"append", "attn_", "reduce_splits"})
          EXPECT_EQ(kernel.find(writes), std::string::npos) << kernel;
      }
      cache.run_layers(forward, 9);
      ASSERT_EQ(cache.status, KVC_OK) << cache.message;
      finish_runtime();
    }
    if (nth == 0) {
      expected = cache.outs[0]->copy();
      for (const char* writes : {"append", "attn_", "reduce_splits"}) {
        bool launched = false;
        for (const auto& [kernel, count] : cudasim::counters().launches_by_kernel)
          launched |= kernel.find(writes) != std::string::npos;
        EXPECT_TRUE(launched) << writes;
      }
    }
    EXPECT_EQ(cache.outs[0]->copy(), expected);
    cache.end(forward);
    if (nth != 0 && !failed) {
      EXPECT_GT(nth, 4u) << "less memory than two plans and partial results take";
      return;
    }
  }
  FAIL() << "more than 100 allocations for one attention";
}

TEST_F(CudaErrors, SettingsOfTheCpuAreRefusedByName) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.num_q_heads = layer.num_kv_heads = 1;
  layer.k_dim = layer.v_dim = 16;
  layer.k_dtype = layer.v_dtype = {kDLFloat, 32, 1};
  kvc_config config{};
  const auto status = [&](std::string* message) {
    kvc_error error = OneCache::blank();
    kvc_plan* plan = nullptr;
    const kvc_status result = kvc_plan_create(&config, &plan, &error);
    kvc_plan_destroy(plan);
    if (message != nullptr) *message = error.message;
    return result;
  };
  kvc_executor executor{};
  executor.struct_size = sizeof executor;
  executor.concurrency = [](void*) { return int32_t{2}; };
  executor.parallel_for = [](void*, int64_t, void (*)(void*, int64_t, int32_t), void*) {};
  struct Setting {
    const char* name;
    std::function<void()> set;
  };
  for (const Setting& setting :
       {Setting{"config.num_threads = 2", [&] { config.num_threads = 2; }},
        Setting{"config.cpu_isa = 2", [&] { config.cpu_isa = KVC_CPU_ISA_SCALAR; }},
        Setting{"config.executor", [&] { config.executor = &executor; }}}) {
    SCOPED_TRACE(setting.name);
    ASSERT_EQ(kvc_config_init(&config, sizeof config), KVC_OK);
    config.num_layers = 1;
    config.layers = &layer;
    config.num_pages = 4;
    setting.set();
    EXPECT_EQ(status(nullptr), KVC_OK) << "the CPU has them";
    config.device = kGpu;
    std::string message;
    EXPECT_EQ(status(&message), KVC_E_UNSUPPORTED);
    EXPECT_NE(message.find(setting.name), std::string::npos) << message;
    config.storage = KVC_STORAGE_NONE;  // bookkeeping computes nowhere, and plans alike for both
    EXPECT_EQ(status(nullptr), KVC_OK);
  }
  ASSERT_EQ(kvc_config_init(&config, sizeof config), KVC_OK);
  config.num_layers = 1;
  config.layers = &layer;
  config.num_pages = 4;
  config.device = kGpu;
  config.num_threads = 1;  // the caller's thread alone: so it is
  EXPECT_EQ(status(nullptr), KVC_OK);
}

}  // namespace
}  // namespace kvc::test
