//! Layer specs in, bytes and pages out.

use crate::*;
use core::ffi::{c_char, c_void};

kinds! {
    /// What a layer keeps.
    kvc_layer_kind: i32 {
        KVC_LAYER_ATTENTION = 0,
        KVC_LAYER_MLA = 1,
        KVC_LAYER_CROSS = 2,
        KVC_LAYER_STATE = 3,
        KVC_LAYER_SHARED = 4,
        KVC_LAYER_NONE = 5,
    }
}

/// Bits of kvc_layer.flags.
pub const KVC_LAYER_V_IS_K: i32 = 1;

kinds! {
    /// Quantised storage.
    kvc_quant: i32 {
        KVC_QUANT_NONE = 0,
        KVC_QUANT_PER_TENSOR = 1,
        KVC_QUANT_PER_TOKEN_HEAD = 2,
        KVC_QUANT_BLOCK16 = 3,
    }
}

kinds! {
    /// When K and q are rotated.
    kvc_rope_mode: i32 {
        KVC_ROPE_NONE = 0,
        KVC_ROPE_ON_APPEND = 1,
        KVC_ROPE_ON_READ = 2,
    }
}

kinds! {
    /// Which elements are a pair.
    kvc_rope_style: i32 {
        KVC_ROPE_HALF = 0,
        KVC_ROPE_INTERLEAVED = 1,
    }
}

kinds! {
    /// How frequencies change for long contexts.
    kvc_rope_scaling: i32 {
        KVC_ROPE_SCALING_NONE = 0,
        KVC_ROPE_SCALING_LLAMA3 = 1,
        KVC_ROPE_SCALING_YARN = 2,
        KVC_ROPE_SCALING_LONGROPE = 3,
    }
}

kinds! {
    /// Which pairs turn by which row of positions.
    kvc_rope_section_layout: i32 {
        KVC_ROPE_SECTIONS_CONTIGUOUS = 0,
        KVC_ROPE_SECTIONS_INTERLEAVED = 1,
    }
}

/// Rotary embedding (Su et al., arXiv:2104.09864).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_rope {
    pub struct_size: usize,
    pub mode: kvc_rope_mode,
    pub style: kvc_rope_style,
    pub rotary_dim: i32,
    pub num_freq_factors: i32,
    pub theta: f64,
    pub scale: f64,
    pub freq_factors: *const f32,
    pub scaling: kvc_rope_scaling,
    pub num_sections: i32,
    pub sections: [i32; 4],
    pub section_layout: kvc_rope_section_layout,
    pub reserved: i32,
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    pub attention_factor: f64,
    pub original_context: i64,
    pub long_freq_factors: *const f32,
}

/// One recurrent state of a STATE layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_state_spec {
    pub struct_size: usize,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *const i64,
    pub init: *const DLTensor,
}

/// One layer of the model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_layer {
    pub struct_size: usize,
    pub kind: kvc_layer_kind,
    pub num_q_heads: i32,
    pub num_kv_heads: i32,
    pub k_dim: i32,
    pub v_dim: i32,
    pub quant: kvc_quant,
    pub k_dtype: DLDataType,
    pub v_dtype: DLDataType,
    pub rope: *const kvc_rope,
    pub window: i64,
    pub chunk: i64,
    pub source_layer: i32,
    pub latent_rank: i32,
    pub latent_rope_dim: i32,
    pub flags: i32,
    pub states: *const kvc_state_spec,
    pub num_states: i32,
    pub reserved: i32,
    pub k_scale: f32,
    pub v_scale: f32,
}

kinds! {
    /// Who owns the pool.
    kvc_storage: i32 {
        KVC_STORAGE_OWNED = 0,
        KVC_STORAGE_BORROWED = 1,
        KVC_STORAGE_NONE = 2,
    }
}

kinds! {
    /// Order of the pool's memory.
    kvc_pool_layout: i32 {
        KVC_POOL_LAYER_FIRST = 0,
        KVC_POOL_PAGE_FIRST = 1,
    }
}

/// Memory for the pool from the host program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_allocator {
    pub struct_size: usize,
    pub user: *mut c_void,
    pub alloc: Option<
        unsafe extern "C" fn(user: *mut c_void, device: DLDevice, bytes: u64, alignment: u64) -> *mut c_void,
    >,
    pub free: Option<unsafe extern "C" fn(user: *mut c_void, device: DLDevice, ptr: *mut c_void, bytes: u64)>,
}

