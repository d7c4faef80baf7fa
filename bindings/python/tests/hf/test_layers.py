# SPDX-License-Identifier: Apache-2.0
"""Models that have other layers than their configuration says, or leave some out."""

import families
import pytest
import torch
import transformers
from kvcache.hf import PagedCache, PagedEncoderDecoderCache
from steps import FLOAT32, V5, decode, dynamic, same_greedy
from test_encoder_decoder import inputs
from test_saved import continued

MODES = ["gather", "fused"]


def agrees(mode, ours, wanted):
    if mode == "gather":
        return torch.equal(ours, wanted)
    return bool((ours - wanted).abs().max() <= FLOAT32 * (wanted.max() - wanted.min()))


def attention(mode):
    return "kvcache" if mode == "fused" else "eager"


def decoder(name, own, encoder, attention="eager"):
    """BartForCausalLM or WhisperForCausalLM of a configuration with other numbers of layers and heads for the encoder."""
    common = dict(vocab_size=families.VOCAB, pad_token_id=0, bos_token_id=1, eos_token_id=None, d_model=64, decoder_layers=own,
                  encoder_layers=encoder, decoder_attention_heads=4, encoder_attention_heads=2)
    if name == "Bart":
        config = transformers.BartConfig(**common, decoder_ffn_dim=96, encoder_ffn_dim=96, max_position_embeddings=128)
        config.is_decoder, config.is_encoder_decoder = True, False
    else:
        config = transformers.WhisperConfig(**common, decoder_ffn_dim=96, encoder_ffn_dim=96, max_target_positions=128,
                                            max_source_positions=30, num_mel_bins=8)
    config._attn_implementation = attention
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    families.rescale(model, 3, embedding=0.3)
    return model.eval()


@torch.inference_mode()
def fed(model, cache, parts=((0, 9), (9, 10), (10, 14), (14, 15))):
    ids = families.prompt(2, 15)[0]
    return torch.cat([model(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True).logits for begin, end in parts], 1)


@pytest.mark.parametrize("name", ["Bart", "Whisper"])
@pytest.mark.parametrize("layers", [(2, 4), (4, 2)])
@pytest.mark.parametrize("mode", MODES)
def test_a_decoder_taken_out_of_an_encoder_decoder_has_its_own_number_of_layers(name, layers, mode):
    theirs, model = decoder(name, *layers), decoder(name, *layers, attention(mode))
    cache = PagedCache(model.config, mode)
    assert len(cache.layers) == layers[0]
    ours, wanted = fed(model, cache), fed(theirs, transformers.DynamicCache())
    assert agrees(mode, ours, wanted)
    if mode == "fused":
        imported = transformers.DynamicCache()
        fed(theirs, imported, ((0, 9),))
        copy = PagedCache.from_cache(imported, model.config)
        assert agrees(mode, fed(model, copy, ((9, 10),)), fed(theirs, imported, ((9, 10),)))


@pytest.mark.skipif(not V5, reason="version 4 makes its own cache of the wrong number of layers")
def test_a_draft_decoder_with_fewer_layers_than_the_encoder():
    theirs, model = decoder("Bart", 2, 4), decoder("Bart", 2, 4, "kvcache")
    given = dict(input_ids=families.prompt(1, 9)[0], max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(**given), theirs.generate(**given))


def pruned(family, mode, left=(1,)):
    """A model without some of its layers, whose configuration still counts them."""
    models = []
    for implementation in ("eager", attention(mode)):
        model = families.build(family, attention=implementation)
        model.model.layers = torch.nn.ModuleList(layer for index, layer in enumerate(model.model.layers) if index not in left)
        models.append(model)
    return models


@pytest.mark.parametrize("family", ["llama", "mistral", "deepseek_v3"])
@pytest.mark.parametrize("mode", MODES)
def test_a_pruned_stack_is_what_it_is_with_the_dynamic_cache(family, mode):
    theirs, model = pruned(family, mode)
    cache = PagedCache(model.config, mode)
    wanted, tokens = decode(theirs, dynamic(theirs), count=16)
    ours, _ = decode(model, cache, count=16, forced=tokens)
    assert agrees(mode, ours, wanted)
    assert cache.layers[1].get_seq_length() == 0
    cache.store.cache.check()


