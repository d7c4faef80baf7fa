# SPDX-License-Identifier: Apache-2.0
"""Models with attn_implementation="kvcache" that are given no cache: a fused one is made by itself."""

import threading

import families
import pytest
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache
from steps import FLOAT32, V5, close, same_greedy, same_greedy_rows
from test_encoder_decoder import inputs
from transformers import DynamicCache, EncoderDecoderCache

DECODERS = ["llama", "mistral", "gemma2", "gemma3n", "deepseek_v3", "llama4", "qwen3_next"]
ENCODER_DECODER = [pytest.param("t5", marks=pytest.mark.skipif(not V5, reason="no attention interface")), "whisper"]


def both(family, **changes):
    return families.build(family, **changes), families.build(family, attention="kvcache", **changes)


def generate(model, rows=2, new=16, **options):
    ids, mask = families.prompt(rows, 20, padding=(0, 4)[:rows])
    return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new, do_sample=False, return_dict_in_generate=True,
                          output_logits=True, **options)


@pytest.mark.parametrize("family", DECODERS)
def test_generate_makes_a_fused_cache(family):
    theirs, model = both(family)
    wanted, ours = generate(theirs), generate(model)
    assert same_greedy_rows(ours, wanted)
    assert type(ours.past_key_values) is PagedCache
    assert ours.past_key_values.mode == "fused"
    assert type(wanted.past_key_values) is DynamicCache
    ours.past_key_values._commit()
    ours.past_key_values.store.cache.check()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_second_stream_of_guidance_has_one_too(family):
    theirs, model = both(family)
    wanted = generate(theirs, guidance_scale=1.5)
    assert same_greedy_rows(generate(model, guidance_scale=1.5), wanted)
    given = PagedCache(model.config, "fused")
    assert same_greedy_rows(generate(model, guidance_scale=1.5, past_key_values=given), wanted)


@pytest.mark.parametrize("family", ["llama", "mistral", "deepseek_v3"])
@pytest.mark.parametrize("given", [False, True])
def test_a_draft_model_has_one_too(family, given):
    theirs, model = both(family)
    drafts = both(family, seed=5)
    wanted = generate(theirs, rows=1, assistant_model=drafts[0])
    cache = dict(past_key_values=PagedCache(model.config, "fused")) if given else {}
    if given and not V5:  # Version 5 does it by itself.
        cache["past_key_values"].activate_past_recording()
    ours = generate(model, rows=1, assistant_model=drafts[1], **cache)
    assert same_greedy(ours.sequences[0, 20:].tolist(), wanted.sequences[0, 20:].tolist(), torch.cat(wanted.logits))


@pytest.mark.skipif(not V5, reason="version 4 needs a token that ends the text")
@pytest.mark.parametrize("options", [dict(assistant_early_exit=2), dict(prompt_lookup_num_tokens=3)])
def test_early_exit_and_prompt_lookup(options):
    theirs, model = both("llama")
    wanted = generate(theirs, rows=1, **options)
    ours = generate(model, rows=1, **options)
    assert same_greedy(ours.sequences[0, 20:].tolist(), wanted.sequences[0, 20:].tolist(), torch.cat(wanted.logits))
    assert type(ours.past_key_values) is PagedCache


@pytest.mark.parametrize("family", DECODERS)
@torch.inference_mode()
def test_a_forward_without_a_cache_returns_a_fused_one_that_goes_on(family):
    theirs, model = both(family)
    ids, mask = families.prompt(2, 20, padding=(0, 4))
    wanted, ours = (one(input_ids=ids, attention_mask=mask) for one in (theirs, model))
    assert type(ours.past_key_values) is PagedCache
    longer = torch.cat((mask, mask[:, -1:]), dim=1)
    more = [
        one(input_ids=ids[:, :1], attention_mask=longer, past_key_values=first.past_key_values).logits
        for one, first in ((theirs, wanted), (model, ours))
    ]
    real = mask.bool()
    logits = [torch.cat((first.logits[real], last[:, 0])) for first, last in zip((wanted, ours), more)]
    assert close(logits[1], logits[0])


def test_without_a_cache_none_is_made():
    model = families.build("llama", attention="kvcache")
    with torch.inference_mode():
        assert model(input_ids=families.prompt(1, 5)[0], use_cache=False).past_key_values is None
    assert generate(model, new=2, use_cache=False).past_key_values is None


