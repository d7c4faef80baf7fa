// Generated from include/kvcache.h by `make abi`. Do not edit.
//! Types and constants of kvcache.h.

use crate::*;
use core::ffi::{c_char, c_void};
use core::marker::{PhantomData, PhantomPinned};

/// Version of the ABI that these declarations follow.
pub const KVC_ABI_VERSION_MAJOR: u32 = 0;
pub const KVC_ABI_VERSION_MINOR: u32 = 1;
pub const KVC_ABI_VERSION: u32 = KVC_ABI_VERSION_MAJOR << 16 | KVC_ABI_VERSION_MINOR;

/// Planned memory of a model; immutable.
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

/// The open forward: a number, see kvc_forward_begin.
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

/// Sequence id, >= 0, chosen by the caller.
pub type kvc_seq = i64;

/// cudaStream_t of the host program. NULL: the legacy default stream. Ignored on the CPU.
pub type kvc_stream = *mut c_void;

kinds! {
    /// Result of a call. Values never change; the list only grows at the end.
    kvc_status: i32 {
        KVC_OK = 0,
        /// A NULL, negative or contradictory argument.
        KVC_E_INVALID_ARGUMENT = 1,
        /// The object is not in the state that the call needs: no open forward, a layer of another
        /// kind, a swapped sequence.
        KVC_E_INVALID_STATE = 2,
        /// Unknown sequence.
        KVC_E_NOT_FOUND = 3,
        /// The sequence id is taken.
        KVC_E_ALREADY_EXISTS = 4,
        /// A position, length, count or index is beyond its limit.
        KVC_E_OUT_OF_RANGE = 5,
        /// A tensor's rank, shape, stride or alignment is not accepted.
        KVC_E_SHAPE = 6,
        /// A tensor's element type is not accepted.
        KVC_E_DTYPE = 7,
        /// A tensor lives on another device than the call expects.
        KVC_E_DEVICE_MISMATCH = 8,
        /// Meaningful, but not available in this build, on this device or in this combination.
        KVC_E_UNSUPPORTED = 9,
        /// Full now; expected. kvc_error.detail = pages and state slots missing.
        KVC_E_NO_PAGES = 10,
        /// Could not be served even by an empty cache.
        KVC_E_NEVER_FITS = 11,
        /// A host or device allocation failed.
        KVC_E_NO_MEMORY = 12,
        /// The object is in use: open forward, exported memory.
        KVC_E_BUSY = 13,
        /// The needed size is returned.
        KVC_E_BUFFER_TOO_SMALL = 14,
        /// A struct's tail or a version is not understood.
        KVC_E_VERSION = 15,
        /// An invariant does not hold, or a file is damaged.
        KVC_E_CORRUPT = 16,
        /// A file or a function that reads or writes one failed; sys_code = errno.
        KVC_E_IO = 17,
        /// The time given to a wait or to a transfer is over.
        KVC_E_TIMEOUT = 18,
        /// The other side of a transfer is gone.
        KVC_E_PEER = 19,
        /// A transfer was cancelled.
        KVC_E_CANCELLED = 20,
        /// Device failure; sticky. sys_code = the device library's code.
        KVC_E_DEVICE = 21,
        /// A defect in the library.
        KVC_E_INTERNAL = 22,
    }
}

/// Details of a failure: 512 bytes, owned by the caller, no allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_error {
    /// 0 is taken as sizeof(kvc_error).
    pub struct_size: usize,
    /// The status that the call returned.
    pub status: kvc_status,
    /// Errno or a device library's code, else 0.
    pub sys_code: i32,
    /// A number that belongs to the status: missing pages, offending id, ...
    pub detail: i64,
    /// NUL-terminated UTF-8.
    pub message: [c_char; 488],
}

/// Head of a chained option struct.
///
/// ```text
/// Unknown or repeated types are refused, never skipped. No types
/// are defined yet, so every `ext` field must be NULL.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_ext {
    pub type_: i32,
    pub next: *const kvc_ext,
}

kinds! {
    /// Instruction set of the CPU kernels. Results differ between instruction sets by rounding
    /// only.
    kvc_cpu_isa: i32 {
        /// The best that the machine has.
        KVC_CPU_ISA_AUTO = 0,
        /// Computes in double precision; slow, for comparing.
        KVC_CPU_ISA_REFERENCE = 1,
        KVC_CPU_ISA_SCALAR = 2,
        KVC_CPU_ISA_AVX2 = 3,
        KVC_CPU_ISA_AVX512 = 4,
        KVC_CPU_ISA_AVX512_BF16 = 5,
    }
}

/// Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant.
pub const KVC_DTYPE_F32: u64 = 1;
/// Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant.
pub const KVC_DTYPE_F16: u64 = 2;
/// Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant.
pub const KVC_DTYPE_BF16: u64 = 4;
/// Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant.
pub const KVC_DTYPE_F8_E4M3: u64 = 8;
/// Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant.
pub const KVC_DTYPE_F8_E5M2: u64 = 16;
/// Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant.
pub const KVC_DTYPE_INT8: u64 = 32;
/// Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant.
pub const KVC_DTYPE_INT4: u64 = 64;
/// Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant.
pub const KVC_DTYPE_F4_E2M1: u64 = 128;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_device_caps {
    pub struct_size: usize,
    /// 1: caches can be created on this device.
    pub backend_present: i32,
    /// CPU: best kvc_cpu_isa of the machine. CUDA: 10 \* compute capability. 0: unknown.
    pub arch: i32,
    /// CPU: hardware threads that this process may use, or the CPU quota of its control group,
    /// rounded down, where that is less. CUDA: multiprocessors.
    pub num_cores: i32,
    /// Largest bytes in which memory of a pool is committed: on the CPU a huge page where the
    /// system has them. 0: unknown.
    pub page_granularity: i32,
    /// Storage types that attention reads: KVC_DTYPE_\* bits.
    pub dtypes: u64,
    /// CPU: bit i is set where kvc_cpu_isa i can be chosen. CUDA: 0.
    pub isas: u64,
    /// Physical memory; 0: unknown.
    pub memory_bytes: u64,
    /// 0: unknown.
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

/// Receives one message, borrowed for the call. May be called from any thread. It must not call the
/// library and must not throw.
pub type kvc_log_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, level: kvc_log_level, message: *const c_char),
>;

kinds! {
    kvc_layer_kind: i32 {
        /// K and V per token.
        KVC_LAYER_ATTENTION = 0,
        /// One latent row \[latent_rank + latent_rope_dim\] per token for all heads (DeepSeek-V2,
        /// arXiv:2405.04434).
        KVC_LAYER_MLA = 1,
        /// K and V of the encoder's tokens, written once per sequence; see kvc_attn_cross.
        KVC_LAYER_CROSS = 2,
        /// Recurrent state of any shape; see kvc_state_get, kvc_attn_linear.
        KVC_LAYER_STATE = 3,
        /// Keeps nothing: reads the K and V of source_layer (Gemma-3n).
        KVC_LAYER_SHARED = 4,
        /// Keeps nothing and is never attended (an MLP-only layer): a place holder for its id.
        KVC_LAYER_NONE = 5,
    }
}

/// The K row is the V row too: it is stored once, v_dim = k_dim, v_dtype = k_dtype. Every `v`
/// argument of such a layer is NULL. Comments call these "K = V layers".
pub const KVC_LAYER_V_IS_K: i32 = 1;

