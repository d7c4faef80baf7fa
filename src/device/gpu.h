// Devices without CUDA types: the back end in libkvcache_cuda.so, found at run time, and owners of
// what it hands out. A build without the back end has the same code.
//
// Owners are used by one thread at a time. Destructors swallow failures: nobody could be told of a
// lost device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/table.h"

namespace kvc {

// ---- The back end

// Loads one file by its absolute path. Null: it is no back end of this version, and `why` says
// more.
const cuda::BackendTable* load_backend(const char* file, std::string* why);
// The table of libkvcache_cuda.so in the directory of modules (kvc_module_path_set). The first call
// loads it; it is never unloaded. A failure is remembered until set_module_path: null, and `why`
// (nullable) gets the reason. Loading needs no driver. Threading: any.
const cuda::BackendTable* find_backend(std::string* why);
// The same; throws KVC_E_UNSUPPORTED with the reason.
const cuda::BackendTable& require_backend();
// For tests: uses this table, checked like a library's, instead of the library. Null: the library
// again. Returns false when it is refused, and nothing has changed.
bool install_backend(const cuda::BackendTable* table, std::string* why);

// Throws unless `result` is kOk; detail and sys_code are CUDA's number.
//   kNoMemory                       KVC_E_NO_MEMORY
//   kUnsupported                    KVC_E_UNSUPPORTED
//   kCapture                        KVC_E_INVALID_STATE
//   kDevice, kNoDriver, kNoDevice   KVC_E_DEVICE: the device has stopped working
void check(cuda::Result result, const cuda::Failure& failure, const char* what);

// Alignment of arrays that share an allocation on a device.
constexpr int64_t kArrayAlignment = 256;

// A device that has been found usable, by value.
struct Gpu {
  const cuda::BackendTable* table = nullptr;
  int32_t id = -1;

  // device.call("append", device.table->append, launch, stream) calls function(id, launch, stream,
  // &failure) and checks the result.
  template <typename... Params, typename... Args>
  void call(const char* what, cuda::Result (*function)(int32_t, Params...), Args&&... args) const {
    cuda::Failure failure{};
    check(function(id, std::forward<Args>(args)..., &failure), failure, what);
  }
  void copy(void* to, const void* from, int64_t bytes, cuda::Stream stream) const;  // any direction
  void fill(void* to, int32_t byte, int64_t bytes, cuda::Stream stream) const;
  void synchronize(cuda::Stream stream) const;  // blocks
  // Throws KVC_E_INVALID_STATE when CUDA forbids the question: of the legacy default stream while
  // another stream is captured.
  bool is_capturing(cuda::Stream stream) const;
  // False: the legacy default stream, while a capture forbids its use.
  bool is_usable(cuda::Stream stream) const noexcept;
  // The stream is captured, or not usable: an out-of-band call needs another stream.
  bool excludes_out_of_band(cuda::Stream stream) const;

  friend bool operator==(const Gpu&, const Gpu&) = default;
};

// For new caches and queries. KVC_E_UNSUPPORTED: no back end, no driver, or a device of an
// architecture that the build has no code for; KVC_E_OUT_OF_RANGE: no device of this number;
// KVC_E_DEVICE: the device fails.
Gpu require_device(int32_t id);
cuda::DeviceInfo device_info(const Gpu& device);
// GPUs of the machine; 0 without a back end or a driver.
int32_t count_devices();
// Where `address` lies: a device's number, -1: pinned host memory, -2: memory that CUDA does not
// know.
int32_t locate(const Gpu& device, const void* address);

// ---- Memory

// Memory on a device: 256-byte aligned, contents undefined. Its users must be done when it is
// destroyed, which may block until the device is idle.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const Gpu& device, int64_t bytes);  // throws NO_MEMORY
  // Allocates in the order of `stream`, which is not captured, without waiting. Uses on other
  // streams are ordered behind this call.
  DeviceMemory(const Gpu& device, int64_t bytes, cuda::Stream stream);  // throws NO_MEMORY
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  // Frees it behind the present work of `stream`, which is not captured. Waits only when it was not
  // allocated in the order of a stream.
  void free_on(cuda::Stream stream) noexcept;

  int64_t bytes() const { return bytes_; }
  const Gpu& device() const { return device_; }

 private:
  Gpu device_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  bool is_of_stream_ = false;
};

// The first member of classes with scratch on a device, so destroyed last. Its destructor returns
// the memory that the device's pool keeps.
class ScratchTrim {
 public:
  explicit ScratchTrim(const Gpu& device) : device_(device) {}
  ~ScratchTrim() { device_.table->trim(device_.id); }
  ScratchTrim(const ScratchTrim&) = delete;
  ScratchTrim& operator=(const ScratchTrim&) = delete;

