#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "src/base/error.h"
#include "src/device/gpu.h"
#include "tests/unit/device_fake.h"

namespace kvc {
namespace {

using fake::FakeBackend;
using fake::stream_number;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Error error_of_device(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(KVC_OK, 0);
}

// ---- The library

TEST(DeviceLibrary, AFileThatIsNotThereGivesTheLinkersReason) {
  std::string why;
  EXPECT_EQ(load_backend("/nowhere/libkvcache_cuda.so", &why), nullptr);
  EXPECT_THAT(why, HasSubstr("/nowhere/libkvcache_cuda.so"));
  EXPECT_EQ(load_backend("/nowhere/libkvcache_cuda.so", nullptr), nullptr);
}

TEST(DeviceLibrary, AnotherLibraryIsNoBackEnd) {
  std::string why;
  Dl_info library{};
  ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "malloc"), &library), 0);
  EXPECT_EQ(load_backend(library.dli_fname, &why), nullptr);
  EXPECT_THAT(why, HasSubstr(std::string(library.dli_fname) + " is no such module of kvcache"));
  EXPECT_THAT(why, HasSubstr("kvc_cuda_backend"));
}

TEST(DeviceLibrary, NamesThatTheLinkerWouldSearchForAreNotLoaded) {
  for (const char* name : {"libm.so.6", "libkvcache_cuda.so", "./libkvcache_cuda.so",
                           "/opt/$LIB/libkvcache_cuda.so", ""}) {
    std::string why;
    EXPECT_EQ(load_backend(name, &why), nullptr);
    EXPECT_THAT(why, HasSubstr(std::string(name) +
                               " is not loaded: a module is named by an absolute path"));
  }
}

TEST(DeviceLibrary, IsUnsupportedWithTheReasonWhereThereIsNone) {
  std::string why;
  if (find_backend(&why) != nullptr) GTEST_SKIP() << "a back end lies beside this program";
  EXPECT_THAT(why, HasSubstr("libkvcache_cuda.so"));
  for (const auto& call : {std::function<void()>([] { (void)require_backend(); }),
                           std::function<void()>([] { (void)require_device(0); })}) {
    const Error error = error_of_device(call);
    EXPECT_EQ(error.status(), KVC_E_UNSUPPORTED);
    EXPECT_THAT(error.what(), HasSubstr("no CUDA back end"));
    EXPECT_THAT(error.what(), HasSubstr("libkvcache_cuda.so"));
  }
  EXPECT_EQ(count_devices(), 0);
}

TEST(DeviceLibrary, TablesOfOtherVersionsAreRefused) {
  const FakeBackend fake;
  std::string why;
  cuda::BackendTable other = fake.table;
  other.version = "0.0.9";
  EXPECT_FALSE(install_backend(&other, &why));
  EXPECT_THAT(why, HasSubstr("version 0.0.9"));
  other.version = nullptr;
  EXPECT_FALSE(install_backend(&other, &why));
  other = fake.table;
  other.struct_size -= 8;
  EXPECT_FALSE(install_backend(&other, &why));
  EXPECT_THAT(why, HasSubstr(std::to_string(other.struct_size)));
  EXPECT_EQ(find_backend(nullptr), &fake.table) << "nothing has changed";
}

