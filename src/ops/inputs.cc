#include "src/ops/inputs.h"

#include <climits>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/tensor.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

// What dimensions of a pool tensor mean; -1: not there.
struct PoolDims {
  int head, offset, dim;
};

PoolDims dims_of(kvc_op_layout layout) {
  switch (layout) {
    case KVC_OP_HND: return {1, 2, 3};
    case KVC_OP_NHD: return {2, 1, 3};
    case KVC_OP_MLA: return {-1, 1, 2};
    default:
      fail_with(KVC_E_UNSUPPORTED, layout,
                "pool.layout = %d is not supported: HND (0), NHD (1) and MLA (2) are", layout);
  }
}

int32_t extent(const DLTensor& tensor, const char* name, int dimension, int64_t most) {
  const int64_t value = tensor.shape[dimension];
  if (value < 1 || value > most) {
    fail_with(KVC_E_SHAPE, value, "%s has shape[%d] = %lld, expected 1 to %lld", name, dimension,
              ll(value), ll(most));
  }
  return static_cast<int32_t>(value);
}

kernels::PagedRows rows_of(const DLTensor& tensor, const PoolDims& dims, kernels::DType dtype) {
  const int64_t bytes = element_bytes(tensor);
  return {.base = tensor.shape[0] == 0 ? nullptr : data_of(tensor),
          .page_stride = stride_of(tensor, 0) * bytes,
          .head_stride = dims.head < 0 ? 0 : stride_of(tensor, dims.head) * bytes,
          .token_stride = stride_of(tensor, dims.offset) * bytes,
          .dtype = dtype};
}

const int32_t* int32_data(const DLTensor* tensor) {
  return reinterpret_cast<const int32_t*>(data_of(*tensor));
}

// Sequences are numbered, and cuts counted, in int32.
int32_t sequence_count(const DLTensor* tensor, const char* name, int64_t count) {
  if (count > INT32_MAX - 1) {
    fail_with(KVC_E_SHAPE, count, "%s has shape[0] = %lld, too many for int32", name,
              ll(tensor->shape[0]));
  }
  return static_cast<int32_t>(count);
}

void refuse_empty(const DLTensor* tensor, const char* name) {
  if (tensor->shape[0] == 0)
    fail_with(KVC_E_SHAPE, 0, "%s has shape[0] = 0, expected at least 1", name);
}

bool has_csr_form(const kvc_op_table& table) {
  const bool has_csr = table.page_indptr != nullptr || table.page_indices != nullptr;
  if (has_csr == (table.block_table != nullptr)) {
    fail(KVC_E_INVALID_ARGUMENT,
         "table.block_table is %s and table.page_indptr or page_indices %s: give one form",
         has_csr ? "set" : "NULL", has_csr ? "is set" : "is NULL");
  }
  return has_csr;
}

}  // namespace

OpPool view_pool(const kvc_op_pool& pool, DLDevice device) {
  if (pool.reserved != 0) {
    fail_with(KVC_E_UNSUPPORTED, pool.reserved, "pool.reserved = %d is not supported: 0 is",
              pool.reserved);
  }
  const PoolDims dims = dims_of(pool.layout);
  OpPool out;
  out.is_mla = pool.layout == KVC_OP_MLA;
  out.v_in_k = pool.v == nullptr;
  if (out.is_mla && pool.v != nullptr) {
    fail(KVC_E_INVALID_ARGUMENT,
         "pool.v is set, but with layout MLA V lies in the K rows: expected NULL");
  }
  const kernels::DType k_type = out.is_mla
                                    ? check_activations(pool.k, "pool.k", {-1, -1, -1}, device)
                                    : check_activations(pool.k, "pool.k", {-1, -1, -1, -1}, device);
  out.num_pages = pool.k->shape[0];
  out.page_size = extent(*pool.k, "pool.k", dims.offset, INT32_MAX);
  out.num_heads = dims.head < 0 ? 1 : extent(*pool.k, "pool.k", dims.head, kMaxHeads);
  out.k_dim = extent(*pool.k, "pool.k", dims.dim, out.is_mla ? kMaxLatentDim : kMaxHeadDim);
  out.k = rows_of(*pool.k, dims, k_type);
  if (out.v_in_k) {
    out.v = out.k;
    out.v_dim = out.k_dim;
    return out;
  }
  const kernels::DType v_type = check_activations(
      pool.v, "pool.v", {out.num_pages, pool.k->shape[1], pool.k->shape[2], -1}, device);
  out.v_dim = extent(*pool.v, "pool.v", dims.dim, kMaxHeadDim);
  out.v = rows_of(*pool.v, dims, v_type);
  return out;
}

kernels::AppendParams append_params(const OpPool& pool, const kernels::TokenRows& k,
                                    const kernels::TokenRows& v, const int64_t* slots,
                                    const kernels::Rotation& rotation) {
  return {.k = k,
          .v = v,
          .k_rotation = rotation,
          .k_pages = pool.k,
          .v_pages = pool.v,
          .slots = slots,
          .page_size = pool.page_size,
          .num_kv_heads = pool.num_heads,
          .k_dim = pool.k_dim,
          .v_dim = pool.v_dim};
}

