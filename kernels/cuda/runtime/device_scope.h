// The device that calls go to, and what is known of it.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/runtime/errors.h"

namespace kvc::cuda {

constexpr int32_t kAnyDevice = -1;

// Makes `device` current for the calling thread and restores what was current before: the context,
// not the number of the device. A thread that has never used CUDA has none, and telling CUDA the
// number 0 would make one, some hundred MB on a device that is not ours.
class DeviceScope {
 public:
  // kAnyDevice: the thread's own context, else one that is there already.
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
  bool keeps_context_ = false;  // there was none, and the device was the thread's already
  cudaError_t error_;           // last: enter() fills the others
};

// Lets the thread allocate while some stream of the process is captured in global mode. What is
// called so may enqueue only to give memory.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// What never changes of a device.
struct DeviceFacts {
  int32_t arch;  // 10 * compute capability
  int32_t num_sms;
  int32_t shared_bytes;
  int64_t granularity;
  char name[64];
};
// Found once per device and kept; the device is current. Refuses devices that this build has no
// code for, by their names.
Result find_facts(int32_t device, const DeviceFacts** out, Failure* failure);
// Those that find_facts has found; null: none. Any thread, no call of CUDA.
const DeviceFacts* known_facts(int32_t device);

// How memory is created that a reservation maps.
CUmemAllocationProp memory_properties(int32_t device);
// cudaSuccess where the library holds code for the current device.
cudaError_t probe_code();

}  // namespace kvc::cuda
