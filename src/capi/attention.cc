// kvcache.h, section "Attention".
#include <string>

#include "src/base/overlap.h"
#include "src/base/tensor.h"
#include "src/base/tensor_shape.h"
#include "src/capi/handles.h"
#include "src/capi/sized_struct.h"
#include "src/exec/row_moves.h"

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
  int32_t id;  // global
  int32_t local;
  LayerSpec layer;  // heads and dims as this call has them
  int64_t num_rows;

  DLDevice device() const { return cache.spec().device; }
};

constexpr uint32_t kind_bit(kvc_layer_kind kind) { return 1u << kind; }
constexpr uint32_t kTokenKinds =
    kind_bit(KVC_LAYER_ATTENTION) | kind_bit(KVC_LAYER_MLA) | kind_bit(KVC_LAYER_SHARED);

// "ATTENTION (0), MLA (1) or SHARED (4)"
std::string kinds_text(uint32_t kinds) {
  std::string text;
  for (kvc_layer_kind kind = KVC_LAYER_ATTENTION; kinds != 0; ++kind) {
    if ((kinds & kind_bit(kind)) == 0) continue;
    kinds &= ~kind_bit(kind);
    if (!text.empty()) text += kinds == 0 ? " or " : ", ";
    text += std::string(kvc::layer_kind_name(kind)) + " (" + std::to_string(kind) + ")";
  }
  return text;
}

// `kinds`: those that the function serves.
LayerCall open_layer(kvc_forward* fwd, int32_t layer, const char* function, uint32_t kinds) {
  Cache& cache = kvc::open_cache(fwd);
  const int32_t local = cache.require_layer(layer);
  const LayerSpec& spec = cache.spec().layers[static_cast<size_t>(local)];
  if ((kinds & kind_bit(spec.kind)) == 0) {
    fail_with(KVC_E_INVALID_STATE, spec.kind, "%s: layer %d is of kind %s (%d), expected %s",
              function, layer, kvc::layer_kind_name(spec.kind), spec.kind,
              kinds_text(kinds).c_str());
  }
  cache.require_storage(function);
  cache.require_readable(local, function);
  return {cache, layer, local, spec, cache.forward().batch().num_rows()};
}

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
  const kvc::Batch& batch = call.cache.forward().batch();
  const bool is_cross = call.layer.kind == KVC_LAYER_CROSS;
  kvc::read_options(read, call.layer, call.num_rows,
                    read.bias == nullptr ? 0 : batch.longest(is_cross), &options, "opt.",
                    call.device());
  if (is_cross && (read.window != 0 || read.spans != nullptr)) {
    fail_with(KVC_E_UNSUPPORTED, read.window,
              "opt.window = %lld, opt.spans %s: encoder tokens have neither",
              static_cast<long long>(read.window), read.spans == nullptr ? "NULL" : "set");
  }
  kvc::read_spans(read.spans, batch, &options.spans);
  return result;
}

kvc::kernels::TokenRows view_q(const LayerCall& call, const DLTensor* q) {
  return kvc::view_rows(
      q, {"q", call.num_rows, call.layer.num_q_heads, call.layer.k_dim, call.device()});
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
         call.id);
  }
}

void view_outputs(const LayerCall& call, const DLTensor* out, const DLTensor* lse,
                  AttnTensors* tensors) {
  tensors->out = kvc::view_rows(
      out, {"out", call.num_rows, call.layer.num_q_heads, call.layer.v_dim, call.device()});
  if (lse == nullptr) return;
  const kvc::F32Matrix matrix =
      kvc::view_f32_matrix(lse, "lse", call.num_rows, call.layer.num_q_heads, call.device());
  tensors->lse = matrix.data;
  tensors->lse_token_stride = matrix.row_stride;
}

void attend(const LayerCall& call, KeyScope scope, const CallOptions& options,
            const AttnTensors& tensors, bool is_mla_self = false) {
  call.cache.engine().attend(call.cache.forward(), {call.layer, scope, is_mla_self},
                             options.checked, tensors);
}

// k and v both or neither; K = V layers have no v.
bool has_new_rows(const LayerCall& call, const DLTensor* k, const DLTensor* v) {
  if (!call.layer.v_in_k && (k == nullptr) != (v == nullptr)) {
    fail(KVC_E_INVALID_ARGUMENT, "k is %s and v is %s: give both or neither",
         k == nullptr ? "NULL" : "set", v == nullptr ? "NULL" : "set");
  }
  return k != nullptr || v != nullptr;
}

