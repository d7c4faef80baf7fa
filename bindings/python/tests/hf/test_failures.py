# SPDX-License-Identifier: Apache-2.0
"""A forward that fails leaves nothing behind: the next ones are those of a process in which it was never tried."""

import contextlib
import copy
import gc
import threading

import families
import kvcache
import pytest
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache, Server
from kvcache.hf.layers import KVLayer
from steps import V5, dynamic
from test_encoder_decoder import inputs

pytestmark = pytest.mark.skipif(not V5, reason="version 4 has other layers in half of the families")

# Full attention, windows, chunks, latents, shared K and V, sinks, other heads per layer, three hybrids, two encoder-decoders, M-RoPE.
FAMILIES = ("llama", "mistral", "llama4", "deepseek_v3", "gemma3n", "gpt_oss", "mimo_v2", "falcon_h1", "jamba", "qwen3_next",
            "t5", "whisper", "qwen2_vl")
MODES = ("gather", "fused")
TOKENS = families.prompt(2, 24)[0]
PROMPT, SPLIT = 14, 11  # behind an image


class Failure(Exception):
    """What a layer of the model raises."""


class Subject:
    """A model of a family, its caches, and forwards over parts of TOKENS."""

    def __init__(self, family, mode):
        self.family, self.mode = family, mode
        self.model = families.build(family, attention="kvcache" if mode == "fused" else "eager")
        self.encodes = family in families.ENCODER_DECODER
        self.tokens, self.image = TOKENS, {}
        if family in families.MROPE:
            self.tokens, self.image = families.with_image(self.model, TOKENS)
        if self.encodes:
            given = inputs(family, torch.float32)
            with torch.inference_mode():
                self.given = dict(encoder_outputs=self.model.get_encoder()(**given))
            if "attention_mask" in given:
                self.given["attention_mask"] = given["attention_mask"]

    def cache(self, **limits):
        return (PagedEncoderDecoderCache if self.encodes else PagedCache)(self.model.config, self.mode, **limits)

    @torch.inference_mode()
    def forward(self, cache, begin, end, **more):
        ids = self.tokens[:, begin:end]
        if self.encodes:
            more |= dict(decoder_input_ids=ids, **self.given)
        else:
            more |= dict(input_ids=ids)
        if self.image and begin == 0:
            more |= dict(self.image, mm_token_type_ids=(ids == self.model.config.image_token_id).int())
        if cache is not None:
            more |= dict(past_key_values=cache)
        return self.model(use_cache=cache is not None, **more).logits

    def rest(self, cache, begin):
        """Logits of TOKENS from `begin` on: a burst, then one by one."""
        parts = [(begin, max(begin, PROMPT)), *((index, index + 1) for index in range(max(begin, PROMPT), TOKENS.shape[1]))]
        return torch.cat([self.forward(cache, *part) for part in parts if part[0] < part[1]], dim=1)

    @property
    def layers(self):
        return self.layers_of(self.model)

    @staticmethod
    def layers_of(model):
        """Of the decoder."""
        stacks = [module for name, module in model.named_modules()
                  if isinstance(module, torch.nn.ModuleList) and name.endswith(("layers", "decoder.block")) and "encoder.layers" not in
                  name.replace("decoder", "")]
        return stacks[0]


@contextlib.contextmanager
def hooked(module, pre, error):
    def fail(*_):
        raise error

    handle = module.register_forward_pre_hook(fail) if pre else module.register_forward_hook(fail)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def patched(target, name, change):
    before = getattr(target, name)
    setattr(target, name, change(before))
    try:
        yield
    finally:
        setattr(target, name, before)


def places(subject, cache):
    """(name, what makes the next forward fail, what it raises)."""
    own = cache.self_attention_cache if subject.encodes else cache
    for index, layer in enumerate(subject.layers):
        yield f"before layer {index}", hooked(layer, True, Failure()), Failure
        yield f"behind layer {index}", hooked(layer, False, Failure()), Failure
    yield "interrupt", hooked(subject.layers[1], False, KeyboardInterrupt()), KeyboardInterrupt
    yield "after the last attention", hooked(subject.model.get_output_embeddings(), True, Failure()), Failure
    for index, layer in enumerate(own.layers):
        if not isinstance(layer, KVLayer):
            continue

        def late(update):
            def raises(*args, **kwargs):
                update(*args, **kwargs)
                raise Failure

            return raises

        yield f"behind the update of layer {index}", patched(layer, "update", late), Failure
    if subject.mode == "fused":
        for name in ("_attend_latent" if subject.family == "deepseek_v3" else "_append_and_attend", "_call"):
            def never(_):
                def raises(*args, **kwargs):
                    raise Failure

                return raises

            yield f"in {name}", patched(own, name, never), Failure


