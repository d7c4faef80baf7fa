// A back end without CUDA for tests of the core: memory from the host, streams and events that only
// remember what they were told, and a failure at any call.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/table.h"
#include "kvcache.h"
#include "src/device/gpu.h"

namespace kvc::fake {

struct FakeBackend {
  static constexpr int32_t kNumDevices = 2;

  int64_t calls = 0;
  int64_t failing_call = -1;  // of those that can fail, from 0
  cuda::Result failing_with = cuda::Result::kDevice;
  int64_t memory_limit = INT64_MAX;

  std::map<void*, int64_t> memory, ordered, pinned, reserved;  // ordered: of a stream
  std::set<void*> streams, capturing;
  cuda::Stream unaskable = reinterpret_cast<cuda::Stream>(-1);  // is_capturing answers kCapture
  struct EventState {
    cuda::Stream recorded_on = nullptr;
    bool is_done = true;
  };
  std::map<void*, EventState> events;
  std::vector<std::string> log;  // "record 5" and "wait 6 for 5": streams by their numbers
  cuda::BackendTable table{};

  // Installed until it goes. One at a time.
  FakeBackend();
  ~FakeBackend();
  FakeBackend(const FakeBackend&) = delete;
  FakeBackend& operator=(const FakeBackend&) = delete;

