// model_type to reader. A family that no table names is read by its keys.
#include "src/model_config/families.h"

#include <algorithm>
#include <iterator>

#include "src/base/close_name.h"
#include "src/base/error.h"
#include "src/model_config/keys.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

using Windows = DecoderTraits::Windows;

constexpr DecoderTraits plain(double theta = 10000, double partial = 1) {
  DecoderTraits traits;
  traits.theta = theta;
  traits.partial = partial;
  return traits;
}

constexpr DecoderTraits windowed(Windows windows, int64_t full_every, double theta = 10000,
                                 double partial = 1) {
  DecoderTraits traits = plain(theta, partial);
  traits.windows = windows;
  traits.full_every = full_every;
  return traits;
}

constexpr DecoderTraits interleaved(double partial = 1) {
  DecoderTraits traits = plain(10000, partial);
  traits.style = KVC_ROPE_INTERLEAVED;
  return traits;
}

constexpr DecoderTraits cohere2() {
  DecoderTraits traits = interleaved();
  traits.windows = Windows::kByType;
  traits.full_every = 4;
  traits.rotates_full = false;
  return traits;
}

constexpr DecoderTraits olmo3() {
  DecoderTraits traits = windowed(Windows::kByType, 4);
  traits.scales_local = false;
  return traits;
}

constexpr DecoderTraits with(DecoderTraits traits, ClassDefaults defaults) {
  traits.defaults = defaults;
  return traits;
}

constexpr DecoderTraits mistral() {
  DecoderTraits traits = windowed(Windows::kAll, 0);
  traits.class_window = 4096;
  return traits;
}

constexpr DecoderTraits glm4_moe() {
  DecoderTraits traits = plain(10000, 0.5);
  traits.floors_head_dim = true;
  return traits;
}

constexpr DecoderTraits unrotated() {
  DecoderTraits traits;
  traits.rotates = false;
  return traits;
}

const DecoderTraits kLlama = with(plain(), {32, 32, 0, 4096, 0, 2048});
const DecoderTraits kMistral = with(mistral(), {32, 32, 8, 4096, 0, 131072});
const DecoderTraits kQwen = windowed(Windows::kQwen, 0);
const DecoderTraits kQwen2Vl =
    with(windowed(Windows::kQwen, 0, 1000000), {80, 64, 8, 8192, 0, 32768});
const DecoderTraits kQwen3Vl = with(plain(5000000), {32, 32, 32, 4096, 128, 128000});

// Families whose meaning is not in their keys, a line each with its reason. `read` is null for
// those that differ in traits only.
struct Exception {
  const char* model_type;
  Reader read;
  DecoderTraits traits;
  const char* reason;
};

constexpr const char* kNames = "its keys have names of their own";
constexpr const char* kNested = "a nested file leaves out what its class knows";
constexpr const char* kRotation = "how its heads rotate is not in the file";
constexpr const char* kUnrotated = "its heads do not rotate, and no key says so";
constexpr const char* kWindows = "which layers slide where layer_types is missing";

