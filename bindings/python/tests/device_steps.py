"""A cache on a GPU from Python, run by test_device.py in a process of its own on the emulated device: streams, tensors, fences, a captured graph.

Arguments: the emulator's library, whose CUDA runtime this program uses by ctypes as a framework would, and the directory of the back end.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest
from support import HEADS, KV_HEADS, attention, qkv, small_cache

import kvcache

cuda = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
kvcache.set_module_path(sys.argv[2])
POINTER = ctypes.c_void_p
GPU = (2, 0)
DEVICE_TO_HOST, HOST_TO_DEVICE = 2, 1


def call(name, *args):
    assert getattr(cuda, name)(*args) == 0, name


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", POINTER),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", POINTER),
        ("deleter", POINTER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [POINTER, ctypes.c_char_p, POINTER]


class GpuArray:
    """float32 or int32 memory on the device that speaks DLPack, as a framework's tensor does."""

    def __init__(self, values):
        values = np.ascontiguousarray(values)
        self.shape, self.dtype = values.shape, values.dtype
        self._data = POINTER()
        call("cudaMalloc", ctypes.byref(self._data), ctypes.c_size_t(max(values.nbytes, 1)))
        call("cudaMemcpy", self._data, POINTER(values.ctypes.data), ctypes.c_size_t(values.nbytes), HOST_TO_DEVICE)
        self._shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        code = 2 if values.dtype.kind == "f" else 0
        self._managed = Managed(
            version=(1, 0),
            tensor=DLTensor(self._data, GPU, values.ndim, (code, 8 * values.itemsize, 1, 0), self._shape, None, 0),
        )

    def __dlpack__(self, **_):
        return new_capsule(ctypes.addressof(self._managed), b"dltensor_versioned", None)

    def __dlpack_device__(self):
        return GPU

    def numpy(self):
        values = np.empty(self.shape, self.dtype)
        call("cudaDeviceSynchronize")
        call("cudaMemcpy", POINTER(values.ctypes.data), self._data, ctypes.c_size_t(values.nbytes), DEVICE_TO_HOST)
        return values


class Stream:
    """A stream as NVIDIA's packages give it."""

    def __init__(self):
        self.handle = POINTER()
        call("cudaStreamCreateWithFlags", ctypes.byref(self.handle), 1)  # cudaStreamNonBlocking

    def __cuda_stream__(self):
        return 0, self.handle.value


def step(cache, seqs, lengths, tensors, **words):
    """Both layers of small_cache; the outputs of the GPU as arrays."""
    on_gpu = [GpuArray(x) for x in tensors]
    outs = [GpuArray(np.full(tensors[0].shape, np.nan, np.float32)) for _ in range(2)]
    with cache.forward(seqs, lengths, **words) as forward:
        for layer, out in enumerate(outs):
            forward.attn(layer, *on_gpu, out=out)
    return [out.numpy() for out in outs]


def on_cpu(cache, seqs, lengths, tensors):
    with cache.forward(seqs, lengths) as forward:
        return [forward.attn(layer, *tensors).copy() for layer in range(2)]


def close(a, b):
    assert all(np.abs(x - y).max() < 1e-5 for x, y in zip(a, b, strict=True)), (a, b)


