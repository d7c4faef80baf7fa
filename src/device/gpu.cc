#include "src/device/gpu.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>

#include "src/base/error.h"
#include "src/base/modules.h"
#include "src/base/print.h"

namespace kvc {
namespace {

kvc_status status_of(cuda::Result result) {
  switch (result) {
    case cuda::Result::kOk: return KVC_OK;
    case cuda::Result::kNoMemory: return KVC_E_NO_MEMORY;
    case cuda::Result::kUnsupported: return KVC_E_UNSUPPORTED;
    case cuda::Result::kCapture: return KVC_E_INVALID_STATE;
    case cuda::Result::kNoDriver:
    case cuda::Result::kNoDevice:
    case cuda::Result::kDevice: return KVC_E_DEVICE;
  }
  return KVC_E_DEVICE;
}

[[noreturn]] void throw_failure(kvc_status status, const cuda::Failure& failure, const char* what) {
  Error error(status, failure.error);
  print(error.buffer(), Error::kCapacity, "%s: %s", what, failure.text);
  error.set_sys_code(failure.error);
  throw error;
}

// Before anything has worked: what is not there is not available, rather than broken.
void check_first(cuda::Result result, const cuda::Failure& failure, const char* what) {
  if (result == cuda::Result::kNoDriver || result == cuda::Result::kNoDevice) {
    throw_failure(KVC_E_UNSUPPORTED, failure, what);
  }
  check(result, failure, what);
}

// A quarter more than before, so that buffers that grow step by step do not grow at each; no more
// than needed when memory is short.
template <typename Allocate>
DeviceMemory allocate_grown(int64_t bytes, int64_t old_bytes, Allocate allocate) {
  const int64_t roomy = std::max(bytes, old_bytes + old_bytes / 4);
  try {
    return allocate(roomy);
  } catch (const Error& error) {
    if (error.status() != KVC_E_NO_MEMORY || roomy == bytes) throw;
  }
  return allocate(bytes);
}

}  // namespace

void check(cuda::Result result, const cuda::Failure& failure, const char* what) {
  if (result != cuda::Result::kOk) throw_failure(status_of(result), failure, what);
}

// ---- Device

void Gpu::copy(void* to, const void* from, int64_t bytes, cuda::Stream stream) const {
  if (bytes > 0) call("copy", table->copy, to, from, bytes, stream);
}

void Gpu::fill(void* to, int32_t byte, int64_t bytes, cuda::Stream stream) const {
  if (bytes > 0) call("fill", table->fill, to, byte, bytes, stream);
}

void Gpu::synchronize(cuda::Stream stream) const {
  call("wait for a stream", table->synchronize, stream);
}

bool Gpu::is_capturing(cuda::Stream stream) const {
  int32_t capturing = 0;
  call("ask a stream", table->is_capturing, stream, &capturing);
  return capturing != 0;
}

bool Gpu::is_usable(cuda::Stream stream) const noexcept {
  cuda::Failure failure{};
  int32_t capturing = 0;
  return table->is_capturing(id, stream, &capturing, &failure) != cuda::Result::kCapture;
}

bool Gpu::excludes_out_of_band(cuda::Stream stream) const {
  return !is_usable(stream) || is_capturing(stream);
}

Gpu require_device(int32_t id) {
  const cuda::BackendTable& table = require_backend();
  cuda::Failure failure{};
  int32_t count = 0;
  check_first(table.count_devices(&count, &failure), failure, "count CUDA devices");
  if (count == 0) fail(KVC_E_UNSUPPORTED, "the machine has no CUDA device");
  if (id < 0 || id >= count) {
    fail_with(KVC_E_OUT_OF_RANGE, id, "no CUDA device %d: there are %d", id, count);
  }
  cuda::DeviceInfo info{};
  check_first(table.query_device(id, &info, &failure), failure, "query a CUDA device");
  return {&table, id};
}

cuda::DeviceInfo device_info(const Gpu& device) {
  cuda::DeviceInfo info{};
  device.call("query a CUDA device", device.table->query_device, &info);
  return info;
}

int32_t count_devices() {
  const cuda::BackendTable* table = find_backend(nullptr);
  cuda::Failure failure{};
  int32_t count = 0;
  return table != nullptr && table->count_devices(&count, &failure) == cuda::Result::kOk ? count
                                                                                         : 0;
}

int32_t locate(const Gpu& device, const void* address) {
  cuda::Failure failure{};
  int32_t place = -2;
  check(device.table->locate(address, &place, &failure), failure, "locate an address");
  return place;
}

// ---- Memory. Moves swap, so that nothing is freed twice and self-assignment is harmless.

DeviceMemory::DeviceMemory(const Gpu& device, int64_t bytes) : device_(device), bytes_(bytes) {
  void* address = nullptr;
  device_.call("allocate device memory", device_.table->allocate, bytes, &address);
  data_ = static_cast<std::byte*>(address);
}

DeviceMemory::DeviceMemory(const Gpu& device, int64_t bytes, cuda::Stream stream)
    : device_(device), bytes_(bytes), is_of_stream_(true) {
  void* address = nullptr;
  device_.call("allocate device memory", device_.table->allocate_on, bytes, stream, &address);
  data_ = static_cast<std::byte*>(address);
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  (is_of_stream_ ? device_.table->free_idle : device_.table->free)(device_.id, data_);
}

void DeviceMemory::free_on(cuda::Stream stream) noexcept {
  DeviceMemory gone;
  gone = std::move(*this);
  if (!gone.is_of_stream_ || gone.data_ == nullptr) return;
  gone.device_.table->free_on(gone.device_.id, gone.data_, stream);
  gone.data_ = nullptr;
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(is_of_stream_, other.is_of_stream_);
  return *this;
}

DeviceReservation::DeviceReservation(const Gpu& device, int64_t bytes)
    : device_(device), bytes_(bytes) {
  void* address = nullptr;
  device_.call("reserve address space on a device", device_.table->reserve, bytes, &address);
  data_ = static_cast<std::byte*>(address);
}

DeviceReservation::~DeviceReservation() {
  if (data_ != nullptr) device_.table->release(device_.id, data_);
}

DeviceReservation::DeviceReservation(DeviceReservation&& other) noexcept {
  *this = std::move(other);
}

DeviceReservation& DeviceReservation::operator=(DeviceReservation&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceReservation::commit(int64_t begin, int64_t end) {
  if (begin < end) device_.call("commit device memory", device_.table->commit, data_, begin, end);
}

void DeviceReservation::discard(int64_t begin, int64_t end) {
  if (begin < end) device_.call("discard device memory", device_.table->discard, data_, begin, end);
}

PinnedMemory::PinnedMemory(const Gpu& device, int64_t bytes) : table_(device.table), bytes_(bytes) {
  cuda::Failure failure{};
  void* address = nullptr;
  check(table_->allocate_pinned(bytes, &address, &failure), failure, "allocate pinned memory");
  data_ = static_cast<std::byte*>(address);
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) table_->free_pinned(data_);
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

// ---- Streams and events

DeviceStream::DeviceStream(const Gpu& device) : device_(device) {
  device_.call("create a stream", device_.table->create_stream, &stream_);
}

DeviceStream::~DeviceStream() {
  if (stream_ != nullptr) device_.table->destroy_stream(device_.id, stream_);
}

DeviceStream::DeviceStream(DeviceStream&& other) noexcept { *this = std::move(other); }

DeviceStream& DeviceStream::operator=(DeviceStream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

void DeviceStream::synchronize() const { device_.synchronize(stream_); }

DeviceEvent::DeviceEvent(const Gpu& device) : device_(device) {
  device_.call("create an event", device_.table->create_event, &event_);
}

DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) device_.table->destroy_event(device_.id, event_);
}

DeviceEvent::DeviceEvent(DeviceEvent&& other) noexcept { *this = std::move(other); }

DeviceEvent& DeviceEvent::operator=(DeviceEvent&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  return *this;
}

void DeviceEvent::record(cuda::Stream stream) const {
  device_.call("record an event", device_.table->record_event, event_, stream);
}

bool DeviceEvent::try_record(cuda::Stream stream) const noexcept {
  cuda::Failure failure{};
  return device_.table->record_event(device_.id, event_, stream, &failure) == cuda::Result::kOk;
}

bool DeviceEvent::try_record_launches(cuda::Stream stream) const noexcept {
  cuda::Failure failure{};
  return device_.table->record_launches(device_.id, event_, stream, &failure) == cuda::Result::kOk;
}

void DeviceEvent::wait_on(cuda::Stream stream) const {
  device_.call("wait for an event", device_.table->wait_event, event_, stream);
}

bool DeviceEvent::is_done() const {
  int32_t done = 0;
  device_.call("ask an event", device_.table->query_event, event_, &done);
  return done != 0;
}

// ---- DeviceBuffer

bool DeviceBuffer::ensure(int64_t bytes, cuda::Stream stream) {
  const bool capturing = device_.is_capturing(stream);
  if (bytes <= memory_.bytes()) {
    was_captured_ = was_captured_ || capturing;
    return false;
  }
  if (capturing || was_captured_) of_graphs_.reserve(of_graphs_.size() + 1);
  DeviceMemory grown = allocate_grown(bytes, memory_.bytes(), [&](int64_t size) {
    return capturing ? DeviceMemory(device_, size) : DeviceMemory(device_, size, stream);
  });
  if (memory_.data() != nullptr && (capturing || was_captured_)) {
    of_graphs_.push_back(std::move(memory_));
  } else {
    memory_.free_on(stream);
  }
  memory_ = std::move(grown);
  was_captured_ = capturing;
  return true;
}

// ---- DeviceOrder

void DeviceOrder::use(cuda::Stream stream) {
  if (has_uses_ && !device_.is_capturing(stream)) event_.wait_on(stream);
}

void DeviceOrder::used(cuda::Stream stream) noexcept {
  if (!event_) return;
  const cuda::BackendTable& table = *device_.table;
  cuda::Failure failure{};
  int32_t capturing = 0;
  // A stream that cannot be asked (the legacy one while another is under capture) was given nothing
  // either.
  if (table.is_capturing(device_.id, stream, &capturing, &failure) == cuda::Result::kCapture)
    return;
  if (capturing != 0) return;
  if (event_.try_record(stream)) {
    has_uses_ = true;
  } else {
    (void)table.synchronize(device_.id, stream, &failure);
  }
}

void DeviceOrder::used_by_launches(cuda::Stream captured) noexcept {
  // Where it can't be recorded the capture is invalid, and there will be no graph.
  if (event_ && event_.try_record_launches(captured)) has_uses_ = true;
}

bool DeviceOrder::is_idle() const { return !has_uses_ || event_.is_done(); }

// The CUDA back end, a module.

namespace {

constexpr Module kBackend{"libkvcache_cuda.so", "kvc_cuda_backend", sizeof(cuda::BackendTable)};
static_assert(offsetof(cuda::BackendTable, struct_size) == offsetof(ModuleTable, struct_size) &&
              offsetof(cuda::BackendTable, version) == offsetof(ModuleTable, version));

std::atomic<const cuda::BackendTable*> loaded{nullptr};  // Found without the lock of find_module().
std::atomic<const cuda::BackendTable*> installed{nullptr};

const cuda::BackendTable* as_backend(const ModuleTable* table) {
  return reinterpret_cast<const cuda::BackendTable*>(table);
}

}  // namespace

const cuda::BackendTable* load_backend(const char* file, std::string* why) {
  return as_backend(load_module(kBackend, file, why));
}

const cuda::BackendTable* find_backend(std::string* why) {
  if (const auto* table = installed.load(std::memory_order_acquire)) return table;
  if (const auto* table = loaded.load(std::memory_order_acquire)) return table;
  const cuda::BackendTable* table = as_backend(find_module(kBackend, why));
  if (table != nullptr) loaded.store(table, std::memory_order_release);
  return table;
}

const cuda::BackendTable& require_backend() {
  std::string why;
  const cuda::BackendTable* table = find_backend(&why);
  if (table == nullptr) fail(KVC_E_UNSUPPORTED, "no CUDA back end: %s", why.c_str());
  return *table;
}

bool install_backend(const cuda::BackendTable* table, std::string* why) {
  const auto* head = reinterpret_cast<const ModuleTable*>(table);
  if (table != nullptr && !is_module_table(kBackend, head, "the installed back end", why))
    return false;
  installed.store(table, std::memory_order_release);
  return true;
}

}  // namespace kvc