const Exception kExceptions[] = {
    {"llama", nullptr, kLlama, kNested},
    {"mistral", nullptr, kMistral, kNested},
    {"ministral", nullptr, windowed(Windows::kByType, kMaxLayers), kWindows},
    {"ministral3", nullptr, with(windowed(Windows::kAll, 0), {34, 32, 8, 4096, 128, 262144}),
     kNested},
    {"mixtral", nullptr, windowed(Windows::kAll, 0, 1000000), kWindows},
    {"qwen2", nullptr, with(kQwen, {32, 32, 32, 4096, 0, 32768}), kNested},
    {"qwen2_moe", nullptr, kQwen, kWindows},
    {"qwen2_vl", nullptr, kQwen2Vl, kNested},
    {"qwen2_vl_text", nullptr, kQwen2Vl, kNested},
    {"qwen2_5_vl", nullptr, kQwen2Vl, kNested},
    {"qwen2_5_vl_text", nullptr, kQwen2Vl, kNested},
    {"qwen3", nullptr, with(kQwen, {32, 32, 32, 4096, 128, 32768}), kNested},
    {"qwen3_moe", nullptr, kQwen, kWindows},
    {"qwen3_vl", nullptr, kQwen3Vl, kNested},
    {"qwen3_vl_text", nullptr, kQwen3Vl, kNested},
    {"qwen3_vl_moe", nullptr, kQwen3Vl, kNested},
    {"qwen3_vl_moe_text", nullptr, with(plain(5000000), {24, 16, 16, 2048, 0, 128000}), kNested},
    {"gemma", nullptr, with(plain(), {28, 16, 16, 3072, 256, 8192}), kNested},
    {"phi", nullptr, plain(10000, 0.5), kRotation},
    {"phi3", nullptr, windowed(Windows::kAll, 0), kWindows},
    {"phi3_v", nullptr, windowed(Windows::kAll, 0), kWindows},
    {"phi4mm", nullptr, windowed(Windows::kAll, 0), kWindows},
    {"phi4_multimodal", nullptr, windowed(Windows::kAll, 0), kWindows},
    {"phimoe", nullptr, windowed(Windows::kAll, 0, 1000000), kWindows},
    {"glm", nullptr, interleaved(0.5), kRotation},
    {"glm4", nullptr, interleaved(0.5), kRotation},
    {"glm4_moe", nullptr, glm4_moe(), "its head_dim is rounded down where it is missing"},
    {"cohere", nullptr, interleaved(), kRotation},
    {"cohere2", nullptr, cohere2(), kWindows},
    {"gpt_oss", nullptr, windowed(Windows::kByType, 2, 150000), kWindows},
    {"olmo", nullptr, plain(), kRotation},
    {"olmo2", nullptr, plain(), kRotation},
    {"olmo3", nullptr, olmo3(), kWindows},
    {"olmoe", nullptr, plain(), kRotation},
    {"granite", nullptr, plain(), kRotation},
    {"granitemoe", nullptr, plain(), kRotation},
    {"granitemoeshared", nullptr, plain(), kRotation},
    {"stablelm", nullptr, plain(10000, 0.25), kRotation},
    {"starcoder2", nullptr, windowed(Windows::kAll, 0), kWindows},
    {"opt", nullptr, unrotated(), kUnrotated},
    {"llama4",
     read_llama4,
     {},
     "no_rope_layers says which layers are chunked where layer_types is missing"},
    {"llama4_text",
     read_llama4,
     {},
     "no_rope_layers says which layers are chunked where layer_types is missing"},
    {"mllama", read_mllama, {}, "cross_attention_layers lists layers that see the image alone"},
    {"mllama_text_model",
     read_mllama,
     {},
     "cross_attention_layers lists layers that see the image alone"},
    {"mimo_v2",
     read_mimo,
     {},
     "sliding layers have heads of their own, twice as many where no key says"},
    {"mimo_v2_flash",
     read_mimo,
     {},
     "sliding layers have heads of their own, twice as many where no key says"},
    {"chatglm", read_chatglm, {}, kNames},
    {"gemma2", read_gemma2, {}, "every second layer slides where layer_types is missing"},
    {"gemma3", read_gemma3, {}, kNested},
    {"gemma3_text", read_gemma3, {}, kNested},
    {"gemma3n", read_gemma3n, {}, kNested},
    {"gemma3n_text", read_gemma3n, {}, kNested},
    {"gemma4",
     read_gemma4,
     {},
     "full layers have the heads of global_head_dim or per_layer_config"},
    {"gemma4_text",
     read_gemma4,
     {},
     "full layers have the heads of global_head_dim or per_layer_config"},
    {"deepseek_v2", read_deepseek, {}, "how its latents rotate is not in the file"},
    {"deepseek_v3", read_deepseek, {}, "how its latents rotate is not in the file"},
    {"kimi_k2", read_deepseek, {}, "how its latents rotate is not in the file"},
    {"kimi_linear", read_kimi_linear, {}, "linear_attn_config counts layers from one"},
    {"bloom", read_bloom, {}, kNames},
    {"falcon", read_falcon, {}, kNames},
    {"RefinedWeb", read_falcon, {}, kNames},
    {"RefinedWebModel", read_falcon, {}, kNames},
    {"mpt", read_mpt, {}, kNames},
    {"gpt2", read_gpt2, {}, kNames},
    {"gpt_bigcode", read_gpt2, {}, kNames},
    {"gptj", read_gptj, {}, kNames},
    {"gpt_neox", read_gpt_neox, {}, kNames},
    {"mamba", read_mamba, {}, "its keys of states have short names"},
    {"falcon_mamba", read_mamba, {}, "its keys of states have short names"},
    {"mamba2", read_mamba2, {}, "its keys of states have short names"},
    {"jamba", read_jamba, {}, "a period says which layers attend"},
    {"bamba", read_bamba, {}, "attn_layer_indices lists the layers that attend"},
    {"granitemoehybrid",
     read_granite_hybrid,
     {},
     "position_embedding_type says whether heads rotate"},
    {"falcon_h1", read_falcon_h1, {}, "every layer attends and has a state, and no key says so"},
    {"zamba2", read_zamba2, {}, "hybrid layers attend with a shared block of twice the width"},
    {"nemotron_h", read_nemotron_h, {}, "hybrid_override_pattern has a letter per block"},
    {"qwen3_next", read_qwen3_next, {}, "full_attention_interval says which layers attend"},
    {"qwen3_5", read_qwen3_5, {}, "full_attention_interval says which layers attend"},
    {"qwen3_5_text", read_qwen3_5, {}, "full_attention_interval says which layers attend"},
    {"qwen3_5_moe", read_qwen3_5, {}, "full_attention_interval says which layers attend"},
    {"qwen3_5_moe_text", read_qwen3_5, {}, "full_attention_interval says which layers attend"},
    {"lfm2", read_lfm2, {}, "full_attn_idxs lists the layers that attend"},
    {"lfm2_moe", read_lfm2, {}, "full_attn_idxs lists the layers that attend"},
    {"t5", read_t5, {}, kNames},
    {"mt5", read_t5, {}, kNames},
    {"umt5", read_t5, {}, kNames},
    {"whisper", read_whisper, {}, "two keys say the lengths of encoder and decoder"},
    {"bart", read_bart, {}, "the decoder keeps K and V of the encoder too"},
    {"mbart", read_bart, {}, "the decoder keeps K and V of the encoder too"},
    {"gpt_neo", read_gpt_neo, {}, "transformers keeps every token of its local layers"},
    {"gpt_neox_japanese", read_gpt_neox_japanese, {}, "it decodes, and its is_decoder is false"},
    {"dbrx", read_dbrx, {}, "its KV heads are in attn_config"},
    {"longcat_flash", read_longcat, {}, "a layer attends twice and has two caches"},
    {"inkling_text",
     read_inkling,
     {},
     "four convolutions a layer, over K, V and the block's outputs"},
    {"inkling2_text",
     read_inkling,
     {},
     "four convolutions a layer, over K, V and the block's outputs"},
    {"inkling2_loop_text",
     read_inkling_loop,
     {},
     "some layers run several times, and each pass has caches of its own"},
    {"dory", read_dory, {}, "some layers run several times, and each pass has caches of its own"},
    {"modernbert-decoder",
     read_modernbert_decoder,
     {},
     "its window is half of local_attention, and layers count from zero"},
    {"zaya", read_zaya, {}, "a convolution over Q and K, and half of the last V"},
    {"minimax", read_minimax, {}, "no key says the shape of lightning attention's state"},
    {"minimax_m1", read_minimax, {}, "no key says the shape of lightning attention's state"},
    {"minimax_text_01", read_minimax, {}, "no key says the shape of lightning attention's state"},
    {"recurrent_gemma",
     read_recurrent_gemma,
     {},
     "block_types repeats, and its states have keys of their own"},
    {"zamba", read_zamba, {}, "hybrid layers attend with a shared block of twice the width"},
};