// A call without new K and V reads slots that were filled before in this forward.
void require_appended(const LayerCall& call) {
  if (call.cache.forward().written().is_appended(call.layer.source) ||
      call.cache.host_can_write_pool())
    return;
  fail(KVC_E_INVALID_STATE,
       "layer %d: k and v are NULL, and nothing was appended to layer %d in this forward of %lld "
       "tokens",
       call.id, call.cache.spec().layer_begin + call.layer.source,
       static_cast<long long>(call.num_rows));
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
    const LayerCall call = open_layer(fwd, layer, "kvc_attn", kTokenKinds);
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    if (has_new_rows(call, k, v)) {
      if (call.layer.kind == KVC_LAYER_SHARED) {
        fail(KVC_E_INVALID_ARGUMENT, "k or v is set, but layer %d keeps nothing: it reads layer %d",
             layer, call.cache.spec().layer_begin + call.layer.source);
      }
      view_new_rows(call, k, v, call.num_rows, &tensors);
    } else {
      require_appended(call);
    }
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, k, v, out, lse, call.num_rows, call.num_rows}, options.read);
    attend(call, KeyScope::kAll, options, tensors);
  });
}

kvc_status kvc_attn_shared_kv(kvc_forward* fwd, int32_t source_layer, const kvc_attn_opt* opt,
                              const DLTensor* q, DLTensor* out, DLTensor* lse,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    LayerCall call = open_layer(fwd, source_layer, "kvc_attn_shared_kv",
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
    require_appended(call);
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, nullptr, nullptr, out, lse, call.num_rows, 0}, options.read);
    attend(call, KeyScope::kAll, options, tensors);
  });
}

kvc_status kvc_attn_fused_qkv(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt,
                              const DLTensor* qkv, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call =
        open_layer(fwd, layer, "kvc_attn_fused_qkv", kind_bit(KVC_LAYER_ATTENTION));
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
        qkv, {"qkv", call.num_rows, q_heads + 2 * kv_heads, call.layer.k_dim, call.device()});
    AttnTensors tensors{};
    tensors.q = rows;
    tensors.k = head_range(rows, q_heads);
    tensors.v = head_range(rows, q_heads + kv_heads);
    view_outputs(call, out, nullptr, &tensors);
    kvc::refuse_overlaps({qkv, nullptr, nullptr, out, nullptr, call.num_rows, 0, "qkv"},
                         options.read);
    attend(call, KeyScope::kAll, options, tensors);
  });
}

kvc_status kvc_attn_self(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt,
                         const DLTensor* q, const DLTensor* k, const DLTensor* v, DLTensor* out,
                         DLTensor* lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    LayerCall call = open_layer(fwd, layer, "kvc_attn_self",
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
      call.layer.latent_rank = 0;  // heads of known dim: the default scale is right
    }
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    view_new_rows(call, k, v, call.num_rows, &tensors);
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, k, v, out, lse, call.num_rows, call.num_rows}, options.read);
    attend(call, KeyScope::kNew, options, tensors, is_mla);
  });
}

kvc_status kvc_attn_cached(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt,
                           const DLTensor* q, DLTensor* out, DLTensor* lse,
                           kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_attn_cached", kTokenKinds);
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, nullptr, nullptr, out, lse, call.num_rows, 0}, options.read);
    attend(call, KeyScope::kCached, options, tensors);
  });
}

kvc_status kvc_attn_cross(kvc_forward* fwd, int32_t layer, const kvc_attn_opt* opt,
                          const DLTensor* q, const DLTensor* k, const DLTensor* v, DLTensor* out,
                          DLTensor* lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_attn_cross", kind_bit(KVC_LAYER_CROSS));
    const CallOptions options = options_of(call, opt);
    AttnTensors tensors{};
    tensors.q = view_q(call, q);
    const int64_t announced = call.cache.forward().batch().num_cross_rows();
    if (has_new_rows(call, k, v)) {
      if (announced == 0) {
        fail(KVC_E_INVALID_STATE,
             "layer %d: k and v are set, but cross_lengths announced 0 encoder tokens", layer);
      }
      view_new_rows(call, k, v, announced, &tensors);
    } else if (announced != 0) {
      require_appended(call);
    }
    view_outputs(call, out, lse, &tensors);
    kvc::refuse_overlaps({q, k, v, out, lse, call.num_rows, announced}, options.read);
    attend(call, KeyScope::kCross, options, tensors);
  });
}

