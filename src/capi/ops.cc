// kvcache.h, section "Operators", but for the recurrence of linear attention.
#include <algorithm>
#include <climits>

#include "src/attention/operators.h"
#include "src/base/tensor.h"
#include "src/capi/guard.h"
#include "src/capi/op_options.h"
#include "src/capi/sized_struct.h"

namespace {

using kvc::AttnOptions;
using kvc::AttnTensors;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::Indptr;
using kvc::OpAttention;
using kvc::OpOptions;
using kvc::OpPool;
using kvc::OpRotation;
using kvc::OpSequences;
using kvc::OpTable;

OpPool read_pool(const kvc_op_pool* pool) { return kvc::view_pool(kvc::read_struct(pool, "pool")); }

OpTable read_table(const kvc_op_table* table, const OpPool& pool) {
  return kvc::view_table(kvc::read_struct(table, "table"), pool.page_size);
}

// Dimension 1 of q: any multiple of the kv heads.
int32_t query_heads(const DLTensor* q, int32_t num_kv_heads) {
  (void)kvc::check_activations(q, "q", {-1, -1, -1});
  const int64_t heads = q->shape[1];
  if (heads < 1 || heads > kvc::kMaxHeads || heads % num_kv_heads != 0) {
    fail_with(KVC_E_SHAPE, heads, "q has shape[1] = %lld, expected a multiple of the %d kv heads up to %d",
              static_cast<long long>(heads), num_kv_heads, kvc::kMaxHeads);
  }
  return static_cast<int32_t>(heads);
}

// The common end of the attentions. The sequences are complete.
void attend(OpAttention& attention, const OpOptions& read, int64_t num_rows, int64_t longest,
            const DLTensor* q, DLTensor* out, DLTensor* lse) {
  const kvc::LayerSpec& shape = attention.shape;
  AttnOptions options;
  kvc::read_options(read.attn, shape, num_rows, read.attn.bias == nullptr ? 0 : longest, &options,
                    "opt.attn->");
  AttnTensors tensors{};
  tensors.q = kvc::view_rows(q, {"q", num_rows, shape.num_q_heads, shape.k_dim});
  tensors.out = kvc::view_rows(out, {"out", num_rows, shape.num_q_heads, shape.v_dim});
  if (lse != nullptr) {
    const kvc::F32Matrix matrix = kvc::view_f32_matrix(lse, "lse", num_rows, shape.num_q_heads);
    tensors.lse = matrix.data;
    tensors.lse_token_stride = matrix.row_stride;
  }
  const OpRotation rotation = kvc::view_rotation(read.rotation(), read.opt.positions, shape.latent_rank,
                                                 shape.k_dim - shape.latent_rank, num_rows);
  kvc::Operators(read.opt.cpu_isa, read.host()).attend(attention, options, tensors, rotation, num_rows);
}

// `latent_rank` 0: K and V heads.
void attend_paged(const OpPool& pool, const kvc_op_table* table, int32_t latent_rank, const OpOptions& read,
                  const DLTensor* q, DLTensor* out, DLTensor* lse) {
  const OpTable pages = read_table(table, pool);
  OpAttention attention{.shape = {},
                        .k = pool.k,
                        .v = pool.v,
                        .page_size = pool.page_size,
                        .sequences = OpSequences(read.opt.full != 0, read.attn.window)};
  attention.shape.num_q_heads = query_heads(q, pool.num_heads);
  attention.shape.num_kv_heads = pool.num_heads;
  attention.shape.k_dim = pool.k_dim;
  attention.shape.v_dim = latent_rank == 0 ? pool.v_dim : latent_rank;
  attention.shape.latent_rank = latent_rank;
  int64_t longest = 0;
  for (int32_t i = 0; i < pages.num_sequences; ++i) {
    const int64_t num_rows = pages.row_begin(i + 1) - pages.row_begin(i);
    const int64_t first_key = attention.sequences.add(i, "table.seq_lens", pages.pages_of(i),
                                                      pages.row_begin(i), num_rows, pages.lengths[i]);
    kvc::check_pages(pages, pool, i, first_key);
    longest = std::max<int64_t>(longest, pages.lengths[i]);
  }
  attend(attention, read, pages.num_rows(), longest, q, out, lse);
}

int32_t head_extent(const DLTensor* tensor, const char* name, int dimension, int32_t most) {
  const int64_t value = tensor->shape[dimension];
  if (value < 1 || value > most) {
    fail_with(KVC_E_SHAPE, value, "%s has shape[%d] = %lld, expected 1 to %d", name, dimension,
              static_cast<long long>(value), most);
  }
  return static_cast<int32_t>(value);
}

// Packed rows as one page per sequence whose number is its first row.
kvc::kernels::PagedRows packed_pages(const kvc::kernels::TokenRows& rows) {
  return {rows.base, rows.token_stride, rows.head_stride, rows.token_stride, rows.dtype};
}

void check_row_count(const char* name, int64_t rows) {
  if (rows > INT32_MAX)
    fail_with(KVC_E_OUT_OF_RANGE, rows, "%s has %lld rows: at most %d", name, static_cast<long long>(rows),
              INT32_MAX);
}

// Rows of a pool's K half: [>= min_rows, heads, k_dim], without layout MLA's heads too.
kvc::kernels::TokenRows view_k(const OpPool& pool, const DLTensor* tensor, const char* name,
                               int64_t min_rows) {
  return pool.is_mla ? kvc::view_latents(tensor, name, min_rows, pool.k_dim)
                     : kvc::view_rows(tensor, {name, min_rows, pool.num_heads, pool.k_dim});
}

}  // namespace

