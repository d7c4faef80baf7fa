// Copies of whole pages on a GPU: in one call per direction where the driver can.
#pragma once

#include <cstdint>

#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

class CudaPageCopies {
 public:
  // All are borrowed; the device pool may be resized between calls. The host pool is pinned.
  CudaPageCopies(const Plan* plan, const PagePool* device_pool, const PagePool* host_pool,
                 const Gpu* gpu)
      : plan_(plan), device_pool_(device_pool), host_pool_(host_pool), gpu_(gpu) {}

  // As Device::copy_pages(), for pools with storage. Throws DEVICE.
  void enqueue(CopyDirection direction, const PageId* from, const PageId* to, int64_t count,
               cuda::Stream stream);
  // Copies so far, counted after adjacent pages were merged.
  uint64_t num_runs() const { return num_runs_; }

 private:
  const Plan* plan_;
  const PagePool* device_pool_;
  const PagePool* host_pool_;
  const Gpu* gpu_;
  uint64_t num_runs_ = 0;
};

}  // namespace kvc
