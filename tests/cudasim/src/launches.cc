// Kernel launches: what cudaLaunchKernelEx refuses, and the hand-over to the engine.
#include <algorithm>
#include <memory>

#include "cudasim/launch.h"
#include "device_memory.h"
#include "report.h"
#include "runtime.h"

namespace cudasim {
namespace {

bool asks_to_overlap(const cudaLaunchConfig_t& config) {
  return std::any_of(config.attrs, config.attrs + config.numAttrs,
                     [](const cudaLaunchAttribute& attribute) {
                       return attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                              attribute.val.programmaticStreamSerializationAllowed != 0;
                     });
}

}  // namespace

cudaError_t enqueue_launch(const cudaLaunchConfig_t& config, const void* kernel,
                           std::span<const std::byte> words, size_t parameter_bytes,
                           std::function<void()> body) {
  return call("cudaLaunchKernelExC", [&](Runtime& state) {
    const DeviceFacts& facts = use_context(state).facts;
    CUstream_st* on = find_stream(state, config.stream);
    if (on == nullptr || on->device != current_device()) return cudaErrorInvalidResourceHandle;
    const dim3 grid = config.gridDim;
    const uint64_t ctas = uint64_t{grid.x} * grid.y * grid.z;
    if (ctas == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
      return cudaErrorInvalidConfiguration;
    const uint32_t threads = config.blockDim.x;
    if (threads == 0 || threads > 1024) return cudaErrorInvalidConfiguration;
    if (parameter_bytes > 4096) return cudaErrorInvalidValue;
    const auto allowed = state.allowed_shared.find({kernel, current_device()});
    const uint32_t most =
        allowed == state.allowed_shared.end() ? 48u << 10 : std::max(allowed->second, 48u << 10);
    if (config.dynamicSmemBytes > most ||
        config.dynamicSmemBytes > static_cast<size_t>(facts.shared_bytes))
      return cudaErrorInvalidValue;
    check_parameters(state, kernel, words);
    if (threads % 32 != 0)
      fail("%s: %u threads, not a multiple of 32", kernel_name(kernel).c_str(), threads);
    const bool overlaps = asks_to_overlap(config);
    if (overlaps && facts.major >= 9 && ptx_version(facts) < 90)
      fail("%s may begin early, but its code is of PTX %d and does not wait",
           kernel_name(kernel).c_str(), ptx_version(facts));
    auto shared =
        std::make_shared<const Launch>(Launch{{grid.x, grid.y, grid.z},
                                              threads,
                                              static_cast<uint32_t>(config.dynamicSmemBytes),
                                              overlaps,
                                              kernel,
                                              std::move(body)});
    return enqueue_kernel(state, on, overlaps, [&state, shared, ctas](Work before) {
      const std::string name = kernel_name(shared->kernel);
      ++state.counters.kernel_launches;
      ++state.counters.launches_by_kernel[name];
      state.counters.ctas_by_kernel[name] += ctas;
      if (shared->overlaps) ++state.counters.overlapping_by_kernel[name];
      if (before) ++state.counters.early_launches;
      execute(*shared, std::move(before));
    });
  });
}

}  // namespace cudasim
