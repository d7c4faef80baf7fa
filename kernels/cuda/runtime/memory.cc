#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/functions.h"
#include "kernels/cuda/runtime/leftovers.h"

namespace kvc::cuda::runtime {
namespace {

cudaError_t give_device_memory(void* address) { return cudaFree(address); }
cudaError_t give_pinned_memory(void* address) { return cudaFreeHost(address); }

// `allocate` once, and once more when that is short of memory and something was left over.
template <typename Allocate>
Result allocate_from(int32_t device, int64_t bytes, const char* what, Failure* failure, Allocate allocate) {
  if (bytes <= 0) {
    return refuse(Result::kDevice, cudaErrorInvalidValue, failure, "%s: %lld bytes", what,
                  static_cast<long long>(bytes));
  }
  for (bool is_first = true;; is_first = false) {
    cudaError_t error;
    {
      const DeviceScope scope(device);
      if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
      const RelaxedCapture relaxed;
      error = allocate(static_cast<size_t>(bytes));
      if (error == cudaSuccess) return Result::kOk;
      (void)report(error, what, failure);
    }
    if (error != cudaErrorMemoryAllocation || !is_first || !give_back_leftovers()) return result_of(error);
  }
}

}  // namespace

Result allocate(int32_t device, int64_t bytes, void** address, Failure* failure) {
  return allocate_from(device, bytes, "cudaMalloc", failure,
                       [address](size_t count) { return cudaMalloc(address, count); });
}

void free(int32_t device, void* address) { give_back(device, address, give_device_memory); }

// Unified addressing, which every 64-bit Linux has: the device's address is the host's.
Result allocate_pinned(int64_t bytes, void** address, Failure* failure) {
  return allocate_from(kAnyDevice, bytes, "cudaHostAlloc", failure, [address](size_t count) {
    return cudaHostAlloc(address, count, cudaHostAllocPortable | cudaHostAllocMapped);
  });
}

void free_pinned(void* address) { give_back(kAnyDevice, address, give_pinned_memory); }

}  // namespace kvc::cuda::runtime
