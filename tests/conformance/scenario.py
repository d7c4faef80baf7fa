"""What a scenario says, as the formulas and a case take it: its fields, its tensors, its layers."""

import math

import oracle
from oracle import KEY, QUERY, STATE, VALUE, Rope, Storage

# Numbers of the constants in kvcache.h, in their order.
KINDS = ["ATTENTION", "MLA", "CROSS", "STATE", "SHARED", "NONE"]
ROPE_WORDS = {"mode": ["NONE", "ON_APPEND", "ON_READ"], "style": ["HALF", "INTERLEAVED"],
              "scaling": ["NONE", "LLAMA3", "YARN", "LONGROPE"],
              "section_layout": ["CONTIGUOUS", "INTERLEAVED"]}
ROPE_NUMBERS = ["rotary_dim", "theta", "scale", "freq_factors", "long_freq_factors", "sections",
                "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
                "attention_factor", "original_context"]
CONFIG_NUMBERS = ["byte_budget", "layer_begin", "layer_end", "max_seqs", "max_tokens_per_forward",
                  "max_seq_len", "max_cross_len", "state_stride", "num_state_slots",
                  "event_capacity", "pad_pages"]
LAYER_NUMBERS = {"v_dim": "v_dim", "window": "window", "chunk": "chunk", "source": "source_layer",
                 "latent_rank": "latent_rank", "latent_rope_dim": "latent_rope_dim",
                 "v_is_k": "v_is_k", "v_dtype": "v_dtype", "keep_tokens": "keep_tokens"}
QUANTS = ["NONE", "PER_TENSOR", "PER_TOKEN_HEAD", "BLOCK16", "OFF"]
STORAGES = ["OWNED", "BORROWED", "NONE"]
POOL_LAYOUTS = ["LAYER_FIRST", "PAGE_FIRST"]


class Fields(dict):
    """A JSON object that notes which keys were read. A key that nobody reads is a mistake."""

    def __init__(self, pairs):
        super().__init__(pairs)
        if len(self) != len(pairs):
            raise ValueError(f"a key is written twice: {[key for key, _ in pairs]}")
        self.seen = set()

    def __getitem__(self, key):
        self.seen.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.seen.add(key)
        return super().__contains__(key)

    def get(self, key, default=None):
        self.seen.add(key)
        return super().get(key, default)

    def whole(self):
        """A copy whose keys are all read, those of objects in it too."""
        self.seen.update(self)
        return {key: x.whole() if isinstance(x, Fields) else x for key, x in self.items()}

    def given(self, *keys):
        return {key: self[key] for key in keys if key in self}


def check_read(node, where):
    """Refuses keys that nobody read."""
    if isinstance(node, Fields) and set(node) - node.seen:
        raise ValueError(f"{where}: unknown keys {sorted(set(node) - node.seen)}")
    inner = (node.items() if isinstance(node, dict) else enumerate(node)
             if isinstance(node, list) else ())
    for key, child in inner:
        check_read(child, f"{where}.{key}")


def plain(x, digits=9):
    """A number as a case holds it: null is minus infinity, and whole numbers have no point."""
    if isinstance(x, float):
        if x == -math.inf:
            return None
        x = float(f"{x:.{digits}g}")
        return int(x) if x == int(x) else x
    return x


def literal(shape, flat, dtype="f32", **more):
    tensor = {"shape": list(shape), "values": [plain(x) for x in flat], **more}
    return tensor if dtype == "f32" else {**tensor, "dtype": dtype}


def integers(rows, dtype="i32"):
    """A list, or a list of rows, as a tensor."""
    if not rows or not isinstance(rows[0], list):
        return literal([len(rows)], rows, dtype)
    return literal([len(rows), len(rows[0])], [x for row in rows for x in row], dtype)


def runs(ids):
    out = []
    for token in ids:
        if out and token == out[-1][0] + out[-1][1]:
            out[-1][1] += 1
        else:
            out.append([token, 1])
    return out


def formula(kind, layer, ids, heads, dim, padding=1, **more):
    """Rows of tokens by value(); the padding rows after them hold nothing."""
    return {"shape": [len(ids) + padding, heads, dim], "kind": kind, "layer": layer,
            "ids": runs(ids), **more}


