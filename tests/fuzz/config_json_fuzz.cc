// config.json files: those of the tests as seeds, and objects made of the fields that the readers
// know. Claims: a refusal has a status and a message and writes nothing; an accepted text gives the
// same layers twice, in exactly the memory it asked for, and they can be planned or are refused by
// name.
#include <cctype>
#include <string>
#include <vector>

#include "kvcache.h"
#include "src/model_config/families.h"
#include "tests/fuzz/error_box.h"
#include "tests/fuzz/text_maker.h"

namespace kvc::fuzz {
namespace {

// Fields that say how large something is, or which of its kinds it is.
const std::vector<std::string> kFields = {"hidden_size",
                                          "num_hidden_layers",
                                          "num_attention_heads",
                                          "num_key_value_heads",
                                          "head_dim",
                                          "sliding_window",
                                          "max_position_embeddings",
                                          "use_sliding_window",
                                          "max_window_layers",
                                          "layer_types",
                                          "rope_theta",
                                          "rope_scaling",
                                          "rope_parameters",
                                          "torch_dtype",
                                          "dtype",
                                          "partial_rotary_factor",
                                          "kv_lora_rank",
                                          "qk_rope_head_dim",
                                          "qk_nope_head_dim",
                                          "v_head_dim",
                                          "n_layer",
                                          "n_head",
                                          "n_embd",
                                          "n_positions",
                                          "d_model",
                                          "num_layers",
                                          "d_kv",
                                          "num_heads",
                                          "n_heads",
                                          "n_layers",
                                          "max_seq_len",
                                          "attn_config",
                                          "multi_query",
                                          "new_decoder_architecture",
                                          "num_kv_heads",
                                          "parallel_attn",
                                          "mamba_d_state",
                                          "mamba_d_conv",
                                          "mamba_expand",
                                          "mamba_n_heads",
                                          "mamba_n_groups",
                                          "mamba_d_head",
                                          "state_size",
                                          "conv_kernel",
                                          "expand",
                                          "ssm_state_size",
                                          "mamba_num_heads",
                                          "mamba_head_dim",
                                          "n_groups",
                                          "hybrid_override_pattern",
                                          "attn_layer_period",
                                          "attn_layer_offset",
                                          "attn_layer_indices",
                                          "full_attn_idxs",
                                          "conv_L_cache",
                                          "linear_num_key_heads",
                                          "linear_num_value_heads",
                                          "linear_key_head_dim",
                                          "linear_value_head_dim",
                                          "linear_conv_kernel_dim",
                                          "linear_attn_config",
                                          "num_kv_shared_layers",
                                          "kv_source_layers",
                                          "sliding_window_pattern",
                                          "attention_chunk_size",
                                          "no_rope_layers",
                                          "cross_attention_layers",
                                          "decoder_layers",
                                          "decoder_attention_heads",
                                          "encoder_layers",
                                          "max_source_positions",
                                          "max_target_positions",
                                          "rotary_dim",
                                          "rotary_pct",
                                          "global_head_dim",
                                          "hybrid_layer_ids",
                                          "num_mem_blocks",
                                          "layers_block_type",
                                          "per_layer_config",
                                          "num_attention_heads_per_layer",
                                          "global_attn_every_n_layers",
                                          "swa_num_key_value_heads",
                                          "swa_head_dim",
                                          "kv_channels",
                                          "multi_query",
                                          "linear_num_heads",
                                          "linear_head_dim",
                                          "is_decoder",
                                          "is_encoder_decoder",
                                          "add_cross_attention",
                                          "quantization_config",
                                          "block_types",
                                          "lru_width",
                                          "cca_time0",
                                          "n_input_layers",
                                          "n_recurrent_layers",
                                          "n_recurrent_loops",
                                          "n_output_layers",
                                          "loop_layer_index_start",
                                          "loop_layer_index_end",
                                          "loop_num_passes",
                                          "local_layer_ids",
                                          "n_mamba_heads",
                                          "num_nextn_predict_layers",
                                          "mtp_layer_types",
                                          "mtp_sliding_windows",
                                          "mtp_hybrid_override_pattern"};

std::string made(Input& input) {
  std::vector<std::string> families = hf::family_names();
  families.emplace_back("novel");  // Read by its keys.
  std::string text = "{\"model_type\": \"" + families[input.take(2) % families.size()] + "\"";
  // What nearly every reader needs, so that most texts come further than that.
  text += R"(, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2)";
  while (!input.empty()) {
    text += ", \"" + kFields[input.choose(kFields.size())] + "\": ";
    text += input.one_in(4) ? any_value(input) : any_number(input);
  }
  text += "}";
  return text;
}

void run(const std::string& text, Input& input) {
  kvc_config config{};
  KVC_FUZZ_CHECK(kvc_config_init(&config, sizeof config) == KVC_OK);
  const kvc_config before = config;
  size_t count = 99;
  kvc_hf_options options{};
  options.struct_size = sizeof options;
  if (input.one_in(4)) options.assume = input.one_in(2) ? "llama" : "deepseek_v3";
  if (input.one_in(4)) options.mtp_layers = static_cast<int32_t>(input.choose(4)) - 1;
  const auto read = [&](kvc_config* out, kvc_layer* layers, size_t* n, kvc_error* error) {
    return kvc_config_from_hf(text.c_str(), &options, out, layers, n, error);
  };
  ErrorBox err(input);
  const kvc_status status = read(&config, nullptr, &count, err.get());
  err.check(status);
  if (status != KVC_OK) {
    KVC_FUZZ_CHECK(count == 99 && std::memcmp(&config, &before, sizeof config) == 0);
    return;
  }
  KVC_FUZZ_CHECK(count >= 1 && count < size_t{1} << 20);
  ExactMemory memory(count * sizeof(kvc_layer)), again(count * sizeof(kvc_layer));
  auto* layers = reinterpret_cast<kvc_layer*>(memory.data());
  layers[0].struct_size = sizeof(kvc_layer);
  size_t small = count - 1;
  kvc_config unused = before;
  KVC_FUZZ_CHECK(small == 0 || read(&unused, layers, &small, nullptr) == KVC_E_BUFFER_TOO_SMALL);
  size_t given = count;
  KVC_FUZZ_CHECK(read(&config, layers, &given, nullptr) == KVC_OK && given == count);
  KVC_FUZZ_CHECK(config.layers == layers && config.num_layers >= 1 &&
                 static_cast<size_t>(config.num_layers) < count + 1);
  config.byte_budget = uint64_t{1} << 34;
  kvc_plan* plan = nullptr;
  ErrorBox planned(input);
  const kvc_status plans = kvc_plan_create(&config, &plan, planned.get());
  planned.check(plans);
  KVC_FUZZ_CHECK((plan != nullptr) == (plans == KVC_OK));
  kvc_plan_destroy(plan);
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvc::fuzz;
  const bool is_file = is_text(data, size, "{[ \n\t");
  Input input(is_file ? data + size : data, is_file ? 0 : size);
  std::string text = is_file ? std::string(data, data + size) : made(input);
  run(text, input);
  return 0;
}
