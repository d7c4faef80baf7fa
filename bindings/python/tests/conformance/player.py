"""Plays one case through the public Python API and compares after every step."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter

import numpy as np

import kvcache
from kvcache import ops
from kvcache.names import LAYER_KINDS

from .case import FLOAT8, differs, refuse_unread, tensor

ROPE = (
    "mode style scaling section_layout rotary_dim theta scale freq_factors long_freq_factors sections "
    "factor low_freq_factor high_freq_factor beta_fast beta_slow attention_factor original_context"
).split()
LAYER = (
    "kind num_q_heads num_kv_heads k_dim v_dim window chunk source_layer latent_rank "
    "latent_rope_dim v_is_k quant k_scale v_scale keep_tokens"
).split()
DTYPES = {"i8": "int8", **FLOAT8}  # others have their names here too
CONFIG = (
    "page_size num_pages byte_budget layer_begin layer_end max_seqs max_tokens_per_forward max_seq_len "
    "storage pool_layout max_cross_len state_stride num_state_slots num_threads event_capacity pad_pages"
).split()
TABLES = (
    "indptr indices last_page_len block_table slot_mapping seq_lens qo_indptr page_position".split()
)
OWNED = 0
OFF = 4  # KVC_QUANT_OFF, which Python does not need


def optional(fields, key):
    return tensor(fields[key]) if key in fields else None


def rope_of(fields):
    return kvcache.Rope(**fields["rope"].given(*ROPE)) if "rope" in fields else None


def config_of(fields):
    layers = []
    for layer in fields["layers"]:
        states = [
            kvcache.State(state["shape"], state["dtype"], optional(state, "init"))
            for state in layer.get("states", [])
        ]
        words = {
            name: DTYPES.get(layer[key], layer[key])
            for key, name in (("k_dtype", "dtype"), ("v_dtype", "v_dtype"))
            if key in layer
        }
        if "v_quant" in layer:
            words["v_quant"] = "none" if layer["v_quant"] == OFF else layer["v_quant"]
        layers.append(
            kvcache.Layer(**layer.given(*LAYER), **words, rope=rope_of(layer), states=states)
        )
    return kvcache.Config(layers=layers, poison=fields["storage"] == OWNED, **fields.given(*CONFIG))


class Player:
    def __init__(self, case):
        self.case, self.tolerance, self.checks = case, case["tolerance"], 0
        configs = {"": case["config"], **dict(case["caches"].every() if "caches" in case else ())}
        self.caches = {name: kvcache.Cache(config_of(config)) for name, config in configs.items()}
        self.forwards = dict.fromkeys(self.caches)  # the last of each, also when it has ended
        self.name = ""  # of the cache that the step is about
        self.transfer = None  # the one that waits to arrive
        self.partials, self.pools, self.files = {}, {}, {}

    @property
    def cache(self):
        return self.caches[self.name]

    @property
    def plan(self):
        return self.cache.plan

    @property
    def fwd(self):
        return self.forwards[self.name]

    # ---- comparisons

    def equal(self, actual, wanted, what):
        self.checks += 1
        assert actual == wanted, f"{what}: {actual} instead of {wanted}"

    def answer(self, step, key, actual):
        if key in step:
            self.equal(actual, step[key], key)

    def compare(self, step, **results):
        """Compares tensors with what the step has under their names."""
        for name, got in results.items():
            wrong, count = differs(step[name], got, self.tolerance, name)
            assert not wrong, wrong
            self.checks += count

    def fields(self, actual, wanted, what):
        actual = dataclasses.asdict(actual)
        if what.startswith("layer"):
            actual["kind"] = LAYER_KINDS[actual["kind"]]
        for name, number in wanted.every():
            self.equal(actual[name], number, f"{name} of {what}")

    def pages(self, seq, group):
        return self.cache.seq_pages(seq, group).numpy().tolist()

    def snapshot(self):
        """What a refused step must leave as it was."""
        seqs, groups = self.cache.seqs(), range(self.plan.info.num_groups)
        everyone = [
            (self.cache.info(seq), [self.pages(seq, group) for group in groups]) for seq in seqs
        ]
        return self.cache.available_pages, self.cache.total_length, seqs, everyone

    def check_expectations(self, expect):
        for seq, length in expect["lengths"].every() if "lengths" in expect else ():
            self.equal(self.cache.length(int(seq)), length, f"length of sequence {seq}")
        for key, actual in (
            ("available_pages", self.cache.available_pages),
            ("empty", self.cache.is_empty),
            ("total_length", self.cache.total_length),
            ("seqs", self.cache.seqs()),
        ):
            self.answer(expect, key, actual)
        for seq, fields in expect["info"].every() if "info" in expect else ():
            self.fields(self.cache.info(int(seq)), fields, f"sequence {seq}")
        for seq, layers in expect["pages"].every() if "pages" in expect else ():
            for layer, count in layers.every():
                kept = self.pages(int(seq), self.plan.layer(int(layer)).group)
                self.equal(len(kept), count, f"pages of sequence {seq} for layer {layer}")
        if "stats" in expect:
            self.fields(self.cache.stats(), expect["stats"], "the cache's statistics")

    # ---- the run

    def play(self, step):
        self.name = step.get("cache", "")
        allowed, error = step.get("status", ["KVC_OK"]), None
        before = self.snapshot() if "status" in step else None
        try:
            HANDLERS[step["op"]](self, step)
        except kvcache.Error as raised:
            error = raised
        name = error.name if error else "KVC_OK"
        assert name in allowed, f"answered {name} ({error}), expected {allowed}"
        if error:
            self.checks += 1
            assert str(error), "a refusal says why"
            assert self.snapshot() == before, "a refused call changed the cache"
        if "detail" in step:
            self.equal(error.detail, step["detail"], f"detail of '{error}'")
        if "expect" in step:
            self.check_expectations(step["expect"])
        self.cache.check()

    def run(self):
        for step in self.case["steps"]:
            try:
                self.play(step)
            except AssertionError as failure:
                raise AssertionError(
                    f"step {step['from']} {str(step)[:300]}: {failure}"
                ) from failure
            step.get("from")
        assert self.transfer is None, "a transfer that nobody waits for"
        for self.name in self.caches:
            if self.fwd is not None and self.fwd.is_open:
                self.fwd.abort()
            for seq in self.cache.seqs():
                self.cache.remove(seq)
            assert self.cache.is_empty, "pages leak: all sequences are gone"
            self.cache.check()
            self.cache.close()
        refuse_unread(self.case, "case")
        assert self.checks > 0, "the case checks nothing"

    # ---- arguments

    def tensors(self, step, *keys):
        return [optional(step, key) for key in keys]

    def results(self, step, *keys):
        """New tensors for results."""
        return [
            tensor(step[key].__class__(list(step[key].given("shape", "dtype").items())))
            for key in keys
        ]

    def opt(self, step):
        if "opt" not in step:
            return None
        opt = step["opt"]
        floats = {
            name: optional(opt, key)
            for key, name in (("sink_logits", "sink_logits"), ("alibi", "alibi_slopes"))
        }
        return kvcache.AttnOptions(
            **opt.given("scale", "soft_cap", "window", "flags"),
            **floats,
            bias=optional(opt, "bias"),
            spans=optional(opt, "spans"),
        )


# ---- the plan, the cache, its sequences


def plan(p, step):
    plan = kvcache.Plan(config_of(step["config"])) if "config" in step else p.plan
    p.answer(step, "groups", plan.info.num_groups)
    for layer, fields in step["layers"].every() if "layers" in step else ():
        p.fields(plan.layer(int(layer)), fields, f"layer {layer}")
    # Equal numbers: the layers share a page table. Different ones: they do not. -1: no table.
    stated, found = {-1: -1}, {-1: -1}
    for layer, wanted in step["layer_groups"].every() if "layer_groups" in step else ():
        group = plan.layer(int(layer)).group
        p.equal(stated.setdefault(wanted, group), group, f"page table of layer {layer}")
        p.equal(found.setdefault(group, wanted), wanted, f"stated page table of layer {layer}")
    for tokens, wanted in step["request_pages"].every() if "request_pages" in step else ():
        p.equal(plan.request_pages(int(tokens)), wanted, f"pages of a request of {tokens} tokens")


def export_pool(p, step):
    pool = p.cache.export_pool(step["layer"], step["kind"])
    p.answer(step, "shape", list(pool.shape))


def stored(call, *where):
    """A step that reads what the cache keeps: K and, where the step has it, V."""

    def handler(p, step):
        names = [key for key in ("k", "v") if key in step]
        results = p.results(step, *names)
        getattr(p.cache, call)(*(step[key] for key in where), *results)
        p.compare(step, **dict(zip(names, results, strict=True)))

    return handler


def stored_state(p, step):
    (out,) = p.results(step, "out")
    p.cache.debug_get_state(step["seq"], step["layer"], step["state"], out)
    p.compare(step, out=out)


# ---- the forward


def begin(p, step):
    opened = p.cache.forward(
        step["seqs"],
        step["lengths"],
        tokens=np.array(step["tokens"], np.int32) if "tokens" in step else None,
        positions=optional(step, "positions"),
        **step.given("tree_parents", "cross_lengths", "partial"),
    )
    p.answer(step, "num_tokens", opened.num_tokens)
    p.forwards[p.name] = opened


def positions(p, step):
    (out,) = p.results(step, "out")
    p.fwd.positions(out)
    p.compare(step, out=out)


def tables(p, step):
    group = p.plan.layer(step["layer"]).group
    if "kind" in step:
        p.fwd.page_table(step["kind"], group)
        return
    found = {kind: np.array(p.fwd.page_table(kind, group).numpy()) for kind in TABLES}
    for key in TABLES:
        p.answer(step, key, found[key].tolist())
    # Every form of the table says the same.
    page, new_tokens, token = step["page_size"], step["new_tokens"], 0
    assert len(found["indptr"]) == len(new_tokens) + 1
    for entry, new in enumerate(new_tokens):
        row = found["block_table"][entry]
        kept = slice(found["indptr"][entry], found["indptr"][entry + 1])
        p.equal(
            found["indices"][kept].tolist(), [x for x in row if x >= 0], f"INDICES of entry {entry}"
        )
        columns = [i * page for i, x in enumerate(row) if x >= 0]
        p.equal(found["page_position"][kept].tolist(), columns, f"PAGE_POSITION of entry {entry}")
        length = found["seq_lens"][entry]
        for index in range(length - new, length):
            slot = row[index // page] * page + index % page
            p.equal(found["slot_mapping"][token], slot, f"SLOT_MAPPING of new token {token}")
            token += 1


def attends(call, *inputs):
    """A step that attends: `call` takes a layer, tensors, out, lse and options."""

    def handler(p, step):
        names = ["out", "lse"] if "lse" in step else ["out"]
        results = p.results(step, *names)
        layer = step["source" if call == "attn_shared_kv" else "layer"]
        getattr(p.fwd, call)(layer, *p.tensors(step, *inputs), *results, p.opt(step))
        p.compare(step, **dict(zip(names, results, strict=True)))
        if "into" in step:
            p.partials[step["into"]] = results

    return handler


def merge(p, step):
    out, lse = p.partials[step["into"]]
    p.fwd.attn_merge(out, lse, *p.partials[step["other"]])
    p.compare(step, out=out, lse=lse)


def gather(p, step):
    names = [key for key in ("k", "v") if key in step]
    results = p.results(step, *names)
    p.fwd.gather(step["layer"], step["seq"], *results)
    p.compare(step, **dict(zip(names, results, strict=True)))


def state_get(p, step):
    (out,) = p.results(step, "out")
    p.fwd.state_get(step["layer"], step["state"], out)
    p.compare(step, out=out)


def linear_words(step):
    return {"decay": step["decay_kind"], "delta": step["delta"], "scale": step["scale"]}


def linear(p, step):
    (out,) = p.results(step, "out")
    q, k, v, decay, beta = p.tensors(step, "q", "k", "v", "decay", "beta")
    words = {**linear_words(step), "state": step["state"], "skip": optional(step, "skip")}
    p.fwd.attn_linear(step["layer"], q, k, v, out, decay, beta, **words)
    p.compare(step, out=out)


def conv(p, step):
    (out,) = p.results(step, "out")
    x, weight, bias = p.tensors(step, "x", "weight", "bias")
    p.fwd.state_conv(step["layer"], step["state"], x, weight, out, bias, step["activation"])
    p.compare(step, out=out)


# ---- the prefix cache


def parts(step):
    keys = [
        kvcache.PrefixKey(key["type"], key["offset"], key["data"].encode())
        for key in step.get("keys", [])
    ]
    return np.array(step["tokens"], np.int32), step.get("salt", "").encode(), keys


def query(call):
    def handler(p, step):
        tokens, salt, keys = parts(step)
        flags = step.get("flags", 0)
        words = {
            "salt": salt,
            "keys": keys,
            "all_tokens": bool(flags & 1),
            "whole_blocks": bool(flags & 2),
        }
        words |= step.given("num_tokens", "priority")
        if "hashes" in step:
            given = step["hashes"]
            hashes = kvcache.prefix_hash(tokens, p.plan.info.prefix_block, salt, keys)
            if isinstance(given, int):  # more than there are is for the library to refuse
                hashes = (hashes + [bytes(32)] * given)[:given]
            if given == "only":
                words.setdefault("num_tokens", len(tokens))
                tokens = None
            words["hashes"] = hashes
        where = [step["seq"]] if "seq" in step else []
        p.answer(step, "hit", getattr(p.cache.prefix, call)(*where, tokens, **words))

    return handler


def prefix_hash(p, step):
    tokens, salt, keys = parts(step)
    found = kvcache.prefix_hash(tokens, step["block"], salt, keys)
    p.answer(step, "values", [key.hex() for key in found])


def events(p, step):
    counts = Counter(event.type.upper() for event in p.cache.events.poll())
    p.equal({**counts}, {name: n for name, n in step["counts"].every() if n}, "events")


# ---- operators


def op_pool(p, step):
    tensors = {key: optional(step, key) for key in ("v", "k_scales", "v_scales")}
    words = step.given("quant", "k_scale", "v_scale")
    p.pools[step["pool"]] = ops.Pool(tensor(step["k"]), layout=step["layout"], **tensors, **words)


def op_words(p, step):
    words = {"positions": optional(step, "positions"), "rope": rope_of(step)}
    return {key: word for key, word in words.items() if word is not None} | step.given("full")


def op_paged(p, step):
    out, lse = p.results(step, "out", "lse")
    fields = step["table"]
    table = ops.Table(**{key: tensor(spec) for key, spec in fields.every()})
    pool, q, words = (
        p.pools[step["pool"]],
        tensor(step["q"]),
        {**op_words(p, step), "opt": p.opt(step)},
    )
    if "latent_rank" in step:
        ops.mla_paged(pool, table, step["latent_rank"], q, out, lse, **words)
    else:
        ops.attention_paged(pool, table, q, out, lse, **words)
    p.compare(step, out=out, lse=lse)


def op_ragged(p, step):
    out, lse = p.results(step, "out", "lse")
    qo, kv, q, k, v = p.tensors(step, "qo_indptr", "kv_indptr", "q", "k", "v")
    ops.attention_ragged(qo, q, k, v, out, lse, kv_indptr=kv, opt=p.opt(step), **op_words(p, step))
    p.compare(step, out=out, lse=lse)


def op_append(p, step):
    slots, k, v = p.tensors(step, "slots", "k", "v")
    ops.append(p.pools[step["pool"]], slots, k, v, **op_words(p, step))


def op_merge(p, step):
    out, lse, *other = p.tensors(step, "out", "lse", "other_out", "other_lse")
    ops.merge(out, lse, *other)
    p.compare(step, want_out=out, want_lse=lse)


def op_gather(p, step):
    names = [key for key in ("k", "v") if key in step]
    results = p.results(step, *names)
    table = ops.Table(**{key: tensor(spec) for key, spec in step["table"].every()})
    ops.gather(p.pools[step["pool"]], table, *results)
    p.compare(step, **dict(zip(names, results, strict=True)))


def op_copy_pages(p, step):
    ops.copy_pages(p.pools[step["pool"]], np.array(step["pairs"], np.int64).reshape(-1, 2))


def op_rotate(p, step):
    x = tensor(step["x"])
    out = x if step["in_place"] else p.results(step, "out")[0]
    ops.rotate(x, out, tensor(step["positions"]), rope_of(step))
    p.compare(step, out=out)


def op_quantize(p, step):
    (out,) = p.results(step, "out")
    if "scales" in step:
        scales = tensor(step["scales"])
    else:
        (scales,) = p.results(step, "out_scales")
    p.answer(step, "saturated", ops.quantize(tensor(step["x"]), out, scales, step["quant"]))
    p.compare(step, out=out, **({} if "scales" in step else {"out_scales": scales}))


def op_dequantize(p, step):
    (out,) = p.results(step, "out")
    ops.dequantize(*p.tensors(step, "x", "scales"), out, step["quant"])
    p.compare(step, out=out)


def op_linear(p, step):
    (out,) = p.results(step, "out")
    states, q, k, v, cuts = p.tensors(step, "states", "q", "k", "v", "qo_indptr")
    assert step["state"] == 0
    decay, beta = p.tensors(step, "decay", "beta")
    ops.linear_step(states, q, k, v, out, decay, beta, qo_indptr=cuts, **linear_words(step))
    p.compare(step, out=out, want_states=states)


def save(p, step):
    name = step["file"]
    p.files[name] = p.cache.save(step["seqs"])


def load(p, step):
    file = bytearray(p.files[step["file"]])
    if "flip" in step:
        file[step["flip"] % len(file)] ^= 1
    p.cache.load(step["seqs"], bytes(file))


def transfer(p, step):
    """With `num_tokens` the senders have not computed all of them yet, and both sides stay open."""
    seq, to, begin, publish = (step[name] for name in ("seq", "to", "begin", "publish"))
    as_computed = "num_tokens" in step
    senders = [p.caches[name] for name in step.get("senders", [p.name])]
    source = senders[0].info(seq)
    transport = kvcache.Transport()
    receiving = p.cache.receive(
        transport,
        to,
        step.get("num_tokens", source.length - begin),
        begin=begin,
        cross_length=source.cross_length if begin == 0 else 0,
        publish=publish,
        sender_tp_size=len(senders),
    )
    words = {"begin": begin, "as_computed": as_computed, "tp_size": len(senders)}
    with cancelling(receiving):
        sending = [
            sender.send(transport, seq, receiving.ticket, tp_rank=rank, **words)
            for rank, sender in enumerate(senders)
        ]
    p.transfer = transport, receiving, sending
    if not as_computed:
        arrive(p, step)


def arrive(p, step):
    (_, receiving, sending), p.transfer = p.transfer, None
    with cancelling(receiving):
        for one in sending:
            one.wait(60)
    receiving.wait(60)


@contextlib.contextmanager
def cancelling(receiving):
    """The receiver is cancelled where a sender fails."""
    try:
        yield
    except kvcache.Error:
        receiving.cancel()
        with contextlib.suppress(kvcache.Error):
            receiving.wait(60)
        raise


HANDLERS = {
    "plan": plan,
    "add": lambda p, step: p.cache.add(step["seq"]),
    "remove": lambda p, step: p.cache.remove(step["seq"]),
    "checkpoint": lambda p, step: p.cache.state_checkpoint(step["seq"]),
    "release": lambda p, step: p.cache.state_checkpoint_release(step["seq"], step["pos"]),
    "fork": lambda p, step: p.cache.fork(step["parent"], step["child"], step["pos"]),
    "pop": lambda p, step: p.cache.pop(step["seq"], step["n"]),
    "shift": lambda p, step: p.cache.shift(step["seq"], step["begin"], step["end"], step["delta"]),
    "set_window": lambda p, step: p.cache.set_window(step["seq"], step["window"], step["sink"]),
    "clear": lambda p, step: p.cache.clear(),
    "resize": lambda p, step: p.cache.resize(step["num_pages"]),
    "commit": lambda p, step: p.cache.tree_commit(step["seqs"], step["leaves"]),
    "save": save,
    "load": load,
    "transfer": transfer,
    "arrive": arrive,
    "can_append": lambda p, step: p.answer(
        step, "missing", p.cache.can_append(step["seqs"], step["lengths"])
    ),
    "can": lambda p, step: p.answer(
        step, "nearest", p.cache.can(step["seq"], step["what"], step["pos"])
    ),
    "around": lambda p, step: [
        p.answer(step, key, value)
        for key, value in zip(("below", "above"), p.cache.positions(step["seq"], step["what"], step["pos"]))
    ],
    "export_pool": export_pool,
    "stored": stored("debug_get_layer", "seq", "layer", "begin", "end"),
    "stored_kv": stored("debug_get_kv", "seq", "begin", "end"),
    "stored_mla": stored("debug_get_mla", "seq", "begin", "end"),
    "stored_state": stored_state,
    "store": lambda p, step: p.cache.debug_set_layer(
        step["seq"], step["layer"], step["begin"], *p.tensors(step, "k", "v")
    ),
    "store_kv": lambda p, step: p.cache.debug_set_kv(
        step["seq"], step["begin"], *p.tensors(step, "k", "v")
    ),
    "store_mla": lambda p, step: p.cache.debug_set_mla(
        step["seq"], step["begin"], tensor(step["k"])
    ),
    "store_state": lambda p, step: p.cache.debug_set_state(
        step["seq"], step["layer"], step["state"], tensor(step["given"])
    ),
    "begin": begin,
    "end": lambda p, step: p.fwd.end(),
    "abort": lambda p, step: p.fwd.abort(),
    "positions": positions,
    "tables": tables,
    "attn": attends("attn", "q", "k", "v"),
    "fused": attends("attn_fused_qkv", "qkv"),
    "self": attends("attn_self", "q", "k", "v"),
    "cached": attends("attn_cached", "q"),
    "cross": attends("attn_cross", "q", "k", "v"),
    "shared_kv": attends("attn_shared_kv", "q"),
    "merge": merge,
    "append": lambda p, step: p.fwd.kv_append(step["layer"], *p.tensors(step, "k", "v")),
    "mla_append": lambda p, step: p.fwd.mla_append(step["layer"], tensor(step["latent"])),
    "gather": gather,
    "state_get": state_get,
    "state_set": lambda p, step: p.fwd.state_set(
        step["layer"], step["state"], tensor(step["given"])
    ),
    "linear": linear,
    "conv": conv,
    **{name: query(name) for name in ("match", "attach", "insert", "pin", "unpin")},
    "prefix_hash": prefix_hash,
    "evict": lambda p, step: p.answer(step, "freed", p.cache.prefix.evict(step["pages"])),
    "prefix_reset": lambda p, step: p.cache.prefix.reset(),
    "quota": lambda p, step: p.cache.prefix.set_quota(
        step["salt"].encode(), step["pages"] * p.plan.info.page_bytes
    ),
    "events": events,
    "op_pool": op_pool,
    "op_append": op_append,
    "op_attention": op_paged,
    "op_mla": op_paged,
    "op_ragged": op_ragged,
    "op_merge": op_merge,
    "op_gather": op_gather,
    "op_copy_pages": op_copy_pages,
    "op_rotate": op_rotate,
    "op_quantize": op_quantize,
    "op_dequantize": op_dequantize,
    "op_linear": op_linear,
}
