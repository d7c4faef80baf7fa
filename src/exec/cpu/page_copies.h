// Copies of whole pages between the device pool and the host pool, and inside the device pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/pages/allocator.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

enum class CopyDirection { kDeviceToHost, kHostToDevice, kInsideDevice };

// One call at a time.
class PageCopier {
 public:
  virtual ~PageCopier() = default;

  // Copies page from[i] to page to[i]: complete on return on the CPU, enqueued on a GPU. No
  // destination comes twice or is another pair's source. Neighbours of the list that are adjacent
  // in both pools, ascending or descending, become one copy. Without storage nothing is copied.
  virtual void copy(CopyDirection direction, const PageId* from, const PageId* to,
                    int64_t count) noexcept = 0;

  // Copies so far, counted after adjacent pages were merged.
  uint64_t num_runs() const { return num_runs_; }

 protected:
  uint64_t num_runs_ = 0;
};

// No other user of the executor runs at the same time.
class CpuPageCopier final : public PageCopier {
 public:
  // Borrows everything. The device pool may be resized between calls.
  CpuPageCopier(const Plan* plan, const PagePool* device, const PagePool* host,
                const kernels::cpu::KernelTable* kernels, Executor* executor)
      : plan_(plan), device_(device), host_(host), kernels_(kernels), executor_(executor) {}

  void copy(CopyDirection direction, const PageId* from, const PageId* to,
            int64_t count) noexcept override;

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
};

}  // namespace kvc
