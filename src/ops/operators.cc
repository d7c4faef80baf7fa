#include "src/ops/operators.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <utility>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/tensor.h"
#include "src/device/gpu.h"
#include "src/exec/cpu/work_list.h"
#include "src/ops/cpu_operators.h"
#include "src/ops/cuda_operators.h"
#include "src/ops/quantised_rows.h"
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

bool is_activation_type(DLDataType type) {
  kernels::DType dtype;
  return dtype_from_dlpack(type, &dtype);
}

// K or V of a pool, as the caller gave it.
struct PoolHalf {
  const DLTensor *rows, *scales;
  const char *rows_name, *scale_name, *scales_name;
  float scale;
};

PoolHalf k_half(const kvc_op_pool& pool) {
  return {pool.k, pool.k_scales, "pool.k", "pool.k_scale", "pool.k_scales", pool.k_scale};
}
PoolHalf v_half(const kvc_op_pool& pool) {
  return {pool.v, pool.v_scales, "pool.v", "pool.v_scale", "pool.v_scales", pool.v_scale};
}

// The type of the rows, and which scales are given, before tensors are looked at further.
void check_quant_of(const PoolHalf& half, kvc_quant quant) {
  if (half.scale != 0 && quant != KVC_QUANT_PER_TENSOR) {
    fail_with(KVC_E_INVALID_ARGUMENT, quant,
              "%s = %g with pool.quant = %s (%d): only PER_TENSOR (1) has one", half.scale_name,
              static_cast<double>(half.scale), quant_name(quant), quant);
  }
  if (half.scales != nullptr && quant != KVC_QUANT_PER_TOKEN_HEAD) {
    fail_with(KVC_E_INVALID_ARGUMENT, quant,
              "%s is set with pool.quant = %s (%d): only PER_TOKEN_HEAD (2) has them",
              half.scales_name, quant_name(quant), quant);
  }
  if (half.rows == nullptr) return;
  const DLDataType type = half.rows->dtype;
  if (quant != KVC_QUANT_NONE && is_activation_type(type)) {
    fail(KVC_E_DTYPE,
         "%s is %s with pool.quant = %s (%d), expected int8, float8_e4m3fn or "
         "float8_e5m2",
         half.rows_name, describe(type).text, quant_name(quant), quant);
  }
  if (quant == KVC_QUANT_NONE && is_quantised_type(type)) {
    fail(KVC_E_DTYPE,
         "%s is %s with pool.quant = NONE (0), expected PER_TENSOR (1) or PER_TOKEN_HEAD (2)",
         half.rows_name, describe(type).text);
  }
}

void check_quant_of(const kvc_op_pool& pool, DLDevice device) {
  if (pool.quant != KVC_QUANT_NONE) check_op_quant(pool.quant, "pool.quant");
  if (pool.quant != KVC_QUANT_NONE && !is_host(device)) {
    fail_with(
        KVC_E_UNSUPPORTED, pool.quant,
        "pool.quant = %s (%d): the pool lives on CUDA device %d, but operators take quantised "
        "pools of the CPU only",
        quant_name(pool.quant), pool.quant, device.device_id);
  }
  if (pool.v == nullptr && (pool.v_scale != 0 || pool.v_scales != nullptr)) {
    fail(KVC_E_INVALID_ARGUMENT, "pool.%s is set, but pool.v is NULL: V lies in the K rows",
         pool.v_scales != nullptr ? "v_scales" : "v_scale");
  }
  check_quant_of(k_half(pool), pool.quant);
  check_quant_of(v_half(pool), pool.quant);
}

// The scales of rows that have been checked: a scale for each row, or one for all.
kernels::RowScales scales_of(const PoolHalf& half, const PoolDims& dims, kvc_quant quant) {
  if (quant == KVC_QUANT_PER_TENSOR)
    return {.shared = half.scale == 0 ? 1 : check_scale(half.scale, half.scale_name)};
  if (quant == KVC_QUANT_NONE) return {};
  const int64_t* shape = half.rows->shape;
  if (dims.head < 0) {
    check_floats(half.scales, half.scales_name, {shape[0], shape[1]});
  } else {
    check_floats(half.scales, half.scales_name, {shape[0], shape[1], shape[2]});
  }
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  return {.base = data_of(*half.scales),
          .page_stride = stride_of(*half.scales, 0) * kBytes,
          .head_stride = dims.head < 0 ? 0 : stride_of(*half.scales, dims.head) * kBytes,
          .token_stride = stride_of(*half.scales, dims.offset) * kBytes};
}

