// Whole pages on a GPU: copies, zeros, and how rows are stored. Inside the device's pool a kernel
// copies: the driver takes microseconds for each copy of a batch there. Between the pools the
// driver's copy engines reach the rate of the link with pages of 64 KiB, and leave the
// multiprocessors alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/work.h"
#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/device/uploads.h"
#include "src/exec/cuda/device_step.h"
#include "src/pages/pool.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/step/batch.h"

namespace kvc {

// Many copies in one call to the driver.

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

// How the rows of a layer are stored, in the words of the device's kernels.

// Quant::kNone for layers that are not quantised.
cuda::RowStorage k_storage(const Plan& plan, const PagePool& pool, int32_t local_layer);
cuda::RowStorage v_storage(const Plan& plan, const PagePool& pool, int32_t local_layer);

// Zeros in the pages and state slots that a forward takes (KVC_CONFIG_CLEAR_PAGES), on a GPU.
class TakenClearer {
 public:
  // Borrows all. Throws NO_MEMORY, DEVICE.
  TakenClearer(const Spec* spec, const PagePool* pool, const StatePool* states, const Gpu* gpu,
               DevicePages* pages);

  // Before anything else is enqueued for the forward. Nothing where the configuration does not ask
  // for it.
  void clear(const Batch& batch, cuda::Stream stream, DeviceUploads& uploads);

 private:
  void make_zeros();

  const Spec* spec_;
  const PagePool* pool_;
  const StatePool* states_;
  const Gpu* gpu_;
  DevicePages* pages_;
  // The largest part of a page in zeros, and a table of parts that all lie there.
  DeviceMemory zeros_, zero_slots_;
  std::vector<PageId> zero_pages_;
};

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
