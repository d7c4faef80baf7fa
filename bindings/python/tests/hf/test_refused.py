# SPDX-License-Identifier: Apache-2.0
"""What kvcache.hf cannot do right is refused, with the argument's name and the way out."""

import families
import pytest
import shrunk
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache, kvcache_attention
from steps import V5, decode, dynamic, generate, same
from transformers import DynamicCache, EncoderDecoderCache
from test_encoder_decoder import inputs


def run(model, cache, ids, mask=None, **more):
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask, past_key_values=cache, **more)


def fused(family, **options):
    model = families.build(family, attention="kvcache")
    return model, PagedCache(model.config, "fused", **options)


def handed_out(rows=1, tokens=3):
    """A fused cache that waits for layer 0, the layer's module, a query, and the K and V it gave."""
    model, cache = fused("llama")
    keys, values = cache.update(torch.ones(rows, 2, tokens, 16), torch.ones(rows, 2, tokens, 16), 0)
    return cache, model.model.layers[0].self_attn, torch.zeros(rows, 4, tokens, 16), keys, values


# K and V between the cache and attention ----------------------------------------------------------


@pytest.mark.parametrize("family, name", [("diffllama", "V"), ("jetmoe", "K")])
@pytest.mark.skipif(not V5, reason="version 4 has other attention in these families")
def test_a_model_that_changes_what_the_cache_returned_is_refused_when_fused_and_right_when_gathered(
    family, name
):
    model, cache = fused(family)
    with pytest.raises(
        RuntimeError,
        match=f"layer 0: the model changed {name} between the cache and attention; .* "
        f"mode='gather'",
    ):
        decode(model, cache, count=1)
    theirs = families.build(family)
    assert same(
        generate(theirs, PagedCache(theirs.config), new=16),
        generate(theirs, dynamic(theirs), new=16),
    )


@pytest.mark.parametrize("name", ["K", "V"])
@pytest.mark.parametrize(
    "change",
    [
        lambda states: states * 2,
        lambda states: states.mul_(2),
        lambda states: states.repeat(1, 2, 1, 1),
    ],
    ids=["new tensor", "in place", "repeated"],
)
def test_k_and_v_that_the_model_changed_are_refused_by_name(name, change):
    _, module, query, keys, values = handed_out()
    keys, values = (change(keys), values) if name == "K" else (keys, change(values))
    with pytest.raises(
        RuntimeError, match=f"layer 0: the model changed {name} between the cache and attention"
    ):
        kvcache_attention(module, query, keys, values, None)


def test_v_of_another_layer_is_refused():
    model, cache = fused("llama")
    modules = [layer.self_attn for layer in model.model.layers]
    first = cache.update(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 3, 16), 0)
    kvcache_attention(modules[0], torch.zeros(1, 4, 3, 16), *first, None)
    second = cache.update(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 3, 16), 1)
    with pytest.raises(
        RuntimeError, match="layer 1: the model changed V between the cache and attention"
    ):
        kvcache_attention(modules[1], torch.zeros(1, 4, 3, 16), second[0], first[1], None)


def test_a_second_attention_call_of_a_layer_that_shares_nothing_is_refused():
    _, module, query, keys, values = handed_out()
    kvcache_attention(module, query, keys, values, None)
    with pytest.raises(
        RuntimeError, match="layer 0: the model attends the new K and V of this layer twice"
    ):
        kvcache_attention(module, query, keys, values, None)


def test_queries_of_another_number_than_k_are_refused():
    for shape in ((2, 4, 2, 16), (1, 4, 3, 16)):
        _, module, _, keys, values = handed_out(rows=2)
        with pytest.raises(
            NotImplementedError,
            match=f"query: {shape[0]} rows of {shape[2]} queries in layer 0, in a step of 2 "
            f"rows of 3",
        ):
            kvcache_attention(module, torch.zeros(shape), keys, values, None)


@pytest.mark.skipif(not V5, reason="version 4 caches expanded heads")
@pytest.mark.parametrize("name", ["K", "V"])
def test_heads_that_are_not_the_expansion_of_their_latents_are_refused(name, monkeypatch):
    model, cache = fused("deepseek_v3")
    attention = type(model.model.layers[0].self_attn)
    expand = attention.expand_kv

    def other(self, *args, **kwargs):
        keys, values = expand(self, *args, **kwargs)
        return (keys * 1.01, values) if name == "K" else (keys, values * 1.01)

    monkeypatch.setattr(attention, "expand_kv", other)
    with pytest.raises(
        RuntimeError,
        match=f"layer 0: {name} is not what kv_b_proj makes of the cached latents; use "
        f"mla='expanded'",
    ):
        run(model, cache, families.prompt(1, 4)[0])
    run(*fused("deepseek_v3", mla="expanded"), families.prompt(1, 4)[0])