kinds! {
    /// Quantised storage.
    ///
    /// ```text
    /// Values round to nearest even and saturate at the largest finite value.
    ///
    ///   everywhere      It is planned, paged, shared, swapped and exported.
    ///   CPU, 8 bits     It is appended to, attended to, gathered and shifted, as other storage is.
    ///   CPU, 4 bits     It is for the host program's own kernels: BORROWED and NONE alone, and
    ///                   kvc_cache_create refuses OWNED. kvc_attn, kvc_kv_append, kvc_kv_gather, the
    ///                   debug functions, and kvc_seq_shift of K that is stored rotated answer
    ///                   KVC_E_UNSUPPORTED on such a layer.
    ///   CUDA            It is appended to, attended to and gathered. kvc_attn_self, and kvc_seq_shift
    ///                   of K that is stored rotated, answer KVC_E_UNSUPPORTED on such a layer.
    ///
    /// PER_TENSOR: x / scale beyond the largest or smallest element is clipped to it, infinities too.
    /// kvc_stats.values_saturated counts it on the CPU.
    ///
    /// PER_TOKEN_HEAD: scale = largest |value| of the row / largest element, at least 2^-126. A row with
    /// a NaN or an infinity is NaN as a whole when it is read; on CUDA only that element may be.
    ///
    /// kvc_layer.quant says it of K and V, kvc_layer.v_quant of V apart.
    ///
    /// kvc_layer.keep_tokens: attention sinks, the first few tokens, lose most where they are quantised.
    /// The first N tokens of a sequence are then stored twice: as all others are, and as bfloat16. The
    /// second is what attention, gathers and kvc_debug_get read.
    ///
    ///   a half with NONE   It is kept in its own type.
    ///   memory             One page per sequence more, or a few where N tokens of all such layers do
    ///                      not fit in one. Plans count them.
    ///   windows            They drop none of the N tokens. A window of the sequence with sink tokens
    ///                      has these unquantised.
    ///   served by          OWNED storage on the CPU. NONE plans it and keeps its page tables;
    ///                      kvc_cache_create refuses BORROWED and CUDA.
    ///   the host's pages   kvc_export_pool, kvc_pages_export and kvc_pages_import answer
    ///                      KVC_E_UNSUPPORTED on such a layer, because they would leave these rows out.
    ///                      Files, swaps and kvc_pages_copy take them along.
    /// ```
    kvc_quant: i32 {
        KVC_QUANT_NONE = 0,
        /// float8 (e4m3fn, e5m2) or int8. One scale for K and one for V: kvc_layer.k_scale and
        /// v_scale.
        KVC_QUANT_PER_TENSOR = 1,
        /// float8, int8 or int4. One float32 scale per token and head for K, and one for V; one for
        /// both where V lies in K.
        KVC_QUANT_PER_TOKEN_HEAD = 2,
        /// float4 (e2m1fn; NVFP4). One float8 scale per 16 elements; k_dim and v_dim are multiples
        /// of 16. Not where V lies in K (MLA, K = V layers).
        KVC_QUANT_BLOCK16 = 3,
        /// kvc_layer.v_quant alone: V is not quantised, K is.
        KVC_QUANT_OFF = 4,
    }
}

kinds! {
    kvc_rope_mode: i32 {
        /// The library rotates nothing.
        KVC_ROPE_NONE = 0,
        /// K is stored rotated; q is rotated when it attends.
        KVC_ROPE_ON_APPEND = 1,
        /// K is stored unrotated and rotated whenever it is read. Sink tokens at a bounded distance
        /// need it (kvc_seq_set_window). LONGROPE is always so, see kvc_rope.
        KVC_ROPE_ON_READ = 2,
    }
}

kinds! {
    kvc_rope_style: i32 {
        /// Pairs (i, i + rotary_dim/2): NeoX, Llama in Hugging Face's format.
        KVC_ROPE_HALF = 0,
        /// Pairs (2i, 2i + 1): GPT-J, Llama in Meta's own format and in GGUF.
        KVC_ROPE_INTERLEAVED = 1,
    }
}

kinds! {
    kvc_rope_scaling: i32 {
        KVC_ROPE_SCALING_NONE = 0,
        /// Llama-3.1. Reads factor, low_freq_factor, high_freq_factor, original_context.
        KVC_ROPE_SCALING_LLAMA3 = 1,
        /// Peng et al., arXiv:2309.00071. Reads factor, beta_fast, beta_slow, original_context.
        KVC_ROPE_SCALING_YARN = 2,
        /// Ding et al., arXiv:2402.13753. Reads freq_factors up to original_context,
        /// long_freq_factors beyond.
        KVC_ROPE_SCALING_LONGROPE = 3,
    }
}

kinds! {
    kvc_rope_section_layout: i32 {
        /// The first sections\[0\] pairs take position row 0, the next sections\[1\] take row 1,
        /// ... (Qwen2-VL).
        KVC_ROPE_SECTIONS_CONTIGUOUS = 0,
        /// Pair i takes row i % n while that section has pairs left (i / n \< sections\[row\]),
        /// else row 0 (Qwen3-VL; n = num_sections).
        KVC_ROPE_SECTIONS_INTERLEAVED = 1,
    }
}

/// Rotary position embedding (Su et al., arXiv:2104.09864).
///
/// ```text
/// A layer gets one so, and several layers
/// may point at the same:
///
///   kvc_rope rope = {.struct_size = sizeof rope, .mode = KVC_ROPE_ON_APPEND, .theta = 500000};
///   layer.rope = &rope;
///
/// Pair i of the first rotary_dim elements at position p is rotated by the angle
///   p * scale * theta^(-2i/rotary_dim) / freq_factors[i].
/// `scaling` changes the frequency, which is what p is multiplied by, further. The rotated elements
/// are then multiplied by attention_factor. Frequencies and angles are computed in double; their cos
/// and sin are float32.
///
/// Wherever a layer has a rope mode, the caller hands over q and k unrotated. MLA layers: the pairs
/// are those of the latent_rope_dim elements that follow the latent; in q and k of kvc_attn_self
/// they are the last elements.
///
///   linear     scale = 1 / factor.
///   LLAMA3     With w = 2 pi / frequency: unchanged for w below original_context /
///              high_freq_factor; divided by factor above original_context / low_freq_factor; in
///              between a mean that is linear in 1 / w.
///   YARN       A ramp from unchanged (more than beta_fast turns in original_context) to divided by
///              factor (fewer than beta_slow), linear in the index of the pair. Its ends follow from
///              theta, without scale and freq_factors, and are rounded outwards to whole pairs.
///   LONGROPE   A sequence that is longer than original_context with its new tokens (of a tree: its
///              deepest path) uses long_freq_factors for all of its keys, else freq_factors. The
///              length of the forward never decides. K is rotated on read, also with mode ON_APPEND:
///              rotated rows could not follow a sequence across original_context, forwards or back,
///              nor be shared by a long and a short one. With config.max_seq_len <= original_context
///              the long factors are not used, and ON_APPEND is what it says.
///   others     freq_factors and attention_factor express any frequencies.
///
/// kvc_plan_create refuses a rope and names field and value:
///   KVC_E_INVALID_ARGUMENT, KVC_E_OUT_OF_RANGE  A field that is not zero although `scaling`,
///                      num_sections or mode NONE does not use it; a factor or frequency factor that
///                      is not positive; sections that do not fit.
///   KVC_E_UNSUPPORTED  A value of the enums above that is not listed; sections where K is rotated
///                      on read.
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
    /// \> 0; copied by kvc_plan_create.
    pub freq_factors: *const f32,
    pub scaling: kvc_rope_scaling,
    /// 0 or 1: one position per token. 2..4: M-RoPE, see kvc_forward_desc.positions.
    pub num_sections: i32,
    /// Pairs of each section, >= 0; they sum to rotary_dim/2. All may be 0 where num_sections is 0
    /// or 1.
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
    /// \> 0. 0 with factor > 1: YARN 0.1 ln(factor) + 1, LONGROPE sqrt(1 + ln(factor) /
    /// ln(original_context)). 0 otherwise: 1.
    pub attention_factor: f64,
    /// LLAMA3, YARN, LONGROPE: tokens, 1..2^31-1.
    pub original_context: i64,
    /// LONGROPE: \[num_freq_factors\], copied.
    pub long_freq_factors: *const f32,
}

/// One recurrent state of a STATE layer.
///
/// ```text
/// In an array, the first element's struct_size is the stride
/// of all.
/// ```
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
    /// Value of an empty sequence: this shape and dtype, on the host, copied. NULL: zeros.
    pub init: *const DLTensor,
}