// Families that the keys say everything about, compared with transformers by tests/clients/hf.
constexpr const char* kByKeys[] = {
    "afmoe",
    "apertus",
    "apertus1p5_text",
    "arcee",
    "aria_text",
    "axk1",
    "bailing_hybrid",
    "beam",
    "bert",
    "bert-generation",
    "big_bird",
    "bigbird_pegasus",
    "biogpt",
    "bitnet",
    "blenderbot",
    "blenderbot-small",
    "camembert",
    "codegen",
    "cohere2_moe",
    "cohere_compass_text",
    "cpmant",
    "ctrl",
    "cwm",
    "data2vec-text",
    "diffllama",
    "doge",
    "dots1",
    "electra",
    "emu3_text_model",
    "ernie",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone",
    "exaone4",
    "exaone_moe",
    "flex_olmo",
    "flint",
    "gemma4_unified_text",
    "git",
    "glm4_moe_lite",
    "granite_swa",
    "granitemoe_swa",
    "helium",
    "hrm_text",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hyperclovax",
    "internlm3",
    "iquestcoder",
    "jais2",
    "jetmoe",
    "kolibri1",
    "laguna",
    "lara_mini",
    "lfm3",
    "marian",
    "megatron-bert",
    "mellum",
    "minicpm3",
    "minimax_m2",
    "moshi",
    "mvp",
    "nanochat",
    "nemotron",
    "olmo_hybrid",
    "pegasus",
    "persimmon",
    "plbart",
    "prophetnet",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "sarvam_mla",
    "sarvam_moe",
    "seed_oss",
    "smollm3",
    "solar_open",
    "vaultgemma",
    "xglm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
    "youtu",
};