  bool is_empty() const {
    return memory.empty() && ordered.empty() && pinned.empty() && reserved.empty() &&
           streams.empty() && events.empty();
  }
  void finish_all() {
    for (auto& [event, state] : events) state.is_done = true;
  }
  Gpu device(int32_t id = 0) const { return {&table, id}; }
};

// A stream of the caller's.
inline cuda::Stream stream_number(intptr_t number) {
  return reinterpret_cast<cuda::Stream>(number);
}

inline FakeBackend*& fake_backend() {
  static FakeBackend* fake = nullptr;
  return fake;
}

namespace fake {

inline bool fails(cuda::Failure* failure, const char* what) {
  FakeBackend& f = *fake_backend();
  if (f.calls++ != f.failing_call) return false;
  failure->error = 77;
  std::snprintf(failure->text, sizeof(failure->text), "%s was told to fail", what);
  return true;
}
inline cuda::Result failure_of() { return fake_backend()->failing_with; }

inline cuda::Result take(std::map<void*, int64_t>& owner, int64_t bytes, void** address,
                         cuda::Failure* failure, const char* what) {
  if (fails(failure, what)) return failure_of();
  FakeBackend& f = *fake_backend();
  if (bytes > f.memory_limit) {
    std::snprintf(failure->text, sizeof(failure->text), "%s: out of memory", what);
    return cuda::Result::kNoMemory;
  }
  *address = std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
  owner[*address] = bytes;
  return cuda::Result::kOk;
}
inline void give(std::map<void*, int64_t>& owner, void* address) {
  if (owner.erase(address) != 1) std::abort();  // freed twice, or never allocated
  std::free(address);
}
inline long long number(cuda::Stream stream) {
  return static_cast<long long>(reinterpret_cast<intptr_t>(stream));
}

}  // namespace fake

inline FakeBackend::FakeBackend() {
  using cuda::Failure, cuda::Result, cuda::Stream, cuda::Event;
  fake_backend() = this;
  static const std::string version = [] {
    const std::string text = kvc_version_string();
    return text.substr(0, text.find(' '));
  }();
  table.struct_size = sizeof(table);
  table.version = version.c_str();
  table.count_devices = [](int32_t* out, Failure* failure) {
    if (fake::fails(failure, "count_devices")) return fake::failure_of();
    *out = kNumDevices;
    return Result::kOk;
  };
  table.query_device = [](int32_t, cuda::DeviceInfo* out, Failure* failure) {
    if (fake::fails(failure, "query_device")) return fake::failure_of();
    out->arch = 90;
    return Result::kOk;
  };
  table.reserve = [](int32_t, int64_t bytes, void** address, Failure* failure) {
    return fake::take(fake_backend()->reserved, bytes, address, failure, "reserve");
  };
  table.commit = [](int32_t, void*, int64_t, int64_t, Failure* failure) {
    return fake::fails(failure, "commit") ? fake::failure_of() : Result::kOk;
  };
  table.discard = [](int32_t, void*, int64_t, int64_t, Failure* failure) {
    return fake::fails(failure, "discard") ? fake::failure_of() : Result::kOk;
  };
  table.release = [](int32_t, void* address) { fake::give(fake_backend()->reserved, address); };
  table.allocate = [](int32_t, int64_t bytes, void** address, Failure* failure) {
    return fake::take(fake_backend()->memory, bytes, address, failure, "allocate");
  };
  table.free = [](int32_t, void* address) { fake::give(fake_backend()->memory, address); };
  table.allocate_on = [](int32_t, int64_t bytes, Stream stream, void** address, Failure* failure) {
    if (fake_backend()->capturing.count(stream) != 0) std::abort();  // it would be the graph's
    return fake::take(fake_backend()->ordered, bytes, address, failure, "allocate_on");
  };
  table.free_on = [](int32_t, void* address, Stream stream) {
    FakeBackend& f = *fake_backend();
    if (f.capturing.count(stream) != 0) std::abort();
    fake::give(f.ordered, address);
    f.log.push_back("free on " + std::to_string(fake::number(stream)));
  };
  table.free_idle = [](int32_t, void* address) { fake::give(fake_backend()->ordered, address); };
  table.trim = [](int32_t) { fake_backend()->log.push_back("trim"); };
  table.allocate_pinned = [](int64_t bytes, void** address, Failure* failure) {
    return fake::take(fake_backend()->pinned, bytes, address, failure, "allocate_pinned");
  };
  table.free_pinned = [](void* address) { fake::give(fake_backend()->pinned, address); };
  table.locate = [](const void* address, int32_t* device, Failure* failure) {
    if (fake::fails(failure, "locate")) return fake::failure_of();
    FakeBackend& f = *fake_backend();
    auto* const key = const_cast<void*>(address);
    *device = f.memory.count(key) != 0 ? 0 : f.pinned.count(key) != 0 ? -1 : -2;
    return Result::kOk;
  };
  table.create_stream = [](int32_t, Stream* out, Failure* failure) {
    if (fake::fails(failure, "create_stream")) return fake::failure_of();
    *out = std::malloc(1);
    fake_backend()->streams.insert(*out);
    return Result::kOk;
  };
  table.destroy_stream = [](int32_t, Stream stream) {
    if (fake_backend()->streams.erase(stream) != 1) std::abort();
    std::free(stream);
  };
  table.synchronize = [](int32_t, Stream stream, Failure* failure) {
    if (fake::fails(failure, "synchronize")) return fake::failure_of();
    fake_backend()->log.push_back("synchronize " + std::to_string(fake::number(stream)));
    return Result::kOk;
  };
  table.is_capturing = [](int32_t, Stream stream, int32_t* out, Failure* failure) {
    if (fake::fails(failure, "is_capturing")) return fake::failure_of();
    FakeBackend& f = *fake_backend();
    if (stream == f.unaskable) return Result::kCapture;
    *out = f.capturing.count(stream) != 0 ? 1 : 0;
    return Result::kOk;
  };
  table.create_event = [](int32_t, Event* out, Failure* failure) {
    if (fake::fails(failure, "create_event")) return fake::failure_of();
    *out = std::malloc(1);
    fake_backend()->events[*out] = {};
    return Result::kOk;
  };
  table.destroy_event = [](int32_t, Event event) {
    if (fake_backend()->events.erase(event) != 1) std::abort();
    std::free(event);
  };
  table.record_event = [](int32_t, Event event, Stream stream, Failure* failure) {
    if (fake::fails(failure, "record_event")) return fake::failure_of();
    FakeBackend& f = *fake_backend();
    // The library records nothing into a host's capture
    if (f.capturing.count(stream) != 0) std::abort();
    f.events.at(event) = {stream, false};
    f.log.push_back("record " + std::to_string(fake::number(stream)));
    return Result::kOk;
  };
  table.record_launches = [](int32_t, Event, Stream stream, Failure* failure) {
    if (fake::fails(failure, "record_launches")) return fake::failure_of();
    FakeBackend& f = *fake_backend();
    if (f.capturing.count(stream) == 0) std::abort();
    f.log.push_back("record launches of " + std::to_string(fake::number(stream)));
    return Result::kOk;
  };
  table.wait_event = [](int32_t, Event event, Stream stream, Failure* failure) {
    if (fake::fails(failure, "wait_event")) return fake::failure_of();
    FakeBackend& f = *fake_backend();
    if (f.capturing.count(stream) != 0) std::abort();
    f.log.push_back("wait " + std::to_string(fake::number(stream)) + " for " +
                    std::to_string(fake::number(f.events.at(event).recorded_on)));
    return Result::kOk;
  };
  table.query_event = [](int32_t, Event event, int32_t* done, Failure* failure) {
    if (fake::fails(failure, "query_event")) return fake::failure_of();
    *done = fake_backend()->events.at(event).is_done ? 1 : 0;
    return Result::kOk;
  };
  table.copy = [](int32_t, void*, const void*, int64_t bytes, Stream, Failure* failure) {
    if (fake::fails(failure, "copy")) return fake::failure_of();
    fake_backend()->log.push_back("copy " + std::to_string(bytes));
    return Result::kOk;
  };
  table.fill = [](int32_t, void*, int32_t byte, int64_t bytes, Stream, Failure* failure) {
    if (fake::fails(failure, "fill")) return fake::failure_of();
    fake_backend()->log.push_back("fill " + std::to_string(bytes) + " with " +
                                  std::to_string(byte));
    return Result::kOk;
  };
  std::string why;
  if (!install_backend(&table, &why)) std::abort();
}

inline FakeBackend::~FakeBackend() {
  (void)install_backend(nullptr, nullptr);
  fake_backend() = nullptr;
}

}  // namespace kvc::fake