def zeros(tokens, heads, dim, padding=1):
    return {"shape": [tokens + padding, heads, dim], "kind": 0, "layer": 0, "ids": [[0, tokens]]}


def near(flat):
    """Expected numbers: the runner compares them within the tolerance of the scenario."""
    return [plain(float(x)) if x in (math.inf, -math.inf) else plain(float(x), 8) for x in flat]


# ---- The configuration


class Layer:
    """What the formulas take of a layer."""

    def __init__(self, json, layers, rank):
        self.kind = json.get("kind", "ATTENTION")
        pages, mla = self.kind in ("ATTENTION", "CROSS"), self.kind == "MLA"
        heads, q_heads = json.get("heads", int(pages)), json.get("q_heads", int(mla))
        k_dim, v_dim = json.get("k_dim", 4 if pages else 0), json.get("v_dim", 0)
        latent, rope_dim = json.get("latent_rank", 0), json.get("latent_rope_dim", 0)
        self.number, self.keys = len(layers), len(layers)
        self.kv_heads, self.q_heads = 1 if mla else heads, q_heads or heads
        self.first_head = rank * heads  # Of the model's: the rank keeps a run of its heads.
        self.k_dim, self.v_dim = (latent + rope_dim, latent) if mla else (k_dim, v_dim or k_dim)
        self.v_is_k = json.get("v_is_k", False) or latent > 0
        rope = json.get("rope")
        self.rope = Rope(rope, rope_dim if mla else k_dim, latent if mla else 0)
        quant, dtype = json.get("quant", "NONE"), json.get("dtype", "f32")
        v_quant = json.get("v_quant", quant)
        keep = json.get("keep_tokens", 0)
        self.k_storage = Storage(quant, dtype, json.get("k_scale", 0), keep)
        self.v_storage = self.k_storage if self.v_is_k else Storage(
            "NONE" if v_quant == "OFF" else v_quant, json.get("v_dtype", dtype),
            json.get("v_scale", 0), keep)
        self.states = [(state["shape"], state.get("init", -1)) for state in json.get("states", [])]
        if self.kind == "SHARED":
            self.keys = json.get("source", 0)
            if 0 <= self.keys < len(layers):
                source = layers[self.keys]
                self.kv_heads, self.k_dim, self.v_dim = source.kv_heads, source.k_dim, source.v_dim
                self.v_is_k, self.rope = source.v_is_k, source.rope
                self.first_head = source.first_head
                self.k_storage, self.v_storage = source.k_storage, source.v_storage
                self.q_heads = q_heads or source.kv_heads
        call = {"kind": KINDS.index(self.kind), "num_kv_heads": heads, "num_q_heads": q_heads,
                "k_dim": k_dim}
        call |= {name: json[key] for key, name in LAYER_NUMBERS.items() if key in json}
        if pages or mla or "dtype" in json:
            call["k_dtype"] = json.get("dtype", "f32")
        call |= {key: QUANTS.index(json[key]) for key in ("quant", "v_quant") if key in json}
        call |= json.given("k_scale", "v_scale")
        if rope is not None:
            call["rope"] = rope_call(rope)
        if "states" in json:
            call["states"] = [self._state_call(i, state) for i, state in enumerate(json["states"])]
        self.call = call

    def _state_call(self, number, json):
        dtype, init = json.get("dtype", "f32"), json.get("init", -1)
        call = {"shape": json["shape"], "dtype": dtype}
        if init >= 0:
            call["init"] = literal(json["shape"], self.state_value(number, init), dtype)
        return call

    @property
    def keeps_tokens(self):
        return self.kind in ("ATTENTION", "MLA")

    def state_value(self, number, token):
        """The value of a state that an id names; -1 is the initial one."""
        shape, init = self.states[number] if number < len(self.states) else ([2], -1)
        size, token = math.prod(shape), init if token < 0 else token
        return [0.0] * size if token < 0 else oracle.vector(STATE, self.number, token, number, size)


def rope_call(json):
    call = {key: words.index(json.get(key, "ON_APPEND" if key == "mode" else words[0])) for key,
            words in ROPE_WORDS.items()}
    json.seen |= {"frequencies", "magnitude"}  # these are for the formulas only
    return call | json.given(*ROPE_NUMBERS)