/// One layer of the model. In an array, the first element's struct_size is the stride of all.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_layer {
    pub struct_size: usize,
    pub kind: kvc_layer_kind,
    /// A multiple of num_kv_heads; 0: num_kv_heads. MLA: number of heads.
    pub num_q_heads: i32,
    /// \>= 1. MLA: 0 or 1. SHARED: 0 or the source's.
    pub num_kv_heads: i32,
    /// Elements of a K (and q) head, 1..512. MLA: of q and k in kvc_attn_self (128 + 64); 0: not
    /// used. SHARED: 0 or the source's.
    pub k_dim: i32,
    /// Elements of a V (and out) head, 1..512; 0: k_dim. MLA: of v in kvc_attn_self. SHARED: 0 or
    /// the source's.
    pub v_dim: i32,
    /// Of K, and of V without v_quant; not OFF.
    pub quant: kvc_quant,
    /// Storage type: float32, float16, bfloat16, or what quant says. All zero: bfloat16, whatever
    /// the type of k. float32 rows are then rounded by up to 2^-8 of their value, so set float32 to
    /// compare with a float32 reference. 4-bit types: k_dim and v_dim are even.
    pub k_dtype: DLDataType,
    /// All zero: k_dtype; with v_quant OFF bfloat16. Another v_quant than quant needs it.
    pub v_dtype: DLDataType,
    /// Copied by kvc_plan_create. NULL: none.
    pub rope: *const kvc_rope,
    /// ATTENTION, MLA. 0: all keys. W >= 1: a query at position p sees keys p-W+1..p.
    pub window: i64,
    /// ATTENTION, MLA; not with window. 0: off. C >= 1: a query at position p sees keys from p/C\*C
    /// on (Llama-4).
    pub chunk: i64,
    /// SHARED: an ATTENTION or MLA layer of the same slice with a smaller id.
    pub source_layer: i32,
    /// MLA: >= 1; latent_rank + latent_rope_dim \<= 1024.
    pub latent_rank: i32,
    /// MLA: even, >= 0.
    pub latent_rope_dim: i32,
    /// KVC_LAYER_\* bits.
    pub flags: i32,
    /// STATE: \[num_states\], copied.
    pub states: *const kvc_state_spec,
    /// STATE: 1..16.
    pub num_states: i32,
    /// \0.
    pub reserved: i32,
    /// PER_TENSOR: value = stored element \* scale; finite, > 0; 0: 1. Other layers: 0.
    pub k_scale: f32,
    /// PER_TENSOR: value = stored element \* scale; finite, > 0; 0: 1. Other layers: 0.
    pub v_scale: f32,
    /// V apart from K: its kind of quantisation, OFF for none. With quant NONE V alone is
    /// quantised. 0: as quant. SHARED: 0 or the source's. MLA and K = V layers: 0 or quant.
    pub v_quant: kvc_quant,
    /// Quantised ATTENTION and MLA layers: so many leading tokens of a sequence are kept
    /// unquantised, see kvc_quant. 0: none. SHARED: 0 or the source's.
    pub keep_tokens: i32,
}

kinds! {
    kvc_storage: i32 {
        /// The library allocates the pool, or asks `allocator` for it.
        KVC_STORAGE_OWNED = 0,
        /// The caller's tensors are the pool; see kvc_config.pool_tensors.
        KVC_STORAGE_BORROWED = 1,
        /// No tensor memory: bookkeeping only.
        KVC_STORAGE_NONE = 2,
    }
}

kinds! {
    /// How the pool is laid out.
    ///
    /// ```text
    /// Inside a page each layer has, in both layouts, with
    /// P = kvc_group_info.page_size:
    ///   1. ATTENTION, CROSS: K [num_kv_heads][P][k_dim], then V [num_kv_heads][P][v_dim].
    ///      K = V layers: K alone. MLA: [P][latent_rank + latent_rope_dim].
    ///   2. PER_TOKEN_HEAD: then K's scales [num_kv_heads][P], then V's. BLOCK16: then K's
    ///      [num_kv_heads][P][k_dim / 16], then V's with v_dim. PER_TENSOR: no scales here. Each half
    ///      has those of its own kind; V has none where it lies in K. float32 scales begin at a
    ///      multiple of 4 bytes.
    /// ```
    kvc_pool_layout: i32 {
        /// \[layer\]\[page\]: the pages of one layer lie together. Fastest to read.
        KVC_POOL_LAYER_FIRST = 0,
        /// \[page\]\[layer\]: all layers of a page lie together. One copy moves a page.
        KVC_POOL_PAGE_FIRST = 1,
    }
}

/// Memory for the pool from the host program.
///
/// ```text
/// Neither function may throw. `free` may run on any
/// thread (an export's deleter).
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_allocator {
    pub struct_size: usize,
    pub user: *mut c_void,
    /// Returns a block of at least `bytes`, aligned to `alignment`, or NULL. The content need not
    /// be zero.
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
/// 1. parallel_for calls fn(arg, task, worker) exactly once for each task in [0, num_tasks), in any
///    order, on any threads. It returns when all are done.
/// 2. 0 <= worker < concurrency(user). No two running tasks of one parallel_for share a worker.
/// 3. fn does not throw; parallel_for and concurrency must not throw either.
/// 4. Caches that share an executor may call it at the same time.
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

/// Every layer group has page_size tokens per page, and pages of narrower groups are padded.
/// Without it, narrower groups get more tokens per page (kvc_group_info.page_size, a multiple of
/// page_size), so that little is padded.
pub const KVC_CONFIG_PAD_PAGES: u64 = 1;
/// Every page and state slot that a forward takes is filled with zeros before the forward writes
/// it. So no token of another sequence can be read from it, whatever the forward leaves unwritten.
/// \1. A page that is copied on write takes over what the copied page holds. 2. The cost is one
/// write of the taken pages per kvc_forward_begin, on the forward's stream, also with
/// KVC_FORWARD_REPLAY. 3. The write is no part of a captured graph. While the stream is captured,
/// it goes to a stream of the library, and begin waits for it. 4. With storage NONE:
/// KVC_E_UNSUPPORTED.
pub const KVC_CONFIG_CLEAR_PAGES: u64 = 2;
/// The memory of the pool and of the host pool is committed in the system's small pages. Without
/// it, huge pages of 2 MiB are advised where the pages of a layer (of the pool, with PAGE_FIRST)
/// fill one: they are faster to read, and the first token in one commits all of it. Where the
/// system can move memory to them (Linux 6.1), the pool gets them only when the pages in use would
/// fill one per layer. Not for BORROWED, NONE, CUDA devices or config.allocator: KVC_E_UNSUPPORTED.
pub const KVC_CONFIG_NO_HUGE_PAGES: u64 = 4;

/// What to plan.
///
/// ```text
/// Zero it, set struct_size (or call kvc_config_init), then set the fields you
/// need.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_config {
    pub struct_size: usize,
    /// NULL.
    pub ext: *const kvc_ext,
    /// KVC_CONFIG_\* bits.
    pub flags: u64,
    /// All zero: the CPU. kDLCUDA: a GPU, see kvc_device_query.
    pub device: DLDevice,
    /// Tokens per page of the widest layer group, 1..65536; 0: 16. See KVC_CONFIG_PAD_PAGES.
    pub page_size: i32,
    /// Layers of the whole model, >= 1.
    pub num_layers: i32,
    /// \[num_layers\], copied.
    pub layers: *const kvc_layer,
    /// Pipeline slice that is kept here, half open; both 0: all. Layer ids in calls stay global.
    /// Layer groups and page tables are those of the whole model, so that all slices agree on them.
    /// A group without a layer in the slice has page tables all the same.
    pub layer_begin: i32,
    /// Pipeline slice that is kept here, half open; both 0: all. Layer ids in calls stay global.
    /// Layer groups and page tables are those of the whole model, so that all slices agree on them.
    /// A group without a layer in the slice has page tables all the same.
    pub layer_end: i32,
    /// Most sequences in one forward; 0: no limit.
    pub max_seqs: i32,
    /// At most 64. Where max_tokens_per_forward is set too, layers' windows keep their product m
    /// more tokens, see kvc_seq_pop. 0: they keep none, and the plan counts 1.
    pub forwards_in_flight: i32,
    /// 0: no limit.
    pub max_tokens_per_forward: i64,
    /// Longest sequence; 0: what the pages hold. The plan is refused where the pages cannot hold
    /// one.
    pub max_seq_len: i64,
    /// num_pages or byte_budget, not both. Both 0: with borrowed storage the tensors' pages, else a
    /// plan that answers questions but makes no cache.
    pub num_pages: i64,
    /// Bytes for everything that a sequence keeps: num_pages = byte_budget / page_bytes. Recurrent
    /// states come out of the same bytes. With num_state_slots they are set aside first. Without,
    /// each state slot takes ceil(state_slot_bytes / page_bytes) pages out of use while it lives.
    pub byte_budget: u64,
    /// Bytes of host memory for kvc_swap_out, kvc_pages_swap and evicted prefix pages; 0: none.
    /// Without storage it can be planned, but makes no cache.
    pub host_byte_budget: u64,
    pub storage: kvc_storage,
    pub pool_layout: kvc_pool_layout,
    /// Borrowed storage: the pool. Borrowed until kvc_cache_destroy and until the deleter of every
    /// export has run. 1. LAYER_FIRST: one tensor per region of a page,
    /// kvc_plan_info.num_layer_regions in all. A region has kvc_layer_info.region_bytes. With one
    /// layer group, there is one region per layer that keeps pages. PAGE_FIRST: one tensor. 2.
    /// Dimension 0 counts pages and may have any stride of at least one page. The rest is compact
    /// and holds exactly one page of the region (PAGE_FIRST: of all regions). 3. Any dtype of whole
    /// bytes; rank >= 1; address and page stride are aligned to the storage elements. 4. One cache
    /// at a time may be made of a plan with borrowed tensors.
    pub pool_tensors: *const *const DLTensor,
    pub num_pool_tensors: i32,
    /// Own CPU threads, the caller's included; 0: one per core (kvc_caps.num_cores); 1: the
    /// caller's only. Storage on a GPU: 0 or 1, the caller's only.
    pub num_threads: i32,
    /// Storage on a GPU: AUTO.
    pub cpu_isa: kvc_cpu_isa,
    /// Context parallel ranks that the tokens of a sequence are dealt out over, at most 1024; 0: 1.
    /// Each keeps ceil(tokens / cp_size) of them, but states and encoders' K and V whole. For plans
    /// alone: kvc_cache_create refuses more than 1. Not with window, chunk or keep_tokens.
    pub cp_size: i32,
    /// Copied. `user` is borrowed until the cache and all its exports are gone.
    pub allocator: *const kvc_allocator,
    /// Copied. `user` is borrowed until kvc_cache_destroy. It replaces own threads. Storage on a
    /// GPU: NULL.
    pub executor: *const kvc_executor,
    /// Most encoder tokens of one sequence; 0: no limit. Counted by max_seq_len and
    /// kvc_plan_request_pages.
    pub max_cross_len: i64,
    /// Automatic checkpoints of recurrent state: where a forward ends on a multiple of this many
    /// tokens. 0: page_size. -1: none. Else a multiple of page_size. They are given up, the
    /// earliest positions first, when state slots or pages are missing.
    pub state_stride: i64,
    /// Most states kept, checkpoints included; a state is that of one sequence in all STATE layers.
    /// At least 2, because a forward keeps the state before and writes the one after. 0: as many as
    /// memory holds.
    pub num_state_slots: i64,
    /// Events kept for kvc_events_poll, at most 2^24; 0: none are made.
    pub event_capacity: i64,
}

