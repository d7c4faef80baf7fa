"""Steps on the stateless operators, over pools that the scenario makes. The formulas take layer number 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import kvcache
from kvcache import ops

from . import formulas
from .formulas import KEY, QUERY, VALUE, Linear, Rotation, padded, parse_ids
from .rows import Options, Rows, check_rows
from .scenario import rope_of


@dataclass
class Pool:
    pool: ops.Pool
    heads: int
    k_dim: int
    v_dim: int  # 0: MLA


def op_pool(s, step):
    layout, pages, page = step["layout"], step["num_pages"], step["page_size"]
    mla = layout == "MLA"
    heads, k_dim = 1 if mla else step.get("heads", 1), step.get("k_dim", 4)
    v_dim = 0 if mla else step.get("v_dim", k_dim)
    dtype = step.get("dtype", "f32")

    def memory(dim):
        shape = {
            "HND": (pages, heads, page, dim),
            "NHD": (pages, page, heads, dim),
            "MLA": (pages, page, dim),
        }[layout]
        if dtype == "f32":
            return np.full(shape, np.nan, np.float32)
        if dtype == "f16":
            return np.full(shape, np.nan, np.float16)
        return kvcache.as_dtype(np.full(shape, 0x7FC0, np.uint16), "bfloat16")

    s.pools[step["pool"]] = Pool(
        ops.Pool(memory(k_dim), None if mla else memory(v_dim), layout.lower()), heads, k_dim, v_dim
    )


def _integers(values, dtype=np.int32):
    return np.array(values, dtype)


def _table(step):
    return ops.Table(**{key: _integers(value) for key, value in step["table"].items()})


def _rope(step, key):
    """positions= and rope= of a call."""
    words = {"positions": _integers(step[key])} if key in step else {}
    return words | ({"rope": rope_of(step["rope"])} if "rope" in step else {})


def op_append(s, step):
    p, ids = s.pools[step["pool"]], parse_ids(step["ids"])
    k = padded(formulas.tensor(KEY, 0, ids, p.heads, p.k_dim))
    v = padded(formulas.tensor(VALUE, 0, ids, p.heads, p.v_dim)) if p.v_dim else None
    ops.append(p.pool, _integers(step["slots"], np.int64), k, v, **_rope(step, "positions"))


def _rows(p, step):
    rows = Rows(
        kv_heads=p.heads,
        q_heads=step.get("q_heads", p.heads),
        k_dim=p.k_dim,
        v_dim=p.v_dim or step.get("latent_rank", p.k_dim),
        v_is_k=p.v_dim == 0,
        ids=parse_ids(step["q_ids"]),
    )
    if "rope" in step:
        rows.rotation = Rotation.of(step["rope"], p.k_dim, 0)
    return rows


def op_attention(s, step):
    p = s.pools[step["pool"]]
    rows, options = _rows(p, step), Options.of(step)
    out, lse = rows.outputs(padding=0)
    ops.attention_paged(
        p.pool,
        _table(step),
        rows.q(step).astype(np.float32),
        out,
        lse,
        full=step.get("full", False),
        opt=options.call,
        **_rope(step, "q_at"),
    )
    check_rows(s, step, rows, options, out, lse)


def op_mla(s, step):
    p = s.pools[step["pool"]]
    rows, options = _rows(p, step), Options.of(step)
    out, lse = rows.outputs(padding=0)
    ops.mla_paged(
        p.pool, _table(step), step["latent_rank"], rows.q(step).astype(np.float32), out, lse, opt=options.call
    )
    check_rows(s, step, rows, options, out, lse)


def op_ragged(s, step):
    heads = step.get("heads", 1)
    rows = Rows(
        kv_heads=heads,
        q_heads=step.get("q_heads", heads),
        k_dim=step.get("dim", 4),
        v_dim=step.get("dim", 4),
        ids=parse_ids(step["q_ids"]),
    )
    options, keys = Options.of(step), parse_ids(step["k_ids"])
    out, lse = rows.outputs(padding=0)
    ops.attention_ragged(
        _integers(step["qo_indptr"]),
        rows.q(step).astype(np.float32),
        rows.k(keys).astype(np.float32),
        rows.v(keys).astype(np.float32),
        out,
        lse,
        kv_indptr=_integers(step["kv_indptr"]) if "kv_indptr" in step else None,
        full=step.get("full", False),
        opt=options.call,
    )
    check_rows(s, step, rows, options, out, lse)


def op_merge(s, step):
    heads, dim, parts = step.get("heads", 1), step.get("dim", 4), step["parts"]

    def over(ids, row):
        q = formulas.tensor(QUERY, 0, [row], heads, dim)[0]
        k, v = (formulas.tensor(kind, 0, ids, heads, dim) for kind in (KEY, VALUE))
        found = [formulas.attend(1.0, 0.0, None, q[h], k[:, h], v[:, h], 0) for h in range(heads)]
        return np.array([out for out, _ in found]), np.array([lse for _, lse in found])

    def stacked(ids_of):
        found = [over(ids_of(pair), row) for row, pair in enumerate(parts)]
        return np.array([out for out, _ in found]), np.array([lse for _, lse in found])

    first, second = (stacked(lambda pair, i=i: parse_ids(pair[i])) for i in (0, 1))
    both = stacked(lambda pair: parse_ids(pair[0]) + parse_ids(pair[1]))
    out, lse, other_out, other_lse = (x.astype(np.float32) for x in (*first, *second))
    ops.merge(out, lse, other_out, other_lse)
    s.near(lse, both[1], "LSE")
    s.near(out, both[0], "out")


def op_gather(s, step):
    p, ids = s.pools[step["pool"]], parse_ids(step["ids"])
    k = np.full((len(ids), p.heads, p.k_dim), np.nan, np.float32)
    v = np.full((len(ids), p.heads, p.v_dim), np.nan, np.float32) if p.v_dim else None
    ops.gather(p.pool, _table(step), k, v)
    assert (k == formulas.tensor(KEY, 0, ids, p.heads, p.k_dim)).all(), "K"
    assert v is None or (v == formulas.tensor(VALUE, 0, ids, p.heads, p.v_dim)).all(), "V"


def op_copy_pages(s, step):
    ops.copy_pages(s.pools[step["pool"]].pool, _integers(step["pairs"], np.int64).reshape(-1, 2))


def op_rotate(s, step):
    ids, heads, dim = parse_ids(step["ids"]), step.get("heads", 1), step.get("dim", 4)
    x = formulas.tensor(KEY, 0, ids, heads, dim)
    given = x.astype(np.float32)
    out = given if step.get("in_place") else np.full(given.shape, np.nan, np.float32)
    ops.rotate(given, out, _integers(step["positions"]), rope_of(step["rope"]))
    rotation = Rotation.of(step["rope"], dim, 0)
    for t in range(len(ids)):
        s.near(out[t], rotation.turn(x[t], [float(step["positions"][t])]), f"row {t}")


def op_linear(s, step):
    ids, cuts = parse_ids(step["ids"]), step["qo_indptr"]
    model = Linear(step, 0, step["heads"], step["k_dim"], step["v_dim"])
    q, k, v, decay, beta, _ = model.tensors(ids)
    out, states = (
        np.full(v.shape, np.nan, np.float32),
        np.zeros((len(cuts) - 1, model.heads, model.k_dim, model.v_dim), np.float32),
    )
    ops.linear_step(
        states,
        q,
        k,
        v,
        out,
        decay,
        beta,
        qo_indptr=_integers(cuts),
        decay=model.decay.lower(),
        delta=model.delta,
        scale=model.scale,
    )
    for i in range(len(cuts) - 1):
        want, state = model.run([], ids[cuts[i] : cuts[i + 1]])
        s.near(out[cuts[i] : cuts[i + 1]], want, f"out of sequence {i}")
        s.near(states[i], state, f"state of sequence {i}")


HANDLERS = {
    "op_pool": op_pool,
    "op_append": op_append,
    "op_attention": op_attention,
    "op_mla": op_mla,
    "op_ragged": op_ragged,
    "op_merge": op_merge,
    "op_gather": op_gather,
    "op_copy_pages": op_copy_pages,
    "op_rotate": op_rotate,
    "op_linear": op_linear,
}
