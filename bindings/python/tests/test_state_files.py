"""Sequences to files and back: a new cache, or a new process, goes on where the old one was."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from support import qkv, small_cache, step

import kvcache

OTHER_PROCESS = """
import sys
import numpy as np
import kvcache

layer = kvcache.Layer(num_q_heads=4, num_kv_heads=2, k_dim=8, dtype="float32")
cache = kvcache.Cache(layers=[layer] * 2, page_size=4, num_pages=16, num_threads=1)
cache.load([5], sys.argv[1], model_id="m")
q, k, v = (np.load(f"{sys.argv[2]}/{name}.npy") for name in "qkv")
with cache.forward([5], [len(q)]) as forward:
    np.save(f"{sys.argv[2]}/out.npy", np.stack([forward.attn(i, q, k, v) for i in range(2)]))
print(cache.length(5), cache.stats().tokens_appended)
"""


def test_a_loaded_sequence_goes_on_with_the_same_bits(cache, rng, tmp_path):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    cache.fork(1, 2)
    path = tmp_path / "two.kvc"
    assert cache.save([1, 2], path) is None
    data = cache.save([1, 2])
    assert isinstance(data, bytes) and data == path.read_bytes()
    tensors = qkv(rng, 2)
    expected = step(cache, [1], [2], tensors)
    for source in (path, str(path), data, bytearray(data), memoryview(data)):
        with small_cache() as other:
            assert other.plan.fingerprint == cache.plan.fingerprint
            other.load([7, 8], source)
            assert (other.length(7), other.length(8), other.stats().pages_shared) == (6, 6, 2)
            np.testing.assert_array_equal(step(other, [7], [2], tensors), expected)
            other.check()


def test_another_process_goes_on(cache, rng, tmp_path):
    cache.add(1)
    step(cache, [1], [7], qkv(rng, 7))
    cache.save([1], tmp_path / "one.kvc", model_id="m")
    tensors = qkv(rng, 3)
    for name, tensor in zip("qkv", tensors, strict=True):
        np.save(tmp_path / f"{name}.npy", tensor)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, tmp_path / "one.kvc", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", "3"], "no token of the file was computed"
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.stack(step(cache, [1], [3], tensors)))


def test_what_a_file_holds(cache, rng):
    cache.add(3)
    step(cache, [3], [6], qkv(rng, 6))
    found = kvcache.describe_state_file(cache.save([3], model_id="llama"))
    assert (found["format"], found["model_id"], found["num_pages"]) == (1, "llama", 2)
    assert found["fingerprint"] == cache.plan.fingerprint
    assert [(one["id"], one["length"]) for one in found["sequences"]] == [(3, 6)]
    assert found["layout"]["layers[1].num_kv_heads"] == "2"


def test_refusals(cache, rng, tmp_path):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    data = cache.save([1], model_id="llama")
    with pytest.raises(kvcache.Corrupt, match="digest"):
        cache.load([2], data[:200] + bytes([data[200] ^ 1]) + data[201:])
    with pytest.raises(kvcache.Corrupt, match="ends"):
        cache.load([2], data[:-1])
    with pytest.raises(kvcache.InvalidArgument, match=r'"qwen".*"llama"'):
        cache.load([2], data, model_id="qwen")
    with pytest.raises(kvcache.InvalidArgument, match="n = 2"):
        cache.load([2, 3], data)
    with pytest.raises(kvcache.AlreadyExists):
        cache.load([1], data)
    with pytest.raises(kvcache.InputOutputError, match="No such file"):
        cache.load([2], tmp_path / "missing")
    with pytest.raises(kvcache.InputOutputError, match="cannot create"):
        cache.save([1], tmp_path / "missing" / "file")
    with pytest.raises(TypeError, match="source"):
        cache.load([2], 7)
    layer = kvcache.Layer(num_q_heads=4, num_kv_heads=2, k_dim=8, dtype="float16")
    with kvcache.Cache(layers=[layer] * 2, page_size=4, num_pages=16, num_threads=1) as half:
        with pytest.raises(kvcache.Unsupported, match="k_dtype is float32 in the file, float16 in this cache"):
            half.load([2], data)
        half.load([2], data, convert=True)
        assert half.length(2) == 6
    assert cache.info(1).length == 6 and cache.seqs() == [1]


def test_a_text_with_a_nul_byte_is_refused_and_cuts_nothing(cache, rng, tmp_path):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    data = cache.save([1], model_id="a")
    cut = f"{tmp_path}/nul\0x.kvc"
    for call in (
        lambda: cache.save([1], cut),
        lambda: cache.save([1], tmp_path / "b.kvc", model_id="a\0b"),
        lambda: cache.load([2], cut),
        lambda: cache.load([2], data, model_id="a\0b"),
        lambda: kvcache.describe_state_file(cut),
        lambda: cache.tiers.attach_file(cut, 1 << 30),
        lambda: cache.tiers.attach_redis("host:1\0"),
        lambda: cache.tiers.attach_redis("host:1", password="a\0"),
        lambda: kvcache.set_module_path("/a\0"),
    ):
        with pytest.raises(kvcache.InvalidArgument, match="holds a NUL byte"):
            call()
    assert list(tmp_path.iterdir()) == [] and cache.seqs() == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux")
def test_a_path_need_not_be_utf8(cache, rng, tmp_path):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.kvc")
    cache.save([1], path)
    assert os.listdir(os.fsencode(tmp_path)) == [b"\xff\xfe.kvc"]
    cache.load([2], path)
    assert kvcache.describe_state_file(path)["sequences"]
    with pytest.raises(kvcache.InvalidArgument, match="no text that the file system has"):
        cache.save([1], f"{tmp_path}/\ud800")


def test_pages_move_as_bytes_into_reserved_tokens(cache, rng):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    tensors = qkv(rng, 2)
    with small_cache() as other:
        other.add(4)
        other.reserve(4, 6)
        for layer in range(2):
            pages = cache.seq_pages(1, 0).numpy().tolist()
            data = cache.pages_export(layer, pages)
            assert data.shape == (2, cache.plan.layer(layer).page_bytes) and data.dtype == np.uint8
            targets = np.asarray(other.seq_pages(4, 0).numpy(), np.int64)
            other.pages_import(layer, targets, data)
        np.testing.assert_array_equal(
            step(other, [4], [2], tensors), step(cache, [1], [2], tensors)
        )
        with pytest.raises(kvcache.OutOfRange, match=r"ids\[0\] = 99"):
            other.pages_export(0, [99])
        with pytest.raises(kvcache.ShapeError, match="in"):
            other.pages_import(0, [0], data)
        with pytest.raises(TypeError, match="pages: expected an integer, got str"):
            other.pages_export(0, ["a"])
        with pytest.raises(TypeError, match="pages: expected page ids"):
            other.pages_export(0, 7)
        with pytest.raises(kvcache.NotFound):
            other.reserve(99, 1)
