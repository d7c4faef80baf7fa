# SPDX-License-Identifier: Apache-2.0
"""Files of caches: what `save` writes and `load` reads.

A file is MAGIC, a fixed part (HEAD), a header in JSON, the recurrent states, and a state file of the library with K and V. That of
an encoder and a decoder is PAIR_MAGIC, HEAD, and two such files.
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
PAIR_MAGIC = b"kvcache.hf pair\n"
VERSION = 1
# The version, the checksum of header and states, and the bytes of each; of a pair the checksum of the bytes, and the bytes of each file.
HEAD = struct.Struct("<IIQQ")
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
    _write(path, _rows_file(cache, model_id))


def save_pair(own, encoder, path, model_id: str | None) -> None:
    own._commit()
    encoder._commit()
    files = [b"".join(_rows_file(own, model_id)), b"".join((_rows_file if hasattr(encoder, "mode") else _encoder_file)(encoder, model_id))]
    sizes = [len(file) for file in files]
    _write(path, [PAIR_MAGIC, HEAD.pack(VERSION, zlib.crc32(repr(sizes).encode()), *sizes), *files])


def _rows_file(cache, model_id: str | None) -> list[bytes]:
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
    return _file(cache, model_id, b"".join(parts), mode=cache.mode, mla=cache.mla, stored_as=_word(cache._stored_as),
                 keep_tokens=cache._limits["keep_tokens"], record_past=cache.record_past, states=states,
                 seen=[layer.seen if isinstance(layer, KVLayer) else None for layer in cache.layers])


def _encoder_file(cache, model_id: str | None) -> list[bytes]:
    """Of cross layers that are attended in pages."""
    if cache._given:
        raise ValueError("save: layers of the encoder wait for their first attention; save the cache behind its first forward")
    return _file(cache, model_id, b"", mode="encoder", stored_as=_word(cache._limits["stored_as"]), lengths=cache._lengths,
                 seen=[layer.seen for layer in cache.layers])


def _file(cache, model_id: str | None, tensors: bytes, **header) -> list[bytes]:
    if not cache._rows:
        raise ValueError("save: the cache holds no tokens; save it behind its first forward")
    header.update(
        config=_described(cache.config), dtype=str(cache._dtype).removeprefix("torch."), page_size=cache.store.cache.plan.info.page_size,
        rows=len(cache._rows), storage=[asdict(one) for one in cache._storage],
        real=None if cache._real is None else ["".join("01"[one] for one in row) for row in cache._real.tolist()],
    )
    text = json.dumps(header).encode()
    head = HEAD.pack(VERSION, zlib.crc32(tensors, zlib.crc32(text)), len(text), len(tensors))
    return [MAGIC, head, text, tensors, cache.store.cache.save(cache._rows, model_id=model_id)]


def _write(path, parts: list[bytes]) -> None:
    path = os.path.realpath(path)  # A link stays one.
    is_there = os.path.exists(path)
    if is_there and not os.path.isfile(path):
        raise ValueError(f"save: path = {path!r} is no regular file")
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=".kvcache-", delete=False) as file:
        try:
            for part in parts:
                file.write(part)
            file.close()
            if is_there:
                shutil.copymode(path, file.name)
            os.replace(file.name, path)
        except BaseException:
            file.close()
            os.unlink(file.name)
            raise


def _head(data: memoryview, path, magic: bytes, writer: str) -> tuple[int, int, int, int]:
    """What HEAD says, and where the parts behind it begin."""
    begin = len(magic) + HEAD.size
    if bytes(data[: len(magic)]) != magic:
        raise kvcache.InvalidArgument(f"path = {os.fspath(path)!r} is no file that {writer}.save has written")
    if len(data) < begin:
        raise kvcache.Corrupt(f"path = {os.fspath(path)!r}: {len(data)} bytes, the file was cut off")
    version, checksum, first, second = HEAD.unpack(data[len(magic):begin])
    if version != VERSION:
        raise kvcache.VersionError(f"path = {os.fspath(path)!r} has format {version}, this package reads {VERSION}")
    return checksum, first, second, begin


def read_file(path) -> memoryview:
    with open(path, "rb") as file:
        return memoryview(file.read())


def read_pair(path) -> tuple[memoryview, memoryview]:
    """The two files of an encoder and a decoder: the decoder's, the encoder's."""
    data = read_file(path)
    checksum, own, encoder, begin = _head(data, path, PAIR_MAGIC, "PagedEncoderDecoderCache")
    if zlib.crc32(repr([own, encoder]).encode()) != checksum:
        raise kvcache.Corrupt(f"path = {os.fspath(path)!r}: the checksum of its sizes differs")
    if len(data) - begin != own + encoder:
        raise kvcache.Corrupt(f"path = {os.fspath(path)!r}: {len(data)} bytes, expected {begin + own + encoder}")
    return data[begin:begin + own], data[begin + own:]


def _parts(data: memoryview, path) -> tuple[dict, memoryview, memoryview]:
    """Header, states and rows of a file."""
    checksum, text, tensors, begin = _head(data, path, MAGIC, "PagedCache")
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


def load_rows(make, data: memoryview, path, config, *, mode, dtype, model_id, **limits):
    """The cache that `make(config, mode, ...)` makes, with the rows of a file."""
    header, tensors, rows = _parts(data, path)
    _page_size(header, limits)
    cache = make(config, header["mode"], mla=header["mla"], dtype=header["stored_as"], keep_tokens=header.get("keep_tokens", 0), **limits)
    _check(header, cache.config, mode, dtype)
    storage = _load(cache, header, rows, model_id)
    cache._storage = storage
    cache._shapes = {index: one.without_mask() for index, one in enumerate(storage) if one.kind != "none"}
    cache._first = None
    cache.record_past = header["record_past"]
    cache._used = {index for index in cache._attention if cache.layers[index].seen}
    _give_states(cache, header["states"], tensors)
    return cache


def load_encoder(make, data: memoryview, path, config, *, dtype, model_id, **limits):
    """The same for cross layers that are attended in pages."""
    header, _, rows = _parts(data, path)
    _page_size(header, limits)
    cache = make(config, dtype=header["stored_as"], **limits)
    _check(header, cache.config, None, dtype)
    cache._storage = _load(cache, header, rows, model_id)
    cache._lengths = header["lengths"]
    return cache


def _page_size(header: dict, limits: dict) -> None:
    if limits["page_size"] is None:
        limits["page_size"] = header["page_size"]


def _load(cache, header: dict, rows: memoryview, model_id: str | None) -> list[Storage]:
    """Fills a new cache; returns the storage of its layers."""
    storage = [Storage(**one) for one in header["storage"]]
    cache._dtype = getattr(torch, header["dtype"])
    store = Store(storage, cache._dtype, **cache._limits)
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
    return storage


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
