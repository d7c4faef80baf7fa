//! Prefix queries, events and copies.

use crate::*;
use core::ffi::c_void;

/// Unit: a block of kvc_plan_info.prefix_block tokens, all groups together.
pub const KVC_HASH_BYTES: usize = 32;

kinds! {
    /// What beside tokens K and V depend on.
    kvc_prefix_key_type: u32 {
        KVC_PREFIX_KEY_ADAPTER = 1,
        KVC_PREFIX_KEY_MEDIA = 2,
        KVC_PREFIX_KEY_USER = 256,
    }
}

/// More than tokens that K and V depend on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_prefix_key {
    pub struct_size: usize,
    pub type_: kvc_prefix_key_type,
    pub reserved: u32,
    pub offset: i64,
    pub data: *const c_void,
    pub size: usize,
}

/// Bits of kvc_prefix_query.flags.
pub const KVC_PREFIX_ALL_TOKENS: u64 = 1;
pub const KVC_PREFIX_WHOLE_BLOCKS: u64 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_prefix_query {
    pub struct_size: usize,
    pub ext: *const kvc_ext,
    pub flags: u64,
    pub num_tokens: i64,
    pub tokens: *const i32,
    pub hashes: *const u8,
    pub num_hashes: usize,
    pub salt: *const c_void,
    pub salt_size: usize,
    pub keys: *const kvc_prefix_key,
    pub num_keys: usize,
    pub priority: i32,
    pub reserved: i32,
}

kinds! {
    /// What happened to a block.
    kvc_event_type: i32 {
        KVC_EVENT_STORED = 0,
        KVC_EVENT_REMOVED = 1,
        KVC_EVENT_MOVED = 2,
        KVC_EVENT_CLEARED = 3,
    }
}

kinds! {
    /// Where a block lies.
    kvc_tier: i32 {
        KVC_TIER_DEVICE = 0,
        KVC_TIER_HOST = 1,
    }
}

/// A consumer that starts from nothing (or from kvc_events_snapshot) and applies events in order holds what
/// the index holds: for each key and group the tier.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_event {
    pub struct_size: usize,
    pub number: u64,
    pub type_: kvc_event_type,
    pub tier: kvc_tier,
    pub from_tier: kvc_tier,
    pub group: i32,
    pub num_tokens: i32,
    pub reserved: i32,
    pub tokens: *const i32,
    pub hash: [u8; KVC_HASH_BYTES],
    pub parent: [u8; KVC_HASH_BYTES],
}

kinds! {
    /// Direction of kvc_pages_swap.
    kvc_swap_direction: i32 {
        KVC_SWAP_OUT = 0,
        KVC_SWAP_IN = 1,
    }
}

extern "C" {
    /// Keys of the full blocks of `num_tokens` tokens: out_hashes \[num_tokens /
    /// block_tokens\]\[KVC_HASH_BYTES\]; two-call array, *len counts keys.
    pub fn kvc_prefix_hash(
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
    ) -> kvc_status;
    /// Leading tokens that kvc_prefix_attach would find now.
    pub fn kvc_prefix_match(
        cache: *const kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Add `seq` with the longest hit (its length is then *out_tokens, 0 when nothing hits), in the query's
    /// namespace: later forwards with `tokens` publish there.
    pub fn kvc_prefix_attach(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Say that the first query->num_tokens (at most the length) tokens of `seq` are these, in this
    /// namespace, and publish their full blocks.
    pub fn kvc_prefix_insert(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Keep the full blocks of the query that are in the index (on the device) from being evicted; counts.
    pub fn kvc_prefix_pin(
        cache: *mut kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Undo one kvc_prefix_pin of the same query
    pub fn kvc_prefix_unpin(
        cache: *mut kvc_cache,
        query: *const kvc_prefix_query,
        out_tokens: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Evict until at least `pages` pages have left the index (to the host when it has room), or nothing
    /// evictable is left.
    pub fn kvc_prefix_evict(
        cache: *mut kvc_cache,
        pages: i64,
        out_freed: *mut i64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Forget the whole index, pins and host copies too (new weights).
    pub fn kvc_prefix_reset(cache: *mut kvc_cache, err: *mut kvc_error) -> kvc_status;
    /// Give the namespace `salt` a quota: the device pages and states that the index holds for it stay within
    /// max_bytes (what does not fit replaces its own least recently used blocks, or is not published), and
    /// other namespaces' traffic evicts them only when nothing else can be evicted.
    pub fn kvc_prefix_quota_set(
        cache: *mut kvc_cache,
        salt: *const c_void,
        salt_size: usize,
        max_bytes: u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The oldest unpolled events, at most *count of them, into out (out\[0\].struct_size is the stride)
    pub fn kvc_events_poll(
        cache: *mut kvc_cache,
        out: *mut kvc_event,
        count: *mut usize,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Everything that the index holds as STORED events, parents before their children; two-call array.
    pub fn kvc_events_snapshot(
        cache: *const kvc_cache,
        out: *mut kvc_event,
        count: *mut usize,
        out_number: *mut u64,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Move sequences to the host: their pages, the states of STATE layers, their checkpoints.
    pub fn kvc_swap_out(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Bring them back.
    pub fn kvc_swap_in(
        cache: *mut kvc_cache,
        n: usize,
        seqs: *const kvc_seq,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copy whole pages (all layers) between the pools: pairs int64 \[n, 2\] on the CPU of (from, to), any n
    /// >= 0, borrowed for the call.
    pub fn kvc_pages_swap(
        cache: *mut kvc_cache,
        pairs: *const DLTensor,
        direction: kvc_swap_direction,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The same inside the device pool.
    pub fn kvc_pages_copy(
        cache: *mut kvc_cache,
        pairs: *const DLTensor,
        stream: kvc_stream,
        out_fence: *mut *mut kvc_fence,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// *out_done: 1 when the copies are complete, else 0.
    pub fn kvc_fence_query(fence: *const kvc_fence, out_done: *mut i32, err: *mut kvc_error) -> kvc_status;
    /// Wait for the copies, at most timeout_ns nanoseconds; negative: for ever.
    pub fn kvc_fence_wait(fence: *const kvc_fence, timeout_ns: i64, err: *mut kvc_error) -> kvc_status;
    /// Let what is enqueued on `stream` from now on wait for the copies.
    pub fn kvc_fence_wait_on_stream(
        fence: *const kvc_fence,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Frees a fence; NULL is accepted. The copies go on.
    pub fn kvc_fence_destroy(fence: *mut kvc_fence);
}
