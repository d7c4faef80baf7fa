// kvcache.h, section "Attention".
#include "src/base/overlap.h"
#include "src/base/tensor.h"
#include "src/capi/call.h"
#include "src/capi/guard.h"
#include "src/exec/row_moves.h"

namespace {

using kvc::AttnOptions;
using kvc::AttnTensors;
using kvc::CacheCall;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::KeyScope;
using kvc::kind_bit;
using kvc::LayerCall;
using kvc::require;

constexpr uint32_t kTokenKinds =
    kind_bit(KVC_LAYER_ATTENTION) | kind_bit(KVC_LAYER_MLA) | kind_bit(KVC_LAYER_SHARED);

struct CallOptions {
  kvc_attn_opt read{};
  AttnOptions checked;
};

CallOptions options_of(const LayerCall& call, const kvc_attn_opt* opt) {
  CallOptions result;
  kvc_attn_opt& read = result.read;
  AttnOptions& options = result.checked;
  if (opt != nullptr) {
    read = kvc::read_struct(opt, "opt");
    kvc::refuse_extensions(read.ext, "opt");
  }
  kvc::read_options(read, call.layer, call.num_rows(),
                    read.bias == nullptr ? 0 : call.max_num_keys(), &options, "opt.",
                    call.device());
  if (call.is_cross() && (read.window != 0 || read.spans != nullptr)) {
    fail_with(KVC_E_UNSUPPORTED, read.window,
              "opt.window = %lld, opt.spans %s: encoder tokens have neither",
              static_cast<long long>(read.window), read.spans == nullptr ? "NULL" : "set");
  }
  call.read_spans(read.spans, &options.spans);
  return result;
}

kvc::kernels::TokenRows view_q(const LayerCall& call, const DLTensor* q) {
  return kvc::view_rows(
      q, {"q", call.num_rows(), call.layer.num_q_heads, call.layer.k_dim, call.device()});
}

// New K and V, packed over `num_rows` tokens. K = V and MLA layers have no v.
void view_new_rows(const LayerCall& call, const DLTensor* k, const DLTensor* v, int64_t num_rows,
                   AttnTensors* tensors) {
  tensors->k =
      kvc::view_rows(k, {"k", num_rows, call.layer.num_kv_heads, call.layer.k_dim, call.device()});
  if (!call.layer.v_in_k) {
    tensors->v = kvc::view_rows(
        v, {"v", num_rows, call.layer.num_kv_heads, call.layer.v_dim, call.device()});
  } else if (v != nullptr) {
    fail(KVC_E_INVALID_ARGUMENT, "v is set, but V of layer %d lies in its K rows: expected NULL",
         call.id());
  }
}

void view_outputs(const LayerCall& call, const DLTensor* out, const DLTensor* lse,
                  AttnTensors* tensors) {
  tensors->out = kvc::view_rows(
      out, {"out", call.num_rows(), call.layer.num_q_heads, call.layer.v_dim, call.device()});
  if (lse == nullptr) return;
  const kvc::F32Matrix matrix =
      kvc::view_f32_matrix(lse, "lse", call.num_rows(), call.layer.num_q_heads, call.device());
  tensors->lse = matrix.data;
  tensors->lse_token_stride = matrix.row_stride;
}

// Whether the call has new rows. Callers give k and v or neither; K = V layers have no v.
bool has_new_rows(const LayerCall& call, const DLTensor* k, const DLTensor* v) {
  if (!call.layer.v_in_k && (k == nullptr) != (v == nullptr)) {
    fail(KVC_E_INVALID_ARGUMENT, "k is %s and v is %s: give both or neither",
         k == nullptr ? "NULL" : "set", v == nullptr ? "NULL" : "set");
  }
  return k != nullptr || v != nullptr;
}

// The rows of a fused tensor from head `begin` on.
kvc::kernels::TokenRows head_range(kvc::kernels::TokenRows rows, int64_t begin) {
  rows.base += begin * rows.head_stride;
  return rows;
}

}  // namespace

