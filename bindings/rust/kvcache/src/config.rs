//! What to plan.

use crate::element::Device;
use crate::host::{Allocator, AllocatorRef, SharedExecutor};
use crate::kinds::{CpuIsa, PoolLayout, Storage};
use crate::layer::{setters, Layer};
use crate::tensor::{RawTensor, TensorMut};

/// A configuration; see `kvc_config`. Zero means the default.
///
/// ```
/// use kvcache::{Config, Layer, Plan};
/// let config = Config::new(vec![Layer::attention(32, 8, 128); 32]).page_size(16).byte_budget(4 << 30);
/// let plan = Plan::new(&config)?;
/// println!("{}", plan.describe()?);
/// # Ok::<(), kvcache::Error>(())
/// ```
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Config {
    pub device: Device,
    pub page_size: i32,
    pub layers: Vec<Layer>,
    pub layer_begin: i32,
    pub layer_end: i32,
    pub max_seqs: i32,
    pub forwards_in_flight: i32,
    pub max_tokens_per_forward: i64,
    pub max_seq_len: i64,
    pub num_pages: i64,
    pub byte_budget: u64,
    pub host_byte_budget: u64,
    pub storage: Storage,
    pub pool_layout: PoolLayout,
    pub num_threads: i32,
    pub cpu_isa: CpuIsa,
    pub max_cross_len: i64,
    pub state_stride: i64,
    pub num_state_slots: i64,
    pub event_capacity: i64,
    pub cp_size: i32,
    pub pad_pages: bool,
    pub clear_pages: bool,
    pub no_huge_pages: bool,
    pub(crate) pool: Vec<PoolTensor>,
    pub(crate) allocator: Option<AllocatorRef>,
    pub(crate) executor: Option<SharedExecutor>,
}

/// A tensor of a borrowed pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolTensor(pub(crate) RawTensor);

// SAFETY: an address; that it may be used is the promise of borrow_pool.
unsafe impl Send for PoolTensor {}
// SAFETY: as above.
unsafe impl Sync for PoolTensor {}

impl Config {
    /// A model of these layers.
    pub fn new(layers: Vec<Layer>) -> Self {
        Config {
            device: Device::CPU,
            page_size: 0,
            layers,
            layer_begin: 0,
            layer_end: 0,
            max_seqs: 0,
            forwards_in_flight: 0,
            max_tokens_per_forward: 0,
            max_seq_len: 0,
            num_pages: 0,
            byte_budget: 0,
            host_byte_budget: 0,
            storage: Storage::Owned,
            pool_layout: PoolLayout::LayerFirst,
            num_threads: 0,
            cpu_isa: CpuIsa::Auto,
            max_cross_len: 0,
            state_stride: 0,
            num_state_slots: 0,
            event_capacity: 0,
            cp_size: 0,
            pad_pages: false,
            clear_pages: false,
            no_huge_pages: false,
            pool: Vec::new(),
            allocator: None,
            executor: None,
        }
    }

    setters! {
        /// Where the pool lives.
        device: Device,
        /// Tokens per page; 0: 16.
        page_size: i32,
        /// Sequences in one forward at most; 0: no limit.
        max_seqs: i32,
        /// Forwards whose tokens a window has to keep before it can drop any.
        forwards_in_flight: i32,
        /// New tokens of one forward at most; 0: no limit.
        max_tokens_per_forward: i64,
        /// Longest sequence; 0: what the pages hold.
        max_seq_len: i64,
        /// Pages of the pool: this or `byte_budget`.
        num_pages: i64,
        /// Bytes for everything that sequences keep: this or `num_pages`.
        byte_budget: u64,
        /// Bytes of host memory for swapped sequences and evicted prefixes.
        host_byte_budget: u64,
        /// Who owns the pool.
        storage: Storage,
        /// Order of the pool's memory.
        pool_layout: PoolLayout,
        /// CPU threads including the caller's; 0: one per core. A cache on a GPU takes 0 or 1.
        num_threads: i32,
        /// Instruction set of the CPU kernels; of a cache on a GPU: [`CpuIsa::Auto`].
        cpu_isa: CpuIsa,
        /// Encoder tokens of one sequence at most.
        max_cross_len: i64,
        /// Tokens between automatic checkpoints of recurrent state; -1: none.
        state_stride: i64,
        /// States kept at most, checkpoints included.
        num_state_slots: i64,
        /// Events kept for [`CacheRef::events_poll`](crate::CacheRef::events_poll); 0: none are made.
        event_capacity: i64,
        /// Context parallel ranks that the tokens of a sequence are dealt out over; 0: 1. For plans alone.
        cp_size: i32,
        /// Every group has `page_size` tokens per page, and pages of narrower groups are padded.
        pad_pages: bool,
        /// Pages and state slots are filled with zeros before another sequence gets them.
        clear_pages: bool,
        /// Memory is committed in the system's small pages.
        no_huge_pages: bool,
    }

    /// Keeps the layers `begin..end` here (a pipeline stage). Layer ids in calls stay global.
    #[must_use]
    pub fn layer_range(mut self, begin: i32, end: i32) -> Self {
        (self.layer_begin, self.layer_end) = (begin, end);
        self
    }

    /// The pool is the caller's: one tensor per region of a page, or one for all with
    /// [`PoolLayout::PageFirst`].
    ///
    /// # Safety
    /// The tensors' memory stays valid, and nobody else writes it while the library reads, until every cache
    /// made from this configuration and every export of such a cache is gone.
    #[must_use]
    pub unsafe fn borrow_pool(mut self, tensors: &[TensorMut<'_>]) -> Self {
        self.storage = Storage::Borrowed;
        self.pool = tensors.iter().map(|tensor| PoolTensor(tensor.raw)).collect();
        self
    }

    /// Memory of the pool comes from `allocator`, which lives for ever, because exported tensors may.
    #[must_use]
    pub fn allocator(mut self, allocator: &'static impl Allocator) -> Self {
        self.allocator = Some(AllocatorRef::new(allocator));
        self
    }

    /// Kernels run on these threads instead of the library's own. A cache on a GPU refuses them.
    #[must_use]
    pub fn executor(mut self, executor: &SharedExecutor) -> Self {
        self.executor = Some(executor.clone());
        self
    }
}