kvc_status kvc_attn_merge(kvc_forward* fwd, DLTensor* out, DLTensor* lse, const DLTensor* other_out,
                          const DLTensor* other_lse, kvc_error* err) noexcept {
  return guard(err, [&] {
    Cache& cache = kvc::open_cache(fwd);
    const kvc::MergeCall merge = kvc::read_merge(
        out, lse, other_out, other_lse, cache.forward().batch().num_rows(), cache.spec().device);
    cache.engine().merge(merge.params, merge.num_rows);
  });
}

kvc_status kvc_kv_append(kvc_forward* fwd, int32_t layer, const DLTensor* k, const DLTensor* v,
                         kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_kv_append", kind_bit(KVC_LAYER_ATTENTION));
    AttnTensors tensors{};
    view_new_rows(call, k, v, call.num_rows, &tensors);
    call.cache.engine().append(call.cache.forward(), call.local, tensors.k, tensors.v);
  });
}

kvc_status kvc_mla_append(kvc_forward* fwd, int32_t layer, const DLTensor* latent,
                          kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call = open_layer(fwd, layer, "kvc_mla_append", kind_bit(KVC_LAYER_MLA));
    const kvc::kernels::TokenRows rows =
        kvc::view_latents(latent, "latent", call.num_rows, call.layer.k_dim, call.device());
    call.cache.engine().append(call.cache.forward(), call.local, rows, {});
  });
}

kvc_status kvc_kv_gather(kvc_forward* fwd, int32_t layer, kvc_seq seq, DLTensor* k_out,
                         DLTensor* v_out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const LayerCall call =
        open_layer(fwd, layer, "kvc_kv_gather", kTokenKinds | kind_bit(KVC_LAYER_CROSS));
    const kvc::Sequence& sequence = call.cache.sequences().get_on_device(seq, "gather");
    if (k_out == nullptr && v_out == nullptr)
      fail(KVC_E_INVALID_ARGUMENT, "k_out and v_out are both NULL: nothing to gather");
    if (call.layer.v_in_k && v_out != nullptr)
      fail(KVC_E_INVALID_ARGUMENT,
           "v_out is set, but V of layer %d lies in its K rows: expected NULL", layer);
    const bool is_cross = call.layer.kind == KVC_LAYER_CROSS;
    const int32_t group = call.cache.spec().layers[static_cast<size_t>(call.layer.source)].group;
    const kvc::PageTable& table = sequence.tables[static_cast<size_t>(group)];
    int64_t length = sequence.stored(is_cross);
    bool grows = false;
    if (sequence.in_forward()) {
      const auto index = static_cast<size_t>(sequence.batch_index);
      const kvc::BatchEntry& entry = call.cache.forward().batch().entries()[index];
      length = entry.new_stored(is_cross);
      grows = length > entry.old_stored(is_cross);
    }
    kvc::kernels::GatherParams params{
        .rows = {},
        .pages = table.pages.data(),
        .out = {},
        .page_size = call.cache.spec().groups[static_cast<size_t>(group)].page_size,
        .num_heads = call.layer.num_kv_heads,
        .dim = 0};
    kvc::kernels::TokenRows k_rows{}, v_rows{};
    if (k_out != nullptr)
      k_rows = kvc::view_rows(
          k_out, {"k_out", length, call.layer.num_kv_heads, call.layer.k_dim, call.device()});
    if (v_out != nullptr)
      v_rows = kvc::view_rows(
          v_out, {"v_out", length, call.layer.num_kv_heads, call.layer.v_dim, call.device()});
    kvc::refuse_overlap({k_out, "k_out", length}, {v_out, "v_out", length});
    if (!table.keeps(0, length)) {
      fail_with(KVC_E_OUT_OF_RANGE, table.kept_begin,
                "layer %d: a window of sequence %lld has dropped tokens before %lld", layer,
                static_cast<long long>(seq), static_cast<long long>(table.kept_begin));
    }
    if (grows && !call.cache.forward().written().is_appended(call.layer.source) &&
        !call.cache.host_can_write_pool()) {
      fail_with(KVC_E_INVALID_STATE, layer,
                "layer %d: nothing was appended to it in this forward, which grows sequence %lld",
                layer, static_cast<long long>(seq));
    }
    if (length == 0) return;
    if (k_out != nullptr) {
      params.rows = call.cache.pool().k_rows(call.layer.source), params.out = k_rows;
      params.dim = call.layer.k_dim;
      call.cache.engine().gather({call.layer.source, false}, params, length);
    }
    if (v_out != nullptr) {
      params.rows = call.cache.pool().v_rows(call.layer.source), params.out = v_rows;
      params.dim = call.layer.v_dim;
      call.cache.engine().gather({call.layer.source, true}, params, length);
    }
  });
}
