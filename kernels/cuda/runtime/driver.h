// Functions of the driver that the runtime does not offer. They are found through the runtime, so
// nothing links libcuda, and the library loads on machines without it.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace kvc::cuda {

// Where an entry point has a second version, cuda.h means that one by the plain name.
struct Driver {
  CUresult (*error_name)(CUresult, const char**);
  CUresult (*error_string)(CUresult, const char**);
  CUresult (*current_context)(CUcontext*);
  CUresult (*set_current_context)(CUcontext);
  CUresult (*context_id)(CUcontext, unsigned long long*);  // Null: the id of the current context.
  CUresult (*granularity)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
  CUresult (*reserve_addresses)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*free_addresses)(CUdeviceptr, size_t);
  CUresult (*create_memory)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                            unsigned long long);
  CUresult (*release_memory)(CUmemGenericAllocationHandle);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);
};

// Found once per process. A failure (no driver yet) is not kept.
cudaError_t find_driver(const Driver** out);

}  // namespace kvc::cuda
