"""What a user does with a cache from Python, and what it answers when the user is wrong."""

from __future__ import annotations

import gc
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from support import DIM, HEADS, KV_HEADS, attention, qkv, small_cache, step

import kvcache


def test_attention_over_prefill_and_decode_equals_numpy(cache, rng):
    cache.add(1)
    q, k, v = qkv(rng, 9)
    prefill = step(cache, [1], [6], (q[:6], k[:6], v[:6]))
    decode = [step(cache, [1], [1], (q[i : i + 1], k[i : i + 1], v[i : i + 1])) for i in range(6, 9)]
    for layer in range(2):
        got = np.concatenate([prefill[layer], *(outputs[layer] for outputs in decode)])
        np.testing.assert_allclose(got, attention(q, k, v), rtol=1e-5, atol=1e-5)
    stored_k, stored_v = cache.debug_get_kv(1)
    assert (stored_k == k).all() and (stored_v == v).all()


def test_a_fork_shares_pages_and_branches_do_not_disturb_each_other(cache, rng):
    cache.add(1)
    q, k, v = qkv(rng, 8)
    step(cache, [1], [6], (q[:6], k[:6], v[:6]))
    cache.fork(1, 2)
    assert cache.stats().pages_shared == 2
    both = (np.repeat(q[6:7], 2, 0), np.stack([k[6], k[7]]), np.stack([v[6], v[7]]))
    out = step(cache, [1, 2], [1, 1], both)[0]
    for branch, last in ((0, 6), (1, 7)):
        own = [*range(6), last]
        np.testing.assert_allclose(
            out[branch : branch + 1], attention(q[6:7], k[own], v[own], past=6), rtol=1e-5, atol=1e-5
        )
    cache.pop(2, 3)
    assert (cache.length(1), cache.length(2), cache.seqs(), 2 in cache, len(cache)) == (7, 4, [1, 2], True, 2)
    cache.remove(1)
    cache.remove(2)
    assert cache.is_empty


