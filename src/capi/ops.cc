// kvcache.h, section "Operators".
#include <algorithm>
#include <climits>
#include <memory>

#include "kvcache.h"
#include "src/base/overlap.h"
#include "src/base/tensor.h"
#include "src/capi/guard.h"
#include "src/exec/linear.h"
#include "src/ops/operators.h"
#include "src/ops/quantised_rows.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

// Fields of kvc_op_opt beyond executor and cpu_isa that an operator uses.
enum OpUse : unsigned {
  kUsesAttn = 1,      // `full` and `attn`.
  kUsesRotation = 2,  // `rope` and `positions`.
};

struct OpOptions {
  kvc_op_opt opt{};  // Its pointers are the caller's, NULL or set.
  kvc_attn_opt attn{};
  kvc_rope rope{};
  kvc_executor executor{};

  const kvc_executor* host() const { return opt.executor == nullptr ? nullptr : &executor; }
  const kvc_rope* rotation() const { return opt.rope == nullptr ? nullptr : &rope; }
};

void refuse_unused(bool is_set, const char* field, const char* function) {
  if (is_set)
    fail(KVC_E_INVALID_ARGUMENT, "%s is set, but %s does not use it: expected 0 or NULL", field,
         function);
}

void read_executor(const kvc_executor* executor, OpOptions* out) {
  if (executor == nullptr) return;
  out->executor = read_struct(executor, "opt.executor");
  if (out->executor.concurrency == nullptr || out->executor.parallel_for == nullptr) {
    fail(KVC_E_INVALID_ARGUMENT, "opt.executor->%s is NULL",
         out->executor.concurrency == nullptr ? "concurrency" : "parallel_for");
  }
}

void read_attn(OpOptions* out) {
  if (out->opt.full != 0 && out->opt.full != 1) {
    fail_with(KVC_E_INVALID_ARGUMENT, out->opt.full,
              "opt.full = %d, expected 0 (causal) or 1 (all keys)", out->opt.full);
  }
  if (out->opt.attn == nullptr) return;
  out->attn = read_struct(out->opt.attn, "opt.attn");
  refuse_extensions(out->attn.ext, "opt.attn");
  // Checked before anything is computed with it.
  if (out->attn.window < 0) {
    fail_with(KVC_E_OUT_OF_RANGE, out->attn.window,
              "opt.attn->window = %lld out of range: 0 to %lld",
              static_cast<long long>(out->attn.window), static_cast<long long>(kMaxSequenceLength));
  }
  if (out->attn.spans != nullptr)
    fail(KVC_E_UNSUPPORTED,
         "opt.attn->spans is set: operators have causal (full = 0) and full attention only");
  if (out->opt.full == 1 && out->attn.window != 0) {
    fail_with(KVC_E_UNSUPPORTED, out->attn.window,
              "opt.attn->window = %lld with opt.full = 1: a row with all keys has no window",
              static_cast<long long>(out->attn.window));
  }
}

// `function` appears in messages. A NULL `opt` stands for all defaults. Throws INVALID_ARGUMENT,
// UNSUPPORTED or VERSION.
OpOptions read_op_options(const kvc_op_opt* opt, unsigned uses, const char* function) {
  OpOptions out;
  if (opt == nullptr) return out;
  out.opt = read_struct(opt, "opt");
  refuse_extensions(out.opt.ext, "opt");
  read_executor(out.opt.executor, &out);
  if ((uses & kUsesAttn) != 0) {
    read_attn(&out);
  } else {
    refuse_unused(out.opt.full != 0, "opt.full", function);
    refuse_unused(out.opt.attn != nullptr, "opt.attn", function);
  }
  if ((uses & kUsesRotation) == 0) {
    refuse_unused(out.opt.positions != nullptr, "opt.positions", function);
    refuse_unused(out.opt.rope != nullptr, "opt.rope", function);
  } else if (out.opt.rope != nullptr) {
    out.rope = read_struct(out.opt.rope, "opt.rope");
  }
  return out;
}

}  // namespace
}  // namespace kvc

using kvc::AttnOptions;
using kvc::AttnTensors;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::Indptr;
using kvc::OpAttention;
using kvc::Operators;
using kvc::OpExtent;
using kvc::OpOptions;
using kvc::OpPool;
using kvc::OpRotation;
using kvc::StateView;
using kvc::kernels::LinearParams;

