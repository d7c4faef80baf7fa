"""Past messages of an event publisher, and the socket that sends them again to subscribers that missed some.

A request is 8 bytes: the first sequence number that is wanted, big endian. The answer is [number, payload] for each message
from there on that is still kept, and last [2^64 - 1, empty]. This is vLLM's protocol.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import zmq

END_OF_REPLAY = (2**64 - 1).to_bytes(8, "big")
PATIENCE_MS = 1000  # how long a client that does not read its replay may keep the others waiting


class ReplayBuffer:
    """The last messages, shared between the publisher's thread and the replay server's."""

    def __init__(self, capacity: int) -> None:
        self._lock = threading.Lock()
        self._payloads: deque[bytes] = deque(maxlen=capacity)
        self._next = 0  # sequence number of the next message
        self._resync = 0  # of the last AllBlocksCleared that a snapshot follows
        self._resync_wanted = False

    @property
    def next(self) -> int:
        return self._next

    def add(self, payload: bytes) -> bytes:
        """Keep a message; its sequence number as it goes over the wire."""
        with self._lock:
            sequence = self._next
            self._payloads.append(payload)
            self._next += 1
        return sequence.to_bytes(8, "big")

    def resync_begins(self) -> None:
        """The next message starts from nothing."""
        with self._lock:
            self._resync = self._next
            self._resync_wanted = False

    def since(self, start: int) -> list[tuple[int, bytes]]:
        """[(sequence number, payload)] of the kept messages from `start` on.

        Who wants older ones gets all that are left. That is enough when a resync is among them; else one is due.
        """
        with self._lock:
            oldest = self._next - len(self._payloads)
            if start < oldest and self._resync < oldest:
                self._resync_wanted = True
            return [(oldest + i, payload) for i, payload in enumerate(self._payloads) if oldest + i >= start]

    def take_request(self) -> bool:
        """Whether a resync is due."""
        with self._lock:
            wanted, self._resync_wanted = self._resync_wanted, False
        return wanted


class ReplayServer:
    """A ROUTER socket and the thread that answers on it."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._socket = context.socket(zmq.ROUTER)
        self._stop, self._stopped = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        try:
            self._socket.linger = 0
            # Without these ROUTER drops what a slow client has no room for, the end marker too.
            self._socket.router_mandatory = True
            self._socket.sndtimeo = PATIENCE_MS
            self._socket.bind(endpoint)
            self.endpoint: str = self._socket.last_endpoint.decode()
            self._stop.bind(f"inproc://kvcache-replay-{id(self)}")
            self._stopped.connect(f"inproc://kvcache-replay-{id(self)}")
        except BaseException:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._serve, name="kvcache-replay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.send(b"")
        self._thread.join()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for socket in (self._socket, self._stop, self._stopped):
            socket.close(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stopped in ready:
                return
            self._answer(self._socket.recv_multipart())

    def _answer(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or frames[1] != b"" or len(frames[2]) != 8:
            return  # not a request
        client, start = frames[0], int.from_bytes(frames[2], "big")
        try:
            for sequence, payload in self._buffer.since(start):
                self._socket.send_multipart((client, b"", sequence.to_bytes(8, "big"), payload))
            self._socket.send_multipart((client, b"", END_OF_REPLAY, b""))
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            # The client reads no further, or is gone.
