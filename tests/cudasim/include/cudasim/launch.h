// kvc::cuda::launch and allow_shared on the emulator, with the signatures of kernels/cuda/launch.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>

namespace cudasim {

// A launch as it waits in a stream: parameters have been copied.
struct Launch {
  uint32_t grid[3];
  uint32_t threads;
  uint32_t shared_bytes;
  bool may_overlap;
  const void* kernel;
  std::function<void()> body;  // what one thread does
};

// Checks what cudaLaunchKernelEx would refuse, then runs or queues it.
cudaError_t enqueue_launch(Launch launch, size_t parameter_bytes, cudaStream_t stream);
cudaError_t allow_shared(const void* kernel, uint32_t bytes);
// All CTAs, now, on this OS thread.
void execute(const Launch& launch);

// LaunchShape is defined behind this header: a name that depends on template parameters is looked up when launch is used.
template <typename T, typename...>
struct Later {
  using Type = T;
};

}  // namespace cudasim

namespace kvc::cuda {

struct LaunchShape;

template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), const LaunchShape& launch_shape, cudaStream_t stream,
                   Args&&... args) {
  const typename cudasim::Later<LaunchShape, Params...>::Type& shape = launch_shape;
  std::tuple<Params...> values(std::forward<Args>(args)...);
  return cudasim::enqueue_launch(
      cudasim::Launch{{shape.grid[0], shape.grid[1], shape.grid[2]},
                      shape.threads,
                      shape.shared_bytes,
                      shape.may_overlap,
                      reinterpret_cast<const void*>(kernel),
                      [kernel, values = std::move(values)] { std::apply(kernel, values); }},
      (sizeof(Params) + ... + size_t{0}), stream);
}

template <typename... Params>
cudaError_t allow_shared(void (*kernel)(Params...), uint32_t bytes) {
  return cudasim::allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}

}  // namespace kvc::cuda
