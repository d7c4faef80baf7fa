"""Steps that compare what the pages and states hold with the formulas, and write it."""

from __future__ import annotations

import numpy as np

from .formulas import parse_ids
from .rows import rows_of_layer
from .steps_attention import conv_inputs, linear_of, state_value, state_view


def _empty(*shape):
    return np.full(shape, np.nan, np.float32)


def check_stored(s, step, layer, ids, k, v):
    """K (turned when the layer rotates on append) and V of one layer, [n >= ids, heads, dim]."""
    rows = rows_of_layer(s, layer)
    want = rows.k(ids)
    if s.view(rows.key_layer).rotates_on_append:
        at = parse_ids(step["at"]) if "at" in step else None
        for i, token in enumerate(ids):
            position = s.position_of(token) if at is None else [float(at[i])]
            want[i] = rows.rotation.turn(want[i], position, token >= step.get("long_from", float("inf")))
    s.near(k[: len(ids)], want, f"K of layer {layer}")
    if v is not None:
        s.near(v[: len(ids)], rows.v(ids), f"V of layer {layer}")


def _range(step):
    ids = parse_ids(step.get("ids", ""))
    begin = step.get("begin", 0)
    return ids, begin, step.get("end", begin + len(ids))


def _stored_in_layer(s, step, layer):
    ids, begin, end = _range(step)
    rows, n = rows_of_layer(s, layer), max(0, end - begin)
    k = _empty(n, rows.kv_heads, rows.k_dim)
    v = None if rows.v_is_k else _empty(n, rows.kv_heads, rows.v_dim)
    s.cache.debug_get_layer(step["seq"], layer, begin, end, k, v)
    assert len(ids) == n, "'ids' does not cover [begin, end)"
    check_stored(s, step, layer, ids, k, v)


def stored(s, step):
    if "layer" in step:
        _stored_in_layer(s, step, step["layer"])
        return
    for layer in range(s.model.layer_begin, s.model.layer_end):
        if s.view(layer).keeps_tokens:
            _stored_in_layer(s, step, layer)


def store(s, step):
    rows, ids = rows_of_layer(s, step["layer"]), parse_ids(step["ids"])
    v = None if rows.v_is_k else rows.v(ids).astype(np.float32)
    s.cache.debug_set_layer(step["seq"], step["layer"], step["begin"], rows.k(ids).astype(np.float32), v)


def gather(s, step):
    rows, ids = rows_of_layer(s, step["layer"]), parse_ids(step.get("ids", ""))
    room = max(
        len(ids), 64 if "status" in step else 0
    )  # a refusal may come before or after the shapes are looked at
    k = _empty(room, rows.kv_heads, rows.k_dim)
    v = None if rows.v_is_k else _empty(room, rows.kv_heads, rows.v_dim)
    s.fwd.gather(step["layer"], step["seq"], k, v)
    check_stored(s, step, step["layer"], ids, k, v)


def _stack(s, kind):
    layers = [layer for layer in range(s.model.layer_begin, s.model.layer_end) if s.view(layer).kind == kind]
    return layers, rows_of_layer(s, layers[0] if layers else 0), s.model.layer_end - s.model.layer_begin


def stored_kv(s, step):
    ids, begin, end = _range(step)
    layers, rows, count = _stack(s, "ATTENTION")
    n = max(0, end - begin)
    k, v = _empty(count, n, rows.kv_heads, rows.k_dim), _empty(count, n, rows.kv_heads, rows.v_dim)
    s.cache.debug_get_kv(step["seq"], begin, end, k, v)
    assert len(ids) == n, "'ids' does not cover [begin, end)"
    for layer in layers:
        check_stored(s, step, layer, ids, k[layer - s.model.layer_begin], v[layer - s.model.layer_begin])


def stored_mla(s, step):
    ids, begin, end = _range(step)
    layers, rows, count = _stack(s, "MLA")
    n = max(0, end - begin)
    latent = s.cache.debug_get_mla(step["seq"], begin, end, _empty(count, n, rows.k_dim))
    assert len(ids) == n, "'ids' does not cover [begin, end)"
    for layer in layers:
        check_stored(s, step, layer, ids, latent[layer - s.model.layer_begin][:, None, :], None)


def _all_layers(s, step, what):
    parts = []
    for layer in range(s.model.layer_begin, s.model.layer_end):
        rows = rows_of_layer(s, layer)
        rows.key_layer = layer
        parts.append(getattr(rows, what)(parse_ids(step["ids"])))
    return np.array(parts).astype(np.float32)


def store_kv(s, step):
    s.cache.debug_set_kv(step["seq"], step["begin"], _all_layers(s, step, "k"), _all_layers(s, step, "v"))


def store_mla(s, step):
    s.cache.debug_set_mla(
        step["seq"], step["begin"], np.ascontiguousarray(_all_layers(s, step, "k")[:, :, 0])
    )


def stored_state(s, step):
    shape, _ = state_view(s, step)
    out = s.cache.debug_get_state(step["seq"], step["layer"], step.get("state", 0), _empty(*shape))
    if "conv_inputs" in step:
        inputs = conv_inputs(step["layer"], parse_ids(step["conv_inputs"]), shape[0])
        want = np.concatenate([np.zeros((shape[1], shape[0])), inputs])[-shape[1] :].T
    elif "linear" in step:
        _, want = linear_of(s, step, step["linear"]).run(parse_ids(step["linear"]["history"]), [])
    else:
        want = state_value(s, step, step["value"])
    s.near(out, want, "state")


def store_state(s, step):
    value = state_value(s, step, step["value"]).astype(np.float32)
    s.cache.debug_set_state(step["seq"], step["layer"], step.get("state", 0), value)


HANDLERS = {
    "stored": stored,
    "store": store,
    "gather": gather,
    "stored_kv": stored_kv,
    "store_kv": store_kv,
    "stored_mla": stored_mla,
    "store_mla": store_mla,
    "stored_state": stored_state,
    "store_state": store_state,
}
