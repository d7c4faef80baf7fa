// The part of the function table that starts no kernel, on whatever machine there is: emulated or
// real. What only an emulator can be made to do is in runtime_faults_test.cc.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/cuda/backend.h"
#include "tests/cuda/device_memory.h"

namespace kvc::cuda {
namespace {

using testing::check;
using ::testing::HasSubstr;

// Calls a function of the table and expects kOk.
template <typename... Params, typename... Args>
void ok(Result (*function)(Params...), Args... args) {
  Failure failure{};
  const Result result = function(args..., &failure);
  EXPECT_EQ(result, Result::kOk) << failure.text;
  if (result != Result::kOk) throw std::runtime_error(failure.text);
}
template <typename... Params, typename... Args>
Result result_of_call(Failure* failure, Result (*function)(Params...), Args... args) {
  return function(args..., failure);
}

int32_t device_count() {
  int32_t count = 0;
  ok(table().count_devices, &count);
  return count;
}
DeviceInfo info_of(int32_t device) {
  DeviceInfo info{};
  ok(table().query_device, device, &info);
  return info;
}
int current_device() {
  int device = -1;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
int32_t place_of(const void* address) {
  int32_t place = -3;
  ok(table().locate, address, &place);
  return place;
}

std::vector<uint8_t> pattern(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> values(bytes);
  std::mt19937 random(seed);
  for (uint8_t& value : values) value = static_cast<uint8_t>(random());
  return values;
}
void write(int32_t device, void* to, const std::vector<uint8_t>& values) {
  ok(table().copy, device, to, static_cast<const void*>(values.data()),
     static_cast<int64_t>(values.size()), Stream{nullptr});
  ok(table().synchronize, device, Stream{nullptr});
}
std::vector<uint8_t> read(int32_t device, const void* from, size_t bytes) {
  std::vector<uint8_t> values(bytes);
  ok(table().copy, device, static_cast<void*>(values.data()), from, static_cast<int64_t>(bytes),
     Stream{nullptr});
  ok(table().synchronize, device, Stream{nullptr});
  return values;
}

// ---- Devices

TEST(CudaRuntime, EveryFunctionIsThere) {
  const BackendTable& all = table();
  EXPECT_EQ(all.struct_size, sizeof(all));
  EXPECT_NE(all.version, nullptr);
  const auto* bytes = reinterpret_cast<const std::byte*>(&all);
  for (size_t at = offsetof(BackendTable, count_devices); at < sizeof(all); at += sizeof(void*)) {
    void* function = nullptr;
    std::memcpy(&function, bytes + at, sizeof(function));
    EXPECT_NE(function, nullptr) << "at byte " << at;
  }
}

TEST(CudaRuntime, DescribesTheDevices) {
  ASSERT_GE(device_count(), 1);
  for (int32_t device = 0; device < device_count(); ++device) {
    const DeviceInfo info = info_of(device);
    EXPECT_GE(info.arch, 80);
    EXPECT_GT(info.num_sms, 0);
    EXPECT_GE(info.shared_bytes, 48 * 1024);
    EXPECT_GT(info.granularity, 0);
    EXPECT_EQ(info.granularity & (info.granularity - 1), 0);
    EXPECT_GT(info.memory_bytes, 0u);
    EXPECT_LE(info.memory_free_bytes, info.memory_bytes);
    EXPECT_GT(std::strlen(info.name), 0u);
  }
}

TEST(CudaRuntime, ADeviceThatIsNotThereIsNamed) {
  for (const int32_t device : {device_count(), 1000, -2}) {
    Failure failure{};
    DeviceInfo info{};
    void* address = nullptr;
    EXPECT_EQ(result_of_call(&failure, table().query_device, device, &info), Result::kNoDevice);
    EXPECT_EQ(failure.error, cudaErrorInvalidDevice);
    EXPECT_THAT(std::string(failure.text), HasSubstr("cudaErrorInvalidDevice"));
    EXPECT_EQ(result_of_call(&failure, table().allocate, device, int64_t{256}, &address),
              Result::kNoDevice);
    EXPECT_EQ(result_of_call(&failure, table().reserve, device, int64_t{256}, &address),
              Result::kNoDevice);
    AttnLaunch launch{};
    const char* why = nullptr;
    EXPECT_FALSE(table().attention_fits(device, AttnKernel::kSimt, launch, &why));
    EXPECT_NE(why, nullptr);
    EXPECT_EQ(table().attention_geometry(device, AttnKernel::kSimt, 128, 128).tile_rows, 0);
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "nothing is left for the host's next check";
}

TEST(CudaRuntime, WhatWasCurrentIsCurrentAgain) {
  if (device_count() < 2) GTEST_SKIP() << "one device";
  for (int32_t own = 0; own < 2; ++own) {
    const int32_t device = 1 - own;
    check(cudaSetDevice(own), "cudaSetDevice");
    const auto unchanged = [&](const char* what) { EXPECT_EQ(current_device(), own) << what; };
    const DeviceInfo info = info_of(device);
    unchanged("query_device");
    void* memory = nullptr;
    ok(table().allocate, device, int64_t{1000}, &memory);
    unchanged("allocate");
    EXPECT_EQ(place_of(memory), device);
    unchanged("locate");
    void* reserved = nullptr;
    ok(table().reserve, device, info.granularity, &reserved);
    unchanged("reserve");
    ok(table().commit, device, reserved, int64_t{0}, int64_t{1});
    unchanged("commit");
    EXPECT_EQ(place_of(reserved), device);
    void* pinned = nullptr;
    ok(table().allocate_pinned, int64_t{100}, &pinned);
    unchanged("allocate_pinned");
    Stream stream = nullptr;
    ok(table().create_stream, device, &stream);
    unchanged("create_stream");
    Event event = nullptr;
    ok(table().create_event, device, &event);
    unchanged("create_event");
    ok(table().fill, device, memory, 1, int64_t{1000}, stream);
    unchanged("fill");
    ok(table().copy, device, pinned, static_cast<const void*>(memory), int64_t{100}, stream);
    unchanged("copy");
    ok(table().record_event, device, event, stream);
    unchanged("record_event");
    ok(table().wait_event, device, event, stream);
    unchanged("wait_event");
    int32_t answer = 0;
    ok(table().query_event, device, event, &answer);
    unchanged("query_event");
    ok(table().is_capturing, device, stream, &answer);
    unchanged("is_capturing");
    ok(table().synchronize, device, stream);
    unchanged("synchronize");
    EXPECT_EQ(static_cast<uint8_t*>(pinned)[99], 1);
    ok(table().discard, device, reserved, int64_t{0}, info.granularity);
    unchanged("discard");
    table().destroy_event(device, event);
    table().destroy_stream(device, stream);
    table().free_pinned(pinned);
    table().free(device, memory);
    table().release(device, reserved);
    unchanged("the functions that give back");
    Failure failure{};
    (void)table().commit(device, reserved, 0, 1, &failure);
    unchanged("a failure");
  }
  check(cudaSetDevice(0), "cudaSetDevice");
}

// ---- Memory

TEST(CudaRuntime, ReservedMemoryKeepsItsPlaceAndItsContentsWhileItGrows) {
  const int64_t granule = info_of(0).granularity;
  const int64_t bytes = 6 * granule - 5;  // not a multiple
  void* start = nullptr;
  ok(table().reserve, 0, bytes, &start);
  const auto at = [start](int64_t offset) { return static_cast<std::byte*>(start) + offset; };

  ok(table().commit, 0, start, int64_t{10}, int64_t{11});  // widened
  const std::vector<uint8_t> first = pattern(static_cast<size_t>(granule), 1);
  write(0, at(0), first);
  ok(table().commit, 0, start, int64_t{0}, int64_t{0});
  ok(table().commit, 0, start, 2 * granule, 2 * granule + 1);
  const std::vector<uint8_t> third = pattern(static_cast<size_t>(granule), 3);
  write(0, at(2 * granule), third);
  ok(table().commit, 0, start, int64_t{0}, bytes);  // around the two
  ok(table().commit, 0, start, int64_t{0}, bytes);
  EXPECT_EQ(read(0, at(0), first.size()), first);
  EXPECT_EQ(read(0, at(2 * granule), third.size()), third);
  const std::vector<uint8_t> last = pattern(1000, 6);
  write(0, at(bytes - 1000), last);
  // A copy that crosses granules.
  const std::vector<uint8_t> across = pattern(5000, 4);
  write(0, at(4 * granule - 2500), across);
  EXPECT_EQ(read(0, at(4 * granule - 2500), across.size()), across);

  ok(table().discard, 0, start, int64_t{1}, 2 * granule + granule / 2);  // the second granule alone
  EXPECT_EQ(read(0, at(0), first.size()), first);
  EXPECT_EQ(read(0, at(2 * granule), third.size()), third);
  // The last one, of which 5 bytes were never asked for
  ok(table().discard, 0, start, 5 * granule, bytes);
  ok(table().commit, 0, start, int64_t{0}, bytes);
  write(0, at(granule), first);
  write(0, at(5 * granule), last);
  EXPECT_EQ(read(0, at(granule), first.size()), first);
  EXPECT_EQ(read(0, at(4 * granule - 2500), across.size()), across);
  table().release(0, start);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(CudaRuntime, RangesOutsideOfAReservationAreRefused) {
  const int64_t granule = info_of(0).granularity;
  void* start = nullptr;
  ok(table().reserve, 0, granule, &start);
  Failure failure{};
  const std::pair<int64_t, int64_t> ranges[] = {
      {-1, 1}, {2, 1}, {0, granule + 1}, {INT64_MAX - 1, INT64_MAX}};
  for (const auto& [begin, end] : ranges) {
    EXPECT_EQ(table().commit(0, start, begin, end, &failure), Result::kDevice);
    EXPECT_EQ(table().discard(0, start, begin, end, &failure), Result::kDevice);
  }
  EXPECT_EQ(table().commit(0, static_cast<std::byte*>(start) + 1, 0, 1, &failure), Result::kDevice);
  EXPECT_EQ(table().commit(0, nullptr, 0, 1, &failure), Result::kDevice);
  EXPECT_EQ(table().reserve(0, 0, &start, &failure), Result::kDevice);
  EXPECT_EQ(table().reserve(0, INT64_MAX, &start, &failure), Result::kDevice);
  table().release(0, start);
  table().release(0, start);  // unknown by now
  table().release(0, nullptr);
}

TEST(CudaRuntime, AllocationsAreAlignedAndFound) {
  for (const int64_t bytes : {1, 255, 256, 100001}) {
    void* memory = nullptr;
    ok(table().allocate, 0, bytes, &memory);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
    EXPECT_EQ(place_of(memory), 0);
    EXPECT_EQ(place_of(static_cast<std::byte*>(memory) + bytes - 1), 0);
    void* pinned = nullptr;
    ok(table().allocate_pinned, bytes, &pinned);
    std::memset(pinned, 7, static_cast<size_t>(bytes));
    EXPECT_EQ(place_of(pinned), -1);
    EXPECT_EQ(place_of(static_cast<std::byte*>(pinned) + bytes - 1), -1);
    ok(table().copy, 0, memory, static_cast<const void*>(pinned), bytes, Stream{nullptr});
    EXPECT_EQ(read(0, memory, static_cast<size_t>(bytes)),
              std::vector<uint8_t>(static_cast<size_t>(bytes), 7));
    table().free(0, memory);
    table().free_pinned(pinned);
  }
  const int here = 0;
  EXPECT_EQ(place_of(&here), -2);
  EXPECT_EQ(place_of(nullptr), -2);
  Failure failure{};
  void* memory = nullptr;
  EXPECT_EQ(table().allocate(0, 0, &memory, &failure), Result::kDevice);
  EXPECT_EQ(table().allocate_pinned(-5, &memory, &failure), Result::kDevice);
  table().free(0, nullptr);
  table().free_pinned(nullptr);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(CudaRuntime, MoreMemoryThanThereIsIsNotGiven) {
  Failure failure{};
  void* memory = nullptr;
  const auto too_much = static_cast<int64_t>(2 * info_of(0).memory_bytes);
  EXPECT_EQ(table().allocate(0, too_much, &memory, &failure), Result::kNoMemory);
  EXPECT_EQ(failure.error, cudaErrorMemoryAllocation);
  EXPECT_THAT(std::string(failure.text), HasSubstr("cudaMalloc: cudaErrorMemoryAllocation ("));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// ---- Streams and events

TEST(CudaRuntime, EventsOrderStreams) {
  const int32_t device = 0;
  Stream first = nullptr, second = nullptr;
  ok(table().create_stream, device, &first);
  ok(table().create_stream, device, &second);
  EXPECT_NE(first, second);
  Event event = nullptr;
  ok(table().create_event, device, &event);
  int32_t done = 0;
  ok(table().query_event, device, event, &done);
  EXPECT_EQ(done, 1) << "never recorded";
  void* memory = nullptr;
  void* pinned = nullptr;
  const int64_t bytes = 1 << 20;
  ok(table().allocate, device, bytes, &memory);
  ok(table().allocate_pinned, bytes, &pinned);
  for (int round = 0; round < 20; ++round) {
    ok(table().fill, device, memory, round, bytes, first);
    ok(table().record_event, device, event, first);
    ok(table().wait_event, device, event, second);
    ok(table().copy, device, pinned, static_cast<const void*>(memory), bytes, second);
    ok(table().synchronize, device, second);
    ok(table().query_event, device, event, &done);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(static_cast<uint8_t*>(pinned)[bytes - 1], round);
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "an event that was not done is no error";
  table().free_pinned(pinned);
  table().free(device, memory);
  table().destroy_event(device, event);
  table().destroy_stream(device, second);
  table().destroy_stream(device, first);
}

// A capture of the host's, with the table's functions inside.
TEST(CudaRuntime, CapturesRecordCopiesAndAllowAllocations) {
  Stream stream = nullptr;
  ok(table().create_stream, 0, &stream);
  auto* const native = static_cast<cudaStream_t>(stream);
  void* memory = nullptr;
  ok(table().allocate, 0, int64_t{256}, &memory);
  void* pinned = nullptr;
  ok(table().allocate_pinned, int64_t{256}, &pinned);
  std::memset(pinned, 0, 256);
  int32_t capturing = -1;
  ok(table().is_capturing, 0, stream, &capturing);
  EXPECT_EQ(capturing, 0);

  check(cudaStreamBeginCapture(native, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  ok(table().is_capturing, 0, stream, &capturing);
  EXPECT_EQ(capturing, 1);
  ok(table().fill, 0, memory, 5, int64_t{256}, stream);
  void* const to[] = {pinned, static_cast<std::byte*>(pinned) + 128};
  const void* const from[] = {memory, memory};
  const size_t bytes[] = {128, 100};
  ok(table().copy_many, 0, static_cast<void* const*>(to), static_cast<const void* const*>(from),
     static_cast<const size_t*>(bytes), int64_t{2}, stream);
  void* more = nullptr;
  ok(table().allocate, 0, int64_t{1000}, &more);  // as a growing buffer does
  void* reserved = nullptr;
  ok(table().reserve, 0, int64_t{1}, &reserved);
  ok(table().commit, 0, reserved, int64_t{0}, int64_t{1});
  Event event = nullptr;
  ok(table().create_event, 0, &event);
  int32_t done = 0;
  ok(table().query_event, 0, event, &done);
  EXPECT_EQ(place_of(memory), 0);
  ok(table().record_launches, 0, event, stream);
  ok(table().query_event, 0, event, &done);
  EXPECT_EQ(done, 1) << "as before the capture";
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(native, &graph), "cudaStreamEndCapture");
  EXPECT_EQ(static_cast<uint8_t*>(pinned)[0], 0) << "captured, not run";
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(executable, native), "cudaGraphLaunch");
  Stream other = nullptr;
  ok(table().create_stream, 0, &other);
  ok(table().wait_event, 0, event, other);
  ok(table().synchronize, 0, other);
  table().destroy_stream(0, other);
  EXPECT_EQ(static_cast<uint8_t*>(pinned)[0], 5) << "the launch recorded the event";
  EXPECT_EQ(static_cast<uint8_t*>(pinned)[227], 5);
  EXPECT_EQ(static_cast<uint8_t*>(pinned)[228], 0);
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  table().destroy_event(0, event);
  table().release(0, reserved);
  table().free(0, more);
  table().free_pinned(pinned);
  table().free(0, memory);
  table().destroy_stream(0, stream);
}

TEST(CudaRuntime, WhatACaptureForbidsIsSaid) {
  Stream stream = nullptr;
  ok(table().create_stream, 0, &stream);
  auto* const native = static_cast<cudaStream_t>(stream);
  Failure failure{};
  check(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  EXPECT_EQ(table().synchronize(0, stream, &failure), Result::kCapture);
  EXPECT_THAT(std::string(failure.text), HasSubstr("cudaStreamSynchronize"));
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(native, &graph);  // invalid by now
  (void)cudaGetLastError();
  Event event = nullptr;
  ok(table().create_event, 0, &event);
  EXPECT_NE(table().record_launches(0, event, stream, &failure), Result::kOk)
      << "there is no capture";
  table().destroy_event(0, event);
  (void)cudaGetLastError();

  // The legacy default stream waits for streams that were not made non-blocking, so it can do
  // nothing while one of them is captured.
  cudaStream_t blocking = nullptr;
  check(cudaStreamCreate(&blocking), "cudaStreamCreate");
  check(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  int32_t capturing = 0;
  EXPECT_EQ(table().is_capturing(0, nullptr, &capturing, &failure), Result::kCapture);
  EXPECT_EQ(failure.error, cudaErrorStreamCaptureImplicit);
  (void)cudaStreamEndCapture(blocking, &graph);
  if (graph != nullptr) check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check(cudaStreamDestroy(blocking), "cudaStreamDestroy");
  (void)cudaGetLastError();
  table().destroy_stream(0, stream);
}

// ---- Copies

TEST(CudaRuntime, ManyPiecesArriveWhereTheyBelong) {
  constexpr uint32_t kSeed = 20260721;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  Stream own = nullptr;
  ok(table().create_stream, 0, &own);
  constexpr size_t kBytes = 1 << 16;
  void *from_memory = nullptr, *to_memory = nullptr, *pinned = nullptr;
  ok(table().allocate, 0, int64_t{kBytes}, &from_memory);
  ok(table().allocate, 0, int64_t{kBytes}, &to_memory);
  ok(table().allocate_pinned, int64_t{kBytes}, &pinned);
  for (int round = 0; round < 12; ++round) {
    const Stream stream = round % 3 == 0 ? nullptr : own;
    const size_t num_stripes = round == 1 ? 1 : 1 + random() % 40;
    const std::vector<uint8_t> values = pattern(kBytes, random());
    write(0, from_memory, std::vector<uint8_t>(kBytes, 0xee));
    write(0, to_memory, std::vector<uint8_t>(kBytes, 0xdd));
    std::memcpy(pinned, values.data(), kBytes);
    std::vector<uint8_t> expected(kBytes, 0xdd);
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<size_t> bytes;
    const size_t slot = kBytes / num_stripes;
    for (size_t i = 0; i < num_stripes; ++i) {
      const bool is_empty = round % 2 == 0 && i % 5 == 4;
      const size_t count = is_empty ? 0 : 1 + random() % slot;
      const size_t source = random() % (kBytes - count + 1);
      to.push_back(static_cast<std::byte*>(to_memory) + i * slot);
      from.push_back(static_cast<const std::byte*>(from_memory) + source);
      bytes.push_back(count);
      std::copy_n(values.begin() + static_cast<long>(source), count,
                  expected.begin() + static_cast<long>(i * slot));
    }
    // What the pieces read is written on the stream just before.
    ok(table().copy, 0, from_memory, static_cast<const void*>(pinned), int64_t{kBytes}, stream);
    ok(table().copy_many, 0, static_cast<void* const*>(to.data()),
       static_cast<const void* const*>(from.data()), static_cast<const size_t*>(bytes.data()),
       static_cast<int64_t>(num_stripes), stream);
    ok(table().synchronize, 0, stream);
    EXPECT_EQ(read(0, to_memory, kBytes), expected) << "round " << round;
  }
  ok(table().copy_many, 0, static_cast<void* const*>(nullptr),
     static_cast<const void* const*>(nullptr), static_cast<const size_t*>(nullptr), int64_t{0},
     own);
  ok(table().copy, 0, static_cast<void*>(nullptr), static_cast<const void*>(nullptr), int64_t{0},
     own);
  ok(table().fill, 0, static_cast<void*>(nullptr), 0, int64_t{0}, own);
  table().free_pinned(pinned);
  table().free(0, to_memory);
  table().free(0, from_memory);
  table().destroy_stream(0, own);
}

// ---- Kernels, as far as the table goes

TEST(CudaRuntime, AttentionKernelsSayHowTheyWantTheirWork) {
  const DeviceInfo info = info_of(0);
  for (int32_t i = 0; i < kNumAttnKernels; ++i) {
    const auto kernel = static_cast<AttnKernel>(i);
    const bool is_hopper = kernel == AttnKernel::kWgmma || kernel == AttnKernel::kLatent;
    if (is_hopper && info.arch != 90) continue;
    SCOPED_TRACE(i);
    const bool is_latent = kernel == AttnKernel::kLatent;
    const AttnGeometry geometry =
        table().attention_geometry(0, kernel, is_latent ? 576 : 128, is_latent ? 512 : 128);
    EXPECT_GT(geometry.tile_rows, 0);
    EXPECT_GT(geometry.key_block, 0);
    EXPECT_GE(geometry.num_ctas, info.num_sms);
    ScheduleBytes bytes{};
    ScheduleShape shape{};
    shape.num_kv_heads = 8;
    shape.group_size = 4;
    shape.causal = 1;
    shape.max_rows = INT32_MAX;
    shape.geometry = geometry;
    ScheduleLimits limits{};
    limits.max_sequences = 4;
    limits.max_rows = 100;
    limits.max_keys = 1000;
    table().schedule_bytes(shape, limits, &bytes);
    EXPECT_GT(bytes.items, 0);
    EXPECT_GE(bytes.cta_begin, 4 * (geometry.num_ctas + 1));
  }
  Failure failure{};
  AttnLaunch launch{};
  const char* why = nullptr;
  for (const int32_t number : {-1, kNumAttnKernels}) {
    const auto kernel = static_cast<AttnKernel>(number);
    EXPECT_FALSE(table().attention_fits(0, kernel, launch, &why));
    EXPECT_EQ(table().attention_geometry(0, kernel, 128, 128).tile_rows, 0);
    EXPECT_EQ(table().attention(0, kernel, launch, nullptr, &failure), Result::kUnsupported);
  }
}

TEST(CudaRuntime, KernelsRunOnTheDeviceThatWasNamed) {
  constexpr int32_t kRows = 5, kElements = 7;
  for (int32_t device = 0; device < std::min(2, device_count()); ++device) {
    Stream stream = nullptr;
    ok(table().create_stream, device, &stream);
    void *in = nullptr, *out = nullptr;
    const int64_t bytes = kRows * kElements * int64_t{sizeof(float)};
    ok(table().allocate, device, bytes, &in);
    ok(table().allocate, device, bytes, &out);
    const std::vector<uint8_t> zeros(static_cast<size_t>(bytes), 0);
    std::vector<float> values(kRows * kElements);
    std::iota(values.begin(), values.end(), 1.0f);
    std::vector<uint8_t> raw(static_cast<size_t>(bytes));
    std::memcpy(raw.data(), values.data(), raw.size());
    write(device, in, raw);
    write(device, out, zeros);
    ConvertParams params{};
    params.in = static_cast<const std::byte*>(in);
    params.out = static_cast<std::byte*>(out);
    params.in_stride = params.out_stride = kElements * int64_t{sizeof(float)};
    params.in_type = params.out_type = kernels::DType::kF32;
    params.num_rows = kRows;
    params.num_elements = kElements;
    check(cudaSetDevice(0), "cudaSetDevice");
    Failure failure{};
    EXPECT_EQ(table().convert(device, params, stream, &failure), Result::kOk) << failure.text;
    EXPECT_EQ(current_device(), 0);
    ok(table().synchronize, device, stream);
    EXPECT_EQ(read(device, out, raw.size()), raw);
    table().free(device, out);
    table().free(device, in);
    table().destroy_stream(device, stream);
  }
}

TEST(CudaRuntime, ThreadsUseOneDeviceTogether) {
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < 4; ++number) {
    threads.emplace_back([number] {
      const int64_t granule = info_of(0).granularity;
      void* start = nullptr;
      ok(table().reserve, 0, 8 * granule, &start);
      for (int64_t i = 0; i < 8; ++i) {
        ok(table().commit, 0, start, i * granule, (i + 1) * granule);
        auto* const here = static_cast<std::byte*>(start) + i * granule;
        const std::vector<uint8_t> values = pattern(3000, number * 100 + static_cast<uint32_t>(i));
        write(0, here, values);
        EXPECT_EQ(read(0, here, values.size()), values);
        if (i % 3 == 2) ok(table().discard, 0, start, int64_t{0}, i * granule);
      }
      table().release(0, start);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvc::cuda
