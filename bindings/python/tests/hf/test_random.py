# SPDX-License-Identifier: Apache-2.0
"""Random operations on caches of ours and on transformers' own, side by side: gathered results are equal bit by bit, fused ones up to
rounding.

KVC_TEST_SCALE multiplies the operations, KVC_TEST_SEED runs one seed.
"""

import contextlib
import copy
import os
import random
import threading

import families
import kvcache
import pytest
import torch
from kvcache.hf import PagedCache, PagedEncoderDecoderCache
from kvcache.hf.layers import KVLayer
from steps import FLOAT32, V5, dynamic
from test_failures import Failure, Subject, hooked
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

pytestmark = pytest.mark.skipif(not V5, reason="version 4 has other caches for hybrids, and other signs in crop")

OPERATIONS = 120
FAMILIES = ("llama", "mistral", "gemma3", "llama4", "deepseek_v3", "gemma3n", "gpt_oss", "falcon_h1", "jamba", "qwen3_next", "t5", "whisper",
            "qwen2_vl")
MODES = ("gather", "fused")
MOST_TOKENS = 80


class Pair:
    """Ours and theirs, after the same operations, and what its rows read beside tokens."""

    def __init__(self, ours, theirs, rows, encoder=None):
        self.ours, self.theirs, self.rows = ours, theirs, rows
        self.encoder = encoder  # its output [rows, tokens, hidden], or None

    def both(self, call):
        call(self.ours)
        call(self.theirs)

    def choose(self, rows):
        """Rows of what the encoder gave, as the caches have chosen theirs."""
        if self.encoder is not None:
            self.encoder = self.encoder[rows]


