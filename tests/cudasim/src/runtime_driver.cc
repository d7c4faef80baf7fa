// The driver's functions behind cudaGetDriverEntryPointByVersion: contexts, and address space that
// is backed piece by piece.
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "driver.h"
#include "runtime.h"

namespace cudasim {
namespace {

// As call(), for the driver: no last error.
template <typename Body>
CUresult driver_call(const char* name, Body body) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  const OpenDevices open(state);
  const cudaError_t refused = refusal(state, name);
  return refused != cudaSuccess ? static_cast<CUresult>(refused) : body(state);
}

bool is_device_memory(const CUmemAllocationProp* properties) {
  return properties != nullptr && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

// The reservation that holds all of [at, at + bytes).
bool is_reserved(const Runtime& state, uintptr_t at, size_t bytes) {
  auto next = state.reservations.upper_bound(at);
  if (next == state.reservations.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second;
}

void drop_unused(Runtime& state, unsigned long long handle) {
  const auto found = state.handles.find(handle);
  if (!found->second.released || found->second.mappings != 0) return;
  state.devices[found->second.device].used_bytes -= found->second.bytes;
  state.handles.erase(found);
}

CUresult address_reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                         unsigned long long) {
  return driver_call("cuMemAddressReserve", [&](Runtime& state) {
    if (!state.has_virtual_memory) return CUDA_ERROR_NOT_SUPPORTED;
    const size_t granularity = use_context(state).facts.granularity;
    if (bytes == 0 || bytes % granularity != 0) return CUDA_ERROR_INVALID_VALUE;
    void* space = mmap(nullptr, bytes + granularity, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    // Aligned to granules; the unused ends go back.
    const auto begin = reinterpret_cast<uintptr_t>(space);
    const uintptr_t aligned = (begin + granularity - 1) / granularity * granularity;
    if (aligned != begin) munmap(space, aligned - begin);
    const size_t behind = begin + granularity - aligned;
    if (behind != 0) munmap(reinterpret_cast<void*>(aligned + bytes), behind);
    state.reservations[aligned] = bytes;
    *address = aligned;
    return CUDA_SUCCESS;
  });
}

CUresult address_free(CUdeviceptr address, size_t bytes) {
  return driver_call("cuMemAddressFree", [&](Runtime& state) {
    const auto found = state.reservations.find(address);
    if (found == state.reservations.end() || found->second != bytes)
      return CUDA_ERROR_INVALID_VALUE;
    const auto mapping = state.mappings.lower_bound(address);
    if (mapping != state.mappings.end() && mapping->first < address + bytes)
      return CUDA_ERROR_INVALID_VALUE;
    munmap(reinterpret_cast<void*>(address), bytes);
    state.reservations.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes,
                const CUmemAllocationProp* properties, unsigned long long) {
  return driver_call("cuMemCreate", [&](Runtime& state) {
    if (!is_device_memory(properties)) return CUDA_ERROR_INVALID_VALUE;
    const int number = properties->location.id;
    if (number < 0 || number >= state.num_devices) return CUDA_ERROR_INVALID_DEVICE;
    Device& device = state.devices[number];
    if (bytes == 0 || bytes % device.facts.granularity != 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > device.facts.memory_bytes - std::min(device.used_bytes, device.facts.memory_bytes))
      return CUDA_ERROR_OUT_OF_MEMORY;
    device.used_bytes += bytes;
    *handle = state.next_handle++;
    state.handles[*handle] = {bytes, number, 0, false};
    return CUDA_SUCCESS;
  });
}

// The memory lives on until its last mapping goes.
CUresult release(CUmemGenericAllocationHandle handle) {
  return driver_call("cuMemRelease", [&](Runtime& state) {
    const auto found = state.handles.find(handle);
    if (found == state.handles.end() || found->second.released) return CUDA_ERROR_INVALID_VALUE;
    found->second.released = true;
    drop_unused(state, handle);
    return CUDA_SUCCESS;
  });
}

CUresult map(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  return driver_call("cuMemMap", [&](Runtime& state) {
    const auto found = state.handles.find(handle);
    if (found == state.handles.end() || found->second.released || offset != 0 || flags != 0 ||
        bytes != found->second.bytes || !is_reserved(state, address, bytes))
      return CUDA_ERROR_INVALID_VALUE;
    auto next = state.mappings.lower_bound(address);
    const bool overlaps_next = next != state.mappings.end() && next->first < address + bytes;
    const bool overlaps_previous = next != state.mappings.begin() &&
                                   std::prev(next)->first + std::prev(next)->second.bytes > address;
    if (overlaps_next || overlaps_previous) return CUDA_ERROR_ALREADY_MAPPED;
    ++found->second.mappings;
    state.mappings[address] = {bytes, handle, false};
    return CUDA_SUCCESS;
  });
}

// Whole mappings only.
CUresult unmap(CUdeviceptr address, size_t bytes) {
  return driver_call("cuMemUnmap", [&](Runtime& state) {
    uintptr_t at = address;
    while (at < address + bytes) {
      const auto found = state.mappings.find(at);
      if (found == state.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
      at += found->second.bytes;
    }
    if (at != address + bytes) return CUDA_ERROR_INVALID_VALUE;
    void* memory = reinterpret_cast<void*>(address);
    madvise(memory, bytes, MADV_DONTNEED);
    mprotect(memory, bytes, PROT_NONE);
    for (at = address; at < address + bytes;) {
      const auto found = state.mappings.find(at);
      const Mapping mapping = found->second;
      state.mappings.erase(found);
      --state.handles.at(mapping.handle).mappings;
      drop_unused(state, mapping.handle);
      at += mapping.bytes;
    }
    return CUDA_SUCCESS;
  });
}

CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                    size_t count) {
  return driver_call("cuMemSetAccess", [&](Runtime& state) {
    if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return CUDA_ERROR_INVALID_VALUE;
    uintptr_t at = address;
    while (at < address + bytes) {
      const auto found = state.mappings.find(at);
      if (found == state.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
      at += found->second.bytes;
    }
    if (at != address + bytes) return CUDA_ERROR_INVALID_VALUE;
    for (at = address; at < address + bytes;) {
      Mapping& mapping = state.mappings[at];
      if (!mapping.accessible) {
        void* memory = reinterpret_cast<void*>(at);
        if (mprotect(memory, mapping.bytes, PROT_READ | PROT_WRITE) != 0)
          return CUDA_ERROR_OUT_OF_MEMORY;
        std::memset(memory, 0xff, mapping.bytes);
        mapping.accessible = true;
      }
      at += mapping.bytes;
    }
    return CUDA_SUCCESS;
  });
}

CUresult granularity(size_t* bytes, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags) {
  return driver_call("cuMemGetAllocationGranularity", [&](Runtime& state) {
    if (!is_device_memory(properties) || properties->location.id < 0 ||
        properties->location.id >= state.num_devices)
      return CUDA_ERROR_INVALID_VALUE;
    *bytes = state.devices[properties->location.id].facts.granularity;
    return CUDA_SUCCESS;
  });
}

CUresult get_context(CUcontext* context) {
  return driver_call("cuCtxGetCurrent", [&](Runtime&) {
    *context = static_cast<CUcontext>(current_context());
    return CUDA_SUCCESS;
  });
}

CUresult set_context(CUcontext context) {
  return driver_call("cuCtxSetCurrent", [&](Runtime&) {
    return set_current_context(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUresult get_context_id(CUcontext context, unsigned long long* id) {
  return driver_call("cuCtxGetId", [&](Runtime&) {
    void* const of = context != nullptr ? static_cast<void*>(context) : current_context();
    if (of == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *id = number_of_context(of);
    return CUDA_SUCCESS;
  });
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                      CUtensorMapFloatOOBfill fill) {
  return driver_call("cuTensorMapEncodeTiled", [&](Runtime&) {
    return encode_tensor_map(map, type, rank, address, dims, strides, box, element_strides,
                             interleave, swizzle, promotion, fill);
  });
}

CUresult error_name(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult error_string(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

struct Function {
  const char* name;
  void* address;
};

}  // namespace

void* driver_function(const char* symbol) {
  static const Function functions[] = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(address_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(address_free)},
      {"cuMemCreate", reinterpret_cast<void*>(create)},
      {"cuMemRelease", reinterpret_cast<void*>(release)},
      {"cuMemMap", reinterpret_cast<void*>(map)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularity)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(get_context)},
      {"cuCtxSetCurrent", reinterpret_cast<void*>(set_context)},
      {"cuCtxGetId", reinterpret_cast<void*>(get_context_id)},
      {"cuGetErrorName", reinterpret_cast<void*>(error_name)},
      {"cuGetErrorString", reinterpret_cast<void*>(error_string)},
      {"cuTensorMapEncodeTiled", reinterpret_cast<void*>(encode_tiled)},
  };
  for (const Function& function : functions)
    if (std::strcmp(function.name, symbol) == 0) return function.address;
  return nullptr;
}

}  // namespace cudasim