/// How kvc_config_from_hf reads a file. All zero: as the file says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_hf_options {
    pub struct_size: usize,
    /// \0.
    pub flags: u64,
    /// A model_type that is known ("llama" for a plain decoder). Its rules read a file whose own
    /// model_type is missing or not known. Lists of kinds of layers and patterns of windows decide
    /// all the same. One warning is logged. NULL: none. Borrowed for the call.
    pub assume: *const c_char,
    /// Layers of multi-token prediction that are appended, at most those of the model; 0: none.
    /// They keep what the model's last layer without a window keeps; MiMo-V2's have its window.
    pub mtp_layers: i32,
    /// Sets config->cp_size; 0: it stays.
    pub cp_size: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_plan_info {
    pub struct_size: usize,
    /// Tokens.
    pub page_size: i32,
    /// Layers of the whole model.
    pub num_layers: i32,
    pub layer_begin: i32,
    pub layer_end: i32,
    /// Page tables per sequence; see kvc_plan_group_get.
    pub num_groups: i32,
    /// Regions of a page that LAYER_FIRST keeps apart. With one layer group, one per layer that
    /// keeps pages. See kvc_layer_info.region.
    pub num_layer_regions: i32,
    pub num_pages: i64,
    /// One page, all layers of the slice.
    pub page_bytes: u64,
    /// One token, all layers of the slice.
    pub bytes_per_token: u64,
    /// num_pages \* page_bytes.
    pub pool_bytes: u64,
    /// Tokens that all pages hold together while no window has dropped any.
    pub max_tokens: i64,
    /// Longest single sequence.
    pub max_seq_len: i64,
    /// Recurrent state of one sequence, all STATE layers; 0: none.
    pub state_slot_bytes: u64,
    /// 0: no limit.
    pub num_state_slots: i64,
    /// Pages that a state slot takes out of use; 0: states have memory of their own.
    pub state_slot_pages: i64,
    /// Tokens of a block of the prefix index: least common multiple of the groups' page_size, times
    /// cp_size; at most INT32_MAX is told.
    pub prefix_block: i32,
    pub forwards_in_flight: i32,
    /// host_byte_budget / page_bytes.
    pub num_host_pages: i64,
    /// kvc_plan_request_pages(max_seq_len).
    pub request_pages: i64,
    /// Requests of max_seq_len tokens that the cache holds at once: the lesser of num_pages /
    /// request_pages and, where it is set, num_state_slots / 2; 0: no pages.
    pub concurrency: f64,
    /// Share of the bytes of such a request that is padding or lies behind its last token, 0..1.
    pub waste: f64,
    /// Beside the pool, for every token that a sequence sees: cos and sin of layers that rotate K
    /// on read. Sequences at the same positions share them. 0: no such layer.
    pub cos_sin_bytes_per_token: u64,
    /// Most host memory of a cache that is full, see kvc_plan_info_get. 0: no pages.
    pub host_bytes: u64,
}

/// A layer group: layers that see the same keys and share a page table.
///
/// ```text
/// All groups take their pages from one pool. Every page has room for the layers of any group, which
/// lie one behind the other in it. Narrow groups have more tokens per page, and long kinds are cut
/// into several groups, whichever wastes less. Groups are ordered as the kinds first appear among
/// the layers.
///
/// Kept rows (kvc_layer.keep_tokens) have groups of their own behind these, with page_size a divisor
/// of kvc_config.page_size. num_layers and first_layer then count the layers whose rows they are.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_group_info {
    pub struct_size: usize,
    pub num_layers: i32,
    /// 1: the group counts encoder tokens.
    pub is_cross: i32,
    /// Window of its layers; 0: none.
    pub window: i64,
    /// Chunk of its layers; 0: none.
    pub chunk: i64,
    /// Bytes of a page that its layers use.
    pub page_bytes: u64,
    /// Bytes of a page that they leave unused.
    pub padding_bytes: u64,
    /// Tokens per page.
    pub page_size: i32,
    /// Global id of its first layer in the slice; -1: none here.
    pub first_layer: i32,
    /// Its part of kvc_plan_info.request_pages.
    pub request_pages: i64,
    /// One token in its layers.
    pub bytes_per_token: u64,
    /// Kept rows (kvc_layer.keep_tokens): its tables end after so many tokens. 0: they have all.
    pub keep_tokens: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_layer_info {
    pub struct_size: usize,
    pub kind: kvc_layer_kind,
    /// Page table that this layer reads: index for kvc_export_page_table; -1: none.
    pub group: i32,
    pub num_q_heads: i32,
    pub num_kv_heads: i32,
    pub k_dim: i32,
    pub v_dim: i32,
    pub k_dtype: DLDataType,
    pub v_dtype: DLDataType,
    /// The layer's part of one page.
    pub page_bytes: u64,
    /// Its K; V follows.
    pub k_page_bytes: u64,
    pub v_page_bytes: u64,
    pub bytes_per_token: u64,
    pub window: i64,
    pub chunk: i64,
    /// SHARED: the source. Others: -1.
    pub source_layer: i32,
    pub latent_rank: i32,
    pub latent_rope_dim: i32,
    pub flags: i32,
    pub num_states: i32,
    /// Region of a page where the layer lies: its tensor of LAYER_FIRST borrowed storage; -1: none.
    pub region: i32,
    /// All states of the layer, one sequence.
    pub state_bytes: u64,
    /// Bytes of that region in one page.
    pub region_bytes: u64,
    /// Byte of the region where the layer's part begins.
    pub region_offset: u64,
    /// Of K.
    pub quant: kvc_quant,
    /// Tokens per page of its group; 0: keeps no pages.
    pub page_size: i32,
    /// Scales of K in one page, behind V; 0: none.
    pub k_scale_bytes: u64,
    pub v_scale_bytes: u64,
    /// Of V; NONE: it is not quantised.
    pub v_quant: kvc_quant,
    /// Leading tokens that are kept unquantised.
    pub keep_tokens: i32,
    /// Page table of their rows; -1: keep_tokens is 0.
    pub kept_group: i32,
    pub reserved: i32,
}

