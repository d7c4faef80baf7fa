// Devices, errors and what every call begins with.
#include <cstdlib>
#include <cstring>

#include "counters.h"
#include "runtime.h"
#include "settings.h"

namespace cudasim {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_of_thread = 0;
thread_local bool thread_has_context = false;

uint64_t environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

bool is_allocation(const char* name) {
  for (const char* each : {"cudaMalloc", "cudaMallocAsync", "cudaMallocFromPoolAsync",
                           "cudaHostAlloc", "cudaMallocHost", "cuMemAddressReserve", "cuMemCreate"})
    if (std::strcmp(name, each) == 0) return true;
  return false;
}

// Calls that work without a healthy context.
bool ignores_sticky(const char* name) {
  for (const char* each :
       {"cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaDeviceGetAttribute",
        "cudaGetDeviceProperties", "cudaDriverGetVersion", "cudaRuntimeGetVersion",
        "cudaGetDriverEntryPointByVersion", "cudaThreadExchangeStreamCaptureMode",
        "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxGetId"})
    if (std::strcmp(name, each) == 0) return true;
  return false;
}

// What belongs to a context goes with it.
void drop_context(Runtime& state, int device) {
  state.devices[device].context = 0;
  std::erase_if(state.allowed_shared,
                [device](const auto& entry) { return entry.first.second == device; });
}

}  // namespace

Runtime& runtime() {
  // Outlives every static object that frees its memory at exit
  static Runtime& state = *new Runtime;
  return state;
}

Runtime::Runtime() { apply_defaults(*this); }

void apply_defaults(Runtime& state) {
  state.seed = environment("KVC_CUDASIM_SEED", 1);
  state.random.state = state.seed * 0x9e3779b97f4a7c15ull | 1;
  state.order = environment("KVC_CUDASIM_LAZY", 0) != 0 ? StreamOrder::kLazy : StreamOrder::kEager;
  state.cta_threads = static_cast<uint32_t>(environment("KVC_CUDASIM_THREADS", 1));
  state.num_devices = 2;
  for (int d = 0; d < kMaxDevices; ++d) {
    state.devices[d].facts = DeviceFacts{};
    state.devices[d].sticky = cudaSuccess;
    drop_context(state, d);
  }
  state.has_driver = state.has_batch_copies = state.has_virtual_memory = state.has_memory_pools =
      true;
  state.failures.clear();
  state.counters = {};
}

KernelCounters& counted() {
  static KernelCounters counters;
  return counters;
}

uint32_t cta_threads() { return runtime().cta_threads; }
uint64_t initial_seed() { return runtime().seed; }
uint64_t next_seed() {
  Runtime& state = runtime();
  return (uint64_t{state.random.next()} << 32 | state.random.next()) | 1;
}

cudaError_t refusal(Runtime& state, const char* name) {
  ++state.counters.calls;
  for (Failure& failure : state.failures) {
    if (failure.countdown == 0) continue;
    const bool concerned =
        failure.allocations ? is_allocation(name) : failure.name.empty() || failure.name == name;
    if (concerned && --failure.countdown == 0) return static_cast<cudaError_t>(failure.error);
  }
  if (!state.has_driver) return cudaErrorInsufficientDriver;
  if (state.num_devices == 0) return cudaErrorNoDevice;
  const cudaError_t sticky = state.devices[device_of_thread].sticky;
  if (sticky != cudaSuccess && !ignores_sticky(name)) return sticky;
  if (state.order == StreamOrder::kLazy && (state.random.next() & 7u) == 0) run_one(state);
  return cudaSuccess;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int current_device() { return device_of_thread; }

Device& use_context(Runtime& state) {
  thread_has_context = true;
  Device& device = state.devices[device_of_thread];
  device.has_context = true;
  if (device.legacy == nullptr) {
    device.legacy =
        new CUstream_st{state.next_stream++, device_of_thread, true, {}, nullptr, nullptr};
    state.streams.insert(device.legacy);
  }
  return device;
}

// A context is named by its device; null: none.
void* current_context() {
  return thread_has_context ? &runtime().devices[device_of_thread] : nullptr;
}
bool set_current_context(void* context) {
  Runtime& state = runtime();
  if (context == nullptr) {
    thread_has_context = false;
    device_of_thread = 0;
    return true;
  }
  for (int d = 0; d < state.num_devices; ++d)
    if (context == &state.devices[d]) {
      device_of_thread = d;
      thread_has_context = true;
      return true;
    }
  return false;
}

uint64_t number_of_context(void* context) {
  auto* device = static_cast<Device*>(context);
  if (device->context == 0) device->context = runtime().next_context++;
  return device->context;
}
int ptx_version(const DeviceFacts& facts) {
  return facts.ptx_version != 0 ? facts.ptx_version : 10 * facts.major + facts.minor;
}

// ---- cudasim.h

void reset() {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  const OpenDevices open(state);
  run_all(state);
  forget_freed(state, 0, 0);
  apply_defaults(state);
  last_error = cudaSuccess;
  device_of_thread = 0;
  counted().host_bytes_by_kernels = 0;
  counted().tma_boxes = 0;
}

namespace {
template <typename Change>
void change(Change body) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  const OpenDevices open(state);
  body(state);
}
}  // namespace

