#include <atomic>
#include <mutex>

#include "kernels/cuda/runtime/deferred_frees.h"
#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/functions.h"

namespace kvc::cuda::runtime {
namespace {

cudaError_t give_device_memory(void* address) { return cudaFree(address); }
cudaError_t give_pinned_memory(void* address) { return cudaFreeHost(address); }
// cudaFree does not wait for what still uses memory of a pool, and here nobody has.
cudaError_t give_pool_memory(void* address) {
  const cudaError_t error = cudaDeviceSynchronize();
  return result_of(error) == Result::kCapture ? error : cudaFree(address);
}

// `allocate` once, and once more when that is short of memory and something was left over.
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
    const bool has_leftovers = give_back_leftovers();
    if (!trim_pool(device) && !has_leftovers) return result_of(error);
  }
}

// ---- Pools: one per device, made when it is first asked for and kept as long as the process:
// memory of it may outlive every cache.

constexpr int32_t kMaxPools = 128;
enum class PoolState : int32_t { kUnknown, kNone, kMade };
struct Pool {
  std::atomic<PoolState> state{PoolState::kUnknown};
  cudaMemPool_t handle = nullptr;
};
Pool pools[kMaxPools];
std::mutex making;

// With the device current. Keeps what is given back, or every wait of the host's would return it to
// the device.
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

// Null in `out`: the device has none.
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

// Null: none, or none yet.
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

void free(int32_t device, void* address) { give_back(device, address, give_device_memory); }

Result allocate_on(int32_t device, int64_t bytes, Stream stream, void** address, Failure* failure) {
  cudaMemPool_t pool = nullptr;
  const Result result = find_pool(device, &pool, failure);
  if (result != Result::kOk) return result;
  // The legacy stream beside a capture is refused here, before an allocation on it would cost that
  // capture.
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
  // The stream cannot be used. Where it is that its capture was invalidated, the memory is that of
  // a graph which will never be.
  int32_t capturing = 0;
  Failure failure{};
  if (is_capturing(device, stream, &capturing, &failure) == Result::kOk && capturing != 0) return;
  give_back(device, address, give_pool_memory);
}

void free_idle(int32_t device, void* address) { give_back(device, address, give_device_memory); }

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

// Unified addressing, which every 64-bit Linux has: the device's address is the host's.
Result allocate_pinned(int64_t bytes, void** address, Failure* failure) {
  return allocate_from(kAnyDevice, bytes, "cudaHostAlloc", failure, [address](size_t count) {
    return cudaHostAlloc(address, count, cudaHostAllocPortable | cudaHostAllocMapped);
  });
}

void free_pinned(void* address) { give_back(kAnyDevice, address, give_pinned_memory); }

}  // namespace kvc::cuda::runtime
