//! Paged KV for candle models, on the CPU: sequences of unequal lengths in one batch, shared prompts, forks without copies.
//!
//! A candle model has two lines per layer that know of a cache: the append, and the attention after it. Both become one call:
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use kvcache_candle::{kvcache, PagedCache};
//!
//! # fn main() -> kvcache_candle::Result<()> {
//! // Two layers; 8 query heads read 2 key heads of 32 elements.
//! let layer = kvcache::Layer::attention(8, 2, 32).dtype(kvcache::DType::F32);
//! let mut cache = PagedCache::new(&kvcache::Config::new(vec![layer; 2]).num_pages(64))?;
//! cache.add(0)?;
//! cache.add(1)?;
//!
//! // Sequence 0 grows by 5 tokens and sequence 1 by 3: packed rows, no padding.
//! let step = cache.step(&[0, 1], &[5, 3])?;
//! for layer in 0..2 {
//!     let q = Tensor::randn(0f32, 1., (1, 8, 8, 32), &Device::Cpu)?;
//!     let kv = Tensor::randn(0f32, 1., (1, 2, 8, 32), &Device::Cpu)?;
//!     let context = step.attend(layer, &q, &kv, &kv)?; // (B, H, L, D), as q
//!     assert_eq!(context.dims(), [1, 8, 8, 32]);
//! }
//! step.commit()?;
//! assert_eq!(cache.length(1)?, 3);
//! # Ok(())
//! # }
//! ```
//!
//! * [`PagedCache`]: pages and sequences; [`Step`]: one forward of the model, with [`attend`](Step::attend).
//! * [`PagedKvCache`]: `append(&k, &v) -> (k, v)` for models that keep their own attention; it gathers, which costs a copy of the whole
//!   context per layer and step, and shares prompts all the same.
//!
//! q, k and v are (B, H, L, D) and rotated, as candle models have them: strides, offsets and element types as they come. Nothing is copied
//! where the tokens of the batch lie at one stride, which is so for one sequence, for decoding, and for `(B, L, H, D)` seen transposed;
//! else the tensor is made contiguous first. Backward passes are not supported: caches serve, they do not train.

#![warn(missing_docs)]

mod append;
mod attend;
mod cache;
mod error;
mod rows;
mod step;

pub use append::{PagedBatch, PagedKvCache};
pub use attend::Attention;
pub use cache::PagedCache;
pub use error::{Error, Result};
pub use kvcache;
pub use rows::{dtype, tensor_mut, tensor_ref, zeros};
pub use step::Step;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
