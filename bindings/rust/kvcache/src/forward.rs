//! One step of a model over a batch of sequences.

use crate::element::Stream;
use crate::error::{check, check_count, Error, Result, Status};
use crate::library::loaded;
use crate::tensor::{TensorMut, TensorRef};
use crate::{CacheRef, SeqId};
use kvcache_sys as sys;
use std::mem::ManuallyDrop;
use std::ptr::{null, null_mut, NonNull};

/// Parent of a token that is not part of a tree; see [`Batch::tree_parents`].
pub const TREE_NONE: i32 = sys::KVC_TREE_NONE;

/// Which sequences grow by how many tokens; see `kvc_forward_desc`.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    seqs: &'a [SeqId],
    lengths: &'a [i64],
    tree_parents: Option<&'a [i32]>,
    tokens: Option<&'a [i32]>,
    positions: Option<TensorRef<'a>>,
    cross_lengths: Option<&'a [i64]>,
    stream: Stream,
    replay: bool,
    partial: bool,
    whole_spans: bool,
}

impl<'a> Batch<'a> {
    /// Sequence `seqs[i]` grows by `lengths[i]` tokens. Prefill and decode mix freely.
    pub fn new(seqs: &'a [SeqId], lengths: &'a [i64]) -> Self {
        Batch {
            seqs,
            lengths,
            tree_parents: None,
            tokens: None,
            positions: None,
            cross_lengths: None,
            stream: Stream::LEGACY,
            replay: false,
            partial: false,
            whole_spans: false,
        }
    }

    /// The new tokens are nodes of trees: for each its parent's index inside the sequence's whole uncommitted
    /// tree, -1 for a root, [`TREE_NONE`] for all tokens of a sequence that grows plainly.
    #[must_use]
    pub fn tree_parents(mut self, tree_parents: &'a [i32]) -> Self {
        self.tree_parents = Some(tree_parents);
        self
    }

    /// Ids of the new tokens: full blocks are published to the prefix index when the forward ends.
    #[must_use]
    pub fn tokens(mut self, tokens: &'a [i32]) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Rotary positions, int32 `[T]` or `[sections, T]`, instead of the tokens' own.
    #[must_use]
    pub fn positions(mut self, positions: TensorRef<'a>) -> Self {
        self.positions = Some(positions);
        self
    }

    /// Encoder tokens that this forward writes to the CROSS layers of each sequence. Those of a
    /// sequence without tokens replace the ones of before, which an abort does not bring back.
    #[must_use]
    pub fn cross_lengths(mut self, cross_lengths: &'a [i64]) -> Self {
        self.cross_lengths = Some(cross_lengths);
        self
    }

    /// The stream of all work until the step ends, on a GPU.
    #[must_use]
    pub fn stream(mut self, stream: Stream) -> Self {
        self.stream = stream;
        self
    }

    /// The step is computed by launching the CUDA graph that a step of the same shape was captured in: nothing is
    /// enqueued, and calls on layers are refused. See `KVC_FORWARD_REPLAY`.
    #[must_use]
    pub fn replay(mut self) -> Self {
        self.replay = true;
        self
    }

    /// The forward may end without K and V in every layer, and publishes nothing. Without it
    /// [`Forward::end`] refuses that where the library alone writes the pool.
    #[must_use]
    pub fn partial(mut self) -> Self {
        self.partial = true;
        self
    }

    /// Spans that end behind the tokens of their sequence are refused. Without it they are cut there.
    #[must_use]
    pub fn whole_spans(mut self) -> Self {
        self.whole_spans = true;
        self
    }

    /// The library reads as many elements as the lengths say, so they have to be there.
    fn check(&self) -> Result<()> {
        check_count("lengths", self.lengths.len(), "seqs", self.seqs.len())?;
        if let Some(cross_lengths) = self.cross_lengths {
            check_count("cross_lengths", cross_lengths.len(), "seqs", self.seqs.len())?;
        }
        let lists = [("tree_parents", self.tree_parents), ("tokens", self.tokens)];
        for (name, list) in lists.into_iter().filter_map(|(name, list)| Some((name, list?))) {
            let mut total = 0usize;
            for (index, length) in self.lengths.iter().enumerate() {
                let length = usize::try_from(*length).ok().filter(|length| *length > 0).ok_or_else(|| {
                    Error::new(
                        Status::InvalidArgument,
                        format!("append_lengths[{index}] = {length}: at least 1"),
                    )
                })?;
                total = total.saturating_add(length);
            }
            check_count(name, list.len(), "the sum of lengths", total)?;
        }
        Ok(())
    }
}

/// An open step: attention runs in it, [`end`](Forward::end) makes its tokens part of their sequences, and
/// dropping it undoes it.
///
/// It borrows its cache, which therefore cannot be dropped or begun again meanwhile:
///
/// ```compile_fail,E0505
/// # use kvcache::*;
/// # let mut cache = Cache::with_config(&Config::new(vec![Layer::attention(1, 1, 4)]).num_pages(4))?;
/// # cache.add(0)?;
/// let forward = cache.begin(&Batch::new(&[0], &[1]))?;
/// drop(cache); // error: the forward still borrows it
/// forward.end()?;
/// # Ok::<(), Error>(())
/// ```
///
/// Nor can an ended one be used:
///
/// ```compile_fail,E0382
/// # use kvcache::*;
/// # let mut cache = Cache::with_config(&Config::new(vec![Layer::attention(1, 1, 4)]).num_pages(4))?;
/// # cache.add(0)?;
/// let forward = cache.begin(&Batch::new(&[0], &[1]))?;
/// forward.end()?;
/// forward.num_tokens(); // error: moved
/// # Ok::<(), Error>(())
/// ```
///
/// Attention takes `&self`, so that other threads can query [`cache`](Forward::cache) beside it; but it is
/// one call at a time, so a forward is not `Sync`:
///
/// ```compile_fail,E0277
/// # use kvcache::Forward;
/// fn share<T: Sync>() {}
/// share::<Forward<'static>>();
/// ```
#[derive(Debug)]
#[must_use = "a forward that is dropped is undone"]
pub struct Forward<'c> {
    // A pointer, which also takes Sync away; the exclusive borrow is in `cache`.
    raw: NonNull<sys::kvc_forward>,
    cache: &'c mut CacheRef,
}