@pytest.mark.parametrize("family", ENCODER_DECODER)
@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_decoder_gets_both_caches(family, beams):
    theirs, model = both(family)
    given = dict(inputs(family, torch.float32), max_new_tokens=12, do_sample=False, num_beams=beams)
    assert torch.equal(model.generate(**given), theirs.generate(**given))
    with torch.inference_mode():
        start = torch.ones(2, 3, dtype=torch.long)
        given = inputs(family, torch.float32)
        wanted, ours = (one(**given, decoder_input_ids=start) for one in (theirs, model))
    assert type(ours.past_key_values) is PagedEncoderDecoderCache
    assert (ours.logits - wanted.logits).abs().max() <= FLOAT32 * (wanted.logits.max() - wanted.logits.min())


def test_whispers_long_form():
    def transcribe(attention):
        model = families.build("whisper", attention=attention)
        settings = model.generation_config
        settings.no_timestamps_token_id, settings.eos_token_id, settings.max_initial_timestamp_index = 150, 149, 5
        settings.is_multilingual, settings.return_timestamps = False, True
        model.config.eos_token_id = 149
        sound = torch.randn(2, 8, 150, generator=torch.Generator().manual_seed(3))
        mask = torch.ones(2, 150, dtype=torch.long)
        mask[1, 130:] = 0
        return model.generate(input_features=sound, attention_mask=mask, return_timestamps=True, return_segments=True,
                              max_new_tokens=20, do_sample=False)

    wanted, ours = transcribe("eager"), transcribe("kvcache")
    assert torch.equal(ours["sequences"], wanted["sequences"])
    segments = [[len(row) for row in one["segments"]] for one in (wanted, ours)]
    assert segments[0] == segments[1]
    assert min(segments[0]) > 1


def test_other_models_and_other_threads_keep_transformers_cache():
    theirs, model = both("llama")
    made = []

    def in_another_thread(*_):
        thread = threading.Thread(target=lambda: made.append(DynamicCache(config=theirs.config)))
        thread.start()
        thread.join()
        made.append(DynamicCache(config=theirs.config))  # in a forward of the model with pages

    model.model.layers[0].register_forward_pre_hook(in_another_thread)
    with torch.inference_mode():
        model(input_ids=families.prompt(1, 5)[0])
    config = model.config
    made += [DynamicCache(config=config), EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))]
    assert [type(one) for one in made] == [DynamicCache] * 3 + [EncoderDecoderCache]
    assert type(generate(theirs, new=2).past_key_values) is DynamicCache


def test_a_forward_that_fails_leaves_no_pages_and_the_next_one_works():
    model = families.build("llama", attention="kvcache")
    ids = families.prompt(1, 5)[0]
    hook = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with torch.inference_mode():
        with pytest.raises(ZeroDivisionError):
            model(input_ids=ids)
        hook.remove()
        assert model(input_ids=ids).past_key_values.get_seq_length() == 5


# Refused ----------------------------------------------------------------------------------------------


def test_layers_that_no_page_serves_are_named_by_generate_and_a_forward_needs_no_past():
    model = families.build("llama", attention="kvcache")
    model.config.layer_types = ["full_attention", "odd_attention", "full_attention"]
    with pytest.raises(NotImplementedError, match="config: layer 1 is of type 'odd_attention'"):
        generate(model, new=2)


def test_a_cache_implementation_that_the_caller_chose_is_refused_with_the_way_out():
    model = families.build("llama", attention="kvcache")
    with pytest.raises(ValueError, match="give no cache and no cache_implementation, then a fused one is made"):
        generate(model, new=4, cache_implementation="static")


@pytest.mark.parametrize("mode, attention", [("fused", "kvcache"), ("gather", "eager")])
def test_a_cache_without_a_place_for_the_encoder_is_refused_and_nothing_has_changed(mode, attention):
    model = families.build("whisper", attention=attention)
    cache = PagedCache(model.config, mode)
    with pytest.raises(
        ValueError,
        match="past_key_values: WhisperForConditionalGeneration has an encoder, .* "
        rf"give it PagedEncoderDecoderCache\(model.config, mode='{mode}'\)",
    ):
        model.generate(**inputs("whisper", torch.float32), max_new_tokens=2, past_key_values=cache)
    assert cache.get_seq_length() == 0
    assert cache.store is None
