"""The numbers of the scenarios: values by formula, lists of ids, rotation, softmax attention, linear recurrence. All in double."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

QUERY, KEY, VALUE, STATE, INPUT, WEIGHT, DECAY, BETA = range(1, 9)


def values(kind, layer, ids, heads, elements):
    """value(kind, layer, id, head, element), broadcast over the arguments."""
    ids, heads, elements = (np.asarray(x, np.uint32) for x in (ids, heads, elements))
    with np.errstate(over="ignore"):
        x = (
            ids * np.uint32(0x9E3779B1)
            + np.uint32(layer & 0xFFFFFFFF) * np.uint32(0x85EBCA77)
            + heads * np.uint32(0xC2B2AE3D)
            + elements * np.uint32(0x27D4EB2F)
            + np.uint32(kind) * np.uint32(0x165667B1)
        )
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x2C1B3C6D)
        x ^= x >> np.uint32(12)
        x *= np.uint32(0x297A2D39)
        x ^= x >> np.uint32(15)
    return ((x & np.uint32(127)).astype(np.float64) - 64) / 64


def tensor(kind, layer, ids, heads, dim):
    """[ids, heads, dim] of one formula."""
    return values(
        kind,
        layer,
        np.asarray(ids, np.int64).reshape(-1, 1, 1),
        np.arange(heads).reshape(1, -1, 1),
        np.arange(dim),
    )


def padded(array):
    """float32 with one more row, of NaN: padding that no call may read or write."""
    return np.concatenate([array, np.full((1, *array.shape[1:]), np.nan)]).astype(np.float32)


def parse_ids(text, own=None):
    """ "0..3,7,@-2..@": numbers and inclusive ranges; @ is the row's own id, numbers below zero are then left out."""

    def number(part):
        if not part.startswith("@"):
            return int(part)
        assert own is not None, f"'@' has no meaning in {text!r}"
        return own + (int(part[1:]) if len(part) > 1 else 0)

    ids = []
    for part in text.split(",") if text else ():
        first, dots, last = part.partition("..")
        begin = number(first)
        end = number(last) if dots else begin
        assert begin <= end, f"{part!r} is an empty range"
        ids += [i for i in range(begin, end + 1) if own is None or i >= 0]
    return ids