/// Counters and gauges of a cache.
///
/// ```text
/// pages_total = pages_used + pages_available. An available page is free, without data, or cached:
/// the prefix index alone knows it, and it keeps its content until it is evicted because somebody
/// needs it.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_stats {
    pub struct_size: usize,
    pub num_seqs: i64,
    /// Tokens over all sequences; a shared token counts once per sequence.
    pub total_length: i64,
    pub pages_total: i64,
    pub pages_available: i64,
    /// Held by sequences, the open forward or pins, or taken out of use by state slots.
    pub pages_used: i64,
    /// Used pages that more than one sequence holds.
    pub pages_shared: i64,
    /// Largest pages_used since creation.
    pub pages_peak: i64,
    pub page_bytes: u64,
    pub pool_bytes: u64,
    /// Ended forwards.
    pub forwards: u64,
    pub forwards_aborted: u64,
    /// Tokens of ended forwards.
    pub tokens_appended: u64,
    /// Copy-on-write copies.
    pub pages_copied: u64,
    /// Begins that answered KVC_E_NO_PAGES.
    pub no_pages: u64,
    /// Last begin: bytes that a device back end is sent (sequence deltas, new page ids).
    pub step_bytes: u64,
    /// Last begin: number of host to device copies.
    pub step_copies: u64,
    /// States and checkpoints of sequences.
    pub state_slots_used: i64,
    pub state_slot_bytes: u64,
    /// Uncommitted tree nodes over all sequences.
    pub tree_tokens: u64,
    /// Shared prefixes read once for several sequences, attention calls together.
    pub cascades: u64,
    /// Token slots of used pages behind the last token of their sequence: internal fragmentation.
    /// Divide by pages_used \* page_size.
    pub slots_unused: i64,
    /// Pages that the prefix index knows, used ones included.
    pub pages_indexed: i64,
    /// Of these, pages that the index alone holds; counted in pages_available.
    pub pages_cached: i64,
    /// Blocks in the index, both tiers.
    pub prefix_blocks: i64,
    /// Of these, blocks with pages on the host.
    pub prefix_blocks_host: i64,
    /// Pinned blocks.
    pub prefix_pinned: i64,
    /// Calls of kvc_prefix_attach.
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
    /// Blocks that left the index for others.
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
    /// Events overwritten before they were polled.
    pub events_lost: u64,
    /// Histograms over time: bucket i counts \[2^i, 2^(i+1)) milliseconds; bucket 0 also less.
    /// Evicted blocks, by time in the index.
    pub block_lifetime: [u64; 32],
    /// Evicted blocks, by time since their last use.
    pub block_idle: [u64; 32],
    /// Hits, one per kvc_prefix_attach that found something: by time since the use before of the
    /// last block that it found.
    pub block_reuse_gap: [u64; 32],
    /// For layers that rotate K on read: cos and sin of the keys that sequences see, as of their
    /// last forwards.
    pub cos_sin_bytes: u64,
    /// Elements of K and V that were clipped when they were stored, as out_saturated of
    /// kvc_op_quantize counts them.
    pub values_saturated: u64,
    /// States that the prefix index alone keeps. They give way to those of sequences.
    pub state_slots_cached: i64,
    /// Host memory that the library has allocated for this cache, see kvc_cache_stats_get.
    pub host_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_seq_info {
    pub struct_size: usize,
    /// Committed tokens.
    pub length: i64,
    /// First position that every layer group still keeps, sink tokens aside; -1: empty.
    pub first_position: i64,
    /// Last kept position; -1: empty.
    pub last_position: i64,
    /// Pages held, all layer groups together, without those that the open forward has reserved.
    pub num_pages: i64,
    /// Of these, pages that other sequences hold too.
    pub num_shared_pages: i64,
    /// See kvc_seq_set_window; 0: none.
    pub window: i64,
    /// Sink tokens; 0: none.
    pub sink: i64,
    /// 1: in the open forward.
    pub in_forward: i32,
    /// Positions \< length with a recurrent state; 0 for caches without STATE layers.
    pub num_checkpoints: i32,
    /// Uncommitted nodes.
    pub tree_nodes: i64,
    /// Encoder tokens.
    pub cross_length: i64,
    /// 1: swapped out; num_pages are host pages.
    pub is_swapped: i32,
    pub reserved: i32,
    /// Leading tokens whose ids the cache knows: their blocks are in the prefix index or can be.
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

/// What a forward computes.
///
/// ```text
/// `seqs`, `append_lengths`, `tree_parents` and `cross_lengths` are
/// borrowed for the call; `tokens` and `positions` are copied.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_forward_desc {
    pub struct_size: usize,
    /// NULL.
    pub ext: *const kvc_ext,
    /// Stream of all work until end or abort; ignored on the CPU.
    pub stream: kvc_stream,
    /// \>= 1.
    pub num_seqs: usize,
    /// \[num_seqs\], distinct.
    pub seqs: *const kvc_seq,
    /// \[num_seqs\], >= 1.
    pub append_lengths: *const i64,
    /// Token trees, see TOKEN TREES: \[sum of append_lengths\]. NULL: no trees.
    pub tree_parents: *const i32,
    /// Ids of the new tokens, \[sum of append_lengths\], any int32. NULL: none. Full blocks are
    /// published to the prefix index when the forward ends; nodes of a tree, when they are
    /// committed. They go to the namespace of kvc_prefix_attach or kvc_prefix_insert; of a sequence
    /// that neither has named, to the one with the empty salt. A sequence that once grows without
    /// ids publishes no later block. What else K and V depend on (positions, bias, spans) is not
    /// part of a block's key: name it by kvc_prefix_query.keys.
    pub tokens: *const i32,
    /// KVC_FORWARD_\* bits.
    pub flags: u64,
    /// Rotary positions given by the caller (M-RoPE, or any other numbering): int32 \[sections,
    /// T\], or \[T\] for all sections alike, on the host. sections = the largest num_sections of
    /// the layers. They rotate q and k of ON_APPEND layers and nothing else: windows, masks and
    /// lengths count tokens. NULL: positions of the tokens.
    pub positions: *const DLTensor,
    /// \[num_seqs\]: encoder tokens that this forward writes to the CROSS layers of each sequence,
    /// 0: none. NULL: none. Once per sequence, until it has no token (kvc_seq_pop to 0): then they
    /// replace those of before, which are gone from begin on, also when the forward is aborted.
    pub cross_lengths: *const i64,
}

/// Replay a captured forward; see CUDA GRAPHS.
pub const KVC_FORWARD_REPLAY: u64 = 1;
/// The forward may end without K and V in every layer (see kvc_forward_end), and publishes nothing.
/// The tokens of a layer that got none count as unwritten, on every storage, until they are popped:
/// no later forward, fork, swap or kvc_prefix_insert publishes a block that holds one. They read as
/// zeros on the CPU where the library owns the pool and nothing is exported, and with
/// KVC_CONFIG_CLEAR_PAGES; else as whatever their page held before.
pub const KVC_FORWARD_PARTIAL: u64 = 2;
/// kvc_attn_opt.spans that end behind the tokens which their sequence has with this forward are
/// refused with KVC_E_OUT_OF_RANGE. Without it they are cut there: the rows of an image that a
/// chunk of the prompt cuts in two see only its first part, and stay as they are.
pub const KVC_FORWARD_WHOLE_SPANS: u64 = 4;

/// The same call gives the same bits. Always so on the CPU.
pub const KVC_ATTN_DETERMINISTIC: u64 = 1;
/// A token's output does not depend on the other sequences of the batch, nor on how its prompt was
/// cut into forwards; with LONGROPE, among cuts after which the sequence is on the same side of
/// original_context. Decode steps use the arithmetic of prefill, and shared prefixes are read by
/// each sequence.
pub const KVC_ATTN_BATCH_INVARIANT: u64 = 2;
/// Read shared prefixes once per sequence, even where reading them together would pay. In CUDA
/// graphs that is always so: a graph serves batches with other prefixes.
pub const KVC_ATTN_NO_CASCADE: u64 = 4;

/// Options of one attention call; NULL: all defaults.
///
/// ```text
/// For query position p, key position j, head h:
///
///   s   = scale * (q . k);   with soft_cap c > 0: s = c * tanh(s / c)
///   s   = s - alibi_slopes[h] * (p - j) + bias[h][t][j]
///   O   = sum_j exp(s) v_j / (sum_j exp(s) + exp(sink_logits[h]))
///   LSE = ln sum_j exp(s)
///
/// Soft cap: Gemma-2. ALiBi: Press et al., arXiv:2108.12409. Sink logits: gpt-oss.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_attn_opt {
    pub struct_size: usize,
    /// NULL.
    pub ext: *const kvc_ext,
    /// KVC_ATTN_\* bits.
    pub flags: u64,
    /// 0: 1/sqrt(k_dim).
    pub scale: f32,
    /// \>= 0; 0: off.
    pub soft_cap: f32,
    /// 0: the layer's. W >= 1: a query sees at most keys p-W+1..p in this call. W must not be above
    /// the layer's own window, nor above window - sink of a sequence of the batch with sink tokens
    /// (KVC_E_OUT_OF_RANGE).
    pub window: i64,
    /// float32 \[num_q_heads\]: one more term of O's denominator.
    pub sink_logits: *const DLTensor,
    /// float32 \[num_q_heads\].
    pub alibi_slopes: *const DLTensor,
    /// Additive bias, float32 \[>= T, J\] or \[num_q_heads, >= T, J\]. Column j belongs to token j
    /// of the sequence; tree nodes follow the committed tokens in their order. J >= the longest
    /// sequence of the batch with its new tokens. -inf masks a key; its K and V may then hold
    /// anything. Any other value counts as 2.35e38 at most, either way: a row whose keys all have
    /// the least float32 sees them alike.
    pub bias: *const DLTensor,
    /// Bidirectional spans, int32 \[n, 3\] on the host: (entry of the batch, begin, end) in
    /// absolute positions, ascending and disjoint per entry. New tokens inside a span see it to its
    /// end (images in Gemma-3), as far as tokens are there. Not with token trees, with moved
    /// positions, or in a captured forward (KVC_E_UNSUPPORTED).
    pub spans: *const DLTensor,
}

