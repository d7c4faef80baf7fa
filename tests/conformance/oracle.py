"""The numbers of the scenarios and the formulas for their results, in double precision.

write_cases.py computes every expected number of a case with these functions. Nothing here calls
the library.
"""

import functools
import math
import struct

QUERY, KEY, VALUE, STATE, INPUT, WEIGHT, DECAY, BETA = range(1, 9)


@functools.lru_cache(maxsize=None)
def value(kind, layer, token, head, element):
    """A multiple of 1/64 in [-1, 1): exact in float32, float16 and bfloat16."""
    x = (
        token * 0x9E3779B1
        + layer * 0x85EBCA77
        + head * 0xC2B2AE3D
        + element * 0x27D4EB2F
        + kind * 0x165667B1
    )
    x &= 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x2C1B3C6D & 0xFFFFFFFF
    x ^= x >> 12
    x = x * 0x297A2D39 & 0xFFFFFFFF
    x ^= x >> 15
    return ((x & 127) - 64) / 64


def vector(kind, layer, token, head, size):
    return [value(kind, layer, token, head, element) for element in range(size)]


def tokens(kind, layer, ids, heads, dim, first_head=0):
    """Flat [tokens][heads][dim]."""
    return [x for token in ids for head in range(first_head, first_head + heads)
            for x in vector(kind, layer, token, head, dim)]


def parse_ids(text, own=None):
    """A list such as "0..3,7,@-1..@". @ is `own`; with it, numbers below zero are left out."""

    def number(part):
        if not part.startswith("@"):
            return int(part)
        if own is None:
            raise ValueError(f"'@' has no meaning in '{text}'")
        return own + int(part[1:] or 0)

    ids = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("..")
        span = range(number(first), number(last or first) + 1)
        if not span:
            raise ValueError(f"'{part}' is an empty range")
        ids += [token for token in span if own is None or token >= 0]
    return ids


