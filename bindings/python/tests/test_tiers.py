"""Tiers: what another cache and another process find."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import kvcache

# Modules lie in the build folder of the library, and one folder of modules is all that a process has.
MODULES = os.environ.get("KVCACHE_EMULATED_CUDA", "")

SCRIPT = """
import pathlib, random, subprocess, sys, time
import numpy as np
import kvcache

kvcache.set_module_path(sys.argv[1])
folder, what = sys.argv[2], sys.argv[3]
if not kvcache.has_feature("tier." + what):
    sys.exit("no module")
layer = kvcache.Layer(num_q_heads=2, num_kv_heads=1, k_dim=8, dtype="float32")


def made():
    return kvcache.Cache(layers=[layer] * 2, page_size=4, num_pages=32, num_threads=1)


def attach(cache):
    if what == "file":
        cache.tiers.attach_file(folder, 64 << 20, model_id="m", get_ms=20000)
    else:
        cache.tiers.attach_redis(address, model_id="m", get_ms=20000, put_ms=20000, connect_ms=20000, ttl_s=600)


def serve():
    # A server whose port is taken ends, and the next one tries another. Its log says when it serves.
    log = pathlib.Path(folder, "log")
    end = time.monotonic() + 120
    while time.monotonic() < end:
        port = random.SystemRandom().randrange(10001, 32000)
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, "--logfile", "log"]
        )
        while server.poll() is None and time.monotonic() < end:
            if log.exists() and "Ready to accept" in log.read_text():
                return server, f"127.0.0.1:{port}"
            time.sleep(0.01)
        server.kill()
        server.wait()
    sys.exit("no server")


server = None
if what == "redis":
    server, address = serve()
try:
    tokens = np.arange(100, 112, dtype=np.int32)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((12, heads, 8), dtype=np.float32) for heads in (2, 1, 1))
    with made() as first:
        attach(first)
        try:
            attach(first)
            sys.exit("attached twice")
        except kvcache.AlreadyExists:
            pass
        first.add(1)
        with first.forward([1], [12], tokens=tokens) as forward:
            for i in range(2):
                forward.attn(i, q, k, v)
        first.tiers.flush()
        stats = first.tiers.stats(what)
        assert isinstance(stats, kvcache.TierStats) and stats.blocks_put == 3 and stats.bytes_put > 0, stats
    with made() as second:
        attach(second)
        assert second.prefix.match(tokens, all_tokens=True) == 12
        assert second.prefix.attach(7, tokens, all_tokens=True) == 12
        assert second.stats().tokens_appended == 0
        found_k, found_v = second.debug_get_kv(7)
        for i in range(2):
            np.testing.assert_array_equal(np.asarray(found_k)[i], k)
            np.testing.assert_array_equal(np.asarray(found_v)[i], v)
        assert second.tiers.stats(what).blocks_got == 3
        second.tiers.detach(what)
        try:
            second.tiers.stats(what)
            sys.exit("still there")
        except kvcache.NotFound:
            pass
    print("shared")
finally:
    if server is not None:
        server.kill()
        server.wait()
"""


@pytest.mark.parametrize("what", ["file", "redis"])
def test_a_cache_finds_what_another_one_published(what, tmp_path):
    if not MODULES:
        pytest.skip("the folder of the library's modules is not known")
    if what == "redis" and shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server here")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, MODULES, tmp_path, what],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stderr.strip() == "no module":
        pytest.skip("the library was built without this module")
    assert done.stdout == "shared\n", done.stderr


def test_arguments_are_checked(cache, tmp_path):
    for call, text in [
        (lambda: cache.tiers.attach_file(tmp_path, 0), "byte_limit = 0"),
        (lambda: cache.tiers.attach_file(tmp_path, 1 << 30, shard=-1), "shard = -1"),
        (lambda: cache.tiers.attach_redis(""), "address is empty"),
        (lambda: cache.tiers.detach("file"), "not attached"),
        (lambda: cache.tiers.stats("redis"), "not attached"),
        (lambda: cache.tiers.detach("disk"), "disk"),
    ]:
        with pytest.raises(kvcache.errors.Error, match=text):
            call()
    with pytest.raises(TypeError):
        cache.tiers.attach_file(3, 1 << 30)
    with pytest.raises(TypeError):
        cache.tiers.attach_file(tmp_path, "much")
    cache.tiers.flush(5)
    assert np.asarray(cache.available_pages) > 0
