"""FlashInfer on the same pools and page tables: every backend of its that serves a shape; the fastest one counts. Its calls as of 0.6.

The pools of this library, [page, 2, head, slot, dim], are its HND layout.
"""

import torch

WORKSPACE_BYTES = 128 << 20


def module():
    try:
        import flashinfer

        return flashinfer
    except ImportError:
        return None


def version():
    found = module()
    return getattr(found, "__version__", "unknown") if found else None


def candidates(ours):
    """(name, function). The function gives a launch, a function for its output, and one that says
    whose keys a launch for a layer reads."""
    flashinfer, shape = module(), ours.shape
    if flashinfer is None or ours.device.type != "cuda" and version() != "stand-in":
        return
    if shape.kind in ("decode", "cascade") and not shape.sinks:
        for cores in (True, False):
            yield f"FlashInfer decode, tensor cores {'on' if cores else 'off'}", lambda cores=cores: decode(
                flashinfer, ours, cores
            )
    if shape.kind == "cascade":
        yield "FlashInfer cascade", lambda: cascade(flashinfer, ours)
    if shape.kind == "prefill":
        for backend in ("fa3", "fa2"):
            yield f"FlashInfer prefill, {backend}", lambda backend=backend: prefill(
                flashinfer, ours, backend
            )
    if shape.kind == "tree":
        yield "FlashInfer prefill with a mask, fa2", lambda: prefill(
            flashinfer, ours, "fa2", mask=True
        )
    if shape.kind == "latent":
        for backend in ("fa3", "fa2"):
            yield f"FlashInfer MLA, {backend}", lambda backend=backend: latent(
                flashinfer, ours, backend
            )


def own_keys(layer):
    return layer


def workspace(ours):
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=ours.device)


def compressed(ours, first_token=0):
    """indptr, indices, length of the last page on the host, of the pages from `first_token` on."""
    shape = ours.shape
    tables = [pages[first_token // shape.page :] for pages, _ in ours.tables()]
    indptr = [0]
    for table in tables:
        indptr.append(indptr[-1] + len(table))
    last = [(length - 1) % shape.page + 1 for length in shape.lengths]
    return (
        torch.tensor(indptr, dtype=torch.int32),
        torch.tensor(sum(tables, []), dtype=torch.int32, device=ours.device),
        torch.tensor(last, dtype=torch.int32),
    )


def rows_indptr(shape):
    return torch.arange(0, shape.batch * shape.new_tokens + 1, shape.new_tokens, dtype=torch.int32)


def decode(flashinfer, ours, tensor_cores):
    shape = ours.shape
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace(ours), "HND", use_tensor_cores=tensor_cores
    )
    wrapper.plan(
        *compressed(ours),
        shape.q_heads,
        shape.kv_heads,
        shape.dim,
        shape.page,
        q_data_type=ours.q.dtype,
        kv_data_type=ours.pools[0].dtype,
        sm_scale=ours.scale,
        window_left=shape.window - 1 if shape.window else -1,
    )
    return run(ours, wrapper)


def run(ours, wrapper):
    out = torch.empty_like(ours.out)

    def launch(layer):
        wrapper.run(ours.q, ours.pools[layer], out=out)

    return launch, lambda: out, own_keys


def prefill(flashinfer, ours, backend, mask=False):
    import reference

    shape = ours.shape
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        workspace(ours), "HND", backend=backend
    )
    custom = (
        torch.cat([reference.visible(ours, i).flatten() for i in range(shape.batch)])
        if mask
        else None
    )
    wrapper.plan(
        rows_indptr(shape),
        *compressed(ours),
        shape.q_heads,
        shape.kv_heads,
        shape.dim,
        shape.page,
        causal=not mask,
        custom_mask=custom,
        q_data_type=ours.q.dtype,
        kv_data_type=ours.pools[0].dtype,
        sm_scale=ours.scale,
    )
    return run(ours, wrapper)


def cascade(flashinfer, ours):
    shape = ours.shape
    shared = ours.page_table(0)[0][: shape.shared // shape.page]
    indptr, indices, last = compressed(ours, shape.shared)
    levels = [
        torch.tensor([0, shape.batch], dtype=torch.int32),
        torch.arange(shape.batch + 1, dtype=torch.int32),
    ]
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace(ours), "HND")
    wrapper.plan(
        [level.to(ours.device) for level in levels],
        [
            torch.tensor([0, len(shared)], dtype=torch.int32, device=ours.device),
            indptr.to(ours.device),
        ],
        [torch.tensor(shared, dtype=torch.int32, device=ours.device), indices],
        [torch.tensor([shape.page], dtype=torch.int32, device=ours.device), last.to(ours.device)],
        shape.q_heads,
        shape.kv_heads,
        shape.dim,
        shape.page,
        causal=False,
        q_data_type=ours.q.dtype,
        sm_scale=ours.scale,
    )
    outputs = {}

    def launch(layer):
        outputs["out"] = wrapper.run(ours.q, ours.pools[layer])

    return launch, lambda: outputs["out"], own_keys


def latent(flashinfer, ours, backend):
    shape = ours.shape
    rank = ours.out.shape[-1]
    indptr, indices, _ = compressed(ours)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace(ours), backend=backend)
    wrapper.plan(
        rows_indptr(shape).to(ours.device),
        indptr.to(ours.device),
        indices,
        torch.tensor(shape.lengths, dtype=torch.int32, device=ours.device),
        shape.q_heads,
        rank,
        shape.dim - rank,
        shape.page,
        shape.new_tokens > 1,
        ours.scale,
        ours.q.dtype,
        ours.pools[0].dtype,
    )
    # Its latents and its rotated parts are tensors of their own: views of the same rows.
    parts = [(pool[..., :rank], pool[..., rank:]) for pool in ours.pools]
    q_latent, q_rotated = ours.q[..., :rank].contiguous(), ours.q[..., rank:].contiguous()
    outputs = {}

    def launch(layer):
        outputs["out"] = wrapper.run(q_latent, q_rotated, *parts[layer])

    return launch, lambda: outputs["out"], own_keys
