//! Pages and sequences. [`Cache`] owns; [`CacheRef`] is what it dereferences to, and what an open forward
//! lends.

use crate::element::Stream;
use crate::error::{check, check_count, check_out, Error, Result, Status};
use crate::host::SharedExecutor;
use crate::kinds::SeqOp;
use crate::library::{api, loaded};
use crate::plan::array;
use crate::{Config, Plan};
use kvcache_sys as sys;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{null_mut, NonNull};

/// Id of a sequence, chosen by the caller, at least 0.
pub type SeqId = i64;
/// Counters of a cache; see `kvc_stats`.
pub type Stats = sys::kvc_stats;
/// What is known of a sequence; see `kvc_seq_info`.
pub type SeqInfo = sys::kvc_seq_info;

/// A KV cache: pages, sequences, and the prefix index. It may move between threads; what takes `&self` may
/// run on several at once.
pub struct Cache {
    raw: NonNull<sys::kvc_cache>,
    _executor: Option<SharedExecutor>,
}

/// The calls of a [`Cache`]. Lent by it and, for as long as a step is open, by its
/// [`Forward`](crate::Forward).
///
/// Calls that change nothing take `&self`, and threads may make them at once, also beside attention. The
/// others take `&mut self`.
///
/// No value of this type exists, only references, which are addresses of the library's object: nothing can be
/// moved out of them.
#[repr(C)]
pub struct CacheRef {
    _opaque: UnsafeCell<[u8; 0]>,
}

// SAFETY: a cache may move between threads.
unsafe impl Send for Cache {}
// SAFETY: through a shared reference only functions that take const kvc_cache * are called, which may run at
// once.
unsafe impl Sync for Cache {}
// SAFETY: as for Cache.
unsafe impl Send for CacheRef {}
// SAFETY: as for Cache.
unsafe impl Sync for CacheRef {}

impl Cache {
    /// An empty cache. Owned memory is reserved, and costs physical memory as pages are written.
    pub fn new(plan: &Plan) -> Result<Self> {
        let api = api()?;
        let mut raw = null_mut();
        // SAFETY: a live plan and one output.
        check(|error| unsafe { (api.cache_create)(plan.as_ptr(), &mut raw, error) })?;
        Ok(Cache { raw: NonNull::new(raw).expect("a cache on success"), _executor: plan.executor() })
    }

    /// Plans and makes a cache.
    pub fn with_config(config: &Config) -> Result<Self> {
        Cache::new(&Plan::new(config)?)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: ours, once. A forward that was forgotten is dropped with it.
        unsafe { (loaded().cache_destroy)(self.raw.as_ptr()) };
    }
}

impl Deref for Cache {
    type Target = CacheRef;
    fn deref(&self) -> &CacheRef {
        // SAFETY: an opaque type of no size, whose address is all that is used.
        unsafe { &*self.raw.as_ptr().cast() }
    }
}

impl DerefMut for Cache {
    fn deref_mut(&mut self) -> &mut CacheRef {
        // SAFETY: as above.
        unsafe { &mut *self.raw.as_ptr().cast() }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Debug for CacheRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("available_pages", &self.available_pages())
            .field("total_length", &self.total_length())
            .finish()
    }
}

impl CacheRef {
    #[inline]
    pub(crate) fn as_ptr(&self) -> *const sys::kvc_cache {
        std::ptr::from_ref(self).cast()
    }

    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut sys::kvc_cache {
        std::ptr::from_mut(self).cast()
    }

    /// The handle, for functions of [`sys`](crate::sys) that this crate does not wrap. Functions that take
    /// `kvc_cache *` need an exclusive borrow of the cache around them.
    pub fn as_raw(&self) -> *mut sys::kvc_cache {
        self.as_ptr().cast_mut()
    }