@pytest.mark.parametrize("mode", MODES)
def test_a_pruned_stack_survives_failures_branches_crops_and_files(mode, tmp_path):
    theirs, model = pruned("llama", mode)
    cache, other = PagedCache(model.config, mode), dynamic(theirs)
    ids, mask = families.prompt(2, 12)
    with torch.inference_mode():
        for one, past in ((model, cache), (theirs, other)):
            one(input_ids=ids, past_key_values=past)
        hook = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(input_ids=ids, past_key_values=cache)
        hook.remove()
    assert cache.get_seq_length() == 12
    cache.crop(-2)
    other.crop(-2 if V5 else 10)
    cache.save(tmp_path / "rows")
    wanted = continued(theirs, other, mask[:, :10], 4)
    for one in (cache.branch(), PagedCache.load(tmp_path / "rows", model.config), cache):
        assert agrees(mode, continued(model, one, mask[:, :10], 4), wanted)


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_that_comes_late_is_refused_and_so_is_one_that_goes(mode):
    _, model = pruned("llama", mode)
    whole = families.build("llama", attention=attention(mode))
    ids = families.prompt(1, 5)[0]
    with torch.inference_mode():
        cache = PagedCache(model.config, mode)
        model(input_ids=ids, past_key_values=cache)
        with pytest.raises(RuntimeError, match="layer 1: the forwards before left it out, so it has no K and V of their tokens"):
            whole(input_ids=ids, past_key_values=cache)
        assert cache.get_seq_length() == 5
        model(input_ids=ids, past_key_values=cache)
        cache.reset()
        whole(input_ids=ids, past_key_values=cache)
        with pytest.raises(RuntimeError, match="layer 1 was not attended in the last forward"):
            model(input_ids=ids, past_key_values=cache)
        assert cache.get_seq_length() == 5
        whole(input_ids=ids, past_key_values=cache)
    assert cache.get_seq_length() == 10
    cache.store.cache.check()


@pytest.mark.skipif(not V5, reason="version 4 needs a token that ends the text")
@pytest.mark.parametrize("given", [False, True])
def test_early_exit_leaves_layers_of_the_draft_out(given):
    theirs, model = families.build("llama"), families.build("llama", attention="kvcache")
    options = dict(input_ids=families.prompt(1, 12)[0], max_new_tokens=12, do_sample=False, assistant_early_exit=1, output_logits=True,
                   return_dict_in_generate=True)
    wanted = theirs.generate(**options)
    ours = model.generate(**options, **(dict(past_key_values=PagedCache(model.config, "fused")) if given else {}))
    assert same_greedy(ours.sequences[0, 12:].tolist(), wanted.sequences[0, 12:].tolist(), torch.cat(wanted.logits))


@pytest.mark.parametrize("mode", MODES)
def test_an_encoder_decoder_with_a_pruned_decoder(mode):
    def build(implementation):
        model = families.build("whisper", attention=implementation)
        model.model.decoder.layers = model.model.decoder.layers[:2]
        return model

    theirs, model = build("eager"), build(attention(mode))
    given = dict(inputs("whisper", torch.float32), max_new_tokens=12, do_sample=False)
    ours = model.generate(**given, past_key_values=PagedEncoderDecoderCache(model.config, mode))
    assert torch.equal(ours, theirs.generate(**given))


# Layers that attend to an image -------------------------------------------------------------------------


def mllama(attention="eager"):
    text = dict(families._COMMON, num_hidden_layers=4, cross_attention_layers=[1], rope_parameters=dict(rope_type="default", rope_theta=1e4))
    if not V5:
        text["rope_scaling"] = text.pop("rope_parameters")
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_global_layers=1, attention_heads=2, image_size=16, patch_size=4,
                  max_num_tiles=1, intermediate_layers_indices=[0], vision_output_dim=64, supported_aspect_ratios=[[1, 1]])
    config = transformers.MllamaConfig(text_config=text, vision_config=vision, image_token_index=families.VOCAB - 1)
    config._attn_implementation = attention
    torch.manual_seed(3)
    model = transformers.MllamaForConditionalGeneration(config)
    families.rescale(model, 3)
    return model.eval()


