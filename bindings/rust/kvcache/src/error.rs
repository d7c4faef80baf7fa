//! Failures: a status to match on, a number that belongs to it, and a message that names the argument and
//! both values.

use kvcache_sys as sys;
use std::ffi::{c_char, CStr};
use std::fmt;
use std::mem::{size_of, MaybeUninit};

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:ident,)*) => {
        /// Why a call failed. The list may grow.
        #[non_exhaustive]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Status {
            $($(#[$doc])* $name,)*
            /// A status of a newer library.
            Unknown(i32),
        }

        impl Status {
            pub(crate) fn from_raw(raw: sys::kvc_status) -> Self {
                match raw {
                    $(sys::$code => Status::$name,)*
                    other => Status::Unknown(other.0),
                }
            }

            /// The number of the C interface.
            pub fn code(self) -> i32 {
                match self {
                    $(Status::$name => sys::$code.0,)*
                    Status::Unknown(code) => code,
                }
            }

            /// The name of the C interface, for example `KVC_E_NO_PAGES`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Status::$name => stringify!($code),)*
                    Status::Unknown(_) => "KVC_E_UNKNOWN",
                }
            }
        }
    };
}

statuses! {
    /// Negative, missing or contradictory.
    InvalidArgument = KVC_E_INVALID_ARGUMENT,
    /// Attention on a layer that is not there or of another kind; an uncommitted tree; a swapped sequence.
    InvalidState = KVC_E_INVALID_STATE,
    /// Unknown sequence.
    NotFound = KVC_E_NOT_FOUND,
    /// Sequence id taken.
    AlreadyExists = KVC_E_ALREADY_EXISTS,
    /// Position, length, count or index beyond its limit.
    OutOfRange = KVC_E_OUT_OF_RANGE,
    /// Tensor rank, shape, stride or alignment not accepted.
    Shape = KVC_E_SHAPE,
    /// Tensor element type not accepted.
    Dtype = KVC_E_DTYPE,
    /// Tensor lives on another device than the cache.
    DeviceMismatch = KVC_E_DEVICE_MISMATCH,
    /// Meaningful, but not available in this build, on this device, in this combination.
    Unsupported = KVC_E_UNSUPPORTED,
    /// Full now; nothing changed; [`Error::detail`] is the number of missing pages.
    NoPages = KVC_E_NO_PAGES,
    /// Could not be served even by an empty cache.
    NeverFits = KVC_E_NEVER_FITS,
    /// An allocation failed.
    NoMemory = KVC_E_NO_MEMORY,
    /// In use: an open forward, exported memory.
    Busy = KVC_E_BUSY,
    /// A buffer was too small.
    BufferTooSmall = KVC_E_BUFFER_TOO_SMALL,
    /// A struct or version that the library does not understand; a library that is too old.
    Version = KVC_E_VERSION,
    /// An invariant of the cache does not hold.
    Corrupt = KVC_E_CORRUPT,
    /// Input or output; a library that cannot be loaded.
    Io = KVC_E_IO,
    /// Not done in time.
    Timeout = KVC_E_TIMEOUT,
    /// The other side of a connection failed.
    Peer = KVC_E_PEER,
    /// Cancelled.
    Cancelled = KVC_E_CANCELLED,
    /// The device failed.
    Device = KVC_E_DEVICE,
    /// A defect in the library.
    Internal = KVC_E_INTERNAL,
}

/// A failed call. Whatever the status but [`Status::Device`], the cache is as it was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    sys_code: i32,
    detail: i64,
    message: Box<str>,
}

impl Error {
    pub(crate) fn new(status: Status, message: impl Into<Box<str>>) -> Self {
        Error { status, sys_code: 0, detail: 0, message: message.into() }
    }

    /// What to match on.
    pub fn status(&self) -> Status {
        self.status
    }

    /// errno or a device library's code, else 0.
    pub fn sys_code(&self) -> i32 {
        self.sys_code
    }

