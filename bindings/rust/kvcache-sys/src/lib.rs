//! Raw declarations of libkvcache, the KV cache of LLM serving as
//! a C library: every function, struct and constant of `kvcache.h` under its C name. The header is the
//! manual. Programs want the safe crate, `libkvcache`.
//!
//! The comment of a function is the first sentence of the header's, which has the statuses, who owns what,
//! and which thread may call. Zero-initialise structs and set `struct_size`, or begin with
//! `Default::default()`, which does both.
//!
//! How the library is found: see `build.rs`. With the feature `dlopen` nothing is linked; load the library
//! with `RTLD_NOW | RTLD_LOCAL`, look up [`kvc_get_api`] and use its table.

#![no_std]
#![allow(non_camel_case_types)]

/// Kinds are numbers that a newer library may add to, so they are structs and not Rust enums: any value is a
/// valid one.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident: $repr:ident { $($value:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);
        $(pub const $value: $name = $name($number);)*
    };
}

/// Structs whose first field is their size: the default is all zero but that field.
macro_rules! sized_structs {
    ($($name:ident)*) => {
        $(impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers, floats, nullable pointers and optional functions, for all of which zero
                // is a value.
                let mut all_zero: Self = unsafe { core::mem::zeroed() };
                all_zero.struct_size = core::mem::size_of::<Self>();
                all_zero
            }
        })*
    };
}

mod api;
mod attention;
mod base;
mod cache;
mod dlpack;
#[doc(hidden)]
pub mod layout;
mod ops;
mod plan;
mod prefix;

pub use api::*;
pub use attention::*;
pub use base::*;
pub use cache::*;
pub use dlpack::*;
pub use ops::*;
pub use plan::*;
pub use prefix::*;

sized_structs! {
    kvc_error kvc_device_caps kvc_rope kvc_state_spec kvc_layer kvc_allocator kvc_executor kvc_config
    kvc_plan_info kvc_group_info kvc_layer_info kvc_stats kvc_seq_info kvc_forward_desc kvc_attn_opt
    kvc_linear_opt kvc_op_pool kvc_op_table kvc_op_opt kvc_prefix_key kvc_prefix_query kvc_event
}
