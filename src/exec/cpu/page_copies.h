// Copies of whole pages between the device pool and the host pool, and inside the device pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/device/device.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

// One call at a time; no other user of the executor runs meanwhile.
class CpuPageCopies {
 public:
  // Borrows everything. The device pool may be resized between calls.
  CpuPageCopies(const Plan* plan, const PagePool* device, const PagePool* host,
                const kernels::cpu::KernelTable* kernels, Executor* executor)
      : plan_(plan), device_(device), host_(host), kernels_(kernels), executor_(executor) {}

  // As Device::copy_pages().
  void copy(CopyDirection direction, const PageId* from, const PageId* to, int64_t count) noexcept;
  // Copies so far, counted after adjacent pages were merged.
  uint64_t num_runs() const { return num_runs_; }

 private:
  struct Region;  // A region of a page, in both pools.
  struct Job;
  Region region(const Job& job, int64_t index) const;
  void copy_pages(const Job& job, int64_t region_index, int64_t begin, int64_t end) const;
  void copy_part(const Job& job, int64_t region_index, int64_t pair, int64_t part) const;
  void spread(const Job& job) const;
  int64_t count_runs(const Job& job) const;

  const Plan* plan_;
  const PagePool* device_;
  const PagePool* host_;
  const kernels::cpu::KernelTable* kernels_;
  Executor* executor_;
  uint64_t num_runs_ = 0;
};

}  // namespace kvc
