//! Statistics, sequences, and the batch of a step.

use crate::*;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_stats {
    pub struct_size: usize,
    pub num_seqs: i64,
    pub total_length: i64,
    pub pages_total: i64,
    pub pages_free: i64,
    pub pages_used: i64,
    pub pages_shared: i64,
    pub pages_peak: i64,
    pub page_bytes: u64,
    pub pool_bytes: u64,
    pub forwards: u64,
    pub forwards_aborted: u64,
    pub tokens_appended: u64,
    pub pages_copied: u64,
    pub no_pages: u64,
    pub step_bytes: u64,
    pub step_copies: u64,
    pub state_slots_used: i64,
    pub state_slot_bytes: u64,
    pub tree_tokens: u64,
    pub cascades: u64,
    pub slots_unused: i64,
    pub pages_cached: i64,
    pub pages_evictable: i64,
    pub prefix_blocks: i64,
    pub prefix_blocks_host: i64,
    pub prefix_pinned: i64,
    pub prefix_lookups: u64,
    pub prefix_query_tokens: u64,
    pub prefix_hit_tokens: u64,
    pub recent_query_tokens: u64,
    pub recent_hit_tokens: u64,
    pub prefix_stored: u64,
    pub prefix_duplicates: u64,
    pub prefix_evicted: u64,
    pub prefix_rejected: u64,
    pub prefix_demoted: u64,
    pub prefix_promoted: u64,
    pub host_pages_total: i64,
    pub host_pages_used: i64,
    pub num_swapped_seqs: i64,
    pub pages_swapped_out: u64,
    pub pages_swapped_in: u64,
    pub copy_runs: u64,
    pub events_made: u64,
    pub events_lost: u64,
    pub block_lifetime: [u64; 32],
    pub block_idle: [u64; 32],
    pub block_reuse_gap: [u64; 32],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_seq_info {
    pub struct_size: usize,
    pub length: i64,
    pub first_position: i64,
    pub last_position: i64,
    pub num_pages: i64,
    pub num_shared_pages: i64,
    pub window: i64,
    pub sink: i64,
    pub in_forward: i32,
    pub num_checkpoints: i32,
    pub tree_nodes: i64,
    pub cross_length: i64,
    pub is_swapped: i32,
    pub reserved: i32,
    pub known_tokens: i64,
}

kinds! {
    /// What kvc_seq_can is asked.
    kvc_seq_op: i32 {
        KVC_SEQ_FORK = 0,
        KVC_SEQ_POP = 1,
        KVC_SEQ_SHIFT = 2,
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_forward_desc {
    pub struct_size: usize,
    pub ext: *const kvc_ext,
    pub stream: kvc_stream,
    pub num_seqs: usize,
    pub seqs: *const kvc_seq,
    pub append_lengths: *const i64,
    pub tree_parents: *const i32,
    pub tokens: *const i32,
    pub flags: u64,
    pub positions: *const DLTensor,
    pub cross_lengths: *const i64,
}

pub const KVC_TREE_NONE: i32 = -2;
/// Bits of kvc_forward_desc.flags.
pub const KVC_FORWARD_REPLAY: u64 = 1;
pub const KVC_FORWARD_PARTIAL: u64 = 2;
pub const KVC_MAX_TREE_NODES: usize = 4096;

extern "C" {
    /// Make an empty cache.
    pub fn kvc_cache_create(
        plan: *const kvc_plan,
        out: *mut *mut kvc_cache,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Frees a cache; NULL is accepted. Exported tensors stay valid.
    pub fn kvc_cache_destroy(cache: *mut kvc_cache);
    /// Forget all sequences, the prefix index and what is on the host; page data is not touched.
    pub fn kvc_cache_clear(cache: *mut kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Grow the pool, or shrink it when the pages above are free.
    pub fn kvc_cache_resize(cache: *mut kvc_cache, num_pages: i64, err: *mut kvc_error) -> kvc_status;
    /// Counters of a cache.
    pub fn kvc_cache_stats_get(
        cache: *const kvc_cache,
        out: *mut kvc_stats,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Pages not held by any sequence, forward or pin (those that only the prefix index holds are free)
    pub fn kvc_cache_free_pages(cache: *const kvc_cache) -> i64;
    /// Tokens over all sequences, each sequence counting its shared prefix
    pub fn kvc_cache_total_length(cache: *const kvc_cache) -> i64;
    /// 1: no sequence exists and every page is free.
    pub fn kvc_cache_is_empty(cache: *const kvc_cache) -> i32;
    /// Recount everything and compare: reference counts, free list, lengths, tables.
    pub fn kvc_cache_check(cache: *const kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Add an empty sequence.
    pub fn kvc_seq_add(cache: *mut kvc_cache, seq: kvc_seq, err: *mut kvc_error) -> kvc_status;
    /// Remove a sequence; any order is legal, shared pages live on while another sequence uses them.
    pub fn kvc_seq_remove(cache: *mut kvc_cache, seq: kvc_seq, err: *mut kvc_error) -> kvc_status;
    /// Add `child` with the first `pos` tokens of `parent` (-1: all).
    pub fn kvc_seq_fork(
        cache: *mut kvc_cache,
        parent: kvc_seq,
        child: kvc_seq,
        pos: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Drop the last `n` tokens, 0 \<= n \<= length, also past a fork point; siblings keep theirs.
    pub fn kvc_seq_pop(cache: *mut kvc_cache, seq: kvc_seq, n: i64, err: *mut kvc_error) -> kvc_status;
    /// Drop tokens \[begin, end) of a sequence and move the later ones by `delta` positions: begin - end
    /// closes the gap (context shift).
    pub fn kvc_seq_shift(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        delta: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Let the sequence see, in every ATTENTION and MLA layer, only its first `sink` tokens and the newest: a
    /// query at position p sees keys k \< sink or k > p - (window - sink), at most `window` keys, itself
    /// included (StreamingLLM, arXiv:2309.17453).
    pub fn kvc_seq_set_window(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        window: i64,
        sink: i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Committed tokens of a sequence; those of an open forward count from kvc_forward_end on.
    pub fn kvc_seq_length(
        cache: *const kvc_cache,
        seq: kvc_seq,
        out_length: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// What is known of a sequence.
    pub fn kvc_seq_info_get(
        cache: *const kvc_cache,
        seq: kvc_seq,
        out: *mut kvc_seq_info,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// All sequence ids, ascending; two-call array.
    pub fn kvc_seq_list(
        cache: *const kvc_cache,
        ids: *mut kvc_seq,
        count: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Would kvc_forward_begin with these `n` sequences and append lengths find its pages? KVC_OK and
    /// *out_missing_pages = 0: yes
    pub fn kvc_seq_can_append(
        cache: *const kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        lengths: *const i64,
        out_missing_pages: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Could the sequence be forked at, popped back to, or shifted at position `pos` (-1: its end)?
    /// *out_nearest is the nearest position where it could (ties: the smaller)
    pub fn kvc_seq_can(
        cache: *const kvc_cache,
        seq: kvc_seq,
        op: kvc_seq_op,
        pos: i64,
        out_nearest: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Open a step: check everything, reserve pages, make private what the new tokens share.
    pub fn kvc_forward_begin(
        cache: *mut kvc_cache,
        desc: *const kvc_forward_desc,
        out: *mut *mut kvc_forward,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// New tokens of the whole batch (T)
    pub fn kvc_forward_num_tokens(fwd: *const kvc_forward) -> i64;
    /// Position of each new token, as RoPE takes it
    pub fn kvc_forward_positions(
        fwd: *mut kvc_forward,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Make the new tokens part of their sequences.
    pub fn kvc_forward_end(fwd: *mut kvc_forward, err: *mut kvc_error) -> kvc_status;
    /// Undo the begin: lengths, pages, tables, trees, windows and states as before; whatever was written to
    /// the new slots is forgotten.
    pub fn kvc_forward_abort(fwd: *mut kvc_forward, err: *mut kvc_error) -> kvc_status;
    /// Accept a path of each sequence's token tree: root -> leaves\[i\] becomes committed tokens, moved
    /// together in every layer; all other nodes are dropped.
    pub fn kvc_tree_commit(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        leaves: *const i32,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
}
