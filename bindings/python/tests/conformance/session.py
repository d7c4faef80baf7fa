"""One run of a scenario through the public Python API: the cache, the open forward, and the checks that follow every step."""

from __future__ import annotations

import dataclasses

import numpy as np

import kvcache

from . import steps_attention, steps_cache, steps_operators, steps_prefix, steps_stored
from .scenario import Model

HANDLERS = {
    **steps_cache.HANDLERS,
    **steps_attention.HANDLERS,
    **steps_stored.HANDLERS,
    **steps_operators.HANDLERS,
    **steps_prefix.HANDLERS,
}


class Session:
    def __init__(self, scenario):
        self.scenario = scenario
        self.tolerance = scenario.get("tolerance", 1e-5)
        self.model = Model(scenario["config"])
        self.handlers = HANDLERS
        self.cache = kvcache.Cache(self.model.config)
        self.plan = self.cache.plan
        self.fwd = None  # the last one, also when it has ended
        self.seqs, self.lengths, self.ids, self.cross_ids = [], [], [], []
        self.next_id = 0
        self.positions = {}
        self.partials, self.pools = {}, {}

    # ---- what steps need

    def position_of(self, token):
        """Where a token's rotary position is not its id: what the caller gave with the forward."""
        return self.positions.get(token, [float(token)])

    def near(self, actual, expected, what):
        actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        assert actual.shape == expected.shape, f"{what}: shape {actual.shape} instead of {expected.shape}"
        with np.errstate(invalid="ignore"):
            good = (actual == expected) | (
                np.abs(actual - expected) <= self.tolerance * np.maximum(1, np.abs(expected))
            )
        good &= ~np.isinf(expected) | (actual == expected)
        if not good.all():
            at = tuple(int(i) for i in np.argwhere(~good)[0])
            raise AssertionError(f"{what}: {actual[at]} instead of {expected[at]} at {at}")

    def view(self, layer):
        return self.model.views[layer]

    def group_of(self, layer):
        return self.plan.layer(layer).group

    def pages(self, seq, group):
        return self.cache.seq_pages(seq, group).numpy().tolist()

    # ---- the run

    def snapshot(self):
        """What a refused step must leave as it was."""
        seqs = self.cache.seqs()
        return (
            self.cache.free_pages,
            self.cache.total_length,
            seqs,
            [self.cache.info(seq) for seq in seqs],
            [[self.pages(seq, group) for group in range(self.plan.info.num_groups)] for seq in seqs],
        )

    def check_expectations(self, expect):
        for seq, length in expect.get("lengths", {}).items():
            assert self.cache.length(int(seq)) == length, f"length of sequence {seq}"
        for key, actual in (
            ("free_pages", self.cache.free_pages),
            ("empty", self.cache.is_empty),
            ("total_length", self.cache.total_length),
            ("seqs", self.cache.seqs()),
        ):
            if key in expect:
                assert actual == expect[key], f"{key}: {actual} instead of {expect[key]}"
        for seq, fields in expect.get("info", {}).items():
            actual = dataclasses.asdict(self.cache.info(int(seq)))
            for name, wanted in fields.items():
                assert actual[name] == wanted, f"{name} of sequence {seq}: {actual[name]} instead of {wanted}"
        for seq, layers in expect.get("pages", {}).items():
            for layer, wanted in layers.items():
                kept = self.pages(int(seq), self.group_of(int(layer)))
                assert len(kept) == wanted, f"pages of sequence {seq} for layer {layer}: {kept}"
        if "stats" in expect:
            stats = dataclasses.asdict(self.cache.stats())
            for name, wanted in expect["stats"].items():
                assert stats[name] == wanted, f"stats.{name}: {stats[name]} instead of {wanted}"

    def run_step(self, step):
        before = self.snapshot()
        allowed = step.get("status", "KVC_OK")
        allowed = [allowed] if isinstance(allowed, str) else allowed
        error = None
        try:
            self.handlers[step["op"]](self, step)
        except kvcache.Error as raised:
            error = raised
        name = error.name if error else "KVC_OK"
        assert name in allowed, f"answered {name} ({error}), expected {allowed}"
        if error:
            assert str(error), "a refusal says why"
            assert self.snapshot() == before, "a refused call changed the cache"
        if "detail" in step:
            assert error.detail == step["detail"], str(error)
        self.check_expectations(step.get("expect", {}))
        self.cache.check()

    def run(self):
        for number, step in enumerate(self.scenario["steps"]):
            try:
                self.run_step(step)
            except AssertionError as failure:
                raise AssertionError(f"step {number} {str(step)[:300]}: {failure}") from failure
        if self.fwd is not None and self.fwd.is_open:
            self.fwd.abort()
        for seq in self.cache.seqs():
            self.cache.remove(seq)
        assert self.cache.is_empty, "pages leak: all sequences are gone"
        self.cache.check()
        self.cache.close()