class Operations:
    def __init__(self, family, mode, seed):
        self.dice = random.Random(seed)
        self.mode = mode
        changes = families.all_experts(family)  # Rounding must not choose another expert.
        self.model = families.build(family, **changes)
        self.own_model = families.build(family, attention="kvcache", **changes) if mode == "fused" else self.model
        self.layers = Subject.layers_of(self.own_model)
        self.generator = torch.Generator().manual_seed(seed)
        self.is_hybrid = family in families.HYBRID  # whose own states transformers neither repeats nor selects
        self.encodes = family in families.ENCODER_DECODER
        self.has_positions = family in families.MROPE
        self.slides = not self.encodes and any(spec.view for spec in PagedCache(self.model.config)._specs)
        self.pairs = [self.new_pair()]
        self.done = {}

    def new_pair(self):
        rows = self.dice.randrange(1, 4) if self.is_hybrid else 1
        encoder = None
        if self.encodes:
            encoder = torch.randn(rows, self.dice.randrange(3, 12), self.model.config.d_model, generator=self.generator)
        return Pair(self.new_cache(), self.new_peer(), rows, encoder)

    def new_cache(self):
        return (PagedEncoderDecoderCache if self.encodes else PagedCache)(self.own_model.config, self.mode)

    def new_peer(self):
        return EncoderDecoderCache(DynamicCache(), DynamicCache()) if self.encodes else dynamic(self.model)

    def tokens(self, pair, count):
        """Arguments of a forward of so many random tokens."""
        ids = torch.randint(3, families.VOCAB - 8, (pair.rows, count), generator=self.generator)
        if self.encodes:
            return dict(decoder_input_ids=ids, encoder_outputs=BaseModelOutput(pair.encoder))
        if self.has_positions:  # in time, height and width, as behind an image
            first = pair.ours.get_seq_length() + torch.tensor([0, 3, 7])[:, None, None]
            return dict(input_ids=ids, position_ids=(first + torch.arange(count)).expand(3, pair.rows, count))
        return dict(input_ids=ids)

    @torch.inference_mode()
    def run(self, model, cache, given):
        return model(**given, past_key_values=cache, use_cache=True).logits

    def assert_equal(self, ours, theirs):
        if self.mode == "gather":
            assert torch.equal(ours, theirs)
        else:
            assert (ours - theirs).abs().max() <= FLOAT32 * (theirs.max() - theirs.min())

    def op_forward(self, pair):
        # A burst behind a state takes other paths in some families than single tokens: both are equal.
        given = self.tokens(pair, self.dice.choice((1, 1, 1, 2, 5)))
        self.assert_equal(self.run(self.own_model, pair.ours, given), self.run(self.model, pair.theirs, given))

    def op_thread(self, pair):
        given, found = self.tokens(pair, 2), []
        thread = threading.Thread(target=lambda: found.append(self.run(self.own_model, pair.ours, given)))
        thread.start()
        thread.join()
        self.assert_equal(found[0], self.run(self.model, pair.theirs, given))

    def op_failure(self, pair):
        layer = self.dice.randrange(len(self.layers))
        error = self.dice.choice((Failure(), KeyboardInterrupt(), MemoryError()))
        with hooked(self.layers[layer], self.dice.random() < 0.5, error), pytest.raises(type(error)):
            self.run(self.own_model, pair.ours, self.tokens(pair, self.dice.choice((1, 3))))

    def op_crop(self, pair):
        length = pair.ours.get_seq_length()
        if self.is_hybrid or self.slides or length < 2:
            return
        drop = self.dice.randrange(1, length)
        pair.both(lambda cache: cache.crop(-drop))

    def op_reorder(self, pair):
        if pair.ours.get_seq_length():
            rows = torch.tensor([self.dice.randrange(pair.rows) for _ in range(pair.rows)])
            pair.both(lambda cache: cache.reorder_cache(rows))
            pair.choose(rows)

    def op_repeat(self, pair):
        if pair.rows < 3 and pair.ours.get_seq_length() and not self.is_hybrid:
            pair.both(lambda cache: cache.batch_repeat_interleave(2))
            pair.choose(torch.arange(pair.rows).repeat_interleave(2))
            pair.rows *= 2

    def op_select(self, pair):
        if not pair.ours.get_seq_length() or self.is_hybrid:
            return
        chosen = [self.dice.randrange(-pair.rows, pair.rows) for _ in range(self.dice.randrange(1, 4))]
        if self.dice.random() < 0.3:
            mask = [self.dice.random() < 0.7 for _ in range(pair.rows)]
            chosen = mask if any(mask) else chosen
        pair.both(lambda cache: cache.batch_select_indices(torch.tensor(chosen)))
        pair.choose(torch.tensor(chosen))
        pair.rows = sum(chosen) if isinstance(chosen[0], bool) else len(chosen)

    def op_branch(self, pair):
        if len(self.pairs) < 4:
            branch = pair.ours.branch() if not self.encodes and self.dice.random() < 0.5 else copy.deepcopy(pair.ours)
            self.pairs.append(Pair(branch, copy.deepcopy(pair.theirs), pair.rows, pair.encoder))

    def op_read(self, pair):
        ours, theirs = pair.ours, pair.theirs
        if self.encodes:
            ours, theirs = ours.self_attention_cache, theirs.self_attention_cache
        for own, their in zip(ours.layers, theirs.layers):
            if self.mode == "fused" and isinstance(own, KVLayer) and own.seen >= own.spec.chunk > 0:
                with contextlib.suppress(kvcache.OutOfRange):  # They keep the current chunk alone.
                    self.assert_equal(own.keys, their.keys)
            elif isinstance(own, KVLayer) and own.seen and own.keys.shape == their.keys.shape:
                self.assert_equal(own.keys, their.keys)
                self.assert_equal(own.values, their.values)
            elif isinstance(own, KVLayer) and own.seen:
                assert self.mode == "fused" and own.keys.shape[-1] != their.keys.shape[-1]  # latents

    def op_drop(self, pair):
        self.pairs.remove(pair)

    def op_reset(self, pair):
        if self.encodes:
            self.pairs.remove(pair)
        else:
            pair.ours.reset()
            pair.theirs, pair.rows = dynamic(self.model), 1

    def step(self):
        if not self.pairs:
            self.pairs.append(self.new_pair())
        pair = self.dice.choice(self.pairs)
        if pair.ours.get_seq_length() > MOST_TOKENS:
            self.op_reset(pair)
            return
        weights = dict(forward=9, thread=1, failure=3, crop=2, reorder=1, repeat=1, select=2, branch=2, read=2, drop=1, reset=0.3)
        name = self.dice.choices(list(weights), list(weights.values()))[0]
        getattr(self, f"op_{name}")(pair)
        assert pair.ours.get_seq_length() == pair.theirs.get_seq_length()
        self.done[name] = self.done.get(name, 0) + 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_operations_equal_those_of_the_dynamic_cache(family, mode):
    seed = int(os.environ.get("KVC_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"KVC_TEST_SEED={seed}")
    operations = Operations(family, mode, seed)
    for _ in range(int(OPERATIONS * float(os.environ.get("KVC_TEST_SCALE", "1")))):
        operations.step()
    for pair in operations.pairs:
        operations.op_read(pair)
        own = pair.ours.self_attention_cache if operations.encodes else pair.ours
        if own.store is not None and own.store.cache.is_open:
            own.store.cache.check()
    print(operations.done)
