# SPDX-License-Identifier: Apache-2.0
"""PagedCache(dtype=...): pages narrower than the model. Compared with transformers' caches whose K and V are rounded here, by torch."""

import families
import pytest
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache, Server
from steps import V5, decode, dynamic, generate, same, same_greedy
from test_server import prompts
from transformers import DynamicCache, EncoderDecoderCache

DECODERS = ["llama", "gemma2", "gpt_oss", "llama4", "deepseek_v3", "qwen3_next", "falcon_h1"]
CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
PLAIN = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TYPES = [*CODES, *PLAIN]


def rounded(states, word):
    """[batch, heads, tokens, dim] as stored: a scale per token and head, elements to nearest even."""
    if word in PLAIN:
        return states.to(PLAIN[word]).to(states.dtype)
    largest = 127.0 if word == "int8" else torch.finfo(CODES[word]).max
    values = states.float()
    scale = (values.abs().amax(-1, keepdim=True) / largest).clamp(min=2.0**-126)
    codes = (values / scale).round() if word == "int8" else (values / scale).to(CODES[word]).float()
    return (codes * scale).to(states.dtype)


class RoundedCache(DynamicCache):
    """`keep`: the first tokens are rounded to bfloat16 instead."""

    def __init__(self, config, word, keep=0):
        super().__init__(config=config)
        self.word, self.keep = word, keep

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        kept = max(self.keep - self.get_seq_length(layer_idx), 0)

        def both(states):
            return torch.cat((rounded(states[:, :, :kept], "bf16"), rounded(states[:, :, kept:], self.word)), 2)

        return super().update(both(key_states), both(value_states), layer_idx, *args, **kwargs)


@pytest.mark.parametrize("word", TYPES)
@pytest.mark.parametrize("family", DECODERS)
def test_gathered_results_are_those_of_rounded_keys_and_values(family, word):
    if not V5:
        pytest.skip("the dynamic cache of version 4 updates its layers in another way")
    for dtype in (torch.float32, torch.bfloat16):
        model = families.build(family, dtype)
        cache = PagedCache(model.config, dtype=word)
        assert same(generate(model, cache, new=24), generate(model, RoundedCache(model.config, word), new=24))
        cache.store.cache.check()


@pytest.mark.parametrize("page_size", [1, 16, 48])
@pytest.mark.parametrize("keep", [1, 4, 30])
@pytest.mark.parametrize("family", ["llama", "gemma2", "llama4", "falcon_h1"])
def test_kept_tokens_are_rounded_to_16_bits(family, keep, page_size):
    if not V5:
        pytest.skip("the dynamic cache of version 4 updates its layers in another way")
    model = families.build(family)
    ids, _ = families.prompt(2, 20)
    cache, wanted = PagedCache(model.config, dtype="int8", keep_tokens=keep, page_size=page_size), RoundedCache(model.config, "int8", keep)
    fused = families.build(family, attention="kvcache")
    pages = PagedCache(fused.config, "fused", dtype="int8", keep_tokens=keep, page_size=page_size)
    begin = 0
    for end in (2, 3, 17, 18, 20):  # a prompt in chunks, whose ends lie before, in and behind the kept tokens
        with torch.inference_mode():
            logits = model(input_ids=ids[:, begin:end], past_key_values=wanted).logits
            assert torch.equal(model(input_ids=ids[:, begin:end], past_key_values=cache).logits, logits)
            near = fused(input_ids=ids[:, begin:end], past_key_values=pages).logits
            assert (near - logits).abs().max() < 0.01 * (logits.max() - logits.min())
        begin = end
    cache._commit()
    pages._commit()
    for one in (cache, pages):
        one.store.cache.check()
        assert one.store.cache.plan.layer(one._storage.index(next(s for s in one._storage if s.kind != "none"))).keep_tokens == keep
    # The first layer's K do not depend on attention: both caches have the same elements.
    first = next(layer for layer in cache.layers if hasattr(layer, "spec") and layer.spec.has_attention)
    if not first.spec.chunk:  # of which pages have the current chunk alone
        assert torch.equal(first.keys[:, :, -2:], pages.layers[first.spec.index].keys[:, :, -2:])


