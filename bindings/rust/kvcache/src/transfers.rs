//! Transfers: sequences from one cache to another, of this process or of another machine.

use crate::copies::Fence;
use crate::error::{check, check_out, Error, Result, Status};
use crate::files::{c_text, model_text, optional};
use crate::kinds::TransferState;
use crate::library::{api, loaded};
use crate::plan::{array, text};
use crate::{CacheRef, SeqId};
use kvcache_sys as sys;
use std::ffi::{c_char, c_void, CStr};
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;
use std::time::Duration;

/// How a transport is opened. The default is right for caches of one process.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TransportOptions {
    /// What moves the bytes; `None`: `"loopback"`, between transports of one process. `"ucx"`: between
    /// processes and machines.
    pub engine: Option<String>,
    /// Where peers reach it. `"loopback"`: a name that is new in this process; `None`: one is made.
    /// `"ucx"`: an IPv4 address of this machine with a port; `None`: a free one of 127.0.0.1.
    pub address: Option<String>,
    /// No thread: the host program calls [`Transport::progress`].
    pub manual_progress: bool,
    /// The other side said nothing for so long; zero: 5 s.
    pub idle: Duration,
    /// What was not answered is said again after it; zero: a second.
    pub beat: Duration,
    /// For what is on its way when a transfer ends; zero: a second.
    pub drain: Duration,
    /// Ended transfers are known to late messages for so long; zero: 60 s.
    pub tombstone: Duration,
    /// Bytes of a sending transfer that are on their way at once; 0: 64 MiB.
    pub bytes_in_flight: u64,
    /// How often chunks are sent again; 0: 3.
    pub resend_rounds: i32,
}

/// Counters of a transport since it was opened; see `kvc_transport_stats`.
pub type TransportStats = sys::kvc_transport_stats;

/// Runs once when a transfer has ended, with `None`: all is sent, or has arrived; or with the reason.
///
/// It runs on the transport's thread, which moves nothing meanwhile; with
/// [`TransportOptions::manual_progress`] in the calls that drive the transport; and where a [`Transfer`] is
/// dropped that is not over. It may send to a channel or wake a task, and may use any transfer or transport.
#[derive(Clone)]
pub struct OnDone(Arc<dyn Fn(Option<Status>) + Send + Sync>);

impl OnDone {
    /// From a closure.
    pub fn new(closure: impl Fn(Option<Status>) + Send + Sync + 'static) -> Self {
        OnDone(Arc::new(closure))
    }
}

impl fmt::Debug for OnDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDone")
    }
}

/// The closure on its way through C, which owns it from a call that succeeds until it has run.
struct Listener(*mut OnDone);

impl Listener {
    fn new(on_done: &Option<OnDone>) -> Listener {
        Listener(on_done.clone().map_or(null_mut(), |closure| Box::into_raw(Box::new(closure))))
    }

    fn function(&self) -> sys::kvc_transfer_fn {
        if self.0.is_null() {
            None
        } else {
            Some(run)
        }
    }

