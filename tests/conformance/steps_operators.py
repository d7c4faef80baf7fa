"""Calls of the stateless operators over pools of the scenario. The formulas take layer 0."""

import oracle
from oracle import KEY, QUERY, VALUE, Linear, Rope, Storage, parse_ids
from scenario import QUANTS, Rows, formula, integers, literal, near, rope_call
from steps_layers import linear_call

OP_LAYOUTS = ["HND", "NHD", "MLA"]  # as numbered in kvcache.h


class OperatorSteps:
    """The part of Writer that writes calls of operators."""

    def op_pool(self, step):
        layout = step["layout"]
        pages, page, k_dim = step["num_pages"], step["page_size"], step.get("k_dim", 4)
        heads, v_dim = step.get("heads", 1), step.get("v_dim", k_dim)
        mla = layout == "MLA"
        quant, dtype = step.get("quant", "NONE"), step.get("dtype", "f32")
        self.pools = getattr(self, "pools", {})
        storages = [Storage(quant, dtype, step.get(key, 0)) for key in ("k_scale", "v_scale")]
        self.pools[step["pool"]] = {
            "kv_heads": 1 if mla else heads, "k_dim": k_dim, "v_dim": 0 if mla else v_dim,
            "v_is_k": mla, "k_storage": storages[0], "v_storage": storages[0 if mla else 1]}
        rows = {"HND": [pages, heads, page], "NHD": [pages, page, heads], "MLA": [pages, page]}

        def memory(dim):
            return {"shape": [*rows[layout], dim], "dtype": dtype}

        call = {"op": "op_pool", "pool": step["pool"], "layout": OP_LAYOUTS.index(layout),
                "k": memory(k_dim), **({} if mla else {"v": memory(v_dim)})}
        if quant != "NONE":
            call |= {"quant": QUANTS.index(quant), **step.given("k_scale", "v_scale")}
        if quant == "PER_TOKEN_HEAD":
            for key in ("k_scales",) if mla else ("k_scales", "v_scales"):
                call[key] = {"shape": rows[layout]}
        return call

    def pool_rows(self, step, ids, q_heads=1, **more):
        """Rows of a pool's shape."""
        return Rows(ids, q_heads, **{**self.pools[step["pool"]], **more})

    def op_options(self, step, positions, q_heads=1):
        call = step.given("full") | self.options(step, q_heads)
        if positions in step:
            call["positions"] = integers(step[positions])
        return {**call, "rope": rope_call(step["rope"])} if "rope" in step else call

    def op_append(self, step):
        rows = self.pool_rows(step, parse_ids(step["ids"]))
        return {"op": "op_append", "pool": step["pool"], "slots": integers(step["slots"], "i64"),
                **rows.kv(), **self.op_options(step, "positions")}

    def op_call(self, step, rows, **inputs):
        self.answer(step, "sees", True)
        return {"op": step["op"], **inputs, "q": rows.q(step, 0),
                **self.op_options(step, "q_at", rows.q_heads), **self.outputs(step, rows, 0)}

    def op_paged(self, step):
        pool = self.pools[step["pool"]]
        rank = step.get("latent_rank", pool["k_dim"])
        rows = self.pool_rows(step, parse_ids(step["q_ids"]), step.get("q_heads", pool["kv_heads"]),
                              v_dim=pool["v_dim"] or rank,
                              rope=Rope(step.get("rope"), pool["k_dim"]))
        table = {key: integers(step["table"][key]) for key in step["table"]}
        return self.op_call(step, rows, pool=step["pool"], table=table, **step.given("latent_rank"))

    op_attention = op_mla = op_paged

    def op_ragged(self, step):
        heads, dim = step.get("heads", 1), step.get("dim", 4)
        rows = Rows(parse_ids(step["q_ids"]), step.get("q_heads", heads), heads, dim, dim)
        cuts = {key: integers(step[key]) for key in ("qo_indptr", "kv_indptr") if key in step}
        return self.op_call(step, rows, **cuts, **rows.kv(parse_ids(step["k_ids"]), 0))

    def op_merge(self, step):
        """Each row attends to two lists of keys; the merge equals attending to both."""
        heads, dim, parts = step.get("heads", 1), step.get("dim", 4), step["parts"]

        def over(ids_of):
            outs, sums = [], []
            for row, pair in enumerate(parts):
                ids = ids_of([parse_ids(part) for part in pair])
                for head in range(heads):
                    keys = [
                        (oracle.vector(KEY, 0, t, head, dim),
                         oracle.vector(VALUE, 0, t, head, dim), 0)
                        for t in ids
                    ]
                    out, lse = oracle.attend(oracle.vector(QUERY, 0, row, head, dim), keys, 1, dim)
                    outs += out
                    sums.append(lse)
            return outs, sums

        call, names = ({"op": "op_merge"},
                       ("out", "lse", "other_out", "other_lse", "want_out", "want_lse"))
        found = [*over(lambda pair: pair[0]), *over(lambda pair: pair[1]),
                 *over(lambda pair: pair[0] + pair[1])]
        for i, (name, flat) in enumerate(zip(names, found)):
            call[name] = {"shape": [len(parts), heads, dim][: 3 - i % 2], "values": near(flat)}
        return call | self.op_options(step, "")

    def op_gather(self, step):
        rows = self.pool_rows(step, parse_ids(step["ids"]))
        wants = {key: {**want, "exact": True} for key, want in rows.kv(padding=0).items()}
        if rows.k_storage.is_quantised:
            keys = [x for token in rows.ids for head in range(rows.kv_heads)
                    for x in rows.stored_key(token, head, [token], False)]
            for key, flat in (("k", keys), ("v", [] if rows.v_is_k else rows.values(rows.ids))):
                if key in wants:
                    wants[key] = {"shape": wants[key]["shape"], "values": near(flat),
                                  "tolerance": step.get("tolerance", 1e-6)}
        if self.refused:
            wants = {key: {"shape": want["shape"]} for key, want in wants.items()}
        table = {key: integers(step["table"][key]) for key in step["table"]}
        return {"op": "op_gather", "pool": step["pool"], "table": table, **wants,
                **self.op_options(step, "")}

    def op_copy_pages(self, step):
        return self.plain(step, "pool", "pairs")

    def op_rotate(self, step):
        ids, heads, dim = parse_ids(step["ids"]), step.get("heads", 1), step.get("dim", 4)
        rows = Rows(ids, 1, heads, dim, dim, rope=Rope(step["rope"], dim))
        out = {"shape": [len(ids), heads, dim]}
        if not self.refused:
            out["values"] = near(
                [x for token, p in zip(ids, step["positions"]) for head in range(heads)
                 for x in rows.key(token, head, [p], False)]
            )
        return {"op": "op_rotate", "x": rows.k(padding=0), "in_place": step.get("in_place", False),
                "out": out, **self.op_options(step, "positions")}

    def quantised(self, step):
        """Rows of 8 bits: their values, their storage, and the scales of PER_TOKEN_HEAD."""
        ids, heads, dim = parse_ids(step["ids"]), step.get("heads", 1), step.get("dim", 4)
        # What is refused still needs tensors.
        quant = "PER_TENSOR" if self.refused else step["quant"]
        storage = Storage(quant, step["dtype"], step.get("scale", 0))
        rows = [oracle.vector(KEY, 0, token, head, dim) for token in ids for head in range(heads)]
        per_row = quant == "PER_TOKEN_HEAD"
        scales = literal([len(ids), heads] if per_row else [1],
                         [storage.scale(row) for row in rows] if per_row else [storage.shared])
        codes = literal([len(ids), heads, dim],
                        [storage.code(x) for row in rows for x in storage.elements(row)],
                        step["dtype"])
        return ids, rows, storage, scales, codes

    def op_quantize(self, step):
        ids, rows, storage, scales, codes = self.quantised(step)
        x = formula(KEY, 0, ids, step.get("heads", 1), step.get("dim", 4), 0,
                    **({"dtype": step["x_dtype"]} if "x_dtype" in step else {}))
        call = {"op": "op_quantize", "quant": QUANTS.index(step["quant"]), "x": x}
        if storage.quant == "PER_TENSOR":
            call["scales"] = scales
        else:
            call["out_scales"] = {**scales, "tolerance": 1e-11}
        if self.refused:
            return {**call, "out": {"shape": codes["shape"], "dtype": step["dtype"]}}
        return {**call, "out": {**codes, "exact": True},
                "saturated": sum(storage.saturated(row) for row in rows)}

    def op_dequantize(self, step):
        _, rows, storage, scales, codes = self.quantised(step)
        out = {"shape": codes["shape"]}
        if not self.refused:
            out |= {"values": near([x for row in rows for x in storage.kept(row)]),
                    "tolerance": 1e-7}
        return {"op": "op_dequantize", "quant": QUANTS.index(step["quant"]), "x": codes,
                "scales": scales, "out": out}

    def op_linear(self, step):
        """From zero states, over sequences cut by qo_indptr."""
        ids, cuts = parse_ids(step["ids"]), step["qo_indptr"]
        model = Linear(step, 0, step["heads"], step["k_dim"], step["v_dim"])
        outs, states = [], []
        for begin, end in zip(cuts, cuts[1:]):
            out, state = model.run([], ids[begin:end])
            outs += out
            states += state
        shape = [len(cuts) - 1, model.heads, model.k_dim, model.v_dim]
        out, after = {"shape": [len(ids), model.heads, model.v_dim]}, {"shape": shape}
        if not self.refused:
            out["values"], after["values"] = near(outs), near(states)
        call = linear_call(model, ids, 0)
        return {"op": "op_linear", **call, "qo_indptr": integers(cuts), "out": out,
                "want_states": after, "states": literal(shape, [0] * len(states))}