TEST(DeviceLibrary, ThreadsFindTheSameTable) {
  const FakeBackend fake;
  std::vector<std::thread> threads;
  std::vector<const cuda::BackendTable*> found(4, nullptr);
  for (auto& table : found) threads.emplace_back([&table] { table = &require_backend(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector<const cuda::BackendTable*>(4, &fake.table));
}

// ---- Statuses

TEST(DeviceStatus, SaysWhatTheBackEndSaid) {
  cuda::Failure failure{700, "cudaMemcpyAsync: cudaErrorIllegalAddress (…)"};
  const std::pair<cuda::Result, kvc_status> expected[] = {
      {cuda::Result::kNoMemory, KVC_E_NO_MEMORY},
      {cuda::Result::kDevice, KVC_E_DEVICE},
      {cuda::Result::kNoDriver, KVC_E_DEVICE},
      {cuda::Result::kNoDevice, KVC_E_DEVICE},
      {cuda::Result::kUnsupported, KVC_E_UNSUPPORTED},
      {cuda::Result::kCapture, KVC_E_INVALID_STATE},
      {static_cast<cuda::Result>(99), KVC_E_DEVICE}};
  for (const auto& [result, status] : expected) {
    const Error error = error_of_device([&, result = result] { check(result, failure, "append"); });
    EXPECT_EQ(error.status(), status);
    EXPECT_EQ(error.detail(), 700);
    EXPECT_EQ(error.sys_code(), 700);
    EXPECT_STREQ(error.what(), "append: cudaMemcpyAsync: cudaErrorIllegalAddress (…)");
  }
  EXPECT_NO_THROW(check(cuda::Result::kOk, failure, "append"));
}

TEST(DeviceStatus, DevicesThatAreNotThereAreToldApart) {
  FakeBackend fake;
  EXPECT_EQ(count_devices(), 2);
  EXPECT_EQ(require_device(1), fake.device(1));
  EXPECT_EQ(device_info(fake.device(1)).arch, 90);
  for (const int32_t id : {-1, 2, INT32_MAX}) {
    const Error error = error_of_device([id] { (void)require_device(id); });
    EXPECT_EQ(error.status(), KVC_E_OUT_OF_RANGE);
    EXPECT_EQ(error.detail(), id);
  }
  // Counting, then querying.
  const std::pair<cuda::Result, kvc_status> expected[] = {
      {cuda::Result::kNoDriver, KVC_E_UNSUPPORTED},
      {cuda::Result::kNoDevice, KVC_E_UNSUPPORTED},
      {cuda::Result::kUnsupported, KVC_E_UNSUPPORTED},
      {cuda::Result::kDevice, KVC_E_DEVICE}};
  for (const auto& [result, status] : expected) {
    for (int64_t call = 0; call < 2; ++call) {
      fake.failing_call = fake.calls + call;
      fake.failing_with = result;
      const Error error = error_of_device([] { (void)require_device(0); });
      EXPECT_EQ(error.status(), status);
      EXPECT_EQ(error.sys_code(), 77);
    }
  }
  fake.failing_call = fake.calls;
  EXPECT_EQ(count_devices(), 0) << "of a machine whose driver does not answer";
}

TEST(DeviceStatus, NoDevicesAtAllAreUnsupported) {
  FakeBackend fake;
  fake.table.count_devices = [](int32_t* out, cuda::Failure*) {
    *out = 0;
    return cuda::Result::kOk;
  };
  EXPECT_EQ(error_of_device([] { (void)require_device(0); }).status(), KVC_E_UNSUPPORTED);
}

// ---- Owners

TEST(DeviceOwners, GiveBackWhatTheyHoldOnce) {
  FakeBackend fake;
  const Gpu device = fake.device();
  {
    DeviceMemory memory(device, 1000);
    EXPECT_EQ(memory.bytes(), 1000);
    DeviceMemory of_stream(device, 100, stream_number(3));
    DeviceMemory moved_of_stream;
    moved_of_stream = std::move(of_stream);
    DeviceMemory second(device, 100, stream_number(3));
    second.free_on(stream_number(4));
    second.free_on(stream_number(4));
    EXPECT_EQ(second.data(), nullptr);
    EXPECT_THAT(fake.log, ElementsAre("free on 4"));
    EXPECT_EQ(locate(device, memory.data()), 0);
    std::byte* const data = memory.data();
    DeviceMemory moved(std::move(memory));
    EXPECT_EQ(moved.data(), data);
    memory = DeviceMemory(device, 10);
    memory = std::move(moved);
    EXPECT_EQ(memory.data(), data);

    DeviceReservation reservation(device, 1 << 20);
    reservation.commit(0, 4096);
    reservation.commit(7, 7);
    reservation.discard(0, 4096);
    DeviceReservation moved_reservation;
    moved_reservation = std::move(reservation);
    EXPECT_EQ(moved_reservation.bytes(), 1 << 20);

    PinnedMemory pinned(device, 64);
    EXPECT_EQ(locate(device, pinned.data()), -1);
    const PinnedMemory moved_pinned(std::move(pinned));

    DeviceStream stream(device);
    stream.synchronize();
    const DeviceStream moved_stream(std::move(stream));
    EXPECT_EQ(fake.streams.count(moved_stream.get()), 1u);

    DeviceEvent event(device);
    EXPECT_TRUE(event.is_done());
    event.record(moved_stream.get());
    EXPECT_FALSE(event.is_done());
    const DeviceEvent moved_event(std::move(event));
    EXPECT_FALSE(event);
    EXPECT_TRUE(moved_event);
    EXPECT_FALSE(fake.is_empty());
    EXPECT_EQ(locate(device, &fake), -2);
  }
  EXPECT_TRUE(fake.is_empty());
}

TEST(DeviceOwners, CopyAndFillSomethingOrNothing) {
  FakeBackend fake;
  int here = 0;
  fake.device().copy(&here, &here, 4, nullptr);
  fake.device().copy(&here, &here, 0, nullptr);
  fake.device().fill(&here, 255, 8, nullptr);
  fake.device().fill(&here, 255, 0, nullptr);
  EXPECT_THAT(fake.log, ElementsAre("copy 4", "fill 8 with 255"));
}

// ---- DeviceBuffer

TEST(DeviceBuffer, GrowsAndGivesBackInTheOrderOfTheStream) {
  FakeBackend fake;
  {
    DeviceBuffer buffer(fake.device());
    EXPECT_EQ(buffer.data(), nullptr);
    EXPECT_FALSE(buffer.ensure(0, stream_number(5)));
    EXPECT_TRUE(buffer.ensure(1000, stream_number(5)));
    EXPECT_FALSE(buffer.ensure(1000, stream_number(5)));
    EXPECT_THAT(fake.log, IsEmpty());
    EXPECT_TRUE(buffer.ensure(1001, stream_number(5)));
    EXPECT_EQ(buffer.bytes(), 1250) << "a quarter more";
    EXPECT_THAT(fake.log, ElementsAre("free on 5")) << "behind what the stream was given";
    EXPECT_EQ(fake.ordered.size(), 1u);
    EXPECT_TRUE(buffer.ensure(5000, stream_number(6)));
    EXPECT_THAT(fake.log, ElementsAre("free on 5", "free on 6"));
    EXPECT_EQ(fake.ordered.size(), 1u);
    EXPECT_TRUE(fake.memory.empty()) << "nothing that freeing would wait for";
  }
  EXPECT_TRUE(fake.is_empty());
}

TEST(DeviceBuffer, TakesNoMoreThanNeededWhenMemoryIsShort) {
  FakeBackend fake;
  DeviceBuffer buffer(fake.device());
  buffer.ensure(1000, nullptr);
  fake.memory_limit = 1100;
  EXPECT_TRUE(buffer.ensure(1100, nullptr));
  EXPECT_EQ(buffer.bytes(), 1100);
  EXPECT_EQ(error_of_device([&] { buffer.ensure(1101, nullptr); }).status(), KVC_E_NO_MEMORY);
  EXPECT_EQ(buffer.bytes(), 1100);
}

TEST(DeviceBuffer, KeepsWhatACapturedGraphNames) {
  FakeBackend fake;
  {
    DeviceBuffer buffer(fake.device());
    buffer.ensure(1000, stream_number(5));
    fake.capturing.insert(stream_number(5));
    buffer.ensure(10, stream_number(5));  // the graph uses the first memory
    buffer.ensure(2000, stream_number(5));
    fake.capturing.clear();
    buffer.ensure(4000, stream_number(5));  // and the second
    buffer.ensure(8000, stream_number(5));  // but not the third
    EXPECT_THAT(fake.log, ElementsAre("free on 5"));
    EXPECT_EQ(fake.ordered.size(), 2u) << "the graph's first and the present one";
    EXPECT_EQ(fake.memory.size(), 1u) << "the graph's second: asked for while it was captured";
  }
  EXPECT_TRUE(fake.is_empty());
}

TEST(DeviceBuffer, AFailureAtAnyCallChangesNothing) {
  for (int64_t call = 0;; ++call) {
    FakeBackend fake;
    bool has_failed = false;
    {
      DeviceBuffer buffer(fake.device());
      buffer.ensure(100, nullptr);
      buffer.ensure(1000, nullptr);
      std::byte* const data = buffer.data();
      fake.failing_call = fake.calls + call;
      try {
        buffer.ensure(5000, nullptr);
      } catch (const Error& error) {
        has_failed = true;
        EXPECT_EQ(error.status(), KVC_E_DEVICE);
        EXPECT_EQ(buffer.data(), data);
        EXPECT_EQ(buffer.bytes(), 1000);
        EXPECT_TRUE(buffer.ensure(5000, nullptr)) << "and the next try succeeds";
      }
    }
    EXPECT_TRUE(fake.is_empty()) << call;
    if (!has_failed) {
      EXPECT_GE(call, 2) << "is_capturing, allocate_on";
      break;
    }
  }
}

// ---- DeviceOrder

TEST(DeviceOrder, LetsEveryStreamWaitForTheLastUse) {
  FakeBackend fake;
  {
    DeviceOrder order(fake.device());
    order.use(stream_number(5));
    EXPECT_TRUE(order.is_idle());
    EXPECT_THAT(fake.log, IsEmpty()) << "there is nothing to wait for";
    order.used(stream_number(5));
    EXPECT_FALSE(order.is_idle());
    order.use(stream_number(5));
    order.used(stream_number(5));
    order.use(stream_number(6));
    order.used(stream_number(6));
    order.use(nullptr);
    EXPECT_THAT(fake.log, ElementsAre("record 5", "wait 5 for 5", "record 5", "wait 6 for 5",
                                      "record 6", "wait 0 for 6"));
    fake.finish_all();
    EXPECT_TRUE(order.is_idle());
  }
  EXPECT_TRUE(fake.is_empty());
}

TEST(DeviceOrder, LeavesCapturesAlone) {
  FakeBackend fake;
  DeviceOrder order(fake.device());
  order.use(stream_number(5));
  order.used(stream_number(5));
  fake.capturing.insert(stream_number(6));
  order.use(stream_number(6));
  order.used(stream_number(6));
  EXPECT_THAT(fake.log, ElementsAre("record 5"));
  order.use(stream_number(7));
  EXPECT_THAT(fake.log, ElementsAre("record 5", "wait 7 for 5"))
      << "what ran, not what was captured";
  fake.unaskable = nullptr;
  EXPECT_EQ(error_of_device([&] { order.use(nullptr); }).status(), KVC_E_INVALID_STATE);
  order.used(nullptr);
  EXPECT_EQ(fake.log.size(), 2u);
}

TEST(DeviceOrder, HasOtherStreamsWaitForTheLaunchesOfAGraph) {
  FakeBackend fake;
  DeviceOrder order(fake.device());
  fake.capturing.insert(stream_number(6));
  fake.failing_call = fake.calls;
  order.used_by_launches(stream_number(6));
  order.use(stream_number(7));
  EXPECT_THAT(fake.log, IsEmpty()) << "the capture has failed";
  order.used_by_launches(stream_number(6));
  order.use(stream_number(7));
  EXPECT_THAT(fake.log, ElementsAre("record launches of 6", "wait 7 for 0"))
      << "the first use of all";
}

TEST(Device, KnowsWhatBelongsBesideACapture) {
  FakeBackend fake;
  const Gpu device = fake.device();
  fake.capturing.insert(stream_number(6));
  fake.unaskable = nullptr;
  EXPECT_FALSE(device.excludes_out_of_band(stream_number(5)));
  EXPECT_TRUE(device.excludes_out_of_band(stream_number(6)));
  EXPECT_TRUE(device.excludes_out_of_band(nullptr));
  EXPECT_TRUE(device.is_usable(stream_number(6)));
  EXPECT_FALSE(device.is_usable(nullptr));
  fake.failing_call = fake.calls + 1;  // the second question
  EXPECT_EQ(error_of_device([&] { (void)device.excludes_out_of_band(stream_number(5)); }).status(),
            KVC_E_DEVICE);
}

TEST(DeviceOrder, WaitsItselfWhereAnEventCannotBeRecorded) {
  FakeBackend fake;
  DeviceOrder order(fake.device());
  order.use(stream_number(5));
  fake.failing_call = fake.calls + 1;  // is_capturing, then record_event
  order.used(stream_number(5));
  EXPECT_THAT(fake.log, ElementsAre("synchronize 5"));
  order.use(stream_number(6));
  EXPECT_EQ(fake.log.size(), 1u) << "all is done";
}

TEST(DeviceOrder, WithoutADeviceDoesNothing) {
  DeviceOrder order;
  order.use(nullptr);
  order.used(nullptr);
  EXPECT_TRUE(order.is_idle());
}

}  // namespace
}  // namespace kvc
