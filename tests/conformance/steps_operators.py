"""Calls of the stateless operators over pools of the scenario. The formulas take layer 0."""

import oracle
from oracle import KEY, QUERY, VALUE, Linear, Rope, parse_ids
from scenario import Rows, integers, literal, near, rope_call
from steps_layers import linear_call

OP_LAYOUTS = ["HND", "NHD", "MLA"]  # as numbered in kvcache.h


class OperatorSteps:
    """The part of Writer that writes calls of operators."""

    def op_pool(self, step):
        layout = step["layout"]
        pages, page, k_dim = step["num_pages"], step["page_size"], step.get("k_dim", 4)
        heads, v_dim = step.get("heads", 1), step.get("v_dim", k_dim)
        mla = layout == "MLA"
        self.pools = getattr(self, "pools", {})
        self.pools[step["pool"]] = (1 if mla else heads, k_dim, 0 if mla else v_dim)

        def memory(dim):
            shape = {"HND": [pages, heads, page, dim], "NHD": [pages, page, heads, dim],
                     "MLA": [pages, page, dim]}
            return {"shape": shape[layout], "dtype": step.get("dtype", "f32")}

        call = {"op": "op_pool", "pool": step["pool"], "layout": OP_LAYOUTS.index(layout),
                "k": memory(k_dim)}
        return call if mla else {**call, "v": memory(v_dim)}

    def op_options(self, step, positions, q_heads=1):
        call = step.given("full") | self.options(step, q_heads)
        if positions in step:
            call["positions"] = integers(step[positions])
        return {**call, "rope": rope_call(step["rope"])} if "rope" in step else call

    def op_append(self, step):
        heads, k_dim, v_dim = self.pools[step["pool"]]
        rows = Rows(parse_ids(step["ids"]), 1, heads, k_dim, v_dim, v_dim == 0)
        return {"op": "op_append", "pool": step["pool"], "slots": integers(step["slots"], "i64"),
                **rows.kv(), **self.op_options(step, "positions")}

    def op_call(self, step, rows, **inputs):
        self.answer(step, "sees", True)
        return {"op": step["op"], **inputs, "q": rows.q(step, 0),
                **self.op_options(step, "q_at", rows.q_heads), **self.outputs(step, rows, 0)}

    def op_paged(self, step):
        heads, k_dim, v_dim = self.pools[step["pool"]]
        q_heads, rank = step.get("q_heads", heads), step.get("latent_rank", k_dim)
        rows = Rows(parse_ids(step["q_ids"]), q_heads, heads, k_dim, v_dim or rank, v_dim == 0,
                    Rope(step.get("rope"), k_dim))
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
        heads, k_dim, v_dim = self.pools[step["pool"]]
        rows = Rows(parse_ids(step["ids"]), 1, heads, k_dim, v_dim, v_dim == 0)
        wants = {key: {**want, "exact": True} for key, want in rows.kv(padding=0).items()}
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