def test_kept_tokens_stay_through_crop_branch_choice_and_files(tmp_path):
    model = families.build("llama")
    cache = PagedCache(model.config, dtype="fp8", keep_tokens=5)
    ids, _ = families.prompt(2, 20)
    with torch.inference_mode():
        model(input_ids=ids, past_key_values=cache)
        stored = cache.layers[1].keys.clone()
        cache.save(tmp_path / "rows")
        loaded = PagedCache.load(tmp_path / "rows", model.config)
        branch = cache.branch()
        for one in (cache, loaded, branch):
            assert torch.equal(one.layers[1].keys, stored)
            assert one._limits["keep_tokens"] == 5
        cache.crop(-17)
        assert torch.equal(cache.layers[1].keys, stored[:, :, :3])
        wanted = model(input_ids=ids[:, 3:], past_key_values=cache).logits
        assert torch.equal(cache.layers[1].keys, stored)
        loaded.crop(-17)
        assert torch.equal(model(input_ids=ids[:, 3:], past_key_values=loaded).logits, wanted)
        branch.batch_select_indices(torch.tensor([1, 1, 0]))
        assert torch.equal(branch.layers[1].keys, stored[[1, 1, 0]])
    cache.store.cache.check()


def test_kept_tokens_of_given_keys_are_rounded_to_16_bits():
    config = families.build("llama").config
    heads, dim = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    given = [tuple(torch.randn(2, heads, 20, dim) for _ in range(2)) for _ in range(3)]
    for mode in ("gather", "fused"):
        cache = PagedCache.from_cache(given, config, mode, dtype="int8", keep_tokens=4)
        for layer, both in zip(cache.layers, given):
            for ours, states in zip((layer.keys, layer.values), both):
                assert torch.equal(ours, torch.cat((rounded(states[:, :, :4], "bf16"), rounded(states[:, :, 4:], "int8")), 2))


def test_a_server_keeps_tokens_too():
    model = families.build("llama", attention="kvcache")
    server = Server(model, dtype="int8", keep_tokens=4, num_pages=64)
    requests = [server.submit(prompt, 6) for prompt in prompts(4)]
    server.run()
    assert all(request.finish == "length" for request in requests)
    assert server.cache.store.cache.plan.layer(0).keep_tokens == 4


@pytest.mark.parametrize("options, text", [
    (dict(keep_tokens=4), "keep_tokens = 4: pages of dtype None have no tokens of 8 bits"),
    (dict(keep_tokens=4, dtype="bf16"), "keep_tokens = 4: pages of dtype 'bfloat16' have no tokens of 8 bits"),
    (dict(keep_tokens=-1, dtype="int8"), "keep_tokens: expected a number of tokens, got -1"),
    (dict(keep_tokens=1.5, dtype="int8"), "keep_tokens: expected a number of tokens, got 1.5"),
])
def test_kept_tokens_need_8_bits(options, text):
    with pytest.raises(ValueError, match=text):
        PagedCache(families.build("llama").config, **options)


@pytest.mark.parametrize("word", ["int8", "fp8", "fp8_e5m2"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "llama4", "qwen3_next"])
def test_fused_results_lie_nearer_to_rounded_ones_than_those_to_exact_ones(family, word):
    if not V5:
        pytest.skip("the dynamic cache of version 4 updates its layers in another way")
    eager = families.build(family)
    exact, tokens = decode(eager, dynamic(eager))
    wanted, _ = decode(eager, RoundedCache(eager.config, word), forced=tokens)
    model = families.build(family, attention="kvcache")
    ours, _ = decode(model, PagedCache(model.config, "fused", dtype=word), forced=tokens)
    far = (wanted - exact).abs().mean()
    assert far > 0
    assert (ours - wanted).abs().mean() < far / 2, ((ours - wanted).abs().mean() / far).item()


@pytest.mark.parametrize("word", TYPES)
def test_pieces_of_a_prompt_are_rounded_as_the_whole(word):
    config = families.build("llama").config
    whole, pieces = PagedCache(config, dtype=word), PagedCache(config, dtype=word)
    generator = torch.Generator().manual_seed(3)
    keys, values = torch.randn(2, 2, config.num_key_value_heads, 40, 24, generator=generator)
    for layer in whole.layers:
        wanted = layer.update(keys, values)
    for begin, end in ((0, 7), (7, 8), (8, 40)):
        for layer in pieces.layers:
            got = layer.update(keys[:, :, begin:end], values[:, :, begin:end])
    assert all(torch.equal(one, other) for one, other in zip(got, wanted))
    assert torch.equal(wanted[0], rounded(keys, word)) and torch.equal(pieces.layers[0].values, rounded(values, word))


@pytest.mark.parametrize("mode", ["gather", "fused"])
@pytest.mark.parametrize("word", TYPES)
def test_branches_crops_and_selected_rows_change_no_bit(word, mode):
    model = families.build("llama", attention="eager" if mode == "gather" else "kvcache")
    ids = families.prompt(2, 40)[0]
    cache = PagedCache(model.config, mode, dtype=word)

    def run(cache, ids):
        with torch.inference_mode():
            return model(input_ids=ids, past_key_values=cache).logits[:, -1]

    run(cache, ids)
    stored = [(layer.keys, layer.values) for layer in cache.layers]
    branch = cache.branch()
    wanted = run(branch, ids[:, :5])
    assert torch.equal(run(cache, ids[:, :5]), wanted)
    cache.crop(-5)
    for (keys, values), layer in zip(stored, cache.layers):
        assert torch.equal(keys, layer.keys) and torch.equal(values, layer.values)
    cache.batch_select_indices(torch.tensor([1, 1]))
    assert torch.equal(cache.layers[0].keys, stored[0][0][[1, 1]])
    cache.store.cache.check()


