// What a test can ask of the emulator and set: order of execution, failures, counters. All
// functions may be called at any time outside of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace cudasim {

// Everything below as it was when the program started (counters, devices, failures, order, seed,
// this thread's device and last error); lets all queued work finish first. What was allocated
// stays.
void reset();

// ---- Order of execution. The environment sets the defaults: KVC_CUDASIM_SEED, KVC_CUDASIM_LAZY=1,
// KVC_CUDASIM_THREADS.

// Order of CTAs, warps and lanes, moments of asynchronous copies, order of streams.
void seed(uint64_t value);

// Eager: what is enqueued runs before the call returns. Lazy: it waits until a synchronisation
// needs it or, now and then, any call; streams interleave at random, events order them. Lazy shows
// missing events and staging memory that is reused too early. A kernel that may overlap with the
// one before begins, now and then, when that one has not: as far as its wait.
enum class StreamOrder { kEager, kLazy };
void set_stream_order(StreamOrder order);
// Runs all that is queued, without counting as a synchronisation.
void finish_all();

// OS threads that share the CTAs of a launch; 1.
void set_cta_threads(uint32_t threads);

// ---- Devices. At first two like an H200, 8 GiB each.

struct DeviceFacts {
  int major = 9, minor = 0;
  int num_sms = 132;
  int shared_bytes = 232448;  // a CTA's most
  size_t memory_bytes = size_t{8} << 30;
  size_t granularity = size_t{2} << 20;  // of cuMemCreate
  // 10 * compute capability that kernels were compiled for; 0: the device's own
  int ptx_version = 0;
};
void set_num_devices(int count);  // 0: cudaErrorNoDevice; at most 8
void set_device(int device, const DeviceFacts& facts);
// Another context in the place of the device's, as after cudaDeviceReset(), which knows nothing of
// what kernels were allowed. Memory and streams stay.
void renew_context(int device);
void set_has_driver(bool has);        // without: cudaErrorInsufficientDriver
void set_has_batch_copies(bool has);  // without: cudaMemcpyBatchAsync gives cudaErrorNotSupported
void set_has_memory_pools(bool has);  // without: cudaDevAttrMemoryPoolsSupported is 0
// without: cuMemAddressReserve gives CUDA_ERROR_NOT_SUPPORTED
void set_has_virtual_memory(bool has);

// ---- Failures

// The n-th call (1: the next) of a function of the runtime or the driver, any if null, gives
// `error` and does nothing.
void fail_call(const char* name, uint64_t nth, int error);
// The n-th of the calls that allocate: cudaMalloc, cudaMallocAsync, cudaMallocFromPoolAsync,
// cudaHostAlloc, cudaMallocHost, cuMemAddressReserve, cuMemCreate.
void fail_allocation(uint64_t nth, int error = cudaErrorMemoryAllocation);
void clear_failures();
// From now on (almost) every call on the device gives `error`, as after an illegal address;
// cudaSuccess: well again.
void set_sticky_error(int device, cudaError_t error);

// ---- Memory of tests
// KVC_CUDASIM_STRICT=1 gives devices memory of their own. The host faults on it outside of calls,
// and a kernel that is passed pageable memory is an error. The address sanitizer turns it off.

bool is_strict();
// Pinned memory that no call took: it is not counted, no failure is injected,
// and it may be taken during a capture.
void* take_tensor(size_t bytes);
void give_tensor(void* address);

// ---- Counters

struct Counters {
  uint64_t kernel_launches;
  std::map<std::string, uint64_t> launches_by_kernel, ctas_by_kernel;
  // Of these, with programmatic stream serialization
  std::map<std::string, uint64_t> overlapping_by_kernel;
  // Of these, begun before the kernel before
  uint64_t early_launches;
  uint64_t graph_launches;
  uint64_t copy_calls;     // cudaMemcpy*, a batch counts once
  uint64_t copied_pieces;  // of batches: each piece
  uint64_t host_to_device_bytes, device_to_host_bytes, device_to_device_bytes, host_to_host_bytes;
  uint64_t host_bytes_by_kernels;  // through load_host_word and load_host_16
  uint64_t tma_boxes;
  uint64_t memset_calls;
  uint64_t
      // CudaMalloc, cudaHostAlloc, cudaMallocHost: a device may wait before it maps memory
      plain_allocations;
  uint64_t
      // Calls that may have blocked: synchronize, cudaFree, copies that touch pageable memory
      synchronizations;
  uint64_t calls;  // of the runtime and the driver, all
};
Counters counters();
void reset_counters();

// What has not been given back.
struct Live {
  uint64_t device_allocations, device_bytes;
  uint64_t pools, pool_bytes;  // bytes that pools keep beyond what is allocated from them
  uint64_t pinned_allocations, pinned_bytes;
  uint64_t reservations, mappings, memory_handles;
  uint64_t streams, events, graphs, executables;
  uint64_t queued;  // operations that have not run
};
Live live();
// Whether something has made a context on the device (which costs memory on a real one).
bool has_context(int device);

}  // namespace cudasim