class Rope:
    """The rotation of one layer. A rope that is off, or absent, turns nothing."""

    def __init__(self, json=None, head_dim=0, offset=0):
        self.mode = "NONE" if json is None else json.get("mode", "ON_APPEND")
        json = {} if json is None else json
        if json.get("scaling") == "LONGROPE":
            self.mode = "ON_READ"
        self.interleaved = json.get("style", "HALF") == "INTERLEAVED"
        self.offset = offset
        self.dim = json.get("rotary_dim", 0) or head_dim
        self.scale = json.get("scale", 0) or 1
        self.magnitude = json.get("magnitude", json.get("attention_factor", 0) or 1)
        self.sections = json.get("sections", [])
        self.sections_interleaved = json.get("section_layout", "CONTIGUOUS") == "INTERLEAVED"
        self.theta = json.get("theta", 0) or 10000
        self.stated, self.factors = json.get("frequencies"), json.get("freq_factors", [])
        self.long_factors = json.get("long_freq_factors", [])

    def _frequencies(self, use_long):
        if self.stated and not (use_long and self.long_factors):
            return self.stated
        factors = self.long_factors if use_long and self.long_factors else self.factors
        plain = [self.theta ** (-2 * i / self.dim) for i in range(self.dim // 2)]
        return [f / factors[i] for i, f in enumerate(plain)] if factors else plain

    def _section(self, pair):
        count = len(self.sections)
        if count < 2:
            return 0
        if self.sections_interleaved:
            return pair % count if pair // count < self.sections[pair % count] else 0
        section = 0
        while pair >= self.sections[section]:
            pair -= self.sections[section]
            section += 1
        return section

    def turn(self, x, position, use_long=False):
        """`x` rotated at `position`, a list of one number or of one number per section."""
        if self.mode == "NONE":
            return x
        x, half = list(x), self.dim // 2
        frequencies = self._frequencies(use_long)
        for i in range(half):
            p = position[0] if len(position) == 1 else position[self._section(i)]
            angle = p * self.scale * frequencies[i]
            first = self.offset + (2 * i if self.interleaved else i)
            second = first + 1 if self.interleaved else first + half
            a, b, cos, sin = x[first], x[second], math.cos(angle), math.sin(angle)
            x[first] = self.magnitude * (a * cos - b * sin)
            x[second] = self.magnitude * (b * cos + a * sin)
        return x


def float32(x):
    """The nearest float32: of a quotient of two float32 numbers it is theirs in float32."""
    return struct.unpack("f", struct.pack("f", x))[0]


def bfloat16(x):
    """The nearest bfloat16, halves to even."""
    bits = struct.unpack("I", struct.pack("f", x))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("f", struct.pack("I", bits))[0]


class Storage:
    """How rows are kept. Quantised rows, of 8 bits, are read as their elements times a scale."""

    # Least and largest element; bits of the fraction and the least exponent of float8.
    ELEMENTS = {"i8": (-128, 127, None, None), "e4m3": (-448, 448, 3, -6),
                "e5m2": (-57344, 57344, 2, -14)}
    LEAST_SCALE = 2.0**-126

    def __init__(self, quant="NONE", dtype="f32", scale=0, keep_tokens=0):
        self.quant, self.dtype, self.shared = quant, dtype, float32(scale or 1)
        self.keep_tokens = keep_tokens
        if quant != "NONE":
            self.least, self.largest, self.fraction, self.exponent = self.ELEMENTS[dtype]

    @property
    def is_quantised(self):
        return self.quant != "NONE"

    def scale(self, row):
        if self.quant == "PER_TENSOR":
            return self.shared
        return max(float32(max(abs(float32(x)) for x in row) / self.largest), self.LEAST_SCALE)

    def _element(self, x):
        step = 1
        if self.fraction is not None:
            exponent = math.frexp(x)[1] - 1 if x else self.exponent
            step = 2.0 ** (max(exponent, self.exponent) - self.fraction)
        nearest = math.copysign(round(x / step) * step, x)  # halves to even
        return min(max(nearest, self.least), self.largest)

    def elements(self, row):
        scale = self.scale(row)
        return [self._element(float32(float32(x) / scale)) for x in row]

    def saturated(self, row):
        if self.quant != "PER_TENSOR":
            return 0
        return sum(not self.least <= float32(float32(x) / self.shared) <= self.largest for x in row)

    def code(self, element):
        """An element as its type's bits: a whole number of int8, a byte of float8."""
        if self.fraction is None:
            return int(element)
        sign, size = (128 if math.copysign(1, element) < 0 else 0), abs(element)
        exponent = max(math.frexp(size)[1] - 1 if size else self.exponent, self.exponent)
        steps = int(size / 2.0 ** (exponent - self.fraction))
        # The implied bit of a normal number carries into the exponent's place.
        return sign + ((exponent - self.exponent) << self.fraction) + steps

    def kept(self, row, place=None):
        """The values that are read again of the token at this place of the sequence; None: of one
        behind those that are kept unquantised."""
        if not self.is_quantised:
            return row
        if place is not None and place < self.keep_tokens:
            return [bfloat16(x) for x in row]
        scale = self.scale(row)
        return [float32(element * scale) for element in self.elements(row)]


def attend(q, keys, scale, v_dim, soft_cap=0.0, sink=None):
    """(out, lse) of one query head over `keys`, a list of (k, v, added to the score)."""
    scores = []
    for k, _, bias in keys:
        score = scale * sum(a * b for a, b in zip(q, k))
        scores.append((soft_cap * math.tanh(score / soft_cap) if soft_cap > 0 else score) + bias)
    top = max(scores, default=-math.inf)
    if top == -math.inf:
        return [0.0] * v_dim, -math.inf
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    denominator = total + (0 if sink is None else math.exp(sink - top))
    out = [sum(w * key[1][d] for w, key in zip(weights, keys)) / denominator for d in range(v_dim)]
    return out, top + math.log(total)


class Linear:
    """Linear attention: its inputs by formula, its outputs by the recurrence of kvc_decay."""

    def __init__(self, json, layer, heads, k_dim, v_dim):
        self.layer, self.heads, self.k_dim, self.v_dim = layer, heads, k_dim, v_dim
        self.heads_k = json.get("heads_k", heads)
        self.decay, self.delta = json.get("decay", "NONE"), json.get("delta", False)
        self.beta, self.skip, self.scale = (json.get("beta", False), json.get("skip", False),
                                            json.get("scale", 0))

    def log_decay(self, token, head, row):
        if self.decay == "NONE":
            return 0.0
        token = 0 if self.decay == "HEAD" else token
        return (
            -(value(DECAY, self.layer, token, head, row if self.decay == "CHANNEL" else 0) + 1) / 4
        )

    def decays(self, ids):
        """Shape and elements of the argument `decay`, or None."""
        rows = self.k_dim if self.decay == "CHANNEL" else 1
        ids = [0] if self.decay == "HEAD" else ids
        flat = [self.log_decay(t, h, i) for t in ids for h in range(self.heads)
                for i in range(rows)]
        shapes = {"HEAD": [self.heads], "TOKEN": [len(ids), self.heads],
                  "CHANNEL": [len(ids), self.heads, self.k_dim]}
        return (shapes[self.decay], flat) if self.decay != "NONE" else None

    def betas(self, ids):
        return [(value(BETA, self.layer, t, h, 0) + 1) / 2 for t in ids for h in range(self.heads)]

    def skips(self):
        return [value(WEIGHT, self.layer, 0, h, 0) for h in range(self.heads)]

    def _step(self, token, head, state):
        shared = head // (self.heads // self.heads_k)
        q = vector(QUERY, self.layer, token, shared, self.k_dim)
        k = vector(KEY, self.layer, token, shared, self.k_dim)
        v = vector(VALUE, self.layer, token, head, self.v_dim)
        for i, row in enumerate(state):
            row[:] = [x * math.exp(self.log_decay(token, head, i)) for x in row]
        beta = self.betas([token])[head] if self.beta else 1
        for j in range(self.v_dim):
            seen = sum(state[i][j] * k[i] for i in range(self.k_dim)) if self.delta else 0
            for i in range(self.k_dim):
                state[i][j] += k[i] * beta * (v[j] - seen)
        scale = self.scale or 1 / math.sqrt(self.k_dim)
        skip = self.skips()[head] if self.skip else 0
        return [scale * sum(state[i][j] * q[i] for i in range(self.k_dim)) + skip * v[j]
                for j in range(self.v_dim)]

    def run(self, history, ids):
        """Outputs of `ids` after `history`, flat [tokens][heads][v_dim]; and the state, flat."""
        outputs, states = [], []
        for head in range(self.heads):
            state = [[0.0] * self.v_dim for _ in range(self.k_dim)]
            for token in history:
                self._step(token, head, state)
            outputs.append([self._step(token, head, state) for token in ids])
            states += [x for row in state for x in row]
        return [x for t in range(len(ids)) for head in outputs for x in head[t]], states