pub const KVC_HASH_BYTES: usize = 32;

kinds! {
    kvc_prefix_key_type: u32 {
        /// LoRA or other adapter, offset 0.
        KVC_PREFIX_KEY_ADAPTER = 1,
        /// Digest of an image, audio or video; offset of its first token.
        KVC_PREFIX_KEY_MEDIA = 2,
        /// This and all above: the host program's own.
        KVC_PREFIX_KEY_USER = 256,
    }
}

/// Something besides tokens that K and V depend on.
///
/// ```text
/// In an array, the first element's struct_size is
/// the stride of all.
/// ```
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

/// All num_tokens may hit. Without it, the last one is left to be computed.
pub const KVC_PREFIX_ALL_TOKENS: u64 = 1;
/// No hit inside a block. Without it, the first tokens of a block that begins alike hit too (copied
/// on write), up to its first extra key that differs or that only one of the two has.
pub const KVC_PREFIX_WHOLE_BLOCKS: u64 = 2;

/// A prompt and its namespace.
///
/// ```text
/// All arrays are borrowed for the call. kvc_prefix_attach and
/// kvc_prefix_insert copy salt, keys and priority into the sequence: they hold for the blocks that
/// it publishes later, so keys may have offsets behind num_tokens. num_tokens = 0 needs neither
/// tokens nor hashes.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_prefix_query {
    pub struct_size: usize,
    /// NULL.
    pub ext: *const kvc_ext,
    /// KVC_PREFIX_\* bits.
    pub flags: u64,
    /// \>= 0.
    pub num_tokens: i64,
    /// \[num_tokens\]. May be NULL when hashes are given: then nothing hits inside a block, and new
    /// blocks have no token ids (events without tokens).
    pub tokens: *const i32,
    /// \[num_hashes\]\[KVC_HASH_BYTES\]: keys of the leading full blocks as kvc_prefix_hash makes
    /// them, so that they are not computed again. A key names a block of the query's namespace
    /// only. That it is the key of these tokens is trusted.
    pub hashes: *const u8,
    /// 0, or num_tokens / prefix_block when tokens is NULL. Fewer are completed from tokens.
    pub num_hashes: usize,
    /// Namespace: a tenant, at most 4096 bytes. Nothing is shared across namespaces.
    pub salt: *const c_void,
    pub salt_size: usize,
    /// \[num_keys\], any order.
    pub keys: *const kvc_prefix_key,
    /// At most 1024.
    pub num_keys: usize,
    /// \0..100; higher stays longer. For the blocks that the sequence publishes, and those that it
    /// hits when higher.
    pub priority: i32,
    /// \0.
    pub reserved: i32,
}

kinds! {
    kvc_event_type: i32 {
        /// The block's pages of `group` are in `tier` now.
        KVC_EVENT_STORED = 0,
        /// They left `tier`.
        KVC_EVENT_REMOVED = 1,
        /// They moved from `from_tier` to `tier`.
        KVC_EVENT_MOVED = 2,
        /// Nothing is held any more, in no tier.
        KVC_EVENT_CLEARED = 3,
    }
}

kinds! {
    kvc_tier: i32 {
        KVC_TIER_DEVICE = 0,
        KVC_TIER_HOST = 1,
        /// Files of one process; see TIERS. Events do not name it.
        KVC_TIER_FILE = 2,
        /// Servers that several machines share; likewise.
        KVC_TIER_REDIS = 3,
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_event {
    pub struct_size: usize,
    /// 1, 2, 3, ... since the cache was made. A gap: events were lost, take a snapshot.
    pub number: u64,
    pub type_: kvc_event_type,
    pub tier: kvc_tier,
    /// MOVED.
    pub from_tier: kvc_tier,
    /// Layer group; -1: the recurrent state at the block's end.
    pub group: i32,
    /// Tokens of the block.
    pub num_tokens: i32,
    pub reserved: i32,
    /// STORED: \[num_tokens\]. NULL when unknown, or when the block has been removed since. Valid
    /// until the next exclusive call on the cache.
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

/// Where a state file goes.
///
/// ```text
/// Exactly one of path, data and write is set, or none to ask for the
/// size. All is borrowed for the call.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_save_desc {
    pub struct_size: usize,
    /// Must be 0.
    pub flags: u64,
    /// A file. It is written beside its place, synchronised and renamed: a crash leaves the old
    /// file or the new one. A symbolic link is followed. A new file has mode 0600. A file that is
    /// replaced keeps mode, owner and group, or KVC_E_IO says that its owner cannot be kept. What
    /// is no regular file, such as a FIFO or a device, is written in place, and a crash leaves a
    /// part of it. A FIFO that no process reads is KVC_E_IO.
    pub path: *const c_char,
    /// Memory for `size` bytes.
    pub data: *mut c_void,
    pub size: usize,
    /// Takes the next `size` bytes, borrowed for the call. Returns 0, or an errno. It must not use
    /// the cache.
    pub write: Option<
        unsafe extern "C" fn(user: *mut c_void, data: *const c_void, size: usize) -> i32,
    >,
    /// Its first argument.
    pub user: *mut c_void,
    /// A name of the model and its weights, at most 255 bytes; NULL: none. The layout says nothing
    /// of weights.
    pub model_id: *const c_char,
    /// NULL.
    pub ext: *const kvc_ext,
}

/// Rows and states of other activation types are converted.
pub const KVC_LOAD_CONVERT: u64 = 1;
/// The prefix index gets no block of the sequences, and no page of it is shared with them: their
/// tokens count as unknown. For files of other weights, as before kvc_prefix_reset.
pub const KVC_LOAD_NO_PUBLISH: u64 = 2;

/// Where a state file comes from.
///
/// ```text
/// Exactly one of path, data and read is set. All is borrowed for the
/// call.
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_load_desc {
    pub struct_size: usize,
    /// KVC_LOAD_\*.
    pub flags: u64,
    /// A file.
    pub path: *const c_char,
    /// `size` bytes in memory.
    pub data: *const c_void,
    pub size: usize,
    /// Copies up to `size` bytes from `offset` on into `data`. Returns how many; 0 at the end; a
    /// negated errno. Offsets ascend without gaps, and begin anew at 0 where the file is read
    /// twice. It must not use the cache.
    pub read: Option<
        unsafe extern "C" fn(user: *mut c_void, offset: u64, data: *mut c_void, size: usize) -> i64,
    >,
    /// Its first argument.
    pub user: *mut c_void,
    /// The model_id that the file must have; NULL: any.
    pub model_id: *const c_char,
    /// NULL.
    pub ext: *const kvc_ext,
}

/// Moves bytes between caches.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_transport {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// A sequence on its way.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_transfer {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// No thread: the host program calls kvc_transport_progress.
pub const KVC_TRANSPORT_MANUAL_PROGRESS: u64 = 1;

/// How a transport is opened. Everything is borrowed for the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_transport_desc {
    pub struct_size: usize,
    /// KVC_TRANSPORT_\*.
    pub flags: u64,
    /// "loopback", "ucx"; NULL: "loopback".
    pub engine: *const c_char,
    /// Where peers reach it. "loopback": a name that is new in this process, at most 255 bytes;
    /// NULL: one is made. "ucx": an IPv4 address of this machine with a port, as "10.0.0.5:7000";
    /// port 0 or none: a free one; NULL: "127.0.0.1:0", for this machine alone.
    pub address: *const c_char,
    /// The other side said nothing for so long: 5 s.
    pub idle_ns: i64,
    /// What was not answered is said again after it: 1 s.
    pub beat_ns: i64,
    /// For what is on its way when a transfer ends: 1 s.
    pub drain_ns: i64,
    /// Ended transfers are known to late messages: 60 s.
    pub tombstone_ns: i64,
    /// Of a sending transfer: 64 MiB.
    pub bytes_in_flight: u64,
    /// How often chunks are sent again: 3.
    pub resend_rounds: i32,
    /// Must be 0.
    pub reserved: i32,
    /// NULL.
    pub ext: *const kvc_ext,
}

/// Counters of a transport since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_transport_stats {
    pub struct_size: usize,
    pub transfers_open: i64,
    /// Sent, or arrived.
    pub transfers_done: u64,
    pub transfers_failed: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    /// Headers and payloads.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// For no open transfer, or out of place.
    pub messages_refused: u64,
    /// Bytes that are no message.
    pub messages_damaged: u64,
    /// Incomplete, or with another digest.
    pub payloads_damaged: u64,
}

