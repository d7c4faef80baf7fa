// Generated from include/kvcache.h by `make abi`. Do not edit.
//! Declarations of kvcache.h.

mod functions;
#[doc(hidden)]
pub mod layout;
mod table;
mod types;

pub use functions::*;
pub use table::*;
pub use types::*;
