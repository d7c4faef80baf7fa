"""A router's side of the event stream, written from docs/events.md alone: schema, sockets, what is held."""

from typing import Any

import msgspec
import zmq

END_OF_REPLAY = 2**64 - 1


class MapEvent(msgspec.Struct, tag=True, omit_defaults=True):
    pass


class ArrayEvent(msgspec.Struct, tag=True, omit_defaults=True, array_like=True):
    pass


def schema(base):
    """The three events and the batch, with events as maps or as arrays."""
    hashes = int | bytes
    stored = msgspec.defstruct("BlockStored", [
        ("block_hashes", list[hashes]), ("parent_block_hash", hashes | None), ("token_ids", list[int]),
        ("block_size", int), ("lora_id", int | None), ("medium", str | None), ("lora_name", str | None),
        ("extra_keys", list[list[Any] | None] | None, None), ("group_idx", int | None, None),
        ("kv_cache_spec_kind", str | None, None), ("kv_cache_spec_sliding_window", int | None, None),
    ], bases=(base,), tag="BlockStored", omit_defaults=True)
    removed = msgspec.defstruct("BlockRemoved", [
        ("block_hashes", list[hashes]), ("medium", str | None), ("group_idx", int | None, None),
    ], bases=(base,), tag="BlockRemoved", omit_defaults=True)
    cleared = msgspec.defstruct("AllBlocksCleared", [], bases=(base,), tag="AllBlocksCleared")
    batch = msgspec.defstruct("EventBatch", [
        ("ts", float), ("events", list[stored | removed | cleared]), ("data_parallel_rank", int | None, None),
    ], array_like=True, omit_defaults=True)
    return stored, removed, cleared, batch


SCHEMAS = {"map": schema(MapEvent), "array": schema(ArrayEvent)}


class Consumer:
    """Applies batches in order. `held`: {(hash, medium, group)}; `tokens`: {hash: token ids} where told."""

    def __init__(self, encoding="map"):
        self.batch_type = SCHEMAS[encoding][3]
        self.held = set()
        self.tokens = {}
        self.parents = {}
        self.events = []
        self.next = 0
        self.lost = []  # numbers of the messages that could not be had

    def apply(self, sequence, payload):
        if sequence < self.next:
            return  # had it
        self.lost += range(self.next, sequence)
        self.next = sequence + 1
        batch = msgspec.msgpack.decode(payload, type=self.batch_type)
        for event in batch.events:
            getattr(self, type(event).__name__)(event)
        self.events += batch.events
        return batch

    def BlockStored(self, event):
        assert len(event.token_ids) in (0, len(event.block_hashes) * event.block_size)
        parent = event.parent_block_hash
        for i, key in enumerate(event.block_hashes):
            self.held.add((key, event.medium, event.group_idx))
            self.parents[key] = parent
            parent = key
            if event.token_ids:
                self.tokens[key] = event.token_ids[i * event.block_size:(i + 1) * event.block_size]

    def BlockRemoved(self, event):
        for key in event.block_hashes:
            self.held.discard((key, event.medium, event.group_idx))

    def AllBlocksCleared(self, event):
        self.held.clear()
        self.tokens.clear()
        self.parents.clear()


class Subscriber:
    """A SUB socket, and a DEALER socket for replays, over a Consumer."""

    def __init__(self, context, endpoint, replay_endpoint=None, topic="", encoding="map"):
        self.consumer = Consumer(encoding)
        self.sub = context.socket(zmq.SUB)
        self.sub.subscribe(topic)
        self.sub.connect(endpoint)
        self.replay = None
        if replay_endpoint:
            self.replay = context.socket(zmq.DEALER)
            self.replay.connect(replay_endpoint)
        self.topic = topic

    def receive(self, until, patience_ms=120_000):
        """Take messages until all up to the sequence number `until` (exclusive) are here. A gap is replayed first.

        So is what does not come by itself: sent before the subscription was, on a busy machine.
        """
        while self.consumer.next < until:
            if not self.sub.poll(1000 if self.replay else patience_ms):
                if not self.replay or not self.ask(self.consumer.next):
                    raise TimeoutError(f"message {self.consumer.next} of {until} did not come")
                continue
            topic, sequence, payload = self.sub.recv_multipart()
            assert topic.decode() == self.topic
            assert len(sequence) == 8
            sequence = int.from_bytes(sequence, "big")
            if sequence > self.consumer.next and self.replay:
                self.ask(self.consumer.next)
            self.consumer.apply(sequence, payload)
        return self.consumer

    def ask(self, start, patience_ms=120_000):
        """Replay from `start` on; the sequence numbers that came."""
        self.replay.send_multipart([b"", start.to_bytes(8, "big")])
        numbers = []
        while self.replay.poll(patience_ms):
            delimiter, sequence, payload = self.replay.recv_multipart()
            assert delimiter == b""
            sequence = int.from_bytes(sequence, "big")
            if sequence == END_OF_REPLAY:
                assert payload == b""
                return numbers
            numbers.append(sequence)
            self.consumer.apply(sequence, payload)
        raise TimeoutError(f"the replay from {start} did not end")

    def close(self):
        self.sub.close(linger=0)
        if self.replay:
            self.replay.close(linger=0)
