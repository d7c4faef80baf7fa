# SPDX-License-Identifier: Apache-2.0
"""PagedCache.from_cache: K and V that are there already, from another cache or trained as a prefix."""

import families
import pytest
import torch
from kvcache.hf import PagedCache
from steps import FLOAT32, V5, dynamic
from test_saved import continued
from transformers import EncoderDecoderCache, StaticCache

FAMILIES = [*families.ATTENTION, *families.HYBRID]
PADDING = (0, 5, 2)


def filled(model, cache, padding=PADDING, length=21):
    ids, mask = families.prompt(len(padding), length, padding=padding)
    with torch.inference_mode():
        model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), past_key_values=cache)
    return cache, mask


def near(ours, wanted):
    return bool((ours - wanted).abs().max() <= FLOAT32 * (wanted.max() - wanted.min()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [21, 9])
def test_a_fused_cache_goes_on_from_transformers_own(family, length):
    theirs, model = families.build(family), families.build(family, attention="kvcache")
    source, mask = filled(theirs, dynamic(theirs), length=length)
    ours = PagedCache.from_cache(source, model.config, attention_mask=mask)
    assert ours.get_seq_length() == length
    assert near(continued(model, ours, mask), continued(theirs, source, mask))
    ours._commit()
    ours.store.cache.check()


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "qwen3_next", "deepseek_v3"])
def test_a_gathering_cache_becomes_a_fused_one_and_back(family):
    theirs, model = families.build(family), families.build(family, attention="kvcache")
    source, mask = filled(theirs, PagedCache(theirs.config))
    fused = PagedCache.from_cache(source, model.config, attention_mask=mask)
    assert near(continued(model, fused, mask), continued(theirs, source, mask))
    # Without padding the way back is as short.
    alone, ones = filled(model, PagedCache(model.config, "fused"), padding=(0,))
    back = PagedCache.from_cache(alone, theirs.config, "gather")
    assert near(continued(theirs, back, ones), continued(model, alone, ones))


@pytest.mark.parametrize("dims", [(64, 4, 2, 16), (80, 1, 1, 80), (66 * 6, 6, 3, 66)])
@pytest.mark.parametrize("page_size", [1, 16, 48])
@pytest.mark.parametrize("tokens", [1, 30])
def test_a_trained_prefix_in_odd_shapes(dims, page_size, tokens):
    hidden, heads, kv_heads, dim = dims
    shape = dict(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim)
    theirs = families.build("llama", **shape)
    model = families.build("llama", attention="kvcache", **shape)
    generator = torch.Generator().manual_seed(tokens)
    prefix = [tuple(torch.randn(2, kv_heads, tokens, dim, generator=generator) for _ in range(2)) for _ in range(3)]
    source = dynamic(theirs)
    for index, (keys, values) in enumerate(prefix):
        source.update(keys, values, index)
    ours = PagedCache.from_cache(prefix, model.config, page_size=page_size)
    mask = torch.ones(2, tokens, dtype=torch.long)
    assert near(continued(model, ours, mask), continued(theirs, source, mask))


@pytest.mark.parametrize("mode", ["fused", "gather"])
@pytest.mark.parametrize("dim, kv_heads, page_size", [(65, 1, 1), (80, 3, 48), (65, 3, 16)])
def test_what_was_given_is_read_back(mode, dim, kv_heads, page_size):
    config = families.build("llama", num_attention_heads=6, num_key_value_heads=kv_heads, hidden_size=96).config
    given = [tuple(torch.randn(2, kv_heads, 50, dim) for _ in range(2)) for _ in range(3)]
    mask = torch.ones(2, 50)
    mask[1, :20] = 0
    cache = PagedCache.from_cache(given, config, mode, page_size=page_size, **(dict(attention_mask=mask) if mode == "fused" else {}))
    for layer, both in zip(cache.layers, given):
        for ours, wanted in zip((layer.keys, layer.values), both):
            assert torch.equal(ours, wanted * mask[:, None, :, None] if mode == "fused" else wanted)
    cache.store.cache.check()


def test_generate_behind_a_prefix():
    theirs, model = families.build("llama"), families.build("llama", attention="kvcache")
    prefix = [tuple(torch.randn(2, 2, 7, 16, generator=torch.Generator().manual_seed(index)) for _ in range(2)) for index in range(3)]
    source = dynamic(theirs)
    for index, both in enumerate(prefix):
        source.update(*both, index)
    ids, mask = families.prompt(2, 12)
    given = dict(input_ids=torch.cat((ids[:, :7], ids), 1), attention_mask=torch.cat((mask[:, :7], mask), 1), max_new_tokens=12,
                 do_sample=False)
    wanted = theirs.generate(**given, past_key_values=source)
    assert torch.equal(model.generate(**given, past_key_values=PagedCache.from_cache(prefix, model.config)), wanted)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_narrower_pages_hold_what_a_forward_would_have_stored(dtype):
    model = families.build("llama", attention="kvcache")
    computed, mask = filled(model, PagedCache(model.config, "fused", dtype=dtype), padding=(0, 3))
    theirs = families.build("llama")
    source, _ = filled(theirs, dynamic(theirs), padding=(0, 3))
    ours = PagedCache.from_cache(source, model.config, attention_mask=mask, dtype=dtype)
    # The first layer's K and V do not depend on attention.
    assert (ours.layers[0].keys - computed.layers[0].keys)[1, :, 3:].abs().max() < 1e-6
    assert (ours.layers[0].values - computed.layers[0].values).abs().max() < 1e-6