/// Threads of the host program. parallel_for calls fn(arg, task, worker) exactly once for each task in \[0,
/// num_tasks), any order, any threads, and returns when all are done
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_executor {
    pub struct_size: usize,
    pub user: *mut c_void,
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

/// Bits of kvc_config.flags.
pub const KVC_CONFIG_PAD_PAGES: u64 = 1;
pub const KVC_CONFIG_CLEAR_PAGES: u64 = 2;

/// What to plan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_config {
    pub struct_size: usize,
    pub ext: *const kvc_ext,
    pub flags: u64,
    pub device: DLDevice,
    pub page_size: i32,
    pub num_layers: i32,
    pub layers: *const kvc_layer,
    pub layer_begin: i32,
    pub layer_end: i32,
    pub max_seqs: i32,
    pub forwards_in_flight: i32,
    pub max_tokens_per_forward: i64,
    pub max_seq_len: i64,
    pub num_pages: i64,
    pub byte_budget: u64,
    pub host_byte_budget: u64,
    pub storage: kvc_storage,
    pub pool_layout: kvc_pool_layout,
    pub pool_tensors: *const *const DLTensor,
    pub num_pool_tensors: i32,
    pub num_threads: i32,
    pub cpu_isa: kvc_cpu_isa,
    pub reserved: i32,
    pub allocator: *const kvc_allocator,
    pub executor: *const kvc_executor,
    pub max_cross_len: i64,
    pub state_stride: i64,
    pub num_state_slots: i64,
    pub event_capacity: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_plan_info {
    pub struct_size: usize,
    pub page_size: i32,
    pub num_layers: i32,
    pub layer_begin: i32,
    pub layer_end: i32,
    pub num_groups: i32,
    pub num_layer_regions: i32,
    pub num_pages: i64,
    pub page_bytes: u64,
    pub bytes_per_token: u64,
    pub pool_bytes: u64,
    pub max_tokens: i64,
    pub max_seq_len: i64,
    pub state_slot_bytes: u64,
    pub num_state_slots: i64,
    pub state_slot_pages: i64,
    pub prefix_block: i32,
    pub forwards_in_flight: i32,
    pub num_host_pages: i64,
    pub request_pages: i64,
    pub concurrency: f64,
    pub waste: f64,
}

/// Layers that see the same keys share a page table: a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_group_info {
    pub struct_size: usize,
    pub num_layers: i32,
    pub is_cross: i32,
    pub window: i64,
    pub chunk: i64,
    pub page_bytes: u64,
    pub padding_bytes: u64,
    pub page_tokens: i32,
    pub first_layer: i32,
    pub request_pages: i64,
    pub bytes_per_token: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_layer_info {
    pub struct_size: usize,
    pub kind: kvc_layer_kind,
    pub group: i32,
    pub num_q_heads: i32,
    pub num_kv_heads: i32,
    pub k_dim: i32,
    pub v_dim: i32,
    pub k_dtype: DLDataType,
    pub v_dtype: DLDataType,
    pub page_bytes: u64,
    pub k_page_bytes: u64,
    pub v_page_bytes: u64,
    pub bytes_per_token: u64,
    pub window: i64,
    pub chunk: i64,
    pub source_layer: i32,
    pub latent_rank: i32,
    pub latent_rope_dim: i32,
    pub flags: i32,
    pub num_states: i32,
    pub region: i32,
    pub state_bytes: u64,
    pub region_bytes: u64,
    pub region_offset: u64,
    pub quant: kvc_quant,
    pub page_tokens: i32,
    pub k_scale_bytes: u64,
    pub v_scale_bytes: u64,
}

extern "C" {
    /// Zero `struct_size` bytes and set the size field.
    pub fn kvc_config_init(config: *mut kvc_config, struct_size: usize) -> kvc_status;
    /// Check a configuration and plan its memory.
    pub fn kvc_plan_create(
        config: *const kvc_config,
        out: *mut *mut kvc_plan,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Frees a plan; NULL is accepted. Caches made from it stay valid.
    pub fn kvc_plan_destroy(plan: *mut kvc_plan);
    /// Sizes of a plan.
    pub fn kvc_plan_info_get(
        plan: *const kvc_plan,
        out: *mut kvc_plan_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Sizes of a group of layers.
    pub fn kvc_plan_group_get(
        plan: *const kvc_plan,
        group: i32,
        out: *mut kvc_group_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// A layer as planned, defaults filled in.
    pub fn kvc_plan_layer_get(
        plan: *const kvc_plan,
        layer: i32,
        out: *mut kvc_layer_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Pages that a byte budget holds (may be 0).
    pub fn kvc_plan_pages_for(
        plan: *const kvc_plan,
        byte_budget: u64,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Longest single request, in tokens, that a byte budget holds (may be 0).
    pub fn kvc_plan_max_tokens(
        plan: *const kvc_plan,
        byte_budget: u64,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Pages that one request of `num_tokens` >= 0 tokens needs at most while it is computed, when it shares
    /// nothing: the sum over groups, and two state slots (before and after a forward) where they come out of
    /// the pages.
    pub fn kvc_plan_request_pages(
        plan: *const kvc_plan,
        num_tokens: i64,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The plan as a table for people; two-call string, see "Arrays out" above.
    pub fn kvc_plan_describe(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The plan as JSON: page_size, num_pages, page_bytes, bytes_per_token, pool_bytes, max_tokens,
    /// max_seq_len, pool_layout, storage, concurrency, waste, groups\[\], layers\[\].
    pub fn kvc_plan_to_json(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Pages that every rank of one model has: the least of the plans' num_pages.
    pub fn kvc_plan_min_pages(
        plans: *const *const kvc_plan,
        n: usize,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Read a Hugging Face `config.json` (NUL-terminated): the layers of a model and, in config, num_layers,
    /// layers and max_seq_len (the model's longest; encoder-decoders with a fixed encoder: max_cross_len
    /// too); every other field is left as it is.
    pub fn kvc_config_from_hf_json(
        json: *const c_char,
        config: *mut kvc_config,
        layers: *mut kvc_layer,
        n: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
}