kernels::AppendParams rotate_params(const kernels::TokenRows& x, const kernels::TokenRows& out,
                                    int32_t num_heads, int32_t dim, const int64_t* slots,
                                    const kernels::Rotation& rotation) {
  return {.k = x,
          .v = {},
          .k_rotation = rotation,
          .k_pages = {out.base, 0, out.head_stride, out.token_stride, out.dtype},
          .v_pages = {},
          .slots = slots,
          .page_size = INT_MAX,
          .num_kv_heads = num_heads,
          .k_dim = dim,
          .v_dim = 0};
}

PageRuns runs_of(const kernels::PagedRows& rows, int64_t num_heads, int64_t page_size,
                 int64_t dim) {
  PageRuns runs{num_heads, rows.head_stride, page_size, rows.token_stride,
                dim * kernels::dtype_bytes(rows.dtype)};
  // The dimension that follows on the run joins it; then the other one may.
  for (int pass = 0; pass < 2; ++pass) {
    if (runs.inner_count == 1 || runs.inner_stride != runs.bytes) {
      std::swap(runs.inner_count, runs.outer_count);
      std::swap(runs.inner_stride, runs.outer_stride);
    }
    if (runs.inner_count > 1 && runs.inner_stride == runs.bytes) {
      runs.bytes *= runs.inner_count;
      runs.inner_count = 1;
    }
  }
  return runs;
}

Indptr view_indptr(DLDevice device, const DLTensor* tensor, const char* name,
                   int64_t num_sequences) {
  check_integers(tensor, name, 32, {num_sequences < 0 ? -1 : num_sequences + 1}, device);
  refuse_empty(tensor, name);
  return {int32_data(tensor), sequence_count(tensor, name, tensor->shape[0] - 1)};
}

kernels::OpSequenceTensors view_table(DLDevice device, const kvc_op_table& table,
                                      const OpPool& pool) {
  check_integers(table.seq_lens, "table.seq_lens", 32, {-1}, device);
  kernels::OpSequenceTensors out{};
  out.num_sequences = sequence_count(table.seq_lens, "table.seq_lens", table.seq_lens->shape[0]);
  out.seq_lens = int32_data(table.seq_lens);
  if (table.qo_indptr != nullptr)
    out.row_indptr =
        view_indptr(device, table.qo_indptr, "table.qo_indptr", out.num_sequences).data;
  if (has_csr_form(table)) {
    out.page_indptr =
        view_indptr(device, table.page_indptr, "table.page_indptr", out.num_sequences).data;
    check_integers(table.page_indices, "table.page_indices", 32, {-1}, device);
    out.page_indices = int32_data(table.page_indices);
    out.num_indices = table.page_indices->shape[0];
  } else {
    check_integers(table.block_table, "table.block_table", 32, {out.num_sequences, -1}, device);
    out.block_table = int32_data(table.block_table);
    out.table_stride = stride_of(*table.block_table, 0);
    out.table_columns = table.block_table->shape[1];
  }
  out.page_size = pool.page_size;
  out.num_pages = pool.num_pages;
  out.max_keys = INT32_MAX;
  return out;
}

OpRotation view_rotation(const kvc_rope* rope, const DLTensor* positions, int32_t begin,
                         int32_t rotated_dim, int64_t num_rows, DLDevice device) {
  OpRotation out;
  if (rope != nullptr) out.rope = make_rope(*rope, "opt.rope->", rotated_dim);
  if (!out.rotates()) {
    if (positions != nullptr) {
      fail(KVC_E_INVALID_ARGUMENT, "opt.positions is set, but opt.rope %s: nothing turns by them",
           rope == nullptr ? "is NULL" : "has mode NONE");
    }
    return out;
  }
  if (rope->scaling == KVC_ROPE_SCALING_LONGROPE) {
    fail_with(
        KVC_E_UNSUPPORTED, rope->scaling,
        "opt.rope->scaling = LONGROPE (%d) is not supported by operators, which do not know the "
        "sequences: give the "
        "factors of choice as freq_factors",
        rope->scaling);
  }
  if (out.rope.mode == KVC_ROPE_ON_READ) {
    fail_with(KVC_E_UNSUPPORTED, out.rope.mode,
              "opt.rope->mode = ON_READ (%d) is not supported by operators: ON_APPEND (1) and NONE "
              "(0) are",
              out.rope.mode);
  }
  if (out.rope.num_sections > 1) {
    fail_with(KVC_E_UNSUPPORTED, out.rope.num_sections,
              "opt.rope->num_sections = %d is not supported by operators: 0 and 1 are",
              out.rope.num_sections);
  }
  if (positions == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "opt.positions is NULL, but opt.rope turns by them");
  out.rope.begin = begin;
  out.positions = view_i32_vector(positions, "opt.positions", num_rows, device);
  return out;
}

}  // namespace kvc
