// The emulator's CUDA runtime: streams that run late, capture and replay, memory, failures.
#include <cuda.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "cudasim/cudasim.h"
#include "kernels/cuda/runtime/launch.cuh"

namespace {

using namespace kvc::cuda;
using cudasim::StreamOrder;

void set_words(uint32_t* to, uint32_t value) { to[threadIdx.x] = value; }
void add_words(uint32_t* to, uint32_t value) { to[threadIdx.x] += value; }
void copy_words(uint32_t* to, const uint32_t* from) { to[threadIdx.x] = from[threadIdx.x]; }
void read_host(uint32_t* to, const uint32_t* pinned) {
  to[threadIdx.x] = load_host_word(pinned + threadIdx.x);
}

const LaunchShape kOneWarp = [] {
  LaunchShape shape;
  shape.threads = 32;
  return shape;
}();

class EmulatedRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    cudasim::reset();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    (void)cudaGetLastError();
    for (cudaStream_t& stream : streams_)
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device_), 128), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned_), 128, cudaHostAllocDefault),
              cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
  }
  void TearDown() override {
    cudasim::reset();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    for (const cudaStream_t stream : streams_) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    const cudasim::Live live = cudasim::live();
    EXPECT_EQ(live.device_allocations + live.pinned_allocations + live.streams + live.events +
                  live.graphs + live.executables + live.reservations + live.mappings +
                  live.memory_handles,
              0u);
  }
  uint32_t device_word() const { return *device_; }

  cudaStream_t streams_[2];
  uint32_t* device_;
  uint32_t* pinned_;
  cudaEvent_t event_;
};

TEST_F(EmulatedRuntime, EagerWorkIsDoneWhenTheCallReturns) {
  EXPECT_EQ(device_word(), 0xffffffffu);
  ASSERT_EQ(launch(set_words, kOneWarp, streams_[0], device_, 7u), cudaSuccess);
  EXPECT_EQ(device_word(), 7u);
}

TEST_F(EmulatedRuntime, LazyWorkWaitsForASynchronisation) {
  int late = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    cudasim::seed(seed);
    cudasim::set_stream_order(StreamOrder::kLazy);
    *device_ = 0;
    ASSERT_EQ(launch(set_words, kOneWarp, streams_[0], device_, 7u), cudaSuccess);
    late += device_word() == 0 ? 1 : 0;
    ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
    EXPECT_EQ(device_word(), 7u);
  }
  EXPECT_EQ(late, 20);
}

TEST_F(EmulatedRuntime, LazyStreamsInterleaveUnlessEventsOrderThem) {
  int out_of_order = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const bool with_event : {false, true}) {
      cudasim::seed(seed);
      cudasim::set_stream_order(StreamOrder::kLazy);
      ASSERT_EQ(cudaMemsetAsync(device_, 0, 128, streams_[0]), cudaSuccess);
      ASSERT_EQ(launch(set_words, kOneWarp, streams_[0], device_, 1u), cudaSuccess);
      if (with_event) {
        ASSERT_EQ(cudaEventRecord(event_, streams_[0]), cudaSuccess);
        ASSERT_EQ(cudaStreamWaitEvent(streams_[1], event_, 0), cudaSuccess);
      }
      ASSERT_EQ(launch(add_words, kOneWarp, streams_[1], device_, 1u), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      if (with_event)
        EXPECT_EQ(device_word(), 2u) << "seed " << seed;
      else
        out_of_order += device_word() != 2 ? 1 : 0;
    }
  }
  EXPECT_GT(out_of_order, 10);
}

