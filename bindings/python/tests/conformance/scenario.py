"""Scenario files: reading them, refusing what this runner does not know, and the model they describe."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

import kvcache

from . import formulas

_ROWS = "q sees at q_at long_from opt"
_BATCH = "seqs lengths ids tree_parents positions cross_lengths cross_ids publish partial"
_QUERY = "tokens num_tokens salt keys flags priority hashes hit"
_STEPS = {
    "plan": "config groups layer_groups request_pages layers",
    "add": "seq",
    "remove": "seq",
    "fork": "parent child pos",
    "pop": "seq n",
    "shift": "seq begin end delta",
    "set_window": "seq window sink",
    "clear": "",
    "resize": "num_pages",
    "can_append": "seqs lengths missing",
    "can": "seq what pos nearest",
    "checkpoint": "seq",
    "commit": "seqs leaves",
    "begin": _BATCH,
    "end": "",
    "abort": "",
    "forward": f"{_BATCH} {_ROWS} layer_sees cross_sees get set",
    "positions": "values",
    "tables": "layer indptr last_page_len seq_lens qo_indptr page_position kind",
    "attn": f"{_ROWS} layer append rows",
    "fused": f"{_ROWS} layer",
    "self": f"{_ROWS} layer into",
    "cached": f"{_ROWS} layer into",
    "merge": f"{_ROWS} layer into other",
    "append": "layer",
    "mla_append": "layer",
    "cross": f"{_ROWS} layer give",
    "shared_kv": f"{_ROWS} source q_heads",
    "gather": "layer seq ids at long_from",
    "state_get": "layer state values",
    "state_set": "layer state values",
    "linear": "layer state decay delta beta scale skip heads_k history",
    "conv": "layer state bias activation history",
    "stored": "seq layer begin end ids at long_from",
    "store": "seq layer begin ids",
    "stored_kv": "seq begin end ids",
    "store_kv": "seq begin ids",
    "stored_mla": "seq begin end ids",
    "store_mla": "seq begin ids",
    "stored_state": "seq layer state value conv_inputs linear",
    "store_state": "seq layer state value",
    "export_pool": "layer kind shape",
    "op_pool": "pool layout num_pages page_size heads k_dim v_dim dtype",
    "op_append": "pool slots ids positions rope",
    "op_attention": f"{_ROWS} pool table q_ids q_heads full rope",
    "op_mla": f"{_ROWS} pool table q_ids q_heads latent_rank",
    "op_ragged": f"{_ROWS} qo_indptr kv_indptr q_ids k_ids q_heads heads dim full",
    "op_merge": "heads dim parts",
    "op_gather": "pool table ids",
    "op_copy_pages": "pool pairs",
    "op_rotate": "ids heads dim positions rope in_place",
    "prefix_hash": "tokens salt keys block values",
    "match": _QUERY,
    "attach": f"{_QUERY} seq",
    "insert": f"{_QUERY} seq",
    "pin": _QUERY,
    "unpin": _QUERY,
    "evict": "pages freed",
    "prefix_reset": "",
    "quota": "salt pages",
    "events": "counts",
    "op_linear": "ids qo_indptr heads k_dim v_dim decay delta beta scale",
}
_CONFIG = (
    "page_size num_pages byte_budget layers layer_begin layer_end max_seqs max_seq_len storage max_tokens_per_forward pool_layout "
    "max_cross_len num_state_slots state_stride num_threads event_capacity pad_pages"
)
_LAYER = "kind heads q_heads k_dim v_dim dtype v_dtype rope window chunk source latent_rank latent_rope_dim v_is_k states"
_ROPE = (
    "mode style rotary_dim theta scale freq_factors long_freq_factors scaling sections section_layout factor low_freq_factor "
    "high_freq_factor beta_fast beta_slow attention_factor original_context frequencies magnitude"
)


def _known(found, words, where):
    unknown = set(found) - set(words.split())
    assert not unknown, f"{where}: unknown keys {sorted(unknown)}"


def _check_config(config, where):
    _known(config, _CONFIG, where)
    for layer in config["layers"]:
        _known(layer, _LAYER, f"{where}.layers")
        _known(layer.get("rope", {}), _ROPE, f"{where}.layers.rope")
        for state in layer.get("states", []):
            _known(state, "shape dtype init", f"{where}.layers.states")


def _no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key is written twice: {keys}"
    return dict(pairs)


def load(path):
    scenario = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_duplicates)
    _known(scenario, "name about config tolerance steps", "scenario")
    _check_config(scenario["config"], "config")
    for number, step in enumerate(scenario["steps"]):
        where = f"step {number}"
        _known(step, f"op about status detail expect {_STEPS[step['op']]}", where)
        _known(
            step.get("expect", {}),
            "lengths free_pages empty total_length seqs info pages stats",
            f"{where}.expect",
        )
        _known(step.get("opt", {}), "scale soft_cap window sink_logits alibi spans bias flags", f"{where}.opt")
        _known(
            step.get("table", {}), "seq_lens qo_indptr page_indptr page_indices block_table", f"{where}.table"
        )
        _known(step.get("rope", {}), _ROPE, f"{where}.rope")
        if "config" in step:
            _check_config(step["config"], f"{where}.config")
    return scenario


@dataclass
class LayerView:
    """A layer as the formulas take it."""

    kind: str
    kv_heads: int
    q_heads: int
    k_dim: int
    v_dim: int
    v_is_k: bool
    latent_rank: int
    source: int = -1
    rotation: formulas.Rotation = field(default_factory=formulas.Rotation)
    rotates_on_append: bool = False
    states: list = field(default_factory=list)  # (shape, id of the initial value or -1)

    @property
    def keeps_tokens(self):
        return self.kind in ("ATTENTION", "MLA")


def rope_of(rope):
    fields = {
        key: rope[key]
        for key in (
            "rotary_dim",
            "theta",
            "scale",
            "freq_factors",
            "long_freq_factors",
            "sections",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "original_context",
        )
        if key in rope
    }
    return kvcache.Rope(
        mode=rope.get("mode", "ON_APPEND").lower(),
        style=rope.get("style", "HALF").lower(),
        scaling=rope.get("scaling", "NONE").lower(),
        section_layout=rope.get("section_layout", "CONTIGUOUS").lower(),
        **fields,
    )


class Model:
    """The configuration of a scenario: for the library, and for the formulas."""

    def __init__(self, config):
        self.views, self.layers = [], []
        for layer in config["layers"]:
            self._read(layer)
        owned = config.get("storage", "OWNED") == "OWNED"
        fields = {
            key: config[key]
            for key in (
                "byte_budget",
                "layer_begin",
                "layer_end",
                "max_seqs",
                "max_tokens_per_forward",
                "max_seq_len",
                "max_cross_len",
                "state_stride",
                "num_state_slots",
                "event_capacity",
                "pad_pages",
            )
            if key in config
        }
        self.page_size = config.get("page_size", 4)
        self.has_storage = config.get("storage", "OWNED") != "NONE"
        self.config = kvcache.Config(
            layers=self.layers,
            page_size=self.page_size,
            num_pages=config.get("num_pages", 0 if "byte_budget" in config else 64),
            num_threads=config.get("num_threads", 2),
            storage=config.get("storage", "OWNED").lower(),
            pool_layout=config.get("pool_layout", "LAYER_FIRST").lower(),
            poison=owned,
            **fields,
        )
        self.layer_begin = config.get("layer_begin", 0)
        self.layer_end = config.get("layer_end", 0) or len(self.layers)

    def keys_of(self, layer):
        """The layer whose K and V a layer reads."""
        view = self.views[layer]
        return view.source if view.kind == "SHARED" else layer

    def _read(self, layer):
        kind = layer.get("kind", "ATTENTION")
        pages, mla = kind in ("ATTENTION", "CROSS"), kind == "MLA"
        kv_heads = layer.get("heads", 1 if pages else 0)
        q_heads = layer.get("q_heads", 1 if mla else 0)
        k_dim, v_dim = layer.get("k_dim", 4 if pages else 0), layer.get("v_dim", 0)
        rank, rope_dim = layer.get("latent_rank", 0), layer.get("latent_rope_dim", 0)
        states = []
        for number, state in enumerate(layer.get("states", [])):
            init = state.get("init", -1)
            size = int(np.prod(state["shape"]))
            start = (
                formulas.values(formulas.STATE, len(self.views), init, number, np.arange(size))
                if init >= 0
                else None
            )
            dtype = state.get("dtype", "f32")
            storage = {"f32": np.float32, "f16": np.float16, "bf16": np.float32}[dtype]
            given = None if start is None else start.astype(storage).reshape(state["shape"])
            if given is not None and dtype == "bf16":  # multiples of 1/64 in [-1, 1) lose nothing
                given = kvcache.as_dtype(
                    np.ascontiguousarray((given.view(np.uint32) >> 16).astype(np.uint16)), "bfloat16"
                )
            states.append((kvcache.State(state["shape"], dtype, given), (tuple(state["shape"]), init)))
        self.layers.append(
            kvcache.Layer(
                kind=kind.lower(),
                num_kv_heads=kv_heads,
                num_q_heads=q_heads,
                k_dim=k_dim,
                v_dim=v_dim,
                window=layer.get("window", 0),
                chunk=layer.get("chunk", 0),
                source_layer=layer.get("source", 0),
                latent_rank=rank,
                latent_rope_dim=rope_dim,
                v_is_k=layer.get("v_is_k", False),
                dtype=layer.get("dtype", "f32" if pages or mla else None),
                v_dtype=layer.get("v_dtype"),
                rope=rope_of(layer["rope"]) if "rope" in layer else None,
                states=[state for state, _ in states],
            )
        )
        view = LayerView(
            kind=kind,
            kv_heads=1 if mla else kv_heads,
            q_heads=q_heads or kv_heads,
            k_dim=rank + rope_dim if mla else k_dim,
            v_dim=rank if mla else v_dim or k_dim,
            v_is_k=layer.get("v_is_k", False),
            latent_rank=rank,
            states=[view for _, view in states],
        )
        if "rope" in layer:
            view.rotation = formulas.Rotation.of(
                layer["rope"], rope_dim if mla else k_dim, rank if mla else 0
            )
            view.rotates_on_append = layer["rope"].get("mode", "ON_APPEND") == "ON_APPEND"
        source = layer.get("source", 0)
        if kind == "SHARED":
            view.source = source
            if 0 <= source < len(self.views):
                shared = self.views[source]
                view.kv_heads, view.k_dim, view.v_dim = shared.kv_heads, shared.k_dim, shared.v_dim
                view.q_heads = q_heads or shared.kv_heads
                view.v_is_k, view.latent_rank, view.rotation = (
                    shared.v_is_k,
                    shared.latent_rank,
                    shared.rotation,
                )
        self.views.append(view)
