#include <cstring>

#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/functions.h"

namespace kvc::cuda::runtime {

Result count_devices(int32_t* out, Failure* failure) {
  *out = 0;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) {  // There is a driver, but no device.
    (void)cudaGetLastError();
    return Result::kOk;
  }
  if (error == cudaSuccess) *out = count;
  return report(error, "cudaGetDeviceCount", failure);
}

Result query_device(int32_t device, DeviceInfo* out, Failure* failure) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
  const RelaxedCapture relaxed;
  const DeviceFacts* facts = nullptr;
  Result result = find_facts(device, &facts, failure);
  if (result != Result::kOk) return result;
  size_t free_bytes = 0, all_bytes = 0;
  result = report(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo", failure);
  if (result != Result::kOk) return result;
  out->arch = facts->arch;
  out->num_sms = facts->num_sms;
  out->shared_bytes = facts->shared_bytes;
  out->granularity = facts->granularity;
  out->memory_bytes = all_bytes;
  out->memory_free_bytes = free_bytes;
  static_assert(sizeof(out->name) == sizeof(facts->name));
  std::memcpy(out->name, facts->name, sizeof(out->name));
  return Result::kOk;
}

Result locate(const void* address, int32_t* device, Failure* failure) {
  *device = -2;
  if (address == nullptr) return Result::kOk;
  const DeviceScope scope(kAnyDevice);
  if (scope.error() != cudaSuccess) return report(scope.error(), "cudaGetDevice", failure);
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
  // The answer of drivers that have no memory type for foreign memory.
  if (error == cudaErrorInvalidValue) {
    (void)cudaGetLastError();
    return Result::kOk;
  }
  if (error != cudaSuccess) return report(error, "cudaPointerGetAttributes", failure);
  switch (attributes.type) {
    case cudaMemoryTypeHost: *device = -1; break;
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged: *device = attributes.device; break;
    default: break;
  }
  return Result::kOk;
}

}  // namespace kvc::cuda::runtime
