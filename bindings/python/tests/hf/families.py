# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of many families, built in code: nothing is downloaded, seconds per family.

Every configuration keeps what is special about its family (windows, chunks, caps, sinks, latents, states) and
shrinks the rest. Weights are scaled up so that softmax is far from uniform and greedy tokens do not repeat.
"""

import inspect
import math

import torch
import transformers

VOCAB = 211

_COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    tie_word_embeddings=False,
)
_MOE = dict(num_local_experts=4, num_experts_per_tok=2)


def _llama():
    return "LlamaForCausalLM", "LlamaConfig", {}


def _mistral():
    return "MistralForCausalLM", "MistralConfig", dict(sliding_window=12)


def _qwen2():
    return "Qwen2ForCausalLM", "Qwen2Config", dict(use_sliding_window=True, sliding_window=10, max_window_layers=1)


def _qwen3():
    return "Qwen3ForCausalLM", "Qwen3Config", dict(head_dim=32)


def _gemma2():
    return "Gemma2ForCausalLM", "Gemma2Config", dict(
        head_dim=16, sliding_window=11, query_pre_attn_scalar=24, attn_logit_softcapping=5.0, num_hidden_layers=4
    )


def _gemma3():
    return "Gemma3ForCausalLM", "Gemma3TextConfig", dict(
        head_dim=16, sliding_window=9, query_pre_attn_scalar=24, sliding_window_pattern=2, num_hidden_layers=4,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    )


def _gemma3n():
    return "Gemma3nForCausalLM", "Gemma3nTextConfig", dict(
        head_dim=16, sliding_window=9, num_hidden_layers=6, num_kv_shared_layers=2, vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=8, laurel_rank=8, altup_num_inputs=2, activation_sparsity_pattern=[0.0] * 6,
        layer_types=["sliding_attention", "full_attention"] * 3, intermediate_size=[96] * 6,
    )


def _gemma4():
    # Full layers have other head sizes and counts than sliding ones, and the last layers read K and V of earlier ones.
    return "Gemma4ForCausalLM", "Gemma4TextConfig", dict(
        head_dim=16, global_head_dim=32, num_global_key_value_heads=1, sliding_window=9, num_hidden_layers=6,
        num_kv_shared_layers=2, vocab_size_per_layer_input=VOCAB, hidden_size_per_layer_input=8, attention_k_eq_v=True,
        layer_types=["sliding_attention", "full_attention"] * 3,
    )


def _mimo_v2():
    # Dk and Dv differ, sliding layers have twice the KV heads, and sinks.
    return "MiMoV2FlashForCausalLM", "MiMoV2FlashConfig", dict(
        head_dim=24, v_head_dim=16, sliding_window=8, num_hidden_layers=4, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, moe_intermediate_size=32, partial_rotary_factor=0.5,
        layer_types=["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"],
    )


def _gpt_oss():
    return "GptOssForCausalLM", "GptOssConfig", dict(
        head_dim=16, sliding_window=8, num_hidden_layers=4, **_MOE,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )


def _phi3():
    return "Phi3ForCausalLM", "Phi3Config", dict(sliding_window=14)


def _glm4():
    return "Glm4ForCausalLM", "Glm4Config", dict(head_dim=16, partial_rotary_factor=0.5)


def _cohere2():
    return "Cohere2ForCausalLM", "Cohere2Config", dict(
        sliding_window=10, num_hidden_layers=4, logit_scale=1.0,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
    )


def _deepseek_v3():
    return "DeepseekV3ForCausalLM", "DeepseekV3Config", dict(
        num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=24, v_head_dim=20,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1,
        moe_intermediate_size=32,
    )


def _llama4():
    return "Llama4ForCausalLM", "Llama4TextConfig", dict(
        head_dim=16, attention_chunk_size=16, num_hidden_layers=4, intermediate_size_mlp=96, **_MOE,
        layer_types=["chunked_attention"] * 3 + ["full_attention"], no_rope_layers=[1, 1, 1, 0], floor_scale=16,
        interleave_moe_layer_step=2, use_qk_norm=True,
    )


def _falcon_h1():
    return "FalconH1ForCausalLM", "FalconH1Config", dict(
        head_dim=16, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16,
        mamba_d_conv=4, mamba_chunk_size=16, num_hidden_layers=2,
    )


def _jamba():
    return "JambaForCausalLM", "JambaConfig", dict(
        attn_layer_period=2, attn_layer_offset=1, num_experts=2, num_experts_per_tok=1, expert_layer_period=2,
        expert_layer_offset=1, mamba_d_state=8, mamba_d_conv=4, mamba_dt_rank=8, num_hidden_layers=4,
        use_mamba_kernels=False,
    )


def _qwen3_next():
    return "Qwen3NextForCausalLM", "Qwen3NextConfig", dict(
        head_dim=16, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
        linear_conv_kernel_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1,
        shared_expert_intermediate_size=32, num_hidden_layers=4,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
    )


def _olmo2():
    return "Olmo2ForCausalLM", "Olmo2Config", {}


def _granite():
    return "GraniteForCausalLM", "GraniteConfig", dict(attention_multiplier=0.2, residual_multiplier=0.7)


def _t5():
    return "T5ForConditionalGeneration", "T5Config", dict(
        d_model=64, d_kv=16, d_ff=96, num_layers=3, num_decoder_layers=3, num_heads=4, vocab_size=VOCAB, dropout_rate=0.0,
        decoder_start_token_id=0, relative_attention_num_buckets=8, relative_attention_max_distance=20,
    )


def _whisper():
    return "WhisperForConditionalGeneration", "WhisperConfig", dict(
        d_model=64, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=96, decoder_ffn_dim=96, num_mel_bins=8, max_source_positions=30, max_target_positions=128,
        decoder_start_token_id=2, suppress_tokens=None, begin_suppress_tokens=None,
    )


def _qwen2_vl():
    return "Qwen2VLForConditionalGeneration", "Qwen2VLConfig", dict(
        text_config=dict(_COMMON, rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2])),
        vision_config=dict(depth=2, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=2, temporal_patch_size=1),
        image_token_id=VOCAB - 1, video_token_id=VOCAB - 2, vision_start_token_id=VOCAB - 3, vision_end_token_id=VOCAB - 4,
    )


_SIGLIP = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=4,
)


def _gemma3_vision():
    # Tokens of an image see each other in both directions, within the windows of sliding layers.
    return "Gemma3ForConditionalGeneration", "Gemma3Config", dict(
        text_config=dict(
            _COMMON, head_dim=16, sliding_window=9, query_pre_attn_scalar=24, num_hidden_layers=3,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        ),
        vision_config=_SIGLIP, mm_tokens_per_image=4, image_token_index=VOCAB - 1, boi_token_index=VOCAB - 2,
        eoi_token_index=VOCAB - 3,
    )


def _paligemma():
    # All of the prompt sees all of it.
    return "PaliGemmaForConditionalGeneration", "PaliGemmaConfig", dict(
        text_config=dict(_COMMON, model_type="gemma", head_dim=16), vision_config=dict(_SIGLIP, model_type="siglip_vision_model"),
        image_token_index=VOCAB - 1, projection_dim=64,
    )


def _paligemma2():
    # The prompt is seen whole in sliding layers too, however narrow their window is.
    name, config, values = _paligemma()
    text = dict(values["text_config"], model_type="gemma2", sliding_window=9, num_hidden_layers=2, query_pre_attn_scalar=24)
    return name, config, dict(values, text_config=text)


def _diffllama():
    # Two attention calls per layer, each with another half of V.
    return "DiffLlamaForCausalLM", "DiffLlamaConfig", {}


def _jetmoe():
    # K and V of one expert each are repeated behind the cache.
    return "JetMoeForCausalLM", "JetMoeConfig", dict(kv_channels=16, num_key_value_heads=2, **_MOE)


def _recurrent_gemma():
    # The recurrent layers read padding as if it were text.
    return (
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        dict(
            lru_width=64,
            attention_window_size=9,
            head_dim=16,
            conv1d_width=4,
            num_hidden_layers=4,
            block_types=["recurrent", "recurrent", "attention"],
        ),
    )


def _falcon():
    return (
        "FalconForCausalLM",
        "FalconConfig",
        dict(num_kv_heads=4, new_decoder_architecture=False, alibi=False),
    )


def _gptj():
    return "GPTJForCausalLM", "GPTJConfig", dict(rotary_dim=8, n_inner=96)


def _gpt_neo():
    return (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        dict(attention_types=[[["global"], 3]], num_layers=3, num_heads=4),
    )


def _bloom():
    return "BloomForCausalLM", "BloomConfig", dict(n_head=4, n_layer=3)


def _codegen():
    return "CodeGenForCausalLM", "CodeGenConfig", dict(rotary_dim=8, n_inner=96)


# Decoders whose layers see other tokens through attention alone.
ATTENTION = dict(
    llama=_llama, mistral=_mistral, qwen2=_qwen2, qwen3=_qwen3, gemma2=_gemma2, gemma3=_gemma3, gemma3n=_gemma3n,
    gpt_oss=_gpt_oss, phi3=_phi3, glm4=_glm4, cohere2=_cohere2, deepseek_v3=_deepseek_v3, llama4=_llama4, olmo2=_olmo2,
    granite=_granite,
)
# Families that transformers 4.57 does not have.
NEW = dict(gemma4=_gemma4, mimo_v2=_mimo_v2)
if hasattr(transformers, "Gemma4ForCausalLM") and hasattr(transformers, "MiMoV2FlashForCausalLM"):
    ATTENTION.update(NEW)
# Decoders that keep recurrent states beside or instead of K and V.
HYBRID = dict(falcon_h1=_falcon_h1, jamba=_jamba, qwen3_next=_qwen3_next)
# Models with an encoder whose K and V are written once.
ENCODER_DECODER = dict(t5=_t5, whisper=_whisper)

# Models that give tokens positions in time, height and width of an image.
MROPE = dict(qwen2_vl=_qwen2_vl)

# Models that let tokens of an image, or of a prompt, see each other.
SPANS = dict(gemma3_vision=_gemma3_vision, paligemma=_paligemma, paligemma2=_paligemma2)

# Decoders that fused caches refuse, for the reasons in docs/huggingface.md.
CHANGING = dict(diffllama=_diffllama, jetmoe=_jetmoe)  # K or V, between the cache and attention
# They have a table of attention classes instead of the attention interface.
CLASS_TABLES = dict(falcon=_falcon, gptj=_gptj, gpt_neo=_gpt_neo)
OWN_ATTENTION = dict(bloom=_bloom, codegen=_codegen)
# GPT-J and CodeGen have the interface from transformers 5.24 on, and are served there.
SERVED_SINCE_5_24 = {}
for _name, _list in (("gptj", CLASS_TABLES), ("codegen", OWN_ATTENTION)):
    if hasattr(inspect.getmodule(getattr(transformers, _list[_name]()[0])), "ALL_ATTENTION_FUNCTIONS"):
        SERVED_SINCE_5_24[_name] = _list.pop(_name)
READING_PADDING = dict(recurrent_gemma=_recurrent_gemma)
REFUSED = {**CHANGING, **CLASS_TABLES, **OWN_ATTENTION, **READING_PADDING}

# Families that multiply embeddings, or whose position embeddings would drown the tokens.
_EMBEDDING = dict(gemma2=0.1, gemma3=0.1, gemma3n=0.1, gemma4=0.1, recurrent_gemma=0.1, whisper=0.3, gemma3_vision=0.1, paligemma=0.1,
                  paligemma2=0.1)

FAMILIES = {**ATTENTION, **SERVED_SINCE_5_24, **HYBRID, **ENCODER_DECODER, **MROPE, **SPANS, **REFUSED}


def build(name, dtype=torch.float32, attention="eager", seed=20261, **changes):
    """The model of a family, in eval mode. The same seed gives the same weights in every dtype, up to rounding."""
    model_name, config_name, values = FAMILIES[name]()
    config_class = getattr(transformers, config_name)
    common = _COMMON
    if name in MROPE or name in SPANS:
        common = {}
    elif name in ENCODER_DECODER:
        common = dict(vocab_size=VOCAB, pad_token_id=0, eos_token_id=None, bos_token_id=1)
    config = config_class(**{**common, **values, **changes})
    config._attn_implementation = attention
    torch.manual_seed(seed)
    model = getattr(transformers, model_name)(config)
    rescale(model, seed, embedding=_EMBEDDING.get(name, 1.0))
    return model.to(dtype).eval()


def all_experts(name):
    """The change to a family's configuration that sends every token to every expert."""
    values = FAMILIES[name]()[2]
    counts = [
        values[key]
        for key in ("num_local_experts", "n_routed_experts", "num_experts")
        if key in values
    ]
    return dict(num_experts_per_tok=counts[0]) if counts else {}


