// Device and pinned memory: blocks of the host's heap, exactly as large as asked for, that begin as NaN.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace cudasim {
namespace {

constexpr size_t kAlignment = 256;

void* take(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes) != 0) return nullptr;
  std::memset(memory, 0xff, bytes);
  return memory;
}

// The block that holds `address`, or end().
auto holder(std::map<uintptr_t, Allocation>& blocks, const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = blocks.upper_bound(at);
  if (next == blocks.begin()) return blocks.end();
  --next;
  return at < next->first + next->second.bytes ? next : blocks.end();
}

// The mapping that holds `at`, or end().
auto mapping_at(std::map<uintptr_t, Mapping>& mappings, uintptr_t at) {
  auto next = mappings.upper_bound(at);
  if (next == mappings.begin()) return mappings.end();
  --next;
  return at < next->first + next->second.bytes ? next : mappings.end();
}

cudaError_t allocate_device(Runtime& state, void** address, size_t bytes) {
  Device& device = use_context(state);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > device.facts.memory_bytes - std::min(device.used_bytes, device.facts.memory_bytes))
    return cudaErrorMemoryAllocation;
  *address = take(bytes);
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  device.used_bytes += bytes;
  state.allocations[reinterpret_cast<uintptr_t>(*address)] = {bytes, MemoryKind::kDevice, current_device()};
  return cudaSuccess;
}

cudaError_t allocate_pinned(const char* name, void** address, size_t bytes) {
  *address = nullptr;
  return call(name, [&](Runtime& state) {
    use_context(state);
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    if (bytes == 0) return cudaSuccess;
    *address = take(bytes);
    if (*address == nullptr) return cudaErrorMemoryAllocation;
    state.allocations[reinterpret_cast<uintptr_t>(*address)] = {bytes, MemoryKind::kPinned, current_device()};
    return cudaSuccess;
  });
}

void give_back(Runtime& state, std::map<uintptr_t, Allocation>::iterator block) {
  if (block->second.kind == MemoryKind::kDevice)
    state.devices[block->second.device].used_bytes -= block->second.bytes;
  void* address = reinterpret_cast<void*>(block->first);
  std::memset(address, 0xff, block->second.bytes);
  state.allocations.erase(block);
  std::free(address);
}

// As cudaFree and cudaFreeHost: the device is idle first.
cudaError_t free_block(const char* name, void* address, MemoryKind kind) {
  return call(name, [&](Runtime& state) {
    if (address == nullptr) return cudaSuccess;
    const auto block = state.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (block == state.allocations.end() || block->second.kind != kind) return cudaErrorInvalidValue;
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    ++state.counters.synchronizations;
    run_all(state);
    give_back(state, block);
    return cudaSuccess;
  });
}

}  // namespace

Place place_of(Runtime& state, const void* address) {
  const auto block = holder(state.allocations, address);
  if (block != state.allocations.end())
    return block->second.kind == MemoryKind::kDevice ? Place::kDevice : Place::kPinned;
  const auto mapping = mapping_at(state.mappings, reinterpret_cast<uintptr_t>(address));
  return mapping != state.mappings.end() ? Place::kDevice : Place::kPageable;
}

bool range_is_valid(Runtime& state, const void* address, size_t bytes) {
  const auto block = holder(state.allocations, address);
  auto at = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = at + bytes;
  if (block != state.allocations.end()) return end <= block->first + block->second.bytes;
  auto reservation = state.reservations.upper_bound(at);
  if (reservation == state.reservations.begin()) return true;
  --reservation;
  if (at >= reservation->first + reservation->second) return true;
  while (at < end) {
    const auto mapping = mapping_at(state.mappings, at);
    if (mapping == state.mappings.end() || !mapping->second.accessible) return false;
    at = mapping->first + mapping->second.bytes;
  }
  return true;
}

}  // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return call("cudaMemGetInfo", [&](Runtime& state) {
    const Device& device = use_context(state);
    *total_bytes = device.facts.memory_bytes;
    *free_bytes = device.facts.memory_bytes - std::min(device.used_bytes, device.facts.memory_bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMalloc(void** address, size_t bytes) {
  return call("cudaMalloc", [&](Runtime& state) {
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    return allocate_device(state, address, bytes);
  });
}
cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
  return call("cudaMallocAsync", [&](Runtime& state) {
    const CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (on->capture != nullptr) return cudaErrorNotSupported;  // a graph's own memory: not emulated
    return allocate_device(state, address, bytes);
  });
}
cudaError_t cudaFree(void* address) { return free_block("cudaFree", address, MemoryKind::kDevice); }
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return call("cudaFreeAsync", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (on->capture != nullptr) return cudaErrorNotSupported;
    if (!state.allocations.contains(reinterpret_cast<uintptr_t>(address))) return cudaErrorInvalidValue;
    return enqueue(state, on, [&state, address] {
      give_back(state, state.allocations.find(reinterpret_cast<uintptr_t>(address)));
    });
  });
}
cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return allocate_pinned("cudaMallocHost", address, bytes);
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  return allocate_pinned("cudaHostAlloc", address, bytes);
}
cudaError_t cudaFreeHost(void* address) { return free_block("cudaFreeHost", address, MemoryKind::kPinned); }
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  return call("cudaHostRegister", [&](Runtime& state) {
    use_context(state);
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    if (address == nullptr || bytes == 0) return cudaErrorInvalidValue;
    if (place_of(state, address) != Place::kPageable) return cudaErrorHostMemoryAlreadyRegistered;
    state.allocations[reinterpret_cast<uintptr_t>(address)] = {bytes, MemoryKind::kRegistered,
                                                               current_device()};
    return cudaSuccess;
  });
}
cudaError_t cudaHostUnregister(void* address) {
  return call("cudaHostUnregister", [&](Runtime& state) {
    const auto block = state.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (block == state.allocations.end() || block->second.kind != MemoryKind::kRegistered)
      return cudaErrorHostMemoryNotRegistered;
    ++state.counters.synchronizations;
    run_all(state);
    state.allocations.erase(block);
    return cudaSuccess;
  });
}
cudaError_t cudaHostGetDevicePointer(void** device_address, void* host_address, unsigned) {
  return call("cudaHostGetDevicePointer", [&](Runtime& state) {
    if (place_of(state, host_address) != Place::kPinned) return cudaErrorInvalidValue;
    *device_address = host_address;
    return cudaSuccess;
  });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return call("cudaPointerGetAttributes", [&](Runtime& state) {
    *attributes = {};
    attributes->device = -2;
    const auto block = holder(state.allocations, address);
    if (block != state.allocations.end()) {
      const bool is_device = block->second.kind == MemoryKind::kDevice;
      attributes->type = is_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
      attributes->device = block->second.device;
      attributes->devicePointer = const_cast<void*>(address);
      if (!is_device) attributes->hostPointer = const_cast<void*>(address);
      return cudaSuccess;
    }
    const auto mapping = mapping_at(state.mappings, reinterpret_cast<uintptr_t>(address));
    if (mapping != state.mappings.end()) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = state.handles.at(mapping->second.handle).device;
      attributes->devicePointer = const_cast<void*>(address);
      return cudaSuccess;
    }
    attributes->hostPointer = const_cast<void*>(address);
    return cudaSuccess;
  });
}

}  // extern "C"
