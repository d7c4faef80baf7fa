//! Raw declarations of libkvcache, the KV cache of LLM serving as a C library: every function, struct and
//! constant of `kvcache.h` under its C name, with the header's comments. Programs want the safe crate,
//! `libkvcache`.
//!
//! The declarations are generated from the header and committed, so that the crate builds without a C compiler
//! or Python. Zero-initialise structs and set `struct_size`, or begin with `Default::default()`, which does
//! both.
//!
//! How the library is found: see `build.rs`. With the feature `dlopen` nothing is linked; load the library
//! with `RTLD_NOW | RTLD_LOCAL`, look up [`kvc_get_api`] and use its table.

#![no_std]
#![allow(non_camel_case_types)]

/// Kinds are numbers that a newer library may add to, so they are structs and not Rust enums: any value is a
/// valid one.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident: $repr:ident { $($(#[$value_doc:meta])* $value:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);
        $($(#[$value_doc])* pub const $value: $name = $name($number);)*
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

/// Structs with their sizes and the offsets of their fields, on 64-bit machines: checked while compiling, and
/// as a list that `tests/layout.rs` compares with what the C compiler found.
macro_rules! layouts {
    ($($name:ident = $size:literal { $($field:ident @ $offset:literal,)* })*) => {
        #[cfg(target_pointer_width = "64")]
        const _: () = {
            $(
                assert!(core::mem::size_of::<$name>() == $size);
                $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
            )*
        };

        /// Every struct: its name, size and alignment, and its fields by name and offset.
        pub const LAYOUTS: &[(&str, usize, usize, &[(&str, usize)])] = &[
            $((
                stringify!($name),
                core::mem::size_of::<$name>(),
                core::mem::align_of::<$name>(),
                &[$((stringify!($field), core::mem::offset_of!($name, $field))),*],
            )),*
        ];
    };
}

mod dlpack;
#[rustfmt::skip]
mod generated;

pub use dlpack::*;
#[doc(hidden)]
pub use generated::layout;
pub use generated::*;
