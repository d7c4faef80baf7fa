"""torch's own attention on dense copies of the same keys: no pages, so a ceiling rather than a rival. Prefill, and decode of equal lengths."""

import torch
import torch.nn.functional as functional

import reference


def candidates(ours):
    """(name, function). The function gives a launch, a function for its output, and one that says
    whose keys a launch for a layer reads."""
    shape = ours.shape
    if (
        shape.kind not in ("decode", "prefill")
        or shape.zipf
        or shape.window
        or shape.sinks
        or shape.storage.startswith("float8")
    ):
        return
    yield "torch SDPA, dense", lambda: dense(ours)


def dense(ours):
    shape = ours.shape
    # One dense copy per layer would double the memory of the measurement; two keep the L2 cache cold as long as each is larger.
    copies = [dense_copy(ours, layer) for layer in range(min(2, ours.num_layers))]
    q = ours.q.view(shape.batch, shape.new_tokens, shape.q_heads, shape.dim).transpose(1, 2)
    # torch aligns its causal mask with the first key; only a prompt without a context means the same with both.
    whole = shape.new_tokens == shape.context
    if shape.new_tokens > 1 and not whole:
        raise NotImplementedError("a causal mask behind a context")
    outputs = {}

    def launch(layer):
        keys, values = copies[layer % len(copies)]
        outputs["out"] = functional.scaled_dot_product_attention(
            q, keys, values, is_causal=whole and shape.new_tokens > 1, enable_gqa=True
        )

    def out():
        return (
            outputs["out"]
            .transpose(1, 2)
            .reshape(shape.batch * shape.new_tokens, shape.q_heads, shape.dim)
        )

    return launch, out, lambda layer: layer % len(copies)


def dense_copy(ours, layer):
    """[batch, kv_heads, keys, dim] of K and V."""
    parts = [
        reference.keys_and_values(ours, sequence, layer) for sequence in range(ours.shape.batch)
    ]
    dtype = ours.q.dtype
    return tuple(
        torch.stack([part[which].to(dtype).transpose(0, 1) for part in parts]).contiguous()
        for which in (0, 1)
    )
