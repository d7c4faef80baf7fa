"""Calls of layers inside a forward: attention and recurrent state."""

import math

import oracle
from oracle import INPUT, KEY, QUERY, VALUE, WEIGHT, Linear, parse_ids
from scenario import formula, literal, near, runs, text_of_row

# Numbers of the constants in kvcache.h.
ATTN_FLAGS = {"DETERMINISTIC": 1, "BATCH_INVARIANT": 2, "NO_CASCADE": 4}
DECAYS = ["NONE", "HEAD", "TOKEN", "CHANNEL"]
ACTIVATIONS = ["NONE", "SILU"]


class LayerSteps:
    """The part of Writer that writes calls of layers."""

    def options(self, step, q_heads):
        if "opt" not in step:
            return {}
        opt = step["opt"]
        call = opt.given("scale", "soft_cap", "window")
        if "flags" in opt:
            call["flags"] = sum(ATTN_FLAGS[flag] for flag in opt["flags"])
        for key in ("sink_logits", "alibi"):
            if key in opt:
                call[key] = literal([q_heads], opt[key])
        if "spans" in opt:
            call["spans"] = literal([len(opt["spans"]), 3],
                                    [x for span in opt["spans"] for x in span], "i32")
        if "bias" in opt:
            call["bias"] = literal([len(opt["bias"]), len(opt["bias"][0])],
                                   [x for row in opt["bias"] for x in row])
        return {"opt": call}

    def outputs(self, step, rows, padding=1, lse=True):
        """Both outputs of an attention call: how large they are, and what they have to hold."""
        count = len(rows.ids)
        out = {"shape": [count + padding, rows.q_heads, rows.v_dim]}
        log = {"shape": [count + padding, rows.q_heads]}
        results = {"out": out, "lse": log} if lse else {"out": out}
        step.given("sees", "at", "was_at", "q_at", "long_from", "rows")
        if self.refused:
            return results
        if padding:
            for result in results.values():
                result["untouched"] = count
        if "sees" not in step:
            return results
        checked, out["values"], log["values"] = [], [], []
        for row in range(count):
            text = text_of_row(step["sees"], row, count)
            if text is not None:
                values, sums = self.attended(step, rows, row, parse_ids(text, rows.ids[row]))
                checked.append(row)
                out["values"] += near(values)
                log["values"] += near(sums)
        if len(checked) < count:
            for result in results.values():
                result["rows"] = checked
        return results

    def attended(self, step, rows, row, ids):
        own, long_from = rows.ids[row], step.get("long_from", math.inf)
        opt = step.get("opt", {})
        if "at" in step:
            at = [[p] for p in parse_ids(text_of_row(step["at"], row, len(rows.ids)), own)]
        else:
            at = [self.position_of(token) for token in ids]
        if len(at) != len(ids):
            raise ValueError("'at' and 'sees' differ in length")
        was_at = [None] * len(ids)
        if "was_at" in step:
            was_at = parse_ids(text_of_row(step["was_at"], row, len(rows.ids)), own)
        q_at = [step["q_at"][row]] if "q_at" in step else self.position_of(own)
        scale = opt.get("scale", 0) or 1 / math.sqrt(rows.k_dim)
        outs, sums = [], []
        for head in range(rows.q_heads):
            kv_head = head // (rows.q_heads // rows.kv_heads)
            q = [0.0] * rows.k_dim
            if step.get("q", "zero") == "formula":
                q = rows.rope.turn(oracle.vector(QUERY, rows.q_layer, own, head, rows.k_dim), q_at,
                                   own >= long_from)
            keys = []
            for token, position, was in zip(ids, at, was_at):
                k = rows.key(token, kv_head, position, token >= long_from, was)
                v = k if rows.v_is_k else rows.value(token, kv_head, position[0])
                added = -opt["alibi"][head] * (q_at[0] - position[0]) if "alibi" in opt else 0
                bias = opt["bias"][row][position[0]] if "bias" in opt else 0
                keys.append((k, v, -math.inf if bias is None else added + bias))
            sink = opt["sink_logits"][head] if "sink_logits" in opt else None
            out, lse = oracle.attend(q, keys, scale, rows.v_dim, opt.get("soft_cap", 0), sink)
            outs += out
            sums.append(lse)
        return outs, sums

    def attend(self, op, step, inputs, rows, **more):
        return {"op": op, **more, "q": rows.q(step), **inputs, **self.options(step, rows.q_heads),
                **self.outputs(step, rows)}

    def attn(self, step):
        rows, appends = self.rows(step["layer"]), step.get("append", True)
        if appends:
            self.count_saturated(rows, rows.ids)
        return self.attend("attn", step, rows.kv() if appends else {}, rows, layer=step["layer"])

    def fused(self, step):
        rows, flat = self.rows(step["layer"]), []
        self.count_saturated(rows, rows.ids)
        for token in rows.ids:
            heads = ((QUERY, rows.q_layer, rows.q_heads, 0),
                     (KEY, rows.keys, rows.kv_heads, rows.first_head),
                     (VALUE, rows.keys, rows.kv_heads, rows.first_head))
            for kind, layer, count, first in heads:
                part = oracle.tokens(kind, layer, [token], count, rows.k_dim, first)
                flat += ([0] * len(part)
                         if kind == QUERY and step.get("q", "zero") == "zero" else part)
        qkv = literal([len(rows.ids) + 1, rows.q_heads + 2 * rows.kv_heads, rows.k_dim], flat)
        return {"op": "fused", "layer": step["layer"], "qkv": qkv,
                **self.options(step, rows.q_heads), **self.outputs(step, rows, lse=False)}

    def self(self, step):
        """MLA: every head gets the latent as K, and its first elements as V."""
        rows = self.rows(step["layer"])
        inputs = rows.kv()
        if rows.v_is_k:
            latents = [oracle.vector(KEY, rows.keys, token, 0, rows.k_dim) for token in rows.ids]
            for key, dim in (("k", rows.k_dim), ("v", rows.v_dim)):
                flat = [x for latent in latents for _ in range(rows.q_heads) for x in latent[:dim]]
                inputs[key] = literal([len(rows.ids) + 1, rows.q_heads, dim], flat)
        return self.attend("self", step, inputs, rows, layer=step["layer"], **step.given("into"))

    def cached(self, step):
        return self.attend("cached", step, {}, self.rows(step["layer"]), layer=step["layer"],
                           **step.given("into"))

    def merge(self, step):
        rows = self.rows(step["layer"])
        step.given("q", "opt")
        return {"op": "merge", **step.given("into", "other"), **self.outputs(step, rows)}

    def append(self, step):
        rows = self.rows(step["layer"])
        self.count_saturated(rows, rows.ids)
        return {"op": "append", "layer": step["layer"], **rows.kv()}

    def mla_append(self, step):
        rows = self.rows(step["layer"])
        self.count_saturated(rows, rows.ids)
        return {"op": "mla_append", "layer": step["layer"],
                "latent": formula(KEY, rows.keys, rows.ids, 1, rows.k_dim)}

    def cross(self, step):
        rows, gives = self.rows(step["layer"]), step.get("give", False)
        if gives:
            self.count_saturated(rows, self.side.cross_ids)
        inputs = rows.kv(self.side.cross_ids) if gives else {}
        return self.attend("cross", step, inputs, rows, layer=step["layer"])

    def shared_kv(self, step):
        rows = self.rows(step["source"], q_heads=step.get("q_heads"))
        return self.attend("shared_kv", step, {}, rows, source=step["source"])

    # ---- recurrent state

    def state_of(self, step):
        """Layer, number and shape of a state; one that does not exist gets a shape of its own."""
        layer, number = self.layer(step["layer"]), step.get("state", 0)
        known = layer.number == step["layer"] and number < len(layer.states)
        return layer, number, layer.states[number][0] if known else [2]

    def states(self, step):
        layer, number, shape = self.state_of(step)
        flat = [x for token in step["values"] for x in layer.state_value(number, token)]
        return layer, number, literal([len(self.side.seqs) + 1, *shape], flat)

    def state_get(self, step):
        _, number, want = self.states(step)
        want |= {"exact": True, "untouched": len(self.side.seqs)}
        want = {"shape": want["shape"]} if self.refused else want
        return {"op": "state_get", "layer": step["layer"], "state": number, "out": want}

    def state_set(self, step):
        _, number, given = self.states(step)
        return {"op": "state_set", "layer": step["layer"], "state": number, "given": given}

    def linear_of(self, step, json):
        _, _, shape = self.state_of(step)
        return Linear(json, step["layer"], *(shape if len(shape) == 3 else (1, 2, 2)))

    def per_entry(self):
        """(entry, ids of its new tokens)."""
        begin = 0
        for entry, length in enumerate(self.side.lengths):
            yield entry, self.side.ids[begin : begin + length]
            begin += length

    def linear(self, step):
        model = self.linear_of(step, step)
        call = {"op": "linear", "layer": step["layer"],
                **linear_call(model, self.side.ids, step.get("state", 0))}
        if model.skip:
            call["skip"] = literal([model.heads], model.skips())
        out = {"shape": [len(self.side.ids), model.heads, model.v_dim]}
        if "history" in step and not self.refused:
            out["values"] = []
            for entry, own in self.per_entry():
                out["values"] += near(model.run(parse_ids(step["history"][entry]), own)[0])
        return {**call, "out": out}

    def conv(self, step):
        layer, number, shape = self.state_of(step)
        channels, width = shape[0], (shape[1] if len(shape) == 2 else 1) + 1
        weight = [oracle.vector(WEIGHT, step["layer"], 0, c, width) for c in range(channels)]
        bias = [oracle.value(WEIGHT, step["layer"], 1, c, 0) for c in range(channels)]
        biased, activation = step.get("bias", False), step.get("activation", "NONE")
        call = {
            "op": "conv",
            "layer": step["layer"],
            "state": number,
            "activation": ACTIVATIONS.index(activation),
            "x": {"shape": [len(self.side.ids), channels], "kind": INPUT, "layer": step["layer"],
                  "ids": runs(self.side.ids)},
            "weight": literal([channels, width], [x for row in weight for x in row]),
        }
        if biased:
            call["bias"] = literal([channels], bias)
        out = {"shape": [len(self.side.ids), channels]}
        if "history" in step and not self.refused:
            out["values"] = []
            for entry, own in self.per_entry():
                history = parse_ids(step["history"][entry])
                for t in range(len(own)):
                    last = conv_inputs(step["layer"], history + own[: t + 1], width, channels)
                    for c in range(channels):
                        x = sum(w * row[c] for w, row in zip(weight[c], last)) + (
                            bias[c] if biased else 0
                        )
                        out["values"] += near(
                            [x / (1 + math.exp(-x)) if activation == "SILU" else x]
                        )
        return {**call, "out": out}

    def stored_state(self, step):
        layer, number, shape = self.state_of(step)
        if "conv_inputs" in step:
            kept = conv_inputs(step["layer"], parse_ids(step["conv_inputs"]), shape[1], shape[0])
            flat = [row[c] for c in range(shape[0]) for row in kept]
        elif "linear" in step:
            _, flat = self.linear_of(step, step["linear"]).run(
                parse_ids(step["linear"]["history"]), []
            )
        else:
            flat = layer.state_value(number, step.get("value", -1))
        want = {"shape": shape} if self.refused else {"shape": shape, "values": near(flat)}
        return {"op": "stored_state", "seq": step["seq"], "layer": step["layer"], "state": number,
                "out": want}

    def store_state(self, step):
        layer, number, shape = self.state_of(step)
        return {"op": "store_state", "seq": step["seq"], "layer": step["layer"], "state": number,
                "given": literal(shape, layer.state_value(number, step["value"]))}


def conv_inputs(layer, ids, count, channels):
    """The last `count` rows of inputs, zeros before the first."""
    rows = [[0.0] * channels] * count + [oracle.vector(INPUT, layer, token, 0, channels)
                                         for token in ids]
    return rows[-count:] if count else []


def linear_call(model, ids, state):
    call = {"decay_kind": DECAYS.index(model.decay), "delta": model.delta, "scale": model.scale,
            "state": state, "q": formula(QUERY, model.layer, ids, model.heads_k, model.k_dim, 0),
            "k": formula(KEY, model.layer, ids, model.heads_k, model.k_dim, 0),
            "v": formula(VALUE, model.layer, ids, model.heads, model.v_dim, 0)}
    if model.decay != "NONE":
        call["decay"] = literal(*model.decays(ids))
    if model.beta:
        call["beta"] = literal([len(ids), model.heads], model.betas(ids))
    return call
