// How the table starts kernels: on the device that was named, with what is known of it.
#pragma once

#include "kernels/cuda/runtime/device_scope.h"

namespace kvc::cuda::runtime {

// launch(facts) with `device` current.
template <typename Launch>
Result launch_on(int32_t device, const char* what, Failure* failure, Launch launch) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
  const DeviceFacts* facts = nullptr;
  const Result result = find_facts(device, &facts, failure);
  return result == Result::kOk ? report(launch(*facts), what, failure) : result;
}

}  // namespace kvc::cuda::runtime
