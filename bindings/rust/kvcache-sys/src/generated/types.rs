// Generated from include/kvcache.h by `make abi`. Do not edit.
//! Types and constants of kvcache.h.

use crate::*;
use core::ffi::{c_char, c_void};
use core::marker::{PhantomData, PhantomPinned};

/// Version of the ABI that these declarations follow.
pub const KVC_ABI_VERSION_MAJOR: u32 = 0;
pub const KVC_ABI_VERSION_MINOR: u32 = 1;
pub const KVC_ABI_VERSION: u32 = KVC_ABI_VERSION_MAJOR << 16 | KVC_ABI_VERSION_MINOR;

/// Planned memory of a model: immutable.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_plan {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Pages and sequences.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_cache {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// One open step over a batch: a number, see kvc_forward_begin.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_forward {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Completion of copies.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_fence {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Sequence id, chosen by the caller, >= 0.
pub type kvc_seq = i64;

/// cudaStream_t of the host program, NULL: the legacy default stream; ignored on the CPU.
pub type kvc_stream = *mut c_void;

kinds! {
    /// Result of a call. Values never change; the list only grows at the end.
    kvc_status: i32 {
        KVC_OK = 0,
        /// NULL, negative, contradictory.
        KVC_E_INVALID_ARGUMENT = 1,
        /// Attention without an open forward, or on a layer of another kind.
        KVC_E_INVALID_STATE = 2,
        /// Unknown sequence.
        KVC_E_NOT_FOUND = 3,
        /// Sequence id taken.
        KVC_E_ALREADY_EXISTS = 4,
        /// Position, length, count, index beyond its limit.
        KVC_E_OUT_OF_RANGE = 5,
        /// Tensor rank, shape, stride or alignment not accepted.
        KVC_E_SHAPE = 6,
        /// Tensor element type not accepted.
        KVC_E_DTYPE = 7,
        /// Tensor lives on another device than the cache.
        KVC_E_DEVICE_MISMATCH = 8,
        /// Meaningful, but not available in this build, on this device, in this combination.
        KVC_E_UNSUPPORTED = 9,
        /// Full now; expected; nothing changed; kvc_error.detail = pages missing.
        KVC_E_NO_PAGES = 10,
        /// Could not be served even by an empty cache.
        KVC_E_NEVER_FITS = 11,
        /// Host or device allocation failed.
        KVC_E_NO_MEMORY = 12,
        /// Object is in use: open forward, exported memory.
        KVC_E_BUSY = 13,
        /// Needed size returned.
        KVC_E_BUFFER_TOO_SMALL = 14,
        /// Struct tail or version not understood.
        KVC_E_VERSION = 15,
        /// An invariant does not hold.
        KVC_E_CORRUPT = 16,
        KVC_E_IO = 17,
        KVC_E_TIMEOUT = 18,
        KVC_E_PEER = 19,
        KVC_E_CANCELLED = 20,
        /// Device failure, sticky; sys_code = the device library's code.
        KVC_E_DEVICE = 21,
        /// A defect in the library.
        KVC_E_INTERNAL = 22,
    }
}

/// Details of a failure: 512 bytes, caller-owned, no allocation. struct_size 0 is taken as
/// sizeof(kvc_error).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_error {
    pub struct_size: usize,
    /// The status the call returned.
    pub status: kvc_status,
    /// Errno or a device library's code, else 0.
    pub sys_code: i32,
    /// A number that belongs to the status: missing pages, offending id, needed bytes.
    pub detail: i64,
    /// NUL-terminated UTF-8.
    pub message: [c_char; 488],
}

/// Head of a chained option struct. Unknown or repeated types are refused, never skipped. No types
/// are defined yet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_ext {
    pub type_: i32,
    pub next: *const kvc_ext,
}

kinds! {
    /// Instruction set of the CPU kernels.
    ///
    /// ```text
    /// AUTO takes the best the machine has. REFERENCE computes in double precision: slow, for
    /// comparing. Results differ between instruction sets by rounding only.
    /// ```
    kvc_cpu_isa: i32 {
        KVC_CPU_ISA_AUTO = 0,
        KVC_CPU_ISA_REFERENCE = 1,
        KVC_CPU_ISA_SCALAR = 2,
        KVC_CPU_ISA_AVX2 = 3,
        KVC_CPU_ISA_AVX512 = 4,
        KVC_CPU_ISA_AVX512_BF16 = 5,
    }
}

/// Bits of kvc_device_caps.dtypes.
pub const KVC_DTYPE_F32: u64 = 1;
/// Bits of kvc_device_caps.dtypes.
pub const KVC_DTYPE_F16: u64 = 2;
/// Bits of kvc_device_caps.dtypes.
pub const KVC_DTYPE_BF16: u64 = 4;
/// From here on: with kvc_quant.
pub const KVC_DTYPE_F8_E4M3: u64 = 8;
/// Bits of kvc_device_caps.dtypes.
pub const KVC_DTYPE_F8_E5M2: u64 = 16;
/// Bits of kvc_device_caps.dtypes.
pub const KVC_DTYPE_INT8: u64 = 32;
/// Bits of kvc_device_caps.dtypes.
pub const KVC_DTYPE_INT4: u64 = 64;
/// Bits of kvc_device_caps.dtypes.
pub const KVC_DTYPE_F4_E2M1: u64 = 128;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_device_caps {
    pub struct_size: usize,
    /// 1: caches can be created on this device.
    pub backend_present: i32,
    /// CPU: best kvc_cpu_isa of the machine; CUDA: 10 \* compute capability; 0: unknown.
    pub arch: i32,
    /// CPU: hardware threads this process may use.
    pub num_cores: i32,
    /// Bytes of a memory page, 0: unknown.
    pub page_granularity: i32,
    /// Storage types that attention reads, KVC_DTYPE_\* bits.
    pub dtypes: u64,
    /// CPU: bit i set: kvc_cpu_isa i can be chosen.
    pub isas: u64,
    /// Physical memory, 0: unknown.
    pub memory_bytes: u64,
    pub memory_free_bytes: u64,
    pub name: [c_char; 64],
}

kinds! {
    kvc_log_level: i32 {
        KVC_LOG_DEBUG = 0,
        KVC_LOG_INFO = 1,
        KVC_LOG_WARNING = 2,
        KVC_LOG_ERROR = 3,
    }
}

