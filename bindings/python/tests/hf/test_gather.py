# SPDX-License-Identifier: Apache-2.0
"""mode="gather" changes where K and V lie and nothing else: results are equal bit by bit."""

import families
import kvcache
import pytest
import torch
from kvcache.hf import PagedCache
from steps import V5, dynamic, generate, same

DECODERS = {**families.ATTENTION, **families.HYBRID}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", DECODERS)
def test_prefill_and_64_tokens_equal_dynamic_cache_with_left_padding(family, dtype):
    model = families.build(family, dtype)
    wanted = generate(model, dynamic(model))
    assert not any(logits.isnan().any() for logits in wanted.logits)
    cache = PagedCache(model.config)
    assert same(generate(model, cache), wanted)
    cache.store.cache.check()


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "llama4", "deepseek_v3", "qwen3_next", "falcon_h1"])
def test_beam_search_equals_dynamic_cache(family):
    model = families.build(family)
    options = dict(num_beams=3, new=24, rows=2)
    assert same(generate(model, PagedCache(model.config), **options), generate(model, dynamic(model), **options))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_sdpa_attention_equals_dynamic_cache(family):
    model = families.build(family, torch.bfloat16, attention="sdpa")
    assert same(generate(model, PagedCache(model.config)), generate(model, dynamic(model)))


@pytest.mark.parametrize("family", ["llama", "gemma2", "llama4"])
def test_sampling_several_sequences_equals_dynamic_cache(family):
    model = families.build(family)
    options = dict(do_sample=True, num_return_sequences=3, rows=2, new=16)
    torch.manual_seed(5)
    wanted = generate(model, dynamic(model), **options)
    torch.manual_seed(5)
    assert same(generate(model, PagedCache(model.config), **options), wanted)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "llama4"])
def test_assisted_generation_crops_and_equals_dynamic_cache(family):
    if not V5 and family != "llama":
        pytest.skip("the dynamic cache of version 4 cannot crop behind windows")
    model = families.build(family)
    assistant = families.build(family, seed=99)
    options = dict(rows=1, padding=(0,), new=40, assistant_model=assistant)
    cache, theirs = PagedCache(model.config), dynamic(model)
    for one in (cache, theirs) if V5 else (cache,):
        one.activate_past_recording()
    assert same(generate(model, cache, **options), generate(model, theirs, **options))
    cache.store.cache.check()


@pytest.mark.parametrize("page_size", [1, 16, 48])
def test_any_page_size_gives_the_same_bits(page_size):
    model = families.build("gemma2")
    assert same(generate(model, PagedCache(model.config, page_size=page_size)), generate(model, dynamic(model)))


def states(rows, count, seed, heads=2, dim=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, heads, count, dim, generator=generator).to(dtype) for _ in range(2)]


def feed(caches, rows, count, seed):
    """The same random K and V to every layer of all caches; what update returned, cache by cache."""
    returned = [[] for _ in caches]
    for layer in range(len(caches[0].layers)):
        keys, values = states(rows, count, seed * 100 + layer)
        for cache, list_ in zip(caches, returned):
            list_.append(cache.update(keys, values, layer))
    return returned


def assert_equal(ours, theirs):
    for (our_keys, our_values), (keys, values) in zip(ours, theirs):
        assert torch.equal(our_keys, keys)
        assert torch.equal(our_values, values)


def pair(family, **options):
    model = families.build(family)
    return PagedCache(model.config, **options), dynamic(model)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "llama4"])
def test_update_returns_the_view_of_the_dynamic_layer(family):
    ours, theirs = pair(family)
    for step, count in enumerate((3, 1, 7, 1, 1, 30, 1, 2)):
        for layer in range(len(ours.layers)):
            assert ours.layers[layer].get_mask_sizes(torch.arange(count) if not V5 else count) == (
                theirs.layers[layer].get_mask_sizes(torch.arange(count) if not V5 else count))
        assert_equal(*feed((ours, theirs), 2, count, step))
        assert ours.get_seq_length() == theirs.get_seq_length()
        for ours_layer, theirs_layer in zip(ours.layers, theirs.layers):
            assert torch.equal(ours_layer.keys, theirs_layer.keys)
            assert torch.equal(ours_layer.values, theirs_layer.values)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_reorder_repeat_and_select_share_pages_and_equal_the_dynamic_cache(family):
    ours, theirs = pair(family)
    feed((ours, theirs), 2, 9, 0)
    for cache in (ours, theirs):
        cache.batch_repeat_interleave(3)
    assert ours.store.cache.stats().pages_shared > 0
    assert_equal(*feed((ours, theirs), 6, 5, 1))
    for cache in (ours, theirs):
        cache.reorder_cache(torch.tensor([3, 3, 0, 5, 1, 0]))
    assert_equal(*feed((ours, theirs), 6, 1, 2))
    for cache in (ours, theirs):
        cache.batch_select_indices(torch.tensor([5, 0]))
    assert_equal(*feed((ours, theirs), 2, 20, 3))
    ours.store.cache.check()
    ours.reset()
    assert ours.store.cache.is_empty


