// Pools, page tables and rotations of the host program, checked and converted for operators.
#pragma once

#include <cstdint>

#include "kernels/op_tensors.h"
#include "kernels/params.h"
#include "kvcache.h"
#include "src/base/executor.h"
#include "src/base/tensor.h"
#include "src/plan/rope.h"
#include "src/step/token_cos_sin.h"

namespace kvc {

struct OpPool {
  kernels::PagedRows k{};
  kernels::PagedRows v{};  // The K rows where V is part of K.
  bool is_mla = false;
  bool v_in_k = false;
  int64_t num_pages = 0;
  int32_t page_size = 0;
  int32_t num_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;

  int64_t num_slots() const { return num_pages * page_size; }
};

// `pool` has been read by the sized-struct rules. Throws a tensor status, INVALID_ARGUMENT or
// UNSUPPORTED.
OpPool view_pool(const kvc_op_pool& pool, DLDevice device = kHost);

// An append of rows to `slots`, K rotated by `rotation`.
kernels::AppendParams append_params(const OpPool& pool, const kernels::TokenRows& k,
                                    const kernels::TokenRows& v, const int64_t* slots,
                                    const kernels::Rotation& rotation);
// Rotating rows is an append to a pool of one page, where row t goes to slot t.
kernels::AppendParams rotate_params(const kernels::TokenRows& x, const kernels::TokenRows& out,
                                    int32_t num_heads, int32_t dim, const int64_t* slots,
                                    const kernels::Rotation& rotation);

// A page as few runs of bytes as its strides allow: one where it is compact.
struct PageRuns {
  int64_t outer_count, outer_stride;
  int64_t inner_count, inner_stride;
  int64_t bytes;
};

PageRuns runs_of(const kernels::PagedRows& rows, int64_t num_heads, int64_t page_size, int64_t dim);

// First row of each sequence and the end of the last, int32 [num_sequences + 1].
struct Indptr {
  const int32_t* data;
  int32_t num_sequences;
};
// num_sequences < 0: the tensor says how many. The numbers are not read. Throws a tensor status.
Indptr view_indptr(DLDevice device, const DLTensor* tensor, const char* name,
                   int64_t num_sequences);

// Page tables in either form. `table` has been read by the sized-struct rules. Checks which tensors
// there are and their extents; the numbers are not read. Throws INVALID_ARGUMENT or a tensor
// status.
kernels::OpSequenceTensors view_table(DLDevice device, const kvc_op_table& table,
                                      const OpPool& pool);

// RoPE of q, K or x.
struct OpRotation {
  RopeSpec rope;
  const int32_t* positions = nullptr;  // [rows]

  bool rotates() const { return rope.mode != KVC_ROPE_NONE; }
};

// Rotates elements [begin, begin + rotated_dim) of a row. `rope` (null: none) has been read by the
// sized-struct rules. Throws INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED or a tensor status.
OpRotation view_rotation(const kvc_rope* rope, const DLTensor* positions, int32_t begin,
                         int32_t rotated_dim, int64_t num_rows, DLDevice device = kHost);

}  // namespace kvc
