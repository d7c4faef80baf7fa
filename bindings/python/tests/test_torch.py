"""PyTorch tensors: by DLPack's C exchange table where PyTorch has one, else by capsules."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from support import DIM, HEADS, KV_HEADS, attention, qkv, small_cache, step

import kvcache

torch = pytest.importorskip("torch")


def tensors_of(rng, tokens, dtype):
    return tuple(torch.from_numpy(x).to(dtype) for x in qkv(rng, tokens))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_attention_of_torch_tensors(rng, dtype):
    q, k, v = tensors_of(rng, 6, dtype)
    with small_cache() as cache:
        cache.add(1)
        out = step(cache, [1], [6], (q, k, v))[1]
        assert out.dtype == dtype and out.shape == (6, HEADS, DIM)
        want = attention(*(x.float().numpy() for x in (q, k, v)))
        np.testing.assert_allclose(
            out.float().numpy(), want, rtol=2e-2 if dtype == torch.bfloat16 else 2e-3, atol=2e-2
        )
        back = torch.empty((6, KV_HEADS, DIM), dtype=dtype)
        with cache.forward([1], partial=True) as forward:
            forward.kv_append(0, k[:1], v[:1])
            wide = torch.empty((7, KV_HEADS, DIM), dtype=dtype)
            forward.gather(0, 1, wide)
            assert torch.equal(wide[:6], k) and torch.equal(wide[6:], k[:1])
            out, lse = forward.attn(0, q[:1], lse=True)
            assert lse.dtype == torch.float32 and lse.shape == (1, HEADS)
            assert forward.positions(torch.empty(1, dtype=torch.int32)).tolist() == [6]
        cache.debug_get_layer(1, 1, 0, 6, k=back)
        assert torch.equal(back, k)


def test_views_of_any_strides(rng):
    q, k, v = tensors_of(rng, 5, torch.float32)
    heads_first = tuple(x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v))
    assert not heads_first[0].is_contiguous()
    with small_cache() as cache:
        cache.add(1)
        cache.add(2)
        assert torch.equal(step(cache, [1], [5], (q, k, v))[0], step(cache, [2], [5], heads_first)[0])


def test_the_exchange_table_and_capsules_agree(rng):
    q, k, v = tensors_of(rng, 3, torch.float32)

    class CapsulesOnly:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **words):
            return self.tensor.__dlpack__(**words)

    with small_cache() as cache:
        cache.add(1)
        with cache.forward([1], [3], partial=True) as forward:
            plain = forward.attn(0, q, k, v)
            out = torch.empty_like(q)
            forward.attn(0, *(CapsulesOnly(x) for x in (q, k, v, out)))
            assert torch.equal(out, plain)


def test_parameters_and_tensors_that_require_grad_are_refused(rng):
    q, k, v = tensors_of(rng, 1, torch.float32)
    with small_cache() as cache:
        cache.add(1)
        with cache.forward([1], partial=True) as forward:
            with pytest.raises(BufferError, match=r"q: requires grad.*detach\(\)"):
                forward.attn(0, q.clone().requires_grad_(), k, v)
            parameter = torch.nn.Parameter(k)
            with pytest.raises(BufferError, match="requires grad"):
                forward.attn(0, q, parameter, v)
            forward.attn(0, q, parameter.detach(), v)


def test_what_torch_cannot_describe_is_refused(rng):
    q, k, v = tensors_of(rng, 1, torch.float32)
    with small_cache() as cache:
        cache.add(1)
        with cache.forward([1], partial=True) as forward:
            for wrong in (
                q.to_sparse(),
                torch.empty(q.shape, device="meta"),
                q.to(torch.complex64),
                q.to(torch.float64),
                q.bool(),
            ):
                with pytest.raises((kvcache.Error, BufferError, RuntimeError, TypeError, ValueError)):
                    forward.attn(0, wrong, k, v, out=q)
            forward.attn(0, q, k, v)


def test_exports_become_torch_tensors(rng):
    with small_cache() as cache:
        cache.add(1)
        _, k, _ = tensors = tensors_of(rng, 4, torch.float32)
        step(cache, [1], [4], tensors)
        pool = torch.from_dlpack(cache.export_pool(0, "k"))
        page = int(cache.seq_pages(1).numpy()[0])
    del cache
    gc.collect()
    assert torch.equal(pool[page].transpose(0, 1), k)  # the memory lives as long as somebody has it


def test_no_reference_to_a_tensor_is_kept(rng):
    import sys

    q, k, v = tensors_of(rng, 1, torch.float32)
    with small_cache() as cache:
        cache.add(1)
        with cache.forward([1], partial=True) as forward:
            out = forward.attn(0, q, k, v)
            before = [sys.getrefcount(x) for x in (q, k, v, out)]
            for _ in range(100):
                forward.attn(0, q, k, v, out)
            after = [sys.getrefcount(x) for x in (q, k, v, out)]
            assert after == before


def test_torch_integers_are_ids_positions_and_layers(cache, rng):
    for seq in torch.arange(3):
        cache.add(seq)
    tensors = tensors_of(rng, 4, torch.float32)
    with cache.forward(torch.tensor([1, 2]), torch.tensor([3, 1], dtype=torch.int32)) as forward:
        out = forward.attn(torch.tensor(0), *tensors)
        assert isinstance(out, torch.Tensor)
        forward.kv_append(torch.tensor(1, dtype=torch.uint8), *tensors[1:])
    cache.pop(torch.tensor(1), torch.tensor(2))
    assert (cache.length(torch.tensor(1)), cache.length(2)) == (1, 1)
    cache.forward([torch.tensor(2)], [torch.tensor(2)], partial=True).end()
    with pytest.raises(kvcache.ArgumentTypeError, match=r"seq: expected an integer, got torch\.Tensor"):
        cache.add(torch.tensor(1.5))
    with pytest.raises(kvcache.ArgumentTypeError, match="seqs: expected integers"):
        cache.forward(torch.tensor([1.0]), [1])
    with pytest.raises(kvcache.TensorError, match="requires grad"), cache.forward([1]) as forward:
        forward.attn(0, torch.zeros((1, HEADS, DIM), requires_grad=True))
    pool = cache.export_pool(0)
    assert torch.from_dlpack(pool).data_ptr() == pool.data_address
