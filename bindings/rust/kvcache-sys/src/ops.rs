//! Zero-copy exports, and operators over the pools of a host.

use crate::*;

kinds! {
    /// Views of a layer's pool; see the header for their shapes.
    kvc_pool_kind: i32 {
        KVC_POOL_K = 0,
        KVC_POOL_V = 1,
        KVC_POOL_KV = 2,
        KVC_POOL_BYTES = 3,
    }
}

kinds! {
    /// Forms of the page tables of a batch; see the header for their shapes.
    kvc_table_kind: i32 {
        KVC_TABLE_INDPTR = 0,
        KVC_TABLE_INDICES = 1,
        KVC_TABLE_LAST_PAGE_LEN = 2,
        KVC_TABLE_BLOCK_TABLE = 3,
        KVC_TABLE_SLOT_MAPPING = 4,
        KVC_TABLE_SEQ_LENS = 5,
        KVC_TABLE_QO_INDPTR = 6,
        KVC_TABLE_PAGE_POSITION = 7,
    }
}

kinds! {
    /// Layouts of a host's pool.
    kvc_op_layout: i32 {
        KVC_OP_HND = 0,
        KVC_OP_NHD = 1,
        KVC_OP_MLA = 2,
    }
}

/// One layer's pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_op_pool {
    pub struct_size: usize,
    pub k: *const DLTensor,
    pub v: *const DLTensor,
    pub layout: kvc_op_layout,
    pub reserved: i32,
}

/// Page tables of B sequences: either CSR (page_indptr, page_indices) or padded (block_table); int32.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_op_table {
    pub struct_size: usize,
    pub seq_lens: *const DLTensor,
    pub qo_indptr: *const DLTensor,
    pub page_indptr: *const DLTensor,
    pub page_indices: *const DLTensor,
    pub block_table: *const DLTensor,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_op_opt {
    pub struct_size: usize,
    pub ext: *const kvc_ext,
    pub executor: *const kvc_executor,
    pub cpu_isa: kvc_cpu_isa,
    pub full: i32,
    pub attn: *const kvc_attn_opt,
    pub positions: *const DLTensor,
    pub rope: *const kvc_rope,
    pub stream: kvc_stream,
}

extern "C" {
    /// The pool memory of one layer, writable, shared.
    pub fn kvc_export_pool(
        cache: *mut kvc_cache,
        layer: i32,
        kind: kvc_pool_kind,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The page tables of the open forward's B sequences, as they are with the new tokens (tree nodes
    /// included); a read-only snapshot.
    pub fn kvc_export_page_table(
        fwd: *mut kvc_forward,
        group: i32,
        kind: kvc_table_kind,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Ids of the kept pages of one sequence's committed tokens (tree nodes included), int32 \[pages\],
    /// ascending positions; a read-only snapshot.
    pub fn kvc_export_seq_pages(
        cache: *const kvc_cache,
        seq: kvc_seq,
        group: i32,
        out: *mut *mut DLManagedTensorVersioned,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Write k \[>= T, heads, k_dim\] and v \[>= T, heads, v_dim\] to `slots` int64 \[T\] = page * page_size
    /// + offset
    pub fn kvc_op_append(
        pool: *const kvc_op_pool,
        opt: *const kvc_op_opt,
        slots: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attention of q \[T, num_q_heads, k_dim\] over pages; out \[T, num_q_heads, v_dim\], lse float32 \[T,
    /// num_q_heads\].
    pub fn kvc_op_attention_paged(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attention of packed q \[T, num_q_heads, k_dim\] over packed k \[K, num_kv_heads, k_dim\], v \[K,
    /// num_kv_heads, v_dim\]; qo_indptr, kv_indptr int32 \[B+1\] cut them into sequences; kv_indptr NULL:
    /// qo_indptr.
    pub fn kvc_op_attention_ragged(
        qo_indptr: *const DLTensor,
        kv_indptr: *const DLTensor,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Absorbed MLA over a pool of layout MLA: q \[T, heads, rank + rope dim\], out \[T, heads,
    /// latent_rank\]; opt->attn->scale must be given.
    pub fn kvc_op_mla_paged(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        latent_rank: i32,
        opt: *const kvc_op_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_attn_merge without a forward
    pub fn kvc_op_merge(
        opt: *const kvc_op_opt,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        other_out: *const DLTensor,
        other_lse: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copy all keys of the table's sequences, packed in their order, into k_out \[>= sum of seq_lens, heads,
    /// k_dim\] and v_out; either may be NULL.
    pub fn kvc_op_gather(
        pool: *const kvc_op_pool,
        table: *const kvc_op_table,
        opt: *const kvc_op_opt,
        k_out: *mut DLTensor,
        v_out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copy pages inside a pool: pairs int64 \[n, 2\] of (from, to), distinct destinations, none of which is
    /// a source.
    pub fn kvc_op_copy_pages(
        pool: *const kvc_op_pool,
        opt: *const kvc_op_opt,
        pairs: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Rotate x \[T, heads, dim\] into out (which may be x) by opt->rope at opt->positions.
    pub fn kvc_op_rotate(
        opt: *const kvc_op_opt,
        x: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_attn_linear over the host's own states \[B, H, Dk, Dv\], updated in place; qo_indptr int32 \[B+1\]
    /// cuts the tokens into sequences, NULL: one each.
    pub fn kvc_op_linear_step(
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
    ) -> kvc_status;
}
