"""Numbers, tensors and objects as arguments: what is taken, and what a user is told who gives something else."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
from support import DIM, HEADS, qkv, small_cache

import kvcache

LAYER = kvcache.Layer(num_q_heads=HEADS, num_kv_heads=2, k_dim=DIM, dtype="float32")


class Index:
    """A number of a package that is not known here."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


# ---- what is taken


def test_ids_come_from_a_loop_over_an_array(cache):
    for seq in np.arange(4):
        cache.add(seq)
    assert cache.seqs() == [0, 1, 2, 3] and np.int64(2) in cache


@pytest.mark.parametrize("kind", [int, np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, Index])
def test_every_kind_of_integer_is_an_id_a_position_a_length_and_a_layer(kind, rng):
    q, k, v = qkv(rng, 6)
    with small_cache(num_pages=kind(16), max_seqs=kind(8)) as cache:
        cache.add(kind(1))
        with cache.forward([kind(1)], [kind(6)], tokens=[kind(token) for token in range(6)]) as step:
            for layer in range(2):
                out = step.attn(kind(layer), q, k, v, window=kind(3))
                assert (out == step.attn(layer, q, window=3)).all()
            step.gather(kind(0), kind(1), np.empty_like(k), np.empty_like(v))
        cache.fork(kind(1), kind(2), kind(5))
        cache.pop(kind(2), kind(1))
        cache.shift(kind(1), kind(0), kind(4))
        cache.set_window(kind(1), kind(4), kind(1))
        assert (cache.length(kind(1)), cache.length(kind(2)), cache.info(kind(2)).length) == (2, 4, 4)
        assert cache.can(kind(2), "pop", kind(2)) == 2
        assert cache.can_append([kind(1)], [kind(1)]) == 0
        assert cache.export_pool(kind(1)).shape[0] == 16
        assert cache.seq_pages(kind(2), kind(0)).shape == (1,)
        assert cache.prefix.match(range(6), num_tokens=kind(5), priority=kind(1)) >= 0
        assert len(kvcache.prefix_hash(range(6), kind(2))) == 3
        cache.pages_copy([(kind(0), kind(1))]).wait()
        assert cache.debug_get_layer(kind(2), kind(0), kind(1), kind(3))[0].shape[0] == 2
        assert cache.plan.layer(kind(1)).k_dim == DIM and cache.plan.group(kind(0)).num_layers == 2
        assert cache.plan.request_pages(kind(5)) == 2 and cache.plan.pages_for(kind(0)) == 0
        cache.remove(kind(2))
        cache.resize(kind(20))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_arrays_of_every_width_are_ids_and_tokens(dtype, cache, rng):
    seqs = np.array([3, 1], dtype)
    for seq in seqs:
        cache.add(seq)
    tokens = np.array([[100, 7], [101, 7], [102, 7], [120, 7], [127, 7]], dtype)[:, 0]  # strided
    _, k, v = qkv(rng, 5)
    with cache.forward(seqs, np.array([4, 1], dtype), tokens=tokens) as step:
        step.kv_append(0, k, v), step.kv_append(1, k, v)
    assert (cache.length(3), cache.length(1)) == (4, 1)
    assert cache.prefix.match([100, 101, 102, 120, 0]) == 4


def test_numbers_below_zero_keep_their_sign_in_every_width(cache):
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        with pytest.raises(kvcache.NotFound, match="sequence -3 does"):
            cache.forward(np.array([-3], dtype), [1])


def test_bools_are_the_numbers_that_python_says_they_are(cache):
    cache.add(True)
    assert cache.seqs() == [1]
    with pytest.raises(TypeError, match=r"seq: expected an integer, got numpy\.bool"):
        cache.add(np.bool_(True))  # operator.index refuses it


# ---- what is refused, by its name

