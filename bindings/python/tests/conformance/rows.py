"""What each new token sees, as a scenario states it, against the outputs of an attention call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import kvcache

from . import formulas
from .formulas import KEY, QUERY, VALUE, Rotation, parse_ids

FLAGS = {
    "DETERMINISTIC": kvcache.DETERMINISTIC,
    "BATCH_INVARIANT": kvcache.BATCH_INVARIANT,
    "NO_CASCADE": kvcache.NO_CASCADE,
}


@dataclass
class Rows:
    """One attention call, as the formulas take it."""

    q_layer: int = 0
    key_layer: int = 0
    q_heads: int = 1
    kv_heads: int = 1
    k_dim: int = 4
    v_dim: int = 4
    v_is_k: bool = False
    rotation: Rotation = field(default_factory=Rotation)
    ids: list = field(default_factory=list)

    def q(self, step):
        if step.get("q", "zero") == "formula":
            return formulas.tensor(QUERY, self.q_layer, self.ids, self.q_heads, self.k_dim)
        return np.zeros((len(self.ids), self.q_heads, self.k_dim))

    def k(self, ids=None, heads=None):
        return formulas.tensor(
            KEY, self.key_layer, self.ids if ids is None else ids, heads or self.kv_heads, self.k_dim
        )

    def v(self, ids=None):
        return formulas.tensor(
            VALUE, self.key_layer, self.ids if ids is None else ids, self.kv_heads, self.v_dim
        )

    def outputs(self, padding=1):
        n = len(self.ids) + padding
        return np.full((n, self.q_heads, self.v_dim), np.nan, np.float32), np.full(
            (n, self.q_heads), np.nan, np.float32
        )


def rows_of_layer(session, layer):
    """A layer that the scenario has not got is asked for with the first one's shapes; layers without heads get one."""
    views = session.model.views
    layer_known = layer if 0 <= layer < len(views) else 0
    view = views[layer_known]
    rows = Rows(
        layer_known,
        session.model.keys_of(layer_known),
        view.q_heads,
        view.kv_heads,
        view.k_dim,
        view.v_dim,
        view.v_is_k or view.latent_rank > 0,
        view.rotation,
        session.ids,
    )
    if rows.q_heads < 1:
        rows.q_heads = rows.kv_heads = 1
    if rows.k_dim < 1:
        rows.k_dim = rows.v_dim = 4
    return rows


@dataclass
class Options:
    """A step's "opt": for the call, and for the formulas."""

    given: bool = False
    scale: float = 0.0
    soft_cap: float = 0.0
    window: int = 0
    sinks: list = None
    alibi: list = None
    bias: np.ndarray = None
    spans: list = None
    flags: int = 0

    @classmethod
    def of(cls, step):
        opt = step.get("opt")
        if opt is None:
            return cls()
        bias = opt.get("bias")
        if bias is not None:
            bias = np.array([[-np.inf if x is None else x for x in row] for row in bias], np.float64)
        return cls(
            True,
            opt.get("scale", 0.0),
            opt.get("soft_cap", 0.0),
            opt.get("window", 0),
            opt.get("sink_logits"),
            opt.get("alibi"),
            bias,
            opt.get("spans"),
            sum(FLAGS[flag] for flag in opt.get("flags", [])),
        )

    @property
    def call(self):
        if not self.given:
            return None

        def floats(values):
            return None if values is None else np.array(values, np.float32)

        spans = None if self.spans is None else np.array(self.spans, np.int32).reshape(-1, 3)
        return kvcache.AttnOptions(
            self.scale,
            self.soft_cap,
            self.window,
            floats(self.sinks),
            floats(self.alibi),
            floats(self.bias),
            spans,
            self.flags,
        )

    def added(self, head, row, q_position, positions):
        total = np.zeros(len(positions))
        if self.alibi is not None:
            total -= self.alibi[head] * (q_position - positions)
        if self.bias is not None:
            total += self.bias[row][positions.astype(int)]
        return total


def _text_of(texts, row, rows):
    if isinstance(texts, str):
        return texts
    if isinstance(texts, list):
        assert len(texts) == rows, "a list has not one entry for each new token"
        return texts[row]
    return texts.get(str(row))


def _check_row(session, step, rows, options, row, ids, positions, out, lse):
    own, long_from = rows.ids[row], step.get("long_from", float("inf"))
    q_position = [float(step["q_at"][row])] if "q_at" in step else session.position_of(own)
    queries = rows.rotation.turn(rows.q(step)[row], q_position, own >= long_from)
    keys = rows.k(ids)
    for j, token in enumerate(ids):
        keys[j] = rows.rotation.turn(keys[j], positions[j], token >= long_from)
    values = keys[:, :, : rows.v_dim] if rows.v_is_k else rows.v(ids)
    first = np.array([p[0] for p in positions])
    scale = options.scale or 1 / np.sqrt(rows.k_dim)
    for head in range(rows.q_heads):
        kv = head // (rows.q_heads // rows.kv_heads)
        want, want_lse = formulas.attend(
            scale,
            options.soft_cap,
            None if options.sinks is None else options.sinks[head],
            queries[head],
            keys[:, kv],
            values[:, kv],
            options.added(head, row, q_position[0], first),
        )
        if lse is not None:
            session.near(lse[row, head], want_lse, f"LSE of row {row} head {head}")
        session.near(out[row, head], want, f"out of row {row} head {head}")


def check_rows(session, step, rows, options, out, lse=None):
    """`sees`: a template for all rows, one text per row, or an object of row numbers."""
    if "sees" not in step:
        return
    tokens = len(rows.ids)
    for row in range(tokens):
        text = _text_of(step["sees"], row, tokens)
        if text is None:
            continue
        ids = parse_ids(text, rows.ids[row])
        if "at" in step:
            positions = [[float(p)] for p in parse_ids(_text_of(step["at"], row, tokens), rows.ids[row])]
            assert len(positions) == len(ids), "'at' and 'sees' differ in length"
        else:
            positions = [session.position_of(token) for token in ids]
        _check_row(session, step, rows, options, row, ids, positions, out, lse)
    assert np.isnan(out[tokens:]).all(), "padding rows of out were written"
    assert lse is None or np.isnan(lse[tokens:]).all(), "padding rows of lse were written"