    /// A number that belongs to the status: missing pages, the offending id, the nearest position that is
    /// possible.
    pub fn detail(&self) -> i64 {
        self.detail
    }

    /// Names the argument and both values.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The pool is full now: evict, swap or wait, and try again.
    pub fn is_no_pages(&self) -> bool {
        self.status == Status::NoPages
    }

    /// The request is too large for this cache, whatever else is in it.
    pub fn is_never_fits(&self) -> bool {
        self.status == Status::NeverFits
    }

    /// No such sequence.
    pub fn is_not_found(&self) -> bool {
        self.status == Status::NotFound
    }

    /// Refused because a forward, an export or another user holds it.
    pub fn is_busy(&self) -> bool {
        self.status == Status::Busy
    }

    /// Not available in this build or in this combination.
    pub fn is_unsupported(&self) -> bool {
        self.status == Status::Unsupported
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.status.name())
    }
}

impl std::error::Error for Error {}

/// Room for a `kvc_error` that is written only when a call fails: clearing 512 bytes would cost more than the
/// call's own checks.
struct ErrorSlot(MaybeUninit<sys::kvc_error>);

impl ErrorSlot {
    fn new() -> Self {
        let mut slot = MaybeUninit::<sys::kvc_error>::uninit();
        let error = slot.as_mut_ptr();
        // SAFETY: fields of a struct on our stack. The message is terminated, so that there is always one to
        // read.
        unsafe {
            (&raw mut (*error).struct_size).write(size_of::<sys::kvc_error>());
            (&raw mut (*error).sys_code).write(0);
            (&raw mut (*error).detail).write(0);
            (&raw mut (*error).message).cast::<c_char>().write(0);
        }
        ErrorSlot(slot)
    }

    #[cold]
    #[inline(never)]
    fn read(&self, status: sys::kvc_status) -> Error {
        let error = self.0.as_ptr();
        // SAFETY: written above or by the library, which terminates its messages.
        unsafe {
            let message = CStr::from_ptr((&raw const (*error).message).cast::<c_char>());
            Error {
                status: Status::from_raw(status),
                sys_code: (&raw const (*error).sys_code).read(),
                detail: (&raw const (*error).detail).read(),
                message: message.to_string_lossy().into(),
            }
        }
    }
}

/// Makes a call that fills a `kvc_error`.
#[inline]
pub(crate) fn check(call: impl FnOnce(*mut sys::kvc_error) -> sys::kvc_status) -> Result<()> {
    let mut slot = ErrorSlot::new();
    let status = call(slot.0.as_mut_ptr());
    if status == sys::KVC_OK {
        Ok(())
    } else {
        Err(slot.read(status))
    }
}

/// Makes a call with one output.
#[inline]
pub(crate) fn check_out<T: Copy>(
    initial: T,
    call: impl FnOnce(*mut T, *mut sys::kvc_error) -> sys::kvc_status,
) -> Result<T> {
    let mut out = initial;
    check(|error| call(&mut out, error))?;
    Ok(out)
}

/// `what` has `given` elements where `needed` are needed.
pub(crate) fn check_count(what: &str, given: usize, of: &str, needed: usize) -> Result<()> {
    if given == needed {
        return Ok(());
    }
    Err(Error::new(
        Status::InvalidArgument,
        format!("{what} has {given} elements, but {of} asks for {needed}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_names_of_the_library() {
        let api = crate::library::api().unwrap();
        for code in 1..=sys::KVC_E_INTERNAL.0 {
            // SAFETY: any number is a status; static string.
            let name = unsafe { CStr::from_ptr((api.status_name)(sys::kvc_status(code))) };
            let status = Status::from_raw(sys::kvc_status(code));
            assert_eq!((status.name(), status.code()), (name.to_str().unwrap(), code));
        }
        assert_eq!(Status::from_raw(sys::kvc_status(-5)), Status::Unknown(-5));
        assert_eq!(Status::Unknown(-5).code(), -5);
    }
}
