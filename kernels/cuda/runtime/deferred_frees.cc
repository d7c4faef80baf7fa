#include "kernels/cuda/runtime/deferred_frees.h"

#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/device_scope.h"

namespace kvc::cuda::runtime {
namespace {

struct Leftover {
  int32_t device;
  void* address;
  GiveBack give;
};

// Never destroyed: a destructor of the host's may still free when those of this library have run.
struct Leftovers {
  std::mutex lock;
  std::vector<Leftover> items;
};
Leftovers& leftovers() {
  static auto* const all = new Leftovers;
  return *all;
}

// False: again later.
bool try_now(const Leftover& item) {
  const DeviceScope scope(item.device);
  if (scope.error() != cudaSuccess) return true;
  const RelaxedCapture relaxed;
  const cudaError_t error = item.give(item.address);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return result_of(error) != Result::kCapture;
}

void keep(const Leftover& item) {
  const std::lock_guard lock(leftovers().lock);
  try {
    leftovers().items.push_back(item);
  } catch (const std::bad_alloc&) {  // then the memory stays taken
  }
}

}  // namespace

void give_back(int32_t device, void* address, GiveBack give) {
  if (address == nullptr) return;
  (void)give_back_leftovers();
  const Leftover item{device, address, give};
  if (!try_now(item)) keep(item);
}

bool give_back_leftovers() {
  std::vector<Leftover> items;
  {
    const std::lock_guard lock(leftovers().lock);
    items = std::exchange(leftovers().items, {});
  }
  bool any = false;
  for (const Leftover& item : items) {
    if (try_now(item)) {
      any = true;
    } else {
      keep(item);
    }
  }
  return any;
}

}  // namespace kvc::cuda::runtime
