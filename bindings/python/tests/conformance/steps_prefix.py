"""Steps on the prefix cache. A token's id in the scenario is its id for the cache."""

from __future__ import annotations

from collections import Counter

import numpy as np

import kvcache

from .formulas import parse_ids

TYPES = {"ADAPTER": kvcache.ADAPTER, "MEDIA": kvcache.MEDIA, "USER": kvcache.USER}


def _parts(step):
    tokens = step["tokens"]
    tokens = parse_ids(tokens) if isinstance(tokens, str) else tokens
    keys = [
        kvcache.PrefixKey(TYPES[key.get("type", "USER")], key.get("offset", 0), key.get("data", "").encode())
        for key in step.get("keys", [])
    ]
    return np.array(tokens, np.int32), step.get("salt", "").encode(), keys


def _query(s, step):
    """The query of a step: tokens, and keywords."""
    tokens, salt, keys = _parts(step)
    words = {"salt": salt, "keys": keys}
    if "num_tokens" in step:
        words["num_tokens"] = step["num_tokens"]
    if "hashes" in step:
        hashes = kvcache.prefix_hash(tokens, s.plan.info.prefix_block, salt, keys)
        given = step["hashes"]
        hashes += [bytes(32)] * max(0, given - len(hashes)) if isinstance(given, int) else []
        words["hashes"] = hashes[:given] if isinstance(given, int) else hashes
        if given == "only":
            words.setdefault("num_tokens", len(tokens))
            tokens = None
    flags = step.get("flags", [])
    words |= {
        "all_tokens": "ALL_TOKENS" in flags,
        "whole_blocks": "WHOLE_BLOCKS" in flags,
        "priority": step.get("priority", 0),
    }
    return tokens, words


def _expect(step, found):
    if "hit" in step:
        assert found == step["hit"], f"tokens found: {found} instead of {step['hit']}"


def match(s, step):
    tokens, words = _query(s, step)
    _expect(step, s.cache.prefix.match(tokens, **words))


def attach(s, step):
    tokens, words = _query(s, step)
    _expect(step, s.cache.prefix.attach(step["seq"], tokens, **words))


def insert(s, step):
    tokens, words = _query(s, step)
    _expect(step, s.cache.prefix.insert(step["seq"], tokens, **words))


def pin(s, step):
    tokens, words = _query(s, step)
    _expect(step, s.cache.prefix.pin(tokens, **words))


def unpin(s, step):
    tokens, words = _query(s, step)
    _expect(step, s.cache.prefix.unpin(tokens, **words))


def prefix_hash(s, step):
    tokens, salt, keys = _parts(step)
    assert [key.hex() for key in kvcache.prefix_hash(tokens, step["block"], salt, keys)] == step["values"]


def evict(s, step):
    freed = s.cache.prefix.evict(step["pages"])
    assert freed == step.get("freed", freed), f"freed {freed} pages"


def events(s, step):
    counts = Counter(event.type.upper() for event in s.cache.events.poll())
    wanted = {name: n for name, n in step.get("counts", {}).items() if n}
    assert counts == wanted, f"events {dict(counts)} instead of {wanted}"


HANDLERS = {
    "match": match,
    "attach": attach,
    "insert": insert,
    "pin": pin,
    "unpin": unpin,
    "prefix_hash": prefix_hash,
    "evict": evict,
    "prefix_reset": lambda s, step: s.cache.prefix.reset(),
    "events": events,
    "quota": lambda s, step: s.cache.prefix.set_quota(
        step.get("salt", "").encode(), step["pages"] * s.plan.info.page_bytes
    ),
}
