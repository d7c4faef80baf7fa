"""What is measured on a GPU: the shapes that papers and other libraries report, their ids, and what each moves and computes at least."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    id: str
    what: str
    kind: str  # decode, tree, prefill, cascade, latent, append, copy, linear
    batch: int = 1
    new_tokens: int = 1  # per sequence
    context: int = 0  # keys that the last new token sees
    q_heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    page: int = 16
    storage: str = "bfloat16"
    window: int = 0
    sinks: bool = False  # one learned term per head in the denominator
    zipf: bool = False  # lengths of decreasing size, mean about 4,096
    shared: int = 0  # tokens of a prefix that all sequences share

    @property
    def lengths(self):
        """Keys per sequence, the new ones included."""
        if not self.zipf:
            return [self.context] * self.batch
        # Zipf's law, exponent 1, cut at the ends; the same lengths in every run.
        weights = [1.0 / (rank + 1) for rank in range(self.batch)]
        scale = self.context * self.batch / sum(weights)
        return [max(16, min(65536, round(scale * weight))) for weight in weights]

    def visible_pairs(self):
        """Pairs of a new token and a key that it sees."""
        total = 0
        for length in self.lengths:
            for position in range(length - self.new_tokens, length):
                total += min(position + 1, self.window) if self.window else position + 1
        return total

    def element_bytes(self):
        return {"bfloat16": 2, "float8_e4m3fn": 1, "float32": 4}[self.storage]

    def key_bytes(self):
        """Bytes of K and V that have to be read once, or of what is moved."""
        if self.kind == "latent":
            return sum(self.lengths) * self.dim * self.element_bytes()
        if self.kind == "copy":
            return 2 * self.batch * 65536
        if self.kind == "linear":
            return 2 * self.batch * self.q_heads * self.dim * self.dim * 4
        row = self.kv_heads * 2 * self.dim
        if self.kind == "append":
            tokens = self.batch * self.new_tokens
            return tokens * row * (2 + self.element_bytes())
        keys = sum(
            min(length, self.window + self.new_tokens - 1) if self.window else length
            for length in self.lengths
        )
        keys -= self.shared * (self.batch - 1)
        return keys * row * self.element_bytes()

    def flops(self):
        if self.kind in ("append", "copy", "linear"):
            return 0
        if self.kind == "latent":
            return 2 * self.visible_pairs() * self.q_heads * (self.dim + self.dim - 64)
        return 4 * self.visible_pairs() * self.q_heads * self.dim


# What a graph does not hold: trees; prefixes that are read once, which only eager forwards do;
# copies, which stay out of a capture.
EAGER = ("tree", "cascade", "copy")


def k(number):
    return number * 1024


SHAPES = [
    Shape("D1", "decode, one sequence", "decode", 1, 1, k(4)),
    Shape("D2", "decode", "decode", 32, 1, k(4)),
    Shape("D2/64", "decode, pages of 64", "decode", 32, 1, k(4), page=64),
    Shape("D3", "decode, Zipf lengths", "decode", 64, 1, k(4), zipf=True),
    Shape("D4", "decode, long", "decode", 8, 1, k(32), page=64),
    Shape("D5", "decode, 8 query heads on one", "decode", 64, 1, k(8), 8, 1),
    Shape("D6", "decode, MHA", "decode", 16, 1, k(4), 32, 32),
    Shape("D6/1", "decode, MHA, pages of 1", "decode", 16, 1, k(4), 32, 32, page=1),
    Shape("D7", "decode, fp8 keys", "decode", 32, 1, k(4), storage="float8_e4m3fn"),
    Shape(
        "D8",
        "decode, window 128 and sinks",
        "decode",
        64,
        1,
        k(8),
        64,
        8,
        64,
        window=128,
        sinks=True,
    ),
    Shape("D9", "decode, head dim 256", "decode", 32, 1, k(8), 16, 4, 256, page=32),
    Shape("V1", "tree of 32 nodes", "tree", 16, 32, k(8)),
    Shape("P1", "prefill", "prefill", 1, k(8), k(8)),
    Shape("P1/64", "prefill, pages of 64", "prefill", 1, k(8), k(8), page=64),
    Shape("P2", "prefill, batch", "prefill", 16, k(1), k(1)),
    Shape("P3", "chunked prefill", "prefill", 4, k(2), k(8)),
    Shape("C1", "decode, shared prefix of 4096", "cascade", 64, 1, k(4) + 512, shared=k(4)),
    Shape("M1", "MLA decode, 128 heads", "latent", 128, 1, k(4), 128, 1, 576, page=64),
    Shape("M2", "MLA decode, 16 heads", "latent", 128, 1, k(4), 16, 1, 576, page=64),
    Shape("A1", "append with rotation, 128 tokens", "append", 128, 1, 1),
    Shape("A2", "append with rotation, 8192 tokens", "append", 1, k(8), k(8)),
    Shape("S1", "copy 4096 pages of 64 KiB", "copy", k(4)),
    Shape("R1", "gated delta rule, one token", "linear", 64, 1, 1, 32, 32, 128, storage="float32"),
]

# Small ones of every kind: the way through all of the code in seconds, for machines of any kind.
TINY = [
    Shape("d", "decode", "decode", 3, 1, 70, 4, 2, 32, storage="float32"),
    Shape("z", "decode, Zipf lengths", "decode", 5, 1, 90, 4, 2, 32, zipf=True, storage="float32"),
    Shape(
        "w",
        "decode, window and sinks",
        "decode",
        2,
        1,
        90,
        4,
        2,
        32,
        window=20,
        sinks=True,
        storage="float32",
    ),
    Shape("v", "tree", "tree", 2, 8, 70, 4, 2, 32, storage="float32"),
    Shape("p", "prefill", "prefill", 2, 30, 50, 4, 2, 32, storage="float32"),
    Shape("c", "shared prefix", "cascade", 3, 1, 80, 4, 2, 32, shared=64, storage="float32"),
    Shape("m", "latents", "latent", 2, 1, 40, 4, 1, 128, storage="float32"),
    Shape("a", "append with rotation", "append", 2, 5, 5, 4, 2, 32, storage="float32"),
    Shape("s", "copy of pages", "copy", 8),
    Shape("r", "gated delta rule", "linear", 2, 1, 1, 4, 4, 32, storage="float32"),
]