TEST_F(EmulatedRuntime, StagingMemoryThatIsReusedTooEarlyShows) {
  cudasim::set_stream_order(StreamOrder::kLazy);
  *pinned_ = 1;
  ASSERT_EQ(cudaMemcpyAsync(device_, pinned_, 4, cudaMemcpyDefault, streams_[0]), cudaSuccess);
  *pinned_ = 2;
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_EQ(device_word(), 2u);
  // Pageable memory is read before the call returns.
  uint32_t pageable = 1;
  ASSERT_EQ(cudaMemcpyAsync(device_, &pageable, 4, cudaMemcpyDefault, streams_[0]), cudaSuccess);
  pageable = 2;
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_EQ(device_word(), 1u);
}

TEST_F(EmulatedRuntime, EventsBecomeReadyWhenTheirStreamGetsThere) {
  cudasim::set_stream_order(StreamOrder::kLazy);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);  // never recorded
  ASSERT_EQ(launch(set_words, kOneWarp, streams_[0], device_, 3u), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, streams_[0]), cudaSuccess);
  int queries = 0;
  while (cudaEventQuery(event_) == cudaErrorNotReady) ASSERT_LT(++queries, 1000);
  EXPECT_EQ(device_word(), 3u);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
}

TEST_F(EmulatedRuntime, TheLegacyStreamOrdersBlockingStreams) {
  cudaStream_t blocking;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    cudasim::seed(seed);
    cudasim::set_stream_order(StreamOrder::kLazy);
    ASSERT_EQ(launch(set_words, kOneWarp, blocking, device_, 1u), cudaSuccess);
    ASSERT_EQ(launch(add_words, kOneWarp, nullptr, device_, 1u), cudaSuccess);
    ASSERT_EQ(launch(add_words, kOneWarp, blocking, device_, 10u), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
    EXPECT_EQ(device_word(), 12u);
  }
  ASSERT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(EmulatedRuntime, GraphsReplayWhatWasCapturedWithItsParameters) {
  uint32_t value = 5;
  *device_ = 0;
  ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeGlobal), cudaSuccess);
  cudaStreamCaptureStatus status{};
  ASSERT_EQ(cudaStreamIsCapturing(streams_[0], &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  ASSERT_EQ(launch(add_words, kOneWarp, streams_[0], device_, value), cudaSuccess);
  value = 100;
  // A fork into the other stream and back.
  ASSERT_EQ(cudaEventRecord(event_, streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  ASSERT_EQ(cudaStreamWaitEvent(streams_[1], event_, 0), cudaSuccess);
  ASSERT_EQ(
      launch(read_host, kOneWarp, streams_[1], device_, static_cast<const uint32_t*>(pinned_)),
      cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, streams_[1]), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(streams_[0], event_, 0), cudaSuccess);
  ASSERT_EQ(launch(add_words, kOneWarp, streams_[0], device_, 1u), cudaSuccess);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  EXPECT_EQ(device_word(), 0u);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  cudasim::reset_counters();
  for (uint32_t round = 0; round < 3; ++round) {
    *pinned_ = 40 + round;  // read by the kernel at replay
    ASSERT_EQ(cudaGraphLaunch(executable, streams_[0]), cudaSuccess);
    EXPECT_EQ(device_word(), 41 + round);
  }
  EXPECT_EQ(cudasim::counters().kernel_launches, 9u);
  EXPECT_EQ(cudasim::counters().host_bytes_by_kernels, 3u * 128);
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, streams_[0]), cudaSuccess);
}