REFUSED = {
    "seq: expected an integer, got numpy.float64": lambda c, f: c.add(np.float64(7)),
    "seq: expected an integer, got str": lambda c, f: c.remove("one"),
    "seq: expected an integer, got NoneType": lambda c, f: c.info(None),
    "seq: expected an integer, got float": lambda c, f: c.length(1.0),
    "child: expected an integer, got float": lambda c, f: c.fork(1, 2.5),
    "parent: expected an integer, got list": lambda c, f: c.fork([1], 2),
    "pos: expected an integer, got str": lambda c, f: c.can(1, "fork", "end"),
    "n: expected an integer, got str": lambda c, f: c.pop(1, "two"),
    "end: expected an integer, got float": lambda c, f: c.shift(1, 0, 1.5),
    "delta: expected an integer, got float": lambda c, f: c.shift(1, 0, 1, 1.5),
    "window: expected an integer, got str": lambda c, f: c.set_window(1, "4"),
    "num_pages: expected an integer, got float": lambda c, f: c.resize(3.0),
    "seqs[0]: expected an integer, got float": lambda c, f: c.forward([1.5]),
    "seqs[1]: expected an integer, got str": lambda c, f: c.forward([1, "a"], [1, 1]),
    "seqs: expected integers in a row, got int": lambda c, f: c.forward(1),
    "seqs: expected integers in a row, got numpy.ndarray": lambda c, f: c.forward(np.array(1)),
    "seqs: expected integers in one dimension on the CPU": lambda c, f: c.forward(np.ones((1, 1), int), [1]),
    "lengths: expected integers in one dimension on the CPU": lambda c, f: c.forward([1], np.ones(1)),
    "lengths[0]: expected an integer, got float": lambda c, f: c.can_append([1], [1.5]),
    "tokens[0]: expected an integer, got str": lambda c, f: c.prefix.match("ab"),
    "leaves[0]: expected an integer, got str": lambda c, f: c.tree_commit([1], ["x"]),
    "layer: expected an integer, got float": lambda c, f: c.plan.layer(0.0),
    "layer: expected an integer, got str": lambda c, f: f.attn("0", np.ones((1, HEADS, DIM), np.float32)),
    "group: expected an integer, got float": lambda c, f: f.page_table("indices", 1.0),
    "q: expected a tensor, which has __dlpack__ and __dlpack_device__, got list": lambda c, f: f.attn(0, [[[1.0]]]),
    "qkv: expected a tensor": lambda c, f: f.attn_fused_qkv(0, 3),
    "window: expected an integer, got str": lambda c, f: f.attn(0, np.ones((1, HEADS, DIM), np.float32), window="8"),
    "scale: expected a number, got str": lambda c, f: f.attn(0, np.ones((1, HEADS, DIM), np.float32), scale="1"),
    "opt: expected a kvcache.AttnOptions or None, got int": lambda c, f: f.attn(0, np.ones((1, HEADS, DIM)), opt=3),
    "salt: expected bytes, got str": lambda c, f: c.prefix.match([1], salt="tenant"),
    "keys: expected kvcache.PrefixKey objects in a row": lambda c, f: c.prefix.match([1], keys=3),
    "keys[].type: expected an integer, got str": lambda c, f: c.prefix.match([1], keys=[("lora", 0, b"")]),
    "hashes: expected bytes objects in a row": lambda c, f: c.prefix.match([1], hashes=[1]),
    "num_tokens: expected an integer, got float": lambda c, f: c.prefix.match([1], num_tokens=1.5),
    "pages: expected an integer, got str": lambda c, f: c.prefix.evict("all"),
    "pairs: expected an integer, got str": lambda c, f: c.pages_copy([("a", 1)]),
    "stream: 'fast' is no address": lambda c, f: kvcache.devices.stream_address("fast", (2, 0)),
    "timeout: expected seconds or None, got str": lambda c, f: c.pages_copy([]).wait("soon"),
    "timeout: -1 is no number of seconds": lambda c, f: c.pages_copy([]).wait(-1),
    "begin: expected an integer, got str": lambda c, f: c.debug_get_kv(1, "0"),
    "name: expected a str, got int": lambda c, f: kvcache.has_feature(3),
    "min_level: expected an integer, got str": lambda c, f: kvcache.set_logger(None, "debug"),
    "plans[0]: expected a kvcache.Plan, got int": lambda c, f: kvcache.min_pages([1]),
    "memory: expected an integer, got float": lambda c, f: kvcache.plan_for({}, 1.5),
    "num_pages: memory says how large the cache is": lambda c, f: kvcache.plan_for({}, 1 << 30, num_pages=3),
    "model_config: expected a dict": lambda c, f: kvcache.plan_for(3, "1GiB"),
    "source: expected a tensor": lambda c, f: kvcache.as_dtype([1], "bfloat16"),
    "plan: expected a kvcache.Plan or kvcache.Config, got int": lambda c, f: kvcache.Cache(3),
    "config: expected a kvcache.Config, got kvcache.plan.Plan": lambda c, f: kvcache.Plan(c.plan),
    "layers[0]: expected a kvcache.Layer, got dict": lambda c, f: kvcache.Cache(layers=[{}], num_pages=1),
    "layers[1].rope: expected a kvcache.Rope, got dict": lambda c, f: kvcache.Plan(
        layers=[LAYER, kvcache.Layer(num_kv_heads=1, k_dim=4, rope={"theta": 1e4})]
    ),
    "layers[0].k_dim: expected an integer, got str": lambda c, f: kvcache.Plan(layers=[kvcache.Layer(k_dim="8")]),
    "layers[0].states[0]: expected a kvcache.State, got tuple": lambda c, f: kvcache.Plan(
        layers=[kvcache.Layer(kind="state", states=[(4, 4)])]
    ),
    "k_scale: expected a number, got str": lambda c, f: kvcache.Plan(layers=[kvcache.Layer(k_scale="1")]),
    "layers: expected a sequence of kvcache.Layer": lambda c, f: kvcache.Plan(layers=LAYER),
    "pool_tensors[0]: expected a tensor": lambda c, f: kvcache.Plan(layers=[LAYER], pool_tensors=[[1]]),
    "no fields of a config: bytes_budget": lambda c, f: kvcache.Cache(layers=[LAYER], bytes_budget=1),
    "no attention options: sm_scale": lambda c, f: f.attn(0, np.ones((1, HEADS, DIM), np.float32), sm_scale=1),
    "Layer: fields are given by name, as in Layer(num_q_heads=8": lambda c, f: kvcache.Layer(8, 2, 64),
    "Rope: fields are given by name, as in Rope(theta=": lambda c, f: kvcache.Rope(1e4),
    "dl_device: expected (device_type, device_id)": lambda c, f: c.export_pool(0).__dlpack__(dl_device="cpu"),
    "pickle cache.plan": lambda c, f: pickle.dumps(c),
    "its pages are memory of this process": lambda c, f: copy.deepcopy(c),
    "kvcache.Forward cannot be pickled": lambda c, f: pickle.dumps(f),
    "kvcache.prefix.Prefix cannot be pickled": lambda c, f: pickle.dumps(c.prefix),
    "pickle np.array(tensor)": lambda c, f: pickle.dumps(c.export_pool(0)),
    "its copies are this process's": lambda c, f: pickle.dumps(c.pages_copy([])),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_wrong_argument_is_refused_by_its_name(cache, message):
    cache.add(1)
    with cache.forward([1], partial=True) as forward:
        before = cache.stats()
        with pytest.raises(kvcache.Error) as caught:
            REFUSED[message](cache, forward)
        assert message in str(caught.value)
        assert isinstance(caught.value, (TypeError, ValueError)) and caught.value.status == 1
        assert caught.value.name == "KVC_E_INVALID_ARGUMENT"
        assert cache.stats() == before


TOO_LARGE = {
    "seq: 18446744073709551615 is no 64-bit integer": lambda c: c.add(np.uint64(2**64 - 1)),
    "seq: -9223372036854775809 is no 64-bit integer": lambda c: c.add(-(2**63) - 1),
    "seq: the number is no 64-bit integer": lambda c: c.add(10**5000),
    "seqs[1]: 36893488147419103232 is no 64-bit integer": lambda c: c.forward([1, 1 << 65], [1, 1]),
    "seqs[0]: 9223372036854775808 is no 64-bit integer": lambda c: c.forward(np.array([1 << 63], np.uint64), [1]),
    "tokens[0]: 1099511627776 is no 32-bit integer": lambda c: c.prefix.match(np.array([1 << 40])),
    "layer: 2147483648 is no 32-bit integer": lambda c: c.export_pool(1 << 31),
    "max_bytes: -1 is no unsigned 64-bit integer": lambda c: c.prefix.set_quota(b"a", -1),
    "byte_budget: -1 is no unsigned 64-bit integer": lambda c: c.plan.pages_for(-1),
    "num_pages: 1180591620717411303424 is no 64-bit integer": lambda c: kvcache.Plan(layers=[LAYER], num_pages=1 << 70),
    "keys[].type: 4294967296 is no unsigned 32-bit integer": lambda c: c.prefix.match([1], keys=[(1 << 32, 0, b"")]),
}


@pytest.mark.parametrize("message", TOO_LARGE)
def test_a_number_that_does_not_fit_is_refused_by_its_name(cache, message):
    with pytest.raises(kvcache.OutOfRange) as caught:
        TOO_LARGE[message](cache)
    assert str(caught.value) == message and isinstance(caught.value, OverflowError)
    assert caught.value.name == "KVC_E_OUT_OF_RANGE"


def test_the_extremes_of_each_width_pass(cache):
    for seq in (0, 2**63 - 1):
        cache.add(seq)
    with pytest.raises(kvcache.InvalidArgument, match="-9223372036854775808"):
        cache.add(-(2**63))
    with pytest.raises(kvcache.OutOfRange, match="2147483647"):
        cache.plan.layer(2**31 - 1)
    assert cache.plan.pages_for(2**64 - 1) > 0


def test_exceptions_of_an_object_itself_pass_through(cache):
    class Raises:
        def __index__(self):
            raise LookupError("mine")

    for call in (lambda: cache.add(Raises()), lambda: cache.forward([Raises()], [1])):
        with pytest.raises(LookupError, match="mine"):
            call()


def test_an_element_that_empties_its_list_is_survived(cache):
    seqs = [0, 1, 2]

    class Empties:
        def __index__(self):
            seqs.clear()
            return 1

    seqs[1] = Empties()
    with pytest.raises(IndexError):
        cache.forward(seqs, [1, 1, 1])


def test_a_query_of_two_dimensions_is_a_wrong_shape(cache):
    cache.add(1)
    with cache.forward([1], partial=True) as forward, pytest.raises(kvcache.ShapeError, match=r"q: shape \(4, 8\)"):
        forward.attn(0, np.ones((HEADS, DIM), np.float32))


# ---- one base for all


def test_every_exception_of_the_package_is_an_error():
    named = [getattr(kvcache, name) for name in kvcache.errors.__all__]
    kinds = [kind for kind in named if inspect.isclass(kind)]
    assert all(issubclass(kind, kvcache.Error) for kind in kinds) and len(kinds) == len(named) - 1
    assert issubclass(kvcache.TensorError, BufferError)
    assert pickle.loads(pickle.dumps(kvcache.ArgumentTypeError("seq: no"))).args == ("seq: no",)


def test_tensors_that_cannot_be_taken_are_errors_too(cache):
    frozen = np.zeros((1, HEADS, DIM), np.float32)
    frozen.flags.writeable = False
    cache.add(1)
    with cache.forward([1]) as forward:
        with pytest.raises(kvcache.TensorError, match="out: is read-only"):
            forward.attn(0, frozen, out=frozen)
        with pytest.raises(kvcache.TensorError, match="max_version"):
            forward.page_table("indices").__dlpack__()
        with pytest.raises(kvcache.TensorError, match="copy=True"):
            cache.export_pool(0).__dlpack__(copy=True)


# ---- plans and layers


def test_a_plan_takes_what_a_cache_takes(tmp_path):
    plan = kvcache.Plan(layers=[LAYER] * 2, num_pages=8)
    assert plan.info.num_pages == 8 and plan.config.layers == [LAYER] * 2
    model = {
        "model_type": "llama",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    assert kvcache.Plan(model_config=model, num_pages=8, dtype="fp16").layer(2).k_dtype == "float16"
    for give in (
        lambda: kvcache.Plan(plan.config, num_pages=3),
        lambda: kvcache.Cache(plan, layers=[LAYER]),
        lambda: kvcache.Plan(layers=[LAYER], model_config=model),
        lambda: kvcache.Cache(),
        lambda: kvcache.Plan(),
    ):
        with pytest.raises(kvcache.ArgumentTypeError, match="give "):
            give()


def test_a_plan_travels_to_another_process_as_its_config():
    plan = kvcache.Plan(layers=[LAYER], num_pages=8)
    other = pickle.loads(pickle.dumps(plan))
    assert other.config == plan.config and other.info == plan.info
    assert copy.copy(plan).info == plan.info


@pytest.mark.parametrize(
    "names", [("float32", "fp32", "f32"), ("float16", "fp16", "f16", "half"), ("bfloat16", "bf16")]
)
def test_types_have_the_names_that_people_use(names):
    layers = [kvcache.Layer(num_kv_heads=1, k_dim=4, dtype=name) for name in names]
    plan = kvcache.Plan(layers=layers, num_pages=1)
    assert {plan.layer(layer).k_dtype for layer in range(len(names))} == {names[0]}


def test_a_notebook_shows_plans_and_caches(cache):
    html = cache._repr_html_()
    assert html.startswith("<pre>&lt;kvcache.Cache 0 sequences") and "ATTENTION" in html
    assert cache.plan._repr_html_() == f"<pre>{cache.plan.describe()}</pre>"


# ---- scales of quantised storage


def test_scales_of_a_layer_reach_the_library():
    def plan(**fields):
        layer = kvcache.Layer(num_kv_heads=1, k_dim=4, **fields)
        return kvcache.Plan(layers=[layer], num_pages=1)

    for name in ("k_scale", "v_scale"):
        assert plan(quant="per_tensor", dtype="int8", **{name: np.float32(0.5)}).layer(0).quant == "per_tensor"
        with pytest.raises(kvcache.OutOfRange, match=rf"layers\[0\].{name} = -1"):
            plan(quant="per_tensor", dtype="int8", **{name: -1})
        with pytest.raises(kvcache.OutOfRange, match=f"{name} = nan"):
            plan(quant="per_tensor", dtype="int8", **{name: float("nan")})
        with pytest.raises(kvcache.InvalidArgument, match=f"{name} = 2 with quant = NONE"):
            plan(**{name: 2})


def test_v_is_quantised_apart_from_k():
    def plan(**fields):
        return kvcache.Plan(layers=[kvcache.Layer(num_kv_heads=2, k_dim=16, **fields)], num_pages=4)

    k_alone = plan(dtype="int8", quant="per_token_head", v_quant="none").layer(0)
    assert (k_alone.quant, k_alone.v_quant) == ("per_token_head", "none")
    assert (k_alone.k_dtype, k_alone.v_dtype) == ("int8", "bfloat16")
    assert k_alone.bytes_per_token == 2 * (16 + 4 + 32) and k_alone.v_scale_bytes == 0
    v_alone = plan(dtype="float16", v_dtype="float8_e4m3fn", v_quant="per_tensor", v_scale=0.5).layer(0)
    assert (v_alone.quant, v_alone.v_quant, v_alone.k_dtype) == ("none", "per_tensor", "float16")
    assert plan(dtype="int8", quant="per_tensor").layer(0).v_quant == "per_tensor"
    with pytest.raises(kvcache.InvalidArgument, match=r"v_dtype is not set with v_quant = PER_TOKEN_HEAD \(2\)"):
        plan(v_quant="per_token_head")
    with pytest.raises(ValueError, match="v_quant"):
        plan(v_quant="half")
    assert kvcache.Layer._from_dict({**zeros_of_a_layer(), "v_quant": 4}).v_quant == "none"
    assert kvcache.Layer._from_dict({**zeros_of_a_layer(), "v_quant": 2}).v_quant == "per_token_head"


def test_the_first_tokens_are_kept_unquantised():
    def plan(**fields):
        return kvcache.Plan(
            layers=[kvcache.Layer(num_kv_heads=2, k_dim=16, keep_tokens=4, **fields)], num_pages=4
        )

    kept = plan(dtype="int8", quant="per_token_head")
    assert (kept.layer(0).keep_tokens, kept.layer(0).kept_group) == (4, 1)
    assert (kept.group(0).keep_tokens, kept.group(1).keep_tokens) == (0, 4)
    assert kept.group(1).page_size == 4 and kept.group(1).first_layer == 0
    with pytest.raises(kvcache.InvalidArgument, match=r"keep_tokens = 4 with quant = NONE \(0\)"):
        plan()
    with pytest.raises(kvcache.OutOfRange, match="keep_tokens = -1"):
        kvcache.Plan(layers=[kvcache.Layer(num_kv_heads=2, k_dim=16, keep_tokens=-1)])
    assert kvcache.Layer._from_dict({**zeros_of_a_layer(), "keep_tokens": 4}).keep_tokens == 4


def zeros_of_a_layer():
    numbers = "kind num_q_heads num_kv_heads k_dim v_dim quant window chunk source_layer latent_rank latent_rope_dim flags v_quant keep_tokens"
    scales = {"k_scale": 0.0, "v_scale": 0.0}
    return {**dict.fromkeys(numbers.split(), 0), **scales, "k_dtype": (0, 0, 0), "v_dtype": (0, 0, 0)}