class Model:
    def __init__(self, config):
        self.layers = []
        for layer in config["layers"]:
            self.layers.append(Layer(layer, self.layers, config.get("rank", 0)))
        self.page_size = config.get("page_size", 4)
        self.has_storage = config.get("storage", "OWNED") != "NONE"
        end = config.get("layer_end", 0)
        self.slice = range(config.get("layer_begin", 0), end) if end else range(len(self.layers))
        self.call = {"page_size": self.page_size, "num_threads": config.get("num_threads", 2),
                     "num_pages": config.get("num_pages", 0 if "byte_budget" in config else 64),
                     "storage": STORAGES.index(config.get("storage", "OWNED")),
                     "pool_layout": POOL_LAYOUTS.index(config.get("pool_layout", "LAYER_FIRST")),
                     **config.given(*CONFIG_NUMBERS),
                     "layers": [layer.call for layer in self.layers]}


class Rows:
    """One attention call, as the formulas take it."""

    def __init__(self, ids, q_heads=1, kv_heads=1, k_dim=4, v_dim=4, v_is_k=False, rope=None,
                 q_layer=0, keys=0, k_storage=Storage(), v_storage=Storage(), first_head=0):
        self.ids, self.q_heads, self.kv_heads, self.k_dim, self.v_dim = (
            ids,
            q_heads,
            kv_heads,
            k_dim,
            v_dim,
        )
        self.v_is_k, self.rope, self.q_layer, self.keys = v_is_k, rope or Rope(), q_layer, keys
        self.k_storage, self.v_storage, self.first_head = k_storage, v_storage, first_head

    def given(self, kind, token, head):
        """K or V of a head as a call gives it."""
        dim = self.k_dim if kind == KEY else self.v_dim
        return oracle.vector(kind, self.keys, token, self.first_head + head, dim)

    def rows(self, kind, ids, padding):
        ids, dim = self.ids if ids is None else ids, self.k_dim if kind == KEY else self.v_dim
        if self.first_head == 0:
            return formula(kind, self.keys, ids, self.kv_heads, dim, padding)
        return literal([len(ids) + padding, self.kv_heads, dim],
                       oracle.tokens(kind, self.keys, ids, self.kv_heads, dim, self.first_head))

    def q(self, step, padding=1):
        how = step.get("q", "zero")
        if how not in ("zero", "formula"):
            raise ValueError('\'q\' is "zero" or "formula"')
        if how == "zero":
            return zeros(len(self.ids), self.q_heads, self.k_dim, padding)
        return formula(QUERY, self.q_layer, self.ids, self.q_heads, self.k_dim, padding)

    def k(self, ids=None, padding=1):
        return self.rows(KEY, ids, padding)

    def v(self, ids=None, padding=1):
        return self.rows(VALUE, ids, padding)

    def kv(self, ids=None, padding=1):
        return {"k": self.k(ids, padding), **({} if self.v_is_k else {"v": self.v(ids, padding)})}

    def stored_key(self, token, head, position, use_long, was_at=None):
        """K as it is kept, which is rotated with rotation on append. What was kept at `was_at` is
        rotated on from there, and not rounded again."""
        k = self.given(KEY, token, head)
        if self.rope.mode != "ON_APPEND":
            return self.k_storage.kept(k, position[0])
        if was_at is not None and was_at != position[0]:
            k = self.k_storage.kept(self.rope.turn(k, [was_at], use_long), was_at)
            return self.rope.turn(k, [position[0] - was_at], use_long)
        return self.k_storage.kept(self.rope.turn(k, position, use_long), position[0])

    def key(self, token, head, position, use_long, was_at=None):
        """K as queries see it."""
        k = self.stored_key(token, head, position, use_long, was_at)
        return self.rope.turn(k, position, use_long) if self.rope.mode == "ON_READ" else k

    def value(self, token, head, place=None):
        return self.v_storage.kept(self.given(VALUE, token, head), place)

    def values(self, ids, places=None):
        return [x for token, place in zip(ids, places or [None] * len(ids))
                for head in range(self.kv_heads) for x in self.value(token, head, place)]


def text_of_row(texts, row, count):
    if isinstance(texts, str):
        return texts
    if isinstance(texts, list):
        if len(texts) != count:
            raise ValueError("a list has not one entry for each new token")
        return texts[row]
    return texts.get(str(row))