@pytest.mark.parametrize("mode", ["gather", "fused"])
def test_rows_of_8_bits_take_half_of_the_pages_bytes(mode):
    model = families.build("llama", torch.bfloat16, attention="eager" if mode == "gather" else "kvcache")
    bytes_of = {}
    for word in ("bf16", "int8", "fp8"):
        cache = PagedCache(model.config, mode, dtype=word)
        with torch.inference_mode():
            model(input_ids=families.prompt(1, 20)[0], past_key_values=cache)
        info = cache.store.cache.plan.layer(0)
        bytes_of[word] = info.bytes_per_token
        assert info.quant == ("none" if word == "bf16" else "per_token_head")
    heads, dim = info.num_kv_heads, info.k_dim
    assert bytes_of == {"bf16": 4 * heads * dim, "int8": 2 * heads * (dim + 4), "fp8": 2 * heads * (dim + 4)}


@pytest.mark.parametrize("family", families.ENCODER_DECODER)
def test_the_encoders_part_is_rounded_too(family):
    if not V5:
        pytest.skip("the dynamic cache of version 4 updates its layers in another way")
    from test_encoder_decoder import generate as translate

    model = families.build(family)
    config = model.config.get_text_config(decoder=True)
    wanted = translate(model, family, EncoderDecoderCache(RoundedCache(config, "int8"), RoundedCache(config, "int8")))
    ours = translate(model, family, PagedEncoderDecoderCache(model.config, dtype="int8"))
    assert torch.equal(ours.sequences, wanted.sequences)
    assert all(torch.equal(one, other) for one, other in zip(ours.logits, wanted.logits))
    fused = families.build(family, attention="kvcache")
    near = translate(fused, family, PagedEncoderDecoderCache(fused.config, "fused", dtype="int8"))
    assert same_greedy(near.sequences[0, 1:].tolist(), wanted.sequences[0, 1:].tolist(), torch.stack(wanted.logits)[:, 0].float())


def test_a_server_answers_as_each_request_alone():
    model = families.build("llama", attention="kvcache")
    server = Server(model, dtype="int8", num_pages=48)
    requests = [server.submit(prompt, 12) for prompt in prompts(6)]
    server.run()
    for request in requests:
        cache = PagedCache(model.config, "fused", dtype="int8")
        with torch.inference_mode():
            row, tokens, logits = torch.tensor([request.prompt]), [], []
            for _ in request.tokens:
                logits.append(model(input_ids=row, past_key_values=cache).logits[0, -1].float())
                tokens.append(int(logits[-1].argmax()))
                row = torch.tensor([tokens[-1:]])
        assert same_greedy(request.tokens, tokens, torch.stack(logits))


def test_torch_types_name_the_same_storage_and_others_are_refused():
    model = families.build("llama")
    for word, dtype in ({**CODES, **PLAIN}).items():
        cache = PagedCache(model.config, dtype=dtype)
        with torch.inference_mode():
            model(input_ids=families.prompt(1, 4)[0], past_key_values=cache)
        assert torch.equal(cache.layers[0].keys, rounded(cache.layers[0].keys, word))
    for wrong in ("int4", "auto", torch.int32, 8):
        with pytest.raises(ValueError, match="dtype: expected one of fp32, fp16, bf16, int8, fp8, fp8_e5m2, got"):
            PagedCache(model.config, dtype=wrong)


def test_what_is_assigned_is_rounded():
    model = families.build("llama")
    cache = PagedCache(model.config, dtype="int8")
    with torch.inference_mode():
        model(input_ids=families.prompt(1, 9)[0], past_key_values=cache)
        changed = cache.layers[1].keys.clone() * 1.7
        cache.layers[1].keys = changed
        assert torch.equal(cache.layers[1].keys, rounded(changed, "int8"))


def test_a_row_with_an_infinity_is_not_a_number_and_others_are_as_before():
    cache = PagedCache(families.build("llama").config, dtype="int8")
    heads, dim = cache.config.num_key_value_heads, cache.config.hidden_size // cache.config.num_attention_heads
    states = torch.randn(1, heads, 3, dim)
    keys = states.clone()
    keys[0, 0, 1, 2] = float("inf")
    for layer in cache.layers:
        got, _ = layer.update(keys, states)
    assert got[0, 0, 1].isnan().all() and int(got.isnan().sum()) == dim