kvc_status kvc_op_append(const kvc_op_pool* pool, const kvc_op_opt* opt, const DLTensor* slots,
                         const DLTensor* k, const DLTensor* v, kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpPool view = read_pool(pool);
    const OpOptions read = kvc::read_op_options(opt, kvc::kUsesRotation, "kvc_op_append");
    kvc::check_integers(slots, "slots", 64, {-1});
    const int64_t num_rows = slots->shape[0];
    check_row_count("slots", num_rows);
    const kvc::kernels::TokenRows k_rows = view_k(view, k, "k", num_rows);
    kvc::kernels::TokenRows v_rows{};
    if (!view.v_in_k) {
      v_rows = kvc::view_rows(v, {"v", num_rows, view.num_heads, view.v_dim});
    } else if (v != nullptr) {
      fail(KVC_E_INVALID_ARGUMENT, "v is set, but pool.v is NULL: V lies in the K rows");
    }
    if (view.is_mla && read.rotation() != nullptr) {
      fail(KVC_E_UNSUPPORTED,
           "opt.rope is set, but layout MLA does not say where a row's rope elements begin: turn them with "
           "kvc_op_rotate");
    }
    const OpRotation rotation =
        kvc::view_rotation(read.rotation(), read.opt.positions, 0, view.k_dim, num_rows);
    kvc::Operators(read.opt.cpu_isa, read.host())
        .append(view, k_rows, v_rows, reinterpret_cast<const int64_t*>(kvc::data_of(*slots)), num_rows,
                rotation);
  });
}

kvc_status kvc_op_attention_paged(const kvc_op_pool* pool, const kvc_op_table* table, const kvc_op_opt* opt,
                                  const DLTensor* q, DLTensor* out, DLTensor* lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpPool view = read_pool(pool);
    if (view.is_mla)
      fail(KVC_E_INVALID_ARGUMENT, "pool.layout = MLA (%d): kvc_op_mla_paged attends it", KVC_OP_MLA);
    const OpOptions read =
        kvc::read_op_options(opt, kvc::kUsesAttn | kvc::kUsesRotation, "kvc_op_attention_paged");
    attend_paged(view, table, 0, read, q, out, lse);
  });
}

kvc_status kvc_op_mla_paged(const kvc_op_pool* pool, const kvc_op_table* table, int32_t latent_rank,
                            const kvc_op_opt* opt, const DLTensor* q, DLTensor* out, DLTensor* lse,
                            kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpPool view = read_pool(pool);
    if (!view.is_mla)
      fail(KVC_E_INVALID_ARGUMENT, "pool.layout is not MLA (%d): kvc_op_attention_paged attends it",
           KVC_OP_MLA);
    if (latent_rank < 1 || latent_rank > view.k_dim) {
      fail_with(KVC_E_OUT_OF_RANGE, latent_rank,
                "latent_rank = %d out of range: 1 to the %d elements of a row", latent_rank, view.k_dim);
    }
    kvc::require(opt, "opt");
    const OpOptions read = kvc::read_op_options(opt, kvc::kUsesAttn | kvc::kUsesRotation, "kvc_op_mla_paged");
    attend_paged(view, table, latent_rank, read, q, out, lse);
  });
}

kvc_status kvc_op_attention_ragged(const DLTensor* qo_indptr, const DLTensor* kv_indptr,
                                   const kvc_op_opt* opt, const DLTensor* q, const DLTensor* k,
                                   const DLTensor* v, DLTensor* out, DLTensor* lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpOptions read =
        kvc::read_op_options(opt, kvc::kUsesAttn | kvc::kUsesRotation, "kvc_op_attention_ragged");
    const Indptr rows = kvc::view_indptr(qo_indptr, "qo_indptr", -1);
    const Indptr keys =
        kv_indptr == nullptr ? rows : kvc::view_indptr(kv_indptr, "kv_indptr", rows.num_sequences);
    (void)kvc::check_activations(k, "k", {-1, -1, -1});
    const int32_t kv_heads = head_extent(k, "k", 1, kvc::kMaxHeads);
    const int32_t k_dim = head_extent(k, "k", 2, kvc::kMaxHeadDim);
    (void)kvc::check_activations(v, "v", {-1, kv_heads, -1});
    const int32_t v_dim = head_extent(v, "v", 2, kvc::kMaxHeadDim);
    OpAttention attention{.shape = {},
                          .k = packed_pages(kvc::view_rows(k, {"k", keys.total(), kv_heads, k_dim})),
                          .v = packed_pages(kvc::view_rows(v, {"v", keys.total(), kv_heads, v_dim})),
                          .page_size = INT_MAX,
                          .sequences = OpSequences(read.opt.full != 0, read.attn.window)};
    attention.shape.num_q_heads = query_heads(q, kv_heads);
    attention.shape.num_kv_heads = kv_heads;
    attention.shape.k_dim = k_dim;
    attention.shape.v_dim = v_dim;
    int64_t longest = 0;
    for (int32_t i = 0; i < rows.num_sequences; ++i) {
      const int64_t length = int64_t{keys.data[i + 1]} - keys.data[i];
      (void)attention.sequences.add(i, kv_indptr == nullptr ? "qo_indptr" : "kv_indptr", keys.data + i,
                                    rows.data[i], int64_t{rows.data[i + 1]} - rows.data[i], length);
      longest = std::max(longest, length);
    }
    attend(attention, read, rows.total(), longest, q, out, lse);
  });
}

