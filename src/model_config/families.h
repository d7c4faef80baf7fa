// Readers of model families, from the text configuration, which may be nested, to layers.
#pragma once

#include <string>
#include <vector>

#include "src/model_config/decoder.h"
#include "src/model_config/fields.h"

namespace kvc::hf {

// Decoders whose layers all keep K and V. They differ in data only.
struct DecoderTraits {
  enum class Windows {
    kNone,
    kAll,     // Every layer, when sliding_window is set (Mistral, Phi-3).
    kQwen,    // use_sliding_window: layer_types, else from max_window_layers on.
    kByType,  // layer_types, else every full_every-th layer has full attention.
  };
  Windows windows = Windows::kNone;
  int64_t full_every = 0;
  int64_t class_window = 0;      // Window when a nested configuration has none; 0: none.
  bool floors_head_dim = false;  // hidden_size / num_attention_heads is rounded down.
  bool rotates = true;
  bool rotates_full = true;  // False: only sliding layers rotate (Cohere 2).
  bool scales_local = true;  // False: rope_scaling is for full layers (OLMo 3).
  kvc_rope_style style = KVC_ROPE_HALF;
  double theta = 10000;
  double partial = 1;
  ClassDefaults defaults{};
};
void read_decoder(const Fields& config, const DecoderTraits& traits, Model& model);

using Reader = void (*)(const Fields& config, Model& model);

// decoder_models.cc
void read_llama4(const Fields& config, Model& model);
void read_mimo(const Fields& config, Model& model);
void read_mllama(const Fields& config, Model& model);
void read_modernbert_decoder(const Fields& config, Model& model);
void read_chatglm(const Fields& config, Model& model);
void read_gemma2(const Fields& config, Model& model);
void read_gemma3(const Fields& config, Model& model);
void read_gemma3n(const Fields& config, Model& model);
void read_gemma4(const Fields& config, Model& model);
void read_deepseek(const Fields& config, Model& model);
void read_kimi_linear(const Fields& config, Model& model);
void read_longcat(const Fields& config, Model& model);
// early_models.cc
void read_bloom(const Fields& config, Model& model);
void read_falcon(const Fields& config, Model& model);
void read_mpt(const Fields& config, Model& model);
void read_gpt2(const Fields& config, Model& model);
void read_gpt_neo(const Fields& config, Model& model);
void read_dbrx(const Fields& config, Model& model);
void read_gptj(const Fields& config, Model& model);
void read_gpt_neox(const Fields& config, Model& model);
void read_gpt_neox_japanese(const Fields& config, Model& model);
void read_t5(const Fields& config, Model& model);
void read_whisper(const Fields& config, Model& model);
void read_bart(const Fields& config, Model& model);
// recurrent_models.cc
void read_mamba(const Fields& config, Model& model);
void read_mamba2(const Fields& config, Model& model);
void read_jamba(const Fields& config, Model& model);
void read_bamba(const Fields& config, Model& model);
void read_granite_hybrid(const Fields& config, Model& model);
void read_falcon_h1(const Fields& config, Model& model);
void read_zamba2(const Fields& config, Model& model);
void read_nemotron_h(const Fields& config, Model& model);
void read_qwen3_next(const Fields& config, Model& model);
void read_qwen3_5(const Fields& config, Model& model);
void read_lfm2(const Fields& config, Model& model);
// looped_models.cc
void read_dory(const Fields& config, Model& model);
void read_inkling_loop(const Fields& config, Model& model);
// states_of_their_own.cc
void read_inkling(const Fields& config, Model& model);
void read_zaya(const Fields& config, Model& model);
void read_minimax(const Fields& config, Model& model);
void read_recurrent_gemma(const Fields& config, Model& model);
void read_zamba(const Fields& config, Model& model);

// Calls the reader of a model_type, or reads an unknown one by its keys and sets model.warning.
// Throws UNSUPPORTED for a type that is not served; the message says why.
void read_family(const std::string& model_type, const Fields& config, Model& model);

// Reads a model_type that is not known by the rules of the family `assumed`, and sets
// model.warning. `model_type` may be empty. Throws INVALID_ARGUMENT where the first is known or the
// second is not.
void read_assumed(const std::string& assumed, const std::string& model_type, const Fields& config,
                  Model& model);

// Throws UNSUPPORTED for a model_type that is not served.
void refuse_family(const std::string& model_type, const Fields& config);

// The family has a reader of its own: its keys do not say what it keeps.
bool has_own_reader(const std::string& model_type);

// Every model_type that read_family reads, in alphabetical order.
std::vector<std::string> family_names();

// What a token or a request of the family leaves behind, in a few words for people.
std::string family_keeps(const std::string& model_type);

}  // namespace kvc::hf