@pytest.mark.parametrize("mode", MODES)
def test_mllama_without_an_image_leaves_its_cross_layers_out(mode):
    theirs, model = mllama(), mllama(attention(mode))
    cache = PagedCache(model.config, mode)
    wanted, tokens = decode(theirs, dynamic(theirs), count=12)
    ours, _ = decode(model, cache, count=12, forced=tokens)
    assert agrees(mode, ours, wanted)
    assert cache.get_seq_length() == 32


TOKENS = 17  # An image: 4 x 4 patches and one more.


def image(rows=2, tokens=TOKENS, text=20, seed=3):
    """States of an image, and a mask that hides it from the first two tokens of text."""
    states = torch.randn(rows, tokens, 64, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(rows, text, 1, 1, dtype=torch.long)
    mask[:, :2] = 0
    return states, mask


@torch.inference_mode()
def described(model, cache, beams=None, new=6):
    """Logits of a prompt with an image and of tokens behind it; rows change their order in between."""
    ids, mask = families.prompt(2, 20, padding=(0, 3))
    states, seen = image()
    out = [model(input_ids=ids, attention_mask=mask, past_key_values=cache, cross_attention_states=states, cross_attention_mask=seen).logits]
    if beams is not None:
        cache.reorder_cache(beams)
        mask = mask[beams]
    for index in range(new):
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
        token = torch.full((2, 1), 5 + 9 * index)
        out.append(model(input_ids=token, attention_mask=mask, past_key_values=cache, cross_attention_mask=seen[:, -1:]).logits)
    real = families.prompt(2, 20, padding=(0, 3))[1].bool()
    return torch.cat([out[0][real], *(one[:, 0] for one in out[1:])])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("beams", [None, [1, 0], [1, 1]])
def test_mllama_with_an_image(mode, beams):
    theirs, model = mllama(), mllama(attention(mode))
    beams = None if beams is None else torch.tensor(beams)
    wanted = described(theirs, dynamic(theirs), beams)
    cache = PagedCache(model.config, mode)
    assert agrees(mode, described(model, cache, beams), wanted)
    assert cache.layers[1].get_seq_length() == TOKENS
    cache.store.cache.check()
    text = described(theirs, dynamic(theirs))
    with torch.inference_mode():
        assert not torch.equal(text[:20], theirs(input_ids=families.prompt(2, 20)[0]).logits[0])  # The image matters.


@pytest.mark.parametrize("mode", MODES)
def test_an_image_survives_failures_branches_and_copies_and_has_no_file(mode, tmp_path):
    theirs, model = mllama(), mllama(attention(mode))
    cache, other = PagedCache(model.config, mode), dynamic(theirs)
    described(theirs, other, new=0)
    described(model, cache, new=0)
    ids, mask = families.prompt(2, 23, padding=(0, 3))
    more = dict(input_ids=ids[:, 20:], attention_mask=mask)
    states, seen = image(text=3, seed=4)
    hook = model.model.language_model.layers[2].register_forward_pre_hook(lambda *_: 1 / 0)
    with torch.inference_mode():
        with pytest.raises(ZeroDivisionError):
            model(**more, past_key_values=cache, cross_attention_states=states, cross_attention_mask=torch.cat((seen, seen), dim=2))
        hook.remove()
        assert cache.layers[1].get_seq_length() == TOKENS
        branch = cache.branch()
        # Version 4 makes a 4-D mask of its own, and rows hold padding.
        copy = PagedCache.from_cache(other, model.config, mode, attention_mask=mask[:, :20] if mode == "fused" and V5 else None)
        wanted = theirs(**more, past_key_values=other, cross_attention_mask=seen).logits
        for one in (branch, copy, cache):
            assert agrees(mode, model(**more, past_key_values=one, cross_attention_mask=seen).logits, wanted)
    with pytest.raises(NotImplementedError, match="save: layers hold K and V of an image"):
        cache.save(tmp_path / "rows")
    cache.reset()
    assert cache.layers[1].get_seq_length() == 0
