"""The library without any binding: ctypes and NumPy. A prompt and one more token, compared with attention in NumPy.

    python3 ctypes_example.py [path of libkvcache.so]
"""

import ctypes as c
import sys

import numpy as np

from reference import attention, check

Q_HEADS, KV_HEADS, DIM, PROMPT = 8, 2, 64, 100
i32, i64, pointer, size = c.c_int32, c.c_int64, c.c_void_p, c.c_size_t


def struct(**fields):
    return type("struct", (c.Structure,), {"_fields_": list(fields.items())})


# The structs of kvcache.h that this program uses. They may end where we stop setting fields: the missing tail is zero.
DType = struct(code=c.c_uint8, bits=c.c_uint8, lanes=c.c_uint16)
DLTensor = struct(data=pointer, device=i32 * 2, ndim=i32, dtype=DType, shape=pointer, strides=pointer,
                  byte_offset=c.c_uint64)
Error = struct(struct_size=size, status=i32, sys_code=i32, detail=i64, message=c.c_char * 488)
Layer = struct(struct_size=size, kind=i32, num_q_heads=i32, num_kv_heads=i32, k_dim=i32, v_dim=i32,
               quant=i32, k_dtype=DType, v_dtype=DType)
Config = struct(struct_size=size, ext=pointer, flags=c.c_uint64, device=i32 * 2, page_size=i32,
                num_layers=i32, layers=pointer, layer_begin=i32, layer_end=i32, max_seqs=i32, forwards_in_flight=i32,
                max_tokens_per_forward=i64, max_seq_len=i64, num_pages=i64)
Step = struct(struct_size=size, ext=pointer, stream=pointer, num_seqs=size, seqs=pointer, append_lengths=pointer)

library = c.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libkvcache.so.0")
float32 = DType(2, 32, 1)


def sized(kind, **fields):
    return kind(struct_size=c.sizeof(kind), **fields)


def call(name, *arguments):
    error = sized(Error)
    if getattr(library, name)(*arguments, c.byref(error)) != 0:
        raise RuntimeError(f"{name}: {error.message.decode()}")


def tensor(array):
    shape = (i64 * array.ndim)(*array.shape)
    view = DLTensor(data=array.ctypes.data, device=(1, 0), ndim=array.ndim, dtype=float32,
                    shape=c.addressof(shape))
    view.keeps = array, shape  # the struct holds bare addresses
    return c.byref(view)


layer = sized(Layer, num_q_heads=Q_HEADS, num_kv_heads=KV_HEADS, k_dim=DIM, k_dtype=float32)
config = sized(Config, num_layers=1, layers=c.addressof(layer), num_pages=16)
plan, cache, forward, sequence = pointer(), pointer(), pointer(), i64(7)
call("kvc_plan_create", c.byref(config), c.byref(plan))
call("kvc_cache_create", plan, c.byref(cache))
call("kvc_seq_add", cache, sequence)

random = np.random.default_rng(1)
q, k, v = (random.standard_normal((PROMPT + 1, heads, DIM), np.float32) for heads in (Q_HEADS, KV_HEADS, KV_HEADS))
for begin, end in (0, PROMPT), (PROMPT, PROMPT + 1):
    length, out = i64(end - begin), np.empty((end - begin, Q_HEADS, DIM), np.float32)
    step = sized(Step, num_seqs=1, seqs=c.addressof(sequence), append_lengths=c.addressof(length))
    call("kvc_forward_begin", cache, c.byref(step), c.byref(forward))
    new_q, new_k, new_v = (tensor(x[begin:end]) for x in (q, k, v))
    call("kvc_attn", forward, i32(0), None, new_q, new_k, new_v, tensor(out), None)
    call("kvc_forward_end", forward)
    check(f"tokens {begin}..{end - 1}", out, attention(q[begin:end], k[:end], v[:end]))

library.kvc_cache_destroy(cache)
library.kvc_plan_destroy(plan)
