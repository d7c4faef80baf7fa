# SPDX-License-Identifier: Apache-2.0
"""A small model of every type that transformers can build with a language head, from the type's own default configuration.

A configuration keeps what it says about attention (kinds of layers, windows, latents, shared layers) and gets small numbers: by the
name of the key (SIZES), and for types whose keys depend on one another by hand (CHANGES).
"""

import re

import families
import torch
import transformers
from transformers import AutoConfig
from transformers.models.auto import modeling_auto

VOCAB = families.VOCAB
LAYERS = 4
MOST_PARAMETERS = 250e6
# The value of a key whose whole name fits; the first that fits counts.
SIZES = [
    (r"(text_|audio_|codebook_|semantic_)?vocab_size|vocab_size_per_layer_input|n_tokens|n_words", VOCAB),
    (r"(num_)?(hidden|(en|de)coder)_layers|n_layers?|num_layers|depth|num_blocks", LAYERS),
    (r"(num_|n_)?(key_value|kv)_heads|num_query_groups", 2),
    (r"(num_|n_)?(attention_|attn_)?heads?|((num_)?(en|de)coder|encoder_num)_attention_heads", 4),
    (r"(hidden|embedding|attention_hidden|text_hidden|output_hidden|cross_hidden|mm_hidden|out_hidden|projection|embed|model|lru)"
     r"_(size|dim|width)|d_model|n_embd|dim|emb_dim|(en|de)coder_hidden_size|word_embed_proj_dim|projector_hidden_size|embed_dim", 64),
    (r".*(intermediate|ffn|mlp|inner|feed_forward|ff)(_proj)?(_hidden)?(_size|_dim)?(_mlp)?|n_inner|d_ff|dff", 96),
    (r"(swa_|global_)?(v_|k_|linear_)?head_(dim|size)|d_kv|d_head|dim_head|kv_channels|attention_head_dim", 16),
    (r"(q|kv|o)_lora_rank|dim_model_base", 32),
    (r"qk_(rope|nope)_head_dim|rotary_dim", 16),
    (r"(num|n|moe_num|num_local|n_routed|num_routed)_(local_|routed_)?experts|num_experts_per_tok(en)?|(moe_)?top_?k(_experts)?|moe_k"
     r"|experts_top_k|num_selected_experts|n_activated_experts", 4),
    (r"n_group|topk_group|num_expert_group|n_shared_experts|num_shared_experts|first_k_dense_replace|num_dense_layers"
     r"|zero_expert_num|num_nextn_predict_layers", 1),
    (r"(mamba_|mamba2_)?(d_state|state_size)|ssm_state_size|linear_(key|value)_head_dim|mamba_d_head|mamba_head_?dim", 16),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads|linear_num_value_heads", 4),
    (r"linear_num_key_heads", 2),
    (r"sliding_window(_size)?|(attention_)?window(_size)?", 9),
    (r"attention_chunk_size|mamba_chunk_size|chunk_size", 16),
    (r"max_(position_embeddings|sequence_length|seq_len|target_positions)|n_positions|seq_length|n_ctx", 512),
    (r"image_size|img_size", 32),
    (r"num_labels|n_mels|num_mel_bins", 8),
]
# Keys that another one determines in a small configuration.
DERIVED = ("per_layer_config", "model_type", "transformers_version", "architectures", "dtype", "_name_or_path", "return_dict",
           "output_attentions", "output_hidden_states", "id2label", "label2id")


