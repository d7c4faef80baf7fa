// Device and pinned memory: blocks exactly as large as asked for, that begin as NaN.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace cudasim {
namespace {

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

bool take_bytes(Device& device, size_t bytes) {
  if (bytes > device.facts.memory_bytes - std::min(device.used_bytes, device.facts.memory_bytes))
    return false;
  device.used_bytes += bytes;
  return true;
}

cudaError_t allocate_device(Runtime& state, void** address, size_t bytes) {
  Device& device = use_context(state);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (!take_bytes(device, bytes)) return cudaErrorMemoryAllocation;
  *address = take_device_memory(bytes);
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  state.allocations[reinterpret_cast<uintptr_t>(*address)] = {
      bytes, MemoryKind::kDevice, current_device(), nullptr, state.next_allocation++};
  return cudaSuccess;
}

// What the pool keeps comes first. Until the stream is there the memory may be anybody's: it is NaN
// again then.
cudaError_t allocate_from_pool(Runtime& state, void** address, size_t bytes,
                               CUmemPoolHandle_st* pool, CUstream_st* on) {
  *address = nullptr;
  if (pool->device != on->device) return cudaErrorInvalidValue;
  if (bytes == 0) return cudaSuccess;
  const size_t kept = pool->reserved_bytes - pool->used_bytes;
  const size_t more = bytes - std::min(bytes, kept);
  if (!take_bytes(state.devices[pool->device], more)) return cudaErrorMemoryAllocation;
  pool->reserved_bytes += more;
  *address = take_device_memory(bytes);
  if (*address == nullptr) return cudaErrorMemoryAllocation;
  pool->used_bytes += bytes;
  const auto at = reinterpret_cast<uintptr_t>(*address);
  const uint64_t number = state.next_allocation++;
  state.allocations[at] = {bytes, MemoryKind::kDevice, pool->device, pool, number};
  return enqueue(state, on, [&state, at, number] {
    const auto block = state.allocations.find(at);
    if (block != state.allocations.end() && block->second.number == number)
      std::memset(reinterpret_cast<void*>(at), 0xff, block->second.bytes);
  });
}

Work poison(uintptr_t at, size_t bytes) {
  return [at, bytes] { std::memset(reinterpret_cast<void*>(at), 0xff, bytes); };
}

// A node of the graph: its memory begins as NaN in every replay.
cudaError_t allocate_in_graph(Runtime& state, void** address, size_t bytes, CUstream_st* on) {
  if (const cudaError_t error = allocate_device(state, address, bytes); error != cudaSuccess)
    return error;
  const auto at = reinterpret_cast<uintptr_t>(*address);
  on->capture->memory->blocks.push_back(at);
  return enqueue(state, on, poison(at, bytes));
}

// Only what this capture allocated.
cudaError_t free_in_graph(Runtime& state, uintptr_t at, CUstream_st* on) {
  const std::vector<uintptr_t>& blocks = on->capture->memory->blocks;
  if (std::find(blocks.begin(), blocks.end(), at) == blocks.end()) return cudaErrorNotSupported;
  return enqueue(state, on, poison(at, state.allocations.at(at).bytes));
}

constexpr size_t kMostFreedBytes = size_t{16} << 20;
constexpr size_t kMostFreedBlocks = 64;

void check_freed_block(const FreedBlock& block) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(block.address);
  if (std::all_of(bytes, bytes + block.bytes, [](unsigned char byte) { return byte == 0xff; }))
    return;
  fail("memory of a pool, %zu bytes at %p, was written after it was given back", block.bytes,
       reinterpret_cast<const void*>(block.address));
}

cudaError_t allocate_pinned(const char* name, void** address, size_t bytes) {
  *address = nullptr;
  return call(name, [&](Runtime& state) {
    use_context(state);
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    ++state.counters.plain_allocations;
    if (bytes == 0) return cudaSuccess;
    *address = take(bytes);
    if (*address == nullptr) return cudaErrorMemoryAllocation;
    state.allocations[reinterpret_cast<uintptr_t>(*address)] = {
        bytes, MemoryKind::kPinned, current_device(), nullptr, state.next_allocation++};
    return cudaSuccess;
  });
}

void give_back(Runtime& state, std::map<uintptr_t, Allocation>::iterator block) {
  CUmemPoolHandle_st* const pool = block->second.pool;
  const size_t bytes = block->second.bytes;
  const bool is_device = block->second.kind == MemoryKind::kDevice;
  if (is_device && pool == nullptr) state.devices[block->second.device].used_bytes -= bytes;
  void* address = reinterpret_cast<void*>(block->first);
  std::memset(address, 0xff, bytes);
  state.allocations.erase(block);
  if (pool == nullptr) {
    is_device ? give_device_memory(address) : std::free(address);
    return;
  }
  pool->used_bytes -= bytes;
  state.freed.push_back({reinterpret_cast<uintptr_t>(address), bytes});
  state.freed_bytes += bytes;
  forget_freed(state, kMostFreedBytes, kMostFreedBlocks);
}

// As cudaFree and cudaFreeHost: the device is idle first.
cudaError_t free_block(const char* name, void* address, MemoryKind kind) {
  return call(name, [&](Runtime& state) {
    if (address == nullptr) return cudaSuccess;
    const auto block = state.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (block == state.allocations.end() || block->second.kind != kind)
      return cudaErrorInvalidValue;
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    // CudaFree takes it that nobody uses memory of a pool any more
    if (block->second.pool == nullptr) {
      ++state.counters.synchronizations;
      run_all(state);
    }
    give_back(state, block);
    return cudaSuccess;
  });
}

}  // namespace

