//! The KV cache of LLM serving: paged, shared between prompts, and attended to, on the CPU or a GPU.
//!
//! Layers in, bytes and pages planned; tokens in, pages shared; Q, K, V in, attention out. This crate is the
//! safe interface of libkvcache, a C library; its header
//! `kvcache.h` is the full manual.
//!
//! ```
//! use kvcache::{AttnOptions, Batch, Cache, Config, DType, Layer, TensorMut, TensorRef};
//!
//! // Without .dtype(DType::F32) K and V are stored as bfloat16, which a float32 reference would show.
//! let layers = vec![Layer::attention(8, 2, 64).dtype(DType::F32); 4]; // 8 query heads share 2 key heads
//! let mut cache = Cache::with_config(&Config::new(layers).num_pages(256))?;
//! cache.add(0)?;
//! let (q, kv, mut out) = (vec![0.1f32; 5 * 8 * 64], vec![0.1f32; 5 * 2 * 64], vec![0.0f32; 5 * 8 * 64]);
//! let step = cache.begin(&Batch::new(&[0], &[5]))?; // sequence 0 grows by 5 tokens
//! for layer in 0..4 {
//!     let (q, k) = (TensorRef::new(&q, &[5, 8, 64])?, TensorRef::new(&kv, &[5, 2, 64])?);
//!     step.attn(layer, &AttnOptions::default(), &q, (&k, &k), &mut TensorMut::new(&mut out, &[5, 8, 64])?)?;
//! }
//! step.end()?; // or drop it, and nothing has happened
//! cache.fork(0, 1, None)?; // 50 more of these cost no memory
//! # assert_eq!(cache.length(1)?, 5);
//! # Ok::<(), kvcache::Error>(())
//! ```
//!
//! * **A step** is a [`Forward`]: it borrows its cache, so that neither a second step nor dropping the cache
//!   inside one compiles; an early return or a panic undoes it.
//! * **Tensors** are views: [`TensorRef`] and [`TensorMut`] of slices are checked, of raw parts (another
//!   device, a DLPack tensor) they are unsafe once. Nothing is copied.
//! * **Errors** are an [`Error`] with a [`Status`] to match on; after any of them the cache is as it was. A
//!   full pool is one of them:
//!   ```
//!   # use kvcache::*;
//!   # let mut cache = Cache::with_config(&Config::new(vec![Layer::attention(1, 1, 4)]).num_pages(2))?;
//!   # (cache.add(0)?, cache.add(1)?);
//!   # cache.begin(&Batch::new(&[1], &[20]).partial())?.end()?;
//!   match cache.begin(&Batch::new(&[0], &[20])) {
//!       Ok(step) => step.end()?,
//!       Err(error) if error.is_no_pages() => println!("{} pages are missing: swap or wait", error.detail()),
//!       Err(error) => return Err(error),
//!   }
//!   # Ok::<(), kvcache::Error>(())
//!   ```
//! * **A GPU**: with [`Config::device`] pages and tensors lie there, and calls return before it is done. The step's
//!   [`Stream`] is [`Batch::stream`], and copies have calls that end in `_on`. Memory behind tensors of raw parts
//!   has to live until the stream is through.
//! * **Threads**: what changes nothing takes `&self`, and may run on several threads, also beside attention.
//! * **Numbers** of tokens, positions and sequences are `i64`, as in the C interface; indices of layers,
//!   groups and states are `usize`.
//!
//! # Transfers
//!
//! A transfer moves a sequence to another cache: prefill here, decode there. The receiver reserves the
//! pages and writes a ticket, and whoever has the ticket sends the rows.
//!
//! ```
//! # use kvcache::{Batch, Cache, Config, DType, Layer, TensorRef};
//! # let config = Config::new(vec![Layer::attention(1, 1, 4).dtype(DType::F32)]).num_pages(4);
//! # let (mut prefill, mut decode) = (Cache::with_config(&config)?, Cache::with_config(&config)?);
//! # prefill.add(7)?;
//! # let (rows, step) = ([0.5f32; 20 * 4], prefill.begin(&Batch::new(&[7], &[20]))?);
//! # let k = TensorRef::new(&rows, &[20, 1, 4])?;
//! # step.kv_append(0, (&k, &k))?;
//! # step.end()?;
//! use kvcache::{ReceiveOptions, SendOptions, Transport, TransportOptions};
//!
//! let transport = Transport::open(&TransportOptions::default())?; // between caches of one process
//! let arriving = decode.receive(&transport, &ReceiveOptions::new(7, 20))?; // 20 tokens, as sequence 7
//! let ticket = arriving.ticket()?; // the host program brings it to the sender
//! let leaving = prefill.send(&transport, 7, 0, &ticket, &SendOptions::default())?;
//! prefill.wait_transfer(&leaving, None)?;
//! decode.wait_transfer(&arriving, None)?; // sequence 7 goes on in both
//! # assert_eq!((prefill.length(7)?, decode.length(7)?), (20, 20));
//! # Ok::<(), kvcache::Error>(())
//! ```
//!
//! # The library
//!
//! libkvcache is linked: the build looks in `KVCACHE_LIB_DIR`, then asks pkg-config. The feature `static`
//! links the archive, `vendored` builds it from the sources in `libkvcache-sys` when no library is found, and
//! `dlopen` links nothing and loads it when the program runs. A library that is too old is refused
//! by the first call, naming both versions. `half` adds `half::f16` and `half::bf16` as element types.
//!
//! The oldest Rust is 1.85.

#![warn(missing_docs)]

mod attention;
mod cache;
mod config;
mod copies;
mod debug;
mod element;
mod error;
mod events;
mod export;
mod files;
mod forward;
mod hf;
mod host;
mod kinds;
mod layer;
mod layout;
mod library;
mod logger;
pub mod ops;
mod plan;
mod prefix;
mod raw_config;
mod state;
mod tensor;
mod tiers;
mod transfers;

pub use attention::{AttnOptions, Kv, Out};
pub use cache::{Cache, CacheRef, SeqId, SeqInfo, Stats};
pub use config::Config;
pub use copies::Fence;
pub use element::{Bf16, DType, Device, Element, Stream, F16, F8E4M3, F8E5M2};
pub use error::{Error, Result, Status};
pub use events::Event;
pub use export::ManagedTensor;
pub use files::{describe_state_bytes, describe_state_file, LoadOptions};
pub use forward::{Batch, Forward, TREE_NONE};
pub use hf::HfOptions;
pub use host::{Allocator, Executor, SharedExecutor};
pub use kinds::*;
pub use kvcache_sys as sys;
pub use layer::{Layer, Rope, StateSpec};
#[cfg(feature = "dlopen")]
pub use library::load;
pub use library::{abi_version, device_query, has_feature, set_module_path, version, DeviceCaps};
pub use logger::set_logger;
pub use plan::{GroupInfo, LayerInfo, Plan, PlanInfo};
pub use prefix::{prefix_hash, BlockHash, PrefixKey, Query};
pub use state::{LinearInputs, LinearOptions};
pub use tensor::{TensorMut, TensorRef, MAX_DIMS};
pub use tiers::{RedisOptions, TierOptions, TierStats};
pub use transfers::{
    OnDone, ReceiveOptions, SendOptions, Transfer, TransferInfo, Transport, TransportOptions, TransportStats,
};

/// An index as C takes it. One that C cannot hold is beyond every limit of the library, which says so.
fn index(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}