/// `message` is borrowed for the call. May be called from any thread; must not call the library and
/// must not throw.
pub type kvc_log_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, level: kvc_log_level, message: *const c_char),
>;

kinds! {
    kvc_layer_kind: i32 {
        /// K and V per token.
        KVC_LAYER_ATTENTION = 0,
        /// One latent row \[latent_rank + latent_rope_dim\] per token for all heads (DeepSeek-V2,
        /// arXiv:2405.04434)
        KVC_LAYER_MLA = 1,
        /// K and V of the encoder's tokens, written once per sequence, see kvc_attn_cross.
        KVC_LAYER_CROSS = 2,
        /// Recurrent state of any shape, see kvc_state_get and kvc_attn_linear.
        KVC_LAYER_STATE = 3,
        /// Keeps nothing: reads the K and V of source_layer (Gemma-3n)
        KVC_LAYER_SHARED = 4,
        /// Keeps nothing and is never attended (an MLP-only layer): a place holder for its id.
        KVC_LAYER_NONE = 5,
    }
}

/// The K row is the V row too: stored once, v_dim = k_dim, v_dtype = k_dtype, v arguments are NULL.
pub const KVC_LAYER_V_IS_K: i32 = 1;

kinds! {
    /// Quantised storage.
    ///
    /// ```text
    /// It is planned, paged, shared, swapped and exported everywhere. On CUDA it is appended to and attended to as well (but for
    /// kvc_attn_self, and kvc_seq_shift of rotated K); on the CPU that is for the host's own kernels, and kvc_attn, kvc_kv_append and the
    /// debug functions answer KVC_E_UNSUPPORTED on such a layer. Rows are rounded to the nearest element, beyond the largest one to it.
    /// ```
    kvc_quant: i32 {
        KVC_QUANT_NONE = 0,
        /// float8 (e4m3fn, e5m2), int8: one scale for K and one for V, kvc_layer.k_scale and
        /// v_scale.
        KVC_QUANT_PER_TENSOR = 1,
        /// float8, int8, int4: one float32 scale per token and head for K, one for V.
        KVC_QUANT_PER_TOKEN_HEAD = 2,
        /// float4 (e2m1fn; NVFP4): one float8 scale per 16 elements; k_dim and v_dim are multiples
        /// of 16.
        KVC_QUANT_BLOCK16 = 3,
    }
}

kinds! {
    kvc_rope_mode: i32 {
        /// The library rotates nothing.
        KVC_ROPE_NONE = 0,
        /// K is stored rotated, q is rotated when it attends.
        KVC_ROPE_ON_APPEND = 1,
        /// K is stored unrotated and rotated whenever it is read: needed for sinks, whose distances
        /// change.
        KVC_ROPE_ON_READ = 2,
    }
}

kinds! {
    kvc_rope_style: i32 {
        /// Pairs (i, i + rotary_dim/2): Llama, NeoX.
        KVC_ROPE_HALF = 0,
        /// Pairs (2i, 2i + 1): GPT-J, original RoPE.
        KVC_ROPE_INTERLEAVED = 1,
    }
}

kinds! {
    kvc_rope_scaling: i32 {
        KVC_ROPE_SCALING_NONE = 0,
        /// Llama-3.1: factor, low_freq_factor, high_freq_factor, original_context.
        KVC_ROPE_SCALING_LLAMA3 = 1,
        /// Peng et al., arXiv:2309.00071: factor, beta_fast, beta_slow, original_context.
        KVC_ROPE_SCALING_YARN = 2,
        /// Ding et al., arXiv:2402.13753: freq_factors up to original_context, long_freq_factors
        /// beyond.
        KVC_ROPE_SCALING_LONGROPE = 3,
    }
}

kinds! {
    kvc_rope_section_layout: i32 {
        /// The first sections\[0\] pairs turn by position row 0, the next sections\[1\] by row 1,
        /// ... (Qwen2-VL)
        KVC_ROPE_SECTIONS_CONTIGUOUS = 0,
        /// Pair i turns by row i % n while that section has pairs left (i / n \< sections\[row\]),
        /// else by row 0 (Qwen3-VL; n = num_sections)
        KVC_ROPE_SECTIONS_INTERLEAVED = 1,
    }
}

/// Rotary embedding (Su et al., arXiv:2104.09864).
///
/// ```text
/// Pair i of the first rotary_dim elements at position p is turned by
///   p * scale * theta^(-2i/rotary_dim) / freq_factors[i],
/// the frequency (what p is multiplied by) changed further by `scaling`; the turned elements are then multiplied by attention_factor.
/// MLA layers: the pairs are those of the latent_rope_dim elements that follow the latent (in q and k of kvc_attn_self: the last ones).
/// Wherever a layer has a rope mode, the caller hands over q and k unrotated.
///   linear    scale = 1 / factor.
///   LLAMA3    w = 2 pi / frequency: unchanged below original_context / high_freq_factor, divided by factor above original_context /
///             low_freq_factor, in between a mean that is linear in 1 / w.
///   YARN      ramp from unchanged (more than beta_fast turns in original_context) to divided by factor (fewer than beta_slow), linear in
///             the index of the pair. Its ends follow from theta, without scale and freq_factors, and are rounded outwards to whole pairs.
///   LONGROPE  a sequence longer than original_context with its new tokens (of a tree: its deepest path) uses long_freq_factors, else freq_factors; never chosen by
///             the length of the forward. ON_READ: for all keys; ON_APPEND: for the tokens appended from then on.
///   others    freq_factors and attention_factor express any frequencies.
/// Frequencies and angles are computed in double; their cos and sin are float32.
/// The plan refuses, naming field and value: fields that `scaling`, num_sections or mode NONE does not use and that are not zero, a factor or
/// frequency factor that is not positive, sections that do not fit (KVC_E_INVALID_ARGUMENT, KVC_E_OUT_OF_RANGE); values of the enums above
/// that are not listed, sections with ON_READ (KVC_E_UNSUPPORTED).
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_rope {
    pub struct_size: usize,
    pub mode: kvc_rope_mode,
    pub style: kvc_rope_style,
    /// Even, \<= k_dim; 0: k_dim.
    pub rotary_dim: i32,
    /// 0, or rotary_dim/2. LONGROPE: rotary_dim/2.
    pub num_freq_factors: i32,
    /// \> 0, YARN > 1; 0: 10000.
    pub theta: f64,
    /// Factor on the position; 0: 1.
    pub scale: f64,
    /// Copied by kvc_plan_create; > 0.
    pub freq_factors: *const f32,
    pub scaling: kvc_rope_scaling,
    /// 0 or 1: one position per token; 2..4: M-RoPE, see kvc_forward_desc.positions.
    pub num_sections: i32,
    /// Pairs of each section, >= 0; they sum to rotary_dim/2. num_sections 0, 1: may all be 0.
    pub sections: [i32; 4],
    pub section_layout: kvc_rope_section_layout,
    /// \0.
    pub reserved: i32,
    /// LLAMA3, YARN: > 0. LONGROPE: 0, or the longest context / original_context, for
    /// attention_factor only.
    pub factor: f64,
    /// LLAMA3: > 0; 0: 1.
    pub low_freq_factor: f64,
    /// LLAMA3: > low_freq_factor; 0: 4.
    pub high_freq_factor: f64,
    /// YARN: >= beta_slow; 0: 32.
    pub beta_fast: f64,
    /// YARN: > 0; 0: 1.
    pub beta_slow: f64,
    /// \> 0; 0: with factor > 1 YARN 0.1 ln(factor) + 1, LONGROPE sqrt(1 + ln(factor) /
    /// ln(original_context)); else 1.
    pub attention_factor: f64,
    /// LLAMA3, YARN, LONGROPE: tokens, 1..2^31-1.
    pub original_context: i64,
    /// LONGROPE: \[num_freq_factors\], copied.
    pub long_freq_factors: *const f32,
}

