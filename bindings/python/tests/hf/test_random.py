# SPDX-License-Identifier: Apache-2.0
"""Random operations on caches of ours and on transformers' own, side by side: gathered results are equal bit by bit.

KVC_TEST_SCALE multiplies the operations, KVC_TEST_SEED runs one seed.
"""

import copy
import os
import random
import threading

import families
import pytest
import torch
from kvcache.hf import PagedCache
from kvcache.hf.layers import KVLayer
from steps import V5, dynamic
from test_failures import Failure, hooked

pytestmark = pytest.mark.skipif(not V5, reason="version 4 has other caches for hybrids, and other signs in crop")

OPERATIONS = 120
FAMILIES = ("llama", "mistral", "gemma3", "llama4", "deepseek_v3", "gemma3n", "gpt_oss", "falcon_h1", "jamba", "qwen3_next")
MOST_TOKENS = 80


class Pair:
    """Ours and theirs, after the same operations."""

    def __init__(self, model, ours=None, theirs=None, rows=1):
        self.ours = ours if ours is not None else PagedCache(model.config)
        self.theirs = theirs if theirs is not None else dynamic(model)
        self.rows = rows

    def both(self, call):
        call(self.ours)
        call(self.theirs)


class Operations:
    def __init__(self, family, seed):
        self.dice = random.Random(seed)
        self.model = families.build(family)
        self.layers = self.model.model.layers
        self.generator = torch.Generator().manual_seed(seed)
        self.is_hybrid = family in families.HYBRID  # whose own states transformers neither repeats nor selects
        self.slides = any(spec.view for spec in PagedCache(self.model.config)._specs)
        self.pairs = [self.new_pair()]
        self.done = {}

    def new_pair(self):
        return Pair(self.model, rows=self.dice.randrange(1, 4) if self.is_hybrid else 1)

    def tokens(self, pair, count):
        return torch.randint(3, families.VOCAB, (pair.rows, count), generator=self.generator)

    @torch.inference_mode()
    def run(self, cache, tokens):
        return self.model(input_ids=tokens, past_key_values=cache, use_cache=True).logits

    def op_forward(self, pair):
        # A burst behind a state takes other paths in some families than single tokens: both are equal.
        tokens = self.tokens(pair, self.dice.choice((1, 1, 1, 2, 5)))
        assert torch.equal(self.run(pair.ours, tokens), self.run(pair.theirs, tokens))

    def op_thread(self, pair):
        tokens, found = self.tokens(pair, 2), []
        thread = threading.Thread(target=lambda: found.append(self.run(pair.ours, tokens)))
        thread.start()
        thread.join()
        assert torch.equal(found[0], self.run(pair.theirs, tokens))

    def op_failure(self, pair):
        layer = self.dice.randrange(len(self.layers))
        error = self.dice.choice((Failure(), KeyboardInterrupt(), MemoryError()))
        with hooked(self.layers[layer], self.dice.random() < 0.5, error), pytest.raises(type(error)):
            self.run(pair.ours, self.tokens(pair, self.dice.choice((1, 3))))

    def op_crop(self, pair):
        length = pair.ours.get_seq_length()
        if not pair.ours.is_croppable or self.slides or length < 2:
            return
        drop = self.dice.randrange(1, length)
        pair.both(lambda cache: cache.crop(-drop))

    def op_reorder(self, pair):
        if pair.ours.get_seq_length():
            rows = torch.tensor([self.dice.randrange(pair.rows) for _ in range(pair.rows)])
            pair.both(lambda cache: cache.reorder_cache(rows))

    def op_repeat(self, pair):
        if pair.rows < 3 and pair.ours.get_seq_length() and not self.is_hybrid:
            pair.both(lambda cache: cache.batch_repeat_interleave(2))
            pair.rows *= 2

    def op_select(self, pair):
        if not pair.ours.get_seq_length() or self.is_hybrid:
            return
        chosen = [self.dice.randrange(-pair.rows, pair.rows) for _ in range(self.dice.randrange(1, 4))]
        if self.dice.random() < 0.3:
            mask = [self.dice.random() < 0.7 for _ in range(pair.rows)]
            chosen = mask if any(mask) else chosen
        pair.both(lambda cache: cache.batch_select_indices(torch.tensor(chosen)))
        pair.rows = sum(chosen) if isinstance(chosen[0], bool) else len(chosen)

    def op_branch(self, pair):
        if len(self.pairs) < 4:
            branch = pair.ours.branch() if self.dice.random() < 0.5 else copy.deepcopy(pair.ours)
            self.pairs.append(Pair(self.model, branch, copy.deepcopy(pair.theirs), pair.rows))

    def op_read(self, pair):
        for ours, theirs in zip(pair.ours.layers, pair.theirs.layers):
            if isinstance(ours, KVLayer) and ours.seen:
                assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)

    def op_drop(self, pair):
        self.pairs.remove(pair)

    def op_reset(self, pair):
        pair.ours.reset()
        pair.theirs, pair.rows = dynamic(self.model), 1

    def step(self):
        if not self.pairs:
            self.pairs.append(self.new_pair())
        pair = self.dice.choice(self.pairs)
        if pair.ours.get_seq_length() > MOST_TOKENS:
            self.op_reset(pair)
        weights = dict(forward=9, thread=1, failure=3, crop=2, reorder=1, repeat=1, select=2, branch=2, read=2, drop=1, reset=0.3)
        name = self.dice.choices(list(weights), list(weights.values()))[0]
        getattr(self, f"op_{name}")(pair)
        assert pair.ours.get_seq_length() == pair.theirs.get_seq_length()
        self.done[name] = self.done.get(name, 0) + 1


@pytest.mark.parametrize("family", FAMILIES)
def test_random_operations_equal_those_of_the_dynamic_cache(family):
    seed = int(os.environ.get("KVC_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"KVC_TEST_SEED={seed}")
    operations = Operations(family, seed)
    for _ in range(int(OPERATIONS * float(os.environ.get("KVC_TEST_SCALE", "1")))):
        operations.step()
    for pair in operations.pairs:
        operations.op_read(pair)
        if pair.ours.store is not None and pair.ours.store.cache.is_open:
            pair.ours.store.cache.check()
    print(operations.done)
