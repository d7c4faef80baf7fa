//! Kinds of things, as Rust enums.

use kvcache_sys as sys;

macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $name:ident: $raw:ident { $($(#[$value_doc:meta])* $value:ident = $constant:ident,)* }
    )*) => {$(
        $(#[$doc])*
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$value_doc])* $value,)*
        }

        impl $name {
            /// The number of the C interface.
            pub const fn to_raw(self) -> sys::$raw {
                match self {
                    $($name::$value => sys::$constant,)*
                }
            }

            /// `None` for a number that this version does not know.
            pub const fn from_raw(raw: sys::$raw) -> Option<Self> {
                match raw {
                    $(sys::$constant => Some($name::$value),)*
                    _ => None,
                }
            }
        }
    )*};
}

kinds! {
    /// What a layer keeps.
    LayerKind: kvc_layer_kind {
        /// K and V per token.
        Attention = KVC_LAYER_ATTENTION,
        /// One latent row per token for all heads.
        Mla = KVC_LAYER_MLA,
        /// K and V of the encoder's tokens.
        Cross = KVC_LAYER_CROSS,
        /// Recurrent state.
        State = KVC_LAYER_STATE,
        /// Nothing: reads another layer's K and V.
        Shared = KVC_LAYER_SHARED,
        /// Nothing, and is never attended.
        None = KVC_LAYER_NONE,
    }
    /// Quantised storage: planned, paged, shared, swapped and exported everywhere. A GPU attends to all of it,
    /// the CPU to types of 8 bits. There those of 4 bits need [`Storage::Borrowed`] or [`Storage::None`], where
    /// the host's own kernels attend.
    Quant: kvc_quant {
        /// Plain storage.
        None = KVC_QUANT_NONE,
        /// One scale for K and one for V, [`Layer::k_scale`](crate::Layer) and `v_scale`.
        PerTensor = KVC_QUANT_PER_TENSOR,
        /// One scale per token and head.
        PerTokenHead = KVC_QUANT_PER_TOKEN_HEAD,
        /// One scale per 16 elements.
        Block16 = KVC_QUANT_BLOCK16,
    }
    /// When K and q are rotated.
    RopeMode: kvc_rope_mode {
        /// Never: the model did it, or has no rotation.
        None = KVC_ROPE_NONE,
        /// K is stored rotated.
        OnAppend = KVC_ROPE_ON_APPEND,
        /// K is stored unrotated and rotated whenever it is read.
        OnRead = KVC_ROPE_ON_READ,
    }
    /// Which elements are a pair.
    RopeStyle: kvc_rope_style {
        /// (i, i + rotary_dim/2): Llama, NeoX.
        Half = KVC_ROPE_HALF,
        /// (2i, 2i + 1): GPT-J.
        Interleaved = KVC_ROPE_INTERLEAVED,
    }
    /// How frequencies are changed for long contexts.
    RopeScaling: kvc_rope_scaling {
        /// Not at all, or by `scale` and `freq_factors`.
        None = KVC_ROPE_SCALING_NONE,
        /// Llama-3.1.
        Llama3 = KVC_ROPE_SCALING_LLAMA3,
        /// Peng et al., arXiv:2309.00071.
        Yarn = KVC_ROPE_SCALING_YARN,
        /// Ding et al., arXiv:2402.13753.
        LongRope = KVC_ROPE_SCALING_LONGROPE,
    }
    /// Which pairs turn by which row of positions.
    RopeSections: kvc_rope_section_layout {
        /// One section after the other (Qwen2-VL).
        Contiguous = KVC_ROPE_SECTIONS_CONTIGUOUS,
        /// In turn (Qwen3-VL).
        Interleaved = KVC_ROPE_SECTIONS_INTERLEAVED,
    }
    /// Who owns the pool.
    Storage: kvc_storage {
        /// The library.
        Owned = KVC_STORAGE_OWNED,
        /// The caller's tensors, see [`Config::borrow_pool`](crate::Config::borrow_pool).
        Borrowed = KVC_STORAGE_BORROWED,
        /// Nobody: bookkeeping only.
        None = KVC_STORAGE_NONE,
    }
    /// Order of the pool's memory.
    PoolLayout: kvc_pool_layout {
        /// The pages of one layer lie together; fastest to read.
        LayerFirst = KVC_POOL_LAYER_FIRST,
        /// All layers of a page lie together; one copy moves a page.
        PageFirst = KVC_POOL_PAGE_FIRST,
    }
    /// Instruction set of the CPU kernels.
    CpuIsa: kvc_cpu_isa {
        /// The best that the machine has.
        Auto = KVC_CPU_ISA_AUTO,
        /// Double precision, slow, for comparing.
        Reference = KVC_CPU_ISA_REFERENCE,
        /// Plain C++.
        Scalar = KVC_CPU_ISA_SCALAR,
        /// AVX2, FMA and F16C.
        Avx2 = KVC_CPU_ISA_AVX2,
        /// AVX-512.
        Avx512 = KVC_CPU_ISA_AVX512,
        /// AVX-512 with bf16 dot products.
        Avx512Bf16 = KVC_CPU_ISA_AVX512_BF16,
    }
    /// What [`CacheRef::can`](crate::CacheRef::can) asks about.
    SeqOp: kvc_seq_op {
        /// Fork there.
        Fork = KVC_SEQ_FORK,
        /// Pop back to there.
        Pop = KVC_SEQ_POP,
        /// Drop that token and close the gap.
        Shift = KVC_SEQ_SHIFT,
    }
    /// Decay of a linear attention layer; the tensor holds its natural logarithm.
    Decay: kvc_decay {
        /// No decay.
        None = KVC_DECAY_NONE,
        /// Per head: `[H]`.
        Head = KVC_DECAY_HEAD,
        /// Per token and head: `[T, H]`.
        Token = KVC_DECAY_TOKEN,
        /// Per token, head and channel: `[T, H, Dk]`.
        Channel = KVC_DECAY_CHANNEL,
    }
    /// What a convolution ends with.
    Activation: kvc_activation {
        /// Nothing.
        None = KVC_ACTIVATION_NONE,
        /// x * sigmoid(x).
        Silu = KVC_ACTIVATION_SILU,
    }
    /// Which view of a layer's pool is exported.
    PoolKind: kvc_pool_kind {
        /// `[num_pages, num_kv_heads, page_size, k_dim]`; MLA: the latents.
        K = KVC_POOL_K,
        /// `[num_pages, num_kv_heads, page_size, v_dim]`.
        V = KVC_POOL_V,
        /// `[num_pages, 2, num_kv_heads, page_size, dim]`.
        Kv = KVC_POOL_KV,
        /// `[num_pages, bytes]`.
        Bytes = KVC_POOL_BYTES,
    }
    /// Which form of the batch's page tables is exported.
    TableKind: kvc_table_kind {
        /// i32 `[B+1]`: where each sequence begins in `Indices`.
        Indptr = KVC_TABLE_INDPTR,
        /// i32: page ids, sequence after sequence.
        Indices = KVC_TABLE_INDICES,
        /// i32 `[B]`: tokens in the last page.
        LastPageLen = KVC_TABLE_LAST_PAGE_LEN,
        /// i32 `[B, most pages]`: page ids, padded with -1.
        BlockTable = KVC_TABLE_BLOCK_TABLE,
        /// i64 `[T]`: page * page_size + offset of each new token.
        SlotMapping = KVC_TABLE_SLOT_MAPPING,
        /// i32 `[B]`: length with the new tokens.
        SeqLens = KVC_TABLE_SEQ_LENS,
        /// i32 `[B+1]`: where each sequence begins in the packed tokens.
        QoIndptr = KVC_TABLE_QO_INDPTR,
        /// i32: first token of each page of `Indices`.
        PagePosition = KVC_TABLE_PAGE_POSITION,
    }
    /// Layout of a host's pool for the operators.
    OpLayout: kvc_op_layout {
        /// `[num_pages, heads, page_size, dim]`.
        Hnd = KVC_OP_HND,
        /// `[num_pages, page_size, heads, dim]`.
        Nhd = KVC_OP_NHD,
        /// `[num_pages, page_size, rank + rope dim]`.
        Mla = KVC_OP_MLA,
    }
    /// What happened in the prefix index.
    EventKind: kvc_event_type {
        /// A group of a block is in a tier now.
        Stored = KVC_EVENT_STORED,
        /// And no longer.
        Removed = KVC_EVENT_REMOVED,
        /// From one tier to another.
        Moved = KVC_EVENT_MOVED,
        /// Nothing is held any more.
        Cleared = KVC_EVENT_CLEARED,
    }
    /// Where pages lie.
    Tier: kvc_tier {
        /// In the pool.
        Device = KVC_TIER_DEVICE,
        /// In the host pool.
        Host = KVC_TIER_HOST,
        /// In files.
        File = KVC_TIER_FILE,
        /// On servers of the Redis protocol.
        Redis = KVC_TIER_REDIS,
    }
    /// Direction of [`CacheRef::pages_swap`](crate::CacheRef::pages_swap).
    SwapDirection: kvc_swap_direction {
        /// Device to host.
        Out = KVC_SWAP_OUT,
        /// Host to device.
        In = KVC_SWAP_IN,
    }
    /// How far a [`Transfer`](crate::Transfer) is.
    TransferState: kvc_transfer_state {
        /// Waits for the other side.
        Waiting = KVC_TRANSFER_WAITING,
        /// Bytes travel.
        Running = KVC_TRANSFER_RUNNING,
        /// Everything is here and compared. The sender knows.
        Arrived = KVC_TRANSFER_ARRIVED,
        /// It has failed, and something may still be on its way.
        Ending = KVC_TRANSFER_ENDING,
        /// Sent; or the sequence is an ordinary one.
        Done = KVC_TRANSFER_DONE,
        /// It has failed.
        Failed = KVC_TRANSFER_FAILED,
    }
    /// Weight of a message of the library.
    LogLevel: kvc_log_level {
        /// For developers.
        Debug = KVC_LOG_DEBUG,
        /// Good to know.
        Info = KVC_LOG_INFO,
        /// Something is not as it should be.
        Warning = KVC_LOG_WARNING,
        /// Something failed.
        Error = KVC_LOG_ERROR,
    }
}
