// Which attention kernels a launch may run on, and what the scheduler is told of each.
#pragma once

#include <cstdint>

#include "kernels/cuda/table.h"
#include "src/device/gpu.h"
#include "src/exec/cuda/forward.h"
#include "src/exec/engine.h"

namespace kvc {

// Rows for the new keys of kvc_attn_self, which are no part of the pool.
class NewKeys {
 public:
  explicit NewKeys(const Gpu& device) : k_(device), v_(device), slots_(device) {}

  // Room for the largest step; fills K, V and the page size of `params`. Throws NO_MEMORY,
  // INVALID_STATE: a captured forward needs more than was there before the capture.
  void secure(CudaForward& open, const AttnCall& call, const AttnTensors& tensors,
              kernels::AttnParams* params);
  // 0, 1, 2, ...
  const int64_t* slots() const { return reinterpret_cast<const int64_t*>(slots_.data()); }

 private:
  DeviceBuffer k_, v_, slots_;
  int64_t num_slots_ = 0;
};

// How a kernel wants the work of these dims cut.
cuda::AttnGeometry attn_geometry(const Gpu& device, cuda::AttnKernel kernel,
                                 const kernels::AttnParams& params);

// Kernels able to serve a launch. `launch` has everything but the work list.
struct AttnKernels {
  cuda::AttnKernel small;  // Sequences of up to kSmallRows packed rows per kv head.
  cuda::AttnKernel large;  // Longer ones; possibly the same kernel.
  uint32_t all;            // Bit k: AttnKernel k serves rows of any number.
};
AttnKernels find_attn_kernels(const Gpu& device, const cuda::AttnLaunch& launch);
// The one kernel for the batch-invariant mode: its results do not depend on the number of rows.
cuda::AttnKernel invariant_attn_kernel(const Gpu& device, const cuda::AttnLaunch& launch);

// Sequences of min_rows < packed rows per kv head <= max_rows, all on one kernel.
struct RowRange {
  int32_t min_rows, max_rows;
};
// `fixed_keys`: as in ScheduleShape.
cuda::ScheduleShape schedule_shape(const Gpu& device, cuda::AttnKernel kernel, const RowRange& rows,
                                   const kernels::AttnParams& params, bool splits_sinks,
                                   int32_t fixed_keys);

}  // namespace kvc
