"""Steps on the plan, the cache, its sequences, and the forward."""

from __future__ import annotations

import dataclasses

import numpy as np

import kvcache
from kvcache.names import LAYER_KINDS

from .scenario import Model


def check_plan(step, plan, layer_begin):
    if "groups" in step:
        assert plan.info.num_groups == step["groups"], "number of page tables of a sequence"
    for layer, fields in step.get("layers", {}).items():
        actual = dataclasses.asdict(plan.layer(int(layer)))
        actual["kind"] = LAYER_KINDS[actual["kind"]]
        for name, wanted in fields.items():
            assert actual[name] == wanted, f"{name} of layer {layer}: {actual[name]} instead of {wanted}"
    stated, found = {}, {}
    for i, wanted in enumerate(step.get("layer_groups", [])):
        group = plan.layer(layer_begin + i).group
        if wanted == -1 or group == -1:
            assert group == wanted, f"group of layer {layer_begin + i}"
            continue
        assert stated.setdefault(wanted, group) == group, f"layer {layer_begin + i} has another page table"
        assert found.setdefault(group, wanted) == wanted, f"layer {layer_begin + i} shares a page table"
    for tokens, wanted in step.get("request_pages", {}).items():
        assert plan.request_pages(int(tokens)) == wanted, f"pages of a request of {tokens} tokens"


def plan(s, step):
    if "config" in step:
        model = Model(step["config"])
        check_plan(step, kvcache.Plan(model.config), model.layer_begin)
    else:
        check_plan(step, s.plan, s.model.layer_begin)


def can_append(s, step):
    assert s.cache.can_append(step["seqs"], step["lengths"]) == step["missing"], "missing pages"


def can(s, step):
    assert s.cache.can(step["seq"], step["what"].lower(), step["pos"]) == step["nearest"], "nearest position"