namespace {

// A call runs on the device of the pool.
struct PlacedPool {
  DLDevice device;
  OpPool view;
};
PlacedPool read_pool(const kvc_op_pool* pool) {
  const kvc_op_pool read = kvc::read_struct(pool, "pool");
  const DLDevice device = kvc::device_of_op(read.k);
  return {device, kvc::view_pool(read, device)};
}

std::unique_ptr<Operators> operators_on(DLDevice device, const OpOptions& read) {
  return kvc::make_operators(device, {read.opt.cpu_isa, read.host(), read.opt.stream});
}

// The number of query heads is dimension 1 of q, any multiple of the kv heads.
int32_t query_heads(const DLTensor* q, int32_t num_kv_heads, DLDevice device) {
  (void)kvc::check_activations(q, "q", {-1, -1, -1}, device);
  const int64_t heads = q->shape[1];
  if (heads < 1 || heads > kvc::kMaxHeads || heads % num_kv_heads != 0) {
    fail_with(KVC_E_SHAPE, heads,
              "q has shape %s, expected [T, heads, dim] with heads a multiple of the %d kv heads "
              "up to %d",
              kvc::shape_text(*q).text, num_kv_heads, kvc::kMaxHeads);
  }
  return static_cast<int32_t>(heads);
}

void check_row_count(const char* name, int64_t rows) {
  if (rows > INT32_MAX)
    fail_with(KVC_E_OUT_OF_RANGE, rows, "%s has %lld rows: at most %d", name,
              static_cast<long long>(rows), INT32_MAX);
}

// The arguments of the attentions beside keys and sequences.
struct AttendCall {
  AttnOptions options;
  AttnTensors tensors{};
  OpRotation rotation;
};
// K and V where they are packed rows, so that overlaps with the outputs are found; null for a pool.
struct PackedKeys {
  const DLTensor *k = nullptr, *v = nullptr;
  int64_t num_rows = 0;
};
AttendCall read_call(const kvc::LayerSpec& shape, const OpOptions& read, int64_t num_rows,
                     int64_t longest, const PackedKeys& keys, const DLTensor* q, DLTensor* out,
                     DLTensor* lse, DLDevice device) {
  AttendCall call;
  kvc::read_options(read.attn, shape, num_rows, read.attn.bias == nullptr ? 0 : longest,
                    &call.options, "opt.attn->", device);
  AttnTensors& tensors = call.tensors;
  tensors.q = kvc::view_rows(q, {"q", num_rows, shape.num_q_heads, shape.k_dim, device});
  tensors.out = kvc::view_rows(out, {"out", num_rows, shape.num_q_heads, shape.v_dim, device});
  if (lse != nullptr) {
    const kvc::F32Matrix matrix =
        kvc::view_f32_matrix(lse, "lse", num_rows, shape.num_q_heads, device);
    tensors.lse = matrix.data;
    tensors.lse_token_stride = matrix.row_stride;
  }
  kvc::refuse_overlaps({q, keys.k, keys.v, out, lse, num_rows, keys.num_rows}, read.attn,
                       "opt.attn->");
  call.rotation = kvc::view_rotation(read.rotation(), read.opt.positions, shape.latent_rank,
                                     shape.k_dim - shape.latent_rank, num_rows, device);
  return call;
}

void attend(DLDevice device, OpAttention& attention, const OpOptions& read, PackedKeys keys,
            const DLTensor* q, DLTensor* out, DLTensor* lse) {
  kvc::kernels::OpSequenceTensors& sequences = attention.sequences;
  sequences.full = read.opt.full;
  sequences.window = read.attn.window;
  sequences.num_rows = sequences.row_indptr != nullptr ? q->shape[0] : sequences.num_sequences;
  check_row_count("q", sequences.num_rows);
  const std::unique_ptr<Operators> operators = operators_on(device, read);
  const OpExtent extent = operators->check(sequences);
  keys.num_rows = extent.num_keys;
  const AttendCall call =
      read_call(attention.shape, read, extent.num_rows, extent.longest, keys, q, out, lse, device);
  // The keys of a device's sequences are at most the columns of a bias.
  if (const DLTensor* bias = read.attn.bias; bias != nullptr)
    sequences.max_keys = std::min<int64_t>(sequences.max_keys, bias->shape[bias->ndim - 1]);
  operators->attend(attention, call.options, call.tensors, call.rotation);
}

kvc::LayerSpec shape_of(const OpPool& pool, int32_t latent_rank, int32_t num_q_heads) {
  kvc::LayerSpec shape;
  shape.num_q_heads = num_q_heads;
  shape.num_kv_heads = pool.num_heads;
  shape.k_dim = pool.k_dim;
  shape.v_dim = latent_rank == 0 ? pool.v_dim : latent_rank;
  shape.latent_rank = latent_rank;
  return shape;
}

// K and V heads have `latent_rank` 0.
void attend_paged(const PlacedPool& placed, const kvc_op_table* table, int32_t latent_rank,
                  const OpOptions& read, const DLTensor* q, DLTensor* out, DLTensor* lse) {
  const OpPool& pool = placed.view;
  OpAttention attention{
      .shape = {},
      .k = pool.k,
      .v = pool.v,
      .page_size = pool.page_size,
      .sequences = kvc::view_table(placed.device, kvc::read_struct(table, "table"), pool)};
  attention.shape = shape_of(pool, latent_rank, query_heads(q, pool.num_heads, placed.device));
  attend(placed.device, attention, read, {}, q, out, lse);
}

int32_t head_extent(const DLTensor* tensor, const char* name, int dimension, int32_t most) {
  const int64_t value = tensor->shape[dimension];
  if (value < 1 || value > most) {
    fail_with(KVC_E_SHAPE, value, "%s has shape %s, expected 1 to %d in dimension %d", name,
              kvc::shape_text(*tensor).text, most, dimension);
  }
  return static_cast<int32_t>(value);
}

// Packed rows, as one page per sequence. The number of the page is the first row.
kvc::kernels::PagedRows packed_pages(const kvc::kernels::TokenRows& rows) {
  return {rows.base, rows.token_stride, rows.head_stride, rows.token_stride, rows.dtype};
}

kvc::LayerSpec ragged_shape(const DLTensor* q, const DLTensor* k, const DLTensor* v,
                            DLDevice device) {
  kvc::LayerSpec shape;
  (void)kvc::check_activations(k, "k", {-1, -1, -1}, device);
  shape.num_kv_heads = head_extent(k, "k", 1, kvc::kMaxHeads);
  shape.k_dim = head_extent(k, "k", 2, kvc::kMaxHeadDim);
  (void)kvc::check_activations(v, "v", {-1, shape.num_kv_heads, -1}, device);
  shape.v_dim = head_extent(v, "v", 2, kvc::kMaxHeadDim);
  shape.num_q_heads = query_heads(q, shape.num_kv_heads, device);
  return shape;
}

// Rows of the K half of a pool, [>= min_rows, heads, k_dim]. MLA rows may leave out the heads.
kvc::kernels::TokenRows view_k(const OpPool& pool, const DLTensor* tensor, const char* name,
                               int64_t min_rows, DLDevice device) {
  return pool.is_mla ? kvc::view_latents(tensor, name, min_rows, pool.k_dim, device)
                     : kvc::view_rows(tensor, {name, min_rows, pool.num_heads, pool.k_dim, device});
}

}  // namespace

