//! What a host program lends to a cache: memory and threads.

use kvcache_sys as sys;
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// Memory for the pool from the host program.
///
/// # Safety
/// `alloc` returns NULL, or a block of at least `bytes` bytes aligned to `alignment` that nobody else uses
/// until it is given to `free`.
pub unsafe trait Allocator: Sync {
    /// A block, or NULL when there is none. Its content need not be zero.
    fn alloc(&self, bytes: u64, alignment: u64) -> *mut c_void;

    /// Takes a block back; on any thread.
    ///
    /// # Safety
    /// `block` came from `alloc` with this size, and is not used any more.
    unsafe fn free(&self, block: *mut c_void, bytes: u64);
}

/// Threads of the host program.
///
/// # Safety
/// `parallel_for` calls `task(index, worker)` exactly once for each index in `0..num_tasks`, in any order, on
/// any threads, and returns when all are done; `worker < concurrency()`, and no two running tasks of one
/// `parallel_for` have the same worker. `concurrency` is constant and at least 1. A panic in either ends the
/// process.
pub unsafe trait Executor: Send + Sync {
    /// Workers at most.
    fn concurrency(&self) -> usize;

    /// Runs all tasks. Several caches may call it at the same time.
    fn parallel_for(&self, num_tasks: i64, task: &(dyn Fn(i64, usize) + Sync));
}

/// An allocator as the C struct carries it.
#[derive(Clone, Copy)]
pub(crate) struct AllocatorRef(pub(crate) sys::kvc_allocator);

// SAFETY: made of a static reference to an Allocator, which is Sync, and of functions.
unsafe impl Send for AllocatorRef {}
// SAFETY: as above.
unsafe impl Sync for AllocatorRef {}

impl AllocatorRef {
    pub(crate) fn new<A: Allocator>(allocator: &'static A) -> Self {
        AllocatorRef(sys::kvc_allocator {
            user: std::ptr::from_ref(allocator).cast_mut().cast(),
            alloc: Some(alloc::<A>),
            free: Some(free::<A>),
            ..Default::default()
        })
    }
}

impl fmt::Debug for AllocatorRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Allocator")
    }
}

/// An [`Executor`] that several caches and operators share; they keep it.
#[derive(Clone)]
pub struct SharedExecutor {
    pub(crate) raw: sys::kvc_executor,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the struct points at what is kept, which is Send and Sync.
unsafe impl Send for SharedExecutor {}
// SAFETY: as above.
unsafe impl Sync for SharedExecutor {}

impl SharedExecutor {
    /// Wraps an executor.
    pub fn new<E: Executor + 'static>(executor: E) -> Self {
        let keep = Arc::new(executor);
        let raw = sys::kvc_executor {
            user: Arc::as_ptr(&keep).cast_mut().cast(),
            concurrency: Some(concurrency::<E>),
            parallel_for: Some(parallel_for::<E>),
            ..Default::default()
        };
        SharedExecutor { raw, _keep: keep }
    }
}

impl fmt::Debug for SharedExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Executor")
    }
}

// A panic must not reach C: where there is an answer to give instead, it is caught; elsewhere extern "C" ends
// the process, because the library cannot go on.

unsafe extern "C" fn alloc<A: Allocator>(
    user: *mut c_void,
    _device: sys::DLDevice,
    bytes: u64,
    alignment: u64,
) -> *mut c_void {
    // SAFETY: what AllocatorRef was made of: a static reference.
    let allocator = unsafe { &*user.cast::<A>() };
    catch_unwind(AssertUnwindSafe(|| allocator.alloc(bytes, alignment))).unwrap_or(std::ptr::null_mut())
}

unsafe extern "C" fn free<A: Allocator>(
    user: *mut c_void,
    _device: sys::DLDevice,
    block: *mut c_void,
    bytes: u64,
) {
    // SAFETY: as in alloc.
    let allocator = unsafe { &*user.cast::<A>() };
    // A block that a panicking free did not take back is lost, no more.
    // SAFETY: the library frees each block once.
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe { allocator.free(block, bytes) }));
}

unsafe extern "C" fn concurrency<E: Executor>(user: *mut c_void) -> i32 {
    // SAFETY: what SharedExecutor was made of and keeps.
    let executor = unsafe { &*user.cast::<E>() };
    i32::try_from(executor.concurrency()).unwrap_or(i32::MAX)
}

unsafe extern "C" fn parallel_for<E: Executor>(
    user: *mut c_void,
    num_tasks: i64,
    run: Option<unsafe extern "C" fn(arg: *mut c_void, task: i64, worker: i32)>,
    arg: *mut c_void,
) {
    /// The library's argument: safe to share, because its tasks run on any thread.
    struct Shared(*mut c_void);
    // SAFETY: see above.
    unsafe impl Sync for Shared {}
    impl Shared {
        fn get(&self) -> *mut c_void {
            self.0
        }
    }

    let Some(run) = run else { return };
    // SAFETY: as in concurrency.
    let executor = unsafe { &*user.cast::<E>() };
    let arg = Shared(arg);
    // SAFETY: the library's function with the library's argument.
    let task = |task: i64, worker: usize| unsafe { run(arg.get(), task, worker as i32) };
    executor.parallel_for(num_tasks, &task);
}