kernels::DType check_rows(const PoolHalf& half, std::initializer_list<int64_t> shape,
                          kvc_quant quant, DLDevice device) {
  return quant == KVC_QUANT_NONE ? check_activations(half.rows, half.rows_name, shape, device)
                                 : check_quantised(half.rows, half.rows_name, shape, device);
}

kernels::PagedRows rows_of(const PoolHalf& half, const PoolDims& dims, kernels::DType dtype,
                           kvc_quant quant) {
  const DLTensor& tensor = *half.rows;
  const int64_t bytes = element_bytes(tensor);
  return {.base = tensor.shape[0] == 0 ? nullptr : data_of(tensor),
          .page_stride = stride_of(tensor, 0) * bytes,
          .head_stride = dims.head < 0 ? 0 : stride_of(tensor, dims.head) * bytes,
          .token_stride = stride_of(tensor, dims.offset) * bytes,
          .dtype = dtype,
          .scales = scales_of(half, dims, quant)};
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
  check_quant_of(pool, device);
  const PoolHalf k = k_half(pool), v = v_half(pool);
  const kernels::DType k_type = out.is_mla ? check_rows(k, {-1, -1, -1}, pool.quant, device)
                                           : check_rows(k, {-1, -1, -1, -1}, pool.quant, device);
  out.num_pages = pool.k->shape[0];
  out.page_size = extent(*pool.k, "pool.k", dims.offset, INT32_MAX);
  out.num_heads = dims.head < 0 ? 1 : extent(*pool.k, "pool.k", dims.head, kMaxHeads);
  out.k_dim = extent(*pool.k, "pool.k", dims.dim, out.is_mla ? kMaxLatentDim : kMaxHeadDim);
  out.k = rows_of(k, dims, k_type, pool.quant);
  if (out.v_in_k) {
    out.v = out.k;
    out.v_dim = out.k_dim;
    return out;
  }
  const kernels::DType v_type =
      check_rows(v, {out.num_pages, pool.k->shape[1], pool.k->shape[2], -1}, pool.quant, device);
  out.v_dim = extent(*pool.v, "pool.v", dims.dim, kMaxHeadDim);
  out.v = rows_of(v, dims, v_type, pool.quant);
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

namespace {

// Asked once per device, as a question takes longer than a small operator.
constexpr int32_t kKnownDevices = 64;
std::atomic<const cuda::BackendTable*> known_devices[kKnownDevices];

Gpu usable_device(int32_t id) {
  const cuda::BackendTable& table = require_backend();
  const bool fits = id >= 0 && id < kKnownDevices;
  if (fits && known_devices[id].load(std::memory_order_relaxed) == &table) return {&table, id};
  const Gpu device = require_device(id);
  if (fits) known_devices[id].store(&table, std::memory_order_relaxed);
  return device;
}

}  // namespace

DLDevice device_of_op(const DLTensor* tensor) {
  if (tensor == nullptr || tensor->device.device_type != kDLCUDA) return kHost;
  (void)usable_device(tensor->device.device_id);
  return tensor->device;
}

std::unique_ptr<Operators> make_operators(DLDevice device, const OpRunner& runner) {
  if (is_host(device)) return std::make_unique<CpuOperators>(runner);
  return std::make_unique<CudaOperators>(usable_device(device.device_id), runner.stream);
}

// CpuOperators::copy_pages: whole pages inside a pool of any strides.

namespace {

using kernels::PagedRows;

void copy_page(const kernels::cpu::KernelTable& kernels, const PagedRows& rows,
               const PageRuns& runs, int64_t from, int64_t to) {
  for (int64_t outer = 0; outer < runs.outer_count; ++outer) {
    for (int64_t inner = 0; inner < runs.inner_count; ++inner) {
      const int64_t offset = outer * runs.outer_stride + inner * runs.inner_stride;
      kernels.copy(rows.base + to * rows.page_stride + offset,
                   rows.base + from * rows.page_stride + offset, static_cast<size_t>(runs.bytes));
    }
  }
}

// A run of one page may not reach into that of the next: copies go through memcpy.
void check_pages_apart(const char* name, const PagedRows& rows, const PageRuns& runs) {
  if (std::abs(rows.page_stride) >= runs.bytes) return;
  fail_with(KVC_E_SHAPE, rows.page_stride,
            "%s has pages %lld bytes apart, but %lld bytes of each lie together: they overlap",
            name, ll(rows.page_stride), ll(runs.bytes));
}

// Rows of a pool, or their scales, which are rows of one number.
struct CopiedRows {
  PagedRows rows;
  PageRuns runs;
  const char* name;
};

void add_copied(const OpPool& pool, const PagedRows& rows, int64_t dim, const char* name,
                const char* scales_name, std::vector<CopiedRows>* copied) {
  copied->push_back({rows, runs_of(rows, pool.num_heads, pool.page_size, dim), name});
  const kernels::RowScales& scales = rows.scales;
  if (scales.base == nullptr) return;
  const PagedRows numbers{scales.base, scales.page_stride, scales.head_stride, scales.token_stride,
                          kernels::DType::kF32};
  copied->push_back({numbers, runs_of(numbers, pool.num_heads, pool.page_size, 1), scales_name});
}

void check_pairs(const OpPool& pool, const int64_t* pairs, int64_t stride, int64_t num_pairs) {
  std::vector<int64_t> targets;
  targets.reserve(num_pairs);
  for (int64_t i = 0; i < num_pairs; ++i) {
    for (int side = 0; side < 2; ++side) {
      const int64_t page = pairs[i * stride + side];
      if (page < 0 || page >= pool.num_pages) {
        fail_with(KVC_E_OUT_OF_RANGE, page,
                  "pairs[%lld][%d] = %lld out of range: the pool has %lld pages", ll(i), side,
                  ll(page), ll(pool.num_pages));
      }
    }
    targets.push_back(pairs[i * stride + 1]);
  }
  std::sort(targets.begin(), targets.end());
  const auto twice = std::adjacent_find(targets.begin(), targets.end());
  if (twice != targets.end())
    fail_with(KVC_E_INVALID_ARGUMENT, *twice, "pairs: page %lld is the destination of two copies",
              ll(*twice));
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t from = pairs[i * stride];
    if (std::binary_search(targets.begin(), targets.end(), from)) {
      fail_with(KVC_E_INVALID_ARGUMENT, from,
                "pairs[%lld]: page %lld is a source and a destination", ll(i), ll(from));
    }
  }
}

}  // namespace

void CpuOperators::copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride,
                              int64_t num_pairs) {
  check_pairs(pool, pairs, stride, num_pairs);
  std::vector<CopiedRows> copied;
  add_copied(pool, pool.k, pool.k_dim, "pool.k", "pool.k_scales", &copied);
  if (!pool.v_in_k) add_copied(pool, pool.v, pool.v_dim, "pool.v", "pool.v_scales", &copied);
  for (const CopiedRows& part : copied) {
    if (num_pairs > 0) check_pages_apart(part.name, part.rows, part.runs);
  }
  const auto copy_one = [&](int64_t i, int32_t) {
    const int64_t from = pairs[i * stride], to = pairs[i * stride + 1];
    for (const CopiedRows& part : copied) copy_page(*kernels_, part.rows, part.runs, from, to);
  };
  const double bytes = 4.0 * static_cast<double>(num_pairs) * pool.num_heads * pool.page_size *
                       (pool.k_dim + pool.v_dim);
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    for (int64_t i = 0; i < num_pairs; ++i) copy_one(i, 0);
  } else {
    executor_.run(num_pairs, copy_one);
  }
}

}  // namespace kvc
