# SPDX-License-Identifier: Apache-2.0
"""Tokens that see each other in both directions: images of Gemma-3, prompts of PaliGemma. Compared with eager attention."""

import families
import pytest
import torch
from kvcache.hf import PagedCache, kvcache_attention
from kvcache.hf.attention import NAME
from steps import FLOAT32, V5, dynamic
from transformers import masking_utils

newest = pytest.mark.skipif(not V5, reason="PaliGemma makes 4-D masks itself in version 4")
FAMILIES = ["gemma3_vision", pytest.param("paligemma", marks=newest)]
PROMPT, NEW = 18, 12


def token_types(family, rows=3):
    """Types of a prompt of which the second row begins with five tokens of padding: two images, or a prefix and text."""
    types = torch.zeros(rows, PROMPT, dtype=torch.long)
    if family == "gemma3_vision":
        types[:, 6:10] = 1
        types[0, 12:PROMPT] = 1
    else:
        types[:, PROMPT - 3:] = 1
    types[-1] = 0
    return types


@torch.inference_mode()
def logits_of(model, cache, types, parts=((0, PROMPT),), padding=(0, 5, 2), forced=None):
    """Logits of real tokens, of a prompt in parts and of single tokens behind it; and what was fed."""
    ids, mask = families.prompt(len(padding), PROMPT, padding=padding)
    out = []
    for begin, end in parts:
        # Types are those of all tokens up to the new ones. Both models read them by position.
        kinds = {} if types is None else dict(token_type_ids=types[:, :end])
        out.append(model(input_ids=ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache,
                         use_cache=cache is not None, **kinds).logits)
    fed = []
    for index in range(NEW if cache is not None else 0):
        token = out[-1][:, -1].argmax(-1) if forced is None else forced[:, index]
        fed.append(token)
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
        out.append(model(input_ids=token[:, None], attention_mask=mask, past_key_values=cache, use_cache=True).logits)
    real = mask.bool()
    return torch.cat(out, dim=1)[real], torch.stack(fed, dim=1) if fed else None