TEST_F(EmulatedRuntime, CaptureForbidsWhatCudaForbids) {
  cudaGraph_t graph;
  void* memory = nullptr;
  const auto begin = [&](cudaStreamCaptureMode mode) {
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], mode), cudaSuccess);
  };

  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaErrorStreamCaptureInvalidated);

  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(launch(set_words, kOneWarp, streams_[0], device_, 1u),
            cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaErrorStreamCaptureInvalidated);

  begin(cudaStreamCaptureModeRelaxed);
  ASSERT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);

  // A thread may relax its own mode.
  begin(cudaStreamCaptureModeThreadLocal);
  std::thread([&] { EXPECT_EQ(cudaStreamQuery(streams_[1]), cudaSuccess); }).join();
  ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);

  // Work outside of the capture, and a fork that does not come back.
  ASSERT_EQ(cudaEventRecord(event_, streams_[1]), cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaStreamWaitEvent(streams_[0], event_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeGlobal);
  ASSERT_EQ(cudaEventRecord(event_, streams_[0]), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(streams_[1], event_, 0), cudaSuccess);
  ASSERT_EQ(launch(set_words, kOneWarp, streams_[1], device_, 1u), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaErrorStreamCaptureUnjoined);

  // The legacy stream waits for blocking streams, so it must not be used while one captures.
  cudaStream_t blocking;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(launch(set_words, kOneWarp, nullptr, device_, 1u), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  ASSERT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
            cudaErrorStreamCaptureUnsupported);
}

TEST_F(EmulatedRuntime, CountsCopiesAndSynchronisations) {
  cudasim::reset_counters();
  ASSERT_EQ(cudaMemcpyAsync(device_, pinned_, 64, cudaMemcpyHostToDevice, streams_[0]),
            cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned_, device_, 32, cudaMemcpyDeviceToHost, streams_[0]),
            cudaSuccess);
  EXPECT_EQ(cudasim::counters().synchronizations, 0u);
  uint32_t pageable;
  ASSERT_EQ(cudaMemcpyAsync(&pageable, device_, 4, cudaMemcpyDefault, streams_[0]), cudaSuccess);
  EXPECT_EQ(cudasim::counters().synchronizations, 1u);
  void* to[2] = {device_, device_ + 4};
  const void* from[2] = {device_ + 8, pinned_};
  const size_t bytes[2] = {16, 8};
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t index = 0;
  ASSERT_EQ(cudaMemcpyBatchAsync(to, from, bytes, 2, &attributes, &index, 1, streams_[0]),
            cudaSuccess);
  EXPECT_EQ(cudaMemcpyBatchAsync(to, from, bytes, 2, &attributes, &index, 1, nullptr),
            cudaErrorInvalidValue);
  const cudasim::Counters counters = cudasim::counters();
  EXPECT_EQ(counters.copy_calls, 4u);
  EXPECT_EQ(counters.copied_pieces, 2u);
  EXPECT_EQ(counters.host_to_device_bytes, 72u);
  EXPECT_EQ(counters.device_to_host_bytes, 36u);
  EXPECT_EQ(counters.device_to_device_bytes, 16u);
  EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, 129, cudaMemcpyDefault, streams_[0]),
            cudaErrorInvalidValue);
}

TEST_F(EmulatedRuntime, FailsWhenToldTo) {
  cudasim::fail_call("cudaStreamSynchronize", 2, cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  cudasim::fail_allocation(1);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorMemoryAllocation);
  // More than the device has
  EXPECT_EQ(cudaMalloc(&memory, size_t{9} << 30), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);

  cudasim::set_sticky_error(0, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  cudasim::set_sticky_error(0, cudaSuccess);
  (void)cudaGetLastError();

  int count = -1;
  cudasim::set_has_driver(false);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  cudasim::set_has_driver(true);
  cudasim::set_num_devices(0);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
}

TEST_F(EmulatedRuntime, KnowsWhereMemoryLies) {
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, device_ + 1), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.device, 0);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, pinned_), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &attributes), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  std::vector<uint32_t> registered(64);
  ASSERT_EQ(cudaHostRegister(registered.data(), 256, cudaHostRegisterDefault), cudaSuccess);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, &registered[3]), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaHostRegister(registered.data(), 256, cudaHostRegisterDefault),
            cudaErrorHostMemoryAlreadyRegistered);
  ASSERT_EQ(cudaHostUnregister(registered.data()), cudaSuccess);
  // Streams belong to a device.
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(launch(set_words, kOneWarp, streams_[0], device_, 1u), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
}