@pytest.mark.skipif(not V5, reason="version 4 has other static caches")
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_static_cache_is_read_as_far_as_it_is_filled(family):
    theirs, model = families.build(family), families.build(family, attention="kvcache")
    source, mask = filled(theirs, StaticCache(config=theirs.config, max_cache_len=100), padding=(0, 0))
    wanted, _ = filled(theirs, dynamic(theirs), padding=(0, 0))
    ours = PagedCache.from_cache(source, model.config)
    assert near(continued(model, ours, mask), continued(theirs, wanted, mask))


def test_the_source_is_left_alone_and_the_copy_goes_its_own_way():
    theirs, model = families.build("llama"), families.build("llama", attention="kvcache")
    source, mask = filled(theirs, dynamic(theirs))
    before = [layer.keys.clone() for layer in source.layers]
    first, second = (PagedCache.from_cache(source, model.config, attention_mask=mask) for _ in range(2))
    one = continued(model, first, mask)
    assert torch.equal(continued(model, second, mask), one)
    assert all(torch.equal(layer.keys, kept) for layer, kept in zip(source.layers, before))


# Refused ----------------------------------------------------------------------------------------------


def test_bad_input_is_refused_by_name():
    model = families.build("llama", attention="kvcache")
    config = model.config

    def layer(batch=2, heads=2, tokens=5, dim=16, dtype=torch.float32):
        return torch.ones(batch, heads, tokens, dim, dtype=dtype), torch.ones(batch, heads, tokens, dim, dtype=dtype)

    good = [layer()] * 3
    for other, error, said in [
        (3, TypeError, "other: expected a cache, or K and V of every layer, got int"),
        (good[:2], ValueError, "other: 2 layers, layer 2 of the model keeps K and V"),
        ([*good[:2], (None, None)], ValueError, "other: layer 2 holds no tokens"),
        ([*good[:2], layer(tokens=4)], ValueError, "other: layer 2 has 4 tokens, the layers before it 5"),
        ([*good[:2], layer(batch=1)], ValueError, "other: layer 2 has 1 rows .* the first has 2"),
        ([*good[:2], layer(dtype=torch.bfloat16)], ValueError, "other: layer 2 has 2 rows in torch.bfloat16"),
        ([*good[:2], (layer()[0], layer(tokens=4)[1])], ValueError, "other: layer 2 has keys of shape .* and values of"),
        ([layer(heads=3)] * 3, ValueError, "other: layer 0 has 3 heads of K, the model has 4 query heads"),
        ([layer(tokens=0)] * 3, ValueError, "other: layer 0 has keys of shape"),
        ([(torch.tensor([]), torch.tensor([]))] * 3, ValueError, r"other: layer 0 is a tuple with keys of shape \(0,\)"),
        ([layer(dtype=torch.float64)] * 3, TypeError, "layer 0, keys: expected float32"),
        (dynamic(model), ValueError, "other: layer 0 holds no tokens"),
        (PagedCache(config), ValueError, "other: layer 0 holds no tokens"),
        (EncoderDecoderCache(dynamic(model), dynamic(model)), TypeError, "its self_attention_cache holds the decoder's tokens"),
    ]:
        with pytest.raises(error, match=said):
            PagedCache.from_cache(other, config)
    mask = torch.ones(2, 5)
    with pytest.raises(ValueError, match=r"attention_mask: shape \(2, 4\), the tokens of other make \(2, 5\)"):
        PagedCache.from_cache(good, config, attention_mask=mask[:, :4])
    with pytest.raises(ValueError, match="attention_mask: every token is padding"):
        PagedCache.from_cache(good, config, attention_mask=mask * 0)
    with pytest.raises(ValueError, match="attention_mask: mode='gather' keeps padding"):
        PagedCache.from_cache(good, config, "gather", attention_mask=mask)
    with pytest.raises(Exception, match="num_pages|pages"):
        PagedCache.from_cache([layer(tokens=500)] * 3, config, num_pages=2)
    assert PagedCache.from_cache(good, config).get_seq_length() == 5


def test_a_window_that_the_source_has_dropped_is_refused():
    theirs, model = families.build("mistral"), families.build("mistral", attention="kvcache", sliding_window=30)
    source, mask = filled(theirs, dynamic(theirs), padding=(0,))
    with pytest.raises(ValueError, match="other: layer 0 holds the last 11 of 21 tokens, and later ones can attend to 21"):
        PagedCache.from_cache(source, model.config)


@pytest.mark.skipif(not V5, reason="version 4 keeps expanded heads, and no states")
def test_latents_that_only_the_model_expands_and_states_that_are_not_there_are_refused():
    theirs = families.build("deepseek_v3")
    source, _ = filled(theirs, dynamic(theirs), padding=(0,))
    with pytest.raises(NotImplementedError, match="mla: layer 0 of other holds latents, .* use mla='latent'"):
        PagedCache.from_cache(source, theirs.config, mla="expanded")
    hybrid = families.build("qwen3_next")
    both = torch.ones(1, 2, 3, 16), torch.ones(1, 2, 3, 16)
    with pytest.raises(NotImplementedError, match="other: layer 0 of the model keeps a recurrent state"):
        PagedCache.from_cache([both] * 4, hybrid.config)
