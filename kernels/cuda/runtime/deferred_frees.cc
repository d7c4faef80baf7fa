#include "kernels/cuda/runtime/deferred_frees.h"

#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/device_scope.h"

namespace kvc::cuda::runtime {
namespace {

struct DeferredFree {
  int32_t device;
  void* address;
  ReleaseFunction release;
};

// Never destroyed: a destructor of the host program may still free memory after those of this
// library have run.
struct DeferredFrees {
  std::mutex lock;
  std::vector<DeferredFree> items;
};
DeferredFrees& deferred_frees() {
  static auto* const all = new DeferredFrees;
  return *all;
}

// Returns false if the free must be tried again later.
bool try_release(const DeferredFree& item) {
  const DeviceScope scope(item.device);
  if (scope.error() != cudaSuccess) return true;
  const RelaxedCapture relaxed;
  const cudaError_t error = item.release(item.address);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return result_of(error) != Result::kCapture;
}

void defer(const DeferredFree& item) {
  const std::lock_guard lock(deferred_frees().lock);
  try {
    deferred_frees().items.push_back(item);
  } catch (const std::bad_alloc&) {  // The memory then stays allocated.
  }
}

}  // namespace

void release_or_defer(int32_t device, void* address, ReleaseFunction release) {
  if (address == nullptr) return;
  (void)release_deferred();
  const DeferredFree item{device, address, release};
  if (!try_release(item)) defer(item);
}

bool release_deferred() {
  std::vector<DeferredFree> items;
  {
    const std::lock_guard lock(deferred_frees().lock);
    items = std::exchange(deferred_frees().items, {});
  }
  bool any = false;
  for (const DeferredFree& item : items) {
    if (try_release(item)) {
      any = true;
    } else {
      defer(item);
    }
  }
  return any;
}

}  // namespace kvc::cuda::runtime