def tree_parents(given):
    if isinstance(given, list):
        return given
    ((shape, n),) = given.items()
    parent = {"star": lambda i: 0, "chain": lambda i: i - 1, "binary": lambda i: (i - 1) // 2}[shape]
    return [-1 if i == 0 else parent(i) for i in range(n)]


def begin(s, step):
    seqs, lengths = step["seqs"], step["lengths"]
    assert len(seqs) == len(lengths)
    ids, following = [], s.next_id
    for entry, length in enumerate(lengths):
        if "ids" in step:
            following = step["ids"][entry]
        ids += range(following, following + max(0, length))
        following += max(0, length)
    cross = step.get("cross_lengths")
    cross_ids = [step["cross_ids"][entry] + i for entry, n in enumerate(cross or []) for i in range(n)]
    positions = np.array(step["positions"], np.int32) if "positions" in step else None
    opened = s.cache.forward(
        seqs,
        lengths,
        tokens=np.array(ids, np.int32) if step.get("publish") else None,
        tree_parents=tree_parents(step["tree_parents"]) if "tree_parents" in step else None,
        positions=positions,
        cross_lengths=cross,
        partial=step.get("partial", False),
    )
    assert opened.num_tokens == len(ids)
    s.fwd, s.seqs, s.lengths, s.ids, s.cross_ids = opened, seqs, lengths, ids, cross_ids
    s.next_id = max([s.next_id, *(i + 1 for i in ids)])
    if positions is not None:
        for token, position in zip(
            ids, positions.reshape(-1, len(ids)).T if positions.ndim == 2 else positions[:, None]
        ):
            s.positions[token] = [float(p) for p in position]


def _run_layer(s, step, layer):
    view = s.view(layer)
    call = {
        "layer": layer,
        **{key: step[key] for key in ("q", "at", "q_at", "long_from", "opt") if key in step},
    }
    sees = step.get("layer_sees", {}).get(str(layer), step.get("sees"))
    if sees is not None:
        call["sees"] = sees
    if view.keeps_tokens or view.kind == "SHARED":
        s.handlers["attn"](s, {**call, "append": view.kind != "SHARED"})
    elif view.kind == "CROSS":
        cross = {"layer": layer, "give": bool(s.cross_ids), **({"q": step["q"]} if "q" in step else {})}
        s.handlers["cross"](s, {**cross, **({"sees": step["cross_sees"]} if "cross_sees" in step else {})})
    elif view.kind == "STATE":
        for state in range(len(view.states)):
            for key in ("get", "set"):
                if key in step:
                    s.handlers[f"state_{key}"](s, {"layer": layer, "state": state, "values": step[key]})


def forward(s, step):
    begin(s, step)
    try:
        if s.model.has_storage:
            for layer in range(s.model.layer_begin, s.model.layer_end):
                _run_layer(s, step, layer)
        s.fwd.end()
    except kvcache.Error as error:
        raise AssertionError(f"after the begin: {error.name} {error}") from error


def positions(s, step):
    wanted = np.array(step.get("values", []), np.int32)
    rows = (len(wanted), len(s.ids)) if wanted.ndim == 2 else (len(s.ids),)
    got = s.fwd.positions(np.empty(rows, np.int32))
    assert got.tolist() == wanted.tolist(), "positions of the new tokens"


def _check_forms(s, tables, is_cross):
    page, entries = s.model.page_size, len(s.seqs)
    assert len(tables["indptr"]) == entries + 1
    token = 0
    for entry in range(entries):
        row = tables["block_table"][entry]
        kept = slice(tables["indptr"][entry], tables["indptr"][entry + 1])
        assert tables["indices"][kept].tolist() == [p for p in row if p >= 0], (
            f"INDICES against BLOCK_TABLE, entry {entry}"
        )
        assert tables["page_position"][kept].tolist() == [i * page for i, p in enumerate(row) if p >= 0], (
            f"PAGE_POSITION, entry {entry}"
        )
        length = tables["seq_lens"][entry]
        for i in range(0 if is_cross else s.lengths[entry]):
            index = length - s.lengths[entry] + i
            assert tables["slot_mapping"][token] == row[index // page] * page + index % page, (
                f"SLOT_MAPPING of new token {token}"
            )
            token += 1


def tables(s, step):
    group = s.group_of(step["layer"])
    if "kind" in step:
        s.fwd.page_table(step["kind"], group)
        return
    kinds = (
        "indptr",
        "indices",
        "last_page_len",
        "block_table",
        "slot_mapping",
        "seq_lens",
        "qo_indptr",
        "page_position",
    )
    found = {kind: np.array(s.fwd.page_table(kind, group).numpy()) for kind in kinds}
    for key in ("indptr", "last_page_len", "seq_lens", "qo_indptr", "page_position"):
        if key in step:
            assert found[key].tolist() == step[key], f"{key}: {found[key].tolist()} instead of {step[key]}"
    _check_forms(s, found, s.view(step["layer"]).kind == "CROSS")


def export_pool(s, step):
    pool = s.cache.export_pool(step["layer"], step["kind"].lower())
    if "shape" in step:
        assert list(pool.shape) == step["shape"]


HANDLERS = {
    "plan": plan,
    "add": lambda s, step: s.cache.add(step["seq"]),
    "remove": lambda s, step: s.cache.remove(step["seq"]),
    "fork": lambda s, step: s.cache.fork(step["parent"], step["child"], step.get("pos", -1)),
    "pop": lambda s, step: s.cache.pop(step["seq"], step["n"]),
    "shift": lambda s, step: s.cache.shift(step["seq"], step["begin"], step["end"], step["delta"]),
    "set_window": lambda s, step: s.cache.set_window(step["seq"], step["window"], step.get("sink", 0)),
    "clear": lambda s, step: s.cache.clear(),
    "resize": lambda s, step: s.cache.resize(step["num_pages"]),
    "checkpoint": lambda s, step: s.cache.state_checkpoint(step["seq"]),
    "commit": lambda s, step: s.cache.tree_commit(step["seqs"], step["leaves"]),
    "can_append": can_append,
    "can": can,
    "begin": begin,
    "forward": forward,
    "positions": positions,
    "tables": tables,
    "export_pool": export_pool,
    "end": lambda s, step: s.fwd.end(),
    "abort": lambda s, step: s.fwd.abort(),
}
