# SPDX-License-Identifier: Apache-2.0
"""Files of caches: what PagedCache.save writes and PagedCache.load reads.

A file is MAGIC, a fixed part (HEAD), a header in JSON, the recurrent states, and a state file of the library with K and V.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
import zlib
from dataclasses import asdict

import torch

import kvcache

from .layers import ImageLayer, KVLayer, StateLayer
from .specs import Storage
from .storage import STORAGE_TYPES, storage_type
from .store import Store

MAGIC = b"kvcache.hf rows\n"
VERSION = 1
HEAD = struct.Struct("<IIQQ")  # The version, the checksum of header and states, and the bytes of each.
_STATES = ("conv_states", "recurrent_states")
_FLAGS = ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state", "conv_kernel_size")
# Keys of a configuration that change neither K nor V.
_IRRELEVANT = frozenset((
    "_name_or_path", "architectures", "dtype", "id2label", "label2id", "output_attentions", "output_hidden_states", "problem_type",
    "return_dict", "torch_dtype", "transformers_version", "use_cache",
))


def _described(config) -> dict:
    values = json.loads(json.dumps(config.to_dict(), default=str, sort_keys=True))
    return {
        name: value for name, value in values.items()
        if name not in _IRRELEVANT and "attn_implementation" not in name and not name.endswith(("_token_id", "_token_ids"))
    }


def _word(stored_as) -> str | None:
    return next((word for word, one in STORAGE_TYPES.items() if one == stored_as), None)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def save_rows(cache, path, model_id: str | None) -> None:
    cache._commit()
    if not cache._rows:
        raise ValueError("save: the cache holds no tokens; save it behind its first forward")
    if any(isinstance(layer, StateLayer) and layer.record_past for layer in cache.layers):
        raise NotImplementedError("save: recurrent layers record their past (activate_past_recording)")
    if any(isinstance(layer, ImageLayer) and layer.is_initialized for layer in cache.layers):
        raise NotImplementedError("save: layers hold K and V of an image, which files of caches have no place for")
    states, parts = {}, []
    for index, layer in enumerate(cache.layers):
        if not isinstance(layer, StateLayer):
            continue
        one = {name: sorted(getattr(layer, name).items()) for name in _FLAGS}
        for name in _STATES:
            kept = [(at, tensor) for at, tensor in sorted(getattr(layer, name).items()) if tensor is not None]
            one[name] = [(at, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for at, tensor in kept]
            parts += [_bytes(tensor) for _, tensor in kept]
        states[str(index)] = one
    header = dict(
        config=_described(cache.config), mode=cache.mode, mla=cache.mla, dtype=str(cache._dtype).removeprefix("torch."),
        stored_as=_word(cache._stored_as), record_past=cache.record_past, page_size=cache._limits["page_size"],
        keep_tokens=cache._limits["keep_tokens"],
        rows=len(cache._rows), seen=[layer.seen if isinstance(layer, KVLayer) else None for layer in cache.layers],
        real=None if cache._real is None else ["".join("01"[one] for one in row) for row in cache._real.tolist()],
        storage=[asdict(one) for one in cache._storage], states=states,
    )
    text, tensors = json.dumps(header).encode(), b"".join(parts)
    head = HEAD.pack(VERSION, zlib.crc32(tensors, zlib.crc32(text)), len(text), len(tensors))
    rows = cache.store.cache.save(cache._rows, model_id=model_id)
    path = os.path.realpath(path)  # A link stays one.
    is_there = os.path.exists(path)
    if is_there and not os.path.isfile(path):
        raise ValueError(f"save: path = {path!r} is no regular file")
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=".kvcache-", delete=False) as file:
        try:
            for part in (MAGIC, head, text, tensors, rows):
                file.write(part)
            file.close()
            if is_there:
                shutil.copymode(path, file.name)
            os.replace(file.name, path)
        except BaseException:
            file.close()
            os.unlink(file.name)
            raise


def _read(path) -> tuple[dict, memoryview, memoryview]:
    """Header, states and rows of a file."""
    with open(path, "rb") as file:
        data = memoryview(file.read())
    begin = len(MAGIC) + HEAD.size
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise kvcache.InvalidArgument(f"path = {os.fspath(path)!r} is no file that PagedCache.save has written")
    if len(data) < begin:
        raise kvcache.Corrupt(f"path = {os.fspath(path)!r}: {len(data)} bytes, the file was cut off")
    version, checksum, text, tensors = HEAD.unpack(data[len(MAGIC):begin])
    if version != VERSION:
        raise kvcache.VersionError(f"path = {os.fspath(path)!r} has format {version}, this package reads {VERSION}")
    if len(data) - begin < text + tensors:
        raise kvcache.Corrupt(f"path = {os.fspath(path)!r}: {len(data)} bytes, the file was cut off")
    if zlib.crc32(data[begin:begin + text + tensors]) != checksum:
        raise kvcache.Corrupt(f"path = {os.fspath(path)!r}: the checksum of its header and states differs")
    header = json.loads(bytes(data[begin:begin + text]))
    begin += text
    return header, data[begin:begin + tensors], data[begin + tensors:]


def _check(header: dict, config, mode, dtype) -> None:
    saved, ours = header["config"], _described(config)
    for name in sorted(saved.keys() & ours.keys()):
        if saved[name] != ours[name]:
            raise ValueError(f"config: {name} = {ours[name]!r}, the file was saved for a model with {saved[name]!r}")
    if mode is not None and mode != header["mode"]:
        raise ValueError(f"mode: got {mode!r}, the file was saved with {header['mode']!r}")
    word = _word(storage_type(dtype))
    kept = header["stored_as"] or _word(storage_type(header["dtype"]))
    if dtype is not None and word != kept:
        raise ValueError(f"dtype: got {word!r}, the file holds {kept!r}")


def load_rows(make, path, config, *, mode, dtype, model_id, **limits):
    """The cache that `make(config, mode, ...)` makes, with the rows of a file."""
    header, tensors, rows = _read(path)
    if limits["page_size"] is None:
        limits["page_size"] = header["page_size"]
    cache = make(config, header["mode"], mla=header["mla"], dtype=header["stored_as"],
                 keep_tokens=header.get("keep_tokens", 0), **limits)
    _check(header, cache.config, mode, dtype)
    cache._dtype = getattr(torch, header["dtype"])
    cache._storage = [Storage(**one) for one in header["storage"]]
    cache._shapes = {index: one.without_mask() for index, one in enumerate(cache._storage) if one.kind != "none"}
    cache._first = None
    cache.record_past = header["record_past"]
    store = Store(cache._storage, cache._dtype, **cache._limits)
    try:
        ids = store.load(bytes(rows), header["rows"], model_id)
    except BaseException:
        store.close()
        raise
    cache.store, cache._rows = store, ids
    if header["real"] is not None:
        cache._real = torch.tensor([[one == "1" for one in row] for row in header["real"]], dtype=torch.bool)
    for layer, seen in zip(cache.layers, header["seen"]):
        if seen is not None:
            layer.seen = seen
    cache._used = {index for index in cache._attention if cache.layers[index].seen}
    _give_states(cache, header["states"], tensors)
    return cache


def _give_states(cache, states: dict, data: memoryview) -> None:
    begin = 0
    for index, one in states.items():
        layer = cache.layers[int(index)]
        for name in _FLAGS:
            setattr(layer, name, dict(map(tuple, one[name])))
        for name in _STATES:
            kept = {at: None for at in getattr(layer, name)}
            for at, dtype, shape in one[name]:
                empty = torch.empty(shape, dtype=getattr(torch, dtype))
                end = begin + empty.numel() * empty.element_size()
                kept[at] = torch.frombuffer(bytearray(data[begin:end]), dtype=empty.dtype).view(shape)
                layer.device, layer.dtype = empty.device, layer.dtype or empty.dtype
                begin = end
            setattr(layer, name, kept)
