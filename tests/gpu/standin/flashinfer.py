"""The part of FlashInfer's interface that flashinfer_side.py calls, in plain torch.

With it a rehearsal without FlashInfer shows that plans and outputs are what its documentation says.
Pools are [page, 2, head, slot, dim] (HND). Nothing here says how fast FlashInfer is.
"""

import types

import torch

__version__ = "stand-in"


def gathered(pool, pages, length):
    """K and V [keys, heads, dim] of a list of pages."""
    picked = pool[pages.to(torch.int64)].to(torch.float64)
    rows = picked.permute(1, 0, 3, 2, 4).reshape(2, -1, pool.shape[2], pool.shape[4])[:, :length]
    return rows[0], rows[1]


def attend(q, keys, values, scale, seen):
    """q [rows, heads, dim]; seen [rows, keys]. Also the logarithm of the sum, natural."""
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.to(torch.float64), keys) * scale
    scores = scores.masked_fill(~seen[None], float("-inf"))
    return (
        torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), values),
        torch.logsumexp(scores, -1).T,
    )


class Paged:
    """Batches of packed rows over page tables; rows are the last tokens of their sequences."""

    def __init__(self, *_workspace_and_layout, **_backend):
        pass

    def keep(
        self, qo_indptr, indptr, indices, last, page, scale, causal, mask=None, window_left=-1
    ):
        self.rows, self.pages, self.indices, self.last = (
            qo_indptr.tolist(),
            indptr.tolist(),
            indices,
            last.tolist(),
        )
        self.page, self.scale, self.causal, self.mask, self.window_left = (
            page,
            scale,
            causal,
            mask,
            window_left,
        )

    def parts(self, q, pool):
        """(output, logarithm of the sum) of every sequence."""
        used = 0
        for i, last in enumerate(self.last):
            pages = self.indices[self.pages[i] : self.pages[i + 1]]
            keys, values = gathered(pool, pages, (len(pages) - 1) * self.page + last)
            rows, length = self.rows[i + 1] - self.rows[i], len(keys)
            query, key = torch.arange(length - rows, length)[:, None], torch.arange(length)[None, :]
            seen = key <= query if self.causal else torch.ones(rows, length, dtype=torch.bool)
            if self.mask is not None:
                seen = self.mask[used : used + rows * length].view(rows, length)
                used += rows * length
            if self.window_left >= 0:
                seen = seen & (query - key <= self.window_left)
            yield attend(q[self.rows[i] : self.rows[i + 1]], keys, values, self.scale, seen)

    def run(self, q, pool, out=None):
        result = torch.cat([part for part, _ in self.parts(q, pool)]).to(q.dtype)
        return result if out is None else out.copy_(result)


class BatchDecodeWithPagedKVCacheWrapper(Paged):
    def plan(
        self,
        indptr,
        indices,
        last,
        _q_heads,
        _kv_heads,
        _dim,
        page,
        q_data_type,
        kv_data_type,
        sm_scale,
        window_left,
    ):
        self.keep(
            torch.arange(len(indptr)),
            indptr,
            indices,
            last,
            page,
            sm_scale,
            True,
            window_left=window_left,
        )


class BatchPrefillWithPagedKVCacheWrapper(Paged):
    def plan(
        self,
        qo_indptr,
        indptr,
        indices,
        last,
        _q_heads,
        _kv_heads,
        _dim,
        page,
        causal,
        custom_mask,
        q_data_type,
        kv_data_type,
        sm_scale,
    ):
        self.keep(qo_indptr, indptr, indices, last, page, sm_scale, causal, custom_mask)


class MultiLevelCascadeAttentionWrapper:
    def __init__(self, levels, *_workspace_and_layout):
        self.levels = [Paged() for _ in range(levels)]

    def plan(
        self,
        qo_indptrs,
        indptrs,
        indices,
        lasts,
        _q_heads,
        _kv_heads,
        _dim,
        page,
        causal,
        q_data_type,
        sm_scale,
    ):
        for level, *given in zip(self.levels, qo_indptrs, indptrs, indices, lasts):
            level.keep(*given, page, sm_scale, causal)

    def run(self, q, pool):
        parts = [[torch.cat(each) for each in zip(*level.parts(q, pool))] for level in self.levels]
        weights = torch.softmax(torch.stack([logs for _, logs in parts]), 0)
        return sum(weight[..., None] * out for weight, (out, _) in zip(weights, parts)).to(q.dtype)


class BatchMLAPagedAttentionWrapper:
    def __init__(self, _workspace, backend):
        pass

    def plan(
        self,
        qo_indptr,
        indptr,
        indices,
        lengths,
        _heads,
        _rank,
        _rotated,
        _page,
        causal,
        sm_scale,
        _q_type,
        _kv_type,
    ):
        self.given = (
            qo_indptr.tolist(),
            indptr.tolist(),
            indices.to(torch.int64),
            lengths.tolist(),
            causal,
            sm_scale,
        )

    def run(self, q_latent, q_rotated, latents, rotated):
        rows, pages, indices, lengths, causal, scale = self.given
        found = []
        for i, length in enumerate(lengths):
            table = indices[pages[i] : pages[i + 1]]
            latent, turned = (
                part[table].flatten(0, 1)[:length, None].to(torch.float64)
                for part in (latents, rotated)
            )
            count = rows[i + 1] - rows[i]
            seen = torch.arange(length)[None, :] <= torch.arange(length - count, length)[:, None]
            q = torch.cat([q_latent, q_rotated], -1)[rows[i] : rows[i + 1]]
            found.append(
                attend(
                    q,
                    torch.cat([latent, turned], -1),
                    latent,
                    scale,
                    seen if causal else torch.ones_like(seen),
                )[0]
            )
        return torch.cat(found).to(q_latent.dtype)


mla = types.SimpleNamespace(BatchMLAPagedAttentionWrapper=BatchMLAPagedAttentionWrapper)
