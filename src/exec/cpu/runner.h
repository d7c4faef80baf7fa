// Runs a work list: scratch memory per worker, partial results and their reduction.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/exec/cpu/work_list.h"

namespace kvc {

// Waking a sleeping thread costs 4 to 25 us; smaller calls stay on the caller's thread.
constexpr double kWorthThreads = 30e-6;

// The shape of a call. `params` has its heads, dims, rows and options.
WorkShape work_shape(const kernels::cpu::KernelTable& kernels, const kernels::AttnParams& params,
                     bool tiles_only, int32_t concurrency);

// One call at a time. Workspace grows and is kept, so that a steady decode allocates nothing.
class ItemRunner {
 public:
  // Borrows both.
  ItemRunner(const kernels::cpu::KernelTable* kernels, Executor* executor);

  // Everything that run() with the same arguments needs. Throws std::bad_alloc; call it before
  // anything is written.
  void secure(const WorkList& list, const kernels::AttnParams& params);
  // Workspace (partials, split_offsets) is this object's, whatever `params` says.
  void run(const WorkList& list, const kernels::AttnParams& params) noexcept;

 private:
  void run_item(const WorkList& list, const kernels::AttnParams& params, int64_t index,
                int32_t worker);

  const kernels::cpu::KernelTable* kernels_;
  Executor* executor_;
  std::vector<AlignedBuffer> scratch_;  // Per worker.
  AlignedBuffer partials_;
  std::unique_ptr<std::atomic<int32_t>[]> finished_;  // Chunks done, per reduction.
  size_t finished_capacity_ = 0;
};

}  // namespace kvc
