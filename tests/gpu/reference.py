"""What a step should give, in float64: attention for a few rows, over the pages of one sequence;
appended rows, copied pages and recurrent states as a whole. Page tables and lengths are those of the
open forward.
"""

import torch


def keys_and_values(ours, sequence, layer=0):
    """[keys, kv_heads, dim] each, in the order of the tokens; a window has dropped the first ones."""
    shape = ours.shape
    pages, first = ours.page_table(sequence)
    picked = ours.pools[layer][torch.tensor(pages, device=ours.device, dtype=torch.int64)].to(
        torch.float64
    )
    length = ours.lengths[sequence] - first
    if shape.kind == "latent":
        rows = picked.reshape(-1, 1, shape.dim)[:length]
        return rows, rows[..., : ours.out.shape[-1]]
    rows = picked.permute(1, 0, 3, 2, 4).reshape(2, -1, shape.kv_heads, shape.dim)[:, :length]
    return rows[0], rows[1]


def visible(ours, sequence, first=0):
    """bool [new_tokens, keys from `first` on]."""
    shape, length = ours.shape, ours.lengths[sequence]
    before = length - shape.new_tokens
    if ours.parents:
        seen = torch.zeros(shape.new_tokens, length, dtype=torch.bool)
        seen[:, :before] = True
        for node, parent in enumerate(ours.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
            seen[node, before + node] = True
        return seen.to(ours.device)
    query = torch.arange(before, length, device=ours.device)[:, None]
    key = torch.arange(length, device=ours.device)[None, :]
    seen = key <= query
    if shape.window:
        seen &= key > query - shape.window
    return seen[:, first:]


def attention(ours, sequence, rows, layer=0):
    """The rows `rows` (of the sequence's new tokens) of its output: [len(rows), q_heads, value_dim]."""
    shape = ours.shape
    keys, values = keys_and_values(ours, sequence, layer)
    q = ours.q[sequence * shape.new_tokens :][: shape.new_tokens][rows].to(torch.float64)
    group = shape.q_heads // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * ours.scale
    scores = scores.masked_fill(
        ~visible(ours, sequence, ours.page_table(sequence)[1])[rows][None], float("-inf")
    )
    if ours.sinks is not None:
        sink = ours.sinks.to(torch.float64)[:, None, None].expand(-1, scores.shape[1], 1)
        weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def relative_error(out, expected):
    """Of the norms; NaN where the output has one."""
    difference = out.to(torch.float64) - expected.to(torch.float64)
    return (difference.norm() / expected.to(torch.float64).norm()).item()


class Expected:
    """Of the last sequence (the shortest of Zipf lengths): 16 rows at most, the first and the last
    among them."""

    def __init__(self, ours, layer=0):
        shape = ours.shape
        self.sequence, self.tokens = shape.batch - 1, shape.new_tokens
        count = min(16, shape.new_tokens)
        rows = sorted({round(i * (shape.new_tokens - 1) / max(1, count - 1)) for i in range(count)})
        self.rows = torch.tensor(rows, device=ours.device)
        self.values = attention(ours, self.sequence, self.rows, layer)

    def error(self, out):
        return relative_error(
            out[self.sequence * self.tokens :][: self.tokens][self.rows], self.values
        )


def new_rows(ours, layer):
    """[batch * new_tokens, kv_heads, dim] each: K and V where the step's tokens lie."""
    shape, found = ours.shape, []
    for sequence, (pages, first) in enumerate(ours.tables()):
        tokens = (
            torch.arange(
                ours.lengths[sequence] - shape.new_tokens,
                ours.lengths[sequence],
                device=ours.device,
            )
            - first
        )
        table = torch.tensor(pages, device=ours.device, dtype=torch.int64)
        # [rows, 2, head, dim]
        found.append(ours.pools[layer][table[tokens // shape.page], :, :, tokens % shape.page])
    rows = torch.cat(found)
    return rows[:, 0], rows[:, 1]


def append_error(ours, layer):
    """V as it was given, K rotated: in halves, by angles of its position."""
    shape = ours.shape
    keys, values = new_rows(ours, layer)
    positions = torch.cat(
        [
            torch.arange(length - shape.new_tokens, length, device=ours.device)
            for length in ours.lengths
        ]
    )
    half = shape.dim // 2
    frequencies = 500000.0 ** (-torch.arange(half, device=ours.device, dtype=torch.float64) / half)
    angles = positions[:, None, None].to(torch.float64) * frequencies
    low, high = ours.k.to(torch.float64).split(half, -1)
    turned = torch.cat(
        [low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1
    )
    return max(relative_error(keys, turned), relative_error(values, ours.v))


def copy_error(ours):
    """Every page that was copied to holds what the other one does."""
    pool, (source, target) = ours.pools[0], ours.pairs.T.to(ours.device)
    return relative_error(pool[target], pool[source])


class Recurrence:
    """The state of one layer after the steps that have ended, and what the open one gives."""

    def __init__(self, ours):
        self.ours = ours
        shape = ours.shape
        self.state = torch.zeros(
            shape.batch,
            shape.q_heads,
            shape.dim,
            shape.dim,
            device=ours.device,
            dtype=torch.float64,
        )
        ours.at_end = self.advance

    def after(self):
        ours = self.ours
        k, v = ours.k.to(torch.float64), ours.v.to(torch.float64)
        state = self.state * ours.decay.to(torch.float64).exp()[:, :, None, None]
        change = ours.beta.to(torch.float64)[:, :, None] * (
            v - torch.einsum("bhkv,bhk->bhv", state, k)
        )
        return state + k[..., None] * change[:, :, None, :]

    def advance(self):
        self.state = self.after()

    def error(self, out):
        ours = self.ours
        return relative_error(
            out, ours.scale * torch.einsum("bhkv,bhk->bhv", self.after(), ours.q.to(torch.float64))
        )