kvc_status kvc_attn(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt, const DLTensor* q,
                    const DLTensor* k, const DLTensor* v, DLTensor* out, DLTensor* lse,
                    kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call = cache->forward.layer(layer, "kvc_attn", kTokenKinds);
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    if (has_new_rows(call, k, v)) {
      if (call.layer.kind == KVC_LAYER_SHARED) {
        fail(KVC_E_INVALID_ARGUMENT, "k or v is set, but layer %d keeps nothing: it reads layer %d",
             layer, call.source_id());
      }
      view_new_rows(call, k, v, call.num_rows(), &tensors);
    } else {
      call.require_appended();
    }
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, k, v, out, lse, call.num_rows(), call.num_rows()}, options.read);
    call.attend(KeyScope::kAll, options.checked, tensors);
  });
}

kvc_status kvc_attn_shared_kv(kvc_forward* fwd, int32_t source_layer, const kvc_attn_opt* opt,
                              const DLTensor* q, DLTensor* out, DLTensor* lse,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call = cache->forward.layer(source_layer, "kvc_attn_shared_kv",
                                          kind_bit(KVC_LAYER_ATTENTION) | kind_bit(KVC_LAYER_MLA));
    require(q, "q");
    // The query heads are the caller's: any multiple of the source's kv heads.
    const int64_t heads =
        q->ndim == 3 && q->shape != nullptr ? q->shape[1] : call.layer.num_q_heads;
    if (heads < 1 || heads > kvc::kMaxHeads || heads % call.layer.num_kv_heads != 0) {
      fail_with(KVC_E_SHAPE, heads,
                "q has shape %s, expected [T, heads, dim] with heads a multiple of the %d kv heads "
                "of layer %d",
                kvc::shape_text(*q).text, call.layer.num_kv_heads, source_layer);
    }
    call.layer.num_q_heads = static_cast<int32_t>(heads);
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    call.require_appended();
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, nullptr, nullptr, out, lse, call.num_rows(), 0}, options.read);
    call.attend(KeyScope::kAll, options.checked, tensors);
  });
}

kvc_status kvc_attn_fused_qkv(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt,
                              const DLTensor* qkv, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call =
        cache->forward.layer(layer, "kvc_attn_fused_qkv", kind_bit(KVC_LAYER_ATTENTION));
    if (call.layer.k_dim != call.layer.v_dim) {
      fail(KVC_E_UNSUPPORTED, "qkv needs equal head dims: layer %d has k_dim = %d and v_dim = %d",
           layer, call.layer.k_dim, call.layer.v_dim);
    }
    if (call.layer.v_in_k)
      fail(KVC_E_UNSUPPORTED, "qkv has V, but V of layer %d lies in its K rows", layer);
    const CallOptions options = options_of(call, opt);
    const int64_t q_heads = call.layer.num_q_heads;
    const int64_t kv_heads = call.layer.num_kv_heads;
    const kvc::kernels::TokenRows rows = kvc::view_rows(
        qkv, {"qkv", call.num_rows(), q_heads + 2 * kv_heads, call.layer.k_dim, call.device()});
    AttnTensors tensors{};
    tensors.q = rows;
    tensors.k = head_range(rows, q_heads);
    tensors.v = head_range(rows, q_heads + kv_heads);
    view_outputs(call, out, nullptr, &tensors);
    kvc::refuse_overlaps({qkv, nullptr, nullptr, out, nullptr, call.num_rows(), 0, "qkv"},
                         options.read);
    call.attend(KeyScope::kAll, options.checked, tensors);
  });
}

kvc_status kvc_attn_self(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt,
                         const DLTensor* q, const DLTensor* k, const DLTensor* v, DLTensor* out,
                         DLTensor* lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call = cache->forward.layer(layer, "kvc_attn_self",
                                          kind_bit(KVC_LAYER_ATTENTION) | kind_bit(KVC_LAYER_MLA));
    const bool is_mla = call.layer.is_mla();
    if (is_mla) {
      if (call.layer.self_k_dim == 0) {
        fail(KVC_E_UNSUPPORTED, "layer %d has k_dim = 0: its ragged form was not planned", layer);
      }
      call.layer.num_kv_heads = call.layer.num_q_heads;
      call.layer.k_dim = call.layer.self_k_dim;
      call.layer.v_dim = call.layer.self_v_dim;
      call.layer.v_in_k = false;
      call.layer.latent_rank =
          0;  // The dims of the heads are known, so the default scale is right.
    }
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    view_new_rows(call, k, v, call.num_rows(), &tensors);
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, k, v, out, lse, call.num_rows(), call.num_rows()}, options.read);
    call.attend(KeyScope::kNew, options.checked, tensors, is_mla);
  });
}

