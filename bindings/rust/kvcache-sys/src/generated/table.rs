// Generated from include/kvcache.h by `make abi`. Do not edit.
//! The function table.

use crate::*;
use core::ffi::{c_char, c_void};

/// The function table, for programs that load the library at run time. It is append-only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_api {
    pub struct_size: usize,
    /// Version of the library's ABI.
    pub abi_version: u32,
    pub reserved: u32,
    /// [`kvc_abi_version`]
    pub get_abi_version: unsafe extern "C" fn() -> u32,
    /// [`kvc_version_string`]
    pub version_string: unsafe extern "C" fn() -> *const c_char,
    /// [`kvc_status_name`]
    pub status_name: unsafe extern "C" fn(status: kvc_status) -> *const c_char,
    /// [`kvc_has_feature`]
    pub has_feature: unsafe extern "C" fn(name: *const c_char) -> i32,
    /// [`kvc_device_query`]
    pub device_query: unsafe extern "C" fn(
        device: DLDevice,
        out: *mut kvc_device_caps,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_set_logger`]
    pub set_logger: unsafe extern "C" fn(
        fn_: kvc_log_fn,
        user: *mut c_void,
        min_level: kvc_log_level,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_config_init`]
    pub config_init: unsafe extern "C" fn(
        config: *mut kvc_config,
        struct_size: usize,
    ) -> kvc_status,
    /// [`kvc_plan_create`]
    pub plan_create: unsafe extern "C" fn(
        config: *const kvc_config,
        out: *mut *mut kvc_plan,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_destroy`]
    pub plan_destroy: unsafe extern "C" fn(plan: *mut kvc_plan),
    /// [`kvc_plan_info_get`]
    pub plan_info_get: unsafe extern "C" fn(
        plan: *const kvc_plan,
        out: *mut kvc_plan_info,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_layer_get`]
    pub plan_layer_get: unsafe extern "C" fn(
        plan: *const kvc_plan,
        layer: i32,
        out: *mut kvc_layer_info,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_pages_for`]
    pub plan_pages_for: unsafe extern "C" fn(
        plan: *const kvc_plan,
        byte_budget: u64,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_max_tokens`]
    pub plan_max_tokens: unsafe extern "C" fn(
        plan: *const kvc_plan,
        byte_budget: u64,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_request_pages`]
    pub plan_request_pages: unsafe extern "C" fn(
        plan: *const kvc_plan,
        num_tokens: i64,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_describe`]
    pub plan_describe: unsafe extern "C" fn(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_to_json`]
    pub plan_to_json: unsafe extern "C" fn(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_cache_create`]
    pub cache_create: unsafe extern "C" fn(
        plan: *const kvc_plan,
        out: *mut *mut kvc_cache,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_cache_destroy`]
    pub cache_destroy: unsafe extern "C" fn(cache: *mut kvc_cache),
    /// [`kvc_cache_clear`]
    pub cache_clear: unsafe extern "C" fn(cache: *mut kvc_cache, err: *mut kvc_error) -> kvc_status,
    /// [`kvc_cache_resize`]
    pub cache_resize: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        num_pages: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_cache_stats_get`]
    pub cache_stats_get: unsafe extern "C" fn(
        cache: *const kvc_cache,
        out: *mut kvc_stats,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_cache_available_pages`]
    pub cache_available_pages: unsafe extern "C" fn(cache: *const kvc_cache) -> i64,
    /// [`kvc_cache_total_length`]
    pub cache_total_length: unsafe extern "C" fn(cache: *const kvc_cache) -> i64,
    /// [`kvc_cache_is_empty`]
    pub cache_is_empty: unsafe extern "C" fn(cache: *const kvc_cache) -> i32,
    /// [`kvc_cache_check`]
    pub cache_check: unsafe extern "C" fn(
        cache: *const kvc_cache,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_add`]
    pub seq_add: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_remove`]
    pub seq_remove: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_fork`]
    pub seq_fork: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        parent: kvc_seq,
        child: kvc_seq,
        pos: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_pop`]
    pub seq_pop: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        n: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_length`]
    pub seq_length: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        out_length: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_info_get`]
    pub seq_info_get: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        out: *mut kvc_seq_info,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_list`]
    pub seq_list: unsafe extern "C" fn(
        cache: *const kvc_cache,
        ids: *mut kvc_seq,
        count: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_can_append`]
    pub seq_can_append: unsafe extern "C" fn(
        cache: *const kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        lengths: *const i64,
        out_missing_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_can`]
    pub seq_can: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        op: kvc_seq_op,
        pos: i64,
        out_nearest: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_forward_begin`]
    pub forward_begin: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        desc: *const kvc_forward_desc,
        out: *mut *mut kvc_forward,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_forward_num_tokens`]
    pub forward_num_tokens: unsafe extern "C" fn(fwd: *const kvc_forward) -> i64,
    /// [`kvc_forward_positions`]
    pub forward_positions: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_forward_end`]
    pub forward_end: unsafe extern "C" fn(fwd: *mut kvc_forward, err: *mut kvc_error) -> kvc_status,
    /// [`kvc_forward_abort`]
    pub forward_abort: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_attn`]
    pub attn: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_attn_fused_qkv`]
    pub attn_fused_qkv: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        qkv: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_attn_self`]
    pub attn_self: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_attn_cached`]
    pub attn_cached: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_attn_merge`]
    pub attn_merge: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        other_out: *const DLTensor,
        other_lse: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_kv_append`]
    pub kv_append: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        k: *const DLTensor,
        v: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_kv_gather`]
    pub kv_gather: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        seq: kvc_seq,
        k_out: *mut DLTensor,
        v_out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_debug_get_kv`]
    pub debug_get_kv: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        k: *mut DLTensor,
        v: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_debug_set_kv`]
    pub debug_set_kv: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        k: *const DLTensor,
        v: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_export_pool`]
    pub export_pool: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        layer: i32,
        kind: kvc_pool_kind,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_export_page_table`]
    pub export_page_table: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        group: i32,
        kind: kvc_table_kind,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_export_seq_pages`]
    pub export_seq_pages: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        group: i32,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_group_get`]
    pub plan_group_get: unsafe extern "C" fn(
        plan: *const kvc_plan,
        group: i32,
        out: *mut kvc_group_info,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_shift`]
    pub seq_shift: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        delta: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_set_window`]
    pub seq_set_window: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        window: i64,
        sink: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_tree_commit`]
    pub tree_commit: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        leaves: *const i32,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_mla_append`]
    pub mla_append: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        latent: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_attn_cross`]
    pub attn_cross: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_attn_shared_kv`]
    pub attn_shared_kv: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        source_layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_state_get`]
    pub state_get: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_state_set`]
    pub state_set: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        value: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_state_checkpoint`]
    pub state_checkpoint: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_attn_linear`]
    pub attn_linear: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_linear_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        decay: *const DLTensor,
        beta: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_state_conv`]
    pub state_conv: unsafe extern "C" fn(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        x: *const DLTensor,
        weight: *const DLTensor,
        bias: *const DLTensor,
        activation: kvc_activation,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_debug_get_mla`]
    pub debug_get_mla: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        latent: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_debug_set_mla`]
    pub debug_set_mla: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        latent: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_debug_get_layer`]
    pub debug_get_layer: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        layer: i32,
        begin: i64,
        end: i64,
        k: *mut DLTensor,
        v: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_debug_set_layer`]
    pub debug_set_layer: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        layer: i32,
        begin: i64,
        k: *const DLTensor,
        v: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_debug_get_state`]
    pub debug_get_state: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        layer: i32,
        state: i32,
        out: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_debug_set_state`]
    pub debug_set_state: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        layer: i32,
        state: i32,
        value: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_append`]
    pub op_append: unsafe extern "C" fn(
        pool: *const kvc_op_pool,
        opt: *const kvc_op_opt,
        slots: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_attention_paged`]
    pub op_attention_paged: unsafe extern "C" fn(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_attention_ragged`]
    pub op_attention_ragged: unsafe extern "C" fn(
        qo_indptr: *const DLTensor,
        kv_indptr: *const DLTensor,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_mla_paged`]
    pub op_mla_paged: unsafe extern "C" fn(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        latent_rank: i32,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_merge`]
    pub op_merge: unsafe extern "C" fn(
        opt: *const kvc_op_opt,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        other_out: *const DLTensor,
        other_lse: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_gather`]
    pub op_gather: unsafe extern "C" fn(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        opt: *const kvc_op_opt,
        k_out: *mut DLTensor,
        v_out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_copy_pages`]
    pub op_copy_pages: unsafe extern "C" fn(
        pool: *const kvc_op_pool,
        opt: *const kvc_op_opt,
        pairs: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_rotate`]
    pub op_rotate: unsafe extern "C" fn(
        opt: *const kvc_op_opt,
        x: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_linear_step`]
    pub op_linear_step: unsafe extern "C" fn(
        linear: *const kvc_linear_opt,
        opt: *const kvc_op_opt,
        qo_indptr: *const DLTensor,
        states: *mut DLTensor,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        decay: *const DLTensor,
        beta: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_plan_min_pages`]
    pub plan_min_pages: unsafe extern "C" fn(
        plans: *const *const kvc_plan,
        n: usize,
        out_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_config_from_hf_json`]
    pub config_from_hf_json: unsafe extern "C" fn(
        json: *const c_char,
        config: *mut kvc_config,
        layers: *mut kvc_layer,
        n: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_hash`]
    pub prefix_hash: unsafe extern "C" fn(
        tokens: *const i32,
        num_tokens: usize,
        block_tokens: i32,
        salt: *const c_void,
        salt_size: usize,
        keys: *const kvc_prefix_key,
        num_keys: usize,
        out_hashes: *mut u8,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_match`]
    pub prefix_match: unsafe extern "C" fn(
        cache: *const kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_attach`]
    pub prefix_attach: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_insert`]
    pub prefix_insert: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_pin`]
    pub prefix_pin: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_unpin`]
    pub prefix_unpin: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_evict`]
    pub prefix_evict: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        pages: i64,
        out_freed: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_reset`]
    pub prefix_reset: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_prefix_quota_set`]
    pub prefix_quota_set: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        salt: *const c_void,
        salt_size: usize,
        max_bytes: u64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_events_poll`]
    pub events_poll: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        out: *mut kvc_event,
        count: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_events_snapshot`]
    pub events_snapshot: unsafe extern "C" fn(
        cache: *const kvc_cache,
        out: *mut kvc_event,
        count: *mut usize,
        out_number: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_swap_out`]
    pub swap_out: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_swap_in`]
    pub swap_in: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_pages_swap`]
    pub pages_swap: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        pairs: *const DLTensor,
        direction: kvc_swap_direction,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_pages_copy`]
    pub pages_copy: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        pairs: *const DLTensor,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_fence_query`]
    pub fence_query: unsafe extern "C" fn(
        fence: *const kvc_fence,
        out_done: *mut i32,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_fence_wait`]
    pub fence_wait: unsafe extern "C" fn(
        fence: *const kvc_fence,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_fence_wait_on_stream`]
    pub fence_wait_on_stream: unsafe extern "C" fn(
        fence: *const kvc_fence,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_fence_destroy`]
    pub fence_destroy: unsafe extern "C" fn(fence: *mut kvc_fence),
    /// [`kvc_module_path_set`]
    pub module_path_set: unsafe extern "C" fn(
        path: *const c_char,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_layout_fingerprint`]
    pub layout_fingerprint: unsafe extern "C" fn(
        plan: *const kvc_plan,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_save`]
    pub seq_save: unsafe extern "C" fn(
        cache: *const kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        desc: *const kvc_save_desc,
        stream: kvc_stream,
        out_bytes: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_load`]
    pub seq_load: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        desc: *const kvc_load_desc,
        n: usize,
        seqs: *const kvc_seq,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_state_file_describe`]
    pub state_file_describe: unsafe extern "C" fn(
        desc: *const kvc_load_desc,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_reserve`]
    pub seq_reserve: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        n: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_pages_export`]
    pub pages_export: unsafe extern "C" fn(
        cache: *const kvc_cache,
        layer: i32,
        ids: *const DLTensor,
        out: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_pages_import`]
    pub pages_import: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        layer: i32,
        ids: *const DLTensor,
        in_: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_tier_attach`]
    pub tier_attach: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        desc: *const kvc_tier_desc,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_tier_attach_file`]
    pub tier_attach_file: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        path: *const c_char,
        byte_limit: u64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_tier_detach`]
    pub tier_detach: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        tier: kvc_tier,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_tier_flush`]
    pub tier_flush: unsafe extern "C" fn(
        cache: *const kvc_cache,
        timeout_ms: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_tier_stats_get`]
    pub tier_stats_get: unsafe extern "C" fn(
        cache: *const kvc_cache,
        tier: kvc_tier,
        out: *mut kvc_tier_stats,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_quantize`]
    pub op_quantize: unsafe extern "C" fn(
        opt: *const kvc_op_opt,
        quant: kvc_quant,
        x: *const DLTensor,
        out: *mut DLTensor,
        scales: *mut DLTensor,
        out_saturated: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_op_dequantize`]
    pub op_dequantize: unsafe extern "C" fn(
        opt: *const kvc_op_opt,
        quant: kvc_quant,
        x: *const DLTensor,
        scales: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_cache_trim`]
    pub cache_trim: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        out_released: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_seq_positions`]
    pub seq_positions: unsafe extern "C" fn(
        cache: *const kvc_cache,
        seq: kvc_seq,
        op: kvc_seq_op,
        pos: i64,
        out_below: *mut i64,
        out_above: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_state_checkpoint_release`]
    pub state_checkpoint_release: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        pos: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transport_open`]
    pub transport_open: unsafe extern "C" fn(
        desc: *const kvc_transport_desc,
        out: *mut *mut kvc_transport,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transport_address`]
    pub transport_address: unsafe extern "C" fn(
        transport: *const kvc_transport,
        buf: *mut c_char,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transport_fd`]
    pub transport_fd: unsafe extern "C" fn(
        transport: *const kvc_transport,
        out_fd: *mut i32,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transport_progress`]
    pub transport_progress: unsafe extern "C" fn(
        transport: *mut kvc_transport,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transport_stats_get`]
    pub transport_stats_get: unsafe extern "C" fn(
        transport: *const kvc_transport,
        out: *mut kvc_transport_stats,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transport_close`]
    pub transport_close: unsafe extern "C" fn(
        transport: *mut kvc_transport,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transport_destroy`]
    pub transport_destroy: unsafe extern "C" fn(transport: *mut kvc_transport),
    /// [`kvc_transfer_recv`]
    pub transfer_recv: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        transport: *mut kvc_transport,
        desc: *const kvc_recv_desc,
        out: *mut *mut kvc_transfer,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transfer_ticket`]
    pub transfer_ticket: unsafe extern "C" fn(
        transfer: *const kvc_transfer,
        buf: *mut c_void,
        len: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transfer_send`]
    pub transfer_send: unsafe extern "C" fn(
        cache: *mut kvc_cache,
        transport: *mut kvc_transport,
        desc: *const kvc_send_desc,
        out: *mut *mut kvc_transfer,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transfer_query`]
    pub transfer_query: unsafe extern "C" fn(
        transfer: *const kvc_transfer,
        out: *mut kvc_transfer_info,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transfer_wait`]
    pub transfer_wait: unsafe extern "C" fn(
        transfer: *mut kvc_transfer,
        timeout_ns: i64,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transfer_fence`]
    pub transfer_fence: unsafe extern "C" fn(
        transfer: *const kvc_transfer,
        out: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transfer_cancel`]
    pub transfer_cancel: unsafe extern "C" fn(
        transfer: *mut kvc_transfer,
        err: *mut kvc_error,
    ) -> kvc_status,
    /// [`kvc_transfer_destroy`]
    pub transfer_destroy: unsafe extern "C" fn(transfer: *mut kvc_transfer),
    /// [`kvc_config_from_hf`]
    pub config_from_hf: unsafe extern "C" fn(
        json: *const c_char,
        opt: *const kvc_hf_options,
        config: *mut kvc_config,
        layers: *mut kvc_layer,
        n: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status,
}