kvc_status kvc_op_merge(const kvc_op_opt* opt, DLTensor* out, DLTensor* lse, const DLTensor* other_out,
                        const DLTensor* other_lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpOptions read = kvc::read_op_options(opt, 0, "kvc_op_merge");
    const kvc::MergeCall merge = kvc::read_merge(out, lse, other_out, other_lse, -1);
    kvc::Operators(read.opt.cpu_isa, read.host()).merge(merge);
  });
}

kvc_status kvc_op_gather(const kvc_op_pool* pool, const kvc_op_table* table, const kvc_op_opt* opt,
                         DLTensor* k_out, DLTensor* v_out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpPool view = read_pool(pool);
    const OpTable pages = read_table(table, view);
    if (pages.row_starts != nullptr)
      fail(KVC_E_INVALID_ARGUMENT,
           "table.qo_indptr is set, but kvc_op_gather does not use it: expected NULL");
    const OpOptions read = kvc::read_op_options(opt, 0, "kvc_op_gather");
    if (k_out == nullptr && v_out == nullptr)
      fail(KVC_E_INVALID_ARGUMENT, "k_out and v_out are both NULL: nothing to gather");
    if (view.v_in_k && v_out != nullptr)
      fail(KVC_E_INVALID_ARGUMENT, "v_out is set, but pool.v is NULL: V lies in the K rows");
    int64_t num_keys = 0;
    for (int32_t i = 0; i < pages.num_sequences; ++i) {
      kvc::check_pages(pages, view, i, 0);
      num_keys += pages.lengths[i];
    }
    kvc::kernels::TokenRows k_rows{}, v_rows{};
    if (k_out != nullptr) k_rows = view_k(view, k_out, "k_out", num_keys);
    if (v_out != nullptr) v_rows = kvc::view_rows(v_out, {"v_out", num_keys, view.num_heads, view.v_dim});
    kvc::Operators(read.opt.cpu_isa, read.host()).gather(view, pages, k_rows, v_rows);
  });
}

kvc_status kvc_op_copy_pages(const kvc_op_pool* pool, const kvc_op_opt* opt, const DLTensor* pairs,
                             kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpPool view = read_pool(pool);
    const OpOptions read = kvc::read_op_options(opt, 0, "kvc_op_copy_pages");
    kvc::check_integers(pairs, "pairs", 64, {-1, 2});
    kvc::Operators(read.opt.cpu_isa, read.host())
        .copy_pages(view, reinterpret_cast<const int64_t*>(kvc::data_of(*pairs)), kvc::stride_of(*pairs, 0),
                    pairs->shape[0]);
  });
}

kvc_status kvc_op_rotate(const kvc_op_opt* opt, const DLTensor* x, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    kvc::require(opt, "opt");
    const OpOptions read = kvc::read_op_options(opt, kvc::kUsesRotation, "kvc_op_rotate");
    (void)kvc::check_activations(x, "x", {-1, -1, -1});
    const int64_t num_rows = x->shape[0];
    check_row_count("x", num_rows);
    const int32_t heads = head_extent(x, "x", 1, kvc::kMaxHeads);
    const int32_t dim = head_extent(x, "x", 2, kvc::kMaxLatentDim);
    const kvc::kernels::TokenRows from = kvc::view_rows(x, {"x", num_rows, heads, dim});
    const kvc::kernels::TokenRows to = kvc::view_rows(out, {"out", num_rows, heads, dim});
    if (from.base != nullptr && from.base == to.base &&
        (from.dtype != to.dtype || from.token_stride != to.token_stride ||
         from.head_stride != to.head_stride)) {
      fail(KVC_E_INVALID_ARGUMENT,
           "out begins where x does, but has other strides or another type: rows would overlap");
    }
    const OpRotation rotation = kvc::view_rotation(read.rotation(), read.opt.positions, 0, dim, num_rows);
    if (!rotation.turns())
      fail(KVC_E_INVALID_ARGUMENT, "opt.rope %s: nothing to rotate by",
           read.rotation() == nullptr ? "is NULL" : "has mode NONE");
    kvc::Operators(read.opt.cpu_isa, read.host()).rotate(from, to, heads, dim, num_rows, rotation);
  });
}
