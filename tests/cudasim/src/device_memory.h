// Where device memory lies, and when it can be touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cudasim/cudasim.h"

namespace cudasim {

struct Runtime;

constexpr size_t kAlignment = 256;

// Aligned to kAlignment, NaN. Null: there is no more.
void* take_device_memory(size_t bytes);
void give_device_memory(void* address);

// Device memory can be touched while one of these lives: inside of calls, where kernels and copies
// run. The caller holds the runtime's lock.
class OpenDevices {
 public:
  explicit OpenDevices(Runtime& runtime);
  ~OpenDevices();
  OpenDevices(const OpenDevices&) = delete;
  OpenDevices& operator=(const OpenDevices&) = delete;

 private:
  Runtime& runtime_;
};

// Whether the host has just touched what is the device's alone. For a handler of signals.
bool is_closed_to_host(const void* address);

// Ends the program if a word of a kernel's parameters is the address of pageable host memory.
void check_parameters(Runtime& runtime, const void* kernel, std::span<const std::byte> words);

}  // namespace cudasim
