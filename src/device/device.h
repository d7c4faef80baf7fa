// Devices as the core sees them: the back end in libkvcache_cuda.so, found at run time, and owners
// of what it hands out. No CUDA types; a build without the back end takes the same code.
//
// None of the owners is made for several threads at once. Destructors swallow failures: a device
// that is lost cannot be told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/table.h"

namespace kvc {

// ---- The back end

// One file, by its absolute path; null and `why` where it is no back end of this version.
const cuda::BackendTable* load_backend(const char* file, std::string* why);
// The table of libkvcache_cuda.so in the directory of modules (kvc_module_path_set). Loaded by the
// first call that finds it and never unloaded; a failure is remembered until set_module_path. Null:
// `why` (may be null) gets the reason. No driver is needed to load it. Threading: any.
const cuda::BackendTable* find_backend(std::string* why);
// kvc_module_path_set. Throws INVALID_ARGUMENT, INVALID_STATE. Threading: any.
void set_module_path(const char* path);
// The same; throws KVC_E_UNSUPPORTED with the reason.
const cuda::BackendTable& require_backend();
// For tests: this table, checked like a library's, instead of the library; null: the library again.
// False: refused, and nothing changed.
bool install_backend(const cuda::BackendTable* table, std::string* why);

// Throws unless `result` is kOk; detail and sys_code are CUDA's number.
//   kNoMemory                       KVC_E_NO_MEMORY
//   kUnsupported                    KVC_E_UNSUPPORTED
//   kCapture                        KVC_E_INVALID_STATE
//   kDevice, kNoDriver, kNoDevice   KVC_E_DEVICE: what worked before has stopped working
void check(cuda::Result result, const cuda::Failure& failure, const char* what);

// Of arrays that share an allocation on a device.
constexpr int64_t kArrayAlignment = 256;

// A device that has been found usable, by value.
struct Device {
  const cuda::BackendTable* table = nullptr;
  int32_t id = -1;

  // device.call("append", device.table->append, launch, stream): calls function(id, launch, stream,
  // &failure) and checks it.
  template <typename... Params, typename... Args>
  void call(const char* what, cuda::Result (*function)(int32_t, Params...), Args&&... args) const {
    cuda::Failure failure{};
    check(function(id, std::forward<Args>(args)..., &failure), failure, what);
  }
  void copy(void* to, const void* from, int64_t bytes, cuda::Stream stream) const;  // any direction
  void fill(void* to, int32_t byte, int64_t bytes, cuda::Stream stream) const;
  void synchronize(cuda::Stream stream) const;  // blocks
  // Throws KVC_E_INVALID_STATE where `stream` may not even be asked: the legacy default stream
  // while another one is captured.
  bool is_capturing(cuda::Stream stream) const;
  // False: the legacy default stream, while a capture forbids its use.
  bool is_usable(cuda::Stream stream) const noexcept;
  // Captured, or not usable: what is no part of the capture has to go to another stream.
  bool is_beside_capture(cuda::Stream stream) const;

  friend bool operator==(const Device&, const Device&) = default;
};

// For new caches and queries. KVC_E_UNSUPPORTED: no back end, no driver, or a device of an
// architecture that the build has no code for; KVC_E_OUT_OF_RANGE: no device of this number;
// KVC_E_DEVICE: the device fails.
Device require_device(int32_t id);
cuda::DeviceInfo device_info(const Device& device);
// Of the machine; 0 without a back end or a driver.
int32_t count_devices();
// Where `address` lies: a device's number, -1: pinned host memory, -2: memory that CUDA does not
// know.
int32_t locate(const Device& device, const void* address);

// ---- Memory

// 256-byte aligned, contents undefined. Destroying it may block until the device is idle; the
// caller knows that nothing uses it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const Device& device, int64_t bytes);  // throws NO_MEMORY
  // In the order of `stream`, which is not captured, without waiting: what other streams do with it
  // is ordered behind this call.
  DeviceMemory(const Device& device, int64_t bytes, cuda::Stream stream);  // throws NO_MEMORY
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  // Gives it back behind what `stream`, which is not captured, was given so far. Waits only where
  // it did not come in the order of a stream.
  void free_on(cuda::Stream stream) noexcept;

  int64_t bytes() const { return bytes_; }
  const Device& device() const { return device_; }

 private:
  Device device_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool is_of_stream_ = false;
};

// The first member of whoever has scratch on a device: when all else is gone, what the device's
// pool keeps goes back to the device.
class ScratchTrim {
 public:
  explicit ScratchTrim(const Device& device) : device_(device) {}
  ~ScratchTrim() { device_.table->trim(device_.id); }
  ScratchTrim(const ScratchTrim&) = delete;
  ScratchTrim& operator=(const ScratchTrim&) = delete;