// SAFETY: a handle may move between threads.
unsafe impl Send for Forward<'_> {}

impl CacheRef {
    /// Opens a step. When it fails, nothing has changed; [`Error::is_no_pages`] says that the pool is full
    /// now.
    pub fn begin<'c>(&'c mut self, batch: &Batch<'_>) -> Result<Forward<'c>> {
        batch.check()?;
        let positions = crate::tensor::dl_or_null(batch.positions.as_ref().map(|tensor| &tensor.raw));
        let desc = sys::kvc_forward_desc {
            num_seqs: batch.seqs.len(),
            seqs: batch.seqs.as_ptr(),
            append_lengths: batch.lengths.as_ptr(),
            tree_parents: batch.tree_parents.map_or(null(), <[_]>::as_ptr),
            tokens: batch.tokens.map_or(null(), <[_]>::as_ptr),
            positions: crate::tensor::pointer(&positions),
            cross_lengths: batch.cross_lengths.map_or(null(), <[_]>::as_ptr),
            stream: batch.stream.raw(),
            flags: if batch.replay { sys::KVC_FORWARD_REPLAY } else { 0 }
                | if batch.partial { sys::KVC_FORWARD_PARTIAL } else { 0 }
                | if batch.whole_spans { sys::KVC_FORWARD_WHOLE_SPANS } else { 0 },
            ..Default::default()
        };
        let mut raw = null_mut();
        // SAFETY: exclusive; arrays of the lengths that were checked.
        check(|error| unsafe { (loaded().forward_begin)(self.as_mut_ptr(), &desc, &mut raw, error) })?;
        Ok(Forward { raw: NonNull::new(raw).expect("a forward on success"), cache: self })
    }
}

impl Forward<'_> {
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut sys::kvc_forward {
        self.raw.as_ptr()
    }

    /// The cache, for queries; other threads may make them while this one attends.
    pub fn cache(&self) -> &CacheRef {
        self.cache
    }

    /// The cache, for changes to sequences that are not in this forward; those that are answer
    /// [`Status::Busy`].
    pub fn cache_mut(&mut self) -> &mut CacheRef {
        self.cache
    }

    /// The handle, for functions of [`sys`](crate::sys) that this crate does not wrap. It dies with the
    /// forward.
    pub fn as_raw(&self) -> *mut sys::kvc_forward {
        self.as_ptr()
    }

    /// New tokens of the whole batch: rows of q, k, v and out.
    pub fn num_tokens(&self) -> usize {
        // SAFETY: open.
        usize::try_from(unsafe { (loaded().forward_num_tokens)(self.as_ptr()) }).unwrap_or(0)
    }

    /// Position of each new token, as rotations take it: `out` int32 `[T]`, or `[sections, T]`.
    pub fn positions(&self, out: &mut TensorMut<'_>) -> Result<()> {
        let mut out = out.raw.dl();
        // SAFETY: open; the tensor is exclusive.
        check(|error| unsafe { (loaded().forward_positions)(self.as_ptr(), &mut out, error) })
    }

    /// Makes the new tokens part of their sequences. Where the library alone writes the pool, every layer must
    /// have got its K and V, unless the batch is [`Batch::partial`]. A forward that cannot end is aborted.
    pub fn end(self) -> Result<()> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: open, and not used afterwards.
        let ended = check(|error| unsafe { (loaded().forward_end)(this.as_ptr(), error) });
        if ended.is_err() {
            // SAFETY: not ended, so still ours; dropping aborts.
            unsafe { ManuallyDrop::drop(&mut this) };
        }
        ended
    }

    /// Undoes the begin, as dropping does, and says whether that worked.
    pub fn abort(self) -> Result<()> {
        let this = ManuallyDrop::new(self);
        // SAFETY: open, and not used afterwards.
        check(|error| unsafe { (loaded().forward_abort)(this.as_ptr(), error) })
    }
}

impl Drop for Forward<'_> {
    fn drop(&mut self) {
        // SAFETY: open; a NULL error is allowed.
        unsafe { (loaded().forward_abort)(self.as_ptr(), null_mut()) };
    }
}