 private:
  Gpu device_;
};

// Address space that gets memory part by part; addresses never move. The device's ReservedMemory.
class DeviceReservation {
 public:
  DeviceReservation() = default;
  DeviceReservation(const Gpu& device, int64_t bytes);  // throws NO_MEMORY, UNSUPPORTED
  ~DeviceReservation();
  DeviceReservation(DeviceReservation&& other) noexcept;
  DeviceReservation& operator=(DeviceReservation&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  const Gpu& device() const { return device_; }
  // Makes [begin, end) usable, widened to granules. New memory has undefined contents. Throws
  // NO_MEMORY: nothing was added.
  void commit(int64_t begin, int64_t end);
  // Releases the memory of the whole granules inside [begin, end). They have to be committed again
  // before use. Blocks until the device is idle.
  void discard(int64_t begin, int64_t end);

 private:
  Gpu device_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Host memory that every device reads and writes at the same address.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const Gpu& device, int64_t bytes);  // throws NO_MEMORY
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

// A stream of the library. It and the legacy default stream do not wait for each other.
class DeviceStream {
 public:
  DeviceStream() = default;
  explicit DeviceStream(const Gpu& device);
  ~DeviceStream();
  DeviceStream(DeviceStream&& other) noexcept;
  DeviceStream& operator=(DeviceStream&& other) noexcept;

  cuda::Stream get() const { return stream_; }
  const Gpu& device() const { return device_; }
  void synchronize() const;  // blocks

 private:
  Gpu device_;
  cuda::Stream stream_ = nullptr;
};

class DeviceEvent {
 public:
  DeviceEvent() = default;
  explicit DeviceEvent(const Gpu& device);
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&& other) noexcept;
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;

  explicit operator bool() const { return event_ != nullptr; }
  // Stands for the present work of `stream`.
  void record(cuda::Stream stream) const;
  bool try_record(cuda::Stream stream) const noexcept;
  // Stands for every launch of the graph that `stream` is captured for.
  bool try_record_launches(cuda::Stream stream) const noexcept;
  // Makes `stream` wait for the event; the caller does not wait.
  void wait_on(cuda::Stream stream) const;
  // True for an event that was never recorded.
  bool is_done() const;

 private:
  Gpu device_;
  cuda::Event event_ = nullptr;
};

// Grow-only scratch on a device. Growing keeps no contents and waits for nothing: new memory comes
// in the order of the stream, and the old memory is freed behind its last use there. Memory that a
// captured graph may name is kept as long as the buffer. Memory for a capture is allocated outside
// of the stream's order, or it would be the graph's own.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(const Gpu& device) : device_(device) {}

  // Makes room for `bytes`. `stream` uses the buffer next; all earlier uses are ordered before that
  // (DeviceOrder). Returns whether the address has changed. Throws: the old memory is kept.
  bool ensure(int64_t bytes, cuda::Stream stream);
  std::byte* data() const { return memory_.data(); }
  int64_t bytes() const { return memory_.bytes(); }
  const Gpu& device() const { return device_; }

 private:
  Gpu device_;
  DeviceMemory memory_;
  bool was_captured_ = false;  // A use of the present memory was captured.
  std::vector<DeviceMemory> of_graphs_;
};

// Order between streams that use the same memory one after the other: the pool of a cache, its
// tables, its scratch.
//
//   order.use(stream);  …enqueue on stream…  order.used(stream);
//
// use() waits for the last use on the same stream too. Stream handles are reused (a destroyed
// stream, cudaStreamPerThread of another thread), and a stream that waits for itself costs nothing
// on the device. Call the pair per forward or operation, not per kernel. While `stream` is captured
// both do nothing: work inside a capture cannot wait for work outside it, nor the other way round.
// A capture therefore begins after a wait for earlier work, and used_by_launches() makes other
// streams wait for the graph.
class DeviceOrder {
 public:
  DeviceOrder() = default;
  explicit DeviceOrder(const Gpu& device) : device_(device), event_(device) {}

  void use(cuda::Stream stream);
  // The last work is enqueued. Waits for the stream when the event cannot be recorded.
  void used(cuda::Stream stream) noexcept;
  // The last work was captured: every launch of its graph is a use, wherever it is launched.
  void used_by_launches(cuda::Stream captured) noexcept;
  // Whether the device is done with all uses.
  bool is_idle() const;

 private:
  Gpu device_;
  DeviceEvent event_;
  bool has_uses_ = false;
};

}  // namespace kvc
