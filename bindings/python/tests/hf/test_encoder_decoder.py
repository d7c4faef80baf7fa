# SPDX-License-Identifier: Apache-2.0
"""T5 and Whisper: own K and V beside the encoder's, which are written once per sequence."""

import families
import pytest
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache
from steps import V5, close, decided_search, same_greedy_rows
from transformers import DynamicCache, EncoderDecoderCache

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def inputs(family, dtype, seed=7):
    if family == "whisper":
        sound = torch.randn(2, 8, 60, generator=torch.Generator().manual_seed(seed))
        return dict(input_features=sound.to(dtype))
    ids, mask = families.prompt(2, 20, seed=seed)
    mask[0, -6:] = 0  # the encoder's rows are padded on the right
    return dict(input_ids=ids, attention_mask=mask)


def fused(family):
    if not V5 and family == "t5":
        pytest.skip("T5 has no attention interface in version 4")
    model = families.build(family, attention="kvcache")
    return model, PagedEncoderDecoderCache(model.config, "fused")


def dynamic(model):
    config = model.config.get_text_config(decoder=True)
    return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))


def generate(model, family, cache, dtype=torch.float32, beams=1, new=48, seed=7, noise=None):
    return model.generate(
        **inputs(family, dtype, seed),
        max_new_tokens=new,
        do_sample=False,
        num_beams=beams,
        past_key_values=cache,
        return_dict_in_generate=True,
        output_logits=True,
        logits_processor=noise,
    )


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", families.ENCODER_DECODER)
def test_gathered_results_equal_the_dynamic_cache_bit_by_bit(family, dtype, beams):
    model = families.build(family, dtype)
    wanted = generate(model, family, dynamic(model), dtype, beams)
    ours = generate(model, family, PagedEncoderDecoderCache(model.config), dtype, beams)
    assert torch.equal(ours.sequences, wanted.sequences)
    assert all(torch.equal(one, other) for one, other in zip(ours.logits, wanted.logits))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family", families.ENCODER_DECODER)
def test_fused_float32_logits_and_tokens_are_those_of_eager(family, beams):
    theirs = families.build(family)
    seed, wanted = decided_search(
        lambda seed, noise: generate(
            theirs, family, dynamic(theirs), beams=beams, new=24, seed=seed, noise=noise
        )
    )
    model, cache = fused(family)
    ours = generate(model, family, cache, beams=beams, new=24, seed=seed)
    assert torch.equal(ours.sequences, wanted.sequences)
    assert close(torch.stack(ours.logits), torch.stack(wanted.logits))
    for one in (cache.self_attention_cache, cache.cross_attention_cache):
        one._commit()
        one.store.cache.check()


def test_reset_makes_room_for_another_input():
    model, cache = fused("t5")
    first = generate(model, "t5", cache).sequences
    cache.reset()
    assert torch.equal(generate(model, "t5", cache).sequences, first)


def test_the_encoder_is_written_once():
    model, cache = fused("t5")
    generate(model, "t5", cache, new=4)
    with pytest.raises(RuntimeError, match="layer 1: the encoder's K and V are written once per sequence"):
        cache.cross_attention_cache.update(torch.zeros(2, 4, 3, 16), torch.zeros(2, 4, 3, 16), 1)


def test_a_forward_that_failed_does_not_disturb_another_model():
    broken = families.build("llama", attention="kvcache")
    left = PagedCache(broken.config, "fused")
    left.update(torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 16), 0)  # and attention never comes
    model, cache = fused("whisper")
    theirs = families.build("whisper")
    wanted = generate(theirs, "whisper", dynamic(theirs), new=8)
    assert same_greedy_rows(generate(model, "whisper", cache, new=8), wanted)
