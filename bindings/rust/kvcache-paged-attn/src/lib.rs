//! Paged attention over a host's own block pools, for candle tensors, on the CPU: the six functions that mistral.rs's crate
//! `mistralrs-paged-attn` exports for GPUs, with the same arguments, so that its `PagedAttention` can be compiled for the CPU.
//!
//! | cache | K | V | how |
//! | --- | --- | --- | --- |
//! | HND | `[blocks, Hkv, block, D]` | `[blocks, Hkv, block, Dv]` | the library's own layout: read and written in place |
//! | standard | `[blocks, Hkv, D/x, block, x]` | `[blocks, Hkv, Dv, block]` | a token's elements are apart, which the library does not take: the context is gathered into rows for each call |
//!
//! Choose HND on the CPU: the standard layout exists for the coalesced loads of GPUs, and costs a copy of the context in every layer and
//! step here. Which one a cache has is told by the rank of the key cache.
//!
//! Elements are F32, F16 or BF16. Caches of F8E4M3 and of latents (MLA) are refused.

#![warn(missing_docs)]

mod attend;
mod blocks;
mod gather;
mod pools;
mod scales;
mod standard;
mod threads;
mod write;

pub use attend::{attend, paged_attention, AttendOptions};
pub use blocks::{copy_blocks, swap_blocks};
pub use gather::gather_kv_cache;
pub use scales::kv_scale_update;
pub use write::reshape_and_cache;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