 private:
  Device device_;
};

// Address space that gets memory piece by piece; addresses never move. The device's ReservedMemory.
class DeviceReservation {
 public:
  DeviceReservation() = default;
  DeviceReservation(const Device& device, int64_t bytes);  // throws NO_MEMORY, UNSUPPORTED
  ~DeviceReservation();
  DeviceReservation(DeviceReservation&& other) noexcept;
  DeviceReservation& operator=(DeviceReservation&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  const Device& device() const { return device_; }
  // Make [begin, end) usable (widened to granules); contents undefined where there was no memory.
  // Throws NO_MEMORY: nothing was added.
  void commit(int64_t begin, int64_t end);
  // Give the memory of the whole granules inside [begin, end) back, which then have to be committed
  // again. Blocks until the device is idle.
  void discard(int64_t begin, int64_t end);

 private:
  Device device_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Host memory that every device reads and writes at the same address.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const Device& device, int64_t bytes);  // throws NO_MEMORY
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  const cuda::BackendTable* table_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// ---- Streams and events

// The library's own: does not wait for the legacy default stream, nor that one for it.
class DeviceStream {
 public:
  DeviceStream() = default;
  explicit DeviceStream(const Device& device);
  ~DeviceStream();
  DeviceStream(DeviceStream&& other) noexcept;
  DeviceStream& operator=(DeviceStream&& other) noexcept;

  cuda::Stream get() const { return stream_; }
  const Device& device() const { return device_; }
  void synchronize() const;  // blocks

 private:
  Device device_;
  cuda::Stream stream_ = nullptr;
};

class DeviceEvent {
 public:
  DeviceEvent() = default;
  explicit DeviceEvent(const Device& device);
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&& other) noexcept;
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;

  explicit operator bool() const { return event_ != nullptr; }
  void record(cuda::Stream stream) const;  // what `stream` was given so far
  bool try_record(cuda::Stream stream) const noexcept;
  // Of the graph that `stream` is captured for
  bool try_record_launches(cuda::Stream stream) const noexcept;
  // `stream` goes on when that is done; the caller does not wait
  void wait_on(cuda::Stream stream) const;
  bool is_done() const;  // true for an event that was never recorded

 private:
  Device device_;
  cuda::Event event_ = nullptr;
};

// Grow-only scratch on a device. Contents are not kept when it grows, and growing waits for
// nothing: memory comes in the order of the stream, and what it grew out of goes behind its last
// use there. What a captured graph may have seen is kept as long as the buffer, for the graph names
// its address; memory that a capture asks for is plain, or it would be the graph's own.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(const Device& device) : device_(device) {}

  // At least `bytes`. `stream`: where the buffer is used; all earlier uses are ordered before what
  // follows on it (DeviceOrder). True: the address has changed. Throws: the old memory is kept.
  bool ensure(int64_t bytes, cuda::Stream stream);
  std::byte* data() const { return memory_.data(); }
  int64_t bytes() const { return memory_.bytes(); }
  const Device& device() const { return device_; }

 private:
  Device device_;
  DeviceMemory memory_;
  bool was_captured_ = false;  // a use of the present memory was captured
  std::vector<DeviceMemory> of_graphs_;
};

// Order between streams that use the same memory one after the other: the pool of a cache, its
// tables, its scratch.
//
//   order.use(stream);  …enqueue on stream…  order.used(stream);
//
// use() waits for the last use on the same stream too: handles are used again (a stream that was
// destroyed, cudaStreamPerThread of another thread), and a stream that waits for itself costs
// nothing on the device. So call the pair per forward or operation, not per kernel. While `stream`
// is captured both do nothing: work outside a capture cannot be waited for inside it, nor the other
// way round. Whoever captures waits for earlier work before, and has other streams wait for the
// graph by used_by_launches().
class DeviceOrder {
 public:
  DeviceOrder() = default;
  explicit DeviceOrder(const Device& device) : device_(device), event_(device) {}

  void use(cuda::Stream stream);
  // After the last work was enqueued. Where the event cannot be recorded it waits for the stream
  // instead.
  void used(cuda::Stream stream) noexcept;
  // The last work was captured: every launch of its graph is a use, wherever it is launched.
  void used_by_launches(cuda::Stream captured) noexcept;
  bool is_idle() const;  // whether the device is done with all uses

 private:
  Device device_;
  DeviceEvent event_;
  bool has_uses_ = false;
};

}  // namespace kvc
