"""Publishes a cache's events to routers in vLLM's wire format: msgpack over ZeroMQ. Needs pyzmq and msgspec.

    publisher = EventPublisher(cache, "tcp://*:5557", replay_endpoint="tcp://*:5558", topic="kv-events")
    ...
    publisher.poll()   # after every step, on the thread that uses the cache

docs/events.md describes the messages field by field.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

try:
    import msgspec
    import zmq
except ImportError as error:
    raise ImportError(f"EventPublisher needs pyzmq and msgspec ({error}): pip install pyzmq msgspec") from error

from .errors import InvalidArgument
from .events_publisher_replay import ReplayBuffer, ReplayServer
from .events_publisher_wire import ENCODINGS, HASHES, Group, Message, Namespace, Place, Translator

if TYPE_CHECKING:
    from .cache import Cache
    from .info import GroupInfo
    from .plan import Plan
    from .prefix import Event

__all__ = ["EventPublisher", "Group", "groups_of"]


class EventPublisher:
    """One PUB socket, and, with `replay_endpoint`, a ROUTER socket served by a thread of its own.

    cache          a Cache planned with event_capacity; None: events come through publish()
    endpoint       address of the PUB socket, bound; with connect=True: connected to
    topic          first frame of every message
    buffer_steps   messages kept for replay
    hwm            messages that wait for a slow subscriber before ZeroMQ drops the next ones
    encoding       "map": events as vLLM 0.24 and newer write them; "array": as older ones did
    hashes         "int": the last 64 bits of a block's key; "bytes": all 32 bytes
    media          names of the device's and of the host's memory
    groups         a Group for each group of layers; None: asked of the cache, when there is one
    batch_events   events of the cache in one message at most

    One thread uses it at a time, and poll() counts as a use of the cache.
    """

    def __init__(self, cache: Cache | None, endpoint: str, *, replay_endpoint: str | None = None, topic: str = "",
                 data_parallel_rank: int | None = 0, connect: bool = False, buffer_steps: int = 10_000,
                 hwm: int = 100_000, encoding: str = "map", hashes: str = "int",
                 media: tuple[str, str] = ("GPU", "CPU"), groups: Sequence[Group] | None = None,
                 batch_events: int = 4096, context: zmq.Context[Any] | None = None) -> None:
        _one_of("encoding", encoding, ENCODINGS)
        _one_of("hashes", hashes, HASHES)
        for name, value in (("buffer_steps", buffer_steps), ("hwm", hwm), ("batch_events", batch_events)):
            if value < 1:
                raise InvalidArgument(f"{name} is {value}, but has to be at least 1")
        if groups is None and cache is not None:
            groups = groups_of(cache.plan)
        self._cache = cache
        self._topic = topic.encode()
        self._rank = data_parallel_rank
        self._encode_event = ENCODINGS[encoding]
        self._encode = msgspec.msgpack.Encoder().encode
        self._translator = Translator(hashes=hashes, groups=groups, media=media)
        self._batch_events = batch_events
        # Number that the next event should have; None: whatever comes.
        self._next_event: int | None = None
        # Consumers hold something else than the cache: at first what a publisher before us has told them.
        self._out_of_step = True
        self._buffer = ReplayBuffer(buffer_steps)
        self._replay: ReplayServer | None = None
        self.resyncs = 0  # times that everything was cleared and sent again

        self._socket = (context or zmq.Context.instance()).socket(zmq.PUB)
        try:
            self._socket.linger = 0
            self._socket.set_hwm(hwm)
            (self._socket.connect if connect else self._socket.bind)(endpoint)
            self.endpoint: str = self._socket.last_endpoint.decode()
            if replay_endpoint is not None:
                self._replay = ReplayServer(self._socket.context, replay_endpoint, self._buffer)
        except BaseException:
            self._socket.close()
            raise

    @property
    def replay_endpoint(self) -> str | None:
        """Where replays are served, a wildcard port resolved; None: nowhere."""
        return None if self._replay is None else self._replay.endpoint

    @property
    def sequence(self) -> int:
        """Sequence number of the next message; also the number of messages so far."""
        return self._buffer.next

    def add_namespace(self, salt: bytes, *, cache_salt: str | None = None, lora_name: str | None = None,
                      lora_id: int | None = None) -> None:
        """Say what routers know the namespace `salt` by. To be called before its first block is published."""
        self._translator.add_namespace(bytes(salt), Namespace(cache_salt, lora_name, lora_id))

    def held(self) -> set[Place]:
        """{(hash, group, tier)} that a consumer of all messages so far holds."""
        return self._translator.held()

    def poll(self) -> int:
        """Publish what happened in the cache since the last call. Returns how many events were told one by one.

        When events were lost, or a subscriber asked for more than the replay buffer holds: everything anew.
        """
        if self._cache is None:
            raise InvalidArgument("poll() needs a cache, but this publisher was made with cache None: use publish(events)")
        if self._out_of_step or self._buffer.take_request():
            self.resync()
        return self._publish_all(self._cache.events.poll())

    def publish(self, events: Iterable[Event]) -> int:
        """Publish events that the caller has polled, in their order. Returns how many.

        A gap in their numbers is a loss. Without a cache to ask, consumers are told to forget what came before it.
        """
        if self._out_of_step:
            self.resync()
        return self._publish_all(events)

    def resync(self) -> None:
        """Publish AllBlocksCleared and then all that the cache holds: consumers equal it, whatever they missed."""
        stored, last = ([], None) if self._cache is None else self._cache.events.snapshot()
        self._out_of_step = True
        self._translator.clear()
        self._buffer.resync_begins()
        head: list[Message] = [("AllBlocksCleared", {})]
        for begin in range(0, max(len(stored), 1), self._batch_events):
            self._send(head + self._translator.messages(stored[begin:begin + self._batch_events]))
            head = []
        self._next_event = None if last is None else last + 1
        self._out_of_step = False
        self.resyncs += 1

    def close(self) -> None:
        """Close the sockets. Messages that are on their way may be lost, as with any PUB socket."""
        if self._socket.closed:
            return
        if self._replay is not None:
            self._replay.close()
        self._socket.close()

    def __enter__(self) -> EventPublisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _publish_all(self, events: Iterable[Event]) -> int:
        events = iter(events)
        count = 0
        while batch := list(itertools.islice(events, self._batch_events)):
            count += self._publish_in_order(batch)
        return count

    def _publish_in_order(self, events: list[Event]) -> int:
        """Publish events of ascending numbers. Those that a snapshot has told already are left out."""
        count = 0
        for run in _consecutive(events):
            if self._next_event is not None and run[0].number > self._next_event:
                self.resync()
            fresh = [event for event in run if self._next_event is None or event.number >= self._next_event]
            if not fresh:
                continue
            self._out_of_step = True  # until the message is out: after an error in between consumers lack it
            self._send(self._translator.messages(fresh))
            self._next_event = fresh[-1].number + 1
            self._out_of_step = False
            count += len(fresh)
        return count

    def _send(self, messages: list[Message]) -> None:
        events = [self._encode_event(tag, values) for tag, values in messages]
        payload = self._encode([time.time(), events, self._rank])
        sequence = self._buffer.add(payload)
        self._socket.send_multipart((self._topic, sequence, payload))


def groups_of(plan: Plan) -> list[Group]:
    """What routers are told of a plan's groups of layers."""
    return [_group(plan, plan.group(index)) for index in range(plan.info.num_groups)]


def _group(plan: Plan, info: GroupInfo) -> Group:
    if info.first_layer < 0:  # in another pipeline stage: only its window is known here
        return Group("sliding_window" if info.window else None, info.window or None)
    is_latent = plan.layer(info.first_layer).kind == "mla"
    if info.window:
        return Group("sliding_window_mla" if is_latent else "sliding_window", info.window)
    if info.chunk:
        return Group("chunked_local_attention")
    return Group("mla_attention" if is_latent else "full_attention")


def _consecutive(events: list[Event]) -> Iterator[list[Event]]:
    """Cut a list of events where their numbers leave a gap."""
    begin = 0
    for i in range(1, len(events) + 1):
        if i == len(events) or events[i].number != events[i - 1].number + 1:
            yield events[begin:i]
            begin = i


def _one_of(name: str, value: object, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise InvalidArgument(f"{name} is {value!r}, but has to be one of {', '.join(map(repr, allowed))}")
