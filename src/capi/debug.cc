// kvcache.h, section "Debug".
#include <algorithm>

#include "src/base/error.h"
#include "src/base/overlap.h"
#include "src/base/tensor.h"
#include "src/capi/call.h"
#include "src/plan/spec.h"

namespace {

using kvc::CacheCall;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::LayerRows;
using kvc::LayerSpec;
using kvc::ReadCall;
using kvc::require;
using kvc::Spec;

// The number of tokens in a dimension of a tensor; 0 for a tensor that a later check refuses.
int64_t tokens_of(const DLTensor* tensor, int32_t rank, int32_t dimension, const char* name) {
  if (tensor == nullptr || tensor->ndim != rank || tensor->shape == nullptr) return 0;
  const int64_t count = tensor->shape[dimension];
  if (count < 0) {
    fail_with(KVC_E_SHAPE, count, "%s has shape[%d] = %lld, expected at least 0", name, dimension,
              static_cast<long long>(count));
  }
  return count;
}

void require_any(const DLTensor* k, const DLTensor* v) {
  if (k == nullptr && v == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "k and v are both NULL: nothing to copy");
}

void require_same_tokens(const DLTensor* v, int32_t dimension, int64_t count) {
  if (v != nullptr && v->shape[dimension] != count) {
    fail_with(KVC_E_SHAPE, v->shape[dimension], "v has shape[%d] = %lld, k has %lld", dimension,
              static_cast<long long>(v->shape[dimension]), static_cast<long long>(count));
  }
}

// The rows of the ATTENTION layers inside k and v, each [layers, n, heads, dim] with at least the
// heads and dims of the largest layer.
std::vector<LayerRows> attention_rows(const Spec& spec, const DLTensor* k, const DLTensor* v,
                                      int64_t num_tokens) {
  require_any(k, v);
  int32_t heads = 0, k_dim = 0, v_dim = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.kind != KVC_LAYER_ATTENTION) continue;
    heads = std::max(heads, layer.num_kv_heads);
    k_dim = std::max(k_dim, layer.k_dim);
    v_dim = std::max(v_dim, layer.v_dim);
  }
  if (heads == 0) {
    fail(KVC_E_UNSUPPORTED, "none of the %d layers here is of kind ATTENTION (%d)",
         spec.num_local_layers(), KVC_LAYER_ATTENTION);
  }
  std::vector<LayerRows> rows;
  const int64_t num_layers = spec.num_local_layers();
  for (int32_t i = 0; i < spec.num_local_layers(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    LayerRows views{i, {}, {}};
    // Tensors are checked in full, for layers of other kinds too.
    if (k != nullptr)
      views.k =
          kvc::view_layer_rows(k, {"k", num_tokens, heads, k_dim, spec.device}, num_layers, i);
    if (v != nullptr)
      views.v =
          kvc::view_layer_rows(v, {"v", num_tokens, heads, v_dim, spec.device}, num_layers, i);
    if (layer.kind != KVC_LAYER_ATTENTION) continue;
    if (layer.v_in_k) views.v = {};
    rows.push_back(views);
  }
  return rows;
}

std::vector<LayerRows> latent_rows(const Spec& spec, const DLTensor* latent, int64_t num_tokens) {
  int32_t dim = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.kind == KVC_LAYER_MLA) dim = std::max(dim, layer.k_dim);
  }
  if (dim == 0) {
    fail(KVC_E_UNSUPPORTED, "none of the %d layers here is of kind MLA (%d)",
         spec.num_local_layers(), KVC_LAYER_MLA);
  }
  std::vector<LayerRows> rows;
  for (int32_t i = 0; i < spec.num_local_layers(); ++i) {
    const auto view = kvc::view_layer_latents(latent, "latent", num_tokens, dim,
                                              spec.num_local_layers(), i, spec.device);
    if (spec.layers[i].kind == KVC_LAYER_MLA) rows.push_back({i, view, {}});
  }
  return rows;
}

// The rows of one layer of any kind that reads pages.
std::vector<LayerRows> layer_rows(const kvc::Cache& cache, int32_t layer, const DLTensor* k,
                                  const DLTensor* v, int64_t num_tokens) {
  require_any(k, v);
  const int32_t local = cache.debug.require_layer(layer);
  const LayerSpec& spec = cache.spec().layers[local];
  const LayerSpec& source = cache.spec().layers[spec.source];
  if (!source.keeps_pages()) {
    fail_with(KVC_E_UNSUPPORTED, spec.kind, "layer %d is of kind %s (%d), which keeps no pages",
              layer, kvc::layer_kind_name(spec.kind), spec.kind);
  }
  if (v != nullptr && source.v_in_k) {
    fail_with(KVC_E_INVALID_ARGUMENT, layer,
              "v is set, but V of layer %d lies in its K rows: expected NULL", layer);
  }
  LayerRows rows{spec.source, {}, {}};
  if (k != nullptr)
    rows.k = kvc::view_rows(
        k, {"k", num_tokens, source.num_kv_heads, source.k_dim, cache.spec().device});
  if (v != nullptr)
    rows.v = kvc::view_rows(
        v, {"v", num_tokens, source.num_kv_heads, source.v_dim, cache.spec().device});
  return {rows};
}

// Number of tokens that a call reads. The cache, which knows the sequence, refuses a range that is
// none.
int64_t range_length(int64_t begin, int64_t end) {
  return begin < 0 || end < begin ? 0 : end - begin;
}