/// One recurrent state of a STATE layer. In an array, the first element's struct_size is the stride
/// of all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_state_spec {
    pub struct_size: usize,
    /// \1..8.
    pub ndim: i32,
    /// float32, float16, bfloat16; all zero: float32.
    pub dtype: DLDataType,
    /// \[ndim\], of one sequence, each >= 1; copied.
    pub shape: *const i64,
    /// Value of an empty sequence: this shape and dtype, on the host, copied; NULL: zeros.
    pub init: *const DLTensor,
}

/// One layer of the model. In an array, the first element's struct_size is the stride of all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_layer {
    pub struct_size: usize,
    pub kind: kvc_layer_kind,
    /// Multiple of num_kv_heads; 0: num_kv_heads. MLA: the number of heads.
    pub num_q_heads: i32,
    /// \>= 1. MLA: 0 or 1. SHARED: 0 or the source's.
    pub num_kv_heads: i32,
    /// Elements of a K (and q) head, 1..512. MLA: of q and k in kvc_attn_self (128 + 64), 0: not
    /// used. SHARED: 0 or the source's.
    pub k_dim: i32,
    /// Elements of a V (and out) head, 1..512; 0: k_dim. MLA: of v in kvc_attn_self. SHARED: 0 or
    /// the source's.
    pub v_dim: i32,
    pub quant: kvc_quant,
    /// Storage type: float32, float16, bfloat16, or what quant says. All zero: bfloat16, whatever
    /// the type of k; float32 rows are then rounded by up to 2^-8 of their value, so set float32 to
    /// compare with a float32 reference. 4-bit types: k_dim and v_dim even.
    pub k_dtype: DLDataType,
    /// All zero: k_dtype.
    pub v_dtype: DLDataType,
    /// Copied by kvc_plan_create; NULL: none.
    pub rope: *const kvc_rope,
    /// 0: all keys; W >= 1: a query at position p sees keys p-W+1..p. ATTENTION, MLA.
    pub window: i64,
    /// 0: off; C >= 1: a query at p sees keys from p/C\*C on (Llama-4). Not with window. ATTENTION,
    /// MLA.
    pub chunk: i64,
    /// SHARED: an ATTENTION or MLA layer of the same slice with a smaller id.
    pub source_layer: i32,
    /// MLA: >= 1; rank + rope dim \<= 1024.
    pub latent_rank: i32,
    /// MLA: even, >= 0.
    pub latent_rope_dim: i32,
    /// KVC_LAYER_\*.
    pub flags: i32,
    /// STATE: \[num_states\], copied.
    pub states: *const kvc_state_spec,
    /// STATE: 1..16.
    pub num_states: i32,
    /// \0.
    pub reserved: i32,
    /// Quant PER_TENSOR: value = stored element \* scale, finite, > 0; 0: 1. Others: 0.
    pub k_scale: f32,
    /// Quant PER_TENSOR: value = stored element \* scale, finite, > 0; 0: 1. Others: 0.
    pub v_scale: f32,
}

kinds! {
    kvc_storage: i32 {
        /// The library allocates the pool, or asks `allocator` for it.
        KVC_STORAGE_OWNED = 0,
        /// The caller's tensors are the pool, see kvc_config.pool_tensors.
        KVC_STORAGE_BORROWED = 1,
        /// No tensor memory: bookkeeping only.
        KVC_STORAGE_NONE = 2,
    }
}

kinds! {
    kvc_pool_layout: i32 {
        /// \[layer\]\[page\]: the pages of one layer lie together; fastest to read.
        KVC_POOL_LAYER_FIRST = 0,
        /// \[page\]\[layer\]: all layers of a page lie together; one copy moves a page.
        KVC_POOL_PAGE_FIRST = 1,
    }
}

/// Memory for the pool from the host program. Neither function may throw; free may run on any
/// thread (an export's deleter).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_allocator {
    pub struct_size: usize,
    pub user: *mut c_void,
    /// Returns a block of at least `bytes` aligned to `alignment`, or NULL. The content need not be
    /// zero.
    pub alloc: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            device: DLDevice,
            bytes: u64,
            alignment: u64,
        ) -> *mut c_void,
    >,
    pub free: Option<
        unsafe extern "C" fn(user: *mut c_void, device: DLDevice, ptr: *mut c_void, bytes: u64),
    >,
}

/// Threads of the host program.
///
/// ```text
/// parallel_for calls fn(arg, task, worker) exactly once for each task in [0, num_tasks), any order, any
/// threads, and returns when all are done; 0 <= worker < concurrency(user), and no two running tasks of one parallel_for share a worker.
/// fn does not throw; parallel_for and concurrency must not throw either. Caches that share an executor may call it at the same time.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_executor {
    pub struct_size: usize,
    pub user: *mut c_void,
    /// Constant, >= 1.
    pub concurrency: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
    pub parallel_for: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            num_tasks: i64,
            fn_: Option<unsafe extern "C" fn(arg: *mut c_void, task: i64, worker: i32)>,
            arg: *mut c_void,
        ),
    >,
}

