// cudaLaunchKernelEx on the emulator, with the part of its configuration that is used.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>

#include "cudasim/intrinsics.h"

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
union cudaLaunchAttributeValue {
  char pad[64];
  int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace cudasim {

// A launch as it waits in a stream: parameters have been copied.
struct Launch {
  uint32_t grid[3];
  uint32_t threads;
  uint32_t shared_bytes;
  bool overlaps;  // may begin before what the stream was given before it has ended
  const void* kernel;
  std::function<void()> body;  // what one thread does
};

// Checks what cudaLaunchKernelEx would refuse, then runs or queues it.
cudaError_t enqueue_launch(const cudaLaunchConfig_t& config, const void* kernel, const void* parameters,
                           size_t parameter_bytes, std::function<void()> body);
// All CTAs, now, on this OS thread. `before`: what has to be done when a lane has waited for the kernel before; it may be done now, or may be empty.
void execute(const Launch& launch, std::function<void()> before);

}  // namespace cudasim

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  std::tuple<Params...> values(std::forward<Args>(args)...);
  return cudasim::enqueue_launch(*config, reinterpret_cast<const void*>(kernel), &values,
                                 (sizeof(Params) + ... + size_t{0}),
                                 [kernel, values] { std::apply(kernel, values); });
}
