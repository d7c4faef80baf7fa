// Page copies of a cache on a CUDA device: enqueued on the engine's stream, in one call per
// direction where the driver can.
#pragma once

#include <vector>

#include "src/device/device.h"
#include "src/device/uploads.h"
#include "src/exec/cpu/page_copies.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

class CudaPageCopier final : public PageCopier {
 public:
  // All are borrowed; the device pool may be resized between calls. The host pool is pinned.
  CudaPageCopier(const Plan* plan, const PagePool* device_pool, const PagePool* host_pool,
                 const Device* device, DeviceQueue* queue)
      : plan_(plan),
        device_pool_(device_pool),
        host_pool_(host_pool),
        device_(device),
        queue_(queue) {}

  void copy(CopyDirection direction, const PageId* from, const PageId* to,
            int64_t count) noexcept override;

 private:
  struct Job;
  void enqueue(const Job& job, cuda::Stream stream);
  void flush(cuda::Stream stream);

  const Plan* plan_;
  const PagePool* device_pool_;
  const PagePool* host_pool_;
  const Device* device_;
  DeviceQueue* queue_;
  // The pieces of one call to the driver, so many at most: nothing grows here.
  static constexpr size_t kMostPieces = 512;
  size_t num_pieces_ = 0;
  void* targets_[kMostPieces];
  const void* sources_[kMostPieces];
  size_t sizes_[kMostPieces];
};

}  // namespace kvc
