// What a machine with a healthy GPU cannot show of the function table: no driver, old devices,
// short memory, failures at every call, lost contexts, streams whose work runs late.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "cudasim/cudasim.h"
#include "src/base/error.h"
#include "src/device/gpu.h"
#include "tests/cuda/backend.h"

namespace kvc::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::byte* at(void* address, int64_t offset) { return static_cast<std::byte*>(address) + offset; }

// Every function of the table that can fail, on device 0, as far as it needs nothing but addresses.
using NamedCall = std::pair<const char*, std::function<Result(Failure*)>>;
std::vector<NamedCall> calls(void* memory, void* reserved, Stream stream, Event event) {
  static void* address = nullptr;
  static Stream new_stream = nullptr;
  static Event new_event = nullptr;
  static int32_t answer = 0;
  static DeviceInfo info{};
  static void* to[2];
  static const void* from[2];
  static const size_t bytes[2] = {8, 8};
  to[0] = memory;
  to[1] = at(memory, 8);
  from[0] = at(memory, 16);
  from[1] = at(memory, 24);
  return {
      {"query_device", [](Failure* f) { return table().query_device(0, &info, f); }},
      {"reserve", [](Failure* f) { return table().reserve(0, 1000, &address, f); }},
      {"commit", [=](Failure* f) { return table().commit(0, reserved, 0, 1000, f); }},
      {"allocate", [](Failure* f) { return table().allocate(0, 1000, &address, f); }},
      {"allocate_on",
       [=](Failure* f) { return table().allocate_on(0, 1000, stream, &address, f); }},
      {"allocate_pinned", [](Failure* f) { return table().allocate_pinned(1000, &address, f); }},
      {"locate", [=](Failure* f) { return table().locate(memory, &answer, f); }},
      {"create_stream", [](Failure* f) { return table().create_stream(0, &new_stream, f); }},
      {"synchronize", [=](Failure* f) { return table().synchronize(0, stream, f); }},
      {"is_capturing", [=](Failure* f) { return table().is_capturing(0, stream, &answer, f); }},
      {"create_event", [](Failure* f) { return table().create_event(0, &new_event, f); }},
      {"record_event", [=](Failure* f) { return table().record_event(0, event, stream, f); }},
      {"record_launches", [=](Failure* f) { return table().record_launches(0, event, stream, f); }},
      {"wait_event", [=](Failure* f) { return table().wait_event(0, event, stream, f); }},
      {"query_event", [=](Failure* f) { return table().query_event(0, event, &answer, f); }},
      {"copy", [=](Failure* f) { return table().copy(0, memory, at(memory, 64), 8, stream, f); }},
      {"copy_many",
       [=](Failure* f) { return table().copy_many(0, to, from, bytes, 2, stream, f); }},
      {"fill", [=](Failure* f) { return table().fill(0, memory, 0, 8, stream, f); }},
      {"step", [=](Failure* f) { return table().step(0, StepState{}, StepPages{}, stream, f); }},
      {"attention",
       [=](Failure* f) {
         return table().attention(0, AttnKernel::kSimt, AttnLaunch{}, stream, f);
       }},
      {"discard", [=](Failure* f) { return table().discard(0, reserved, 0, 1 << 21, f); }},
  };
}

class CudaRuntimeFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    cudasim::reset();
    (void)cudaGetLastError();
    for (const int32_t device : {0, 1}) table().trim(device);
    before_ = cudasim::live();
  }
  void TearDown() override {
    cudasim::reset();
    (void)cudaGetLastError();
  }
  // Nothing that a test took is still there.
  void expect_nothing_left() {
    const cudasim::Live now = cudasim::live();
    EXPECT_EQ(now.device_bytes, before_.device_bytes);
    EXPECT_EQ(now.pinned_bytes, before_.pinned_bytes);
    EXPECT_EQ(now.reservations, before_.reservations);
    EXPECT_EQ(now.mappings, before_.mappings);
    EXPECT_EQ(now.memory_handles, before_.memory_handles);
    EXPECT_EQ(now.streams, before_.streams);
    EXPECT_EQ(now.events, before_.events);
  }

  Failure failure_{};
  cudasim::Live before_{};
};

