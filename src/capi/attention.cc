// kvcache.h, section "Attention".
#include "src/base/tensor.h"
#include "src/capi/handles.h"
#include "src/capi/sized_struct.h"

namespace {

using kvc::AttnOptions;
using kvc::AttnTensors;
using kvc::Cache;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::KeyScope;
using kvc::LayerSpec;
using kvc::require;

// The checked start of every call on a layer.
struct LayerCall {
  Cache& cache;
  int32_t local;
  const LayerSpec& layer;
  int64_t num_rows;
};

LayerCall open_layer(kvc_forward* fwd, int32_t layer, const char* function) {
  Cache& cache = kvc::open_cache(fwd);
  const int32_t local = cache.require_layer(layer);
  cache.require_storage(function);
  return {cache, local, cache.spec().layers[static_cast<size_t>(local)], cache.forward().batch().num_rows()};
}

AttnOptions options_of(const LayerCall& call, const kvc_attn_opt* opt) {
  kvc_attn_opt read{};
  if (opt != nullptr) {
    read = kvc::read_struct(opt, "opt");
    kvc::refuse_extensions(read.ext, "opt");
  }
  AttnOptions options;
  kvc::read_options(read, call.layer, call.num_rows,
                    read.bias == nullptr ? 0 : call.cache.forward().batch().longest(), &options);
  return options;
}

kvc::kernels::TokenRows view_q(const LayerCall& call, const DLTensor* q) {
  return kvc::view_rows(q, {"q", call.num_rows, call.layer.num_q_heads, call.layer.k_dim});
}

kvc::kernels::TokenRows view_k(const LayerCall& call, const DLTensor* k) {
  return kvc::view_rows(k, {"k", call.num_rows, call.layer.num_kv_heads, call.layer.k_dim});
}

kvc::kernels::TokenRows view_v(const LayerCall& call, const DLTensor* v) {
  return kvc::view_rows(v, {"v", call.num_rows, call.layer.num_kv_heads, call.layer.v_dim});
}

void view_outputs(const LayerCall& call, const DLTensor* out, const DLTensor* lse, AttnTensors* tensors) {
  tensors->out = kvc::view_rows(out, {"out", call.num_rows, call.layer.num_q_heads, call.layer.v_dim});
  if (lse == nullptr) return;
  const kvc::F32Matrix matrix = kvc::view_f32_matrix(lse, "lse", call.num_rows, call.layer.num_q_heads);
  tensors->lse = matrix.data;
  tensors->lse_token_stride = matrix.row_stride;
}

void attend(const LayerCall& call, KeyScope scope, const AttnOptions& options, const AttnTensors& tensors) {
  call.cache.engine().attend(call.cache.forward(), call.local, scope, options, tensors);
}

// Heads [begin, begin + heads) of a fused tensor.
kvc::kernels::TokenRows head_range(kvc::kernels::TokenRows rows, int64_t begin) {
  rows.base += begin * rows.head_stride;
  return rows;
}

}  // namespace

kvc_status kvc_attn(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt, const DLTensor* q,
                    const DLTensor* k, const DLTensor* v, DLTensor* out, DLTensor* lse,
                    kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_attn");
    const AttnOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    if ((k == nullptr) != (v == nullptr)) {
      fail(KVC_E_INVALID_ARGUMENT, "k is %s and v is %s: give both or neither", k == nullptr ? "NULL" : "set",
           v == nullptr ? "NULL" : "set");
    }
    if (k != nullptr) {
      tensors.k = view_k(call, k);
      tensors.v = view_v(call, v);
    } else if (!call.cache.forward().is_appended(call.local) && !call.cache.host_can_write_pool()) {
      fail(KVC_E_INVALID_STATE,
           "layer %d: k and v are NULL, and nothing was appended to the layer in this forward of %lld tokens",
           layer, static_cast<long long>(call.num_rows));
    }
    view_outputs(call, out, lse, &tensors);
    attend(call, KeyScope::kAll, options, tensors);
  });
}

kvc_status kvc_attn_fused_qkv(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt, const DLTensor* qkv,
                              DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_attn_fused_qkv");
    if (call.layer.k_dim != call.layer.v_dim) {
      fail(KVC_E_UNSUPPORTED, "qkv needs equal head dims: layer %d has k_dim = %d and v_dim = %d", layer,
           call.layer.k_dim, call.layer.v_dim);
    }
    const AttnOptions options = options_of(call, opt);
    const int64_t q_heads = call.layer.num_q_heads;
    const int64_t kv_heads = call.layer.num_kv_heads;
    const kvc::kernels::TokenRows rows =
        kvc::view_rows(qkv, {"qkv", call.num_rows, q_heads + 2 * kv_heads, call.layer.k_dim});
    AttnTensors tensors{};
    tensors.q = rows;
    tensors.k = head_range(rows, q_heads);
    tensors.v = head_range(rows, q_heads + kv_heads);
    view_outputs(call, out, nullptr, &tensors);
    attend(call, KeyScope::kAll, options, tensors);
  });
}