kvc_status kvc_op_append(const kvc_op_pool* pool, const kvc_op_opt* opt, const DLTensor* slots,
                         const DLTensor* k, const DLTensor* v, kvc_error* err) noexcept {
  return guard(err, [&] {
    const PlacedPool placed = read_pool(pool);
    const OpPool& view = placed.view;
    const DLDevice device = placed.device;
    const OpOptions read = kvc::read_op_options(opt, kvc::kUsesRotation, "kvc_op_append");
    kvc::check_integers(slots, "slots", 64, {-1}, device);
    const int64_t num_rows = slots->shape[0];
    check_row_count("slots", num_rows);
    const kvc::kernels::TokenRows k_rows = view_k(view, k, "k", num_rows, device);
    kvc::kernels::TokenRows v_rows{};
    if (!view.v_in_k) {
      v_rows = kvc::view_rows(v, {"v", num_rows, view.num_heads, view.v_dim, device});
    } else if (v != nullptr) {
      fail(KVC_E_INVALID_ARGUMENT, "v is set, but pool.v is NULL: V lies in the K rows");
    }
    if (view.is_mla && read.rotation() != nullptr) {
      fail(KVC_E_UNSUPPORTED,
           "opt.rope is set, but layout MLA does not say where a row's rope elements begin: turn "
           "them with "
           "kvc_op_rotate");
    }
    const OpRotation rotation =
        kvc::view_rotation(read.rotation(), read.opt.positions, 0, view.k_dim, num_rows, device);
    const auto* slot_of_row = reinterpret_cast<const int64_t*>(kvc::data_of(*slots));
    operators_on(device, read)->append(view, k_rows, v_rows, slot_of_row, num_rows, rotation);
  });
}