/// Runs once when a transfer has ended: it has arrived, is done or has failed, as for
/// kvc_transfer_fence. `status` is that of kvc_transfer_info. 1. It runs on the transport's thread,
/// which moves nothing meanwhile, and may still do so when kvc_transfer_wait has returned. With
/// KVC_TRANSPORT_MANUAL_PROGRESS it runs in kvc_transport_progress, kvc_transport_close or
/// kvc_transfer_wait. Those that have not run by then run in kvc_transport_destroy. The library
/// holds no lock meanwhile. 2. kvc_transfer_destroy runs it where it has not run, with `transfer` =
/// NULL and the status of the end: KVC_E_CANCELLED for a transfer that was not over. Where it runs
/// on another thread, kvc_transfer_destroy waits for its return. `user` is not used afterwards. 3.
/// \*out of kvc_transfer_recv and kvc_transfer_send is set before. Where they fail it never runs.
/// \4. It may call the library, as any thread may, and destroy `transfer` or the transport where no
/// other call on them is open. It must not throw.
pub type kvc_transfer_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, transfer: *mut kvc_transfer, status: kvc_status),
>;

/// The prefix index gets the blocks of the sequence, and shares those that it has. Without it the
/// tokens that arrive count as unknown.
pub const KVC_TRANSFER_PUBLISH: u64 = 1;

/// What is received. Everything but `user` is borrowed for the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_recv_desc {
    pub struct_size: usize,
    /// KVC_TRANSFER_\*.
    pub flags: u64,
    /// A new id with begin = 0; or a sequence of the cache, to whose tokens, `begin` of them,
    /// others are appended: what kvc_prefix_attach has found does not travel. A window that it has
    /// saves pages: those that it hides are not reserved.
    pub seq: kvc_seq,
    /// Tokens that the sequence has; they are the sender's.
    pub begin: i64,
    /// Tokens that arrive, at least 1: the sender has begin + num_tokens.
    pub num_tokens: i64,
    /// Encoder tokens that arrive; 0 with begin > 0.
    pub cross_length: i64,
    /// For all of it, from now on: 30 s; negative: none.
    pub deadline_ns: i64,
    /// As of the transport, for this transfer; negative: none.
    pub idle_ns: i64,
    /// Of its blocks, as kvc_prefix_query.priority; with PUBLISH.
    pub priority: i32,
    /// Must be 0.
    pub reserved: i32,
    /// The model_id that the sender must give; NULL: any. At most 255 bytes.
    pub model_id: *const c_char,
    /// NULL.
    pub ext: *const kvc_ext,
    /// Tensor parallelism: rank tp_rank of tp_size (0: 1) keeps an equal run of the KV heads; the
    /// senders are sender_tp_size ranks (0: as tp_size). One size divides the other. Where there
    /// are more senders than receivers, each sends its part with the same ticket, and the sequence
    /// is there when all have arrived. Latents (MLA) and states are whole on each rank.
    pub tp_rank: i32,
    /// Tensor parallelism: rank tp_rank of tp_size (0: 1) keeps an equal run of the KV heads; the
    /// senders are sender_tp_size ranks (0: as tp_size). One size divides the other. Where there
    /// are more senders than receivers, each sends its part with the same ticket, and the sequence
    /// is there when all have arrived. Latents (MLA) and states are whole on each rank.
    pub tp_size: i32,
    /// Tensor parallelism: rank tp_rank of tp_size (0: 1) keeps an equal run of the KV heads; the
    /// senders are sender_tp_size ranks (0: as tp_size). One size divides the other. Where there
    /// are more senders than receivers, each sends its part with the same ticket, and the sequence
    /// is there when all have arrived. Latents (MLA) and states are whole on each rank.
    pub sender_tp_size: i32,
    /// Tensor parallelism: rank tp_rank of tp_size (0: 1) keeps an equal run of the KV heads; the
    /// senders are sender_tp_size ranks (0: as tp_size). One size divides the other. Where there
    /// are more senders than receivers, each sends its part with the same ticket, and the sequence
    /// is there when all have arrived. Latents (MLA) and states are whole on each rank.
    pub reserved2: i32,
    /// NULL: none.
    pub on_done: kvc_transfer_fn,
    /// Its first argument.
    pub user: *mut c_void,
}

kinds! {
    kvc_send_mode: i32 {
        /// The sequence as it is: it has all tokens of the ticket.
        KVC_SEND_NOW = 0,
        /// The sequence has some of the ticket's tokens, or none, and forwards compute the others.
        /// Rows leave layer by layer, when a call has written them and their page is full; the rest
        /// with the end of the forward that brings the last token. The transfer ends
        /// (KVC_E_CANCELLED) when such a forward is aborted, when the sequence is removed, popped,
        /// shifted or longer than the ticket says, and when it has a token tree at the end of a
        /// forward. The deadline is for the whole prefill.
        KVC_SEND_AS_COMPUTED = 1,
    }
}

/// What is sent. Everything but `user` is borrowed for the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_send_desc {
    pub struct_size: usize,
    /// Must be 0.
    pub flags: u64,
    pub seq: kvc_seq,
    /// The first token that travels: the receiver's kvc_recv_desc.begin.
    pub begin: i64,
    /// Of kvc_transfer_ticket.
    pub ticket: *const c_void,
    pub ticket_len: usize,
    pub mode: kvc_send_mode,
    /// Must be 0.
    pub reserved: i32,
    /// For all of it, from now on: 30 s; negative: none.
    pub deadline_ns: i64,
    /// As of the transport, for this transfer; negative: none.
    pub idle_ns: i64,
    /// Name of the model and its weights; at most 255 bytes.
    pub model_id: *const c_char,
    /// NULL.
    pub ext: *const kvc_ext,
    /// As in kvc_recv_desc, of the sender.
    pub tp_rank: i32,
    /// As in kvc_recv_desc, of the sender.
    pub tp_size: i32,
    /// NULL: none.
    pub on_done: kvc_transfer_fn,
    /// Its first argument.
    pub user: *mut c_void,
}

kinds! {
    kvc_transfer_state: i32 {
        /// For the other side.
        KVC_TRANSFER_WAITING = 0,
        KVC_TRANSFER_RUNNING = 1,
        /// Everything is here and compared. The sender knows.
        KVC_TRANSFER_ARRIVED = 2,
        /// It has failed, and something may still be on its way.
        KVC_TRANSFER_ENDING = 3,
        /// Sent; or the sequence is an ordinary one.
        KVC_TRANSFER_DONE = 4,
        KVC_TRANSFER_FAILED = 5,
    }
}

/// What a transfer does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_transfer_info {
    pub struct_size: usize,
    pub state: kvc_transfer_state,
    /// Of ENDING and FAILED, else KVC_OK: KVC_E_PEER (the connection is gone), KVC_E_TIMEOUT
    /// (deadline or idle; a sender may have delivered all the same), KVC_E_CANCELLED,
    /// KVC_E_CORRUPT, KVC_E_BUSY (the ticket is in use), KVC_E_NOT_FOUND (the receiver knows no
    /// such transfer), KVC_E_UNSUPPORTED (another layout), KVC_E_INVALID_ARGUMENT (another model or
    /// sequence).
    pub status: kvc_status,
    pub is_receiving: i32,
    pub reserved: i32,
    /// 0 before the two sides have met.
    pub chunks_total: u64,
    pub chunks_done: u64,
    pub chunks_resent: u64,
    pub bytes_total: u64,
    pub bytes_done: u64,
    /// Why it has failed; empty: it has not.
    pub message: [c_char; 256],
    /// What the other side said; empty: nothing.
    pub peer_message: [c_char; 256],
}