    /// The transfer has begun.
    fn hand_over(mut self) {
        self.0 = null_mut();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: ours; a call that fails never runs it.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

unsafe extern "C" fn run(user: *mut c_void, _: *mut sys::kvc_transfer, status: sys::kvc_status) {
    // SAFETY: what a Listener gave, which runs once.
    let closure = unsafe { Box::from_raw(user.cast::<OnDone>()) };
    // A panic must not reach C; its message has been printed by then, and the library goes on.
    let _ = catch_unwind(AssertUnwindSafe(move || {
        (closure.0)((status != sys::KVC_OK).then(|| Status::from_raw(status)));
        drop(closure);
    }));
}

/// What a cache receives: `num_tokens` tokens of a new sequence, or behind the `begin` ones that it has.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// A new id with `begin` 0, else a sequence of the cache.
    pub seq: SeqId,
    /// Tokens that the sequence has; they are the sender's.
    pub begin: i64,
    /// Tokens that arrive, at least 1.
    pub num_tokens: i64,
    /// Encoder tokens that arrive; 0 with `begin` above 0.
    pub cross_length: i64,
    /// The prefix index gets the blocks of the sequence. Without it the tokens that arrive count as unknown.
    pub publish: bool,
    /// Priority of its blocks, 0 to 100, with `publish`.
    pub priority: i32,
    /// For all of it, from now on; zero: 30 s; [`Duration::MAX`]: none.
    pub deadline: Duration,
    /// The sender said nothing for so long; zero: as of the transport; [`Duration::MAX`]: for ever.
    pub idle: Duration,
    /// The name of the model that the sender must give; `None`: any.
    pub model_id: Option<String>,
    /// The tensor-parallel rank whose KV heads this cache has.
    pub tp_rank: i32,
    /// Tensor-parallel ranks of the receivers; 0: 1.
    pub tp_size: i32,
    /// Those of the senders; 0: as `tp_size`. One size divides the other. Where there are more senders, each sends
    /// its part with the same ticket, and the sequence is there when all have arrived.
    pub sender_tp_size: i32,
    /// Runs when all of it has arrived, or the transfer has failed.
    pub on_done: Option<OnDone>,
}

impl ReceiveOptions {
    /// A new sequence of so many tokens.
    pub fn new(seq: SeqId, num_tokens: i64) -> Self {
        ReceiveOptions { seq, num_tokens, ..Default::default() }
    }
}

/// How a sequence is sent.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SendOptions {
    /// The coming forwards compute tokens of the ticket, and rows leave layer by layer as they are written. The
    /// end comes with the forward that brings the last token. One that is aborted, or a sequence that is removed,
    /// popped or shifted before, ends the transfer.
    pub as_computed: bool,
    /// For all of it, from now on; zero: 30 s; [`Duration::MAX`]: none.
    pub deadline: Duration,
    /// The receiver said nothing for so long; zero: as of the transport; [`Duration::MAX`]: for ever.
    pub idle: Duration,
    /// Name of the model and its weights.
    pub model_id: Option<String>,
    /// The tensor-parallel rank whose KV heads this cache has.
    pub tp_rank: i32,
    /// Tensor-parallel ranks of the senders; 0: 1.
    pub tp_size: i32,
    /// Runs when all is sent, or the transfer has failed.
    pub on_done: Option<OnDone>,
}

/// What a transfer does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferInfo {
    /// How far it is.
    pub state: TransferState,
    /// Why it ends or has failed; `None`: it has not.
    pub status: Option<Status>,
    /// It receives.
    pub is_receiving: bool,
    /// Pieces that travel; 0 before the two sides have met.
    pub chunks_total: u64,
    /// Pieces that are there.
    pub chunks_done: u64,
    /// Pieces that were sent again.
    pub chunks_resent: u64,
    /// Bytes that travel.
    pub bytes_total: u64,
    /// Bytes that are there.
    pub bytes_done: u64,
    /// Why it has failed; empty: it has not.
    pub message: String,
    /// What the other side said; empty: nothing.
    pub peer_message: String,
}

/// A time to wait in nanoseconds; a negative one means for ever.
fn timeout_ns(timeout: Option<Duration>) -> i64 {
    timeout.map_or(-1, limit_ns)
}

/// A limit in nanoseconds; a negative one is none.
fn limit_ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(-1)
}

/// A limit that there always is.
fn finite_ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn text_of(buffer: &[c_char]) -> String {
    // SAFETY: the library terminates its messages.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned()
}

/// Moves bytes between caches. One serves any number of transfers of any number of caches.
///
/// Dropping it cancels the transfers that are open. What has arrived stays, and handles may outlive it.
#[derive(Debug)]
pub struct Transport {
    raw: NonNull<sys::kvc_transport>,
}

// SAFETY: its functions may be called from any thread, at the same time.
unsafe impl Send for Transport {}
// SAFETY: as above.
unsafe impl Sync for Transport {}

impl Transport {
    /// Opens a transport, with a thread of its own unless the options say otherwise.
    pub fn open(options: &TransportOptions) -> Result<Transport> {
        let api = api()?;
        let named = |text: &Option<String>, what: &str| -> Result<_> {
            text.as_ref().map(|text| c_text(what, text.as_bytes())).transpose()
        };
        let engine = named(&options.engine, "engine")?;
        let address = named(&options.address, "the address")?;
        let desc = sys::kvc_transport_desc {
            flags: if options.manual_progress { sys::KVC_TRANSPORT_MANUAL_PROGRESS } else { 0 },
            engine: optional(&engine),
            address: optional(&address),
            idle_ns: finite_ns(options.idle),
            beat_ns: finite_ns(options.beat),
            drain_ns: finite_ns(options.drain),
            tombstone_ns: finite_ns(options.tombstone),
            bytes_in_flight: options.bytes_in_flight,
            resend_rounds: options.resend_rounds,
            ..Default::default()
        };
        let mut raw = null_mut();
        // SAFETY: texts that live as long as the call, one output.
        check(|error| unsafe { (api.transport_open)(&desc, &mut raw, error) })?;
        Ok(Transport { raw: NonNull::new(raw).expect("a transport on success") })
    }

