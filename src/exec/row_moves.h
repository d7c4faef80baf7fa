// Rows moved without attention, over threads where that pays: for a cache and for the operators.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/table.h"
#include "kvcache.h"
#include "src/base/executor.h"
#include "src/base/tensor.h"
#include "src/plan/spec.h"

namespace kvc {

// Copy rate of one thread. With kWorthThreads of cpu/work_list.h it tells small calls from large
// ones.
constexpr double kCopyBytesPerSecond = 10e9;

// Messages name the field `name`. Throws UNSUPPORTED when machine or build lack the instruction
// set.
const kernels::cpu::KernelTable* choose_kernels(kvc_cpu_isa isa, const char* name);

// Returns how many elements saturated, as KernelTable::append.
uint64_t run_append(const kernels::cpu::KernelTable& kernels, Executor& executor,
                    const kernels::AppendParams& params, int64_t num_rows);
// Rows from 0 on of the first page that `pages` names.
void run_gather(const kernels::cpu::KernelTable& kernels, Executor& executor,
                const kernels::GatherParams& params, int64_t num_rows);
void run_merge(const kernels::cpu::KernelTable& kernels, Executor& executor,
               const kernels::MergeParams& params, int64_t num_rows);

// Rotates the K rows of these slots of `keys` in place, by the only row of `rotation`.
void rotate_key_rows(const kernels::cpu::KernelTable& kernels, const LayerSpec& layer,
                     const kernels::PagedRows& keys, int64_t page_size,
                     const kernels::Rotation& rotation, const std::vector<int64_t>& slots) noexcept;

struct MergeCall {
  kernels::MergeParams params;
  int64_t num_rows;
};

// Heads and dim are those of `out`, and the rows too where num_rows < 0. Throws a tensor status.
MergeCall read_merge(const DLTensor* out, const DLTensor* lse, const DLTensor* other_out,
                     const DLTensor* other_lse, int64_t num_rows, DLDevice device = kHost);

}  // namespace kvc