TEST_F(CudaRuntimeFaults, WithoutADriverEveryCallSaysSo) {
  cudasim::set_has_driver(false);
  int32_t count = 7;
  EXPECT_EQ(table().count_devices(&count, &failure_), Result::kNoDriver);
  EXPECT_EQ(count, 0);
  alignas(256) std::byte memory[128];
  for (const auto& [name, call] : calls(memory, memory, nullptr, nullptr)) {
    const bool needs_a_reservation =
        std::strcmp(name, "commit") == 0 || std::strcmp(name, "discard") == 0;
    if (needs_a_reservation) continue;
    EXPECT_EQ(call(&failure_), Result::kNoDriver) << name;
    EXPECT_EQ(failure_.error, cudaErrorInsufficientDriver) << name;
    EXPECT_THAT(std::string(failure_.text), HasSubstr("cudaErrorInsufficientDriver")) << name;
  }
}

TEST_F(CudaRuntimeFaults, WithoutDevicesThereAreNone) {
  cudasim::set_num_devices(0);
  int32_t count = 7;
  EXPECT_EQ(table().count_devices(&count, &failure_), Result::kOk);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaRuntimeFaults, DevicesWithoutCodeAreRefusedByName) {
  // Numbers that no other test uses, because what is known of a device is kept.
  cudasim::set_num_devices(8);
  cudasim::DeviceFacts old;
  old.major = 7;
  cudasim::set_device(6, old);
  DeviceInfo info{};
  EXPECT_EQ(table().query_device(6, &info, &failure_), Result::kNoDevice);
  EXPECT_THAT(std::string(failure_.text), HasSubstr("sm_70"));
  EXPECT_THAT(std::string(failure_.text), HasSubstr("device 6"));
  EXPECT_EQ(table().attention(6, AttnKernel::kSimt, AttnLaunch{}, nullptr, &failure_),
            Result::kNoDevice);
  void* address = nullptr;
  EXPECT_EQ(table().reserve(6, 1, &address, &failure_), Result::kNoDevice);
  const char* why = nullptr;
  EXPECT_FALSE(table().attention_fits(6, AttnKernel::kSimt, AttnLaunch{}, &why));
  EXPECT_NE(why, nullptr);
}