def near(ours, wanted):
    return ours.shape == wanted.shape and bool((ours - wanted).abs().max() <= FLOAT32 * (wanted.max() - wanted.min()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("page_size", [1, 16, 48])
def test_logits_are_those_of_eager_with_padding_and_tokens_behind(family, page_size):
    theirs, model = families.build(family), families.build(family, attention="kvcache")
    types = token_types(family)
    wanted, fed = logits_of(theirs, dynamic(theirs), types)
    cache = PagedCache(model.config, "fused", page_size=page_size)
    ours, _ = logits_of(model, cache, types, forced=fed)
    assert near(ours, wanted)
    causal, _ = logits_of(theirs, dynamic(theirs), token_types(family) * 0 + (family == "paligemma"), forced=fed)
    assert not near(causal, wanted)  # The spans of this prompt matter.
    cache._commit()
    cache.store.cache.check()


def test_types_without_an_image_are_causal_attention_bit_by_bit():
    model = families.build("gemma3_vision", attention="kvcache")
    plain, fed = logits_of(model, PagedCache(model.config, "fused"), None)
    typed, _ = logits_of(model, PagedCache(model.config, "fused"), torch.zeros(3, PROMPT, dtype=torch.long), forced=fed)
    assert torch.equal(plain, typed)


@pytest.mark.parametrize("types", [0, 1])
def test_generate_with_what_the_processor_gives(types):
    theirs, model = families.build("gemma3_vision"), families.build("gemma3_vision", attention="kvcache")
    ids, mask = families.prompt(1, PROMPT)
    kinds = torch.zeros_like(ids)
    kinds[:, 4:8] = types
    given = dict(input_ids=ids, attention_mask=mask, token_type_ids=kinds, max_new_tokens=16, do_sample=False, output_logits=True,
                 return_dict_in_generate=True)
    wanted = theirs.generate(**given)
    ours = model.generate(**given, past_key_values=PagedCache(model.config, "fused"))
    assert torch.equal(ours.sequences, wanted.sequences)
    assert near(torch.stack(ours.logits), torch.stack(wanted.logits))


@pytest.mark.skipif(not V5, reason="version 4 reads the types of the new tokens by position 0")
@pytest.mark.parametrize("parts", [[(0, 6), (6, 10), (10, PROMPT)], [(0, 8), (8, 15), (15, PROMPT)]])
def test_a_prompt_in_parts_that_cut_images_or_not_is_what_eager_makes_of_the_same_parts(parts):
    family = "gemma3_vision"
    theirs, model = families.build(family), families.build(family, attention="kvcache")
    wanted, fed = logits_of(theirs, dynamic(theirs), token_types(family), parts)
    ours, _ = logits_of(model, PagedCache(model.config, "fused"), token_types(family), parts, forced=fed)
    assert near(ours, wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_cache_too(family):
    theirs, model = families.build(family), families.build(family, attention="kvcache")
    wanted, _ = logits_of(theirs, None, token_types(family))
    ours, _ = logits_of(model, None, token_types(family))
    assert near(ours, wanted)


def test_an_image_behind_one_forward_is_left_to_the_past_in_the_next():
    # Types of all tokens are given again: what lies behind the new ones changes nothing any more.
    model = families.build("gemma3_vision", attention="kvcache")
    plain, fed = logits_of(model, PagedCache(model.config, "fused"), None, parts=((0, 12), (12, PROMPT)))
    types = torch.zeros(3, PROMPT, dtype=torch.long)
    types[:, 12:13] = 1  # A span of one token is none.
    typed, _ = logits_of(model, PagedCache(model.config, "fused"), types, parts=((0, 12), (12, PROMPT)), forced=fed)
    assert torch.equal(plain, typed)


# The attention function by itself, in shapes that no model of the tests has -------------------------


def attend_alone(dim, kv_heads, blocks, parts, page_size=16, padding=None, window=0):
    """Attention of one layer over random K and V in parts, and what a softmax over the dense mask in double makes of it."""
    config = families.build("mistral", num_hidden_layers=1, sliding_window=window or None).config
    config._attn_implementation = NAME
    cache = PagedCache(config, "fused", page_size=page_size)
    module = torch.nn.Module()
    module.layer_idx, module.config, module.is_causal = 0, config, True
    batch, length = blocks.shape
    generator = torch.Generator().manual_seed(dim + length)
    query, key, value = (
        torch.randn(batch, heads, length, dim, generator=generator) for heads in (2 * kv_heads, kv_heads, kv_heads)
    )
    function = masking_utils.causal_mask_function
    if hasattr(masking_utils, "blockwise_overlay"):
        function = masking_utils.or_masks(function, masking_utils.blockwise_overlay(blocks))
    if window:
        function = masking_utils.and_masks(masking_utils.sliding_window_overlay(window), function)
    real = torch.ones(batch, length, dtype=torch.bool) if padding is None else padding
    places = torch.arange(length)
    same = (blocks[:, :, None] == blocks[:, None, :]) & (blocks[:, :, None] >= 0)
    seen = ((places[None, :] <= places[:, None]) | same) & real[:, None, :]
    if window:
        seen &= places[None, :] > places[:, None] - window
    ours, wanted = [], []
    for begin, end in parts:
        mask = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[NAME](
            batch_size=batch, q_length=end - begin, kv_length=end, q_offset=begin, kv_offset=0, mask_function=function,
            attention_mask=None if padding is None else padding[:, :end],
        )
        keys, values = cache.update(key[:, :, begin:end], value[:, :, begin:end], 0)
        ours.append(kvcache_attention(module, query[:, :, begin:end], keys, values, mask)[0])
        scores = query[:, :, begin:end].double() @ key[:, :, :end].double().repeat_interleave(2, 1).transpose(2, 3) * dim**-0.5
        scores = scores.masked_fill(~seen[:, None, begin:end, :end], float("-inf"))
        wanted.append((scores.softmax(-1).nan_to_num() @ value[:, :, :end].double().repeat_interleave(2, 1)).transpose(1, 2))
    return torch.cat(ours, 1)[real], torch.cat(wanted, 1)[real]


@newest
@pytest.mark.parametrize("dim, kv_heads, page_size", [(80, 1, 1), (65, 3, 16), (64, 1, 48)])
@pytest.mark.parametrize("window", [0, 11])
def test_random_blocks_in_odd_shapes(dim, kv_heads, page_size, window):
    generator = torch.Generator().manual_seed(dim)
    for length in (1, 2, 37, 70):
        starts = torch.rand(3, length, generator=generator) < 0.3
        blocks = starts.long().cumsum(1)
        blocks = blocks.masked_fill(blocks % 3 == 0, -1)
        padding = torch.ones(3, length, dtype=torch.bool)
        padding[1, : length // 3] = False
        cut = max(length // 2, 1)
        parts = [(0, cut), *([(cut, length)] if cut < length else [])]
        ours, wanted = attend_alone(dim, kv_heads, blocks, parts, page_size, padding, window)
        assert (ours - wanted).abs().max() < 1e-5


# Refused ----------------------------------------------------------------------------------------------


@newest
def test_a_block_whose_tokens_lie_apart_is_refused_and_nothing_has_changed():
    blocks = torch.tensor([[0, 0, -1, 0, 0, -1]])
    with pytest.raises(NotImplementedError, match="token_type_ids: tokens of block 0 of row 0 lie apart"):
        attend_alone(16, 2, blocks, [(0, 6)])
    # In one piece it is served, and one token apart is none.
    for served in ([[0, 0, 0, 0, -1, -1]], [[-1, -1, 0, -1, -1, -1]]):
        ours, wanted = attend_alone(16, 2, torch.tensor(served), [(0, 6)])
        assert (ours - wanted).abs().max() < 1e-5


@newest
def test_a_prefix_that_leaves_its_window_is_refused_and_a_shorter_one_is_right():
    theirs, model = families.build("paligemma2"), families.build("paligemma2", attention="kvcache")
    cache = PagedCache(model.config, "fused")
    types = torch.ones(3, PROMPT, dtype=torch.long)
    types[:, :10] = 0
    with pytest.raises(
        NotImplementedError,
        match="token_type_ids: 10 tokens see each other in both directions, which the window of 9 of layer 0 does not limit",
    ):
        logits_of(model, cache, types, padding=(0, 0, 0))
    assert cache.get_seq_length() == 0
    assert cache._rows == []
    types[:, 9] = 1
    wanted, fed = logits_of(theirs, dynamic(theirs), types, padding=(0, 0, 0))
    ours, _ = logits_of(model, cache, types, padding=(0, 0, 0), forced=fed)
    assert near(ours, wanted)


def test_a_mask_of_ones_own_is_refused_over_cached_tokens_by_its_name():
    def odd(batch, head, query, key):
        return query % 2 == key % 2

    mask = masking_utils.or_masks(masking_utils.causal_mask_function, odd)
    config = families.build("llama").config
    config._attn_implementation = NAME
    cache = PagedCache(config, "fused")
    module = torch.nn.Module()
    module.layer_idx, module.config = 0, config
    given = torch.ones(1, 2, 4, 16)
    places = dict(q_length=4, q_offset=0) if V5 else dict(cache_position=torch.arange(4))
    carrier = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[NAME](batch_size=1, kv_length=4, mask_function=mask, **places)
    keys, values = cache.update(given, given.clone(), 0)
    with pytest.raises(NotImplementedError, match="mask_function: causal_mask_function or .* is none of causal, sliding"):
        kvcache_attention(module, torch.ones(1, 4, 4, 16), keys, values, carrier)
    assert cache.get_seq_length() == 0
