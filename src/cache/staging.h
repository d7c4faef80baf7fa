// Host memory that the device copies from and to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/memory.h"
#include "src/device/gpu.h"

namespace kvc {

// Pinned where the device is a GPU. Throws std::bad_alloc or Error.
class Staging {
 public:
  Staging(const Gpu& gpu, int64_t bytes) {
    if (gpu.table != nullptr) {
      pinned_ = PinnedMemory(gpu, bytes);
    } else {
      plain_.ensure(static_cast<size_t>(bytes));
    }
  }
  std::byte* data() const { return pinned_.data() != nullptr ? pinned_.data() : plain_.data(); }

 private:
  PinnedMemory pinned_;
  AlignedBuffer plain_;
};

}  // namespace kvc
