// T5, Whisper, BART: the decoder alone keeps a cache. Entry 2i is the self attention of decoder
// layer i, entry 2i + 1 its K and V of the encoder's tokens. T5's relative bias and the learned
// positions of the others do not touch the cache.
#include "src/model_config/families.h"
#include "src/model_config/states.h"
#include "src/plan/spec.h"

namespace kvc::hf {
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
