"""One shape on this library: a cache over pools of random data that torch owns, every page at a
random place. The operation of a forward can be called again and again, one by one or captured. The
other sides of the comparison read the same pools and page tables.
"""

import random

import torch

import capi
from capi import Struct, Tensor, constant, int32s, int64s

TORCH_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float8_e4m3fn": getattr(torch, "float8_e4m3fn", torch.uint8),
}
ROTATED = 64  # of a latent: what is not read as V
MOST_REPLAYS = 64  # steps of one shape that sequences may grow by
FILL_AT_ONCE = (
    64  # sequences of a forward that only takes pages: scratch is as large as forwards may be
)
SINKS = (
    "sink_logits" if "sink_logits" in capi.LAYOUT["structs"]["kvc_attn_opt"]["fields"] else "sinks"
)


def random_tensor(shape, name, device, generator):
    values = torch.randn(shape, device=device, generator=generator, dtype=torch.float32)
    return values.to(TORCH_DTYPES[name])


def activation(name):
    """Type of q, k, v and out: that of the storage, or bfloat16 where storage is narrower."""
    return torch.float32 if name == "float32" else torch.bfloat16


class Ours:
    """`num_layers` copies of the shape, for a rotation that leaves nothing in the L2 cache."""

    def __init__(self, library, shape, machine, num_layers, stream=0, seed=1):
        self.library, self.shape, self.machine, self.num_layers, self.stream = (
            library,
            shape,
            machine,
            num_layers,
            stream,
        )
        self.device = machine.torch_device
        self.random = random.Random(seed)
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.plan = self.cache = self.forward = self.known_tables = None
        self.grown = 0  # tokens that each sequence has got by steps that ended
        self.at_end = (
            lambda: None
        )  # called for each of them, while inputs are still what it was given

    # ---- Set up

    def open(self):
        shape = self.shape
        self.num_pages = self.pages_needed()
        self.pools = (
            [] if shape.kind == "linear" else [self.make_pool() for _ in range(self.num_layers)]
        )
        config = Struct(
            "kvc_config",
            device=self.dl_device(),
            page_size=shape.page,
            num_layers=self.num_layers,
            layers=[self.layer() for _ in range(self.num_layers)],
            num_pages=self.num_pages,
            max_seqs=max(FILL_AT_ONCE, shape.batch),
            max_tokens_per_forward=max(FILL_AT_ONCE * shape.page, shape.batch * shape.new_tokens),
            max_seq_len=max(shape.lengths) + MOST_REPLAYS,
        )
        if self.pools:
            tensors = [Tensor(pool, self.machine.dl_device) for pool in self.pools]
            config["storage"] = constant("KVC_STORAGE_BORROWED")
            config["pool_tensors"] = int64s(tensor.pointer() for tensor in tensors)
            config["num_pool_tensors"] = len(tensors)
            self.kept = tensors
        self.config = config
        self.plan = self.library.create("kvc_plan_create", config)
        self.cache = self.library.create("kvc_cache_create", self.plan)
        if shape.kind == "copy":
            self.open_copy()
            return
        self.fill()
        self.make_inputs()

    def pages_needed(self):
        shape = self.shape
        if shape.kind == "copy":
            return 2 * shape.batch
        if shape.kind == "linear":
            return shape.batch * (1 + shape.batch)
        more = 0 if self.can_pop else MOST_REPLAYS
        pages = sum(
            -(-(length + more) // shape.page) for length in shape.lengths
        ) - shape.shared // shape.page * (shape.batch - 1)
        return pages + 2 * shape.batch + 8 + -(-MOST_REPLAYS // shape.page)

    def make_pool(self):
        shape = self.shape
        if shape.kind == "latent":
            size = (self.num_pages, shape.page, shape.dim)
        else:
            size = (self.num_pages, 2, shape.kv_heads, shape.page, shape.dim)
        return self.machine.own(random_tensor(size, shape.storage, self.device, self.generator))

    def layer(self):
        shape = self.shape
        storage = capi.dtype(shape.storage)
        if shape.kind == "latent":
            return Struct(
                "kvc_layer",
                kind=constant("KVC_LAYER_MLA"),
                num_q_heads=shape.q_heads,
                latent_rank=shape.dim - ROTATED,
                latent_rope_dim=ROTATED,
                k_dtype=storage,
            )
        if shape.kind == "linear":
            state = Struct(
                "kvc_state_spec",
                ndim=3,
                dtype=storage,
                shape=int64s([shape.q_heads, shape.dim, shape.dim]),
            )
            return Struct(
                "kvc_layer", kind=constant("KVC_LAYER_STATE"), num_states=1, states=[state]
            )
        layer = Struct(
            "kvc_layer",
            num_q_heads=shape.q_heads,
            num_kv_heads=shape.kv_heads,
            k_dim=shape.dim,
            k_dtype=storage,
            window=shape.window,
        )
        if shape.storage.startswith("float8"):
            layer["quant"] = constant("KVC_QUANT_PER_TENSOR")
        if shape.kind == "append":
            layer["rope"] = Struct("kvc_rope", mode=constant("KVC_ROPE_ON_APPEND"), theta=500000.0)
        return layer

    def dl_device(self):
        return capi.device(*self.machine.dl_device)

    def grow(self, sequences, lengths, commit=True, **fields):
        desc = Struct(
            "kvc_forward_desc",
            stream=self.stream,
            num_seqs=len(sequences),
            seqs=int64s(sequences),
            append_lengths=int64s(lengths),
            **fields
        )
        forward = self.library.create("kvc_forward_begin", self.cache, desc)
        if commit:
            self.library.call("kvc_forward_end", forward)
        return forward

    def fill(self):
        """Lengths before the new tokens. One-page sequences take the whole pool first; whenever pages are needed, as many of these go, drawn at
        random, and theirs are the only ones left to take."""
        shape = self.shape
        self.library_add(range(shape.batch if not shape.shared else 1))
        if shape.kind == "linear":
            return
        before = [length - shape.new_tokens for length in shape.lengths]
        fillers = list(range(1 << 20, (1 << 20) + self.num_pages))
        self.library_add(fillers)
        for at in range(0, len(fillers), FILL_AT_ONCE):
            part = fillers[at : at + FILL_AT_ONCE]
            self.grow(part, [shape.page] * len(part))
        self.random.shuffle(fillers)

        def extend(goals):
            """{sequence: tokens}, page by page, in an order that is drawn anew each time."""
            done = {sequence: begin for sequence, (begin, _) in goals.items()}
            while True:
                left = [sequence for sequence, (_, goal) in goals.items() if done[sequence] < goal]
                if not left:
                    return
                self.random.shuffle(left)
                lengths = [
                    min(
                        shape.page - done[sequence] % shape.page,
                        goals[sequence][1] - done[sequence],
                    )
                    for sequence in left
                ]
                for _ in range(sum(done[sequence] % shape.page == 0 for sequence in left)):
                    self.library.call("kvc_seq_remove", self.cache, fillers.pop())
                for at in range(0, len(left), FILL_AT_ONCE):
                    self.grow(left[at : at + FILL_AT_ONCE], lengths[at : at + FILL_AT_ONCE])
                for sequence, length in zip(left, lengths):
                    done[sequence] += length

        if shape.shared:
            extend({0: (0, shape.shared)})
            for child in range(1, shape.batch):
                self.library.call("kvc_seq_fork", self.cache, 0, child, shape.shared)
        extend(
            {
                sequence: (shape.shared, goal)
                for sequence, goal in enumerate(before)
                if goal > shape.shared
            }
        )
        for filler in fillers:
            self.library.call("kvc_seq_remove", self.cache, filler)

    def library_add(self, sequences):
        for sequence in sequences:
            self.library.call("kvc_seq_add", self.cache, sequence)

    def make_inputs(self):
        shape = self.shape
        tokens = shape.batch * shape.new_tokens

        def normal(*size):
            return torch.randn(size, device=self.device, generator=self.generator).to(
                activation(shape.storage)
            )

        self.q = normal(tokens, shape.q_heads, shape.dim)
        value_dim = shape.dim - ROTATED if shape.kind == "latent" else shape.dim
        self.out = torch.full(
            (tokens, shape.q_heads, value_dim), float("nan"), device=self.device, dtype=self.q.dtype
        )
        self.sinks = (
            torch.randn(shape.q_heads, device=self.device, generator=self.generator)
            if shape.sinks
            else None
        )
        if shape.kind in ("append", "linear"):
            self.k, self.v = normal(tokens, shape.kv_heads, shape.dim), normal(
                tokens, shape.kv_heads, shape.dim
            )
        if shape.kind == "linear":
            self.k = torch.nn.functional.normalize(self.k.float(), dim=-1).to(self.k.dtype)
            self.decay = -torch.rand(
                tokens, shape.q_heads, device=self.device, generator=self.generator
            )
            self.beta = torch.rand(
                tokens, shape.q_heads, device=self.device, generator=self.generator
            )
        # Parents of a random tree: below their node.
        self.parents = (
            [self.random.randrange(-1, node) for node in range(shape.new_tokens)]
            if shape.kind == "tree"
            else None
        )

        self.tensors = {
            name: Tensor(getattr(self, name), self.machine.dl_device)
            for name in ("q", "k", "v", "out", "decay", "beta")
            if getattr(self, name, None) is not None
        }
        self.options = Struct("kvc_attn_opt")
        if shape.kind == "latent":
            self.options["scale"] = self.scale
        if self.sinks is not None:
            self.options[SINKS] = Tensor(self.sinks, self.machine.dl_device)
        self.linear = Struct(
            "kvc_linear_opt", flags=constant("KVC_LINEAR_DELTA"), decay=constant("KVC_DECAY_TOKEN")
        )

    # ---- Steps

    @property
    def can_pop(self):
        """Whether the tokens of a step can be taken back.

        A window has dropped what the shorter sequence would see; a state has no checkpoint.
        """
        return not self.shape.window and self.shape.kind != "linear"

    @property
    def lengths(self):
        """Keys per sequence in the open forward, the new ones included."""
        return [length + self.grown for length in self.shape.lengths]

    def refresh(self):
        """Other inputs at the same addresses; outputs hold nothing."""
        for name in ("q", "k", "v"):
            tensor = getattr(self, name, None)
            if tensor is not None:
                tensor.copy_(
                    torch.randn(tensor.shape, device=self.device, generator=self.generator)
                )
        if self.shape.kind == "linear":
            self.k.copy_(torch.nn.functional.normalize(self.k.float(), dim=-1))
        if getattr(self, "out", None) is not None:
            self.out.fill_(float("nan"))
        if self.shape.kind == "copy":
            for pool in self.pools:
                pool.copy_(
                    random_tensor(pool.shape, self.shape.storage, self.device, self.generator)
                )

    def begin(self, replay=False):
        shape = self.shape
        fields = {"flags": constant("KVC_FORWARD_REPLAY")} if replay else {}
        if self.parents:
            fields["tree_parents"] = int32s(self.parents * shape.batch)
        self.known_tables = None
        self.forward = self.grow(
            list(range(shape.batch)), [shape.new_tokens] * shape.batch, commit=False, **fields
        )

    def abort(self):
        forward, self.forward = self.forward, None
        self.library.call("kvc_forward_abort", forward)

    def end(self):
        """The step counts; afterwards the sequences are as long as they were, where they can be."""
        forward, self.forward = self.forward, None
        self.library.call("kvc_forward_end", forward)
        self.at_end()
        if self.can_pop:
            for sequence in range(self.shape.batch):
                self.library.call("kvc_seq_pop", self.cache, sequence, self.shape.new_tokens)
        else:
            self.grown += self.shape.new_tokens

    def capture(self, sweeps):
        """A graph of a step that calls the operation `sweeps` times on each layer.

        The captured step itself is aborted: the graph serves replays.
        """

        def record():
            self.begin()
            try:
                for _ in range(sweeps):
                    for layer in range(self.num_layers):
                        self.launch(layer)
            finally:
                self.abort()

        return self.machine.capture(self.stream, record)

    def replay(self, graph, launch=None, look=None):
        """One more step, by the graph. `launch(graph.launch)` launches it, if given; `look()` is
        called while the step is open."""
        self.begin(replay=True)
        try:
            launch(graph.launch) if launch else graph.launch()
            if look:
                look()
        except BaseException:
            self.machine.synchronize()
            self.abort()
            raise
        self.end()

    def open_copy(self):
        pages = list(range(self.num_pages))
        self.random.shuffle(pages)
        half = self.shape.batch
        self.pairs = torch.tensor([pages[:half], pages[half:]], dtype=torch.int64).T.contiguous()
        self.pair_tensor = Tensor(self.pairs, (capi.CPU, 0))

    # ---- What is measured

    @property
    def scale(self):
        return 192**-0.5 if self.shape.kind == "latent" else self.shape.dim**-0.5

    def launch(self, layer):
        """One call of the operation, on one layer's pool."""
        tensors, kind = getattr(self, "tensors", {}), self.shape.kind
        if kind == "append":
            self.library.call("kvc_kv_append", self.forward, layer, tensors["k"], tensors["v"])
        elif kind == "linear":
            self.library.call(
                "kvc_attn_linear",
                self.forward,
                layer,
                self.linear,
                tensors["q"],
                tensors["k"],
                tensors["v"],
                tensors["decay"],
                tensors["beta"],
                tensors["out"],
            )
        elif kind == "copy":
            # Copies all layers at once: this kind has one.
            self.library.call("kvc_pages_copy", self.cache, self.pair_tensor, self.stream, None)
        else:
            self.library.call(
                "kvc_attn",
                self.forward,
                layer,
                self.options,
                tensors["q"],
                None,
                None,
                tensors["out"],
                None,
            )

    def step(self):
        """Begin and abort of a forward: what a step costs the host beside its kernels."""
        self.begin()
        self.abort()

    # ---- For the other side

    def page_table(self, sequence):
        """Ids of the pages that are kept, with the new tokens in, and the first token of the first one."""
        return self.tables()[sequence]

    def tables(self):
        """The same for every sequence, from the open forward."""
        if self.known_tables is None:
            self.known_tables = self.exported_tables()
        return self.known_tables

    def exported_tables(self):
        indptr = self.export("KVC_TABLE_INDPTR")
        indices, positions = self.export("KVC_TABLE_INDICES"), self.export(
            "KVC_TABLE_PAGE_POSITION"
        )
        return [(indices[begin:end], positions[begin]) for begin, end in zip(indptr, indptr[1:])]

    def export(self, kind):
        managed = self.library.create("kvc_export_page_table", self.forward, 0, constant(kind))
        return self.library.exported_int32(managed)

    def close(self):
        if self.forward:
            self.abort()
        if self.cache:
            self.library.functions.kvc_cache_destroy(self.cache)
        if self.plan:
            self.library.functions.kvc_plan_destroy(self.plan)
        self.forward = self.cache = self.plan = None
        self.pools = []
