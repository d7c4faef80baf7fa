#include <string>

#include "src/base/error.h"
#include "src/model_config/decoder.h"
#include "src/model_config/families.h"
#include "src/model_config/rope.h"
#include "src/plan/spec.h"

namespace kvc::hf {

// Decoders from before Llama, each with field names of its own. ALiBi and learned positions do not
// touch the cache.

namespace {

struct Names {
  const char* layers;
  const char* heads;
  const char* width;
};

Heads equal_heads(const Fields& config, const Names& names, int64_t kv = 0) {
  Heads heads;
  heads.q = config.integer(names.heads, 1, kMaxHeads);
  heads.kv = kv == 0 ? heads.q : kv;
  heads.k_dim =
      divide(config, names.width, config.integer(names.width, 1, kMaxWidth), names.heads, heads.q);
  if (heads.k_dim > kMaxHeadDim) {
    fail_with(KVC_E_OUT_OF_RANGE, heads.k_dim, "%s / %s = %lld out of range: 1 to %d",
              config.path(names.width).c_str(), names.heads, ll(heads.k_dim), kMaxHeadDim);
  }
  heads.v_dim = heads.k_dim;
  return heads;
}

void add_layers(const Fields& config, const Names& names, const Heads& heads, int32_t rope,
                Model& model) {
  check_heads(config, names.heads, heads, "the number of kv heads");
  const int64_t num_layers = config.integer(names.layers, 1, kMaxLayers);
  for (int64_t i = 0; i < num_layers; ++i) model.add(attention_layer(model, heads), rope);
}

int64_t length(const Fields& config, std::initializer_list<const char*> names) {
  return config.integer_or(config.first_of(names), 0, 1, kMaxSequenceLength);
}

}  // namespace

void read_bloom(const Fields& config, Model& model) {
  const Names names{config.first_of({"n_layer", "num_hidden_layers"}),
                    config.first_of({"n_head", "num_attention_heads"}),
                    config.first_of({"hidden_size", "n_embed"})};
  model.max_seq_len = length(config, {"seq_length"});
  add_layers(config, names, equal_heads(config, names), -1, model);
}

void read_falcon(const Fields& config, Model& model) {
  const Names names{config.first_of({"num_hidden_layers", "n_layer"}),
                    config.first_of({"num_attention_heads", "n_head"}), "hidden_size"};
  int64_t kv = 0;
  if (config.flag_or("new_decoder_architecture", false)) {
    kv = config.integer_or(config.first_of({"num_kv_heads", "n_head_kv"}), 0, 1, kMaxHeads);
  } else if (config.flag_or("multi_query", true)) {
    kv = 1;
  }
  const Heads heads = equal_heads(config, names, kv);
  const bool alibi = config.flag_or("alibi", false);
  model.max_seq_len =
      alibi ? 0 : config.integer_or("max_position_embeddings", 2048, 1, kMaxSequenceLength);
  RopeRequest request;
  request.dim = heads.k_dim;
  add_layers(config, names, heads, alibi ? -1 : add_rope(config, request, model), model);
}

void read_mpt(const Fields& config, Model& model) {
  const Names names{"n_layers", "n_heads", "d_model"};
  int64_t kv = 0;
  if (const auto attention = config.object("attn_config")) {
    const std::string type = attention->text_or("attn_type", "multihead_attention");
    if (type == "multiquery_attention") kv = 1;
    if (type == "grouped_query_attention") kv = attention->integer("kv_n_heads", 1, kMaxHeads);
    if (attention->flag_or("rope", false))
      attention->refuse("rope", "only ALiBi and learned positions are read");
  }
  model.max_seq_len = length(config, {"max_seq_len"});
  add_layers(config, names, equal_heads(config, names, kv), -1, model);
}

// Its local layers see window_size tokens. They are kept whole, as transformers keeps them.
void read_gpt_neo(const Fields& config, Model& model) {
  const Names names{config.first_of({"num_layers", "num_hidden_layers"}),
                    config.first_of({"num_heads", "num_attention_heads"}), "hidden_size"};
  model.max_seq_len = length(config, {"max_position_embeddings"});
  add_layers(config, names, equal_heads(config, names), -1, model);
}

void read_dbrx(const Fields& config, Model& model) {
  const Names names{"n_layers", "n_heads", "d_model"};
  int64_t kv = 1;
  RopeRequest request;
  if (const auto attention = config.object("attn_config")) {
    kv = attention->integer_or("kv_n_heads", 1, 1, kMaxHeads);
    request.theta = attention->number_or("rope_theta", request.theta);
  }
  const Heads heads = equal_heads(config, names, kv);
  request.dim = heads.k_dim;
  model.max_seq_len = length(config, {"max_seq_len"});
  add_layers(config, names, heads, add_rope(config, request, model), model);
}

// Also StarCoder: one kv head.
void read_gpt2(const Fields& config, Model& model) {
  const Names names{config.first_of({"n_layer", "num_hidden_layers"}),
                    config.first_of({"n_head", "num_attention_heads"}),
                    config.first_of({"n_embd", "hidden_size"})};
  model.max_seq_len = length(config, {"n_positions", "max_position_embeddings"});
  const int64_t kv = config.flag_or("multi_query", false) ? 1 : 0;
  add_layers(config, names, equal_heads(config, names, kv), -1, model);
}

void read_gptj(const Fields& config, Model& model) {
  const Names names{"n_layer", "n_head", "n_embd"};
  const Heads heads = equal_heads(config, names);
  model.max_seq_len = length(config, {"n_positions"});
  const int64_t rotary_dim = config.integer_or("rotary_dim", heads.k_dim, 2, heads.k_dim);
  RopeRequest request;
  request.dim = heads.k_dim;
  request.style = KVC_ROPE_INTERLEAVED;
  request.partial = static_cast<double>(rotary_dim) / static_cast<double>(heads.k_dim);
  add_layers(config, names, heads, add_rope(config, request, model), model);
}

void read_gpt_neox(const Fields& config, Model& model) {
  const Names names{"num_hidden_layers", "num_attention_heads", "hidden_size"};
  const Heads heads = equal_heads(config, names);
  model.max_seq_len = length(config, {"max_position_embeddings"});
  RopeRequest request;
  request.dim = heads.k_dim;
  request.partial = 0.25;
  request.theta_name = config.first_of({"rotary_emb_base", "rope_theta"});
  request.partial_name = "rotary_pct";
  add_layers(config, names, heads, add_rope(config, request, model), model);
}

void read_gpt_neox_japanese(const Fields& config, Model& model) {
  const Names names{"num_hidden_layers", "num_attention_heads", "hidden_size"};
  const Heads heads = equal_heads(config, names);
  model.max_seq_len = length(config, {"max_position_embeddings"});
  RopeRequest request;
  request.dim = heads.k_dim;
  request.theta_name = config.first_of({"rotary_emb_base", "rope_theta"});
  request.partial_name = "rotary_pct";
  add_layers(config, names, heads, add_rope(config, request, model), model);
}

// T5, Whisper, BART: the decoder alone keeps a cache. Entry 2i is the self attention of decoder
// layer i, entry 2i + 1 its K and V of the encoder's tokens. T5's relative bias and the learned
// positions of the others do not touch the cache.

namespace {

void add_pairs(const Model& shape, const Heads& heads, int64_t num_layers, Model& model) {
  for (int64_t i = 0; i < num_layers; ++i) {
    model.add(attention_layer(shape, heads));
    model.add(cross_layer(shape, heads));
  }
}

Heads decoder_heads(const Fields& config) {
  Heads heads;
  heads.q = heads.kv = config.integer("decoder_attention_heads", 1, kMaxHeads);
  const int64_t width = config.integer("d_model", 1, kMaxHeads * int64_t{kMaxHeadDim});
  heads.k_dim = heads.v_dim = divide(config, "d_model", width, "decoder_attention_heads", heads.q);
  if (heads.k_dim > kMaxHeadDim) config.refuse("d_model", "heads are wider than 512 elements");
  return heads;
}

}  // namespace

void read_t5(const Fields& config, Model& model) {
  Heads heads;
  heads.q = heads.kv = config.integer("num_heads", 1, kMaxHeads);
  heads.k_dim = heads.v_dim = config.integer("d_kv", 1, kMaxHeadDim);
  const int64_t encoder_layers = config.integer("num_layers", 1, kMaxLayers);
  model.max_seq_len = config.integer_or("n_positions", 0, 1, kMaxSequenceLength);
  add_pairs(model, heads, config.integer_or("num_decoder_layers", encoder_layers, 1, kMaxLayers),
            model);
}

void read_whisper(const Fields& config, Model& model) {
  model.max_seq_len = config.integer("max_target_positions", 1, kMaxSequenceLength);
  model.max_cross_len = config.integer("max_source_positions", 1, kMaxSequenceLength);
  add_pairs(model, decoder_heads(config), config.integer("decoder_layers", 1, kMaxLayers), model);
}

void read_bart(const Fields& config, Model& model) {
  model.max_seq_len = model.max_cross_len =
      config.integer_or("max_position_embeddings", 1024, 1, kMaxSequenceLength);
  add_pairs(model, decoder_heads(config), config.integer("decoder_layers", 1, kMaxLayers), model);
}

}  // namespace kvc::hf
