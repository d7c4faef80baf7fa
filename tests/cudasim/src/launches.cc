// Kernel launches: what cudaLaunchKernelEx refuses, and the hand-over to the engine.
#include <algorithm>
#include <memory>

#include "cudasim/launch.h"
#include "report.h"
#include "runtime.h"

namespace cudasim {

cudaError_t enqueue_launch(Launch launch, size_t parameter_bytes, cudaStream_t stream) {
  return call("cudaLaunchKernelExC", [&](Runtime& state) {
    const DeviceFacts& facts = use_context(state).facts;
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr || on->device != current_device()) return cudaErrorInvalidResourceHandle;
    const uint64_t ctas = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    if (ctas == 0 || launch.grid[0] > 0x7fffffffu || launch.grid[1] > 65535 || launch.grid[2] > 65535)
      return cudaErrorInvalidConfiguration;
    if (launch.threads == 0 || launch.threads > 1024) return cudaErrorInvalidConfiguration;
    if (parameter_bytes > 4096) return cudaErrorInvalidValue;
    const auto allowed = state.allowed_shared.find({launch.kernel, current_device()});
    const uint32_t most =
        allowed == state.allowed_shared.end() ? 48u << 10 : std::max(allowed->second, 48u << 10);
    if (launch.shared_bytes > most || launch.shared_bytes > static_cast<uint32_t>(facts.shared_bytes))
      return cudaErrorInvalidValue;
    if (launch.threads % 32 != 0)
      fail("%s: %u threads, not a multiple of 32", kernel_name(launch.kernel).c_str(), launch.threads);
    auto shared = std::make_shared<const Launch>(std::move(launch));
    return enqueue(state, on, [&state, shared, ctas] {
      ++state.counters.kernel_launches;
      ++state.counters.launches_by_kernel[kernel_name(shared->kernel)];
      state.counters.ctas_by_kernel[kernel_name(shared->kernel)] += ctas;
      execute(*shared);
    });
  });
}

// Raised, never lowered.
cudaError_t allow_shared(const void* kernel, uint32_t bytes) {
  {
    Runtime& state = runtime();
    const std::lock_guard lock(state.mutex);
    const auto allowed = state.allowed_shared.find({kernel, current_device()});
    if (allowed != state.allowed_shared.end() && allowed->second >= bytes) return cudaSuccess;
  }
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace cudasim