/// Every group has page_size tokens per page, and pages of narrower groups are padded. Without it,
/// narrower groups get more tokens per page (kvc_group_info.page_tokens, a multiple of page_size)
/// so that little is padded.
pub const KVC_CONFIG_PAD_PAGES: u64 = 1;
/// Every page and state slot that a forward takes is filled with zeros before the forward writes
/// it, so that no token of another sequence can be read from it, whatever the forward leaves
/// unwritten. A page that is copied on write takes over what the copied page holds. Costs one write
/// of the taken pages per kvc_forward_begin, which goes to the forward's stream, also with
/// KVC_FORWARD_REPLAY. It is no part of a captured graph: while the stream is captured it goes to
/// the library's own, and begin waits for it. Storage NONE: KVC_E_UNSUPPORTED.
pub const KVC_CONFIG_CLEAR_PAGES: u64 = 2;

/// What to plan. Zero-initialise, set struct_size (or call kvc_config_init), then the fields you
/// need.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_config {
    pub struct_size: usize,
    /// NULL: no extension is defined yet.
    pub ext: *const kvc_ext,
    /// KVC_CONFIG_\*.
    pub flags: u64,
    /// All zero: the CPU; kDLCUDA: a GPU, see kvc_device_query.
    pub device: DLDevice,
    /// Tokens per page, 1..65536; 0: 16. Of the widest group: see KVC_CONFIG_PAD_PAGES.
    pub page_size: i32,
    /// Layers of the whole model, >= 1.
    pub num_layers: i32,
    /// \[num_layers\], copied.
    pub layers: *const kvc_layer,
    /// Pipeline slice kept here, half open; both 0: all. Layer ids in calls stay global. Groups and
    /// page tables are those of the whole model, so that all slices agree on them; a group without
    /// a layer in the slice has page tables all the same.
    pub layer_begin: i32,
    /// Pipeline slice kept here, half open; both 0: all. Layer ids in calls stay global. Groups and
    /// page tables are those of the whole model, so that all slices agree on them; a group without
    /// a layer in the slice has page tables all the same.
    pub layer_end: i32,
    /// Sequences in one forward at most; 0: no limit.
    pub max_seqs: i32,
    /// 0: 1; at most 64. Forwards whose tokens a window has to keep before it can drop any: counted
    /// by the plan.
    pub forwards_in_flight: i32,
    /// 0: no limit.
    pub max_tokens_per_forward: i64,
    /// Longest sequence; 0: what the pages hold. The plan is refused when the pages can't hold one.
    pub max_seq_len: i64,
    /// num_pages or byte_budget, not both. Both 0: with borrowed storage the tensors' pages, else a
    /// plan that answers questions but makes no cache.
    pub num_pages: i64,
    /// Bytes for everything a sequence keeps: num_pages = byte_budget / page_bytes. Recurrent
    /// states come out of the same bytes: with num_state_slots they are set aside first; without,
    /// each state slot takes ceil(state_slot_bytes / page_bytes) pages out of use while it lives.
    pub byte_budget: u64,
    /// Bytes of host memory for kvc_swap_out, kvc_pages_swap and evicted prefix pages; 0: none.
    pub host_byte_budget: u64,
    pub storage: kvc_storage,
    pub pool_layout: kvc_pool_layout,
    /// Borrowed storage; borrowed until kvc_cache_destroy and until the deleter of every export has
    /// run. LAYER_FIRST: one tensor per region of a page (kvc_plan_info.num_layer_regions,
    /// kvc_layer_info.region_bytes: with one group, one per layer that keeps pages); PAGE_FIRST:
    /// one tensor. Dimension 0 counts pages and may have any stride of at least one page; the rest
    /// is compact and holds exactly one page of the region (or of all regions). Any dtype of whole
    /// bytes; rank >= 1; address and page stride aligned to the storage elements. One cache at a
    /// time may be made of a plan with borrowed tensors.
    pub pool_tensors: *const *const DLTensor,
    pub num_pool_tensors: i32,
    /// Own CPU threads including the caller's; 0: one per core; 1: the caller's only. Storage on a
    /// GPU: the caller's only, 0 or 1.
    pub num_threads: i32,
    /// Storage on a GPU: AUTO.
    pub cpu_isa: kvc_cpu_isa,
    /// \0.
    pub reserved: i32,
    /// Copied; `user` borrowed until the cache and all its exports are gone.
    pub allocator: *const kvc_allocator,
    /// Copied; `user` borrowed until kvc_cache_destroy; replaces own threads. Storage on a GPU:
    /// NULL.
    pub executor: *const kvc_executor,
    /// Encoder tokens of one sequence at most; 0: no limit. Planned for by max_seq_len and request
    /// pages.
    pub max_cross_len: i64,
    /// Automatic checkpoints of recurrent state where a forward ends on a multiple of this many
    /// tokens; 0: page_size; -1: none; else a multiple of page_size. Given up, the earliest
    /// positions first, when state slots or pages are missing.
    pub state_stride: i64,
    /// States of one sequence (all STATE layers) kept at most, checkpoints included; 0: as many as
    /// memory holds.
    pub num_state_slots: i64,
    /// Events kept for kvc_events_poll, at most 2^24; 0: none are made.
    pub event_capacity: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_plan_info {
    pub struct_size: usize,
    /// Tokens.
    pub page_size: i32,
    /// Of the whole model.
    pub num_layers: i32,
    pub layer_begin: i32,
    pub layer_end: i32,
    /// Page tables per sequence; see kvc_plan_group_get.
    pub num_groups: i32,
    /// Regions of a page that LAYER_FIRST keeps apart: with one group one per layer that keeps
    /// pages; see kvc_layer_info.region.
    pub num_layer_regions: i32,
    pub num_pages: i64,
    /// One page, all layers of the slice.
    pub page_bytes: u64,
    /// One token, all layers of the slice.
    pub bytes_per_token: u64,
    /// num_pages \* page_bytes.
    pub pool_bytes: u64,
    /// Tokens all pages hold together while no window has dropped any.
    pub max_tokens: i64,
    /// Longest single sequence.
    pub max_seq_len: i64,
    /// Recurrent state of one sequence, all STATE layers; 0: none.
    pub state_slot_bytes: u64,
    /// 0: no limit.
    pub num_state_slots: i64,
    /// Pages that a state slot takes out of use; 0: states have memory of their own.
    pub state_slot_pages: i64,
    /// Tokens of a block of the prefix index: least common multiple of the groups' page_tokens.
    pub prefix_block: i32,
    pub forwards_in_flight: i32,
    /// host_byte_budget / page_bytes.
    pub num_host_pages: i64,
    /// kvc_plan_request_pages(max_seq_len)
    pub request_pages: i64,
    /// Requests of max_seq_len tokens that num_pages hold at once: num_pages / request_pages; 0: no
    /// pages.
    pub concurrency: f64,
    /// Share of the bytes of such a request that is padding or lies behind its last token, 0..1.
    pub waste: f64,
}