kvc_status kvc_op_attention_paged(const kvc_op_pool* pool, const kvc_op_table* table,
                                  const kvc_op_opt* opt, const DLTensor* q, DLTensor* out,
                                  DLTensor* lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const PlacedPool view = read_pool(pool);
    if (view.view.is_mla)
      fail(KVC_E_INVALID_ARGUMENT, "pool.layout = MLA (%d): kvc_op_mla_paged attends it",
           KVC_OP_MLA);
    const OpOptions read =
        kvc::read_op_options(opt, kvc::kUsesAttn | kvc::kUsesRotation, "kvc_op_attention_paged");
    attend_paged(view, table, 0, read, q, out, lse);
  });
}

kvc_status kvc_op_mla_paged(const kvc_op_pool* pool, const kvc_op_table* table, int32_t latent_rank,
                            const kvc_op_opt* opt, const DLTensor* q, DLTensor* out, DLTensor* lse,
                            kvc_error* err) noexcept {
  return guard(err, [&] {
    const PlacedPool view = read_pool(pool);
    if (!view.view.is_mla)
      fail(KVC_E_INVALID_ARGUMENT, "pool.layout is not MLA (%d): kvc_op_attention_paged attends it",
           KVC_OP_MLA);
    if (latent_rank < 1 || latent_rank > view.view.k_dim) {
      fail_with(KVC_E_OUT_OF_RANGE, latent_rank,
                "latent_rank = %d out of range: 1 to the %d elements of a row", latent_rank,
                view.view.k_dim);
    }
    kvc::require(opt, "opt");
    const OpOptions read =
        kvc::read_op_options(opt, kvc::kUsesAttn | kvc::kUsesRotation, "kvc_op_mla_paged");
    attend_paged(view, table, latent_rank, read, q, out, lse);
  });
}

kvc_status kvc_op_attention_ragged(const DLTensor* qo_indptr, const DLTensor* kv_indptr,
                                   const kvc_op_opt* opt, const DLTensor* q, const DLTensor* k,
                                   const DLTensor* v, DLTensor* out, DLTensor* lse,
                                   kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpOptions read =
        kvc::read_op_options(opt, kvc::kUsesAttn | kvc::kUsesRotation, "kvc_op_attention_ragged");
    const DLDevice device = kvc::device_of_op(k);
    const Indptr rows = kvc::view_indptr(device, qo_indptr, "qo_indptr", -1);
    const Indptr keys = kv_indptr == nullptr
                            ? rows
                            : kvc::view_indptr(device, kv_indptr, "kv_indptr", rows.num_sequences);
    const kvc::LayerSpec shape = ragged_shape(q, k, v, device);
    const int64_t num_keys = std::min(k->shape[0], v->shape[0]);
    check_row_count("k", num_keys);
    OpAttention attention{.shape = shape,
                          .k = packed_pages(kvc::view_rows(
                              k, {"k", num_keys, shape.num_kv_heads, shape.k_dim, device})),
                          .v = packed_pages(kvc::view_rows(
                              v, {"v", num_keys, shape.num_kv_heads, shape.v_dim, device})),
                          .page_size = INT_MAX,
                          .sequences = {}};
    attention.sequences.num_sequences = rows.num_sequences;
    attention.sequences.row_indptr = rows.data;
    attention.sequences.key_indptr = keys.data;
    attention.sequences.num_keys = num_keys;
    attention.sequences.max_keys = num_keys;
    attend(device, attention, read, {k, v}, q, out, lse);
  });
}