GraphMemory::~GraphMemory() {
  Runtime& state = runtime();
  const OpenDevices open(state);
  for (const uintptr_t block : blocks) give_back(state, state.allocations.find(block));
}

Place place_of(Runtime& state, const void* address) {
  const auto block = holder(state.allocations, address);
  if (block != state.allocations.end())
    return block->second.kind == MemoryKind::kDevice ? Place::kDevice : Place::kPinned;
  const auto mapping = mapping_at(state.mappings, reinterpret_cast<uintptr_t>(address));
  return mapping != state.mappings.end() ? Place::kDevice : Place::kPageable;
}

void check_freed(const Runtime& state) {
  for (const FreedBlock& block : state.freed) check_freed_block(block);
}

void forget_freed(Runtime& state, size_t bytes_to_keep, size_t blocks_to_keep) {
  while (state.freed_bytes > bytes_to_keep || state.freed.size() > blocks_to_keep) {
    check_freed_block(state.freed.front());
    state.freed_bytes -= state.freed.front().bytes;
    give_device_memory(reinterpret_cast<void*>(state.freed.front().address));
    state.freed.pop_front();
  }
}

bool range_is_valid(Runtime& state, const void* address, size_t bytes) {
  const auto block = holder(state.allocations, address);
  auto at = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = at + bytes;
  for (const FreedBlock& freed : state.freed)
    if (at < freed.address + freed.bytes && freed.address < end) return false;
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

void* take_tensor(size_t bytes) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  void* const address = take(bytes == 0 ? 1 : bytes);
  if (address != nullptr)
    state.allocations[reinterpret_cast<uintptr_t>(address)] = {
        bytes == 0 ? 1 : bytes, MemoryKind::kTensor, current_device()};
  return address;
}
void give_tensor(void* address) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  state.allocations.erase(reinterpret_cast<uintptr_t>(address));
  std::free(address);
}

}  // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return call("cudaMemGetInfo", [&](Runtime& state) {
    const Device& device = use_context(state);
    *total_bytes = device.facts.memory_bytes;
    *free_bytes =
        device.facts.memory_bytes - std::min(device.used_bytes, device.facts.memory_bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMalloc(void** address, size_t bytes) {
  return call("cudaMalloc", [&](Runtime& state) {
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    ++state.counters.plain_allocations;
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
cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return call("cudaMallocFromPoolAsync", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr || !state.pools.contains(pool)) return cudaErrorInvalidResourceHandle;
    if (on->capture != nullptr) return allocate_in_graph(state, address, bytes, on);
    if (const cudaError_t error = legacy_use(state, on); error != cudaSuccess) return error;
    return allocate_from_pool(state, address, bytes, pool, on);
  });
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const struct cudaMemPoolProps* properties) {
  return call("cudaMemPoolCreate", [&](Runtime& state) {
    const int device = properties->location.id;
    if (properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice || device < 0 ||
        device >= state.num_devices)
      return cudaErrorInvalidValue;
    if (!state.has_memory_pools) return cudaErrorNotSupported;
    *pool = new CUmemPoolHandle_st{device, 0, 0, 0};
    state.pools.insert(*pool);
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return call("cudaMemPoolDestroy", [&](Runtime& state) {
    if (!state.pools.contains(pool) || pool->used_bytes != 0) return cudaErrorInvalidValue;
    state.devices[pool->device].used_bytes -= pool->reserved_bytes;
    state.pools.erase(pool);
    delete pool;
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                    void* value) {
  return call("cudaMemPoolSetAttribute", [&](Runtime& state) {
    if (!state.pools.contains(pool) || attribute != cudaMemPoolAttrReleaseThreshold)
      return cudaErrorInvalidValue;
    pool->threshold = *static_cast<uint64_t*>(value);
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                    void* value) {
  return call("cudaMemPoolGetAttribute", [&](Runtime& state) {
    if (!state.pools.contains(pool)) return cudaErrorInvalidValue;
    auto& out = *static_cast<uint64_t*>(value);
    switch (attribute) {
      case cudaMemPoolAttrReleaseThreshold: out = pool->threshold; break;
      case cudaMemPoolAttrReservedMemCurrent: out = pool->reserved_bytes; break;
      case cudaMemPoolAttrUsedMemCurrent: out = pool->used_bytes; break;
    }
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes_to_keep) {
  return call("cudaMemPoolTrimTo", [&](Runtime& state) {
    if (!state.pools.contains(pool)) return cudaErrorInvalidValue;
    const size_t left = std::max(pool->used_bytes, std::min(bytes_to_keep, pool->reserved_bytes));
    state.devices[pool->device].used_bytes -= pool->reserved_bytes - left;
    pool->reserved_bytes = left;
    return cudaSuccess;
  });
}
cudaError_t cudaFree(void* address) { return free_block("cudaFree", address, MemoryKind::kDevice); }
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return call("cudaFreeAsync", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (on->capture != nullptr)
      return free_in_graph(state, reinterpret_cast<uintptr_t>(address), on);
    if (!state.allocations.contains(reinterpret_cast<uintptr_t>(address)))
      return cudaErrorInvalidValue;
    return enqueue(state, on, [&state, address] {
      const auto block = state.allocations.find(reinterpret_cast<uintptr_t>(address));
      if (block == state.allocations.end()) fail("cudaFreeAsync: %p was freed before", address);
      give_back(state, block);
    });
  });
}
cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return allocate_pinned("cudaMallocHost", address, bytes);
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  return allocate_pinned("cudaHostAlloc", address, bytes);
}
cudaError_t cudaFreeHost(void* address) {
  return free_block("cudaFreeHost", address, MemoryKind::kPinned);
}
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