@pytest.mark.parametrize("name", ["K", "V"])
def test_an_encoders_k_and_v_that_the_model_changed_are_refused(name):
    model = families.build("whisper", attention="kvcache")
    cache = PagedEncoderDecoderCache(model.config, "fused").cross_attention_cache
    keys, values = cache.update(torch.ones(1, 4, 5, 16), torch.ones(1, 4, 5, 16), 0)
    (keys if name == "K" else values).add_(1)
    module = model.model.decoder.layers[0].encoder_attn
    with pytest.raises(
        RuntimeError, match=f"layer 0: the model changed {name} between the cache and attention"
    ):
        kvcache_attention(module, torch.zeros(1, 4, 1, 16), keys, values, None)


def test_a_window_over_the_encoder_is_refused():
    model = families.build("whisper", attention="kvcache")
    cache = PagedEncoderDecoderCache(model.config, "fused").cross_attention_cache
    keys, values = cache.update(torch.ones(1, 4, 5, 16), torch.ones(1, 4, 5, 16), 0)
    with pytest.raises(
        NotImplementedError,
        match="sliding_window: attention to the encoder sees all of it, layer 0 asks for 3",
    ):
        kvcache_attention(
            model.model.decoder.layers[0].encoder_attn,
            torch.zeros(1, 4, 1, 16),
            keys,
            values,
            None,
            sliding_window=3,
        )


# Gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attention, mode", [("eager", "gather"), ("sdpa", "gather"), ("kvcache", "fused")]
)
def test_a_cache_refuses_a_forward_that_autograd_records(attention, mode):
    model = families.build("llama", attention=attention)
    ids, _ = families.prompt(1, 5)
    cache = PagedCache(model.config, mode)
    with pytest.raises(
        NotImplementedError,
        match=r"key_states: requires gradients, .* torch.no_grad\(\) or torch.inference_mode\(\)",
    ):
        model(input_ids=ids, labels=ids, past_key_values=cache)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=PagedCache(model.config, mode))
    model.requires_grad_(False)
    model(input_ids=ids, past_key_values=PagedCache(model.config, mode))


def test_attention_without_a_cache_refuses_a_forward_that_autograd_records():
    model = families.build("llama", attention="kvcache")
    ids, mask = families.prompt(1, 5)
    with pytest.raises(NotImplementedError, match="query: requires gradients"):
        model(input_ids=ids, attention_mask=mask, labels=ids, use_cache=False)


@pytest.mark.parametrize(
    "name", ["query", "key", "value", "attention_mask", "s_aux", "position_bias"]
)
def test_every_tensor_that_requires_gradients_is_refused_by_name(name):
    module = families.build("llama").model.layers[0].self_attn
    given = {one: torch.zeros(1, 4, 3, 16) for one in ("query", "key", "value")} | {
        "attention_mask": None
    }
    shapes = dict(attention_mask=(1, 1, 3, 3), s_aux=(4,), position_bias=(1, 4, 3, 3))
    given[name] = torch.zeros(shapes.get(name, (1, 4, 3, 16)), requires_grad=True)
    with pytest.raises(NotImplementedError, match=f"{name}: requires gradients"):
        kvcache_attention(module, **given)
    with torch.no_grad():
        kvcache_attention(module, **given, is_causal=name not in shapes)


def test_an_encoder_decoder_cache_refuses_a_forward_that_autograd_records():
    for mode, attention in (("gather", "eager"), ("fused", "kvcache")):
        model = families.build("whisper", attention=attention)
        cache = PagedEncoderDecoderCache(model.config, mode)
        encoder = model.get_encoder().requires_grad_(False)
        with pytest.raises(NotImplementedError, match="key_states: requires gradients"):
            model(
                encoder_outputs=encoder(**inputs("whisper", torch.float32)),
                decoder_input_ids=torch.ones(2, 1, dtype=torch.long),
                past_key_values=cache,
            )


# Caches and attention implementations that do not go together -------------------------------------


@pytest.mark.parametrize("family", families.CLASS_TABLES)
def test_a_model_without_the_attention_interface_is_refused_by_name_and_right_when_gathered(family):
    with pytest.raises(
        ValueError,
        match="attn_implementation: .*ForCausalLM has no attention interface, .* use PagedCache",
    ):
        families.build(family, attention="kvcache")
    model = families.build(family)
    assert same(
        generate(model, PagedCache(model.config), new=8), generate(model, dynamic(model), new=8)
    )


@pytest.mark.parametrize("family", families.OWN_ATTENTION)
def test_a_model_that_computes_with_its_mask_is_refused_and_right_when_gathered(family):
    said = "attention_mask: the model computes .* of its mask, .* in mode 'gather'"
    if not V5:  # These models make their mask themselves there.
        said = "layer 0: its K and V were given to the cache and never attended by 'kvcache' attention"
    with pytest.raises((NotImplementedError, RuntimeError), match=said):
        run(*fused(family), *families.prompt(1, 4))
    model = families.build(family)
    assert same(
        generate(model, PagedCache(model.config), new=8), generate(model, dynamic(model), new=8)
    )


