// Multi-head latent attention: DeepSeek V2 and V3, Kimi. Kimi-Linear mixes it with Kimi Delta
// Attention.
#include <vector>

#include "src/base/error.h"
#include "src/model_config/families.h"
#include "src/model_config/rope.h"
#include "src/model_config/states.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

kvc_layer latent_layer(const Fields& config, const Model& model) {
  kvc_layer layer{};
  layer.kind = KVC_LAYER_MLA;
  layer.num_q_heads = static_cast<int32_t>(config.integer("num_attention_heads", 1, kMaxHeads));
  layer.latent_rank = static_cast<int32_t>(config.integer("kv_lora_rank", 1, kMaxLatentDim));
  layer.latent_rope_dim = static_cast<int32_t>(
      config.integer("qk_rope_head_dim", 0, kMaxLatentDim - layer.latent_rank));
  const auto nope = static_cast<int32_t>(
      config.integer("qk_nope_head_dim", 0, kMaxHeadDim - layer.latent_rope_dim));
  layer.k_dim = nope + layer.latent_rope_dim;
  layer.v_dim = static_cast<int32_t>(config.integer("v_head_dim", 1, kMaxHeadDim));
  layer.k_dtype = layer.v_dtype = model.dtype;
  if (layer.latent_rope_dim % 2 != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, layer.latent_rope_dim,
              "%s = %d is odd: a rotation turns pairs", config.path("qk_rope_head_dim").c_str(),
              layer.latent_rope_dim);
  }
  if (layer.k_dim == 0) {
    fail(KVC_E_INVALID_ARGUMENT, "%s = 0 with qk_rope_head_dim = 0: a head has no elements",
         config.path("qk_nope_head_dim").c_str());
  }
  return layer;
}

int32_t latent_rope(const Fields& config, const kvc_layer& layer, Model& model) {
  if (layer.latent_rope_dim == 0) return -1;
  RopeRequest request;
  request.dim = layer.latent_rope_dim;
  request.style = config.flag_or("rope_interleave", true) ? KVC_ROPE_INTERLEAVED : KVC_ROPE_HALF;
  return add_rope(config, request, model);
}

// Keys of a sparse attention's indexer are kept per token beside the latent.
void refuse_indexer(const Fields& config) {
  for (const char* name : {"index_head_dim", "index_n_heads", "index_topk"}) {
    if (config.has(name))
      config.refuse(name, "indexer keys of DeepSeek sparse attention have no layer kind");
  }
}

// Layer numbers that count from one. Throws INVALID_ARGUMENT for a layer that is not there.
void mark(const Fields& list, const char* name, LayerType type, std::vector<LayerType>* types) {
  for (const int64_t number : list.integers(name, 1, static_cast<int64_t>(types->size())))
    (*types)[number - 1] = type;
}

}  // namespace

void read_deepseek(const Fields& config, Model& model) {
  refuse_indexer(config);
  const int64_t num_layers = read_num_layers(config);
  model.max_seq_len = read_max_len(config);
  const kvc_layer layer = latent_layer(config, model);
  const int32_t rope = latent_rope(config, layer, model);
  for (int64_t i = 0; i < num_layers; ++i) model.add(layer, rope);
}

void read_kimi_linear(const Fields& config, Model& model) {
  refuse_indexer(config);
  const int64_t num_layers = read_num_layers(config);
  const char* max_len = config.first_of({"model_max_length", "max_position_embeddings"});
  model.max_seq_len = config.integer_or(max_len, 0, 1, kMaxSequenceLength);
  const kvc_layer layer = latent_layer(config, model);
  const int32_t rope =
      config.flag_or("mla_use_nope", false) ? -1 : latent_rope(config, layer, model);
  const auto linear = config.object("linear_attn_config");
  std::vector<LayerType> types(static_cast<size_t>(num_layers),
                               linear ? LayerType::kNone : LayerType::kFull);
  int32_t states = -1;
  if (linear) {
    mark(*linear, "kda_layers", LayerType::kLinear, &types);
    mark(*linear, "full_attn_layers", LayerType::kFull, &types);
    const int64_t heads = linear->integer("num_heads", 1, kMaxHeads);
    const int64_t dim = linear->integer("head_dim", 1, kMaxHeadDim);
    const int64_t kernel = linear->integer_or("short_conv_kernel_size", 4, 2, kMaxKernel);
    // One short convolution each for q, k and v, then the delta rule's state.
    const State conv = conv_state(model, heads * dim, kernel);
    states = model.state_set({conv, conv, conv, recurrent_state(config, model, {heads, dim, dim})});
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == LayerType::kNone) {
      fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(i + 1),
                "%s has layer %zu neither in kda_layers nor in full_attn_layers",
                config.path("linear_attn_config").c_str(), i + 1);
    }
    if (types[i] == LayerType::kLinear)
      model.add_states(states);
    else
      model.add(layer, rope);
  }
}

}  // namespace kvc::hf