TEST_F(CudaRuntimeFaults, WithoutVirtualMemoryAReservationIsUnsupported) {
  cudasim::set_has_virtual_memory(false);
  void* address = nullptr;
  EXPECT_EQ(table().reserve(0, 1, &address, &failure_), Result::kUnsupported);
  EXPECT_EQ(failure_.error, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THAT(std::string(failure_.text), HasSubstr("cuMemAddressReserve: "));
}

TEST_F(CudaRuntimeFaults, MemoryThatRunsOutInTheMiddleOfACommitLeavesWhatWas) {
  DeviceInfo info{};
  ASSERT_EQ(table().query_device(0, &info, &failure_), Result::kOk);
  const int64_t granule = info.granularity;
  void* start = nullptr;
  ASSERT_EQ(table().reserve(0, 8 * granule, &start, &failure_), Result::kOk);
  ASSERT_EQ(table().commit(0, start, 3 * granule, 4 * granule, &failure_), Result::kOk);
  std::memset(at(start, 3 * granule), 9, static_cast<size_t>(granule));
  for (const char* name : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    const bool is_access = std::strcmp(name, "cuMemSetAccess") == 0;  // once per run of granules
    for (uint64_t nth = 1; nth <= (is_access ? 2u : 7u); ++nth) {
      cudasim::fail_call(name, nth, CUDA_ERROR_OUT_OF_MEMORY);
      EXPECT_EQ(table().commit(0, start, 0, 8 * granule, &failure_), Result::kNoMemory)
          << name << " " << nth;
      EXPECT_THAT(std::string(failure_.text), StartsWith(std::string(name) + ": "));
      EXPECT_EQ(cudasim::live().mappings, before_.mappings + 1);
      EXPECT_EQ(cudasim::live().memory_handles, before_.memory_handles + 1);
      cudasim::clear_failures();
    }
  }
  EXPECT_EQ(at(start, 3 * granule)[5], std::byte{9});
  EXPECT_EQ(table().commit(0, start, 0, 8 * granule, &failure_), Result::kOk);
  EXPECT_EQ(at(start, 4 * granule)[-1], std::byte{9});
  std::memset(start, 1, static_cast<size_t>(8 * granule));
  table().release(0, start);
  expect_nothing_left();
}

// A device of 16 granules.
TEST_F(CudaRuntimeFaults, AFullDeviceIsNoMemory) {
  cudasim::DeviceFacts small;
  small.memory_bytes = 16 * small.granularity;
  cudasim::set_device(1, small);
  const auto granule = static_cast<int64_t>(small.granularity);
  void* start = nullptr;
  ASSERT_EQ(table().reserve(1, 64 * granule, &start, &failure_), Result::kOk)
      << "addresses cost nothing";
  EXPECT_EQ(table().commit(1, start, 0, 64 * granule, &failure_), Result::kNoMemory);
  EXPECT_EQ(cudasim::live().mappings, before_.mappings);
  EXPECT_EQ(table().commit(1, start, 0, 10 * granule, &failure_), Result::kOk);
  void* memory = nullptr;
  EXPECT_EQ(table().allocate(1, 7 * granule, &memory, &failure_), Result::kNoMemory);
  EXPECT_EQ(table().discard(1, start, 0, 5 * granule, &failure_), Result::kOk);
  EXPECT_EQ(table().allocate(1, 7 * granule, &memory, &failure_), Result::kOk);
  table().free(1, memory);
  table().release(1, start);
  expect_nothing_left();
}

TEST_F(CudaRuntimeFaults, ContextsThatAreLostAreReportedByEveryCall) {
  void *memory = nullptr, *reserved = nullptr, *pinned = nullptr;
  Stream stream = nullptr;
  Event event = nullptr;
  ASSERT_EQ(table().allocate(0, 256, &memory, &failure_), Result::kOk);
  ASSERT_EQ(table().allocate_pinned(256, &pinned, &failure_), Result::kOk);
  ASSERT_EQ(table().reserve(0, 1 << 22, &reserved, &failure_), Result::kOk);
  ASSERT_EQ(table().commit(0, reserved, 0, 1 << 21, &failure_), Result::kOk);
  ASSERT_EQ(table().create_stream(0, &stream, &failure_), Result::kOk);
  ASSERT_EQ(table().create_event(0, &event, &failure_), Result::kOk);
  cudasim::set_sticky_error(0, cudaErrorIllegalAddress);
  for (const auto& [name, call] : calls(memory, reserved, stream, event)) {
    if (std::strcmp(name, "commit") == 0) continue;  // is committed: no call of CUDA
    if (std::strcmp(name, "step") == 0 || std::strcmp(name, "attention") == 0)
      continue;  // no parameters to run with
    EXPECT_EQ(call(&failure_), Result::kDevice) << name;
    EXPECT_EQ(failure_.error, cudaErrorIllegalAddress) << name;
    EXPECT_THAT(std::string(failure_.text), HasSubstr("cu")) << name;
  }
  // The other device lives.
  void* other = nullptr;
  EXPECT_EQ(table().allocate(1, 256, &other, &failure_), Result::kOk) << failure_.text;
  table().free(1, other);
  // Nothing of this crashes, and nothing hangs.
  table().destroy_event(0, event);
  table().destroy_stream(0, stream);
  table().free(0, memory);
  table().free_pinned(pinned);
  table().release(0, reserved);
}

TEST_F(CudaRuntimeFaults, AFailureAtAnyCallLeavesNothingBehind) {
  void *memory = nullptr, *reserved = nullptr;
  Stream stream = nullptr;
  Event event = nullptr;
  ASSERT_EQ(table().allocate(0, 256, &memory, &failure_), Result::kOk);
  ASSERT_EQ(table().reserve(0, 1 << 22, &reserved, &failure_), Result::kOk);
  ASSERT_EQ(table().create_stream(0, &stream, &failure_), Result::kOk);
  ASSERT_EQ(table().create_event(0, &event, &failure_), Result::kOk);
  for (const auto& [name, call] : calls(memory, reserved, stream, event)) {
    if (std::strcmp(name, "step") == 0 || std::strcmp(name, "attention") == 0)
      continue;  // no parameters to run with
    for (uint64_t nth = 1; nth < 20; ++nth) {
      const cudasim::Live before = cudasim::live();
      int device = -1;
      (void)cudaSetDevice(1);
      cudasim::fail_call(nullptr, nth, cudaErrorUnknown);
      const Result result = call(&failure_);
      cudasim::clear_failures();
      (void)cudaGetDevice(&device);
      EXPECT_EQ(device, 1) << name << " " << nth;
      (void)cudaSetDevice(0);
      if (result == Result::kOk) continue;  // a call whose failure does not matter, or none
      EXPECT_EQ(result, Result::kDevice) << name << " " << nth;
      const cudasim::Live after = cudasim::live();
      EXPECT_EQ(after.device_bytes, before.device_bytes) << name << " " << nth;
      EXPECT_EQ(after.mappings, before.mappings) << name << " " << nth;
      EXPECT_EQ(after.reservations, before.reservations) << name << " " << nth;
      EXPECT_EQ(after.streams, before.streams) << name << " " << nth;
      EXPECT_EQ(after.events, before.events) << name << " " << nth;
    }
  }
}

TEST_F(CudaRuntimeFaults, MemoryThatACaptureHoldsBackIsGivenBackLater) {
  void *memory = nullptr, *pinned = nullptr, *reserved = nullptr;
  ASSERT_EQ(table().allocate(0, 256, &memory, &failure_), Result::kOk);
  ASSERT_EQ(table().allocate_pinned(256, &pinned, &failure_), Result::kOk);
  ASSERT_EQ(table().reserve(0, 1 << 21, &reserved, &failure_), Result::kOk);
  ASSERT_EQ(table().commit(0, reserved, 0, 1, &failure_), Result::kOk);
  for (const char* name : {"cudaFree", "cudaFreeHost", "cudaDeviceSynchronize"}) {
    cudasim::fail_call(name, 1, cudaErrorStreamCaptureUnsupported);
  }
  table().release(0, reserved);
  EXPECT_EQ(cudasim::live().mappings, before_.mappings + 1);
  // What was left over is tried with every call that gives back: the device's memory now goes by
  // its second call.
  table().free(0, memory);
  EXPECT_EQ(cudasim::live().mappings, before_.mappings);
  EXPECT_EQ(cudasim::live().device_allocations, before_.device_allocations + 1);
  table().free_pinned(pinned);
  EXPECT_EQ(cudasim::live().device_allocations, before_.device_allocations);
  EXPECT_EQ(cudasim::live().pinned_allocations, before_.pinned_allocations + 1);
  // And by a call that is short of memory.
  cudasim::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
  EXPECT_EQ(table().allocate(0, 256, &memory, &failure_), Result::kOk);
  table().free(0, memory);
  expect_nothing_left();
}

TEST_F(CudaRuntimeFaults, ScratchComesAndGoesInTheOrderOfItsStream) {
  Stream stream = nullptr;
  ASSERT_EQ(table().create_stream(0, &stream, &failure_), Result::kOk);
  cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
  cudasim::reset_counters();
  void *memory = nullptr, *second = nullptr;
  ASSERT_EQ(table().allocate_on(0, 1000, stream, &memory, &failure_), Result::kOk);
  ASSERT_EQ(table().fill(0, memory, 7, 1000, stream, &failure_), Result::kOk);
  table().free_on(0, memory, stream);
  ASSERT_EQ(table().allocate_on(0, 1000, stream, &second, &failure_), Result::kOk);
  table().free_on(0, second, stream);
  EXPECT_EQ(cudasim::counters().synchronizations, 0u);
  EXPECT_EQ(cudasim::counters().plain_allocations, 0u);
  cudasim::finish_all();
  EXPECT_GT(cudasim::live().pool_bytes, 0u) << "kept for the next one";
  table().trim(0);
  EXPECT_EQ(cudasim::live().pool_bytes, 0u);
  // A stream that is gone cannot be followed: the device is waited for.
  ASSERT_EQ(table().allocate_on(0, 1000, stream, &memory, &failure_), Result::kOk);
  table().destroy_stream(0, stream);
  table().free_on(0, memory, stream);
  cudasim::set_stream_order(cudasim::StreamOrder::kEager);
  expect_nothing_left();
}

TEST_F(CudaRuntimeFaults, AnEventBehindWorkThatHasNotRunIsNotDone) {
  Stream stream = nullptr;
  Event event = nullptr;
  void* memory = nullptr;
  ASSERT_EQ(table().create_stream(0, &stream, &failure_), Result::kOk);
  ASSERT_EQ(table().create_event(0, &event, &failure_), Result::kOk);
  ASSERT_EQ(table().allocate(0, 256, &memory, &failure_), Result::kOk);
  cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
  // Now and then a call lets one of them run.
  for (int i = 0; i < 64; ++i)
    ASSERT_EQ(table().fill(0, memory, i, 256, stream, &failure_), Result::kOk);
  ASSERT_EQ(table().record_event(0, event, stream, &failure_), Result::kOk);
  int32_t done = -1;
  EXPECT_EQ(table().query_event(0, event, &done, &failure_), Result::kOk);
  EXPECT_EQ(done, 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  ASSERT_EQ(table().synchronize(0, stream, &failure_), Result::kOk);
  EXPECT_EQ(table().query_event(0, event, &done, &failure_), Result::kOk);
  EXPECT_EQ(done, 1);
  cudasim::set_stream_order(cudasim::StreamOrder::kEager);
  table().free(0, memory);
  table().destroy_event(0, event);
  table().destroy_stream(0, stream);
  expect_nothing_left();
}

TEST_F(CudaRuntimeFaults, ScratchThatNobodyUsesGoesBackBesideACapture) {
  cudaStream_t captured = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(table().allocate_on(0, 1000, nullptr, &memory, &failure_), Result::kOk)
      << failure_.text;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
  cudasim::reset_counters();
  table().free_idle(0, memory);
  EXPECT_EQ(cudasim::counters().synchronizations, 0u);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
  (void)cudaGraphDestroy(graph);
  ASSERT_EQ(cudaStreamDestroy(captured), cudaSuccess);
  expect_nothing_left();
}

TEST_F(CudaRuntimeFaults, DevicesWithoutMemoryPoolsGetPlainMemory) {
  constexpr int32_t kDevice = 7;  // that no other test has asked for a pool
  cudasim::set_num_devices(8);
  cudasim::set_has_memory_pools(false);
  for (int32_t round = 0; round < 2; ++round) {
    void* memory = nullptr;
    cudasim::reset_counters();
    ASSERT_EQ(table().allocate_on(kDevice, 1000, nullptr, &memory, &failure_), Result::kOk)
        << failure_.text;
    EXPECT_EQ(cudasim::counters().plain_allocations, 1u);
    if (round == 0) {
      table().free_on(kDevice, memory, nullptr);
    } else {
      table().free_idle(kDevice, memory);
    }
    EXPECT_EQ(cudasim::counters().synchronizations, 1u) << "cudaFree";
  }
  table().trim(kDevice);
  expect_nothing_left();
}

TEST_F(CudaRuntimeFaults, WhatThePoolKeepsIsThereForWhoeverIsShort) {
  cudasim::DeviceFacts small;
  small.memory_bytes = 16 * small.granularity;
  cudasim::set_device(1, small);
  const auto granule = static_cast<int64_t>(small.granularity);
  for (int32_t round = 0; round < 2; ++round) {
    void *scratch = nullptr, *memory = nullptr;
    ASSERT_EQ(table().allocate_on(1, 10 * granule, nullptr, &scratch, &failure_), Result::kOk);
    table().free_on(1, scratch, nullptr);
    cudasim::finish_all();
    EXPECT_EQ(cudasim::live().pool_bytes, static_cast<uint64_t>(10 * granule));
    if (round == 0) {
      ASSERT_EQ(table().allocate(1, 12 * granule, &memory, &failure_), Result::kOk)
          << failure_.text;
      table().free(1, memory);
    } else {
      ASSERT_EQ(table().reserve(1, 12 * granule, &memory, &failure_), Result::kOk);
      ASSERT_EQ(table().commit(1, memory, 0, 12 * granule, &failure_), Result::kOk)
          << failure_.text;
      table().release(1, memory);
    }
    EXPECT_EQ(cudasim::live().pool_bytes, 0u);
  }
  expect_nothing_left();
}

TEST_F(CudaRuntimeFaults, DriversWithoutBatchesCopyPieceByPiece) {
  Stream stream = nullptr;
  ASSERT_EQ(table().create_stream(0, &stream, &failure_), Result::kOk);
  void* memory = nullptr;
  ASSERT_EQ(table().allocate(0, 256, &memory, &failure_), Result::kOk);
  void* const to[] = {memory, at(memory, 64)};
  const void* const from[] = {at(memory, 128), at(memory, 192)};
  const size_t bytes[] = {64, 64};
  cudasim::reset_counters();
  ASSERT_EQ(table().copy_many(0, to, from, bytes, 2, stream, &failure_), Result::kOk);
  cudasim::finish_all();
  EXPECT_EQ(cudasim::counters().copy_calls, 1u);
  EXPECT_EQ(cudasim::counters().copied_pieces, 2u);
  cudasim::set_has_batch_copies(false);
  cudasim::reset_counters();
  ASSERT_EQ(table().copy_many(0, to, from, bytes, 2, stream, &failure_), Result::kOk)
      << failure_.text;
  cudasim::finish_all();
  EXPECT_EQ(cudasim::counters().copy_calls, 2u);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  table().free(0, memory);
  table().destroy_stream(0, stream);
}

// The context of the calling thread, as the driver says.
CUcontext context_of_thread() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  (void)cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 12000, cudaEnableDefault,
                                         &found);
  CUcontext context = nullptr;
  (void)reinterpret_cast<CUresult (*)(CUcontext*)>(function)(&context);
  return context;
}