def types():
    """{model type: (name of the model's class, "causal" or "vision")}"""
    found = {}
    for kind, table in (("causal", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
                        ("vision", modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)):
        for model_type, name in table.items():
            found.setdefault((model_type, kind), name[0] if isinstance(name, tuple) else name)
    return found


def layers_kept(values):
    """So many leading layers that each kind occurs, as the list of kinds says; at least LAYERS."""
    for key in ("layer_types", "layers_block_type", "block_types", "mlp_layer_types"):
        kinds = values.get(key)
        if isinstance(kinds, (list, tuple)) and kinds:
            return min(len(kinds), max(LAYERS, 1 + max(kinds.index(kind) for kind in set(kinds))))
    return LAYERS


def sections(count, half):
    """Parts of half a rotation, as `mrope_section` has them."""
    return [int(half) - (count - 1) * (int(half) // count), *[int(half) // count] * (count - 1)]


def small(key, value, kept):
    if value is None:
        return 16 if key == "head_dim" else None
    if isinstance(value, dict) and "mrope_section" in value:
        return dict(value, mrope_section=sections(len(value["mrope_section"]), 8 * value.get("partial_rotary_factor", 1)))
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if re.search(r"_token_(id|index)$|_(token|id)s?$", key):
        return value if value < VOCAB else 3 + sum(map(ord, key)) % (VOCAB - 3)
    for pattern, size in SIZES:
        if re.fullmatch(pattern, key):
            return min(value, kept if size == LAYERS and "layer" in key else size)
    return value


def is_nested(key, value):
    return isinstance(value, dict) and bool(value) and ("config" in key or key in ("encoder", "decoder"))


def shrink(values, changes):
    """The dictionary of a configuration, with small numbers."""
    count = next((values[key] for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if isinstance(values.get(key), int)), 0)
    kept = min(layers_kept(values), count or LAYERS)
    kept = changes.get("num_hidden_layers", kept)
    out = {}
    for key, value in values.items():
        if key in DERIVED:
            continue
        if is_nested(key, value):
            out[key] = shrink(value, changes.get(key, {}))
        elif isinstance(value, (list, tuple)) and count and len(value) == count and kept < count:
            out[key] = value[:kept]
        else:
            out[key] = small(key, value, kept)
    if isinstance(values.get("kv_lora_rank"), int) and "num_key_value_heads" in out:
        out["num_key_value_heads"] = 4  # latents are expanded for every head
    for key, value in changes.items():
        if not is_nested(key, values.get(key)):
            out[key] = value
    return out


_MAMBA = dict(mamba_n_heads=8, mamba_d_head=16)
_ROPE = dict(rope_type="default", rope_theta=10000.0)
_SHARED = dict(num_hidden_layers=6, num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 3)
_GEMMA3N = dict(_SHARED, intermediate_size=[96] * 6, activation_sparsity_pattern=[0.0] * 6, hidden_size_per_layer_input=8)
_GEMMA4 = dict(_SHARED, num_global_key_value_heads=1, hidden_size_per_layer_input=8, attention_k_eq_v=True)
_MROPE = dict(rope_parameters=dict(_ROPE, mrope_section=[3, 3, 2]))
_HALF_MROPE = dict(rope_parameters=dict(_ROPE, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]))
_KDA = dict(linear_num_heads=4, linear_head_dim=16)
_NEMOTRON_H = dict(layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], mamba_num_heads=8, mamba_head_dim=16, n_groups=1, n_routed_experts=4)
CHANGES = {
    "axk1": dict(num_key_value_heads=4),
    "bailing_hybrid": dict(_KDA, num_experts=8, num_expert_group=2, topk_group=2, num_experts_per_token=8),
    "bamba": dict(_MAMBA, attn_layer_indices=[1, 3]),
    "blenderbot": dict(encoder_layers=4),
    "blt": dict(encoder_hash_byte_group_vocab=97),
    "chameleon": dict(vocabulary_map={"<image>": 8}),
    "cohere_compass_text": dict(rope_parameters=dict(full_attention=_ROPE, sliding_attention=_ROPE)),
    "cohere_compass": dict(text_config=dict(rope_parameters=dict(full_attention=_ROPE, sliding_attention=_ROPE))),
    "cpmant": dict(prompt_length=4),
    "dbrx": dict(attn_config=dict(kv_n_heads=2, rope_theta=10000.0, clip_qkv=8.0)),
    "deepseek_ocr2": dict(text_config=dict(mlp_layer_types=["dense", "sparse"] * 2, num_experts_per_tok=4, head_dim=16)),
    "deepseek_v2": dict(num_experts_per_tok=4),
    "dory": dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, n_input_layers=1, n_recurrent_layers=2,
                 n_output_layers=1),
    "dots1": dict(n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=4),
    "emu3": dict(vocabulary_map={"<image>": 8}),
    "dots3_note_text": dict(per_layer_config={}),
    "dots3_note": dict(text_config=dict(per_layer_config={}), vision_config=dict(adapter_in_dim=64, adapter_input_size=64)),
    "diffusion_gemma": dict(text_config=dict(num_experts=4, top_k_experts=4, moe_intermediate_size=32, head_dim=16, layer_types=[
        "sliding_attention", "full_attention"] * 2, num_hidden_layers=4)),
    "ernie4_5_vl_moe": dict(text_config=dict(moe_intermediate_size=[32, 16], head_dim=16,
                                             rope_parameters=dict(_ROPE, mrope_section=[3, 3, 2]))),
    "exaone4_5": dict(text_config=dict(model_type="exaone4")),
    "falcon_h1": dict(_MAMBA, mamba_d_ssm=128),
    "gemma3n_text": _GEMMA3N,
    "gemma4_text": _GEMMA4,
    "gemma4": dict(text_config=_GEMMA4),
    "glm46v": dict(text_config=_MROPE),
    "glm4v": dict(text_config=_MROPE),
    "glm4v_moe": dict(text_config=_HALF_MROPE),
    "glm_ocr": dict(text_config=_MROPE),
    "glmga": dict(text_config=_MROPE),
    "glm5_next": dict(text_config=dict(_KDA, num_key_value_heads=4, head_dim=0, qk_rope_head_dim=0)),
    "gemma4_assistant": dict(text_config=dict(hidden_size_per_layer_input=0)),
    "gemma4_unified_assistant": dict(text_config=dict(num_kv_shared_layers=0)),
    "granite4_vision": dict(deepstack_layer_map=[[-1, 0]], downsample_rate="1/2"),
    "granitemoehybrid": dict(_MAMBA, layer_types=["linear_attention", "full_attention"] * 2),
    "hunyuan_vl": dict(text_config=dict(rope_parameters=dict(_ROPE, mrope_section=[2, 2, 2, 2]))),
    "inkling2_loop_text": dict(n_layers_per_attn_res_block=1, loop_layer_index_start=1, loop_layer_index_end=3),
    "jamba": dict(families.FAMILIES["jamba"]()[2], mamba_d_state=8),
    "kimi_linear": dict(num_key_value_heads=4, num_experts=8, num_expert_group=2, topk_group=2, num_experts_per_token=8),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"] * 2),
    "longcat_flash": dict(num_layers=2, num_hidden_layers=4, ffn_hidden_size=96, expert_ffn_hidden_size=32, n_routed_experts=4,
                          zero_expert_num=1, num_key_value_heads=4, head_dim=16, qk_head_dim=32, moe_topk=4),
    "muse_spark": dict(audio_config=dict(out_hidden_size=64)),
    "mamba2": dict(num_heads=8, head_dim=16, n_groups=1),
    "minicpm3": dict(num_key_value_heads=4),
    "mllama": dict(text_config=dict(cross_attention_layers=[3])),
    "molmo2": dict(adapter_config=dict(vision_feature_layer=[3, 2])),
    "mistral4": dict(num_key_value_heads=4, qk_head_dim=32, head_dim=32),
    "nemotron": dict(num_key_value_heads=2),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_omni": dict(text_config=_NEMOTRON_H),
    "paddleocr_vl": dict(text_config=_MROPE),
    "qwen2_5_omni_thinker": dict(text_config=_MROPE),
    "qwen2_5_vl": dict(text_config=_MROPE),
    "qwen2_vl": dict(text_config=_MROPE),
    "qwen4_exp_text": dict(indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=64, indexer_compress_ratio=4),
    "qwen4_exp": dict(text_config=dict(indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=64,
                                       indexer_compress_ratio=4)),
    "reformer": dict(axial_pos_embds_dim=[32, 32], axial_pos_shape=[16, 32]),
    "step3p7": dict(text_config=dict(layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=9, head_dim=16,
                                     rope_parameters=dict(full_attention=_ROPE, sliding_attention=_ROPE))),
    "unlimited_ocr": dict(text_config=dict(num_key_value_heads=4)),
    "xlnet": dict(d_head=16),
    "xmod": dict(default_language="en_XX"),
    "zamba": dict(num_hidden_layers=6, layers_block_type=["linear_attention", "linear_attention", "hybrid"] * 2, n_mamba_heads=2,
                  attention_hidden_size=128, attention_head_dim=32, mamba_dt_rank=8),
    "zamba2": dict(num_hidden_layers=6, layers_block_type=["linear_attention", "linear_attention", "hybrid"] * 2, n_mamba_heads=8,
                   hybrid_layer_ids=[2, 5],
                   mamba_headdim=16, mamba_ngroups=1, attention_hidden_size=128, attention_head_dim=32, num_key_value_heads=4),
}


def configuration(model_type, model_class, kind):
    config = AutoConfig.for_model(model_type)
    changes = CHANGES.get(model_type, {})
    # A language head of a composite configuration takes the part that is its own.
    wanted = getattr(model_class, "config_class", None)
    if kind == "causal" and wanted is not None and not isinstance(config, wanted):
        name = next((name for name in config.sub_configs if isinstance(getattr(config, name), wanted)), None)
        if name is not None:
            config, changes = getattr(config, name), changes.get(name, {})
    config = type(config)(**shrink(config.to_dict(), changes))
    if hasattr(config, "is_decoder") and not config.is_encoder_decoder:
        config.is_decoder = True
    return config


def build(model_type, class_name, kind="causal", attention="eager", seed=20261):
    model_class = getattr(transformers, class_name)
    config = configuration(model_type, model_class, kind)
    config._attn_implementation = attention
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} M parameters: shrink it further")
    torch.manual_seed(seed)
    model = model_class(config)
    families.rescale(model, seed, embedding=0.3)
    return model.float().eval()