def refusals(subject):
    """Arguments that make a fused forward refuse."""
    if subject.mode == "fused":
        yield dict(output_attentions=True), NotImplementedError
        if not subject.encodes:
            yield dict(something_new=torch.ones(1)), (NotImplementedError, TypeError)


def check_next(subject, wanted, behind, cache, begin, what):
    """This cache, another one, none, and another model, behind a failure. `behind`: logits of the tokens from `begin` on."""
    other = Subject(subject.family, subject.mode)
    assert torch.equal(subject.rest(subject.cache(), 0), wanted), f"{what}: another cache"
    if not subject.encodes:
        none = subject.forward(None, 0, PROMPT)
        assert torch.equal(none, other.forward(None, 0, PROMPT)), f"{what}: no cache"
    assert torch.equal(other.rest(other.cache(), 0), wanted), f"{what}: another model"
    assert torch.equal(subject.rest(cache, begin), behind), f"{what}: this cache"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_follows_a_failed_forward_is_what_a_new_process_computes(family, mode):
    if family not in families.FAMILIES:
        pytest.skip(f"this transformers has no {family}")
    subject = Subject(family, mode)
    wanted = subject.rest(subject.cache(), 0)
    cases = 0
    # In the first forward of a cache, in a burst, in a step of one token.
    for begin, end in ((0, PROMPT), (SPLIT, PROMPT), (PROMPT, PROMPT + 1)):
        # What a cache computes in which nothing failed, in the same bursts.
        behind = subject.cache()
        if begin:
            subject.forward(behind, 0, begin)
        behind = subject.rest(behind, begin)
        count = len(list(places(subject, subject.cache())))
        for index in range(count):
            cache = subject.cache()
            if begin:
                subject.forward(cache, 0, begin)
            name, failure, error = list(places(subject, cache))[index]
            what = f"{name}, tokens {begin} to {end}"
            with failure, pytest.raises(error):
                subject.forward(cache, begin, end)
            assert cache.get_seq_length() == begin, what
            if index % 5 == 0:
                check_next(subject, wanted, behind, cache, begin, what)
            else:
                assert torch.equal(subject.rest(cache, begin), behind), what
            cases += 1
        for arguments, error in refusals(subject):
            cache = subject.cache()
            if begin:
                subject.forward(cache, 0, begin)
            with pytest.raises(error):
                subject.forward(cache, begin, end, **arguments)
            check_next(subject, wanted, behind, cache, begin, f"{next(iter(arguments))}, tokens {begin} to {end}")
            cases += 1
    print(f"{family}, {mode}: {cases} cases")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["llama", "mistral", "deepseek_v3", "qwen3_next", "jamba", "falcon_h1"])
def test_a_full_pool_can_be_retried(family, mode):
    subject = Subject(family, mode)
    wanted = subject.rest(subject.cache(), 0)
    cache = subject.cache(page_size=4, num_pages=2 * 8)
    subject.forward(cache, 0, PROMPT)
    big = torch.full((2, 90), 5)
    for _ in range(3):
        with torch.inference_mode(), pytest.raises((kvcache.NoPages, kvcache.NeverFits)):
            subject.model(input_ids=big, past_key_values=cache, use_cache=True)
        assert cache.get_seq_length() == PROMPT
    assert torch.equal(subject.rest(cache, PROMPT)[:, :4], wanted[:, PROMPT:PROMPT + 4])


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_image_moves_no_positions_of_other_caches(mode):
    """The model itself keeps what an image shifts positions by."""
    subject = Subject("qwen2_vl", mode)
    cache = subject.cache()
    subject.image, image = {}, subject.image  # A prompt without one.
    subject.tokens, with_image = TOKENS, subject.tokens
    wanted = subject.rest(subject.cache(), 0)[:, PROMPT:]
    subject.forward(cache, 0, PROMPT)
    subject.tokens, subject.image = with_image, image
    with hooked(subject.layers[1], True, Failure()), pytest.raises(Failure):
        subject.forward(subject.cache(), 0, PROMPT)
    subject.tokens, subject.image = TOKENS, {}
    assert torch.equal(subject.rest(cache, PROMPT), wanted)


