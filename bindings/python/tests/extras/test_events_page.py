"""The snippets of docs/events.md, as they stand there."""

import pathlib
import re
import socket

import numpy as np
import pytest

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

from kvcache import Cache, Layer  # noqa: E402

PAGE = pathlib.Path(__file__).parents[4] / "docs" / "events.md"


def test_every_snippet_runs():
    publish, register, replay = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert "tcp://*:5557" in publish and "tcp://*:5558" in publish
    layer = Layer(num_q_heads=1, num_kv_heads=1, k_dim=8, dtype="float32")
    with Cache(layers=[layer], page_size=4, num_pages=16, event_capacity=100) as cache, zmq.Context() as context:
        names = dict(cache=cache)
        # Ports that others may have are not for a test.
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as also_free:
            ports = [one.getsockname()[1] for one in (free, also_free)]
        publish = publish.replace("*:5557", f"127.0.0.1:{ports[0]}").replace("*:5558", f"127.0.0.1:{ports[1]}")
        opening, update = publish.split("...\n")
        exec(compile(opening, str(PAGE), "exec"), names)
        try:
            exec(compile(register + replay, str(PAGE), "exec"), names)
            cache.prefix.attach(1, list(range(8)))
            with cache.forward([1], [8], tokens=list(range(8))) as forward:
                rows = np.zeros((8, 1, 8), np.float32)
                forward.kv_append(0, rows, rows)
            exec(compile(update, str(PAGE), "exec"), names)
            with context.socket(zmq.DEALER) as dealer:
                dealer.linger, dealer.rcvtimeo = 0, 20_000
                dealer.connect(f"tcp://127.0.0.1:{ports[1]}")
                (number, payload), *_ = names["replay"](dealer, 0)
            assert number == 0
            assert len(payload) > 32, "two blocks were stored"
        finally:
            names["publisher"].close()
