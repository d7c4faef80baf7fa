#include "kernels/cuda/runtime/kernel_facts.h"

#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/driver.h"

namespace kvc::cuda {
namespace {

// The first PTX version with griddepcontrol.
constexpr int kOverlappingPtx = 90;

using ContextId = unsigned long long;

struct Facts {
  int32_t shared_bytes = 0;  // Dynamic shared memory that the kernel may use.
  bool is_asked = false;     // The next field is known.
  bool waits = false;
};
struct Table {
  std::mutex mutex;
  // Keyed by context, not by device: an application's own context, or the one after
  // cudaDeviceReset(), has its own attributes. A context id is never used twice.
  std::map<std::pair<ContextId, const void*>, Facts> kernels;
};
Table& table() {
  static auto* const known = new Table;  // Outlives the host's static objects.
  return *known;
}

cudaError_t current_context(ContextId* out) {
  const Driver* driver = nullptr;
  cudaError_t error = find_driver(&driver);
  if (error != cudaSuccess) return error;
  if (driver->context_id(nullptr, out) == CUDA_SUCCESS) return cudaSuccess;
  // This thread has not used CUDA yet, so the runtime would create a context at the launch.
  int device = 0;
  error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaSetDevice(device);
  if (error != cudaSuccess) return error;
  return static_cast<cudaError_t>(driver->context_id(nullptr, out));
}

}  // namespace

cudaError_t waits_for_previous_kernel(const void* kernel, bool* out) {
  ContextId context = 0;
  const cudaError_t found = current_context(&context);
  if (found != cudaSuccess) return found;
  {
    const std::lock_guard lock(table().mutex);
    const Facts& facts = table().kernels[{context, kernel}];
    *out = facts.waits;
    if (facts.is_asked) return cudaSuccess;
  }
  // This may load the kernel's module, which may need compilation. So it runs without the lock, and
  // also where the first launch is a captured one.
  const RelaxedCapture relaxed;
  cudaFuncAttributes attributes{};
  const cudaError_t asked = cudaFuncGetAttributes(&attributes, kernel);
  if (asked != cudaSuccess) return asked;
  *out = attributes.ptxVersion >= kOverlappingPtx;
  const std::lock_guard lock(table().mutex);
  Facts& facts = table().kernels[{context, kernel}];
  facts.waits = *out;
  facts.is_asked = true;
  return cudaSuccess;
}

cudaError_t raise_shared_limit(const void* kernel, int32_t bytes) {
  ContextId context = 0;
  const cudaError_t found = current_context(&context);
  if (found != cudaSuccess) return found;
  const std::lock_guard lock(table().mutex);
  Facts& facts = table().kernels[{context, kernel}];
  if (facts.shared_bytes >= bytes) return cudaSuccess;
  const RelaxedCapture relaxed;
  const cudaError_t set =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (set == cudaSuccess) facts.shared_bytes = bytes;
  return set;
}

cudaError_t max_shared_bytes(int32_t* out) {
  int device = 0, bytes = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  *out = bytes;
  return error;
}

}  // namespace kvc::cuda
