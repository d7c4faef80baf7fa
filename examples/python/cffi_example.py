"""The library without any binding: cffi and NumPy. A prompt, then one more token, compared with attention in NumPy.

    python3 cffi_example.py [path of libkvcache.so] [path of kvcache_cdef.h]

kvcache_cdef.h is kvcache.h without comments and macros: bindings/python/cdef/make_cdef.py writes it.
"""

import sys
import weakref

import cffi
import numpy as np

from reference import attention, check

Q_HEADS, KV_HEADS, DIM, PROMPT = 8, 2, 64, 100

ffi = cffi.FFI()
with open(sys.argv[2] if len(sys.argv) > 2 else "kvcache_cdef.h") as declarations:
    ffi.cdef(declarations.read())
library = ffi.dlopen(sys.argv[1] if len(sys.argv) > 1 else "libkvcache.so.0")
kept = weakref.WeakKeyDictionary()  # structs hold bare addresses; this keeps what they point at


def sized(kind, **fields):
    return ffi.new(f"{kind} *", {"struct_size": ffi.sizeof(kind), **fields})


def call(name, *arguments):
    error = sized("kvc_error")
    if getattr(library, name)(*arguments, error) != library.KVC_OK:
        raise RuntimeError(f"{name}: {ffi.string(error.message).decode()}")


def tensor(array):
    shape, data = ffi.new("int64_t[]", array.shape), ffi.from_buffer(array)
    view = ffi.new("DLTensor *", {"data": data, "device": (library.kDLCPU, 0), "ndim": array.ndim,
                                  "dtype": float32, "shape": shape})
    kept[view] = shape, data
    return view


float32 = (library.kDLFloat, 32, 1)
layer = sized("kvc_layer", num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, k_dim=DIM, k_dtype=float32)
plan, cache, forward = ffi.new("kvc_plan **"), ffi.new("kvc_cache **"), ffi.new("kvc_forward **")
sequence = ffi.new("kvc_seq *", 7)
call("kvc_plan_create", sized("kvc_config", num_layers=1, layers=layer, num_pages=16), plan)
call("kvc_cache_create", plan[0], cache)
call("kvc_seq_add", cache[0], sequence[0])

random = np.random.default_rng(1)
q, k, v = (random.standard_normal((PROMPT + 1, heads, DIM), np.float32) for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
for begin, end in (0, PROMPT), (PROMPT, PROMPT + 1):
    length, out = ffi.new("int64_t *", end - begin), np.empty((end - begin, Q_HEADS, DIM), np.float32)
    step = sized("kvc_forward_desc", num_seqs=1, seqs=sequence, append_lengths=length)
    call("kvc_forward_begin", cache[0], step, forward)
    new_q, new_k, new_v = (tensor(x[begin:end]) for x in (q, k, v))
    call("kvc_attn", forward[0], 0, ffi.NULL, new_q, new_k, new_v, tensor(out), ffi.NULL)
    call("kvc_forward_end", forward[0])
    check(f"tokens {begin}..{end - 1}", out, attention(q[begin:end], k[:end], v[:end]))

library.kvc_cache_destroy(cache[0])
library.kvc_plan_destroy(plan[0])
