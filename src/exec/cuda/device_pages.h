// Where the pages of a pool lie, as kernels on a device read it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/step.h"
#include "src/device/gpu.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

class DevicePages {
 public:
  // Borrows all; the pool may be resized while the device is idle. Throws NO_MEMORY, DEVICE.
  DevicePages(const Plan& plan, const PagePool* pool, const Gpu* gpu);

  // The present regions of the pool, on the device. Throws DEVICE.
  const cuda::StepPages& get() {
    if (!is_current()) upload();
    return pages_;
  }
  bool is_current() const;
  // Counts the moves of the pool.
  uint64_t generation() const { return generation_; }

 private:
  void upload();

  const Plan* plan_;
  const PagePool* pool_;
  const Gpu* gpu_;
  DeviceStream stream_;
  DeviceMemory memory_;
  cuda::StepPages pages_{};
  std::vector<LayerPages> regions_;      // As uploaded.
  std::vector<cuda::PageRegion> parts_;  // Contents of memory_: layers by layer group.
  uint64_t generation_ = 0;
};

}  // namespace kvc