/// Layers that see the same keys share a page table: a group.
///
/// ```text
/// All groups take their pages from one pool; every page has room for the layers of any
/// group, which lie one behind the other in it. Narrow groups have more tokens per page, long kinds are cut into several groups, whichever
/// wastes less. Order: as the kinds first appear among the layers.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_group_info {
    pub struct_size: usize,
    pub num_layers: i32,
    /// 1: counts encoder tokens.
    pub is_cross: i32,
    /// Of its layers; 0: none.
    pub window: i64,
    /// Of its layers; 0: none.
    pub chunk: i64,
    /// That its layers use of a page.
    pub page_bytes: u64,
    /// That they leave unused.
    pub padding_bytes: u64,
    /// Tokens per page.
    pub page_tokens: i32,
    /// Global id of its first layer in the slice; -1: none here.
    pub first_layer: i32,
    /// Its part of kvc_plan_info.request_pages.
    pub request_pages: i64,
    /// Of its layers.
    pub bytes_per_token: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_layer_info {
    pub struct_size: usize,
    pub kind: kvc_layer_kind,
    /// Page table this layer reads: index for kvc_export_page_table; -1: none.
    pub group: i32,
    pub num_q_heads: i32,
    pub num_kv_heads: i32,
    pub k_dim: i32,
    pub v_dim: i32,
    pub k_dtype: DLDataType,
    pub v_dtype: DLDataType,
    /// This layer's part of one page.
    pub page_bytes: u64,
    /// Its K part; V follows.
    pub k_page_bytes: u64,
    pub v_page_bytes: u64,
    pub bytes_per_token: u64,
    pub window: i64,
    pub chunk: i64,
    /// SHARED; else -1.
    pub source_layer: i32,
    pub latent_rank: i32,
    pub latent_rope_dim: i32,
    pub flags: i32,
    pub num_states: i32,
    /// Of a page, where the layer lies: the tensor of LAYER_FIRST borrowed storage; -1: none.
    pub region: i32,
    /// All states of the layer, one sequence.
    pub state_bytes: u64,
    /// Of that region in one page.
    pub region_bytes: u64,
    /// Where the layer's part begins in the region.
    pub region_offset: u64,
    pub quant: kvc_quant,
    /// Of its group; 0: keeps no pages.
    pub page_tokens: i32,
    /// Of one page, behind V; 0: none.
    pub k_scale_bytes: u64,
    pub v_scale_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_stats {
    pub struct_size: usize,
    pub num_seqs: i64,
    /// Tokens over all sequences; a shared token counts once per sequence.
    pub total_length: i64,
    pub pages_total: i64,
    pub pages_free: i64,
    /// Held by sequences or the open forward.
    pub pages_used: i64,
    /// Used pages that more than one sequence holds.
    pub pages_shared: i64,
    /// Largest pages_used since creation.
    pub pages_peak: i64,
    pub page_bytes: u64,
    pub pool_bytes: u64,
    /// Ended.
    pub forwards: u64,
    pub forwards_aborted: u64,
    /// By ended forwards.
    pub tokens_appended: u64,
    /// copy-on-write copies.
    pub pages_copied: u64,
    /// Begins answered KVC_E_NO_PAGES.
    pub no_pages: u64,
    /// Last begin: bytes that a device back end is sent (sequence deltas, new page ids)
    pub step_bytes: u64,
    /// Last begin: number of host to device copies.
    pub step_copies: u64,
    /// States and checkpoints kept.
    pub state_slots_used: i64,
    pub state_slot_bytes: u64,
    /// Uncommitted tree nodes over all sequences.
    pub tree_tokens: u64,
    /// Shared prefixes read once for several sequences, attention calls together.
    pub cascades: u64,
    /// Token slots of used pages behind the last token of their sequence: internal fragmentation;
    /// divide by pages_used times page_tokens.
    pub slots_unused: i64,
    /// Pages that the prefix index knows, used ones too.
    pub pages_cached: i64,
    /// Of these, held by the index alone: counted in pages_free.
    pub pages_evictable: i64,
    /// In the index, both tiers.
    pub prefix_blocks: i64,
    /// Of these, with pages on the host.
    pub prefix_blocks_host: i64,
    /// Pinned blocks.
    pub prefix_pinned: i64,
    /// kvc_prefix_attach.
    pub prefix_lookups: u64,
    pub prefix_query_tokens: u64,
    pub prefix_hit_tokens: u64,
    /// Of the last 1,000 lookups.
    pub recent_query_tokens: u64,
    pub recent_hit_tokens: u64,
    /// Blocks that became part of the index.
    pub prefix_stored: u64,
    /// Blocks that were there already: the sequence took the index's pages over.
    pub prefix_duplicates: u64,
    /// Blocks that left it for others.
    pub prefix_evicted: u64,
    /// Blocks that a quota kept out.
    pub prefix_rejected: u64,
    /// Pages that went to the host.
    pub prefix_demoted: u64,
    /// Pages that came back.
    pub prefix_promoted: u64,
    pub host_pages_total: i64,
    /// By swapped sequences and by the index.
    pub host_pages_used: i64,
    pub num_swapped_seqs: i64,
    pub pages_swapped_out: u64,
    pub pages_swapped_in: u64,
    /// Contiguous copies that swaps and page copies were merged into.
    pub copy_runs: u64,
    pub events_made: u64,
    /// Overwritten before they were polled.
    pub events_lost: u64,
    /// Evicted blocks by time in the index: bucket i counts \[2^i, 2^(i+1)) milliseconds; bucket 0
    /// also less.
    pub block_lifetime: [u64; 32],
    /// Evicted blocks by time since their last use.
    pub block_idle: [u64; 32],
    /// Hits by time since the block's use before.
    pub block_reuse_gap: [u64; 32],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_seq_info {
    pub struct_size: usize,
    /// Committed tokens.
    pub length: i64,
    /// First position that every group still keeps, sinks aside; -1: empty.
    pub first_position: i64,
    /// Last kept position; -1: empty.
    pub last_position: i64,
    /// Held, all groups together.
    pub num_pages: i64,
    /// Of these, held by other sequences too.
    pub num_shared_pages: i64,
    /// kvc_seq_set_window; 0: none.
    pub window: i64,
    /// 0: none.
    pub sink: i64,
    /// 1: in the open forward.
    pub in_forward: i32,
    /// Positions \< length with a recurrent state; 0 for caches without STATE layers.
    pub num_checkpoints: i32,
    /// Uncommitted.
    pub tree_nodes: i64,
    /// Encoder tokens.
    pub cross_length: i64,
    /// 1: kvc_swap_out; num_pages are of the host.
    pub is_swapped: i32,
    pub reserved: i32,
    /// Leading tokens whose ids the cache knows, so that their blocks are in the prefix index or
    /// can be.
    pub known_tokens: i64,
}

kinds! {
    kvc_seq_op: i32 {
        KVC_SEQ_FORK = 0,
        KVC_SEQ_POP = 1,
        /// Drop \[pos, pos + 1) and close the gap.
        KVC_SEQ_SHIFT = 2,
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_forward_desc {
    pub struct_size: usize,
    /// NULL: no extension is defined yet.
    pub ext: *const kvc_ext,
    /// Of all work until end or abort; ignored on the CPU.
    pub stream: kvc_stream,
    /// \>= 1.
    pub num_seqs: usize,
    /// \[num_seqs\], distinct; borrowed for the call.
    pub seqs: *const kvc_seq,
    /// \[num_seqs\], >= 1; borrowed for the call.
    pub append_lengths: *const i64,
    /// Token trees: \[sum of append_lengths\], for each new token its parent's index inside the
    /// sequence's whole uncommitted tree (-1: a root), parent \< own index, at most
    /// KVC_MAX_TREE_NODES nodes; the nodes of earlier forwards come first. All tokens of a sequence
    /// KVC_TREE_NONE: a plain append. A sequence with an uncommitted tree must be extended as a
    /// tree. NULL: no trees. Borrowed for the call.
    pub tree_parents: *const i32,
    /// Ids of the new tokens, \[sum of append_lengths\]: full blocks are published to the prefix
    /// index when the forward ends (nodes of a tree when they are committed). A sequence that once
    /// grows without them publishes no later block. NULL: none. Copied.
    pub tokens: *const i32,
    /// KVC_FORWARD_\*.
    pub flags: u64,
    /// Rotary positions given by the caller (M-RoPE, or any other numbering): int32 \[sections, T\]
    /// (sections = the largest num_sections of the layers) or \[T\] (all sections alike). They turn
    /// q and k of ON_APPEND layers and nothing else: windows, masks and lengths count tokens. NULL:
    /// positions of the tokens. Copied.
    pub positions: *const DLTensor,
    /// \[num_seqs\]: encoder tokens that this forward writes to the CROSS layers of each sequence,
    /// 0: none. Once per sequence. NULL: none. Borrowed for the call.
    pub cross_lengths: *const i64,
}

/// CUDA graphs. A forward whose begin finds its stream captured becomes part of the graph, page
/// tables included; nothing runs yet. Launch the graph once for it after the end and before the
/// next call on the cache, which the launch would not wait for (or abort it, and don't: then it
/// never was). A captured begin waits until the device has done what the cache was given before;
/// calls after the launch wait for it, on whatever stream it was. Every further step of the same
/// shape (num_seqs, append_lengths, no trees, no positions, no encoder tokens): begin with this
/// flag, which tells the device what changed and enqueues nothing, launch the graph on the same
/// stream, end (or abort instead of the launch). Lengths, pages, windows and states are the step's
/// own. Calls on layers are refused in between. A forward that is captured has no tokens, replayed
/// ones may. With ALiBi or ON_READ rope a graph takes no sequence whose positions kvc_seq_shift has
/// moved apart. Addresses that the graph has seen stay valid while max_seqs,
/// max_tokens_per_forward, max_seq_len and max_cross_len of the configuration are set. The graph
/// names memory of the cache: it is launched no more once that is destroyed.
pub const KVC_FORWARD_REPLAY: u64 = 1;
/// The forward may end without K and V in every layer (see kvc_forward_end), and publishes nothing.
/// The tokens of a layer that got none count as unwritten, on every storage, until they are popped:
/// no later forward, fork, swap or kvc_prefix_insert publishes a block that holds one. They read as
/// whatever their page held before, or as zeros with KVC_CONFIG_CLEAR_PAGES.
pub const KVC_FORWARD_PARTIAL: u64 = 2;

/// In tree_parents: not part of a tree.
pub const KVC_TREE_NONE: i32 = -2;
/// Nodes of one sequence's uncommitted tree.
pub const KVC_MAX_TREE_NODES: usize = 4096;

/// The same call gives the same bits. Always so on the CPU.
pub const KVC_ATTN_DETERMINISTIC: u64 = 1;
/// A token's output does not depend on the other sequences of the batch, nor on how its prompt was
/// cut into forwards: decode steps use the arithmetic of prefill, and shared prefixes are read by
/// each sequence. Without the flag both change results by rounding only.
pub const KVC_ATTN_BATCH_INVARIANT: u64 = 2;
/// Read shared prefixes once per sequence even where reading them together would pay. In CUDA
/// graphs that is always so: a graph serves batches with other prefixes.
pub const KVC_ATTN_NO_CASCADE: u64 = 4;

/// Options of one attention call; NULL: all defaults.
///
/// ```text
/// For query position p, key position j, head h:
///   s = scale * (q . k);   with soft_cap c > 0: s = c * tanh(s / c)
///   s = s - alibi_slopes[h] * (p - j) + bias[h][t][j]
///   O = sum_j exp(s) v_j / (sum_j exp(s) + exp(sink_logits[h])),   LSE = ln sum_j exp(s)
/// Soft cap: Gemma-2; ALiBi: Press et al., arXiv:2108.12409; sink logits: gpt-oss.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_attn_opt {
    pub struct_size: usize,
    /// NULL: no extension is defined yet.
    pub ext: *const kvc_ext,
    /// KVC_ATTN_\*.
    pub flags: u64,
    /// 0: 1/sqrt(k_dim)
    pub scale: f32,
    /// 0: off; >= 0.
    pub soft_cap: f32,
    /// 0: the layer's; W >= 1: sees at most keys p-W+1..p in this call; not above the layer's own,
    /// nor above window - sink of a sequence of the batch with sinks (KVC_E_OUT_OF_RANGE)
    pub window: i64,
    /// float32 \[num_q_heads\]: one more term of O's denominator.
    pub sink_logits: *const DLTensor,
    /// float32 \[num_q_heads\].
    pub alibi_slopes: *const DLTensor,
    /// Additive bias, float32 \[>= T, J\] or \[num_q_heads, >= T, J\]: column j belongs to token j
    /// of the sequence (tree nodes follow the committed tokens in their order), J >= the longest
    /// sequence of the batch with its new tokens. -inf masks a key; its K and V may then hold
    /// anything. Any other value counts as 2.35e38 at most, either way: a row whose keys all have
    /// the least float32 sees them alike.
    pub bias: *const DLTensor,
    /// Bidirectional spans, int32 \[n, 3\]: (entry of the batch, begin, end) in absolute positions,
    /// ascending and disjoint per entry: new tokens inside a span see it to its end (images in
    /// Gemma-3), as far as tokens are there. Not with token trees, nor with moved positions
    /// (KVC_E_UNSUPPORTED).
    pub spans: *const DLTensor,
}

kinds! {
    /// Recurrence of a linear attention layer.
    ///
    /// ```text
    /// Per head, with state S [Dk, Dv], for each token t in order:
    ///   S = decay_t * S;   with DELTA: u = beta_t (v_t - S^T k_t), else u = beta_t v_t;   S = S + k_t u^T;   o_t = scale S^T q_t + d v_t
    /// Families: RetNet, Lightning: HEAD_DECAY. Gated DeltaNet: TOKEN_DECAY with DELTA. GLA: CHANNEL_DECAY; KDA: CHANNEL_DECAY with DELTA.
    /// Mamba-2 SSD: TOKEN_DECAY with decay = dt A, beta = dt, k = B, q = C, v = x, skip = D. Plain DeltaNet: NO_DECAY with DELTA.
    /// ```
    kvc_decay: i32 {
        KVC_DECAY_NONE = 0,
        /// ln(decay): float32 \[H\].
        KVC_DECAY_HEAD = 1,
        /// ln(decay): \[>= T, H\].
        KVC_DECAY_TOKEN = 2,
        /// ln(decay): \[>= T, H, Dk\].
        KVC_DECAY_CHANNEL = 3,
    }
}

/// The delta rule.
pub const KVC_LINEAR_DELTA: u64 = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_linear_opt {
    pub struct_size: usize,
    /// NULL: no extension is defined yet.
    pub ext: *const kvc_ext,
    /// KVC_LINEAR_\*.
    pub flags: u64,
    pub decay: kvc_decay,
    /// Index of S in the layer's states.
    pub state: i32,
    /// 0: 1/sqrt(Dk)
    pub scale: f32,
    /// \0.
    pub reserved: i32,
    /// D: float32 \[H\]; NULL: 0.
    pub skip: *const DLTensor,
}

kinds! {
    kvc_activation: i32 {
        KVC_ACTIVATION_NONE = 0,
        KVC_ACTIVATION_SILU = 1,
    }
}

kinds! {
    kvc_pool_kind: i32 {
        /// \[num_pages, num_kv_heads, page_size, k_dim\], strided view; MLA: \[num_pages, 1,
        /// page_size, rank + rope dim\].
        KVC_POOL_K = 0,
        /// \[num_pages, num_kv_heads, page_size, v_dim\], strided view.
        KVC_POOL_V = 1,
        /// \[num_pages, 2, num_kv_heads, page_size, dim\]; needs equal dims and dtypes of K and V.
        KVC_POOL_KV = 2,
        /// uint8 \[num_pages, bytes of the layer's part of a page\].
        KVC_POOL_BYTES = 3,
    }
}

kinds! {
    kvc_table_kind: i32 {
        /// int32 \[B+1\]: CSR row pointer into INDICES.
        KVC_TABLE_INDPTR = 0,
        /// int32 \[sum of pages\]: page ids, sequence after sequence.
        KVC_TABLE_INDICES = 1,
        /// int32 \[B\]: tokens in the last page, 1..page_size; 0 for no token (CROSS)
        KVC_TABLE_LAST_PAGE_LEN = 2,
        /// int32 \[B, most pages\]: page ids, padded with -1.
        KVC_TABLE_BLOCK_TABLE = 3,
        /// int64 \[T\]: page \* page_size + offset of each new token.
        KVC_TABLE_SLOT_MAPPING = 4,
        /// int32 \[B\]: length with the new tokens.
        KVC_TABLE_SEQ_LENS = 5,
        /// int32 \[B+1\]: CSR row pointer into the packed tokens.
        KVC_TABLE_QO_INDPTR = 6,
        /// int32 \[sum of pages\]: first token of each page of INDICES.
        KVC_TABLE_PAGE_POSITION = 7,
    }
}

kinds! {
    kvc_op_layout: i32 {
        /// \[num_pages, heads, page_size, dim\]: the library's own.
        KVC_OP_HND = 0,
        /// \[num_pages, page_size, heads, dim\]: FlashInfer, vLLM.
        KVC_OP_NHD = 1,
        /// \[num_pages, page_size, rank + rope dim\].
        KVC_OP_MLA = 2,
    }
}

/// One layer's pool. Any strides but the last.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_op_pool {
    pub struct_size: usize,
    pub k: *const DLTensor,
    /// NULL: MLA, or V is K.
    pub v: *const DLTensor,
    pub layout: kvc_op_layout,
    /// \0.
    pub reserved: i32,
}

/// Page tables of B sequences: either CSR (page_indptr, page_indices) or padded (block_table);
/// int32.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_op_table {
    pub struct_size: usize,
    /// \[B\]: keys of each sequence, the new ones included; >= 0.
    pub seq_lens: *const DLTensor,
    /// \[B+1\]: rows of q of each sequence; NULL: one each.
    pub qo_indptr: *const DLTensor,
    /// \[B+1\].
    pub page_indptr: *const DLTensor,
    /// \[page_indptr\[B\]\].
    pub page_indices: *const DLTensor,
    /// \[B, most pages\]; entries behind a sequence's pages are not read.
    pub block_table: *const DLTensor,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_op_opt {
    pub struct_size: usize,
    /// NULL: no extension is defined yet.
    pub ext: *const kvc_ext,
    /// Borrowed for the call; NULL: the caller's thread only.
    pub executor: *const kvc_executor,
    pub cpu_isa: kvc_cpu_isa,
    /// Attention: 0: row i of n sees keys up to seq_len - n + i (causal); 1: every row sees all
    /// keys.
    pub full: i32,
    /// Attention: scale, soft_cap, window, sink_logits, alibi, bias, flags; spans are refused.
    pub attn: *const kvc_attn_opt,
    /// Append, rotate: int32 \[T\]. attention with a rope: \[T\] of the queries.
    pub positions: *const DLTensor,
    /// Append: K is rotated. attention: q is rotated (K is stored rotated). NONE: neither.
    pub rope: *const kvc_rope,
    /// Of the work on a CUDA device; ignored on the CPU.
    pub stream: kvc_stream,
}

pub const KVC_HASH_BYTES: usize = 32;

kinds! {
    kvc_prefix_key_type: u32 {
        /// LoRA or other adapter, offset 0.
        KVC_PREFIX_KEY_ADAPTER = 1,
        /// Digest of an image, audio or video, offset of its first token.
        KVC_PREFIX_KEY_MEDIA = 2,
        /// This and all above: the host's own.
        KVC_PREFIX_KEY_USER = 256,
    }
}

/// More than tokens that K and V depend on. In an array, the first element's struct_size is the
/// stride of all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_prefix_key {
    pub struct_size: usize,
    /// Not 0.
    pub type_: kvc_prefix_key_type,
    /// \0.
    pub reserved: u32,
    /// Token where it begins to matter, >= 0.
    pub offset: i64,
    pub data: *const c_void,
    /// Bytes, at most 4096.
    pub size: usize,
}

/// All num_tokens may hit; without it the last one is left to be computed.
pub const KVC_PREFIX_ALL_TOKENS: u64 = 1;
/// No hit inside a block; without it the first tokens of a block that begins alike hit too (copied
/// on write)
pub const KVC_PREFIX_WHOLE_BLOCKS: u64 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_prefix_query {
    pub struct_size: usize,
    /// NULL: no extension is defined yet.
    pub ext: *const kvc_ext,
    /// KVC_PREFIX_\*.
    pub flags: u64,
    /// \>= 0.
    pub num_tokens: i64,
    /// \[num_tokens\]; may be NULL when hashes are given: then nothing hits inside a block, and new
    /// blocks have no token ids (events without tokens). Borrowed for the call.
    pub tokens: *const i32,
    /// \[num_hashes\]\[KVC_HASH_BYTES\]: keys of the leading full blocks as kvc_prefix_hash makes
    /// them, so that they are not computed again. A key names a block of the query's namespace
    /// only; that it is the key of these tokens is trusted. Borrowed for the call.
    pub hashes: *const u8,
    /// 0, or num_tokens / prefix_block when tokens is NULL; fewer are completed from tokens.
    pub num_hashes: usize,
    /// Namespace: a tenant, at most 4096 bytes; nothing is shared across.
    pub salt: *const c_void,
    pub salt_size: usize,
    /// \[num_keys\], any order; borrowed for the call.
    pub keys: *const kvc_prefix_key,
    /// At most 1024.
    pub num_keys: usize,
    /// Of the blocks this call publishes, and of those it hits when higher: 0..100, higher stays
    /// longer.
    pub priority: i32,
    /// \0.
    pub reserved: i32,
}

kinds! {
    kvc_event_type: i32 {
        /// Group `group` of the block is in `tier` now.
        KVC_EVENT_STORED = 0,
        /// And no longer.
        KVC_EVENT_REMOVED = 1,
        /// From `from_tier` to `tier`.
        KVC_EVENT_MOVED = 2,
        /// Nothing is held any more, in no tier.
        KVC_EVENT_CLEARED = 3,
    }
}

kinds! {
    kvc_tier: i32 {
        KVC_TIER_DEVICE = 0,
        KVC_TIER_HOST = 1,
    }
}

/// A consumer that starts from nothing (or from kvc_events_snapshot) and applies events in order
/// holds what the index holds: for each key and group the tier.
///
/// ```text
/// A group of a block is held when all its pages in the block are.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_event {
    pub struct_size: usize,
    /// 1, 2, 3, ... since the cache was made; a gap: events were lost, take a snapshot.
    pub number: u64,
    pub type_: kvc_event_type,
    pub tier: kvc_tier,
    /// MOVED.
    pub from_tier: kvc_tier,
    /// \-1: the recurrent state at the block's end.
    pub group: i32,
    /// Of the block.
    pub num_tokens: i32,
    pub reserved: i32,
    /// STORED: \[num_tokens\], NULL when unknown or when the block has been removed since; valid
    /// until the next call that takes kvc_cache \*.
    pub tokens: *const i32,
    pub hash: [u8; 32],
    /// STORED: the block before, or the root of the namespace.
    pub parent: [u8; 32],
}

kinds! {
    kvc_swap_direction: i32 {
        /// Device to host.
        KVC_SWAP_OUT = 0,
        /// Host to device.
        KVC_SWAP_IN = 1,
    }
}

sized_structs! {
    kvc_error
    kvc_device_caps
    kvc_rope
    kvc_state_spec
    kvc_layer
    kvc_allocator
    kvc_executor
    kvc_config
    kvc_plan_info
    kvc_group_info
    kvc_layer_info
    kvc_stats
    kvc_seq_info
    kvc_forward_desc
    kvc_attn_opt
    kvc_linear_opt
    kvc_op_pool
    kvc_op_table
    kvc_op_opt
    kvc_prefix_key
    kvc_prefix_query
    kvc_event
}