template <typename Function>
Function driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result),
            cudaSuccess);
  EXPECT_EQ(result, cudaDriverEntryPointSuccess);
  return reinterpret_cast<Function>(function);
}

TEST_F(EmulatedRuntime, BacksReservedAddressesPieceByPiece) {
  constexpr size_t kGranule = size_t{64} << 10;
  cudasim::DeviceFacts facts;
  facts.granularity = kGranule;
  cudasim::set_device(0, facts);
  const auto reserve =
      driver<CUresult (*)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)>(
          "cuMemAddressReserve");
  const auto release_space = driver<CUresult (*)(CUdeviceptr, size_t)>("cuMemAddressFree");
  const auto create =
      driver<CUresult (*)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                          unsigned long long)>("cuMemCreate");
  const auto release = driver<CUresult (*)(CUmemGenericAllocationHandle)>("cuMemRelease");
  const auto map = driver<CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                                       unsigned long long)>("cuMemMap");
  const auto unmap = driver<CUresult (*)(CUdeviceptr, size_t)>("cuMemUnmap");
  const auto allow =
      driver<CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)>("cuMemSetAccess");

  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  size_t free_before = 0, free_after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);

  CUdeviceptr space = 0;
  EXPECT_EQ(reserve(&space, kGranule + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(reserve(&space, 8 * kGranule, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(space % kGranule, 0u);
  for (const CUdeviceptr piece : {space + 2 * kGranule, space + 3 * kGranule}) {
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(create(&handle, kGranule, &properties, 0), CUDA_SUCCESS);
    ASSERT_EQ(map(piece, kGranule, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(map(piece, kGranule, 0, handle, 0), CUDA_ERROR_ALREADY_MAPPED);
    ASSERT_EQ(release(handle), CUDA_SUCCESS);
  }
  auto* words = reinterpret_cast<uint32_t*>(space + 2 * kGranule);
  // Mapped, not accessible
  EXPECT_EQ(cudaMemsetAsync(words, 0, 16, streams_[0]), cudaErrorInvalidValue);
  ASSERT_EQ(allow(space + 2 * kGranule, 2 * kGranule, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(allow(space, kGranule, &access, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(words[0], 0xffffffffu);
  ASSERT_EQ(cudaMemsetAsync(words, 0, 2 * kGranule, streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(words, 0, 2 * kGranule + 1, streams_[0]), cudaErrorInvalidValue);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, words), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_before - free_after, 2 * kGranule);

  EXPECT_EQ(unmap(space + 2 * kGranule, kGranule / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(release_space(space, 8 * kGranule), CUDA_ERROR_INVALID_VALUE);  // something is mapped
  ASSERT_EQ(unmap(space + 2 * kGranule, 2 * kGranule), CUDA_SUCCESS);
  EXPECT_DEATH(words[0] = 1, "");
  ASSERT_EQ(release_space(space, 8 * kGranule), CUDA_SUCCESS);
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_before, free_after);
}

TEST_F(EmulatedRuntime, MemoryThatIsFreedInAStreamLivesUntilThen) {
  cudasim::set_stream_order(StreamOrder::kLazy);
  uint32_t* memory = nullptr;
  ASSERT_EQ(cudaMallocAsync(reinterpret_cast<void**>(&memory), 128, streams_[0]), cudaSuccess);
  ASSERT_EQ(launch(set_words, kOneWarp, streams_[0], memory, 9u), cudaSuccess);
  ASSERT_EQ(
      launch(copy_words, kOneWarp, streams_[0], device_, static_cast<const uint32_t*>(memory)),
      cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(memory, streams_[0]), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_EQ(device_word(), 9u);
}

class EmulatedPool : public EmulatedRuntime {
 protected:
  void SetUp() override {
    EmulatedRuntime::SetUp();
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    ASSERT_EQ(cudaMemPoolCreate(&pool_, &properties), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaMemPoolDestroy(pool_), cudaSuccess);
    EmulatedRuntime::TearDown();
  }
  uint32_t* take(size_t bytes, cudaStream_t stream) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocFromPoolAsync(&memory, bytes, pool_, stream), cudaSuccess);
    return static_cast<uint32_t*>(memory);
  }
  uint64_t kept() const {
    uint64_t bytes = 0;
    EXPECT_EQ(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes),
              cudaSuccess);
    return bytes;
  }
  static size_t free_bytes() {
    size_t free = 0, all = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &all), cudaSuccess);
    return free;
  }

  cudaMemPool_t pool_ = nullptr;
};

TEST_F(EmulatedPool, KeepsWhatIsGivenBackUntilItIsTrimmed) {
  const size_t before = free_bytes();
  uint32_t* const memory = take(4096, streams_[0]);
  EXPECT_EQ(cudaMemPoolDestroy(pool_), cudaErrorInvalidValue) << "something is allocated";
  ASSERT_EQ(cudaFreeAsync(memory, streams_[0]), cudaSuccess);
  EXPECT_EQ(free_bytes(), before - 4096);
  uint32_t* const again = take(1024, streams_[0]);
  EXPECT_EQ(kept(), 4096u) << "out of what was there";
  ASSERT_EQ(cudaMemPoolTrimTo(pool_, 0), cudaSuccess);
  EXPECT_EQ(kept(), 1024u);
  cudasim::reset_counters();
  ASSERT_EQ(cudaFree(again), cudaSuccess);
  EXPECT_EQ(cudasim::counters().synchronizations, 0u) << "cudaFree waits for nothing here";
  ASSERT_EQ(cudaMemPoolTrimTo(pool_, 0), cudaSuccess);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(EmulatedPool, WhatAnotherStreamWritesBeforeTheAllocationIsLost) {
  cudasim::set_stream_order(StreamOrder::kLazy);
  int lost = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    cudasim::seed(seed);
    uint32_t* const memory = take(128, streams_[0]);
    ASSERT_EQ(launch(set_words, kOneWarp, streams_[1], memory, 9u), cudaSuccess);
    ASSERT_EQ(
        launch(copy_words, kOneWarp, streams_[1], device_, static_cast<const uint32_t*>(memory)),
        cudaSuccess);
    cudasim::finish_all();
    lost += memory[0] != 9u ? 1 : 0;
    ASSERT_EQ(cudaFreeAsync(memory, streams_[0]), cudaSuccess);
    cudasim::finish_all();
  }
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, 40);
}

TEST_F(EmulatedPool, WritingWhatWasGivenBackIsFound) {
  uint32_t* const memory = take(128, streams_[0]);
  ASSERT_EQ(cudaFreeAsync(memory, streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 128, streams_[1]), cudaErrorInvalidValue);
  EXPECT_DEATH(
      {
        (void)launch(set_words, kOneWarp, streams_[1], memory, 9u);
        (void)cudasim::live();
      },
      "written after it was given back");
}

TEST_F(EmulatedPool, WhatACaptureAllocatesIsTheGraphsOwn) {
  const uint64_t before = cudasim::live().device_allocations;
  ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
  uint32_t* const memory = take(128, streams_[0]);
  ASSERT_EQ(
      launch(copy_words, kOneWarp, streams_[0], device_, static_cast<const uint32_t*>(memory)),
      cudaSuccess);
  ASSERT_EQ(launch(set_words, kOneWarp, streams_[0], memory, 9u), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(memory, streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(device_, streams_[0]), cudaErrorNotSupported) << "not of this graph";
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int replay = 0; replay < 2; ++replay) {
    ASSERT_EQ(cudaGraphLaunch(executable, streams_[0]), cudaSuccess);
    EXPECT_EQ(device_word(), 0xffffffffu) << "nothing of the replay before";
  }
  EXPECT_EQ(cudasim::live().device_allocations, before + 1);
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudasim::live().device_allocations, before);
}

}  // namespace
