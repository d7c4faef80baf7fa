# SPDX-License-Identifier: Apache-2.0
"""mode="fused": append and attention in C++. Compared with eager: rounding apart in float32, not worse in 16 bits."""

import gc
import random
import weakref

import families
import pytest
import torch
from kvcache.hf import PagedCache
from steps import (
    FARTHER,
    SPREAD,
    V5,
    close,
    decided_search,
    decode,
    dynamic,
    error,
    generate,
    not_farther,
    same_greedy_rows,
    taught,
)

DECODERS = {**families.ATTENTION, **families.HYBRID}


def fused(family, dtype=torch.float32, **options):
    model = families.build(family, dtype, attention="kvcache")
    return model, PagedCache(model.config, "fused", **options)


def eager_run(family, dtype=torch.float32, forced=None, **options):
    model = families.build(family, dtype)
    return decode(model, dynamic(model), forced=forced, **options)


@pytest.mark.parametrize("family", DECODERS)
def test_float32_logits_and_greedy_tokens_are_those_of_eager_with_left_padding(family):
    wanted, tokens = eager_run(family, count=64)
    model, cache = fused(family)
    logits, _ = decode(model, cache, count=64, forced=tokens)
    assert close(logits, wanted)
    assert len(set(tokens.flatten().tolist())) > 20  # the model does not repeat itself
    cache._commit()
    cache.store.cache.check()


# These tiny models repeat one token, whatever their weights: they are told what comes next.
@pytest.mark.parametrize("family", families.SERVED_SINCE_5_24)
def test_float32_logits_over_given_tokens_are_those_of_eager(family):
    theirs = families.build(family)
    model, cache = fused(family)
    assert close(taught(model, cache, 7), taught(theirs, dynamic(theirs), 7))
    assert cache.get_seq_length() == 32


def errors_in_16_bits(family, dtype, seed):
    """Errors of a random model's logits, token by token: fused, and eager in the same type.

    The third result is the difference of the fused logits from float32.
    """
    # Every expert takes part. A token that rounding sends to another expert would hide attention.
    experts = families.all_experts(family)
    theirs = families.build(family, seed=seed, **experts)
    truth = taught(theirs, dynamic(theirs), seed)
    theirs = families.build(family, dtype, seed=seed, **experts)
    eager = error(taught(theirs, dynamic(theirs), seed), truth)
    model = families.build(family, dtype, attention="kvcache", seed=seed, **experts)
    logits = taught(model, PagedCache(model.config, "fused"), seed)
    return error(logits, truth), eager, logits - truth


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", DECODERS)
def test_16_bits_are_not_farther_from_float32_than_eager_is(family, dtype):
    def draw(seed):
        ours, eager, _ = errors_in_16_bits(family, dtype, seed)
        return (ours / eager).log().median().item()

    assert not_farther(draw)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma4"] if "gemma4" in DECODERS else ["llama"])
def test_16_bits_that_are_15_percent_farther_are_noticed(family, dtype):
    def draw(seed):
        ours, eager, difference = errors_in_16_bits(family, dtype, seed)
        # Noise that brings the error of every token to 1.15 times that of eager.
        missing = ((1.15 * eager).square() - ours.square()).clamp(min=0).sqrt()
        noise = (
            torch.randn(difference.shape, generator=torch.Generator().manual_seed(seed))
            * missing[:, None]
        )
        return (error(difference + noise, torch.zeros(())) / eager).log().median().item()

    assert not not_farther(draw)


@pytest.mark.parametrize("mean, verdict", [(0.0, True), (FARTHER, False)])
def test_the_verdict_on_16_bits_is_right_10000_times(mean, verdict):
    generator = random.Random(20261)

    def draw(_):
        return generator.gauss(mean, SPREAD)

    assert all(not_farther(draw) == verdict for _ in range(10000))


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "llama4", "deepseek_v3", "gemma3n"])
def test_prompts_in_chunks_give_the_tokens_of_one_piece(family):
    wanted, tokens = eager_run(family, count=20)
    model, cache = fused(family)
    # Some chunks are padding alone in a row.
    assert close(decode(model, cache, count=20, chunk=3, forced=tokens)[0], wanted)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "falcon_h1"])
def test_beam_search_gives_the_tokens_of_eager(family):
    options = dict(num_beams=3, new=24, rows=2)
    theirs = families.build(family)
    model, cache = fused(family)
    seed, wanted = decided_search(
        lambda seed, noise: generate(
            theirs, dynamic(theirs), seed=seed, logits_processor=noise, **options
        )
    )
    assert torch.equal(generate(model, cache, seed=seed, **options).sequences, wanted.sequences)


