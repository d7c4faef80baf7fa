"""What an output should be, in float64, for a few rows: the pages of one sequence gathered from the pool by its page table."""

import torch


def keys_and_values(ours, sequence, layer=0):
    """[keys, kv_heads, dim] each, in the order of the tokens; a window has dropped the first ones."""
    shape = ours.shape
    pages, first = ours.page_table(sequence)
    picked = ours.pools[layer][torch.tensor(pages, device=ours.device, dtype=torch.int64)].to(torch.float64)
    length = shape.lengths[sequence] - first
    if shape.kind == "latent":
        rows = picked.reshape(-1, 1, shape.dim)[:length]
        return rows, rows[..., :ours.out.shape[-1]]
    rows = picked.permute(1, 0, 3, 2, 4).reshape(2, -1, shape.kv_heads, shape.dim)[:, :length]
    return rows[0], rows[1]


def visible(ours, sequence, first=0):
    """bool [new_tokens, keys from `first` on]."""
    shape, length = ours.shape, ours.shape.lengths[sequence]
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
    q = ours.q[sequence * shape.new_tokens:][:shape.new_tokens][rows].to(torch.float64)
    group = shape.q_heads // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * ours.scale
    scores = scores.masked_fill(~visible(ours, sequence, ours.page_table(sequence)[1])[rows][None], float("-inf"))
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


def check(ours, out, layer=0):
    """The error over the last sequence (the shortest of Zipf lengths), at most 16 of its rows, which include the first and the last."""
    shape = ours.shape
    sequence = shape.batch - 1
    count = min(16, shape.new_tokens)
    rows = sorted({round(i * (shape.new_tokens - 1) / max(1, count - 1)) for i in range(count)})
    rows = torch.tensor(rows, device=ours.device)
    found = out[sequence * shape.new_tokens:][:shape.new_tokens][rows]
    return relative_error(found, attention(ours, sequence, rows, layer))