    /// Forgets all sequences and the prefix index, and gives memory back as [`trim`](Self::trim) does.
    pub fn clear(&mut self) -> Result<()> {
        // SAFETY: exclusive, as for all functions that take kvc_cache *.
        check(|error| unsafe { (loaded().cache_clear)(self.as_mut_ptr(), error) })
    }

    /// Grows the pool, or shrinks it when the pages above are free.
    pub fn resize(&mut self, num_pages: i64) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().cache_resize)(self.as_mut_ptr(), num_pages, error) })
    }

    /// Gives the memory of free pages back to the system; returns its bytes.
    pub fn trim(&mut self) -> Result<u64> {
        // SAFETY: exclusive, one output.
        check_out(0, |out, error| unsafe { (loaded().cache_trim)(self.as_mut_ptr(), out, error) })
    }

    /// Counters.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = Stats::default();
        // SAFETY: the struct says its size.
        check(|error| unsafe { (loaded().cache_stats_get)(self.as_ptr(), &mut stats, error) })?;
        Ok(stats)
    }

    /// Pages that no sequence, forward or pin holds.
    pub fn available_pages(&self) -> i64 {
        // SAFETY: shared.
        unsafe { (loaded().cache_available_pages)(self.as_ptr()) }
    }

    /// Tokens over all sequences.
    pub fn total_length(&self) -> i64 {
        // SAFETY: shared.
        unsafe { (loaded().cache_total_length)(self.as_ptr()) }
    }

    /// No sequence exists, and every page is free.
    pub fn is_empty(&self) -> bool {
        // SAFETY: shared.
        unsafe { (loaded().cache_is_empty)(self.as_ptr()) == 1 }
    }

    /// Recounts everything and compares; the error names what does not agree.
    pub fn check(&self) -> Result<()> {
        // SAFETY: shared.
        check(|error| unsafe { (loaded().cache_check)(self.as_ptr(), error) })
    }

    /// Adds an empty sequence.
    pub fn add(&mut self, seq: SeqId) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().seq_add)(self.as_mut_ptr(), seq, error) })
    }

    /// Removes a sequence; pages that others share stay.
    pub fn remove(&mut self, seq: SeqId) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().seq_remove)(self.as_mut_ptr(), seq, error) })
    }

    /// Adds `child` with the first `pos` tokens of `parent`, or with all of them. Nothing is copied.
    pub fn fork(&mut self, parent: SeqId, child: SeqId, pos: Option<i64>) -> Result<()> {
        if let Some(pos) = pos.filter(|pos| *pos < 0) {
            return Err(Error::new(Status::OutOfRange, format!("fork: pos {pos}: at least 0")));
        }
        let pos = pos.unwrap_or(-1);
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().seq_fork)(self.as_mut_ptr(), parent, child, pos, error) })
    }

    /// Appends `n` tokens without content, for rows that come from elsewhere
    /// ([`pages_import`](Self::pages_import)). The prefix index never gets a block that contains one of them.
    pub fn reserve(&mut self, seq: SeqId, n: i64) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().seq_reserve)(self.as_mut_ptr(), seq, n, error) })
    }

    /// Drops the last `n` tokens.
    pub fn pop(&mut self, seq: SeqId, n: i64) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().seq_pop)(self.as_mut_ptr(), seq, n, error) })
    }

    /// Drops tokens `begin..end` and moves the later ones by `delta` positions: `begin - end` closes the gap.
    pub fn shift(&mut self, seq: SeqId, begin: i64, end: i64, delta: i64) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().seq_shift)(self.as_mut_ptr(), seq, begin, end, delta, error) })
    }

    /// Lets the sequence see only its first `sink` tokens and the newest, `window` in all.
    pub fn set_window(&mut self, seq: SeqId, window: i64, sink: i64) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().seq_set_window)(self.as_mut_ptr(), seq, window, sink, error) })
    }

    /// Keeps the recurrent state of the sequence's present length, so that it can be forked and popped to.
    pub fn checkpoint(&mut self, seq: SeqId) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().state_checkpoint)(self.as_mut_ptr(), seq, error) })
    }

    /// Gives up the checkpoint at `pos`: its state slot serves others.
    pub fn release_checkpoint(&mut self, seq: SeqId, pos: i64) -> Result<()> {
        // SAFETY: exclusive.
        check(|error| unsafe { (loaded().state_checkpoint_release)(self.as_mut_ptr(), seq, pos, error) })
    }

    /// Committed tokens of a sequence.
    pub fn length(&self, seq: SeqId) -> Result<i64> {
        // SAFETY: shared, one output.
        check_out(0, |out, error| unsafe { (loaded().seq_length)(self.as_ptr(), seq, out, error) })
    }

    /// Length, window, pages and the rest of what is known of a sequence.
    pub fn seq_info(&self, seq: SeqId) -> Result<SeqInfo> {
        let mut info = SeqInfo::default();
        // SAFETY: the struct says its size.
        check(|error| unsafe { (loaded().seq_info_get)(self.as_ptr(), seq, &mut info, error) })?;
        Ok(info)
    }

    /// All sequence ids, ascending.
    pub fn sequences(&self) -> Result<Vec<SeqId>> {
        // SAFETY: a buffer and its length.
        array(0, |ids, count, error| unsafe { (loaded().seq_list)(self.as_ptr(), ids, count, error) })
    }

    /// Pages that are missing now for a forward of these sequences and lengths; 0: it would begin.
    pub fn can_append(&self, seqs: &[SeqId], lengths: &[i64]) -> Result<i64> {
        check_count("lengths", lengths.len(), "seqs", seqs.len())?;
        // SAFETY: arrays of the same length, one output.
        check_out(0, |out, error| unsafe {
            (loaded().seq_can_append)(self.as_ptr(), seqs.len(), seqs.as_ptr(), lengths.as_ptr(), out, error)
        })
    }

    /// The nearest position at or below `pos` where `op` is possible: `pos` itself when it is; `None` when
    /// there is none.
    pub fn can(&self, seq: SeqId, op: SeqOp, pos: i64) -> Result<Option<i64>> {
        // SAFETY: shared, one output.
        let nearest = check_out(0, |out, error| unsafe {
            (loaded().seq_can)(self.as_ptr(), seq, op.to_raw(), pos, out, error)
        })?;
        Ok((nearest >= 0).then_some(nearest))
    }

    /// The nearest positions at or below `pos` and at or above it where `op` is possible, as
    /// [`CacheRef::can`].
    pub fn positions(&self, seq: SeqId, op: SeqOp, pos: i64) -> Result<(Option<i64>, Option<i64>)> {
        let mut above = 0;
        // SAFETY: shared, two outputs.
        let below = check_out(0, |out, error| unsafe {
            (loaded().seq_positions)(self.as_ptr(), seq, op.to_raw(), pos, out, &mut above, error)
        })?;
        Ok(((below >= 0).then_some(below), (above >= 0).then_some(above)))
    }

    /// Accepts a path of each sequence's token tree: from the root to `leaves[i]`; -1 keeps nothing.
    pub fn tree_commit(&mut self, seqs: &[SeqId], leaves: &[i32]) -> Result<()> {
        self.tree_commit_on(seqs, leaves, Stream::LEGACY)
    }

    /// The same, its copies on a stream of the cache's device.
    pub fn tree_commit_on(&mut self, seqs: &[SeqId], leaves: &[i32], stream: Stream) -> Result<()> {
        check_count("leaves", leaves.len(), "seqs", seqs.len())?;
        // SAFETY: exclusive, arrays of the same length.
        check(|error| unsafe {
            (loaded().tree_commit)(
                self.as_mut_ptr(),
                seqs.len(),
                seqs.as_ptr(),
                leaves.as_ptr(),
                stream.raw(),
                error,
            )
        })
    }
}
