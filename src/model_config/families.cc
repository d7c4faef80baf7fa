// model_type to reader. What a family of plain decoders needs is in the table.
#include "src/model_config/families.h"

#include <algorithm>
#include <iterator>

#include "src/base/error.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

using Windows = DecoderTraits::Windows;

struct Decoder {
  const char* model_type;
  DecoderTraits traits;
};

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

const Decoder kDecoders[] = {
    {"llama", kLlama},
    {"mistral", kMistral},
    {"ministral", windowed(Windows::kByType, kMaxLayers)},
    {"ministral3", with(windowed(Windows::kAll, 0), {34, 32, 8, 4096, 128, 262144})},
    {"mixtral", windowed(Windows::kAll, 0, 1000000)},
    {"qwen2", with(kQwen, {32, 32, 32, 4096, 0, 32768})},
    {"qwen2_moe", kQwen},
    {"qwen2_vl", kQwen2Vl},
    {"qwen2_vl_text", kQwen2Vl},
    {"qwen2_5_vl", kQwen2Vl},
    {"qwen2_5_vl_text", kQwen2Vl},
    {"qwen3", with(kQwen, {32, 32, 32, 4096, 128, 32768})},
    {"qwen3_moe", kQwen},
    {"qwen3_vl", kQwen3Vl},
    {"qwen3_vl_text", kQwen3Vl},
    {"qwen3_vl_moe", kQwen3Vl},
    {"qwen3_vl_moe_text", with(plain(5000000), {24, 16, 16, 2048, 0, 128000})},
    {"gemma", with(plain(), {28, 16, 16, 3072, 256, 8192})},
    {"phi", plain(10000, 0.5)},
    {"phi3", windowed(Windows::kAll, 0)},
    {"phi3_v", windowed(Windows::kAll, 0)},
    {"phi4mm", windowed(Windows::kAll, 0)},
    {"phi4_multimodal", windowed(Windows::kAll, 0)},
    {"phimoe", windowed(Windows::kAll, 0, 1000000)},
    {"glm", interleaved(0.5)},
    {"glm4", interleaved(0.5)},
    {"glm4_moe", plain(10000, 0.5)},
    {"cohere", interleaved()},
    {"cohere2", cohere2()},
    {"gpt_oss", windowed(Windows::kByType, 2, 150000)},
    {"olmo", plain()},
    {"olmo2", plain()},
    {"olmo3", olmo3()},
    {"olmoe", plain()},
    {"granite", plain()},
    {"granitemoe", plain()},
    {"granitemoeshared", plain()},
    {"stablelm", plain(10000, 0.25)},
    {"starcoder2", windowed(Windows::kAll, 0)},
    {"opt", unrotated()},
};

struct Family {
  const char* model_type;
  Reader read;
};

const Family kFamilies[] = {
    {"llama4", read_llama4},
    {"llama4_text", read_llama4},
    {"mllama", read_mllama},
    {"mllama_text_model", read_mllama},
    {"mimo_v2", read_mimo},
    {"mimo_v2_flash", read_mimo},
    {"chatglm", read_chatglm},
    {"gemma2", read_gemma2},
    {"gemma3", read_gemma3},
    {"gemma3_text", read_gemma3},
    {"gemma3n", read_gemma3n},
    {"gemma3n_text", read_gemma3n},
    {"gemma4", read_gemma4},
    {"gemma4_text", read_gemma4},
    {"deepseek_v2", read_deepseek},
    {"deepseek_v3", read_deepseek},
    {"kimi_k2", read_deepseek},
    {"kimi_linear", read_kimi_linear},
    {"bloom", read_bloom},
    {"falcon", read_falcon},
    {"RefinedWeb", read_falcon},
    {"RefinedWebModel", read_falcon},
    {"mpt", read_mpt},
    {"gpt2", read_gpt2},
    {"gpt_bigcode", read_gpt2},
    {"gptj", read_gptj},
    {"gpt_neox", read_gpt_neox},
    {"mamba", read_mamba},
    {"falcon_mamba", read_mamba},
    {"mamba2", read_mamba2},
    {"jamba", read_jamba},
    {"bamba", read_bamba},
    {"granitemoehybrid", read_granite_hybrid},
    {"falcon_h1", read_falcon_h1},
    {"zamba2", read_zamba2},
    {"nemotron_h", read_nemotron_h},
    {"qwen3_next", read_qwen3_next},
    {"qwen3_5", read_qwen3_5},
    {"qwen3_5_text", read_qwen3_5},
    {"qwen3_5_moe", read_qwen3_5},
    {"qwen3_5_moe_text", read_qwen3_5},
    {"lfm2", read_lfm2},
    {"lfm2_moe", read_lfm2},
    {"t5", read_t5},
    {"mt5", read_t5},
    {"umt5", read_t5},
    {"whisper", read_whisper},
    {"bart", read_bart},
    {"mbart", read_bart},
};

struct Refusal {
  const char* model_type;
  const char* reason;
};

constexpr Refusal kRefusals[] = {
    {"deepseek_v32", "indexer keys of DeepSeek sparse attention have no layer kind"},
    {"glm_moe_dsa", "indexer keys of DeepSeek sparse attention have no layer kind"},
    {"deepseek_v4", "compressed tokens beside a window have no layer kind"},
    {"minimax_m3_vl", "keys of its sparse attention's index have no layer kind"},
    {"zamba", "its first generation is not read: zamba2 is"},
};

template <typename Table>
auto find(const Table& table, const std::string& model_type) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [&](const auto& row) { return model_type == row.model_type; });
  return found == std::end(table) ? nullptr : &*found;
}

}  // namespace

void read_family(const std::string& model_type, const Fields& config, Model& model) {
  if (const Decoder* decoder = find(kDecoders, model_type))
    return read_decoder(config, decoder->traits, model);
  if (const Family* family = find(kFamilies, model_type)) return family->read(config, model);
  const Refusal* refusal = find(kRefusals, model_type);
  fail(KVC_E_UNSUPPORTED, "%s = '%s' is not supported%s%s", config.path("model_type").c_str(),
       shown(model_type).c_str(), refusal == nullptr ? "" : ": ",
       refusal == nullptr ? "" : refusal->reason);
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Decoder& decoder : kDecoders) names.emplace_back(decoder.model_type);
  for (const Family& family : kFamilies) names.emplace_back(family.model_type);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace kvc::hf