def test_a_failed_first_forward_binds_the_cache_to_nothing():
    model = families.build("llama", attention="kvcache")
    cache = PagedCache(model.config, "fused")
    with torch.inference_mode(), pytest.raises(NotImplementedError):
        model(input_ids=TOKENS, past_key_values=cache, output_attentions=True)
    with torch.inference_mode():
        model.to(torch.bfloat16)(input_ids=TOKENS[:1], past_key_values=cache)
    assert cache.batch_size == 1


# Padding --------------------------------------------------------------------------------------------


def masks():
    right, between = torch.ones(2, PROMPT, dtype=torch.long), torch.ones(2, PROMPT, dtype=torch.long)
    right[0, -3:] = 0
    between[1, 4:6] = 0
    return dict(right=right, between=between)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["right", "between"])
@pytest.mark.parametrize("family", families.HYBRID)
def test_padding_that_recurrent_layers_would_read_is_refused(family, where, mode):
    subject = Subject(family, mode)
    cache = subject.cache()
    with pytest.raises(NotImplementedError, match="recurrent layers of .* would read padding"):
        subject.forward(cache, 0, PROMPT, attention_mask=masks()[where])
    assert torch.equal(subject.rest(cache, 0), subject.rest(subject.cache(), 0))


@pytest.mark.parametrize("mode", MODES)
def test_padding_in_chunks_of_one_token_is_refused(mode):
    subject = Subject("jamba", mode)
    mask = torch.ones(2, 1, dtype=torch.long)
    mask[0] = 0
    with pytest.raises(NotImplementedError, match="more than one token at a time"):
        subject.forward(subject.cache(), 0, 1, attention_mask=mask)


# Readers and writers --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_keys_and_values_are_read_inside_a_forward(mode):
    subject = Subject("llama", mode)
    cache, seen = subject.cache(), []
    subject.forward(cache, 0, 6)
    handles = [layer.register_forward_hook(lambda *_, layer=cache.layers[index]: seen.append((layer.keys, layer.values)))
               for index, layer in enumerate(subject.layers)]
    subject.forward(cache, 6, PROMPT)
    for handle in handles:
        handle.remove()
    for index, (keys, values) in enumerate(seen):
        assert torch.equal(keys, cache.layers[index].keys) and keys.shape[2] == PROMPT
        assert torch.equal(values, cache.layers[index].values)
    undisturbed = subject.cache()
    subject.forward(undisturbed, 0, 6)
    subject.forward(undisturbed, 6, PROMPT)
    assert torch.equal(subject.rest(cache, PROMPT), subject.rest(undisturbed, PROMPT))


@pytest.mark.parametrize("mode", MODES)
def test_writing_into_keys_raises_and_assigning_them_takes_effect(mode):
    subject = Subject("llama", mode)
    cache, other = subject.cache(), subject.cache()
    for one in (cache, other):
        subject.forward(one, 0, PROMPT)
    layer = cache.layers[1]
    for change in (
        lambda: layer.keys.zero_(),
        lambda: layer.values[:, :, 5:9].fill_(0),
        lambda: layer.values.__setitem__((slice(None), slice(None), slice(5, 9)), 0),
        lambda: torch.mul(layer.keys, 2, out=layer.keys),
        lambda: layer.keys[0].transpose(0, 1).add_(1),
    ):
        with pytest.raises(RuntimeError, match="layer.keys = changed"):
            change()
    changed = layer.values.clone()
    changed[:, :, 5:9] = 0
    assert type(changed) is torch.Tensor and type(layer.keys * 2) is torch.Tensor
    layer.values = changed
    assert torch.equal(layer.values, changed)
    assert torch.equal(layer.keys, other.layers[1].keys)
    assert not torch.equal(subject.rest(cache, PROMPT), subject.rest(other, PROMPT))
    with pytest.raises(ValueError, match="keys of shape"):
        layer.keys = changed[:, :, :4]