kvc_status kvc_attn_cached(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt,
                           const DLTensor* q, DLTensor* out, DLTensor* lse,
                           kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call = cache->forward.layer(layer, "kvc_attn_cached", kTokenKinds);
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, nullptr, nullptr, out, lse, call.num_rows(), 0}, options.read);
    call.attend(KeyScope::kCached, options.checked, tensors);
  });
}

kvc_status kvc_attn_cross(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt,
                          const DLTensor* q, const DLTensor* k, const DLTensor* v, DLTensor* out,
                          DLTensor* lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call = cache->forward.layer(layer, "kvc_attn_cross", kind_bit(KVC_LAYER_CROSS));
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    const int64_t announced = call.num_cross_rows();
    if (has_new_rows(call, k, v)) {
      if (announced == 0) {
        fail(KVC_E_INVALID_STATE,
             "layer %d: k and v are set, but cross_lengths announced 0 encoder tokens", layer);
      }
      view_new_rows(call, k, v, announced, &tensors);
    } else if (announced != 0) {
      call.require_appended();
    }
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, k, v, out, lse, call.num_rows(), announced}, options.read);
    call.attend(KeyScope::kCross, options.checked, tensors);
  });
}

kvc_status kvc_attn_merge(kvc_forward* fwd, DLTensor* out, DLTensor* lse, const DLTensor* other_out,
                          const DLTensor* other_lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    const kvc::MergeCall merge = kvc::read_merge(out, lse, other_out, other_lse,
                                                 cache->forward.num_tokens(), cache->spec().device);
    cache->forward.merge(merge.params, merge.num_rows);
  });
}

kvc_status kvc_kv_append(kvc_forward* fwd, int32_t layer, const DLTensor* k, const DLTensor* v,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call = cache->forward.layer(layer, "kvc_kv_append", kind_bit(KVC_LAYER_ATTENTION));
    AttnTensors tensors{};
    view_new_rows(call, k, v, call.num_rows(), &tensors);
    call.append(tensors.k, tensors.v);
  });
}

kvc_status kvc_mla_append(kvc_forward* fwd, int32_t layer, const DLTensor* latent,
                          kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call = cache->forward.layer(layer, "kvc_mla_append", kind_bit(KVC_LAYER_MLA));
    const kvc::kernels::TokenRows rows =
        kvc::view_latents(latent, "latent", call.num_rows(), call.layer.k_dim, call.device());
    call.append(rows, {});
  });
}

kvc_status kvc_kv_gather(kvc_forward* fwd, int32_t layer, kvc_seq seq, DLTensor* k_out,
                         DLTensor* v_out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall cache(fwd);
    LayerCall call =
        cache->forward.layer(layer, "kvc_kv_gather", kTokenKinds | kind_bit(KVC_LAYER_CROSS));
    const kvc::StoredTokens tokens = call.stored_tokens(seq);
    if (k_out == nullptr && v_out == nullptr)
      fail(KVC_E_INVALID_ARGUMENT, "k_out and v_out are both NULL: nothing to gather");
    if (call.layer.v_in_k && v_out != nullptr)
      fail(KVC_E_INVALID_ARGUMENT,
           "v_out is set, but V of layer %d lies in its K rows: expected NULL", layer);
    const auto view = [&](const DLTensor* tensor, const char* name, int32_t dim) {
      if (tensor == nullptr) return kvc::kernels::TokenRows{};
      return kvc::view_rows(tensor,
                            {name, tokens.length, call.layer.num_kv_heads, dim, call.device()});
    };
    const kvc::kernels::TokenRows k_rows = view(k_out, "k_out", call.layer.k_dim);
    const kvc::kernels::TokenRows v_rows = view(v_out, "v_out", call.layer.v_dim);
    kvc::refuse_overlap({k_out, "k_out", tokens.length}, {v_out, "v_out", tokens.length});
    call.gather(tokens, k_rows, v_rows);
  });
}