def rescale(model, seed, embedding=1.0):
    """Weights with a spread that keeps activations of order one and attention scores of order a few."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if "A_log" in name or "dt_bias" in name or leaf == "D":
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if "sinks" in name:
                parameter.copy_(noise)
            elif "relative_attention_bias" in name:
                parameter.copy_(noise)
            elif "embed" in name:
                parameter.copy_(noise * embedding)
            elif parameter.ndim >= 2:
                fan_in = parameter.shape[-1]
                parameter.copy_(noise * (1.6 / math.sqrt(fan_in)))
            elif "norm" not in name:
                parameter.copy_(noise * 0.2)


def with_image(model, ids, begin=2):
    """Token ids and the arguments of a first forward in which each row of `ids` has an image of 2 x 4 tokens behind `begin`."""
    rows, vision = len(ids), model.config.vision_config
    merge = vision.spatial_merge_size
    ids = ids.clone()
    ids[:, begin - 1] = model.config.vision_start_token_id
    ids[:, begin:begin + 8] = model.config.image_token_id
    patches = rows * 8 * merge * merge
    pixels = torch.randn(patches, vision.in_channels * vision.temporal_patch_size * vision.patch_size**2,
                         generator=torch.Generator().manual_seed(3))
    return ids, dict(pixel_values=pixels, image_grid_thw=torch.tensor([[1, 2 * merge, 4 * merge]] * rows))


def prompt(batch, length, seed=7, padding=None):
    """Random token ids, and the attention mask when `padding` gives the left padding of every row."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row, pads in enumerate(padding or ()):
        ids[row, :pads] = 0
        mask[row, :pads] = 0
    return ids, mask