@pytest.mark.skipif(not V5, reason="version 4 crops to a length")
@pytest.mark.parametrize("recording", ["from the start", "later"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "llama4"])
def test_crop_past_windows_equals_the_dynamic_cache(family, recording):
    ours, theirs = pair(family)
    if recording == "later":
        feed((ours, theirs), 2, 33, 9)
    for cache in (ours, theirs):
        cache.activate_past_recording()
    feed((ours, theirs), 2, 40, 0)
    for drop, count in ((-7, 3), (0, 5), (-3, 9)):  # never more than came since the last crop
        for cache in (ours, theirs):
            cache.crop(drop)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert_equal(*feed((ours, theirs), 2, count, 50 + count))


def test_crop_behind_a_window_without_recording_is_refused():
    ours, _ = pair("mistral")
    feed((ours,), 2, 30, 0)
    with pytest.raises(RuntimeError, match="layer 0 has dropped tokens behind its window of 12"):
        ours.crop(-2)


def test_windows_give_their_pages_back():
    ours, _ = pair("mistral", page_size=4)
    feed((ours,), 1, 12, 0)
    for step in range(60):
        feed((ours,), 1, 1, step)
        ours.get_seq_length()
    ours._commit()
    assert ours.store.cache.stats().pages_used <= 4  # 11 tokens of 4 per page, and a partial page


def test_a_forward_that_stops_halfway_is_undone_and_named():
    ours, theirs = pair("llama")
    assert_equal(*feed((ours, theirs), 2, 5, 0))
    keys, values = states(2, 1, 7)
    ours.update(keys, values, 0)  # and the model fails before layer 1
    with pytest.raises(RuntimeError, match="layer 1 was not attended in the last forward"):
        ours.update(keys, values, 0)
    assert ours.get_seq_length() == 5
    assert_equal(*feed((ours, theirs), 2, 4, 1))


def test_a_full_pool_raises_no_pages_and_changes_nothing():
    ours, theirs = pair("llama", num_pages=4)
    assert_equal(*feed((ours, theirs), 1, 60, 0))
    with pytest.raises((kvcache.NoPages, kvcache.NeverFits)):
        ours.update(*states(1, 10, 1), 0)
    assert ours.get_seq_length() == 60
    assert_equal(*feed((ours, theirs), 1, 4, 2))


@pytest.mark.parametrize("change, message", [
    (lambda k, v: (k[:1], v[:1]), "the cache holds 2 rows, the tensors have 1"),
    (lambda k, v: (k[0], v), r"key_states: expected \[batch, heads, tokens, dim\]"),
    (lambda k, v: (k, v[:, :, :1]), "value_states: shape"),
    (lambda k, v: (k.double(), v.double()), "key_states: expected float32, float16 or bfloat16, got torch.float64"),
])
def test_tensors_that_do_not_fit_are_refused_by_name(change, message):
    ours, _ = pair("llama")
    feed((ours,), 2, 3, 0)
    with pytest.raises((ValueError, TypeError), match=message):
        ours.update(*change(*states(2, 2, 1)), 0)
    feed((ours,), 2, 3, 2)


@pytest.mark.parametrize("options, message", [
    (dict(mode="paged"), "mode: expected one of gather, fused, got 'paged'"),
    (dict(mla="full"), "mla: expected one of latent, expanded, got 'full'"),
    (dict(num_pages=3, byte_budget=5), "num_pages and byte_budget: give one of them"),
])
def test_unknown_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        PagedCache(families.build("llama").config, **options)


def test_a_conversation_continues_in_the_same_cache():
    model = families.build("qwen2")
    results = []
    for cache in (PagedCache(model.config), dynamic(model)):
        ids, mask = families.prompt(2, 12, padding=(0, 3))
        for turn in range(3):
            ids = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=9, do_sample=False, past_key_values=cache)
            more, _ = families.prompt(2, 5, seed=turn)
            ids = torch.cat((ids, more), dim=1)
            mask = torch.cat((mask, torch.ones(2, ids.shape[1] - mask.shape[1], dtype=mask.dtype)), dim=1)
        results.append(ids)
    assert torch.equal(*results)


def test_the_representation_names_mode_layers_and_tokens():
    ours, _ = pair("llama")
    feed((ours,), 2, 3, 0)
    assert repr(ours) == "PagedCache(mode='gather', 3 layers, 2 rows, 3 tokens)"
