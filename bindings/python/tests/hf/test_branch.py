# SPDX-License-Identifier: Apache-2.0
"""A prompt computed once and continued many times: branches share its pages."""

import copy
import gc

import families
import pytest
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache
from steps import V5, dynamic, same_greedy
from test_encoder_decoder import inputs


def prefill(model, cache, ids, mask):
    with torch.inference_mode():
        model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), past_key_values=cache)
    return cache


def continued(model, cache, ids, mask, seed, new=16):
    """Greedy tokens and logits behind a prompt that `cache` holds and a tail of its own."""
    tail, ones = families.prompt(ids.shape[0], 4, seed=seed)
    out = model.generate(input_ids=torch.cat((ids, tail), 1), attention_mask=torch.cat((mask, ones), 1), max_new_tokens=new,
                         do_sample=False, past_key_values=cache, output_logits=True, return_dict_in_generate=True)
    return out.sequences, torch.stack(out.logits)


@pytest.mark.parametrize("family", ["llama", "gemma2", "llama4", "deepseek_v3", "qwen3_next", "falcon_h1"])
@pytest.mark.parametrize("mode", ["gather", "fused"])
def test_branches_continue_like_deep_copies_of_the_dynamic_cache(family, mode):
    theirs = families.build(family)
    model = families.build(family, attention="kvcache") if mode == "fused" else theirs
    ids, mask = families.prompt(2, 37, padding=(0, 4))
    ours, other = PagedCache(model.config, mode), dynamic(theirs)
    prefill(model, ours, ids, mask)
    prefill(theirs, other, ids, mask)
    branches = [ours.branch() if seed % 2 else copy.deepcopy(ours) for seed in range(3)]
    for seed, branch in enumerate(branches):
        tokens, logits = continued(model, branch, ids, mask, seed)
        wanted, wanted_logits = continued(theirs, copy.deepcopy(other), ids, mask, seed)
        if mode == "gather":
            assert torch.equal(tokens, wanted)
            assert torch.equal(logits, wanted_logits)
        new = len(wanted_logits)
        both = tokens[:, -new:].tolist(), wanted[:, -new:].tolist()
        assert all(same_greedy(*row) for row in zip(*both, wanted_logits.transpose(0, 1)))
    store = ours.store.cache
    assert store.stats().num_seqs == 2 * 4
    assert store.stats().pages_shared > 0
    store.check()
    del branches, branch
    gc.collect()
    assert store.stats().num_seqs == 2
    assert ours.get_seq_length() == 37


def test_branches_that_run_in_turns_do_not_disturb_each_other():
    model = families.build("llama", attention="kvcache")
    ids, mask = families.prompt(1, 20)
    prompt = prefill(model, PagedCache(model.config, "fused"), ids, mask)
    alone = {}
    for seed in (1, 2):
        alone[seed] = continued(model, prompt.branch(), ids, mask, seed)[0]
    branches = {seed: prompt.branch() for seed in (1, 2)}
    fed = {seed: families.prompt(1, 4, seed=seed)[0] for seed in branches}
    seen = {seed: torch.cat((ids, fed[seed]), 1) for seed in branches}
    with torch.inference_mode():
        for _ in range(16):
            for seed, branch in branches.items():
                fed[seed] = model(input_ids=fed[seed], past_key_values=branch).logits[:, -1].argmax(-1, keepdim=True)
                seen[seed] = torch.cat((seen[seed], fed[seed]), 1)
    assert all(torch.equal(seen[seed], alone[seed]) for seed in branches)


@pytest.mark.parametrize("mode", ["gather", "fused"])
def test_encoder_decoder_caches_branch_too(mode):
    if not V5 and mode == "fused":
        pytest.skip("T5 has no attention interface in version 4")
    model = families.build("t5", attention="kvcache" if mode == "fused" else "eager")
    cache = PagedEncoderDecoderCache(model.config, mode)
    start = torch.zeros(2, 1, dtype=torch.long)
    given = inputs("t5", torch.float32)

    def step(token, one, encoded):
        with torch.inference_mode():
            return model(encoder_outputs=encoded, attention_mask=given["attention_mask"], decoder_input_ids=token,
                         past_key_values=one).logits[:, -1]

    with torch.inference_mode():
        encoded = model.get_encoder()(**given)
    first = step(start, cache, encoded)
    branch = copy.deepcopy(cache)
    token = first.argmax(-1, keepdim=True)
    wanted = step(token, cache, encoded)
    assert torch.equal(step(token, branch, encoded), wanted)
    assert torch.equal(step(token * 0 + 9, branch, encoded), step(token * 0 + 9, cache, encoded))