TEST_F(CudaRuntimeFaults, AThreadThatNeverUsedCudaGetsNoContextOnAnotherDevice) {
  cudasim::set_num_devices(4);
  std::thread([this] {
    EXPECT_EQ(context_of_thread(), nullptr);
    void *memory = nullptr, *pinned = nullptr;
    Stream stream = nullptr;
    EXPECT_EQ(table().allocate(3, 256, &memory, &failure_), Result::kOk);
    EXPECT_EQ(table().allocate_pinned(256, &pinned, &failure_), Result::kOk);
    EXPECT_EQ(table().create_stream(3, &stream, &failure_), Result::kOk);
    EXPECT_EQ(table().copy(3, pinned, memory, 256, stream, &failure_), Result::kOk);
    table().destroy_stream(3, stream);
    table().free_pinned(pinned);
    table().free(3, memory);
    EXPECT_EQ(context_of_thread(), nullptr);
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 0);
  }).join();
  expect_nothing_left();
}

// ---- The core's owners on the table, with streams whose work runs late and out of step.

TEST_F(CudaRuntimeFaults, OrderedStreamsWriteAndReadOneBufferAfterTheOther) {
  ASSERT_TRUE(install_backend(&table(), nullptr));
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    cudasim::seed(seed);
    cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const Gpu device = require_device(static_cast<int32_t>(seed % 2));
    DeviceOrder order(device);
    DeviceBuffer buffer(device);
    std::vector<DeviceStream> streams;
    for (int i = 0; i < 3; ++i) streams.emplace_back(device);
    PinnedMemory results(device, 64);
    for (int round = 0; round < 64; ++round) {
      const Stream stream = streams[random() % streams.size()].get();
      order.use(stream);
      (void)buffer.ensure(
          1 + static_cast<int64_t>(random() % (1000u * static_cast<uint32_t>(round + 1))), stream);
      device.fill(buffer.data(), round, buffer.bytes(), stream);
      device.copy(results.data() + round, buffer.data() + buffer.bytes() - 1, 1, stream);
      order.used(stream);
    }
    for (const DeviceStream& stream : streams) stream.synchronize();
    EXPECT_TRUE(order.is_idle());
    for (int round = 0; round < 64; ++round)
      EXPECT_EQ(results.data()[round], static_cast<std::byte>(round));
  }
  cudasim::set_stream_order(cudasim::StreamOrder::kEager);
  ASSERT_TRUE(install_backend(nullptr, nullptr));
  expect_nothing_left();
}

TEST_F(CudaRuntimeFaults, StatusesOfTheCoreCarryCudasNumber) {
  ASSERT_TRUE(install_backend(&table(), nullptr));
  const Gpu device = require_device(0);
  cudasim::fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
  try {
    const DeviceMemory memory(device, 1000);
    ADD_FAILURE() << "allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_E_NO_MEMORY);
    EXPECT_EQ(error.sys_code(), cudaErrorMemoryAllocation);
    EXPECT_THAT(error.what(), HasSubstr("cudaMalloc: cudaErrorMemoryAllocation"));
  }
  ASSERT_TRUE(install_backend(nullptr, nullptr));
}

}  // namespace
}  // namespace kvc::cuda