@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek_v3"])
def test_assisted_generation_gives_the_tokens_of_eager(family):
    options = dict(rows=1, padding=(0,), new=40)
    theirs = families.build(family)
    model, cache = fused(family)
    cache.activate_past_recording()
    ours = generate(model, cache, assistant_model=families.build(family, seed=99), **options)
    assert same_greedy_rows(ours, generate(theirs, dynamic(theirs), **options))


@pytest.mark.skipif(not V5, reason="version 4 caches expanded heads")
def test_latents_and_expanded_heads_give_the_same_tokens_and_latents_are_smaller():
    wanted, tokens = eager_run("deepseek_v3")
    sizes = {}
    for how in ("latent", "expanded"):
        model, cache = fused("deepseek_v3", mla=how)
        assert close(decode(model, cache, forced=tokens)[0], wanted)
        sizes[how] = cache.store.cache.plan.info.bytes_per_token
    assert sizes == {"latent": 3 * 4 * (32 + 16), "expanded": 3 * 4 * 4 * (40 + 20)}


def test_padding_takes_no_pages():
    model, cache = fused("llama", page_size=1)
    decode(model, cache, count=1)
    cache._commit()
    assert cache.store.cache.stats().pages_used == 3 * 20 - (0 + 5 + 2) + 3


def test_a_4_d_mask_is_added_to_the_scores():
    theirs = families.build("llama")
    model, cache = fused("llama")
    ids, _ = families.prompt(2, 12)
    hidden = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(2)) < 0.3
    hidden |= torch.ones(12, 12, dtype=torch.bool).triu(1)
    hidden &= ~torch.eye(12, dtype=torch.bool)
    mask = torch.zeros(2, 1, 12, 12).masked_fill(hidden, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        wanted = theirs(input_ids=ids, attention_mask=mask, past_key_values=dynamic(theirs)).logits
        ours = model(input_ids=ids, attention_mask=mask, past_key_values=cache).logits
    assert (ours - wanted).abs().max() <= 1e-4 * (wanted.max() - wanted.min())


def test_a_4_d_mask_that_shows_later_tokens_is_refused():
    model, cache = fused("llama")
    ids, _ = families.prompt(1, 5)
    with pytest.raises(NotImplementedError, match="attention_mask: a query would see a later token"), torch.inference_mode():
        model(input_ids=ids, attention_mask=torch.zeros(1, 1, 5, 5), past_key_values=cache)


def test_a_4_d_mask_does_not_meet_a_window():
    model, cache = fused("mistral")
    ids, _ = families.prompt(1, 13)
    mask = torch.zeros(1, 1, 13, 13).masked_fill(torch.ones(13, 13, dtype=torch.bool).triu(1), torch.finfo(torch.float32).min)
    with pytest.raises(NotImplementedError, match="attention_mask: 4-D, over 13 tokens; layer 0 would also hide"), torch.inference_mode():
        model(input_ids=ids, attention_mask=mask, past_key_values=cache)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3"])
def test_without_a_cache_the_logits_are_those_of_eager(family):
    theirs = families.build(family)
    model, _ = fused(family)
    ids, mask = families.prompt(3, 24, padding=(0, 5, 2))
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.inference_mode():
        wanted, ours = (one(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[mask.bool()]
                        for one in (theirs, model))
    assert (ours - wanted).abs().max() <= 1e-4 * (wanted.max() - wanted.min())


def run(model, cache, ids, mask=None, **more):
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask, past_key_values=cache, **more)


def test_a_model_with_another_attention_is_refused():
    model = families.build("llama")
    with pytest.raises(ValueError, match="attn_implementation: a fused cache needs 'kvcache', the model has 'eager'"):
        run(model, PagedCache(model.config, "fused"), families.prompt(1, 4)[0])


def test_arguments_that_change_the_maths_and_are_unknown_are_refused_by_name():
    model, cache = fused("llama")
    with pytest.raises(NotImplementedError, match="head_gate: kvcache attention does not know this argument"):
        run(model, cache, families.prompt(1, 4)[0], head_gate=torch.ones(4))


def test_attention_weights_are_refused_by_name():
    model, cache = fused("llama")
    attention = model.model.layers[0].self_attn
    with pytest.raises(NotImplementedError, match="output_attentions: kvcache does not return attention weights"):
        from kvcache.hf import kvcache_attention
        kvcache_attention(attention, *(torch.zeros(1, 4, 2, 16),) * 3, None, output_attentions=True)


def test_dropout_is_refused():
    model = families.build("llama", attention="kvcache", attention_dropout=0.3)
    model.train()
    refusal = pytest.raises(NotImplementedError, match="dropout: kvcache attends without dropout, got 0.3")
    with torch.no_grad(), refusal:
        model(input_ids=families.prompt(1, 4)[0], past_key_values=PagedCache(model.config, "fused"))


def test_k_that_the_model_replaced_is_noticed():
    model, cache = fused("llama")
    attention = model.model.layers[0].self_attn
    keys, values = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 16)
    new_keys, new_values = cache.update(keys, values, 0)
    from kvcache.hf import kvcache_attention
    with pytest.raises(RuntimeError, match="layer 0: the model changed K between the cache and attention"):
        kvcache_attention(attention, torch.zeros(1, 4, 3, 16), new_keys * 2, new_values, None)