struct Refusal {
  const char* model_type;
  const char* reason;
};

constexpr const char* kIndexed = "keys of a sparse attention's index have no layer kind";
constexpr const char* kOwnCache =
    "it keeps its past in a cache of its own, not in K and V per token";

constexpr Refusal kRefusals[] = {
    {"deepseek_v32", "indexer keys of DeepSeek sparse attention have no layer kind"},
    {"glm_moe_dsa", "indexer keys of DeepSeek sparse attention have no layer kind"},
    {"deepseek_v4", "compressed tokens beside a window have no layer kind"},
    {"minimax_m3_vl", kIndexed},
    {"minimax_m3_vl_text", kIndexed},
    {"qwen4_exp", kIndexed},
    {"qwen4_exp_text", kIndexed},
    {"openai-gpt", "it keeps no cache: every forward computes all tokens"},
    {"reformer", "it keeps hashed buckets beside its hidden states"},
    {"rwkv", kOwnCache},
    {"xlm", "it keeps no cache in this form: its attention has no causal mask"},
    {"xlnet", "it keeps hidden states (mems), not K and V"},
    {"xlstm", kOwnCache},
    {"blt", "its three parts keep caches of bytes and of patches"},
    {"musicgen", "its decoder is in a nested configuration beside that of the text encoder"},
    {"musicgen_melody", "its decoder is in a nested configuration beside that of the text encoder"},
    {"musicgen_decoder", "it attends to a text encoder whose width is in another configuration"},
    {"musicgen_melody_decoder", "its prompt's length comes from an encoder of sound"},
    {"gemma4_assistant", "it drafts from the cache of another model"},
    {"gemma4_unified_assistant", "it drafts from the cache of another model"},
    {"trocr", "it attends to an image encoder whose width is in another configuration"},
};

template <typename Table>
auto find(const Table& table, const std::string& model_type) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [&](const auto& row) { return model_type == row.model_type; });
  return found == std::end(table) ? nullptr : &*found;
}

}  // namespace

namespace {

// " (a known one is 'llama')" for "lama"; empty where no name is close.
std::string known_one(const std::string& model_type) {
  const std::string name = close_name(model_type, family_names());
  return name.empty() ? name : " (a known one is '" + name + "')";
}

// One line for the caller's log: which keys an unknown family was read by.
std::string doubt(const std::string& model_type, const Model& model) {
  std::string text = "model_type '" + shown(model_type) + "' is not known" + known_one(model_type) +
                     ": it is read by its keys";
  const char* separator = ": ";
  for (const std::string& key : model.keys) {
    text += separator + key;
    separator = ", ";
  }
  return text + "; rotations are left to the model";
}

}  // namespace

void refuse_family(const std::string& model_type, const Fields& config) {
  if (const Refusal* row = find(kRefusals, model_type)) {
    fail(KVC_E_UNSUPPORTED, "%s = '%s' is not supported: %s", config.path("model_type").c_str(),
         shown(model_type).c_str(), row->reason);
  }
}

void read_family(const std::string& model_type, const Fields& config, Model& model) {
  if (const Exception* row = find(kExceptions, model_type)) {
    if (row->read == nullptr) return read_decoder(config, row->traits, model);
    return row->read(config, model);
  }
  refuse_family(model_type, config);
  const bool is_known = std::any_of(std::begin(kByKeys), std::end(kByKeys),
                                    [&](const char* name) { return model_type == name; });
  if (!is_known) {
    const char* missing = missing_key(config);
    if (missing != nullptr) {
      fail(KVC_E_UNSUPPORTED,
           "%s = '%s' is not supported: it is not known%s, and without %s its keys "
           "do not say what it keeps",
           config.path("model_type").c_str(), shown(model_type).c_str(),
           known_one(model_type).c_str(), config.path(missing).c_str());
    }
  }
  read_by_keys(config, model);
  if (!is_known) model.warning = doubt(model_type, model);
}