void seed(uint64_t value) {
  change([value](Runtime& state) {
    state.seed = value;
    state.random.state = value * 0x9e3779b97f4a7c15ull | 1;
  });
}
void set_stream_order(StreamOrder order) {
  change([order](Runtime& state) {
    if (order == StreamOrder::kEager) run_all(state);
    state.order = order;
  });
}
void finish_all() { change(run_all); }
void set_cta_threads(uint32_t threads) {
  change([threads](Runtime& state) { state.cta_threads = threads; });
}
void set_num_devices(int count) {
  change([count](Runtime& state) { state.num_devices = count; });
}
void set_device(int device, const DeviceFacts& facts) {
  change([&](Runtime& state) {
    state.devices[device].facts = facts;
    drop_context(state, device);
  });
}
void renew_context(int device) {
  change([device](Runtime& state) { drop_context(state, device); });
}
void set_has_driver(bool has) {
  change([has](Runtime& state) { state.has_driver = has; });
}
void set_has_batch_copies(bool has) {
  change([has](Runtime& state) { state.has_batch_copies = has; });
}
void set_has_memory_pools(bool has) {
  change([has](Runtime& state) { state.has_memory_pools = has; });
}
void set_has_virtual_memory(bool has) {
  change([has](Runtime& state) { state.has_virtual_memory = has; });
}
void fail_call(const char* name, uint64_t nth, int error) {
  change([&](Runtime& state) {
    state.failures.push_back({name == nullptr ? "" : name, false, nth, error});
  });
}
void fail_allocation(uint64_t nth, int error) {
  change([&](Runtime& state) { state.failures.push_back({"", true, nth, error}); });
}
void clear_failures() {
  change([](Runtime& state) { state.failures.clear(); });
}
void set_sticky_error(int device, cudaError_t error) {
  change([&](Runtime& state) { state.devices[device].sticky = error; });
}
Counters counters() {
  Counters result;
  change([&](Runtime& state) { result = state.counters; });
  result.host_bytes_by_kernels = counted().host_bytes_by_kernels;
  result.tma_boxes = counted().tma_boxes;
  return result;
}
void reset_counters() {
  change([](Runtime& state) { state.counters = {}; });
  counted().host_bytes_by_kernels = 0;
  counted().tma_boxes = 0;
}
Live live() {
  Live live{};
  change([&](Runtime& state) {
    check_freed(state);
    live.pools = state.pools.size();
    for (const CUmemPoolHandle_st* pool : state.pools)
      live.pool_bytes += pool->reserved_bytes - pool->used_bytes;
    for (const auto& [address, allocation] : state.allocations) {
      if (allocation.kind == MemoryKind::kDevice) {
        ++live.device_allocations;
        live.device_bytes += allocation.bytes;
      } else if (allocation.kind != MemoryKind::kTensor) {
        ++live.pinned_allocations;
        live.pinned_bytes += allocation.bytes;
      }
    }
    live.reservations = state.reservations.size();
    live.mappings = state.mappings.size();
    live.memory_handles = state.handles.size();
    live.streams = state.streams.size();
    for (const Device& device : state.devices) live.streams -= device.legacy != nullptr ? 1 : 0;
    live.events = state.events.size();
    live.graphs = state.graphs.size();
    live.executables = state.executables.size();
    for (const CUstream_st* stream : state.streams) live.queued += stream->queue.size();
  });
  return live;
}
bool has_context(int device) { return runtime().devices[device].has_context; }

}  // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call("cudaGetDeviceCount", [&](Runtime& state) {
    *count = state.num_devices;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Runtime& state) {
    if (device < 0 || device >= state.num_devices) return cudaErrorInvalidDevice;
    device_of_thread = device;
    use_context(state);
    return state.devices[device].sticky;
  });
}
cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Runtime&) {
    *device = device_of_thread;
    return cudaSuccess;
  });
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return call("cudaInitDevice", [&](Runtime& state) {
    if (device < 0 || device >= state.num_devices) return cudaErrorInvalidDevice;
    state.devices[device].has_context = true;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", [&](Runtime& state) {
    if (device < 0 || device >= state.num_devices) return cudaErrorInvalidDevice;
    const DeviceFacts& facts = state.devices[device].facts;
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
      case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
      case cudaDevAttrWarpSize: *value = 32; break;
      case cudaDevAttrClockRate: *value = 1980000; break;
      case cudaDevAttrMultiProcessorCount: *value = facts.num_sms; break;
      case cudaDevAttrL2CacheSize: *value = 60 << 20; break;
      case cudaDevAttrAsyncEngineCount: *value = 3; break;
      case cudaDevAttrComputeCapabilityMajor: *value = facts.major; break;
      case cudaDevAttrComputeCapabilityMinor: *value = facts.minor; break;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = facts.shared_bytes + 1024; break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = facts.shared_bytes; break;
      case cudaDevAttrCanMapHostMemory:
      case cudaDevAttrConcurrentKernels:
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrCanUseHostPointerForRegisteredMem:
      case cudaDevAttrHostRegisterSupported:
      case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
      case cudaDevAttrMemoryPoolsSupported: *value = state.has_memory_pools ? 1 : 0; break;
      case cudaDevAttrIntegrated:
      case cudaDevAttrPageableMemoryAccess: *value = 0; break;
      default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](Runtime& state) {
    if (device < 0 || device >= state.num_devices) return cudaErrorInvalidDevice;
    const DeviceFacts& facts = state.devices[device].facts;
    *properties = {};
    std::strcpy(properties->name, "Emulated device");
    properties->totalGlobalMem = facts.memory_bytes;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = static_cast<size_t>(facts.shared_bytes);
    properties->sharedMemPerMultiprocessor = static_cast<size_t>(facts.shared_bytes) + 1024;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->major = facts.major;
    properties->minor = facts.minor;
    properties->multiProcessorCount = facts.num_sms;
    properties->l2CacheSize = 60 << 20;
    properties->canMapHostMemory = properties->unifiedAddressing = 1;
    properties->asyncEngineCount = 3;
    return cudaSuccess;
  });
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = runtime().has_driver ? CUDA_VERSION : 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  const cudaError_t sticky = state.devices[device_of_thread].sticky;
  return sticky != cudaSuccess ? sticky : last_error;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0)
    return remember(cudaErrorInvalidValue);
  return call("cudaFuncSetAttribute", [&](Runtime& state) {
    const Device& device = use_context(state);
    if (value > device.facts.shared_bytes) return cudaErrorInvalidValue;
    state.allowed_shared[{function, device_of_thread}] = static_cast<uint32_t>(value);
    return cudaSuccess;
  });
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return call("cudaFuncGetAttributes", [&](Runtime& state) {
    const DeviceFacts& facts = use_context(state).facts;
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = 10 * facts.major + facts.minor;
    attributes->ptxVersion = ptx_version(facts);
    return cudaSuccess;
  });
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return call("cudaGetDriverEntryPointByVersion", [&](Runtime&) {
    *function = driver_function(symbol);
    if (result != nullptr)
      *result =
          *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

}  // extern "C"