def test_a_fused_model_with_transformers_cache_is_told_both_settings_and_the_way_out():
    model = families.build("llama", attention="kvcache")
    cache = DynamicCache(config=model.config)
    ids, _ = families.prompt(1, 12)
    run(model, cache, ids)
    with pytest.raises(
        ValueError,
        match=r"past_key_values: 13 keys for 1 queries .* attn_implementation='kvcache', .* "
        r"past_key_values=PagedCache\(config, mode='fused'\), or load it with "
        r"attn_implementation='sdpa'",
    ):
        run(model, cache, ids[:, :1])


def test_a_fused_model_with_a_gathering_cache_is_told_both_settings_and_the_way_out():
    said = (
        r"mode: the cache has mode='gather', the model has attn_implementation='kvcache', .* "
        r"mode='fused', or load the model with"
    )
    model = families.build("llama", attention="kvcache")
    with pytest.raises(ValueError, match=said):
        run(model, PagedCache(model.config), families.prompt(1, 12)[0])
    model = families.build("whisper", attention="kvcache")
    with pytest.raises(ValueError, match=said):
        model.generate(
            **inputs("whisper", torch.float32),
            max_new_tokens=2,
            past_key_values=PagedEncoderDecoderCache(model.config),
        )


def test_a_fused_encoder_decoder_with_transformers_cache_is_told_both_settings_and_the_way_out():
    model = families.build("whisper", attention="kvcache")
    config = model.config.get_text_config(decoder=True)
    cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
    with pytest.raises(
        ValueError,
        match="past_key_values: 2 keys for 1 queries come from a cache that is not fused",
    ):
        model.generate(**inputs("whisper", torch.float32), max_new_tokens=4, past_key_values=cache)


def test_a_fused_cache_in_a_model_with_another_attention_is_told_both_settings_and_the_way_out():
    model = families.build("llama")
    with pytest.raises(
        ValueError,
        match="attn_implementation: a fused cache needs 'kvcache', the model has 'eager'; load "
        "the model with "
        "attn_implementation='kvcache', or make the cache with mode='gather'",
    ):
        run(model, PagedCache(model.config, "fused"), families.prompt(1, 4)[0])


# Padding that recurrent layers read ---------------------------------------------------------------


@pytest.mark.skipif(not V5, reason="recurrent states need transformers 5")
def test_padding_that_recurrent_layers_read_is_refused_when_fused_and_right_when_gathered():
    theirs = families.build("recurrent_gemma")
    model, cache = fused("recurrent_gemma")
    with pytest.raises(
        NotImplementedError,
        match="attention_mask: the recurrent layers of recurrent_gemma read padding, .* "
        "mode='gather'",
    ):
        decode(model, cache, count=1, padding=(0, 3))
    wanted, tokens = decode(theirs, dynamic(theirs), count=16, padding=(0, 0))
    ours, _ = decode(
        model, PagedCache(model.config, "fused"), count=16, padding=(0, 0), forced=tokens
    )
    assert (ours - wanted).abs().max() <= 1e-4 * (wanted.max() - wanted.min())
    gathered = generate(theirs, PagedCache(theirs.config), new=8)
    assert same(gathered, generate(theirs, dynamic(theirs), new=8))


# Models whose past the cache does not hold ----------------------------------------------------------


@pytest.mark.skipif(not V5, reason="version 4 builds other configurations")
@pytest.mark.parametrize("model_type, name", [("openai-gpt", "OpenAIGPTLMHeadModel"), ("mamba", "MambaForCausalLM"), ("rwkv", "RwkvForCausalLM")])
def test_a_model_that_puts_nothing_into_its_cache_is_refused(model_type, name):
    model = shrunk.build(model_type, name)
    cache = PagedCache(model.config)
    with pytest.raises(NotImplementedError, match=f"past_key_values: {name} has put nothing into it"):
        run(model, cache, families.prompt(1, 5)[0], use_cache=True)
    assert run(model, cache, families.prompt(1, 5)[0], use_cache=False).logits.isfinite().all()


@pytest.mark.skipif(not V5, reason="version 4 builds other configurations")
def test_a_recurrent_model_is_served_by_the_name_of_its_own_argument():
    model = shrunk.build("mamba", "MambaForCausalLM")
    ids = families.prompt(2, 9)[0]
    last = []
    with torch.inference_mode():
        for cache in (PagedCache(model.config), dynamic(model)):
            model(input_ids=ids[:, :8], cache_params=cache, use_cache=True)
            last.append(model(input_ids=ids[:, 8:], cache_params=cache, use_cache=True).logits)
    assert torch.equal(*last)