kvc_status kvc_op_merge(const kvc_op_opt* opt, DLTensor* out, DLTensor* lse,
                        const DLTensor* other_out, const DLTensor* other_lse,
                        kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpOptions read = kvc::read_op_options(opt, 0, "kvc_op_merge");
    const DLDevice device = kvc::device_of_op(out);
    operators_on(device, read)->merge(kvc::read_merge(out, lse, other_out, other_lse, -1, device));
  });
}

kvc_status kvc_op_gather(const kvc_op_pool* pool, const kvc_op_table* table, const kvc_op_opt* opt,
                         DLTensor* k_out, DLTensor* v_out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const PlacedPool placed = read_pool(pool);
    const OpPool& view = placed.view;
    const DLDevice device = placed.device;
    kvc::kernels::OpSequenceTensors sequences =
        kvc::view_table(device, kvc::read_struct(table, "table"), view);
    if (sequences.row_indptr != nullptr)
      fail(KVC_E_INVALID_ARGUMENT,
           "table.qo_indptr is set, but kvc_op_gather does not use it: expected NULL");
    sequences.full = 1;  // Rows of q, of which there are none here, do not matter.
    const OpOptions read = kvc::read_op_options(opt, 0, "kvc_op_gather");
    if (k_out == nullptr && v_out == nullptr)
      fail(KVC_E_INVALID_ARGUMENT, "k_out and v_out are both NULL: nothing to gather");
    if (view.v_in_k && v_out != nullptr)
      fail(KVC_E_INVALID_ARGUMENT, "v_out is set, but pool.v is NULL: V lies in the K rows");
    const std::unique_ptr<Operators> operators = operators_on(device, read);
    const int64_t num_keys = operators->check(sequences).num_keys;
    kvc::kernels::TokenRows k_rows{}, v_rows{};
    if (k_out != nullptr) k_rows = view_k(view, k_out, "k_out", num_keys, device);
    if (v_out != nullptr)
      v_rows = kvc::view_rows(v_out, {"v_out", num_keys, view.num_heads, view.v_dim, device});
    kvc::refuse_overlap({k_out, "k_out", num_keys}, {v_out, "v_out", num_keys});
    operators->gather(view, sequences, k_rows, v_rows);
  });
}

kvc_status kvc_op_copy_pages(const kvc_op_pool* pool, const kvc_op_opt* opt, const DLTensor* pairs,
                             kvc_error* err) noexcept {
  return guard(err, [&] {
    const auto [device, view] = read_pool(pool);
    const OpOptions read = kvc::read_op_options(opt, 0, "kvc_op_copy_pages");
    kvc::check_integers(pairs, "pairs", 64, {-1, 2}, device);
    const auto* ids = reinterpret_cast<const int64_t*>(kvc::data_of(*pairs));
    const int64_t stride = kvc::stride_of(*pairs, 0), num_pairs = pairs->shape[0];
    if (!kvc::is_host(device)) check_row_count("pairs", num_pairs);
    operators_on(device, read)->copy_pages(view, ids, stride, num_pairs);
  });
}

kvc_status kvc_op_rotate(const kvc_op_opt* opt, const DLTensor* x, DLTensor* out,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    kvc::require(opt, "opt");
    const OpOptions read = kvc::read_op_options(opt, kvc::kUsesRotation, "kvc_op_rotate");
    const DLDevice device = kvc::device_of_op(x);
    (void)kvc::check_activations(x, "x", {-1, -1, -1}, device);
    const int64_t num_rows = x->shape[0];
    check_row_count("x", num_rows);
    const int32_t heads = head_extent(x, "x", 1, kvc::kMaxHeads);
    const int32_t dim = head_extent(x, "x", 2, kvc::kMaxLatentDim);
    const kvc::kernels::TokenRows from = kvc::view_rows(x, {"x", num_rows, heads, dim, device});
    const kvc::kernels::TokenRows to = kvc::view_rows(out, {"out", num_rows, heads, dim, device});
    const bool is_in_place = from.base == to.base && from.dtype == to.dtype &&
                             from.token_stride == to.token_stride &&
                             from.head_stride == to.head_stride;
    if (!is_in_place) kvc::refuse_overlap({out, "out", num_rows}, {x, "x"});
    const OpRotation rotation =
        kvc::view_rotation(read.rotation(), read.opt.positions, 0, dim, num_rows, device);
    if (!rotation.rotates())
      fail(KVC_E_INVALID_ARGUMENT, "opt.rope %s: nothing to rotate by",
           read.rotation() == nullptr ? "is NULL" : "has mode NONE");
    operators_on(device, read)->rotate(from, to, heads, dim, num_rows, rotation);
  });
}

