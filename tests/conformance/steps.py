"""The steps of a scenario as calls with their arguments and their expected results."""

import math

import oracle
from oracle import KEY, VALUE, parse_ids
from scenario import Fields, Model, Rows, integers, literal, near
from steps_layers import LayerSteps
from steps_operators import OperatorSteps

# Numbers of the constants in kvcache.h.
POOL_KINDS = ["K", "V", "KV", "BYTES"]
SEQ_OPS = ["FORK", "POP", "SHIFT"]
KEY_TYPES = {"ADAPTER": 1, "MEDIA": 2, "USER": 256}
PREFIX_FLAGS = {"ALL_TOKENS": 1, "WHOLE_BLOCKS": 2}

class Side:
    """A cache: its model, and the batch of its last forward."""

    def __init__(self, config):
        self.model = Model(config)
        self.seqs, self.lengths, self.ids, self.cross_ids = [], [], [], []


EXPECT = {"lengths", "available_pages", "empty", "total_length", "seqs", "info", "pages", "stats"}


class Writer(LayerSteps, OperatorSteps):
    """Plays a scenario on paper: the tokens of each forward, and the answer of each call."""

    def __init__(self, scenario):
        self.scenario = scenario
        caches = scenario.get("caches", {})
        self.sides = {name: Side(caches[name]) for name in caches}
        self.sides[""] = self.side = Side(scenario["config"])
        self.next_id, self.given_positions, self.refused = 0, {}, False
        self.saturated = 0  # Elements that did not fit when they were stored; None: not known.

    def case(self):
        steps = []
        for number, step in enumerate(self.scenario["steps"]):
            try:
                steps += self.written(number, step)
            except Exception as error:
                raise ValueError(f"step {number} {dict(step)}: {error}") from error
        if not any(checks(step) for step in steps):
            raise ValueError("the scenario checks nothing")
        others = {name: side.model.call for name, side in self.sides.items() if name}
        return {"name": self.scenario["name"], "about": self.scenario["about"],
                "tolerance": self.scenario.get("tolerance", 1e-5), "config": self.sides[""].model.call,
                **({"caches": others} if others else {}), "steps": steps}

    def written(self, number, step):
        """The calls of a step. The first has its status; `expect` holds after the last."""
        step.get("about")
        status = step.get("status", "KVC_OK")
        allowed = [status] if isinstance(status, str) else status
        self.refused = allowed != ["KVC_OK"]
        if self.refused and "KVC_OK" in allowed:
            raise ValueError("a step succeeds, or it does not")
        self.side = self.sides[step.get("cache", "")]
        calls = getattr(self, step["op"])(step)
        calls = [{"from": number, **step.given("cache"), **call}
                 for call in (calls if isinstance(calls, list) else [calls])]
        if self.refused:
            calls[0]["status"] = allowed
            calls = calls[:1]
        calls[-1] |= step.given("detail")
        if "expect" in step:
            calls[-1]["expect"] = self.expected(step["expect"].whole())
            if set(step["expect"]) - EXPECT:
                raise ValueError(f"unknown keys in {set(step['expect'])}")
        return calls

    def expected(self, found):
        """`stats` may say "counted" of values_saturated."""
        if found.get("stats", {}).get("values_saturated") != "counted":
            return found
        if self.saturated is None:
            raise ValueError("rows that are rotated are not counted")
        return {**found, "stats": {**found["stats"], "values_saturated": self.saturated}}

    def count_saturated(self, rows, ids):
        """Counts what does not fit of rows that a call stores."""
        if self.refused or self.saturated is None:
            return
        if rows.rope.mode == "ON_APPEND" and rows.k_storage.quant == "PER_TENSOR":
            self.saturated = None
            return
        for token in ids:
            for head in range(rows.kv_heads):
                self.saturated += rows.k_storage.saturated(rows.given(KEY, token, head))
                if not rows.v_is_k:
                    self.saturated += rows.v_storage.saturated(rows.given(VALUE, token, head))

    def answer(self, step, key, needed=False):
        """What a call has to answer, unless it is refused."""
        found = step.given(key)
        if needed and not self.refused and not found:
            raise ValueError(f"'{key}' is missing")
        return {} if self.refused else found

    def position_of(self, token):
        return self.given_positions.get(token, [token])

    def layer(self, number):
        known = 0 <= number < len(self.side.model.layers)
        return self.side.model.layers[number if known else 0]

    def rows(self, number, ids=None, q_heads=None):
        """Shapes of a call on a layer. One that does not exist gets those of layer 0."""
        layer = self.layer(number)
        heads = (layer.q_heads, layer.kv_heads) if layer.q_heads > 0 else (1, 1)
        dims = (layer.k_dim, layer.v_dim) if layer.k_dim > 0 else (4, 4)
        return Rows(self.side.ids if ids is None else ids, q_heads or heads[0], heads[1], *dims,
                    layer.v_is_k, layer.rope, layer.number, layer.keys, layer.k_storage,
                    layer.v_storage, layer.first_head)

    def plain(self, step, *keys):
        return {"op": step["op"]} | step.given(*keys)

    # ---- the plan, the cache, sequences

    def plan(self, step):
        model = Model(step["config"]) if "config" in step else self.side.model
        call = {"op": "plan", **({"config": model.call} if "config" in step else {})}
        call |= self.answer(step, "groups")
        for key in ("request_pages", "layers"):
            if key in step:
                call[key] = step[key].whole()
        if "layer_groups" in step:
            call["layer_groups"] = {str(model.slice[i]): group for i,
                                    group in enumerate(step["layer_groups"])}
        return call

    def seq(self, step):
        return self.plain(step, "seq")

    add = remove = checkpoint = seq

    def fork(self, step):
        return {"op": "fork", "parent": step["parent"], "child": step["child"],
                "pos": step.get("pos", -1)}

    def save(self, step):
        return self.plain(step, "seqs", "file")

    def load(self, step):
        return self.plain(step, "seqs", "file", "flip")

    def transfer(self, step):
        return {**self.plain(step, "seq", "to", "senders", "num_tokens"),
                "begin": step.get("begin", 0), "publish": step.get("publish", False)}

    def pop(self, step):
        return self.plain(step, "seq", "n")

    def shift(self, step):
        return self.plain(step, "seq", "begin", "end", "delta")

    def set_window(self, step):
        return {**self.plain(step, "seq", "window"), "sink": step.get("sink", 0)}

    def nothing(self, step):
        return self.plain(step)

    clear = prefix_reset = arrive = nothing

    def resize(self, step):
        return self.plain(step, "num_pages")

    def can_append(self, step):
        return self.plain(step, "seqs", "lengths") | self.answer(step, "missing", True)

    def can(self, step):
        call = {**self.plain(step, "seq", "pos"), "what": SEQ_OPS.index(step["what"])}
        return call | self.answer(step, "nearest", True)

    def around(self, step):
        call = {**self.plain(step, "seq", "pos"), "what": SEQ_OPS.index(step["what"])}
        return call | self.answer(step, "below", True) | self.answer(step, "above", True)

    def release(self, step):
        return self.plain(step, "seq", "pos")

    def commit(self, step):
        return self.plain(step, "seqs", "leaves")

    # ---- the forward

    def begin(self, step):
        lengths = step["lengths"]
        ids, following = [], self.next_id
        for entry, length in enumerate(lengths):
            following = step["ids"][entry] if "ids" in step else following
            ids += range(following, following + length)
            following += max(length, 0)
        call = {"op": "begin", "seqs": step["seqs"], "lengths": lengths}
        if "tree_parents" in step:
            call["tree_parents"] = tree_parents(step["tree_parents"])
        if step.get("publish", False):
            call["tokens"] = ids
        call |= step.given("partial", "cross_lengths")
        positions = step.get("positions")
        if positions is not None:
            call["positions"] = integers(positions)
        first, cross = step.get("cross_ids"), step.get("cross_lengths", [])
        if self.refused:
            return call
        call["num_tokens"] = len(ids)
        self.side.seqs, self.side.lengths, self.side.ids = step["seqs"], lengths, ids
        self.side.cross_ids = [first[entry] + i for entry, length in enumerate(cross)
                          for i in range(length)]
        self.next_id = max([self.next_id, *(token + 1 for token in ids)])
        if positions is not None:
            flat = not isinstance(positions[0], list)
            for t, token in enumerate(ids):
                self.given_positions[token] = ([positions[t]]
                                               if flat else [row[t] for row in positions])
        return call

    def end(self, step):
        return {"op": step["op"]}

    abort = end

    def forward(self, step):
        """begin, the call of every layer, end."""
        calls = [self.begin(step)]
        shared = step.given("q", "at", "was_at", "q_at", "long_from", "opt")
        more = step.given("sees", "cross_sees", "get", "set", "layer_sees")
        for number in self.side.model.slice if self.side.model.has_storage else ():
            layer = self.side.model.layers[number]
            sees = more.get("layer_sees", {}).get(str(number), more.get("sees"))
            part = {"layer": number, **shared, **({} if sees is None else {"sees": sees})}
            if layer.keeps_tokens or layer.kind == "SHARED":
                calls.append(self.attn(Fields([*part.items(), ("append", layer.keeps_tokens)])))
            elif layer.kind == "CROSS":
                part = {"layer": number, "give": bool(self.side.cross_ids), **step.given("q")}
                part |= {"sees": more["cross_sees"]} if "cross_sees" in more else {}
                calls.append(self.cross(Fields(list(part.items()))))
            elif layer.kind == "STATE":
                for state in range(len(layer.states)):
                    for key, call in (("get", self.state_get), ("set", self.state_set)):
                        if key in more:
                            part = [("layer", number), ("state", state), ("values", more[key])]
                            calls.append(call(Fields([("op", f"state_{key}"), *part])))
        return [*calls, {"op": "end"}]

    def positions(self, step):
        values = step.get("values", [])
        out = integers(values) if values else {"shape": [len(self.side.ids)], "dtype": "i32"}
        if self.refused:
            out.pop("values", None)
        return {"op": "positions", "out": out if self.refused else {**out, "exact": True}}

    def tables(self, step):
        number = step["layer"]
        call = {"op": "tables", "layer": number, **step.given("kind")}
        if self.refused or "kind" in step:
            return call
        lengths = ([0] * len(self.side.seqs)
                   if self.side.model.layers[number].kind == "CROSS" else self.side.lengths)
        call |= {"page_size": self.side.model.page_size, "new_tokens": lengths}
        return call | step.given("indptr", "last_page_len", "seq_lens", "qo_indptr",
                                 "page_position")

    # ---- what pages hold

    def stored_rows(self, step, number, ids):
        """K and V as a layer keeps them; K is rotated where the layer rotates on append."""
        rows = self.rows(number)
        at, long_from = step.get("at"), step.get("long_from", math.inf)
        was_at = parse_ids(step["was_at"]) if "was_at" in step else [None] * len(ids)
        k, places = [], []
        for i, token in enumerate(ids):
            position = self.position_of(token) if at is None else [parse_ids(at)[i]]
            places.append(position[0])
            for head in range(rows.kv_heads):
                k += rows.stored_key(token, head, position, token >= long_from, was_at[i])
        return near(k), [] if rows.v_is_k else near(rows.values(ids, places))

    def stored_in(self, step, number, ids, call, room):
        rows = self.rows(number)
        results = {"k": {"shape": [room, rows.kv_heads, rows.k_dim]}}
        if not rows.v_is_k:
            results["v"] = {"shape": [room, rows.kv_heads, rows.v_dim]}
        k, v = self.stored_rows(step, number, ids)
        if not self.refused:
            for key, flat in (("k", k), ("v", v)):
                if key in results:
                    results[key]["values"] = flat
                    results[key] |= step.given("tolerance")
        return {**call, "layer": number, **results}

    def span(self, step):
        ids = parse_ids(step.get("ids", ""))
        begin = step.get("begin", 0)
        end = step.get("end", begin + len(ids))
        if not self.refused and len(ids) != end - begin:
            raise ValueError("'ids' does not cover [begin, end)")
        return ids, begin, end

    def stored(self, step):
        ids, begin, end = self.span(step)
        own = [n for n in self.side.model.slice if self.side.model.layers[n].keeps_tokens]
        call = {"op": "stored", "seq": step["seq"], "begin": begin, "end": end}
        return [self.stored_in(step, number, ids, call, max(0, end - begin))
                for number in ([step["layer"]] if "layer" in step else own)]

    def gather(self, step):
        ids = parse_ids(step.get("ids", ""))
        # A refusal may come before or after shapes are checked: leave room for any sequence.
        room = max(len(ids), 64 if self.refused else 0)
        return self.stored_in(step, step["layer"], ids, {"op": "gather", "seq": step["seq"]}, room)

    def store(self, step):
        rows, ids = self.rows(step["layer"]), parse_ids(step["ids"])
        self.count_saturated(rows, ids)
        return {"op": "store", **step.given("seq", "layer", "begin"), **rows.kv(ids, 0)}

    def stack(self, step, mla):
        """Layers of one kind, which have equal shapes, and the shapes of a call over all."""
        kind = "MLA" if mla else "ATTENTION"
        layers = [number for number in self.side.model.slice if self.side.model.layers[number].kind == kind]
        rows = self.rows(layers[0] if layers else 0)

        def shapes(count):
            k = [count, rows.k_dim] if mla else [count, rows.kv_heads, rows.k_dim]
            both = {"k": k} if mla else {"k": k, "v": [count, rows.kv_heads, rows.v_dim]}
            return {key: [len(self.side.model.slice), *shape] for key, shape in both.items()}

        return layers, rows, shapes

    def stored_stack(self, step):
        ids, begin, end = self.span(step)
        layers, _, shapes = self.stack(step, step["op"] == "stored_mla")
        results = {key: {"shape": shape} for key, shape in shapes(max(0, end - begin)).items()}
        if not self.refused:
            found = [self.stored_rows(step, number, ids) for number in layers]
            for i, key in enumerate(results):
                results[key]["rows"] = [number - self.side.model.slice[0] for number in layers]
                results[key]["values"] = [x for both in found for x in both[i]]
        return {"op": step["op"], "seq": step["seq"], "begin": begin, "end": end, **results}

    stored_kv = stored_mla = stored_stack

    def store_stack(self, step):
        ids = parse_ids(step["ids"])
        layers, rows, shapes = self.stack(step, step["op"] == "store_mla")
        for number in layers:
            self.count_saturated(self.rows(number), ids)
        given = {}
        for key, shape in shapes(len(ids)).items():
            kind, dim = (KEY, rows.k_dim) if key == "k" else (VALUE, rows.v_dim)
            given[key] = literal(
                shape,
                [x for number in self.side.model.slice
                 for x in oracle.tokens(kind, number, ids, rows.kv_heads, dim, rows.first_head)],
            )
        return {"op": step["op"], "seq": step["seq"], "begin": step["begin"], **given}

    store_kv = store_mla = store_stack

    def export_pool(self, step):
        return {"op": "export_pool", "layer": step["layer"],
                "kind": POOL_KINDS.index(step["kind"]), **self.answer(step, "shape")}

    # ---- the prefix cache

    def query(self, step):
        """A token's id in the scenario is its id for the cache."""
        tokens = step["tokens"]
        call = {"op": step["op"], "tokens": parse_ids(tokens)
                if isinstance(tokens, str) else tokens}
        call |= step.given("seq", "num_tokens", "salt", "priority", "hashes")
        if "keys" in step:
            call["keys"] = [
                {"type": KEY_TYPES[key.get("type", "USER")], "offset": key.get("offset", 0),
                 "data": key.get("data", "")}
                for key in step["keys"]
            ]
        if "flags" in step:
            call["flags"] = sum(PREFIX_FLAGS[flag] for flag in step["flags"])
        return call | self.answer(step, "hit")

    match = attach = insert = pin = unpin = query

    def prefix_hash(self, step):
        return self.query(step) | step.given("block") | self.answer(step, "values", True)

    def evict(self, step):
        return self.plain(step, "pages") | self.answer(step, "freed")

    def quota(self, step):
        return {"op": "quota", "salt": step.get("salt", ""), "pages": step["pages"]}

    def events(self, step):
        counts = step["counts"].whole() if "counts" in step else {}
        return {"op": "events"} if self.refused else {"op": "events", "counts": counts}


def tree_parents(given):
    if isinstance(given, list):
        return given
    ((shape, count),) = given.whole().items()
    parent = {"star": lambda i: 0, "chain": lambda i: i - 1, "binary": lambda i: (i - 1) // 2}[
        shape
    ]
    return [parent(i) if i > 0 else -1 for i in range(count)]


def checks(step):
    """Whether a step of a case compares anything."""
    answers = {"status", "expect", "missing", "nearest", "below", "above", "hit", "freed", "counts", "shape",
               "groups", "values", "layer_groups", "layers", "request_pages", "page_size",
               "want_out"}
    wants = [step[key] for key in ("out", "lse", "k", "v") if key in step]
    return bool(answers & set(step)) or any(want.get("values") for want in wants)