def test_k_that_nobody_attended_is_noticed():
    model, cache = fused("llama")
    cache.update(torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 16), 0)
    with pytest.raises(RuntimeError, match="layer 0: its K and V were given to the cache and never attended"):
        cache.update(torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 16), 1)


def test_a_mask_that_changes_its_mind_is_refused():
    model, cache = fused("llama")
    ids, mask = families.prompt(2, 6, padding=(0, 2))
    run(model, cache, ids, mask)
    other = torch.ones(2, 7, dtype=mask.dtype)
    with pytest.raises(ValueError, match="attention_mask: tokens that were padding before are not masked any more"):
        run(model, cache, ids[:, :1], other)
    other[0, 3] = 0
    with pytest.raises(ValueError, match="attention_mask: differs from the one that the cached tokens were given with"):
        run(model, cache, ids[:, :1], other)


def test_padding_inside_a_row_is_refused_where_layers_slide_and_right_where_they_do_not():
    ids, mask = families.prompt(2, 9)
    mask[0, 4:6] = 0
    model, cache = fused("mistral")
    with pytest.raises(NotImplementedError, match="attention_mask: padding between tokens of a row"):
        run(model, cache, ids, mask)
    theirs = families.build("llama")
    model, cache = fused("llama")
    wanted = run(theirs, dynamic(theirs), ids, mask).logits[mask.bool()]
    ours = run(model, cache, ids, mask).logits[mask.bool()]
    assert (ours - wanted).abs().max() <= 1e-4 * (wanted.max() - wanted.min())


def test_an_exception_in_the_middle_of_a_forward_undoes_it():
    model, cache = fused("llama")
    ids, mask = families.prompt(2, 6, padding=(0, 2))
    run(model, cache, ids, mask)
    broken = model.model.layers[2].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyError("broken")))
    more = torch.ones(2, 7, dtype=mask.dtype)
    more[1, :2] = 0
    with pytest.raises(KeyError, match="broken"):
        run(model, cache, ids[:, :1], more)
    broken.remove()
    assert cache.get_seq_length() == 6
    theirs = families.build("llama")
    others = dynamic(theirs)
    run(theirs, others, ids, mask)
    position = more.sum(-1, keepdim=True) - 1
    wanted = run(theirs, others, ids[:, :1], more, position_ids=position).logits
    assert (run(model, cache, ids[:, :1], more, position_ids=position).logits - wanted).abs().max() <= 1e-4 * (
        wanted.max() - wanted.min())


def test_a_forward_that_leaves_layers_out_is_undone_by_the_next_one():
    from kvcache.hf.attention import kvcache_attention

    model, cache = fused("llama")
    modules = [layer.self_attn for layer in model.model.layers]
    for index in (0, 2):
        states = cache.update(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 3, 16), index)
        kvcache_attention(modules[index], torch.zeros(1, 4, 3, 16), *states, None)
    with pytest.raises(RuntimeError, match="layer 1 was not attended in the last forward of the model; that forward has been undone"):
        cache.update(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 3, 16), 0)
    assert cache.get_seq_length() == 0


def test_keys_and_values_can_be_read_as_the_dynamic_cache_has_them():
    theirs = families.build("gemma2")
    others = dynamic(theirs)
    _, tokens = decode(theirs, others, count=20, padding=(0, 0))
    model, cache = fused("gemma2")
    decode(model, cache, count=20, padding=(0, 0), forced=tokens)
    for ours, other in zip(cache.layers, others.layers):
        assert torch.allclose(ours.keys, other.keys, atol=1e-4)
        assert torch.allclose(ours.values, other.values, atol=1e-4)


def test_a_cache_frees_its_pages_when_it_goes():
    model, cache = fused("llama")
    decode(model, cache, count=2)
    pages = weakref.ref(cache.store.cache)
    del cache
    gc.collect()
    assert pages() is None
