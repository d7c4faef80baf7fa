#include "src/exec/row_moves.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/overlap.h"
#include "src/base/tensor.h"
#include "src/exec/cpu/work_list.h"

namespace kvc {
namespace {

// Rows of one task: some 100 KiB for a common layer.
constexpr int64_t kTaskRows = 32;

// move(begin, end), noexcept, over [0, num_rows).
template <typename Move>
void move_rows(Executor& executor, int64_t num_rows, double bytes, Move&& move) {
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    move(int64_t{0}, num_rows);
    return;
  }
  executor.run(ceil_div(num_rows, kTaskRows), [&](int64_t task, int32_t) {
    move(task * kTaskRows, std::min(num_rows, (task + 1) * kTaskRows));
  });
}

}  // namespace

const kernels::cpu::KernelTable* choose_kernels(kvc_cpu_isa isa, const char* name) {
  if (isa < KVC_CPU_ISA_AUTO || isa > KVC_CPU_ISA_AVX512_BF16) {
    fail_with(KVC_E_OUT_OF_RANGE, isa, "%s = %d out of range: %d to %d", name, isa,
              static_cast<int>(KVC_CPU_ISA_AUTO), static_cast<int>(KVC_CPU_ISA_AVX512_BF16));
  }
  const kernels::cpu::KernelTable* table =
      kernels::cpu::kernel_table(static_cast<kernels::cpu::Isa>(isa));
  if (table == nullptr) {
    fail_with(KVC_E_UNSUPPORTED, isa,
              "%s = %d is not available: the best of this machine and build is %d", name, isa,
              static_cast<int>(kernels::cpu::detect()));
  }
  return table;
}

uint64_t run_append(const kernels::cpu::KernelTable& kernels, Executor& executor,
                    const kernels::AppendParams& params, int64_t num_rows) {
  const double bytes =
      4.0 * static_cast<double>(num_rows) * params.num_kv_heads * (params.k_dim + params.v_dim);
  std::atomic<uint64_t> saturated{0};
  move_rows(executor, num_rows, bytes, [&](int64_t begin, int64_t end) {
    const uint64_t count = kernels.append(params, begin, end);
    if (count != 0) saturated.fetch_add(count, std::memory_order_relaxed);
  });
  return saturated.load(std::memory_order_relaxed);
}

void run_gather(const kernels::cpu::KernelTable& kernels, Executor& executor,
                const kernels::GatherParams& params, int64_t num_rows) {
  const double bytes = 4.0 * static_cast<double>(num_rows) * params.num_heads * params.dim;
  move_rows(executor, num_rows, bytes, [&](int64_t begin, int64_t end) {
    kernels::GatherParams part = params;
    part.out.base += begin * params.out.token_stride;
    kernels.gather(part, begin, end);
  });
}

void run_merge(const kernels::cpu::KernelTable& kernels, Executor& executor,
               const kernels::MergeParams& params, int64_t num_rows) {
  const double bytes = 8.0 * static_cast<double>(num_rows) * params.num_heads * params.dim;
  move_rows(executor, num_rows, bytes,
            [&](int64_t begin, int64_t end) { kernels.merge(params, begin, end); });
}

MergeCall read_merge(const DLTensor* out, const DLTensor* lse, const DLTensor* other_out,
                     const DLTensor* other_lse, int64_t num_rows, DLDevice device) {
  const bool has_shape = out != nullptr && out->ndim == 3 && out->shape != nullptr;
  const int64_t heads = has_shape ? out->shape[1] : 0;
  const int64_t dim = has_shape ? out->shape[2] : 0;
  if (num_rows < 0) num_rows = has_shape ? std::max<int64_t>(0, out->shape[0]) : 0;
  MergeCall call{.params = {}, .num_rows = num_rows};
  kernels::MergeParams& params = call.params;
  params.out = view_rows(out, {"out", num_rows, heads, dim, device});
  if (heads < 0 || dim < 0 || heads > INT32_MAX || dim > INT32_MAX) {
    fail(KVC_E_SHAPE, "out has %lld heads of dim %lld", static_cast<long long>(heads),
         static_cast<long long>(dim));
  }
  const F32Matrix own = view_f32_matrix(lse, "lse", num_rows, heads, device);
  params.other_out = view_rows(other_out, {"other_out", num_rows, heads, dim, device});
  const F32Matrix other = view_f32_matrix(other_lse, "other_lse", num_rows, heads, device);
  const TensorUse outputs[] = {{out, "out", num_rows}, {lse, "lse", num_rows}};
  const TensorUse inputs[] = {{other_out, "other_out", num_rows},
                              {other_lse, "other_lse", num_rows}};
  refuse_overlaps(outputs, inputs);
  params.lse = own.data;
  params.lse_token_stride = own.row_stride;
  params.other_lse = other.data;
  params.other_lse_token_stride = other.row_stride;
  params.num_heads = static_cast<int32_t>(heads);
  params.dim = static_cast<int32_t>(dim);
  return call;
}

void rotate_key_rows(const kernels::cpu::KernelTable& kernels, const LayerSpec& layer,
                     const kernels::PagedRows& keys, int64_t page_size,
                     const kernels::Rotation& rotation,
                     const std::vector<int64_t>& slots) noexcept {
  alignas(float) std::byte row[kMaxLatentDim * sizeof(float)];  // Kernels don't rotate in place.
  // Quantised rows pass through float32.
  const kernels::DType row_dtype =
      kernels::is_quantised(keys.dtype) ? kernels::DType::kF32 : keys.dtype;
  kernels::AppendParams params{};
  params.k_rotation = rotation;
  params.k = {row, 0, 0, row_dtype};
  params.page_size = static_cast<int32_t>(page_size);
  params.num_kv_heads = 1;
  params.k_dim = layer.k_dim;
  params.v_dim = layer.v_dim;
  kernels::GatherParams old{.rows = keys,
                            .pages = nullptr,
                            .out = {row, 0, 0, row_dtype},
                            .page_size = static_cast<int32_t>(page_size),
                            .num_heads = 1,
                            .dim = layer.k_dim};
  for (const int64_t slot : slots) {
    const auto page = static_cast<int32_t>(slot / page_size);
    const int64_t own_slot = slot % page_size;  // In `page`, the only one of both calls.
    for (int32_t head = 0; head < layer.num_kv_heads; ++head) {
      kernels::PagedRows rows = keys;
      rows.base += page * keys.page_stride + head * keys.head_stride;
      if (rows.scales.base != nullptr)
        rows.scales.base += page * rows.scales.page_stride + head * rows.scales.head_stride;
      const int32_t first = 0;
      old.rows = params.k_pages = params.v_pages = rows;
      old.pages = &first;
      kernels.gather(old, own_slot, own_slot + 1);
      params.slots = &own_slot;
      kernels.append(params, 0, 1);
    }
  }
}

}  // namespace kvc