/// Where a tier is. Everything is borrowed for the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_tier_desc {
    pub struct_size: usize,
    /// Must be 0.
    pub flags: u64,
    /// FILE or REDIS.
    pub tier: kvc_tier,
    /// Tensor-parallel rank, where ranks have pages of the same layout.
    pub shard: i32,
    /// FILE: a folder, made where it is missing; one process at a time. REDIS: "host:port", one or
    /// several, separated by commas.
    pub address: *const c_char,
    /// The model and its weights, at most 255 bytes; NULL: "".
    pub model_id: *const c_char,
    /// FILE: most bytes on disk. REDIS: 0, the server has a limit.
    pub byte_limit: u64,
    /// Memory for blocks that wait to be written; 0: 64 MiB. At least two blocks.
    pub queue_bytes: u64,
    /// How long a call waits for the tier, beside 8 ms per MiB that it reads; 0: 1000.
    pub get_ms: i32,
    /// REDIS: how long a write may take; 0: 1000.
    pub put_ms: i32,
    /// REDIS: how long a connection may take; 0: 1000.
    pub connect_ms: i32,
    /// Must be 0.
    pub reserved: i32,
    /// REDIS: seconds that a value is kept; 0: until the server evicts it.
    pub ttl_s: i64,
    /// REDIS: for AUTH; NULL: none.
    pub username: *const c_char,
    /// REDIS: for AUTH; NULL: none.
    pub password: *const c_char,
    /// NULL.
    pub ext: *const kvc_ext,
}

/// Counters of a tier since it was attached, and gauges.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_tier_stats {
    pub struct_size: usize,
    /// Blocks written.
    pub blocks_put: u64,
    /// Blocks not written: the queue was full, or the tier left alone.
    pub blocks_dropped: u64,
    /// Blocks whose write failed.
    pub blocks_put_failed: u64,
    pub bytes_put: u64,
    /// Questions which blocks are there.
    pub lookups: u64,
    /// Blocks that were there.
    pub blocks_found: u64,
    /// Blocks read.
    pub blocks_got: u64,
    /// Blocks that were gone when they were read.
    pub blocks_missed: u64,
    /// Blocks whose bytes were damaged.
    pub blocks_corrupt: u64,
    /// Lookups and blocks that took too long.
    pub blocks_timed_out: u64,
    /// Lookups and blocks that failed otherwise.
    pub blocks_failed: u64,
    pub bytes_got: u64,
    /// Gauge: bytes that wait to be written.
    pub waiting_bytes: u64,
    /// Gauge: bytes that the tier holds, as far as it knows.
    pub stored_bytes: u64,
}

/// In tree_parents: not part of a tree.
pub const KVC_TREE_NONE: i32 = -2;
/// Nodes of one sequence's uncommitted tree.
pub const KVC_MAX_TREE_NODES: usize = 4096;

kinds! {
    /// Decay of a linear attention layer.
    ///
    /// ```text
    /// Per head, with state S [Dk, Dv], for each token t in order:
    ///
    ///   S   = decay_t * S
    ///   u   = beta_t (v_t - S^T k_t) with KVC_LINEAR_DELTA, else beta_t v_t
    ///   S   = S + k_t u^T
    ///   o_t = scale S^T q_t + d v_t
    ///
    ///   RetNet, Lightning   KVC_DECAY_HEAD
    ///   Gated DeltaNet      KVC_DECAY_TOKEN with DELTA
    ///   GLA                 KVC_DECAY_CHANNEL
    ///   KDA                 KVC_DECAY_CHANNEL with DELTA
    ///   Mamba-2 SSD         KVC_DECAY_TOKEN with decay = dt A, beta = dt, k = B, q = C, v = x, skip = D
    ///   plain DeltaNet      KVC_DECAY_NONE with DELTA
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

/// Options of linear attention; NULL: all defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_linear_opt {
    pub struct_size: usize,
    /// NULL.
    pub ext: *const kvc_ext,
    /// KVC_LINEAR_\* bits.
    pub flags: u64,
    pub decay: kvc_decay,
    /// Index of S in the layer's states.
    pub state: i32,
    /// 0: 1/sqrt(Dk).
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
    kvc_op_layout: i32 {
        /// \[num_pages, heads, page_size, dim\]: the library's own.
        KVC_OP_HND = 0,
        /// \[num_pages, page_size, heads, dim\]: FlashInfer, vLLM.
        KVC_OP_NHD = 1,
        /// \[num_pages, page_size, latent_rank + latent_rope_dim\].
        KVC_OP_MLA = 2,
    }
}

/// One layer's pool.
///
/// ```text
/// Any strides, but the last dimension is contiguous.
///
/// With `quant`, on the CPU only, rows are stored as kvc_quant says: k and v are int8, float8_e4m3fn
/// or float8_e5m2. Appends write the scales of PER_TOKEN_HEAD, and pages are copied with theirs. The
/// scales are float32:
///
///   k_scales   HND [num_pages, heads, page_size], NHD [num_pages, page_size, heads],
///              MLA [num_pages, page_size]
///   v_scales   alike; NULL where v is
/// ```
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
    /// NONE, PER_TENSOR, PER_TOKEN_HEAD.
    pub quant: kvc_quant,
    /// PER_TENSOR: value = element \* scale; finite, > 0; 0: 1. Else 0; v_scale also where v is
    /// NULL.
    pub k_scale: f32,
    /// PER_TENSOR: value = element \* scale; finite, > 0; 0: 1. Else 0; v_scale also where v is
    /// NULL.
    pub v_scale: f32,
    /// PER_TOKEN_HEAD; else NULL.
    pub k_scales: *const DLTensor,
    pub v_scales: *const DLTensor,
}

/// Page tables of B sequences, int32: either CSR (page_indptr, page_indices) or padded.
///
/// ```text
/// (block_table).
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_op_table {
    pub struct_size: usize,
    /// \[B\]: keys of each sequence, the new ones included; >= 0.
    pub seq_lens: *const DLTensor,
    /// \[B+1\]: rows of q of each sequence. NULL: one each.
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
    /// NULL.
    pub ext: *const kvc_ext,
    /// Borrowed for the call. NULL: the caller's thread only.
    pub executor: *const kvc_executor,
    pub cpu_isa: kvc_cpu_isa,
    /// Attention. 0: row i of n sees keys up to seq_len - n + i (causal). 1: every row sees all
    /// keys, and attn->window is 0.
    pub full: i32,
    /// Attention: scale, soft_cap, window, sink_logits, alibi_slopes, bias, flags. spans are
    /// refused.
    pub attn: *const kvc_attn_opt,
    /// Append, rotate: int32 \[T\]. Attention with a rope: \[T\] of the queries.
    pub positions: *const DLTensor,
    /// Append: K is rotated. Attention: q is rotated (K is stored rotated). Mode NONE: neither.
    pub rope: *const kvc_rope,
    /// Stream of the work on a CUDA device; ignored on the CPU.
    pub stream: kvc_stream,
}

kinds! {
    /// What kvc_export_pool exports. page_size is kvc_layer_info.page_size.
    kvc_pool_kind: i32 {
        /// \[num_pages, num_kv_heads, page_size, k_dim\], strided view. MLA: \[num_pages, 1,
        /// page_size, latent_rank + latent_rope_dim\].
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
    /// What kvc_export_page_table exports.
    ///
    /// ```text
    /// page_size is kvc_group_info.page_size; B and T are those of
    /// the forward.
    /// ```
    kvc_table_kind: i32 {
        /// int32 \[B+1\]: CSR row pointer into INDICES.
        KVC_TABLE_INDPTR = 0,
        /// int32 \[sum of pages\]: page ids, sequence after sequence.
        KVC_TABLE_INDICES = 1,
        /// int32 \[B\]: tokens in the last page, 1..page_size; 0 for no token (CROSS).
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

sized_structs! {
    kvc_error
    kvc_device_caps
    kvc_rope
    kvc_state_spec
    kvc_layer
    kvc_allocator
    kvc_executor
    kvc_config
    kvc_hf_options
    kvc_plan_info
    kvc_group_info
    kvc_layer_info
    kvc_stats
    kvc_seq_info
    kvc_forward_desc
    kvc_attn_opt
    kvc_prefix_key
    kvc_prefix_query
    kvc_event
    kvc_save_desc
    kvc_load_desc
    kvc_transport_desc
    kvc_transport_stats
    kvc_recv_desc
    kvc_send_desc
    kvc_transfer_info
    kvc_tier_desc
    kvc_tier_stats
    kvc_linear_opt
    kvc_op_pool
    kvc_op_table
    kvc_op_opt
}