namespace {

// The CPU alone serves these functions.
void refuse_device(DLDevice device, const char* function) {
  if (kvc::is_host(device)) return;
  fail_with(KVC_E_UNSUPPORTED, device.device_id,
            "%s: the tensors live on CUDA device %d, but it takes tensors of the CPU only",
            function, device.device_id);
}

// Of x, which has been checked.
kvc::RowsShape rows_shape(const DLTensor* x) {
  check_row_count("x", x->shape[0]);
  return {x->shape[0], head_extent(x, "x", 1, kvc::kMaxHeads),
          head_extent(x, "x", 2, kvc::kMaxLatentDim)};
}

kvc::kernels::PagedRows one_page(const kvc::kernels::TokenRows& rows,
                                 const kvc::kernels::RowScales& scales) {
  return {rows.base, 0, rows.head_stride, rows.token_stride, rows.dtype, scales};
}

}  // namespace

kvc_status kvc_op_quantize(const kvc_op_opt* opt, kvc_quant quant, const DLTensor* x, DLTensor* out,
                           DLTensor* scales, uint64_t* out_saturated, kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpOptions read = kvc::read_op_options(opt, 0, "kvc_op_quantize");
    kvc::check_op_quant(quant, "quant");
    refuse_device(kvc::device_of_op(x), "kvc_op_quantize");
    (void)kvc::check_activations(x, "x", {-1, -1, -1});
    const kvc::RowsShape shape = rows_shape(x);
    const kvc::kernels::TokenRows from =
        kvc::view_rows(x, {"x", shape.num_rows, shape.heads, shape.dim});
    const kvc::kernels::TokenRows to =
        kvc::view_quantised_rows(out, {"out", shape.num_rows, shape.heads, shape.dim});
    const kvc::kernels::RowScales row_scales = kvc::view_row_scales(quant, scales, shape);
    const kvc::TensorUse written[] = {{out, "out", shape.num_rows},
                                      {scales, "scales", shape.num_rows}};
    const kvc::TensorUse inputs[] = {{x, "x"}};
    if (quant == KVC_QUANT_PER_TOKEN_HEAD) {
      kvc::refuse_overlaps(written, inputs);
    } else {
      kvc::refuse_overlap(written[0], inputs[0]);
      kvc::refuse_overlap(written[0], {scales, "scales"});
    }
    const uint64_t saturated = kvc::quantise_rows({read.opt.cpu_isa, read.host(), read.opt.stream},
                                                  from, one_page(to, row_scales), shape);
    if (out_saturated != nullptr) *out_saturated = saturated;
  });
}

kvc_status kvc_op_dequantize(const kvc_op_opt* opt, kvc_quant quant, const DLTensor* x,
                             const DLTensor* scales, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const OpOptions read = kvc::read_op_options(opt, 0, "kvc_op_dequantize");
    kvc::check_op_quant(quant, "quant");
    refuse_device(kvc::device_of_op(x), "kvc_op_dequantize");
    (void)kvc::check_quantised(x, "x", {-1, -1, -1});
    const kvc::RowsShape shape = rows_shape(x);
    const kvc::kernels::TokenRows from =
        kvc::view_quantised_rows(x, {"x", shape.num_rows, shape.heads, shape.dim});
    const kvc::kernels::RowScales row_scales = kvc::view_row_scales(quant, scales, shape);
    const kvc::kernels::TokenRows to =
        kvc::view_rows(out, {"out", shape.num_rows, shape.heads, shape.dim});
    const kvc::TensorUse written[] = {{out, "out", shape.num_rows}};
    const kvc::TensorUse inputs[] = {
        {x, "x"}, {scales, "scales", quant == KVC_QUANT_PER_TOKEN_HEAD ? shape.num_rows : -1}};
    kvc::refuse_overlaps(written, inputs);
    kvc::dequantise_rows({read.opt.cpu_isa, read.host(), read.opt.stream},
                         one_page(from, row_scales), to, shape);
  });
}

