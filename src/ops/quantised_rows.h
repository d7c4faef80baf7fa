// Rows of the host program quantised and read again, on the CPU: kvc_op_quantize,
// kvc_op_dequantize.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "kvcache.h"
#include "src/ops/operators.h"

namespace kvc {

// Heads and dim of the rows [num_rows, heads, dim] of a call.
struct RowsShape {
  int64_t num_rows;
  int32_t heads;
  int32_t dim;
};

// Throws INVALID_ARGUMENT for NONE, UNSUPPORTED for BLOCK16 and values that are not listed.
void check_op_quant(kvc_quant quant, const char* name);

// The scale of rows that share one. Throws OUT_OF_RANGE unless it is finite and > 0.
float check_scale(float scale, const char* name);

// The scales of rows: [1] or [>= num_rows, heads], as check_op_quant() allows. Throws a tensor
// status, OUT_OF_RANGE.
kernels::RowScales view_row_scales(kvc_quant quant, const DLTensor* scales, const RowsShape& shape);

// Rows lie in page 0 of `out` and `x`. Returns how many elements saturated.
uint64_t quantise_rows(const OpRunner& runner, const kernels::TokenRows& x,
                       const kernels::PagedRows& out, const RowsShape& shape);
void dequantise_rows(const OpRunner& runner, const kernels::PagedRows& x,
                     const kernels::TokenRows& out, const RowsShape& shape);

}  // namespace kvc
