// The bytes of a cache on the CPU, over threads where that pays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/device/device.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

// Copies of whole pages between the device pool and the host pool, and inside the device pool. One
// call at a time; no other user of the executor runs meanwhile.
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

class CpuDevice final : public Device {
 public:
  // Borrows plan and pools; the device pool may be resized between calls. Throws UNSUPPORTED when
  // the machine lacks the wanted instruction set.
  CpuDevice(const Plan& plan, const PagePool* pool, const PagePool* host);

  const kernels::cpu::KernelTable& kernels() const { return *kernels_; }
  Executor& executor() { return executor_; }
  // Zeros, in pages of ascending ids.
  void clear_pages(const std::vector<PageId>& pages) noexcept;

  const char* name() const override { return kernels_->name; }
  int32_t num_threads() const override { return executor_.concurrency(); }
  int64_t host_bytes() const override { return 0; }
  uint64_t num_copy_runs() const override { return copies_.num_runs(); }
  void copy_pages(CopyDirection direction, const PageId* from, const PageId* to, int64_t count,
                  CallStream) noexcept override {
    copies_.copy(direction, from, to, count);
  }
  void copy_group_pages(const std::vector<PageCopy>& copies, CallStream) noexcept override;
  void copy_bytes(void* to, const void* from, int64_t bytes, CallStream) noexcept override;
  void read_pages(const PageId* pages, int64_t count, int64_t bytes, std::byte* to,
                  CallStream) const override;
  void write_pages(const PageId* pages, int64_t count, int64_t bytes, const std::byte* from,
                   CallStream) override;
  void read_bytes(std::byte* to, const std::byte* from, int64_t bytes, CallStream) const override;
  void write_bytes(std::byte* to, const std::byte* from, int64_t bytes, CallStream) override;
  void move_tokens(int32_t group, const TokenMoves& moves, CallStream) noexcept override;
  void rotate_keys(int32_t local_layer, const kernels::Rotation& rotation,
                   const std::vector<int64_t>& slots, CallStream) noexcept override;
  uint64_t write_rows(int32_t, const kernels::AppendParams& params, int64_t num_rows,
                      CallStream) noexcept override {
    return kernels_->append(params, 0, num_rows);
  }
  void read_rows(const RowSource&, const kernels::GatherParams& params, int64_t key_begin,
                 int64_t key_end, CallStream) const override {
    kernels_->gather(params, key_begin, key_end);
  }
  void convert(const Elements& to, const Elements& from, int64_t count, CallStream) const override;

 private:
  const Spec* spec_;
  const PagePool* pool_;
  const kernels::cpu::KernelTable* kernels_;
  Executor executor_;
  CpuPageCopies copies_;
};

}  // namespace kvc