def test_parts_of_attention_merge_to_the_whole(cache, rng):
    cache.add(1)
    q, k, v = qkv(rng, 7)
    step(cache, [1], [4], (q[:4], k[:4], v[:4]))
    new = q[4:], k[4:], v[4:]
    with cache.forward([1], [3]) as forward:
        own, own_lse = forward.attn_self(0, *new, lse=True)
        old, old_lse = forward.attn_cached(0, new[0], lse=True)
        forward.attn_merge(own, own_lse, old, old_lse)
        whole, lse = forward.attn(0, *new, lse=True)
        np.testing.assert_allclose(own, whole, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(own_lse, lse, rtol=1e-5, atol=1e-5)
        forward.kv_append(1, *new[1:])
        again = forward.attn(1, new[0])
        assert again.shape == (3, HEADS, DIM)
        packed = forward.attn_fused_qkv(0, np.concatenate(new, axis=1))
        assert (packed == whole).all()
        k_out, v_out = (np.empty((7, KV_HEADS, DIM), np.float32) for _ in range(2))
        forward.gather(0, 1, k_out, v_out)
        assert (k_out == k).all() and (v_out == v).all()
        assert forward.positions().tolist() == [4, 5, 6]


def test_options_are_keywords_or_an_object(cache, rng):
    cache.add(1)
    q, k, v = qkv(rng, 5)
    with cache.forward([1], [5], partial=True) as forward:
        plain = forward.attn(0, q, k, v)
        cut = forward.attn(0, q, window=1)
        np.testing.assert_allclose(cut, np.repeat(v, 2, axis=1), rtol=1e-6)
        sinks = np.full(HEADS, 50.0, np.float32)
        assert abs(forward.attn(0, q, sink_logits=sinks)).max() < 1e-6 < abs(plain).max()
        opt = kvcache.AttnOptions(scale=1e-9)
        flat = forward.attn(0, q, opt=opt)
        np.testing.assert_allclose(flat[4], np.repeat(v.mean(axis=0), 2, axis=0), rtol=1e-4, atol=1e-6)
        assert (forward.attn(0, q, opt=opt, window=1) == forward.attn(0, q, scale=1e-9, window=1)).all()
        with pytest.raises(kvcache.ArgumentTypeError, match="no_such_option"):
            forward.attn(0, q, no_such_option=1)
        with pytest.raises(kvcache.ShapeError, match="sink_logits"):
            forward.attn(0, q, sink_logits=sinks[:2])


def test_an_exception_inside_a_forward_aborts_it(cache, rng):
    cache.add(1)
    tensors = qkv(rng, 3)
    with pytest.raises(KeyError, match="mine"), cache.forward([1], [3]) as forward:
        forward.attn(0, *tensors)
        raise KeyError("mine")
    assert not forward.is_open
    stats = cache.stats()
    assert (cache.length(1), stats.forwards, stats.forwards_aborted, cache.available_pages) == (0, 0, 1, 16)
    step(cache, [1], [3], tensors)
    assert cache.length(1) == 3


def test_a_forward_that_is_dropped_is_given_up(cache):
    cache.add(1)
    cache.forward([1], [3])
    gc.collect()
    assert cache.stats().forwards_aborted == 1
    cache.forward([1], partial=True).end()


def test_a_layer_that_is_forgotten_is_named_unless_the_step_is_partial(cache, rng):
    cache.add(1)
    _, k, v = qkv(rng, 4)
    forward = cache.forward([1], [4], tokens=[1, 2, 3, 4])
    forward.kv_append(0, k, v)
    with pytest.raises(kvcache.InvalidState, match="layer 1"):
        forward.end()
    assert forward.is_open
    forward.kv_append(1, k, v)
    forward.end()
    assert cache.prefix.match([1, 2, 3, 4, 5]) == 4
    # Leaving a block is an end too; one that is refused undoes the step.
    with pytest.raises(kvcache.InvalidState, match="layer 0"), cache.forward([1], [1]):
        pass
    assert cache.length(1) == 4 and cache.stats().forwards_aborted == 1
    cache.add(2)
    with cache.forward([2], [4], tokens=[9, 9, 9, 9], partial=True) as partial:
        partial.kv_append(0, k, v)
    assert cache.length(2) == 4 and cache.prefix.match([9, 9, 9, 9, 9]) == 0


def test_cleared_pages_show_nothing_of_who_had_them_before(rng):
    _, k, v = qkv(rng, 60)
    # The library clears what it alone writes. A caller that has the pool's memory writes rows itself.
    for clear_pages, is_exported in ((False, True), (False, False), (True, True)):
        with small_cache(clear_pages=clear_pages) as cache:
            pools = [cache.export_pool(layer) for layer in range(2)] if is_exported else []
            cache.add(1)
            with cache.forward([1], [60]) as forward:
                for layer in range(2):
                    forward.kv_append(layer, k, v)
            cache.remove(1)
            cache.add(2)
            with cache.forward([2], [60], partial=True):
                pass
            assert (cache.debug_get_kv(2)[0] == 0).all() == (clear_pages or not is_exported)
            del pools


def test_ended_forwards_and_closed_caches_raise(rng):
    cache = small_cache()
    cache.add(1)
    tensors = qkv(rng, 1)
    forward = cache.forward([1], partial=True)
    forward.end()
    for call in (
        lambda: forward.attn(0, *tensors),
        lambda: forward.kv_append(0, *tensors[1:]),
        forward.end,
        forward.abort,
        forward.positions,
        lambda: forward.page_table("indices"),
    ):
        with pytest.raises(kvcache.InvalidState, match="ended"):
            call()
    open_one = cache.forward([1])
    pool, pages = cache.export_pool(0), cache.seq_pages(1)
    cache.close()
    cache.close()
    assert not open_one.is_open and not cache.is_open
    for call in (
        lambda: open_one.attn(0, *tensors),
        lambda: cache.add(2),
        lambda: cache.length(1),
        cache.stats,
        lambda: cache.available_pages,
        lambda: cache.forward([1]),
        cache.check,
        lambda: cache.prefix.match([1, 2]),
        lambda: cache.swap_out([1]),
    ):
        with pytest.raises(kvcache.InvalidState, match="closed"):
            call()
    assert "closed" in repr(cache) and "ended" in repr(open_one)
    assert pool.numpy().shape[0] == 16 and pages.numpy().shape == (1,)  # exports outlive their cache


def test_statuses_are_exceptions_of_the_expected_kinds(cache):
    cache.add(1)
    for call, kind, builtin in (
        (lambda: cache.add(1), kvcache.AlreadyExists, ValueError),
        (lambda: cache.length(7), kvcache.NotFound, KeyError),
        (lambda: cache.add(-1), kvcache.InvalidArgument, ValueError),
        (lambda: cache.pop(1, 5), kvcache.OutOfRange, IndexError),
        (lambda: cache.swap_out([1]), kvcache.Unsupported, NotImplementedError),
        (lambda: cache.forward([1], [100]), kvcache.NeverFits, ValueError),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert (
            isinstance(caught.value, builtin)
            and isinstance(caught.value, kvcache.Error)
            and caught.value.name.startswith("KVC_E_")
        )
    cache.add(2)
    cache.forward([2], [60], partial=True).end()
    with pytest.raises(kvcache.NoPages) as caught:
        cache.forward([1], [8])
    assert caught.value.missing_pages == 1 == cache.can_append([1], [8])


def test_messages_name_the_argument_and_both_values(cache, rng):
    cache.add(1)
    q, k, v = qkv(rng, 2)
    with cache.forward([1], [2], partial=True) as forward:
        with pytest.raises(kvcache.ShapeError, match="k"):
            forward.attn(0, q, k[:, :1], v)
        with pytest.raises(kvcache.DtypeError, match="q"):
            forward.attn(0, q.astype(np.int32), k, v)
        with pytest.raises(kvcache.OutOfRange, match="layer 40 out of range"):
            forward.kv_append(40, k, v)
        for out in (None, np.zeros_like(q)):
            with pytest.raises(kvcache.OutOfRange, match="layer 40 out of range"):
                forward.attn(40, q, k, v, out=out)
        with pytest.raises(kvcache.InvalidArgument, match="out overlaps q"):
            forward.attn(0, q, k, v, out=q)
        forward.attn(0, q, k, v)
    with pytest.raises(kvcache.InvalidArgument, match="lengths has 2 entries, seqs has 1"):
        cache.forward([1], [1, 1])
    with pytest.raises(kvcache.InvalidArgument, match="tokens has 3 entries, the lengths sum up to 2"):
        cache.forward([1], [2], tokens=[1, 2, 3])
    with pytest.raises(TypeError, match=r"seqs\[0\]"):
        cache.forward(["one"], [1])
    with pytest.raises(kvcache.InvalidArgument, match="'diagonal' is none of"):
        cache.export_pool(0, "diagonal")
    with pytest.raises(TypeError, match="no field 'colour'"):
        kvcache._capi.kvc_plan_create({"colour": 1})


def test_integers_come_as_lists_ranges_or_arrays(cache):
    for seqs in ([1, 2], (3, 4), range(5, 7), np.array([7, 8]), np.array([9, 10], np.int32)):
        for seq in seqs:
            cache.add(int(seq))
        cache.forward(seqs, np.array([1, 2, 3, 4])[::2][:2], partial=True).end()
        assert [cache.length(int(seq)) for seq in seqs] == [1, 3]
    with pytest.raises(TypeError, match="seqs"):
        cache.forward(np.array([1.0]), [1])
    with pytest.raises(OverflowError, match="tokens"):
        cache.forward([1], [1], tokens=[1 << 40])


def test_plans_answer_questions_without_a_cache():
    layers = [kvcache.Layer(num_q_heads=8, num_kv_heads=2, k_dim=64, window=64)] * 3 + [
        kvcache.Layer(num_kv_heads=2, k_dim=64)
    ]
    plan = kvcache.Plan(kvcache.Config(layers=layers, byte_budget=1 << 22, max_tokens_per_forward=64))
    assert (
        plan.layer(0).window == 64
        and plan.layer(3).kind == "attention"
        and plan.layer(3).k_dtype == "bfloat16"
    )
    assert sum(plan.group(group).num_layers for group in range(plan.info.num_groups)) == 4
    assert (
        plan.pages_for(1 << 22) == plan.info.num_pages and plan.max_tokens(1 << 22) == plan.info.max_seq_len
    )
    assert plan.request_pages(0) == 0 < plan.request_pages(1)
    assert "page" in plan.describe() and plan.to_dict()["num_pages"] == plan.info.num_pages
    assert kvcache.min_pages([plan, plan]) == plan.info.num_pages
    with pytest.raises(kvcache.OutOfRange):
        plan.layer(4)
    with pytest.raises(kvcache.InvalidArgument):
        kvcache.Plan(kvcache.Config(layers=layers, num_pages=1, byte_budget=1))


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "torch_dtype": "float16",
    "rope_theta": 5e5,
    "vocab_size": 100,
    "intermediate_size": 128,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
}


def test_plans_of_a_model_in_memory_are_those_of_the_config_and_of_the_command(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    plan = kvcache.plan_for(LLAMA, "24MiB")
    assert plan.config.byte_budget == 24 << 20 and plan.config.max_seq_len == 512
    assert plan.config.max_tokens_per_forward == 8192
    wanted = kvcache.Plan(model_config=LLAMA, byte_budget=24 << 20, max_tokens_per_forward=8192)
    for model in (LLAMA, path, str(tmp_path), json.dumps(LLAMA), SimpleNamespace(to_dict=lambda: LLAMA)):
        assert kvcache.plan_for(model, memory=24 << 20).to_dict() == wanted.to_dict()
    for text, size in (("1GB", 10**9), ("1.5 MiB", 3 << 19), ("2g", 2 << 30), ("65536000", 65536000), ("64000KB", 64 * 10**6)):
        assert kvcache.plan_for(LLAMA, text).config.byte_budget == size
    small = kvcache.plan_for(LLAMA, "24MiB", max_seq_len=64, dtype="float32", max_tokens_per_forward=16)
    assert small.config.max_seq_len == 64 and small.layer(0).k_dtype == "float32"
    for wrong in ("lots", "1ib", "-3GiB", "", "1.2.3G", 0, "0"):
        with pytest.raises(kvcache.InvalidArgument, match="memory"):
            kvcache.plan_for(LLAMA, wrong)


def test_a_request_that_does_not_fit_is_planned_shorter_with_a_warning():
    with pytest.warns(UserWarning, match="a request of 512 tokens does not fit in 100000: this is the plan for"):
        plan = kvcache.plan_for(LLAMA, 100000)
    assert 0 < plan.config.max_seq_len < 512
    assert plan.request_pages(plan.config.max_seq_len) <= plan.info.num_pages
    with pytest.raises(kvcache.InvalidArgument, match="holds no page"):
        kvcache.plan_for(LLAMA, 10)


def test_a_model_type_that_is_not_known_is_read_by_its_keys_with_a_line_in_the_log():
    lines = []
    kvcache.set_logger(lambda level, message: lines.append((level, message)))
    try:
        plan = kvcache.plan_for({**LLAMA, "model_type": "novel"}, "1MiB")
    finally:
        kvcache.set_logger(None)
    assert plan.layer(2).num_kv_heads == 2 and plan.layer(2).k_dim == 16
    assert lines == [
        (
            2,
            "model_type 'novel' is not known: it is read by its keys: num_attention_heads, "
            "num_key_value_heads, head_dim; rotations are left to the model",
        )
    ]
    with pytest.raises(kvcache.Unsupported, match="kv_map could change what a layer keeps"):
        kvcache.plan_for({**LLAMA, "model_type": "novel", "kv_map": [1]}, "1MiB")


def test_an_unknown_model_type_is_read_by_the_rules_of_one_that_is_named():
    strange = {**LLAMA, "model_type": "novel", "kv_map": [1]}
    lines = []
    kvcache.set_logger(lambda level, message: lines.append(message))
    try:
        plan = kvcache.plan_for(strange, "24MiB", assume="llama")
    finally:
        kvcache.set_logger(None)
    assert plan.to_dict() == kvcache.plan_for(LLAMA, "24MiB").to_dict()
    assert len(lines) == 1 and "model_type 'novel' is read as 'llama'" in lines[0]
    assert kvcache.Config.from_hf(strange, assume="llama").layers == kvcache.Config.from_hf(LLAMA).layers
    with pytest.raises(kvcache.InvalidArgument, match="assume = 'lama' is not a model_type that is known"):
        kvcache.Config.from_hf(strange, assume="lama")
    with pytest.raises(kvcache.InvalidArgument, match="'llama' is: leave it out"):
        kvcache.plan_for(LLAMA, "24MiB", assume="qwen2")
    with pytest.raises(TypeError, match="assume: expected the name of a model_type, got int"):
        kvcache.Config.from_hf(strange, assume=3)
    with pytest.raises(ValueError, match="null"):
        kvcache.Config.from_hf(strange, assume="llama\0")


def test_layers_of_multi_token_prediction_are_appended_when_asked_for():
    drafting = {**LLAMA, "num_nextn_predict_layers": 2}
    own = kvcache.Config.from_hf(drafting).layers
    assert kvcache.Config.from_hf(drafting, mtp_layers=2).layers == [*own, own[-1], own[-1]]
    assert kvcache.plan_for(drafting, "24MiB", mtp_layers=1).layer(3).k_dim == 16
    with pytest.raises(kvcache.OutOfRange, match="mtp_layers = 3 out of range: num_nextn_predict_layers = 2"):
        kvcache.Config.from_hf(drafting, mtp_layers=3)
    with pytest.raises(kvcache.Unsupported, match="'llama' has no MTP layers: num_nextn_predict_layers is missing"):
        kvcache.Config.from_hf(LLAMA, mtp_layers=1)
    with pytest.raises(TypeError, match="mtp_layers"):
        kvcache.Config.from_hf(LLAMA, mtp_layers="two")


def test_context_parallel_ranks_are_planned_and_not_served():
    one, four = (kvcache.plan_for(LLAMA, "24MiB", cp_size=size) for size in (1, 4))
    assert four.info.num_pages == one.info.num_pages
    assert (one.request_pages(500), four.request_pages(500)) == (32, 8)
    with pytest.raises(kvcache.Unsupported, match="config.cp_size = 4 is for plans alone"):
        kvcache.Cache(kvcache.Config.from_hf(LLAMA, num_pages=64, cp_size=4))
    with pytest.raises(kvcache.OutOfRange, match="config.cp_size = -1"):
        kvcache.plan_for(LLAMA, "24MiB", cp_size=-1)


def test_a_config_json_describes_the_layers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for source in (LLAMA, json.dumps(LLAMA), tmp_path, str(tmp_path / "config.json")):
        config = kvcache.Config.from_hf(source, num_pages=64)
        assert [(layer.num_kv_heads, layer.k_dim, layer.dtype) for layer in config.layers] == [
            (2, 16, "float16")
        ] * 3
        assert (
            config.layers[0].rope.scaling == "llama3"
            and config.layers[0].rope.factor == 8.0
            and config.max_seq_len == 512
        )
    assert all(layer.rope is None for layer in kvcache.Config.from_hf(LLAMA, num_pages=64, rope=False).layers)
    with kvcache.KVCache(model_config=LLAMA, num_pages=64, dtype="float32", max_seq_len=128) as cache:
        assert cache.plan.layer(2).k_dtype == "float32" and cache.plan.info.max_seq_len >= 128
    fp8 = {**LLAMA, "quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}
    stored = kvcache.Config.from_hf(fp8, num_pages=64).layers[1]
    assert (stored.dtype, stored.quant) == ("float8_e4m3fn", "per_tensor")
    stored = kvcache.Config.from_hf(fp8, num_pages=64, dtype="float16").layers[1]
    assert (stored.dtype, stored.quant) == ("float16", "none")
    assert kvcache.plan_for(fp8, "1MiB", dtype="float16").layer(1).k_dtype == "float16"
    with pytest.raises(kvcache.Unsupported, match="no_such_model"):
        kvcache.Config.from_hf({"model_type": "no_such_model"})
    with pytest.raises(TypeError, match="not both"):
        kvcache.Cache(config, num_pages=3)


def test_the_package_knows_itself():
    assert (
        kvcache.version().startswith("0.")
        and kvcache.has_feature("cpu")
        and not kvcache.has_feature("time travel")
    )
    caps = kvcache.device_caps()
    assert caps.backend_present == 1 and caps.name and kvcache.device_caps((2, 0)).backend_present == 0
    assert repr(
        kvcache.Plan(kvcache.Config(layers=[kvcache.Layer(num_kv_heads=1, k_dim=4)], num_pages=3))
    ).startswith("<kvcache.Plan 1 layers")


def test_the_log_goes_to_a_function(cache):
    lines = []
    kvcache.set_logger(lambda level, message: lines.append((level, message)), 0)
    try:
        cache.add(1)
        with pytest.raises(kvcache.Error):
            cache.add(1)
    finally:
        kvcache.set_logger(None)
    assert all(isinstance(level, int) and isinstance(message, str) for level, message in lines)
    with pytest.raises(TypeError, match="callable"):
        kvcache.set_logger(3)


def test_configurations_are_plain_data():
    config = kvcache.Config(
        layers=(kvcache.Layer(num_kv_heads=1, k_dim=4, rope=kvcache.Rope(theta=1e6)),), num_pages=4
    )
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(AttributeError):
        config.num_pages = 5
    with pytest.raises(kvcache.InvalidArgument, match="kind"):
        kvcache.Plan(kvcache.Config(layers=[kvcache.Layer(kind="convolution")], num_pages=4))
    with pytest.raises(kvcache.DtypeError, match="float128"):
        kvcache.Plan(
            kvcache.Config(layers=[kvcache.Layer(num_kv_heads=1, k_dim=4, dtype="float128")], num_pages=4)
        )
    with pytest.raises(TypeError, match="page_size"):
        kvcache.Plan(kvcache.Config(layers=config.layers, num_pages=4, page_size="many"))
    with pytest.raises(OverflowError, match="page_size"):
        kvcache.Plan(kvcache.Config(layers=config.layers, num_pages=4, page_size=1 << 33))


def test_modules_lie_in_a_directory_that_is_named_in_full(tmp_path):
    for path in ("here", "./here", "", "/opt/$ORIGIN"):
        with pytest.raises(kvcache.InvalidArgument, match="path = "):
            kvcache.set_module_path(path)
    kvcache.set_module_path(tmp_path)
    try:
        assert not kvcache.has_feature("cuda")
        with pytest.raises(kvcache.Unsupported, match=f"{tmp_path}/libkvcache_cuda.so"):
            kvcache.Cache(layers=[kvcache.Layer(num_kv_heads=1, k_dim=64)], num_pages=4, device="cuda")
    finally:
        kvcache.set_module_path(None)
