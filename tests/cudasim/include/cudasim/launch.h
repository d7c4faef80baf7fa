// cudaLaunchKernelEx on the emulator, with the part of its configuration that is used.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
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
// `words`: the parameters' own, searched for addresses.
cudaError_t enqueue_launch(const cudaLaunchConfig_t& config, const void* kernel,
                           std::span<const std::byte> words, size_t parameter_bytes,
                           std::function<void()> body);
// All CTAs, now, on this OS thread. `before`: what has to be done when a lane has waited for the
// kernel before; it may be done now, or may be empty.
void execute(const Launch& launch, std::function<void()> before);

}  // namespace cudasim

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  std::tuple<Params...> values(std::forward<Args>(args)...);
  constexpr auto kRounded = [](size_t bytes) { return (bytes + 7) / 8 * 8; };
  // Padding holds what was on a stack before, pieces of addresses too, and is left out.
  // Where the compiler cannot do that, nothing is searched.
  std::array<std::byte, (kRounded(sizeof(Params)) + ... + 8)> words{};
  size_t bytes_to_search = 0;
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  const auto add = [&](auto value) {
    __builtin_clear_padding(&value);
    std::memcpy(words.data() + bytes_to_search, &value, sizeof value);
    bytes_to_search += kRounded(sizeof value);
  };
  std::apply([&](const auto&... value) { (add(value), ...); }, values);
#endif
#endif
  return cudasim::enqueue_launch(
      *config, reinterpret_cast<const void*>(kernel), {words.data(), bytes_to_search},
      (sizeof(Params) + ... + size_t{0}), [kernel, values] { std::apply(kernel, values); });
}