    /// Where peers reach it. Tickets contain it.
    pub fn address(&self) -> Result<String> {
        // SAFETY: a buffer and its length.
        text(|buffer, len, error| unsafe {
            (loaded().transport_address)(self.raw.as_ptr(), buffer, len, error)
        })
    }

    /// Counters.
    pub fn stats(&self) -> Result<TransportStats> {
        let mut stats = TransportStats::default();
        // SAFETY: the struct says its size.
        check(|error| unsafe { (loaded().transport_stats_get)(self.raw.as_ptr(), &mut stats, error) })?;
        Ok(stats)
    }

    /// A descriptor that is readable when [`progress`](Self::progress) has work. Timers do not make it
    /// readable: progress is called every [`TransportOptions::beat`] at least. Only with `manual_progress`.
    #[cfg(unix)]
    pub fn fd(&self) -> Result<std::os::fd::BorrowedFd<'_>> {
        // SAFETY: live, one output.
        let fd =
            check_out(-1, |out, error| unsafe { (loaded().transport_fd)(self.raw.as_ptr(), out, error) })?;
        // SAFETY: the transport keeps it open while it lives.
        Ok(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
    }

    /// Does what is due, after waiting at most `timeout` for something; `None`: as long as it takes. Only with
    /// `manual_progress`.
    pub fn progress(&self, timeout: Option<Duration>) -> Result<()> {
        // SAFETY: live; may run beside other calls.
        check(|error| unsafe { (loaded().transport_progress)(self.raw.as_ptr(), timeout_ns(timeout), error) })
    }

    /// Takes no new transfers, and waits for the open ones; `None`: as long as it takes. What has not ended by
    /// then is cancelled, and the error is [`Status::Timeout`]. What has arrived stays.
    pub fn close(&self, timeout: Option<Duration>) -> Result<()> {
        // SAFETY: live; may run beside other calls.
        check(|error| unsafe { (loaded().transport_close)(self.raw.as_ptr(), timeout_ns(timeout), error) })
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        // SAFETY: ours, once.
        unsafe { (loaded().transport_destroy)(self.raw.as_ptr()) };
    }
}

/// A sequence on its way. May outlive its cache and its transport.
///
/// Dropping it cancels what is not over. What has arrived becomes a sequence all the same. Either is seen by the
/// next call that takes the cache by `&mut`.
#[derive(Debug)]
pub struct Transfer {
    raw: NonNull<sys::kvc_transfer>,
    /// Address of the cache. One that is gone is not followed: the library answers for it.
    cache: *const sys::kvc_cache,
}

// SAFETY: its functions may be called from any thread, except for waiting, which borrows the cache.
unsafe impl Send for Transfer {}
// SAFETY: as above.
unsafe impl Sync for Transfer {}

impl Transfer {
    /// What the sender needs, at most 4,096 bytes. It is of use once, and is to be kept from strangers.
    pub fn ticket(&self) -> Result<Vec<u8>> {
        // SAFETY: a buffer and its length.
        array(0u8, |buffer, len, error| unsafe {
            (loaded().transfer_ticket)(self.raw.as_ptr(), buffer.cast(), len, error)
        })
    }

    /// What it does.
    pub fn info(&self) -> Result<TransferInfo> {
        let mut raw = sys::kvc_transfer_info::default();
        // SAFETY: the struct says its size.
        check(|error| unsafe { (loaded().transfer_query)(self.raw.as_ptr(), &mut raw, error) })?;
        let state = TransferState::from_raw(raw.state).ok_or_else(|| {
            Error::new(Status::Version, format!("transfer: state {} of a newer library", raw.state.0))
        })?;
        Ok(TransferInfo {
            state,
            status: (raw.status != sys::KVC_OK).then(|| Status::from_raw(raw.status)),
            is_receiving: raw.is_receiving == 1,
            chunks_total: raw.chunks_total,
            chunks_done: raw.chunks_done,
            chunks_resent: raw.chunks_resent,
            bytes_total: raw.bytes_total,
            bytes_done: raw.bytes_done,
            message: text_of(&raw.message),
            peer_message: text_of(&raw.peer_message),
        })
    }

    /// A fence that is done when the transfer has arrived, is done or has failed: waiting for it leaves the
    /// cache free for other calls. It does not drive a transport with `manual_progress`.
    pub fn fence(&self) -> Result<Fence> {
        // SAFETY: live, one output.
        Fence::of(|fence, error| unsafe { (loaded().transfer_fence)(self.raw.as_ptr(), fence, error) })
    }

