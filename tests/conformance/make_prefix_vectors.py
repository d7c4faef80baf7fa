"""Writes vectors/prefix_hash.json: keys of prefix blocks, computed from the formula in kvcache.h by hashlib alone.

Usage: make_prefix_vectors.py [--check]: with it nothing is written, and a file that differs is an error.
"""

import hashlib
import json
import pathlib
import struct
import sys

OUT = pathlib.Path(__file__).with_name("vectors") / "prefix_hash.json"


def root_of(salt):
    return hashlib.sha256(b"kvcache-prefix-1" + struct.pack("<Q", len(salt)) + salt).digest()


def hashes_of(tokens, block, salt, keys):
    """Keys of the full blocks; `keys`: (type, offset, data) in any order."""
    parent, found = root_of(salt), []
    for begin in range(0, len(tokens) // block * block, block):
        inside = sorted((offset, kind, data) for kind, offset, data in keys if begin <= offset < begin + block)
        message = parent + struct.pack("<I", len(inside))
        for offset, kind, data in inside:
            message += struct.pack("<IIQ", kind, offset - begin, len(data)) + data
        message += struct.pack(f"<{block}i", *tokens[begin:begin + block])
        parent = hashlib.sha256(message).digest()
        found.append(parent)
    return found


def case(name, tokens, block, salt=b"", keys=()):
    return {"name": name, "block_tokens": block, "salt": salt.hex(), "tokens": tokens,
            "keys": [{"type": kind, "offset": offset, "data": data.hex()} for kind, offset, data in keys],
            "root": root_of(salt).hex(), "hashes": [key.hex() for key in hashes_of(tokens, block, salt, keys)]}


def cases():
    count = list(range(1, 41))
    image, lora = bytes(range(32)), b"lora-7"
    return [
        case("no tokens have no keys", [], 16),
        case("less than a block has no key", count[:15], 16),
        case("the last block counts when it is full only", count, 16),
        case("a block of one token", [5, 5, 5], 1),
        case("a block of 48 tokens", [3 * i for i in range(100)], 48),
        case("a block of 256 tokens", [7 * i for i in range(256)], 256),
        case("ids may be negative", [-1, -2147483648, 2147483647, 0], 2),
        case("a salt is a namespace", count, 16, b"tenant-a"),
        case("a salt may hold any bytes", count, 16, b"\x00\xff\x00"),
        case("a long salt", count[:16], 16, b"s" * 4096),
        case("an adapter changes the first block and all after it", count, 16, b"", [(1, 0, lora)]),
        case("keys belong to the block of their offset", count, 16, b"tenant-a",
             [(2, 15, image), (2, 16, image), (2, 31, image[::-1]), (2, 39, image)]),
        case("keys are ordered by offset, type, data", count, 16, b"",
             [(256, 20, b"b"), (2, 20, image), (256, 20, b"a"), (1, 0, lora), (300, 3, b""), (256, 20, b"ab")]),
        case("the same key twice counts twice", count[:16], 16, b"", [(256, 4, b"x"), (256, 4, b"x")]),
        case("keys behind the last full block change nothing", count, 16, b"", [(2, 33, image)]),
        case("a key's data may be long", count[:16], 16, b"", [(257, 2, b"d" * 3000)]),
        case("the largest type", count[:16], 16, b"", [(0xFFFFFFFF, 15, b"\x01")]),
    ]


def main():
    text = json.dumps({"about": "Keys of prefix blocks: kvc_prefix_hash of every case.", "cases": cases()})
    text = text.replace(', {"name"', ',\n{"name"').replace('[{"name"', '[\n{"name"') + "\n"
    if "--check" in sys.argv:
        sys.exit(None if OUT.read_text() == text else f"{OUT} is not what this program writes")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text)


if __name__ == "__main__":
    main()
