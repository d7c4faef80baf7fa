#include "src/ops/quantised_rows.h"

#include <climits>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "src/base/error.h"
#include "src/base/executor.h"
#include "src/base/tensor.h"
#include "src/exec/row_moves.h"

namespace kvc {
namespace {

Executor executor_of(const OpRunner& runner) {
  return runner.executor != nullptr ? Executor(*runner.executor) : Executor(1);
}

}  // namespace

void check_op_quant(kvc_quant quant, const char* name) {
  if (quant == KVC_QUANT_PER_TENSOR || quant == KVC_QUANT_PER_TOKEN_HEAD) return;
  if (quant == KVC_QUANT_NONE) {
    fail_with(KVC_E_INVALID_ARGUMENT, quant,
              "%s = NONE (0), expected PER_TENSOR (1) or PER_TOKEN_HEAD (2)", name);
  }
  fail_with(KVC_E_UNSUPPORTED, quant,
            "%s = %s%d is not supported by operators: PER_TENSOR (1) and PER_TOKEN_HEAD (2) are",
            name, quant == KVC_QUANT_BLOCK16 ? "BLOCK16, " : "", quant);
}

float check_scale(float scale, const char* name) {
  if (!std::isfinite(scale) || !(scale > 0)) {
    fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected a finite number above 0", name,
         static_cast<double>(scale));
  }
  return scale;
}

kernels::RowScales view_row_scales(kvc_quant quant, const DLTensor* scales,
                                   const RowsShape& shape) {
  if (quant == KVC_QUANT_PER_TENSOR)
    return {.shared = check_scale(*view_f32_vector(scales, "scales", 1), "scales[0]")};
  const F32Matrix matrix = view_f32_matrix(scales, "scales", shape.num_rows, shape.heads);
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  return {.base = reinterpret_cast<std::byte*>(matrix.data),
          .page_stride = 0,
          .head_stride = kBytes,
          .token_stride = matrix.row_stride * kBytes};
}

uint64_t quantise_rows(const OpRunner& runner, const kernels::TokenRows& x,
                       const kernels::PagedRows& out, const RowsShape& shape) {
  Executor executor = executor_of(runner);
  const kernels::cpu::KernelTable* kernels = choose_kernels(runner.isa, "opt.cpu_isa");
  std::vector<int64_t> slots(static_cast<size_t>(shape.num_rows));  // An append to one page.
  std::iota(slots.begin(), slots.end(), 0);
  return run_append(*kernels, executor,
                    {.k = x,
                     .v = {},
                     .k_rotation = {},
                     .k_pages = out,
                     .v_pages = {},
                     .slots = slots.data(),
                     .page_size = INT_MAX,
                     .num_kv_heads = shape.heads,
                     .k_dim = shape.dim,
                     .v_dim = 0},
                    shape.num_rows);
}

void dequantise_rows(const OpRunner& runner, const kernels::PagedRows& x,
                     const kernels::TokenRows& out, const RowsShape& shape) {
  Executor executor = executor_of(runner);
  const int32_t page = 0;
  run_gather(*choose_kernels(runner.isa, "opt.cpu_isa"), executor,
             {.rows = x,
              .pages = &page,
              .out = out,
              .page_size = INT_MAX,
              .num_heads = shape.heads,
              .dim = shape.dim},
             shape.num_rows);
}

}  // namespace kvc