kvc_status kvc_attn_self(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt, const DLTensor* q,
                         const DLTensor* k, const DLTensor* v, DLTensor* out, DLTensor* lse,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_attn_self");
    const AttnOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    tensors.k = view_k(call, k);
    tensors.v = view_v(call, v);
    view_outputs(call, out, lse, &tensors);
    attend(call, KeyScope::kNew, options, tensors);
  });
}

kvc_status kvc_attn_cached(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt, const DLTensor* q,
                           DLTensor* out, DLTensor* lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_attn_cached");
    const AttnOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    view_outputs(call, out, lse, &tensors);
    attend(call, KeyScope::kCached, options, tensors);
  });
}

kvc_status kvc_attn_merge(kvc_forward* fwd, DLTensor* out, DLTensor* lse, const DLTensor* other_out,
                          const DLTensor* other_lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    Cache& cache = kvc::open_cache(fwd);
    const int64_t num_rows = cache.forward().batch().num_rows();
    require(out, "out");
    // The heads and the dim are the caller's: any layer's outputs can be merged.
    const int64_t heads = out->ndim == 3 && out->shape != nullptr ? out->shape[1] : 0;
    const int64_t dim = out->ndim == 3 && out->shape != nullptr ? out->shape[2] : 0;
    kvc::kernels::MergeParams params{};
    params.out = kvc::view_rows(out, {"out", num_rows, heads, dim});
    if (heads < 0 || dim < 0 || heads > INT32_MAX || dim > INT32_MAX)
      fail(KVC_E_SHAPE, "out has %lld heads of dim %lld", static_cast<long long>(heads),
           static_cast<long long>(dim));
    const kvc::F32Matrix own = kvc::view_f32_matrix(lse, "lse", num_rows, heads);
    params.other_out = kvc::view_rows(other_out, {"other_out", num_rows, heads, dim});
    const kvc::F32Matrix other = kvc::view_f32_matrix(other_lse, "other_lse", num_rows, heads);
    params.lse = own.data;
    params.lse_token_stride = own.row_stride;
    params.other_lse = other.data;
    params.other_lse_token_stride = other.row_stride;
    params.num_heads = static_cast<int32_t>(heads);
    params.dim = static_cast<int32_t>(dim);
    cache.engine().merge(params, num_rows);
  });
}

kvc_status kvc_kv_append(kvc_forward* fwd, int32_t layer, const DLTensor* k, const DLTensor* v,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_kv_append");
    const kvc::kernels::TokenRows k_rows = view_k(call, k);
    const kvc::kernels::TokenRows v_rows = view_v(call, v);
    call.cache.engine().append(call.cache.forward(), call.local, k_rows, v_rows);
  });
}

kvc_status kvc_kv_gather(kvc_forward* fwd, int32_t layer, kvc_seq seq, DLTensor* k_out, DLTensor* v_out,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_kv_gather");
    const kvc::Sequence& sequence = call.cache.sequences().get(seq);
    if (k_out == nullptr && v_out == nullptr)
      fail(KVC_E_INVALID_ARGUMENT, "k_out and v_out are both NULL: nothing to gather");
    const std::vector<kvc::BatchEntry>& entries = call.cache.forward().batch().entries();
    const int64_t length = sequence.in_forward()
                               ? entries[static_cast<size_t>(sequence.batch_index)].new_length()
                               : sequence.length;
    kvc::kernels::GatherParams params{.rows = {},
                                      .pages = sequence.pages.data(),
                                      .out = {},
                                      .page_size = call.cache.spec().page_size,
                                      .num_heads = call.layer.num_kv_heads,
                                      .dim = 0};
    kvc::kernels::TokenRows k_rows{}, v_rows{};
    if (k_out != nullptr)
      k_rows = kvc::view_rows(k_out, {"k_out", length, call.layer.num_kv_heads, call.layer.k_dim});
    if (v_out != nullptr)
      v_rows = kvc::view_rows(v_out, {"v_out", length, call.layer.num_kv_heads, call.layer.v_dim});
    if (sequence.in_forward() && !call.cache.forward().is_appended(call.local) &&
        !call.cache.host_can_write_pool()) {
      fail_with(KVC_E_INVALID_STATE, layer,
                "layer %d: nothing was appended to it in this forward, which grows sequence %lld", layer,
                static_cast<long long>(seq));
    }
    if (length == 0) return;
    if (k_out != nullptr) {
      params.rows = call.cache.pool().k_rows(call.local), params.out = k_rows, params.dim = call.layer.k_dim;
      call.cache.engine().gather(params, length);
    }
    if (v_out != nullptr) {
      params.rows = call.cache.pool().v_rows(call.local), params.out = v_rows, params.dim = call.layer.v_dim;
      call.cache.engine().gather(params, length);
    }
  });
}