rng = np.random.default_rng(7)
stream = Stream()
with (
    small_cache() as host,
    small_cache(device="cuda:0", host_byte_budget=1 << 20, max_seqs=4, max_seq_len=64, max_tokens_per_forward=8) as gpu,
):
    for cache in (host, gpu):
        cache.add(1), cache.add(2)

    # A prompt and a decode, on a stream of every kind that is understood.
    class TorchStream:
        cuda_stream = stream.handle.value

    class CuPyStream:
        ptr = stream.handle.value

    for words in ({}, {"stream": stream}, {"stream": stream.handle.value}, {"stream": TorchStream()}, {"stream": CuPyStream()}):
        tensors = qkv(rng, 4)
        close(step(gpu, [1, 2], [3, 1], tensors, **words), on_cpu(host, [1, 2], [3, 1], tensors))
    with pytest.raises(kvcache.InvalidArgument, match="stream"):
        gpu.forward([1], stream="fast")
    with pytest.raises(kvcache.DeviceMismatch), gpu.forward([1], [1]) as forward:
        forward.attn(0, *qkv(rng, 1))

    # Copies with fences.
    gpu.swap_out([1], stream=stream).wait_on_stream(stream)
    gpu.swap_in([1], stream=stream).wait(120.0)
    shape = gpu.length(1), KV_HEADS, 8
    k = GpuArray(np.zeros(shape, np.float32))
    gpu.debug_get_layer(1, 0, k=k)
    assert (k.numpy() == host.debug_get_layer(1, 0)[0]).all()

    # The pool as another package takes it.
    pool = gpu.export_pool(0)
    assert pool.__dlpack_device__() == GPU and "dltensor" in repr(pool.__dlpack__(stream=1, max_version=(1, 0)))
    with pytest.raises(kvcache.DeviceMismatch):
        pool.numpy()

    # One captured decode step serves the next ones.
    def decode_inputs():
        return qkv(rng, 2)

    inputs = [GpuArray(x) for x in decode_inputs()]
    outs = [GpuArray(np.zeros((2, HEADS, 8), np.float32)) for _ in range(2)]
    graph, executable = POINTER(), POINTER()
    for trial in range(3):
        fresh = decode_inputs()
        for array, values in zip(inputs, fresh, strict=True):
            size = ctypes.c_size_t(values.nbytes)
            call("cudaMemcpy", array._data, POINTER(values.ctypes.data), size, HOST_TO_DEVICE)
        if trial == 0:
            call("cudaStreamBeginCapture", stream.handle, 2)  # cudaStreamCaptureModeRelaxed
        with gpu.forward([1, 2], stream=stream, replay=trial > 0) as forward:
            if trial == 0:
                for layer, out in enumerate(outs):
                    forward.attn(layer, *inputs, out=out)
            else:
                call("cudaGraphLaunch", executable, stream.handle)
        if trial == 0:
            call("cudaStreamEndCapture", stream.handle, ctypes.byref(graph))
            call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
            call("cudaGraphLaunch", executable, stream.handle)
        close([out.numpy() for out in outs], on_cpu(host, [1, 2], [1, 1], fresh))
    gpu.check()

# Storage in float8 with a scale of the tensor for K and one for V: what is stored is value / scale, what attention
# reads is stored * scale. With a scale that is too small the values are cut off at 448.
def quantised(**scales):
    layer = kvcache.Layer(
        num_q_heads=HEADS, num_kv_heads=KV_HEADS, k_dim=8, dtype="float8_e4m3fn", quant="per_tensor", **scales
    )
    limits = dict(num_pages=4, max_seqs=1, max_seq_len=16, max_tokens_per_forward=8)
    return kvcache.Cache(layers=[layer], page_size=4, device="cuda:0", **limits)


count = 4
q = rng.standard_normal((count, HEADS, 8)).astype(np.float32)
small = [rng.integers(-15, 16, (count, KV_HEADS, 8)).astype(np.float32) for _ in range(2)]  # exact in float8
k, v = small[0] * 64, small[1] * 4096
errors = {}
for scales in ((64, 4096), (4096, 64), (64, 0), (0, 4096), (0, 0)):  # of K, of V; 0: 1
    with quantised(k_scale=scales[0], v_scale=scales[1]) as cache:
        cache.add(1)
        out = GpuArray(np.zeros((count, HEADS, 8), np.float32))
        with cache.forward([1], [count]) as forward:
            forward.attn(0, GpuArray(q), GpuArray(k), GpuArray(v), out=out, scale=0.01)
        errors[scales] = np.abs(out.numpy() - attention(q * np.sqrt(8) * 0.01, k, v)).max() / np.abs(v).max()
assert errors.pop((64, 4096)) < 1e-3 < 0.05 < min(errors.values()), errors

# Operators over a pool of one's own: rows written and attended to on the device.
q, k, v = qkv(rng, 3)
pools = [np.full((4, KV_HEADS, 4, 8), np.nan, np.float32) for _ in range(2)]
slots, lengths, table = np.array([8, 9, 10]), np.array([3], np.int32), np.array([[2]], np.int32)
results = []
for place, words in ((np.asarray, {}), (GpuArray, {"stream": stream})):
    pool = kvcache.ops.Pool(*(place(part.copy()) for part in pools))
    kvcache.ops.append(pool, place(slots), place(k), place(v), **words)
    out = place(np.zeros((3, HEADS, 8), np.float32))
    rows = place(np.array([0, 3], np.int32))
    where = kvcache.ops.Table(place(lengths), qo_indptr=rows, block_table=place(table))
    kvcache.ops.attention_paged(pool, where, place(q), out, **words)
    results.append(out if isinstance(out, np.ndarray) else out.numpy())
close(*([result] for result in results))

for device, error in (("tpu", kvcache.InvalidArgument), ("cuda:x", kvcache.InvalidArgument), ("cuda:99", kvcache.OutOfRange)):
    with pytest.raises(error):
        small_cache(device=device)
print("all steps agree")
