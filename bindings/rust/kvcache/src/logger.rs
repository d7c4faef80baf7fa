//! What the library has to say.

use crate::error::{check, Result};
use crate::kinds::LogLevel;
use crate::library::api;
use kvcache_sys as sys;
use std::ffi::{c_char, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Sends messages of at least `min_level` to `log`, which may be called from any thread and must not call
/// this crate. Without a logger the library is silent. The closure is kept for ever, because another thread
/// may be in it when it is replaced.
pub fn set_logger<F>(min_level: LogLevel, log: F) -> Result<()>
where
    F: Fn(LogLevel, &str) + Send + Sync + 'static,
{
    let api = api()?;
    let user: *mut F = Box::into_raw(Box::new(log));
    // SAFETY: the closure lives for ever and may be called from any thread.
    check(|error| unsafe { (api.set_logger)(Some(call::<F>), user.cast(), min_level.to_raw(), error) })
}

unsafe extern "C" fn call<F: Fn(LogLevel, &str)>(
    user: *mut c_void,
    level: sys::kvc_log_level,
    message: *const c_char,
) {
    // SAFETY: what set_logger gave.
    let log = unsafe { &*user.cast::<F>() };
    // SAFETY: terminated, borrowed for the call.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let level = LogLevel::from_raw(level).unwrap_or(LogLevel::Error);
    // A panic must not reach C; its message has been printed by then, and the library goes on.
    let _ = catch_unwind(AssertUnwindSafe(|| log(level, &message)));
}
