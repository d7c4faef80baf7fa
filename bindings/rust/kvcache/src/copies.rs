//! Copies and swap: sequences and pages to the host and back.

use crate::element::Stream;
use crate::error::{check, check_out, Result, Status};
use crate::kinds::SwapDirection;
use crate::library::loaded;
use crate::tensor::{TensorMut, TensorRef};
use crate::{CacheRef, SeqId};
use kvcache_sys as sys;
use std::ptr::{null_mut, NonNull};
use std::time::Duration;

/// Completion of copies, or of a transfer. On the CPU copies are complete when the call returns. May outlive
/// its cache.
#[derive(Debug)]
pub struct Fence {
    raw: NonNull<sys::kvc_fence>,
}

// SAFETY: its functions may be called from any thread.
unsafe impl Send for Fence {}
// SAFETY: as above.
unsafe impl Sync for Fence {}

impl Fence {
    pub(crate) fn of(
        call: impl FnOnce(*mut *mut sys::kvc_fence, *mut sys::kvc_error) -> sys::kvc_status,
    ) -> Result<Fence> {
        let mut raw = null_mut();
        check(|error| call(&mut raw, error))?;
        Ok(Fence { raw: NonNull::new(raw).expect("a fence on success") })
    }

    /// Are the copies complete?
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: live, one output.
        let done =
            check_out(0, |out, error| unsafe { (loaded().fence_query)(self.raw.as_ptr(), out, error) });
        Ok(done? == 1)
    }

    /// Waits for the copies.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: live.
        check(|error| unsafe { (loaded().fence_wait)(self.raw.as_ptr(), -1, error) })
    }

    /// Waits at most so long; false: not done by then.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        let nanoseconds = i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX);
        // SAFETY: live.
        let waited = check(|error| unsafe { (loaded().fence_wait)(self.raw.as_ptr(), nanoseconds, error) });
        match waited {
            Err(error) if error.status() == Status::Timeout => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Lets what is enqueued on `stream` from now on wait for the copies. On the CPU: waits here.
    pub fn wait_on_stream(&self, stream: Stream) -> Result<()> {
        // SAFETY: live; what a stream is was promised when it was made.
        check(|error| unsafe { (loaded().fence_wait_on_stream)(self.raw.as_ptr(), stream.raw(), error) })
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: ours, once; the copies go on.
        unsafe { (loaded().fence_destroy)(self.raw.as_ptr()) };
    }
}

impl CacheRef {
    /// Moves sequences to the host. They keep id and length; until they are swapped in they can only be asked
    /// about and removed.
    pub fn swap_out(&mut self, seqs: &[SeqId]) -> Result<Fence> {
        self.swap_out_on(seqs, Stream::LEGACY)
    }

    /// The same, its copies on a stream of the cache's device.
    pub fn swap_out_on(&mut self, seqs: &[SeqId], stream: Stream) -> Result<Fence> {
        // SAFETY: exclusive; an array with its length.
        Fence::of(|fence, error| unsafe {
            (loaded().swap_out)(self.as_mut_ptr(), seqs.len(), seqs.as_ptr(), stream.raw(), fence, error)
        })
    }

    /// Brings them back.
    pub fn swap_in(&mut self, seqs: &[SeqId]) -> Result<Fence> {
        self.swap_in_on(seqs, Stream::LEGACY)
    }

    /// The same, its copies on a stream of the cache's device.
    pub fn swap_in_on(&mut self, seqs: &[SeqId], stream: Stream) -> Result<Fence> {
        // SAFETY: exclusive; an array with its length.
        Fence::of(|fence, error| unsafe {
            (loaded().swap_in)(self.as_mut_ptr(), seqs.len(), seqs.as_ptr(), stream.raw(), fence, error)
        })
    }

    /// Copies whole pages between the pools: pairs int64 `[n, 2]` of (from, to), on the host. The tables of
    /// sequences are not looked at.
    pub fn pages_swap(&mut self, pairs: &TensorRef<'_>, direction: SwapDirection) -> Result<Fence> {
        self.pages_swap_on(pairs, direction, Stream::LEGACY)
    }

    /// The same, its copies on a stream of the cache's device.
    pub fn pages_swap_on(
        &mut self,
        pairs: &TensorRef<'_>,
        direction: SwapDirection,
        stream: Stream,
    ) -> Result<Fence> {
        let pairs = pairs.raw.dl();
        // SAFETY: exclusive.
        Fence::of(|fence, error| unsafe {
            (loaded().pages_swap)(self.as_mut_ptr(), &pairs, direction.to_raw(), stream.raw(), fence, error)
        })
    }

    /// Copies whole pages inside the device pool: pairs int64 `[n, 2]` of (from, to), on the host.
    pub fn pages_copy(&mut self, pairs: &TensorRef<'_>) -> Result<Fence> {
        self.pages_copy_on(pairs, Stream::LEGACY)
    }

    /// The same, its copies on a stream of the cache's device.
    pub fn pages_copy_on(&mut self, pairs: &TensorRef<'_>, stream: Stream) -> Result<Fence> {
        let pairs = pairs.raw.dl();
        // SAFETY: exclusive.
        Fence::of(|fence, error| unsafe {
            (loaded().pages_copy)(self.as_mut_ptr(), &pairs, stream.raw(), fence, error)
        })
    }

    /// Copies a layer's parts of pages to the host, as stored: `ids` int64 `[n]` and `out` uint8
    /// `[n, page_bytes]` of [`Plan::layer`](crate::Plan::layer), both on the host.
    pub fn pages_export(&self, layer: usize, ids: &TensorRef<'_>, out: &mut TensorMut<'_>) -> Result<()> {
        let (ids, mut out) = (ids.raw.dl(), out.raw.dl());
        let layer = crate::index(layer);
        // SAFETY: shared; complete on return.
        check(|error| unsafe {
            (loaded().pages_export)(self.as_ptr(), layer, &ids, &mut out, Stream::LEGACY.raw(), error)
        })
    }

    /// The way back: bytes of [`pages_export`](Self::pages_export), of this cache or one whose plan has an
    /// equal [`fingerprint`](crate::Plan::fingerprint), into a layer's parts of pages.
    pub fn pages_import(&mut self, layer: usize, ids: &TensorRef<'_>, bytes: &TensorRef<'_>) -> Result<()> {
        let (ids, bytes) = (ids.raw.dl(), bytes.raw.dl());
        let layer = crate::index(layer);
        // SAFETY: exclusive; complete on return.
        check(|error| unsafe {
            (loaded().pages_import)(self.as_mut_ptr(), layer, &ids, &bytes, Stream::LEGACY.raw(), error)
        })
    }
}
