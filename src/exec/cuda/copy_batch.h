// Many copies in one call to the driver.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/device/gpu.h"

namespace kvc {

// Of a fixed size, so that nothing grows. Borrows the device.
class CopyBatch {
 public:
  CopyBatch(const Gpu* gpu, cuda::Stream stream) : gpu_(gpu), stream_(stream) {}

  // Throws DEVICE.
  void add(void* to, const void* from, int64_t bytes) {
    if (count_ == kMost) flush();
    targets_[count_] = to;
    sources_[count_] = from;
    sizes_[count_++] = static_cast<size_t>(bytes);
  }
  void flush() {
    if (count_ == 0) return;
    const auto count = static_cast<int64_t>(count_);
    count_ = 0;
    gpu_->call("copy_many", gpu_->table->copy_many, targets_, sources_, sizes_, count, stream_);
  }

 private:
  static constexpr size_t kMost = 512;

  const Gpu* gpu_;
  cuda::Stream stream_;
  size_t count_ = 0;
  void* targets_[kMost];
  const void* sources_[kMost];
  size_t sizes_[kMost];
};

}  // namespace kvc
