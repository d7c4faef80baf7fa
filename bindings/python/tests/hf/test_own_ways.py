# SPDX-License-Identifier: Apache-2.0
"""Models and calls that go ways of their own: T5Gemma's second cache, compilers, drafts over another cache, classes of caches."""

import families
import pytest
import shrunk
import torch
import transformers
from kvcache.hf import PagedCache, PagedEncoderDecoderCache
from steps import FLOAT32, V5, dynamic

newest = pytest.mark.skipif(not V5, reason="version 4 builds other configurations")
T5GEMMA = ("t5gemma", "T5GemmaForConditionalGeneration", "causal")
T5GEMMA2 = ("t5gemma2", "T5Gemma2ForConditionalGeneration", "vision")


def generated(model, cache=None, **options):
    ids, mask = families.prompt(2, 24)
    mask[0, -5:] = 0  # the encoder's rows are longer than its windows, and padded on the right
    return model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0,
                          bos_token_id=2, decoder_start_token_id=2, past_key_values=cache, output_logits=True,
                          return_dict_in_generate=True, **options)


@newest
@pytest.mark.parametrize("kind, mode", [(T5GEMMA, "gather"), (T5GEMMA, "fused"), (T5GEMMA2, "gather")])
@pytest.mark.parametrize("beams", [1, 2])
def test_t5gemma_makes_a_second_cache_and_its_encoder_has_windows_on_both_sides(kind, mode, beams):
    theirs, model = shrunk.build(*kind), shrunk.build(*kind, attention="kvcache" if mode == "fused" else "eager")
    wanted = generated(theirs, num_beams=beams)
    cache = PagedEncoderDecoderCache(model.config, mode, num_pages=500)
    for ours in (generated(model, cache, num_beams=beams), *([generated(model, num_beams=beams)] if mode == "fused" else [])):
        assert torch.equal(ours.sequences, wanted.sequences)
        logits, known = torch.stack(ours.logits), torch.stack(wanted.logits)
        assert torch.equal(logits, known) if mode == "gather" else (logits - known).abs().max() <= FLOAT32 * (known.max() - known.min())
    # The limits that the cache was made with are kept.
    assert cache.cross_attention_cache.store.cache.stats().pages_total == 500


@newest
def test_t5gemma2_in_fused_mode_is_refused_by_what_it_does_with_its_mask():
    model = shrunk.build(*T5GEMMA2, attention="kvcache")
    cache = PagedEncoderDecoderCache(model.config, "fused")
    with pytest.raises(NotImplementedError, match="attention_mask: the model computes cat of its mask"):
        generated(model, cache)
    assert cache.self_attention_cache.get_seq_length() == 0
    with pytest.raises(NotImplementedError, match="offloading: kvcache.hf keeps pages on the CPU"):
        type(cache.cross_attention_cache)(model.config, offloading=True)


@pytest.mark.parametrize("given", [True, False])
def test_a_compiled_model_runs_uncompiled_and_says_so(given):
    model = families.build("llama", attention="kvcache")
    ids = families.prompt(1, 9)[0]
    compiled = torch.compile(model, backend="eager")
    with torch.inference_mode():
        wanted = model(input_ids=ids, past_key_values=PagedCache(model.config, "fused")).logits
        cache = PagedCache(model.config, "fused") if given else None
        with pytest.warns(UserWarning, match="torch.compile: LlamaForCausalLM has attn_implementation='kvcache' and runs uncompiled"):
            ours = compiled(input_ids=ids, past_key_values=cache)
        assert torch.equal(ours.logits, wanted)
        assert ours.past_key_values.get_seq_length() == 9
        torch._dynamo.reset()
        with pytest.raises(Exception, match="pages are host bookkeeping"):
            torch.compile(model, backend="eager", fullgraph=True)(input_ids=ids, past_key_values=cache)
    torch._dynamo.reset()


def test_a_given_cache_is_used_with_use_cache_false_as_transformers_uses_its_own():
    theirs, model = families.build("llama"), families.build("llama", attention="kvcache")
    ids = families.prompt(1, 9)[0]
    with torch.inference_mode():
        for one, cache in ((theirs, PagedCache(theirs.config)), (model, PagedCache(model.config, "fused"))):
            own, seen = dynamic(theirs), []
            for begin, end in ((0, 6), (6, 9)):
                known = theirs(input_ids=ids[:, begin:end], past_key_values=own, use_cache=False).logits
                ours = one(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=False).logits
                seen.append(bool((ours - known).abs().max() <= FLOAT32 * (known.max() - known.min())))
            assert seen == [True, True]
            assert cache.get_seq_length() == own.get_seq_length() == 9


# Refused ----------------------------------------------------------------------------------------------


@newest
def test_k_and_v_for_a_model_that_drafts_are_refused_by_the_name_of_the_argument():
    model = families.build("gemma4", attention="kvcache")
    cache = PagedCache(model.config, "fused")
    ids = families.prompt(1, 6)[0]
    with torch.inference_mode():
        with pytest.raises(NotImplementedError, match="return_shared_kv_states: a fused cache hands the model new K and V alone"):
            model(input_ids=ids, past_key_values=cache, return_shared_kv_states=True)
        assert cache.get_seq_length() == 0
        model(input_ids=ids, past_key_values=cache, return_shared_kv_states=False)
    assert cache.get_seq_length() == 6


@newest
def test_a_model_with_a_cache_class_of_its_own_is_refused_by_that_class():
    model = shrunk.build("minimax", "MiniMaxForCausalLM", attention="kvcache")
    ids = families.prompt(1, 6)[0]
    with pytest.raises(NotImplementedError, match="past_key_values: MiniMaxForCausalLM keeps its past in a MiniMaxCache of its own"):
        model.generate(input_ids=ids, max_new_tokens=3)
    with pytest.raises(ValueError, match="MiniMax uses cache of its own"):
        model.generate(input_ids=ids, max_new_tokens=3, past_key_values=PagedCache(model.config, "fused"))


@newest
@pytest.mark.parametrize("name", ["inkling_text", "moshi"])
def test_a_bias_or_mask_over_other_tokens_than_the_cache_is_refused(name):
    model = shrunk.build(name, transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name], attention="kvcache")
    cache = PagedCache(model.config, "fused")
    said = "bias: .* columns, the cache has .* needs mode='gather'" if name == "inkling_text" else "layer 0: its mask has window 0"
    ids, mask = families.prompt(2, 24, padding=(0, 3))
    with torch.inference_mode(), pytest.raises(ValueError, match=said):
        for begin, end in ((0, 14), (14, 17), (17, 18)):
            model(input_ids=ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache)


@newest
def test_transformers_own_continuous_batching_is_refused_by_transformers():
    model = families.build("llama", attention="kvcache")
    with pytest.raises(ValueError, match="kvcache"):
        model.generate_batch(inputs=[[1, 2, 3]], generation_config=transformers.GenerationConfig(max_new_tokens=2, do_sample=False))
