// The current device of a call, and the facts of devices.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/runtime/errors.h"

namespace kvc::cuda {

constexpr int32_t kAnyDevice = -1;

// Makes `device` current for the calling thread and restores the previous state: the context, not
// the device number. A thread that has never used CUDA has no context. Setting device number 0
// would create one, with some hundred MB on a device that is not ours.
class DeviceScope {
 public:
  // kAnyDevice: the thread's own context, or one that exists already.
  explicit DeviceScope(int32_t device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  // Why the device is not current; cudaSuccess: it is. Taken out of the thread's last error.
  cudaError_t error() const { return error_; }

 private:
  cudaError_t enter(int32_t device);

  int previous_ = 0;
  CUcontext context_ = nullptr;
  bool has_switched_ = false;
  bool keeps_context_ = false;  // The thread had no context, and the device was already its own.
  cudaError_t error_;           // The last member: enter() sets the others.
};

// Lets the thread allocate while a stream of the process is captured in global mode. Calls inside
// its scope may enqueue nothing but allocations.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The constant facts of a device.
struct DeviceFacts {
  int32_t arch;  // 10 * compute capability.
  int32_t num_sms;
  int32_t shared_bytes;
  int64_t granularity;
  char name[64];
};
// Finds the facts once per device and keeps them. The device is current. Refuses, with the device's
// name, devices that this build has no code for.
Result find_facts(int32_t device, const DeviceFacts** out, Failure* failure);
// The facts that find_facts has found. Null: none. Callable from any thread; does not call CUDA.
const DeviceFacts* known_facts(int32_t device);

// The properties of memory that a reservation maps.
CUmemAllocationProp memory_properties(int32_t device);
// Returns cudaSuccess if the library holds code for the current device.
cudaError_t probe_code();

}  // namespace kvc::cuda