bool has_own_reader(const std::string& model_type) {
  const Exception* row = find(kExceptions, model_type);
  return row != nullptr && row->read != nullptr;
}

void read_assumed(const std::string& assumed, const std::string& model_type, const Fields& config,
                  Model& model) {
  const std::vector<std::string> names = family_names();
  if (!std::binary_search(names.begin(), names.end(), assumed)) {
    fail(KVC_E_INVALID_ARGUMENT, "opt->assume = '%s' is not a model_type that is known%s",
         shown(assumed).c_str(), known_one(assumed).c_str());
  }
  if (std::binary_search(names.begin(), names.end(), model_type)) {
    fail(KVC_E_INVALID_ARGUMENT,
         "opt->assume = '%s' is for a model_type that is not known, and '%s' is: leave it out",
         assumed.c_str(), model_type.c_str());
  }
  model.is_assumed = true;
  read_family(assumed, config, model);
  const std::string named =
      model_type.empty() ? "no model_type" : "model_type '" + shown(model_type) + "'";
  const std::string other = model.warning.empty() ? "" : "; " + model.warning;
  model.warning = named + " is read as '" + assumed +
                  "': layers and windows that only the former has are not counted" + other;
}

namespace {

// What models of a reader keep.
struct Kept {
  Reader read;
  const char* what;
};

constexpr const char* kTokens = "K and V of every token";
constexpr const char* kSomeSlide = "K and V; some layers in a window";
constexpr const char* kWithEncoder = "K and V of its tokens and of an encoder's";
constexpr const char* kLatents = "latents (MLA)";
constexpr const char* kSomeStates = "K and V in some layers, states in the others";
constexpr const char* kBoth = "K and V and a state in a layer";

constexpr Kept kKept[] = {
    {read_llama4, "K and V; most layers in chunks"},
    {read_mllama, "K and V; some layers of an image"},
    {read_mimo, "K and V; most layers in a window, with heads of their own"},
    {read_modernbert_decoder, kSomeSlide},
    {read_gemma2, kSomeSlide},
    {read_gemma3, kSomeSlide},
    {read_gemma3n, "K and V; some layers in a window, the last read earlier ones"},
    {read_gemma4, "K and V; some layers in a window, the last read earlier ones"},
    {read_deepseek, kLatents},
    {read_kimi_linear, "latents (MLA) in some layers, states in the others"},
    {read_longcat, "latents (MLA), two a layer"},
    {read_t5, kWithEncoder},
    {read_whisper, kWithEncoder},
    {read_bart, kWithEncoder},
    {read_mamba, "states"},
    {read_mamba2, "states"},
    {read_jamba, kSomeStates},
    {read_bamba, kSomeStates},
    {read_granite_hybrid, kSomeStates},
    {read_falcon_h1, kBoth},
    {read_zamba, "states; K and V too in some layers"},
    {read_zamba2, "states; K and V too in some layers"},
    {read_nemotron_h, kSomeStates},
    {read_qwen3_next, kSomeStates},
    {read_qwen3_5, kSomeStates},
    {read_lfm2, kSomeStates},
    {read_inkling, kBoth},
    {read_inkling_loop, "K and V and a state in a layer, again for each pass through a loop"},
    {read_dory, "K and V; some layers in a window, some again for each pass through a loop"},
    {read_zaya, kBoth},
    {read_minimax, kSomeStates},
    {read_recurrent_gemma, "states; K and V in a window in some layers"},
};

const char* kept_by(const Exception& row) {
  if (row.read == nullptr) {
    switch (row.traits.windows) {
      case Windows::kNone: return kTokens;
      case Windows::kAll: return "K and V; in a window where the file has one";
      case Windows::kQwen: return "K and V; some layers in a window where a switch says so";
      case Windows::kByType: return kSomeSlide;
    }
  }
  const auto found = std::find_if(std::begin(kKept), std::end(kKept),
                                  [&](const Kept& kept) { return kept.read == row.read; });
  return found == std::end(kKept) ? kTokens : found->what;
}

}  // namespace

std::string family_keeps(const std::string& model_type) {
  const Exception* row = find(kExceptions, model_type);
  return row != nullptr ? kept_by(*row) : "as its keys say";
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Exception& row : kExceptions) names.emplace_back(row.model_type);
  for (const char* name : kByKeys) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace kvc::hf