namespace {

kvc_linear_opt read_linear_opt(const kvc_linear_opt* linear) {
  kvc_linear_opt read{};
  if (linear == nullptr) return read;
  read = kvc::read_struct(linear, "linear");
  kvc::refuse_extensions(read.ext, "linear");
  if (read.state != 0) {
    fail_with(KVC_E_OUT_OF_RANGE, read.state,
              "linear.state = %d: states has one state per sequence, index 0", read.state);
  }
  return read;
}

StateView view_linear_states(const DLTensor* tensor, DLDevice device) {
  const StateView states = kvc::view_states(tensor, "states", device);
  for (int dimension = 0; dimension < 4; ++dimension) {
    const int64_t extent = tensor->shape[dimension];
    if (extent > INT32_MAX || (dimension > 0 && extent < 1)) {
      fail_with(KVC_E_SHAPE, extent, "states has shape[%d] = %lld, expected %d to %d", dimension,
                static_cast<long long>(extent), dimension > 0 ? 1 : 0, INT32_MAX);
    }
  }
  return states;
}

// Refuses overlaps with the states, which are read and written.
void refuse_state_overlaps(const DLTensor* states, const kvc_linear_opt& opt,
                           const kvc::LinearTensors& tensors, int64_t num_rows) {
  const int64_t decay_rows = opt.decay == KVC_DECAY_HEAD ? -1 : num_rows;
  const kvc::TensorUse outputs[] = {{states, "states"}};
  const kvc::TensorUse others[] = {
      {tensors.q, "q", num_rows},       {tensors.k, "k", num_rows},
      {tensors.v, "v", num_rows},       {tensors.decay, "decay", decay_rows},
      {tensors.beta, "beta", num_rows}, {opt.skip, "skip"},
      {tensors.out, "out", num_rows}};
  kvc::refuse_overlaps(outputs, others);
}

LinearParams read_params(const kvc_linear_opt& opt, const DLTensor* states,
                         const kvc::LinearTensors& tensors, const StateView& view, int64_t num_rows,
                         DLDevice device) {
  LinearParams params = kvc::read_linear(opt, "linear", tensors,
                                         {.heads = static_cast<int32_t>(view.heads),
                                          .k_dim = static_cast<int32_t>(view.k_dim),
                                          .v_dim = static_cast<int32_t>(view.v_dim),
                                          .state_dtype = view.dtype},
                                         num_rows, device);
  refuse_state_overlaps(states, opt, tensors, num_rows);
  params.state_head_stride = view.head_stride;
  params.state_row_stride = view.row_stride;
  return params;
}

kvc::kernels::OpStateTensors read_sequences(const StateView& view, const DLTensor* qo_indptr,
                                            const DLTensor* q, DLDevice device) {
  kvc::kernels::OpStateTensors states{};
  states.num_sequences = static_cast<int32_t>(view.sequences);
  states.num_rows = view.sequences;
  states.states = view.base;
  states.stride = view.sequence_stride;
  if (qo_indptr != nullptr) {
    states.row_indptr = kvc::view_i32_vector(qo_indptr, "qo_indptr", view.sequences + 1, device);
    (void)kvc::check_activations(q, "q", {-1, -1, -1}, device);
    states.num_rows = q->shape[0];
  }
  return states;
}

}  // namespace

kvc_status kvc_op_linear_step(const kvc_linear_opt* linear, const kvc_op_opt* opt,
                              const DLTensor* qo_indptr, DLTensor* states, const DLTensor* q,
                              const DLTensor* k, const DLTensor* v, const DLTensor* decay,
                              const DLTensor* beta, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const kvc_linear_opt linear_opt = read_linear_opt(linear);
    const kvc::OpOptions op_opt = kvc::read_op_options(opt, 0, "kvc_op_linear_step");
    const DLDevice device = kvc::device_of_op(states);
    const StateView view = view_linear_states(states, device);
    const auto operators =
        kvc::make_operators(device, {op_opt.opt.cpu_isa, op_opt.host(), op_opt.opt.stream});
    const kvc::kernels::OpStateTensors sequences = read_sequences(view, qo_indptr, q, device);
    const int64_t num_rows = operators->check(sequences);
    operators->linear(
        read_params(linear_opt, states, {q, k, v, decay, beta, out}, view, num_rows, device),
        sequences);
  });
}