struct StateRef {
  int32_t local;
  const std::vector<int64_t>& shape;
};

// A layer of another kind is UNSUPPORTED here, not INVALID_STATE as for calls on a forward.
StateRef state_of(const kvc::Cache& cache, int32_t layer, int32_t state) {
  const int32_t local = cache.debug.require_layer(layer);
  const LayerSpec& spec = cache.spec().layers[local];
  if (spec.kind != KVC_LAYER_STATE) {
    fail_with(KVC_E_UNSUPPORTED, spec.kind, "layer %d is of kind %s (%d), expected STATE (%d)",
              layer, kvc::layer_kind_name(spec.kind), spec.kind, KVC_LAYER_STATE);
  }
  if (state < 0 || static_cast<size_t>(state) >= spec.states.size()) {
    fail_with(KVC_E_OUT_OF_RANGE, state, "state %d out of range: layer %d has %zu states", state,
              layer, spec.states.size());
  }
  return {local, spec.states[state].shape};
}

}  // namespace

kvc_status kvc_debug_get_kv(const kvc_cache* cache, kvc_seq seq, int64_t begin, int64_t end,
                            DLTensor* k, DLTensor* v, kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    call->debug.require_storage("kvc_debug_get_kv");
    call->debug.require_tokens(seq, begin, end);
    const int64_t count = range_length(begin, end);
    const std::vector<LayerRows> rows = attention_rows(call->spec(), k, v, count);
    kvc::refuse_overlap({k, "k", count, 1}, {v, "v", count, 1});
    call->debug.read_tokens(seq, begin, end, rows, stream);
  });
}

kvc_status kvc_debug_set_kv(kvc_cache* cache, kvc_seq seq, int64_t begin, const DLTensor* k,
                            const DLTensor* v, kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call->debug.require_storage("kvc_debug_set_kv");
    call->debug.require_idle(seq, "set tokens of");
    const int64_t count = tokens_of(k != nullptr ? k : v, 4, 1, k != nullptr ? "k" : "v");
    const std::vector<LayerRows> rows = attention_rows(call->spec(), k, v, count);
    require_same_tokens(v, 1, count);
    call.enqueue_on(stream);
    call->debug.write_tokens(seq, begin, count, rows, stream);
    call.finish();
  });
}

kvc_status kvc_debug_get_mla(const kvc_cache* cache, kvc_seq seq, int64_t begin, int64_t end,
                             DLTensor* latent, kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    call->debug.require_storage("kvc_debug_get_mla");
    call->debug.require_tokens(seq, begin, end);
    call->debug.read_tokens(seq, begin, end,
                            latent_rows(call->spec(), latent, range_length(begin, end)), stream);
  });
}

kvc_status kvc_debug_set_mla(kvc_cache* cache, kvc_seq seq, int64_t begin, const DLTensor* latent,
                             kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call->debug.require_storage("kvc_debug_set_mla");
    call->debug.require_idle(seq, "set tokens of");
    const int64_t count = tokens_of(latent, 3, 1, "latent");
    call.enqueue_on(stream);
    call->debug.write_tokens(seq, begin, count, latent_rows(call->spec(), latent, count), stream);
    call.finish();
  });
}

kvc_status kvc_debug_get_layer(const kvc_cache* cache, kvc_seq seq, int32_t layer, int64_t begin,
                               int64_t end, DLTensor* k, DLTensor* v, kvc_stream stream,
                               kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    call->debug.require_storage("kvc_debug_get_layer");
    call->debug.require_on_device(seq, "read");
    const int64_t count = range_length(begin, end);
    const std::vector<LayerRows> rows = layer_rows(*call, layer, k, v, count);
    kvc::refuse_overlap({k, "k", count}, {v, "v", count});
    call->debug.read_tokens(seq, begin, end, rows, stream);
  });
}

kvc_status kvc_debug_set_layer(kvc_cache* cache, kvc_seq seq, int32_t layer, int64_t begin,
                               const DLTensor* k, const DLTensor* v, kvc_stream stream,
                               kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call->debug.require_storage("kvc_debug_set_layer");
    call->debug.require_idle(seq, "set tokens of");
    const int64_t count = tokens_of(k != nullptr ? k : v, 3, 0, k != nullptr ? "k" : "v");
    const std::vector<LayerRows> rows = layer_rows(*call, layer, k, v, count);
    require_same_tokens(v, 0, count);
    call.enqueue_on(stream);
    call->debug.write_tokens(seq, begin, count, rows, stream);
    call.finish();
  });
}

kvc_status kvc_debug_get_state(const kvc_cache* cache, kvc_seq seq, int32_t layer, int32_t state,
                               DLTensor* out, kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    call->debug.require_storage("kvc_debug_get_state");
    call->debug.require_on_device(seq, "read");
    const StateRef ref = state_of(*call, layer, state);
    call->debug.read_state(seq, ref.local, state,
                           kvc::view_state(out, "out", ref.shape, call->spec().device), stream);
  });
}

kvc_status kvc_debug_set_state(kvc_cache* cache, kvc_seq seq, int32_t layer, int32_t state,
                               const DLTensor* value, kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call->debug.require_storage("kvc_debug_set_state");
    call->debug.require_idle(seq, "set the state of");
    const StateRef ref = state_of(*call, layer, state);
    call.enqueue_on(stream);
    call->debug.write_state(seq, ref.local, state,
                            kvc::view_state(value, "value", ref.shape, call->spec().device),
                            stream);
  });
}
