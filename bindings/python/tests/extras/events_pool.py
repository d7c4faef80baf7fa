"""A pool of blocks in plain Python that makes the events of a cache, with a ring like its own."""

import hashlib
import struct
from collections import deque
from types import SimpleNamespace

STORED, REMOVED, MOVED, CLEARED = "stored", "removed", "moved", "cleared"
DEVICE, HOST = "device", "host"
BLOCK = 4


def root(salt=b""):
    return hashlib.sha256(b"kvcache-prefix-1" + struct.pack("<Q", len(salt)) + salt).digest()


def key(parent, tokens):
    return hashlib.sha256(parent + struct.pack(f"<I{len(tokens)}i", 0, *tokens)).digest()


class Pool:
    """Blocks in `groups` groups. A block that is in no group any more is forgotten."""

    def __init__(self, groups=1, capacity=1 << 20):
        self.groups = groups
        self.parents = {}  # key -> (parent key, tokens), parents first
        self.places = {}  # (key, group) -> tier
        self.ring = deque(maxlen=capacity)
        self.number = 0
        self.events = self

    def _make(self, type, hash=bytes(32), group=0, tier=DEVICE, from_tier=DEVICE):
        parent, tokens = self.parents.get(hash, (bytes(32), None)) if type == STORED else (bytes(32), None)
        self.number += 1
        self.ring.append(SimpleNamespace(number=self.number, type=type, tier=tier, from_tier=from_tier, group=group,
                                         num_tokens=BLOCK, tokens=tokens, hash=hash, parent=parent))

    def store(self, tokens, salt=b"", groups=None):
        """Publish the blocks of a prompt, in every group unless told which; their keys."""
        above, keys = root(salt), []
        for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
            block = tokens[begin:begin + BLOCK]
            hash = key(above, block)
            self.parents.setdefault(hash, (above, block))
            for group in groups or range(self.groups):
                if (hash, group) not in self.places:
                    self.places[hash, group] = DEVICE
                    self._make(STORED, hash, group)
            above = hash
            keys.append(hash)
        return keys

    def move(self, hash, group, tier):
        before, self.places[hash, group] = self.places[hash, group], tier
        self._make(MOVED, hash, group, tier, before)

    def remove(self, hash, group):
        tier = self.places.pop((hash, group))
        if not any((hash, other) in self.places for other in range(-1, self.groups)):
            del self.parents[hash]
        self._make(REMOVED, hash, group, tier)

    def clear(self):
        self.parents.clear()
        self.places.clear()
        self._make(CLEARED)

    def held(self):
        return {(hash, group, tier) for (hash, group), tier in self.places.items()}

    def poll(self):
        return [self.ring.popleft() for _ in range(len(self.ring))]

    def snapshot(self):
        stored = []
        for hash, (parent, tokens) in self.parents.items():
            for group in range(-1, self.groups):
                if (hash, group) in self.places:
                    tier = self.places[hash, group]
                    stored.append(SimpleNamespace(number=0, type=STORED, tier=tier, from_tier=DEVICE, group=group,
                                                  num_tokens=BLOCK, tokens=tokens, hash=hash, parent=parent))
        return stored, self.number
