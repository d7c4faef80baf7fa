#include <atomic>
#include <mutex>

#include "kernels/cuda/runtime/deferred_frees.h"
#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/functions.h"

namespace kvc::cuda::runtime {
namespace {

cudaError_t release_device_memory(void* address) { return cudaFree(address); }
cudaError_t release_pinned_memory(void* address) { return cudaFreeHost(address); }
// cudaFree does not wait for uses of a pool's memory, and here there are none left.
cudaError_t release_pool_memory(void* address) {
  const cudaError_t error = cudaDeviceSynchronize();
  return result_of(error) == Result::kCapture ? error : cudaFree(address);
}

// Calls `allocate`, and once more if memory is short and a deferred free released some.
template <typename Allocate>
Result allocate_from(int32_t device, int64_t bytes, const char* what, Failure* failure,
                     Allocate allocate) {
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
    if (error != cudaErrorMemoryAllocation || !is_first) return result_of(error);
    const bool has_released = release_deferred();
    if (!trim_pool(device) && !has_released) return result_of(error);
  }
}

// ---- Pools: one per device, created on first use and kept as long as the process, because their
// memory may outlive every cache.

constexpr int32_t kMaxPools = 128;
enum class PoolState : int32_t { kUnknown, kNone, kMade };
struct Pool {
  std::atomic<PoolState> state{PoolState::kUnknown};
  cudaMemPool_t handle = nullptr;
};
Pool pools[kMaxPools];
std::mutex making;

// The device is current. The pool keeps freed memory: otherwise every synchronisation of the host
// would return it to the device.
cudaError_t make_pool(int32_t device, Pool* pool) {
  int has_pools = 0;
  cudaError_t error = cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device);
  if (error != cudaSuccess) return error;
  cudaMemPool_t handle = nullptr;
  if (has_pools != 0) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypeNone;
    properties.location = {};
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    error = cudaMemPoolCreate(&handle, &properties);
    if (error == cudaErrorNotSupported) {
      (void)cudaGetLastError();
      handle = nullptr;
    } else if (error != cudaSuccess) {
      return error;
    }
  }
  if (handle != nullptr) {
    unsigned long long all = ~0ull;
    error = cudaMemPoolSetAttribute(handle, cudaMemPoolAttrReleaseThreshold, &all);
    if (error != cudaSuccess) {
      (void)cudaMemPoolDestroy(handle);
      return error;
    }
  }
  pool->handle = handle;
  pool->state.store(handle != nullptr ? PoolState::kMade : PoolState::kNone,
                    std::memory_order_release);
  return cudaSuccess;
}

// Null in `out`: the device has no pools.
Result find_pool(int32_t device, cudaMemPool_t* out, Failure* failure) {
  *out = nullptr;
  if (device < 0 || device >= kMaxPools) {
    return refuse(Result::kNoDevice, cudaErrorInvalidDevice, failure, "there is no CUDA device %d",
                  device);
  }
  Pool& pool = pools[device];
  if (pool.state.load(std::memory_order_acquire) == PoolState::kUnknown) {
    const std::lock_guard lock(making);
    if (pool.state.load(std::memory_order_relaxed) == PoolState::kUnknown) {
      const DeviceScope scope(device);
      if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
      const RelaxedCapture relaxed;
      const Result result = report(make_pool(device, &pool), "cudaMemPoolCreate", failure);
      if (result != Result::kOk) return result;
    }
  }
  *out = pool.handle;
  return Result::kOk;
}

// Null: the device has no pool, or none yet.
cudaMemPool_t known_pool(int32_t device) {
  if (device < 0 || device >= kMaxPools) return nullptr;
  const Pool& pool = pools[device];
  return pool.state.load(std::memory_order_acquire) == PoolState::kMade ? pool.handle : nullptr;
}

unsigned long long pool_bytes(cudaMemPool_t pool) {
  unsigned long long bytes = 0;
  if (cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return bytes;
}

}  // namespace

Result allocate(int32_t device, int64_t bytes, void** address, Failure* failure) {
  return allocate_from(device, bytes, "cudaMalloc", failure,
                       [address](size_t count) { return cudaMalloc(address, count); });
}

void free(int32_t device, void* address) {
  release_or_defer(device, address, release_device_memory);
}

Result allocate_on(int32_t device, int64_t bytes, Stream stream, void** address, Failure* failure) {
  cudaMemPool_t pool = nullptr;
  const Result result = find_pool(device, &pool, failure);
  if (result != Result::kOk) return result;
  // The legacy stream beside a stream under capture is refused here, before an allocation on it
  // would invalidate that capture.
  int32_t capturing = 0;
  const Result asked = is_capturing(device, stream, &capturing, failure);
  if (asked != Result::kOk) return asked;
  if (pool == nullptr) {
    if (capturing == 0) return allocate(device, bytes, address, failure);
    return refuse(Result::kUnsupported, cudaErrorNotSupported, failure,
                  "device %d has no memory pools: a graph cannot have memory of its own", device);
  }
  return allocate_from(
      device, bytes, "cudaMallocFromPoolAsync", failure, [address, pool, stream](size_t count) {
        return cudaMallocFromPoolAsync(address, count, pool, static_cast<cudaStream_t>(stream));
      });
}

void free_on(int32_t device, void* address, Stream stream) {
  if (address == nullptr) return;
  if (known_pool(device) == nullptr) return free(device, address);
  {
    const DeviceScope scope(device);
    if (scope.error() != cudaSuccess) return;
    const RelaxedCapture relaxed;
    if (cudaFreeAsync(address, static_cast<cudaStream_t>(stream)) == cudaSuccess) return;
    (void)cudaGetLastError();
  }
  // The stream cannot be used. If its capture was invalidated, the memory belongs to a graph that
  // will never exist.
  int32_t capturing = 0;
  Failure failure{};
  if (is_capturing(device, stream, &capturing, &failure) == Result::kOk && capturing != 0) return;
  release_or_defer(device, address, release_pool_memory);
}

void free_idle(int32_t device, void* address) {
  release_or_defer(device, address, release_device_memory);
}

bool trim_pool(int32_t device) {
  cudaMemPool_t const pool = known_pool(device);
  if (pool == nullptr) return false;
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return false;
  const RelaxedCapture relaxed;
  const unsigned long long before = pool_bytes(pool);
  if (cudaMemPoolTrimTo(pool, 0) != cudaSuccess) (void)cudaGetLastError();
  return pool_bytes(pool) < before;
}

void trim(int32_t device) { (void)trim_pool(device); }

// Every 64-bit Linux has unified addressing: the device's address is the host's.
Result allocate_pinned(int64_t bytes, void** address, Failure* failure) {
  return allocate_from(kAnyDevice, bytes, "cudaHostAlloc", failure, [address](size_t count) {
    return cudaHostAlloc(address, count, cudaHostAllocPortable | cudaHostAllocMapped);
  });
}

void free_pinned(void* address) { release_or_defer(kAnyDevice, address, release_pinned_memory); }

}  // namespace kvc::cuda::runtime
