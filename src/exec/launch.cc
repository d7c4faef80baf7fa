#include "src/exec/launch.h"

#include <climits>

namespace kvc {

using kernels::AppendParams;
using kernels::AttnParams;
using kernels::TokenRows;

KeySelection key_selection(const Spec& spec, const AttnCall& call, const AttnOptions& options) {
  const LayerSpec& source = spec.layers[call.layer.source];
  const bool on_read = spec.rotates_on_read(call.layer.rope);
  return {.scope = call.scope,
          .group = source.group,
          .window = options.window,
          .needs_positions = on_read || options.has_alibi(),
          .rope = on_read ? call.layer.rope : -1};
}

AttnParams attn_params(const LayerSpec& layer, int32_t page_size, bool causal,
                       const AttnOptions& options, const AttnTensors& tensors) {
  AttnParams params{};
  params.q = tensors.q;
  params.page_size = page_size;
  params.num_q_heads = layer.num_q_heads;
  params.num_kv_heads = layer.num_kv_heads;
  params.k_dim = layer.k_dim;
  params.v_dim = layer.v_dim;
  params.causal = causal ? 1 : 0;
  apply_options(options, &params);
  params.out = tensors.out;
  params.lse = tensors.lse;
  params.lse_token_stride = tensors.lse_token_stride;
  return params;
}

AppendParams append_params(const LayerSpec& layer, int32_t page_size, const TokenRows& k,
                           const TokenRows& v) {
  AppendParams params{};
  params.k = k;
  params.v = v;
  params.page_size = page_size;
  params.num_kv_heads = layer.num_kv_heads;
  params.k_dim = layer.k_dim;
  params.v_dim = layer.v_dim;
  return params;
}

NewKeyBytes new_key_bytes(const LayerSpec& layer) {
  const auto scale_bytes = [&](kvc_quant quant) {
    return quant == KVC_QUANT_PER_TOKEN_HEAD
               ? layer.num_kv_heads * static_cast<int64_t>(sizeof(float))
               : 0;
  };
  return {layer.num_kv_heads * layer.k_dim * kernels::dtype_bytes(layer.k_dtype),
          layer.num_kv_heads * layer.v_dim * kernels::dtype_bytes(layer.v_dtype),
          scale_bytes(layer.k_quant), scale_bytes(layer.v_quant)};
}

void place_new_keys(const LayerSpec& layer, int64_t num_rows, std::byte* k, std::byte* v,
                    AttnParams* params) {
  const NewKeyBytes bytes = new_key_bytes(layer);
  const auto rows = [&](std::byte* base, int64_t token_bytes, int64_t scale_token,
                        kernels::DType dtype, float scale) {
    kernels::PagedRows placed{base, token_bytes, token_bytes / layer.num_kv_heads, token_bytes,
                              dtype};
    placed.scales.shared = scale;
    if (scale_token != 0) {
      placed.scales = {.base = base + NewKeyBytes::scales_at(num_rows * token_bytes),
                       .page_stride = scale_token,
                       .head_stride = sizeof(float),
                       .token_stride = scale_token};
    }
    return placed;
  };
  params->k = rows(k, bytes.k_token, bytes.k_scale_token, layer.k_dtype, layer.k_scale);
  params->v = v == nullptr
                  ? params->k
                  : rows(v, bytes.v_token, bytes.v_scale_token, layer.v_dtype, layer.v_scale);
  params->page_size = INT_MAX;
}

AppendParams stage_params(AppendParams append, const AttnParams& params, const int64_t* slots) {
  append.k_rotation.begin = params.q_rotation.begin;
  append.k_pages = params.k;
  append.v_pages = params.v;
  append.slots = slots;
  append.page_size = INT_MAX;
  return append;
}

}  // namespace kvc