    /// Ends it; the other side is told. One that is over stays as it is.
    /// [`CacheRef::wait_transfer`] returns when nothing is on its way any more.
    pub fn cancel(&self) -> Result<()> {
        // SAFETY: live; may run beside other calls.
        check(|error| unsafe { (loaded().transfer_cancel)(self.raw.as_ptr(), error) })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // SAFETY: ours, once.
        unsafe { (loaded().transfer_destroy)(self.raw.as_ptr()) };
    }
}

impl CacheRef {
    /// Reserves room for a sequence and waits for its sender, who needs [`Transfer::ticket`]. Until all of it is
    /// here, calls on the sequence answer [`Status::Busy`]; where the transfer fails, the cache is as before.
    pub fn receive(&mut self, transport: &Transport, options: &ReceiveOptions) -> Result<Transfer> {
        let model_id = model_text(options.model_id.as_deref())?;
        let listener = Listener::new(&options.on_done);
        let desc = sys::kvc_recv_desc {
            flags: if options.publish { sys::KVC_TRANSFER_PUBLISH } else { 0 },
            seq: options.seq,
            begin: options.begin,
            num_tokens: options.num_tokens,
            cross_length: options.cross_length,
            deadline_ns: limit_ns(options.deadline),
            idle_ns: limit_ns(options.idle),
            priority: options.priority,
            model_id: optional(&model_id),
            tp_rank: options.tp_rank,
            tp_size: options.tp_size,
            sender_tp_size: options.sender_tp_size,
            on_done: listener.function(),
            user: listener.0.cast(),
            ..Default::default()
        };
        // SAFETY: exclusive; texts that live as long as the call, one output; the closure is C's.
        self.transfer(listener, |cache, out, error| unsafe {
            (loaded().transfer_recv)(cache, transport.raw.as_ptr(), &desc, out, error)
        })
    }

    /// Sends the tokens of a sequence from `begin` on to the writer of a ticket. The sequence stays as it is,
    /// and may be used, changed and removed meanwhile (see [`SendOptions::as_computed`]).
    pub fn send(
        &mut self,
        transport: &Transport,
        seq: SeqId,
        begin: i64,
        ticket: &[u8],
        options: &SendOptions,
    ) -> Result<Transfer> {
        let model_id = model_text(options.model_id.as_deref())?;
        let listener = Listener::new(&options.on_done);
        let desc = sys::kvc_send_desc {
            seq,
            begin,
            ticket: ticket.as_ptr().cast(),
            ticket_len: ticket.len(),
            mode: if options.as_computed { sys::KVC_SEND_AS_COMPUTED } else { sys::KVC_SEND_NOW },
            deadline_ns: limit_ns(options.deadline),
            idle_ns: limit_ns(options.idle),
            model_id: optional(&model_id),
            tp_rank: options.tp_rank,
            tp_size: options.tp_size,
            on_done: listener.function(),
            user: listener.0.cast(),
            ..Default::default()
        };
        // SAFETY: exclusive; bytes and texts that live as long as the call, one output; the closure is C's.
        self.transfer(listener, |cache, out, error| unsafe {
            (loaded().transfer_send)(cache, transport.raw.as_ptr(), &desc, out, error)
        })
    }

    fn transfer(
        &mut self,
        listener: Listener,
        call: impl FnOnce(
            *mut sys::kvc_cache,
            *mut *mut sys::kvc_transfer,
            *mut sys::kvc_error,
        ) -> sys::kvc_status,
    ) -> Result<Transfer> {
        let (cache, mut raw) = (self.as_mut_ptr(), null_mut());
        check(|error| call(cache, &mut raw, error))?;
        listener.hand_over();
        Ok(Transfer { raw: NonNull::new(raw).expect("a transfer on success"), cache })
    }

    /// Waits for the end of a transfer of this cache, which makes an ordinary sequence of what has arrived;
    /// `None`: as long as it takes. Where the transfer has failed, the error says why; [`Status::Timeout`] is
    /// also that of one that is not over by then, which [`Transfer::info`] tells apart.
    ///
    /// To wait beside other calls on the cache, wait for [`Transfer::fence`] first. Another thread may
    /// [`cancel`](Transfer::cancel) meanwhile.
    pub fn wait_transfer(&mut self, transfer: &Transfer, timeout: Option<Duration>) -> Result<()> {
        if transfer.cache != self.as_ptr() {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "wait_transfer: the transfer is of the cache at {:p}, and this is the one at {:p}",
                    transfer.cache,
                    self.as_ptr()
                ),
            ));
        }
        // SAFETY: the cache at this address is borrowed exclusively. One that was there before it is gone,
        // which the library knows.
        check(|error| unsafe { (loaded().transfer_wait)(transfer.raw.as_ptr(), timeout_ns(timeout), error) })
    }
}