@dataclass
class Rotation:
    """A layer's rotation as the formulas take it."""

    on: bool = False
    interleaved: bool = False
    offset: int = 0
    rotary_dim: int = 0
    scale: float = 1.0
    magnitude: float = 1.0
    sections: list = field(default_factory=list)
    sections_interleaved: bool = False
    frequencies: list = field(default_factory=list)
    long_frequencies: list = field(default_factory=list)

    @classmethod
    def of(cls, rope, head_dim, offset):
        rotary_dim = rope.get("rotary_dim", 0) or head_dim
        theta = rope.get("theta", 0) or 10000.0

        def frequencies(key):
            divisors = rope.get(key, [])
            plain = [theta ** (-2.0 * i / rotary_dim) for i in range(rotary_dim // 2)]
            return [f / divisors[i] if i < len(divisors) and divisors[i] else f for i, f in enumerate(plain)]

        return cls(
            on=rope.get("mode", "ON_APPEND") != "NONE",
            interleaved=rope.get("style", "HALF") == "INTERLEAVED",
            offset=offset,
            rotary_dim=rotary_dim,
            scale=rope.get("scale", 0) or 1.0,
            magnitude=rope.get("magnitude", rope.get("attention_factor", 0) or 1.0),
            sections=rope.get("sections", []),
            sections_interleaved=rope.get("section_layout") == "INTERLEAVED",
            frequencies=rope.get("frequencies") or frequencies("freq_factors"),
            long_frequencies=frequencies("long_freq_factors") if "long_freq_factors" in rope else [],
        )

    def _section_of(self, pair):
        n = len(self.sections)
        if n <= 1:
            return 0
        if self.sections_interleaved:
            return pair % n if pair // n < self.sections[pair % n] else 0
        ends = np.cumsum(self.sections)
        return int(np.searchsorted(ends, pair, side="right"))

    def turn(self, x, position, use_long=False):
        """x [..., dim] at a position (a list with one number, or one per section)."""
        if not self.on:
            return x
        x = np.array(x, np.float64)
        half = self.rotary_dim // 2
        frequencies = self.long_frequencies if use_long and self.long_frequencies else self.frequencies
        for i in range(half):
            p = position[0] if len(position) == 1 else position[self._section_of(i)]
            angle = p * self.scale * frequencies[i]
            first = self.offset + (2 * i if self.interleaved else i)
            second = first + 1 if self.interleaved else first + half
            a, b = x[..., first].copy(), x[..., second].copy()
            x[..., first] = self.magnitude * (a * np.cos(angle) - b * np.sin(angle))
            x[..., second] = self.magnitude * (b * np.cos(angle) + a * np.sin(angle))
        return x


def attend(scale, soft_cap, sink, q, k, v, bias):
    """Softmax attention of one query over k [n, dk], v [n, dv], with `bias` added to the scores: (out, lse)."""
    if len(k) == 0:
        return np.zeros(v.shape[1]), -np.inf
    s = scale * (k @ q)
    if soft_cap > 0:
        s = soft_cap * np.tanh(s / soft_cap)
    s = s + bias
    top = s.max()
    if top == -np.inf:
        return np.zeros(v.shape[1]), -np.inf
    weights = np.exp(s - top)
    total = weights.sum()
    denominator = total + (0.0 if sink is None else np.exp(sink - top))
    return weights @ v / denominator, top + np.log(total)


class Linear:
    """The recurrence of a linear attention layer, by the keys of a step."""

    def __init__(self, step, layer, heads, k_dim, v_dim):
        self.layer, self.heads, self.k_dim, self.v_dim = layer, heads, k_dim, v_dim
        self.heads_k = step.get("heads_k", heads)
        self.decay = step.get("decay", "NONE")
        self.delta, self.beta, self.skip = (step.get(key, False) for key in ("delta", "beta", "skip"))
        self.scale = step.get("scale", 0.0)

    def log_decay(self, token, head):
        if self.decay == "NONE":
            return np.zeros(self.k_dim)
        elements = np.arange(self.k_dim) if self.decay == "CHANNEL" else np.zeros(self.k_dim, int)
        return -(values(DECAY, self.layer, 0 if self.decay == "HEAD" else token, head, elements) + 1) / 4

    def betas(self, token, head):
        return (float(values(BETA, self.layer, token, head, 0)) + 1) / 2 if self.beta else 1.0

    def skips(self):
        return values(WEIGHT, self.layer, 0, np.arange(self.heads), 0)

    def run(self, history, ids):
        """Outputs [ids, heads, v_dim] after `history`, from zero states, and the states [heads, k_dim, v_dim] at the end."""
        states = np.zeros((self.heads, self.k_dim, self.v_dim))
        outputs = np.zeros((len(ids), self.heads, self.v_dim))
        scale = self.scale or 1 / np.sqrt(self.k_dim)
        for head in range(self.heads):
            head_k = head // (self.heads // self.heads_k)
            state, skip = states[head], float(self.skips()[head]) if self.skip else 0.0
            for t, token in enumerate([*history, *ids]):
                q, k = (
                    values(kind, self.layer, token, head_k, np.arange(self.k_dim)) for kind in (QUERY, KEY)
                )
                v = values(VALUE, self.layer, token, head, np.arange(self.v_dim))
                state *= np.exp(self.log_decay(token, head))[:, None]
                u = self.betas(token, head) * (v - k @ state if self.delta else v)
                state += np.outer(k, u)
                if t >= len(history):
                    outputs[t - len(history), head] = scale * (q @ state) + skip * v
        return outputs, states

    def tensors(self, ids):
        """q, k, v, ln(decay) or None, beta or None, skip or None: what the call is given, float32."""
        q, k = (tensor(kind, self.layer, ids, self.heads_k, self.k_dim) for kind in (QUERY, KEY))
        v = tensor(VALUE, self.layer, ids, self.heads, self.v_dim)
        decay = None
        if self.decay == "HEAD":
            decay = np.array([self.log_decay(0, h)[0] for h in range(self.heads)])
        elif self.decay != "NONE":
            decay = np.array([[self.log_decay(i, h) for h in range(self.heads)] for i in ids]).reshape(
                len(ids), self.heads, self.k_dim
            )
            decay = decay if self.decay == "CHANNEL" else decay[:, :, 0]
        beta = (
            np.array([[self.betas(i, h) for h in range(self.heads)] for i in ids]).reshape(
                len(ids), self.heads
            )
            if self.beta
            else None
        )
        found = q, k, v, decay, beta, self.skips() if self.skip else None
        return tuple(None if x is None else np.ascontiguousarray(x, np.float32) for x in found)
