#include "kernels/cuda/runtime/device_scope.h"

#include <atomic>
#include <cstdio>
#include <mutex>

#include "kernels/cuda/runtime/driver.h"

namespace kvc::cuda {
namespace {

constexpr int32_t kMaxDevices = 128;
constexpr int32_t kOldestArch = 80;

std::atomic<int32_t> last_device{kAnyDevice};

struct Slot {
  std::atomic<bool> is_known{false};
  DeviceFacts facts{};
};
Slot slots[kMaxDevices];
std::mutex finding;

Result read_facts(int32_t device, DeviceFacts* out, Failure* failure) {
  cudaDeviceProp properties{};
  Result result =
      report(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", failure);
  if (result != Result::kOk) return result;
  out->arch = 10 * properties.major + properties.minor;
  out->num_sms = properties.multiProcessorCount;
  out->shared_bytes = static_cast<int32_t>(properties.sharedMemPerBlockOptin);
  std::snprintf(out->name, sizeof(out->name), "%.63s", properties.name);
  if (out->arch < kOldestArch) {
    return refuse(Result::kNoDevice, cudaErrorNoKernelImageForDevice, failure,
                  "device %d, %s, is of architecture sm_%d; kvcache has code for sm_%d and later",
                  device, out->name, out->arch, kOldestArch);
  }
  const cudaError_t code = probe_code();
  if (code != cudaSuccess) {
    result = report(code, "cudaFuncGetAttributes", failure);
    if (result == Result::kNoDevice) {
      return refuse(result, code, failure,
                    "device %d, %s: this build of kvcache has no code for sm_%d", device, out->name,
                    out->arch);
    }
    return result;
  }
  const Driver* driver = nullptr;
  result = report(find_driver(&driver), "cudaGetDriverEntryPointByVersion", failure);
  if (result != Result::kOk) return result;
  const CUmemAllocationProp memory = memory_properties(device);
  size_t granularity = 0;
  result = report(driver->granularity(&granularity, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                  "cuMemGetAllocationGranularity", failure);
  out->granularity = static_cast<int64_t>(granularity);
  return result;
}

}  // namespace

DeviceScope::DeviceScope(int32_t device) : error_(enter(device)) {
  if (error_ != cudaSuccess) (void)cudaGetLastError();
}

cudaError_t DeviceScope::enter(int32_t device) {
  const Driver* driver = nullptr;
  cudaError_t error = cudaGetDevice(&previous_);
  if (error == cudaSuccess) error = find_driver(&driver);
  if (error != cudaSuccess) return error;
  // Fails only before CUDA was ever used; then there is no context either.
  if (driver->current_context(&context_) != CUDA_SUCCESS) context_ = nullptr;
  if (device == kAnyDevice) {
    const int32_t used = last_device.load(std::memory_order_relaxed);
    device = context_ != nullptr || used == kAnyDevice ? previous_ : used;
  }
  if (context_ == nullptr || previous_ != device) {
    has_switched_ = true;
    keeps_context_ = context_ == nullptr && previous_ == device;
    error = cudaSetDevice(device);
  }
  if (error == cudaSuccess && last_device.load(std::memory_order_relaxed) != device) {
    last_device.store(device, std::memory_order_relaxed);
  }
  return error;
}

DeviceScope::~DeviceScope() {
  if (!has_switched_ || keeps_context_) return;
  const Driver* driver = nullptr;
  if (find_driver(&driver) == cudaSuccess) (void)driver->set_current_context(context_);
  int now = previous_;
  if (cudaGetDevice(&now) != cudaSuccess || now != previous_) (void)cudaSetDevice(previous_);
}

RelaxedCapture::RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

RelaxedCapture::~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

Result find_facts(int32_t device, const DeviceFacts** out, Failure* failure) {
  *out = known_facts(device);
  if (*out != nullptr) return Result::kOk;
  if (device < 0 || device >= kMaxDevices) {
    return refuse(Result::kNoDevice, cudaErrorInvalidDevice, failure, "there is no CUDA device %d",
                  device);
  }
  const std::lock_guard lock(finding);
  Slot& slot = slots[device];
  if (!slot.is_known.load(std::memory_order_relaxed)) {
    const RelaxedCapture relaxed;  // The first launch may be a captured one.
    DeviceFacts facts{};
    const Result result = read_facts(device, &facts, failure);
    if (result != Result::kOk) return result;
    slot.facts = facts;
    slot.is_known.store(true, std::memory_order_release);
  }
  *out = &slot.facts;
  return Result::kOk;
}

const DeviceFacts* known_facts(int32_t device) {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  const Slot& slot = slots[device];
  return slot.is_known.load(std::memory_order_acquire) ? &slot.facts : nullptr;
}

CUmemAllocationProp memory_properties(int32_t device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

}  // namespace kvc::cuda
