"""Steps that append to layers, attend, and move recurrent state, inside an open forward (or on a dead one, when none is open)."""

from __future__ import annotations

import numpy as np

from . import formulas
from .formulas import INPUT, STATE, WEIGHT, Linear, padded, parse_ids
from .rows import Options, check_rows, rows_of_layer


def attn(s, step):
    rows, options = rows_of_layer(s, step["layer"]), Options.of(step)
    out, lse = rows.outputs()
    append = step.get("append", True)
    s.fwd.attn(
        step["layer"],
        padded(rows.q(step)),
        padded(rows.k()) if append else None,
        padded(rows.v()) if append and not rows.v_is_k else None,
        out,
        lse,
        options.call,
    )
    check_rows(s, step, rows, options, out, lse)


def fused(s, step):
    rows, options = rows_of_layer(s, step["layer"]), Options.of(step)
    out, _ = rows.outputs()
    v = formulas.tensor(formulas.VALUE, rows.key_layer, rows.ids, rows.kv_heads, rows.k_dim)
    s.fwd.attn_fused_qkv(
        step["layer"], padded(np.concatenate([rows.q(step), rows.k(), v], axis=1)), out, options.call
    )
    check_rows(s, step, rows, options, out)


def self_(s, step):
    rows, options = rows_of_layer(s, step["layer"]), Options.of(step)
    k = rows.k()
    if rows.v_is_k:  # the ragged form of MLA, with the identity as projection
        k = np.repeat(k, rows.q_heads // rows.kv_heads, axis=1)
    v = k[:, :, : rows.v_dim] if rows.v_is_k else rows.v()
    out, lse = rows.outputs()
    s.fwd.attn_self(step["layer"], padded(rows.q(step)), padded(k), padded(v), out, lse, options.call)
    check_rows(s, step, rows, options, out, lse)
    if "into" in step:
        s.partials[step["into"]] = out, lse


def cached(s, step):
    rows, options = rows_of_layer(s, step["layer"]), Options.of(step)
    out, lse = rows.outputs()
    s.fwd.attn_cached(step["layer"], padded(rows.q(step)), out, lse, options.call)
    check_rows(s, step, rows, options, out, lse)
    if "into" in step:
        s.partials[step["into"]] = out, lse


def merge(s, step):
    into, other = s.partials[step["into"]], s.partials[step["other"]]
    s.fwd.attn_merge(*into, *other)
    check_rows(s, step, rows_of_layer(s, step["layer"]), Options.of(step), *into)


def append(s, step):
    rows = rows_of_layer(s, step["layer"])
    s.fwd.kv_append(step["layer"], padded(rows.k()), None if rows.v_is_k else padded(rows.v()))


def mla_append(s, step):
    s.fwd.mla_append(step["layer"], padded(rows_of_layer(s, step["layer"]).k(heads=1)))


def cross(s, step):
    rows, options = rows_of_layer(s, step["layer"]), Options.of(step)
    out, lse = rows.outputs()
    give = step.get("give", False)
    s.fwd.attn_cross(
        step["layer"],
        padded(rows.q(step)),
        padded(rows.k(s.cross_ids)) if give else None,
        padded(rows.v(s.cross_ids)) if give else None,
        out,
        lse,
        options.call,
    )
    check_rows(s, step, rows, options, out, lse)


def shared_kv(s, step):
    rows, options = rows_of_layer(s, step["source"]), Options.of(step)
    rows.q_heads = step.get("q_heads", rows.q_heads)
    out, lse = rows.outputs()
    s.fwd.attn_shared_kv(step["source"], padded(rows.q(step)), out, lse, options.call)
    check_rows(s, step, rows, options, out, lse)


# ---- recurrent state


def state_view(s, step):
    """(shape, initial value's id); a state that the scenario has not got is asked for with a shape of its own."""
    layer, state = step["layer"], step.get("state", 0)
    known = 0 <= layer < len(s.model.views) and 0 <= state < len(s.view(layer).states)
    return s.view(layer).states[state] if known else ((2,), -1)


def state_value(s, step, token):
    """The value that an id names: -1 is the initial one."""
    shape, init = state_view(s, step)
    token = init if token < 0 else token
    size = int(np.prod(shape))
    if token < 0:
        return np.zeros(shape)
    return formulas.values(STATE, step["layer"], token, step.get("state", 0), np.arange(size)).reshape(shape)


def state_get(s, step):
    shape, _ = state_view(s, step)
    out = s.fwd.state_get(
        step["layer"], step.get("state", 0), np.full((len(s.seqs) + 1, *shape), np.nan, np.float32)
    )
    for entry, token in enumerate(step["values"]):
        assert (out[entry] == state_value(s, step, token)).all(), (
            f"state of entry {entry} is not value {token}"
        )


def state_set(s, step):
    shape, _ = state_view(s, step)
    given = np.array([state_value(s, step, token) for token in step["values"]]).reshape(-1, *shape)
    s.fwd.state_set(step["layer"], step.get("state", 0), padded(given))


def linear_of(s, step, keys):
    shape, _ = state_view(s, step)
    return Linear(keys, step["layer"], *(shape if len(shape) == 3 else (1, 2, 2)))


def entries(s):
    """Slices of the packed tokens, one per entry of the batch."""
    ends = np.cumsum(s.lengths)
    return [slice(end - length, end) for end, length in zip(ends, s.lengths)]


def linear(s, step):
    model = linear_of(s, step, step)
    q, k, v, decay, beta, skip = model.tensors(s.ids)
    out = np.full(v.shape, np.nan, np.float32)
    s.fwd.attn_linear(
        step["layer"],
        q,
        k,
        v,
        out,
        decay,
        beta,
        decay=model.decay.lower(),
        delta=model.delta,
        scale=model.scale,
        state=step.get("state", 0),
        skip=skip,
    )
    for entry, own in enumerate(entries(s)):
        if "history" in step:
            want, _ = model.run(parse_ids(step["history"][entry]), s.ids[own])
            s.near(out[own], want, f"entry {entry}")


def conv_inputs(layer, ids, channels):
    return formulas.values(INPUT, layer, np.asarray(ids, np.int64).reshape(-1, 1), 0, np.arange(channels))


def conv(s, step):
    shape, _ = state_view(s, step)
    layer, channels, width = step["layer"], shape[0], (shape[1] if len(shape) == 2 else 1) + 1
    weight = formulas.values(WEIGHT, layer, 0, np.arange(channels).reshape(-1, 1), np.arange(width))
    bias = formulas.values(WEIGHT, layer, 1, np.arange(channels), 0) if step.get("bias") else None
    x = conv_inputs(layer, s.ids, channels)
    out = np.full(x.shape, np.nan, np.float32)
    s.fwd.state_conv(
        layer,
        step.get("state", 0),
        x.astype(np.float32),
        weight.astype(np.float32),
        out,
        None if bias is None else bias.astype(np.float32),
        step.get("activation", "NONE").lower(),
    )
    for entry, own in enumerate(entries(s)):
        if "history" not in step:
            continue
        history = parse_ids(step["history"][entry])
        inputs = np.concatenate(
            [np.zeros((width, channels)), conv_inputs(layer, history + s.ids[own], channels)]
        )
        for t in range(own.stop - own.start):
            end = width + len(history) + t + 1
            want = (weight.T * inputs[end - width : end]).sum(axis=0) + (0 if bias is None else bias)
            if step.get("activation") == "SILU":
                want = want / (1 + np.exp(-want))
            s.near(out[own.start + t], want, f"row {own.start + t}")


HANDLERS = {
    "attn": attn,
    "fused": fused,
    "self": self_,
    "cached": cached,
    "merge": merge,
    "append": append,
    "mla_append": mla_append,
    "cross": cross,
    "shared_kv": shared_kv,
    "state_get": state_get,
    "state_set": state_set,
    "linear": linear,
    "conv": conv,
}
