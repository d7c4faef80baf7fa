// Copies of whole pages on a GPU. Inside the device's pool a kernel makes them: the driver takes
// microseconds for each copy of a batch there. Between the pools the driver's copy engines reach
// the rate of the link with pages of 64 KiB, and leave the multiprocessors alone.
#pragma once

#include <cstdint>

#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/device/uploads.h"
#include "src/pages/pool.h"

namespace kvc {

class CudaPageCopies {
 public:
  // All are borrowed; the device pool may be resized between calls. The host pool is pinned.
  CudaPageCopies(const PagePool* device_pool, const PagePool* host_pool, const Gpu* gpu)
      : device_pool_(device_pool), host_pool_(host_pool), gpu_(gpu) {}

  static constexpr int64_t kUploadBytes = int64_t{32} << 10;

  // As Device::copy_pages(), for pools with storage. `uploads` assures kUploadBytes. Throws DEVICE.
  void enqueue(CopyDirection direction, const PageId* from, const PageId* to, int64_t count,
               DeviceUploads& uploads, cuda::Stream stream);
  // Copies so far, counted after adjacent pages were merged.
  uint64_t num_runs() const { return num_runs_; }

 private:
  void copy_by_driver(const PagePool& source_pool, const PagePool& target_pool, const PageId* from,
                      const PageId* to, int64_t count, cuda::Stream stream);
  void copy_by_kernel(const PageId* from, const PageId* to, int64_t count, DeviceUploads& uploads,
                      cuda::Stream stream);

  const PagePool* device_pool_;
  const PagePool* host_pool_;
  const Gpu* gpu_;
  uint64_t num_runs_ = 0;
};

}  // namespace kvc