def test_assigned_values_are_those_that_the_dynamic_cache_would_attend_to():
    subject = Subject("llama", "gather")
    cache, theirs = subject.cache(), dynamic(subject.model)
    for one in (cache, theirs):
        subject.forward(one, 0, PROMPT)
        changed = one.layers[1].values.clone()
        changed[:, :, 3:7] *= -1
        one.layers[1].values = changed
    assert torch.equal(subject.rest(cache, PROMPT), subject.rest(theirs, PROMPT))


def test_shallow_copies_and_layers_alone_say_what_they_need():
    subject = Subject("llama", "fused")
    cache = subject.cache()
    subject.forward(cache, 0, PROMPT)
    with pytest.raises(NotImplementedError, match="branch"):
        copy.copy(cache)
    gc.collect()
    assert torch.equal(subject.rest(cache, PROMPT), subject.rest(subject.cache(), 0)[:, PROMPT:])
    layers = cache.layers
    del cache
    gc.collect()
    with pytest.raises(ReferenceError, match="keep the PagedCache"):
        _ = layers[0].keys


@pytest.mark.parametrize("indices", [[-1], [1, -2], [True, False]])
def test_rows_are_selected_as_those_of_any_tensor(indices):
    subject = Subject("llama", "gather")
    cache, theirs = subject.cache(), dynamic(subject.model)
    for one in (cache, theirs):
        subject.forward(one, 0, PROMPT)
        one.batch_select_indices(torch.tensor(indices))
    assert torch.equal(cache.layers[2].keys, theirs.layers[2].keys)


def test_attention_weights_asked_for_by_the_configuration_are_refused():
    subject = Subject("llama", "fused")
    subject.model.config._output_attentions = True  # transformers refuses it only where it is assigned later
    with pytest.raises(NotImplementedError, match="output_attentions"):
        subject.forward(subject.cache(), 0, PROMPT)


def test_a_cache_says_whether_it_is_initialized():
    subject = Subject("llama", "gather")
    cache = subject.cache()
    assert not cache.is_initialized
    subject.forward(cache, 0, PROMPT)
    assert cache.is_initialized


# Threads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["llama", "mistral", "deepseek_v3", "qwen3_next"])
def test_branches_of_one_prompt_run_in_threads(family, mode):
    subject = Subject(family, mode)
    prompt = subject.cache()
    subject.forward(prompt, 0, PROMPT)
    wanted = subject.rest(prompt.branch(), PROMPT)
    found, errors = [], []

    def work():
        try:
            for _ in range(3):
                branch = copy.deepcopy(prompt)
                found.append(subject.rest(branch, PROMPT))
                del branch
        except BaseException as error:  # noqa: BLE001  (told below)
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(found) == 12 and all(torch.equal(one, wanted) for one in found)
    gc.collect()
    assert prompt.store.cache.stats().num_seqs == 2
    assert torch.equal(subject.rest(prompt, PROMPT), wanted)


# Server ---------------------------------------------------------------------------------------------


def served(on_token=None):
    server = Server(families.build("llama", attention="kvcache"))
    requests = [server.submit([5 + index, 6, 7], 8, on_token=on_token and on_token(index, server)) for index in range(4)]
    return server, requests


def test_a_callback_that_raises_ends_its_own_request():
    alone = served()
    alone[0].run()

    def callbacks(index, server):
        def on_token(request, token):
            if index == 1 and len(request.tokens) == 3:
                raise Failure

        return on_token

    server, requests = served(callbacks)
    server.run()
    assert requests[1].finish == "error" and isinstance(requests[1].error, Failure)
    assert requests[1].tokens == alone[1][1].tokens[:3]
    for index in (0, 2, 3):
        assert requests[index].tokens == alone[1][index].tokens and requests[index].finish == "length"
    assert not server.has_work


def test_a_callback_may_cancel_any_request():
    alone = served()
    alone[0].run()
    requests = []

    def callbacks(index, server):
        def on_token(request, token):
            if index == 1 and len(request.tokens) == 3:
                for one in (0, 1, 3):
                    server.cancel(requests[one])

        return on_token

    server, made = served(callbacks)
    requests += made
    server.run()
    assert [request.finish for request in requests] == ["cancelled", "cancelled", "length", "cancelled"]
    assert requests[2].tokens == alone[1][2].tokens
    assert len(requests[1].tokens) == 3
    assert not server.has_work
    server.store.cache.check()
