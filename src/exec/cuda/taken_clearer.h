// Zeros in the pages and state slots that a forward takes (KVC_CONFIG_CLEAR_PAGES), on a GPU.
#pragma once

#include <vector>

#include "src/device/uploads.h"
#include "src/exec/cuda/device_pages.h"
#include "src/pages/pool.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/step/batch.h"

namespace kvc {

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

}  // namespace kvc
