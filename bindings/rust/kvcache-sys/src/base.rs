//! Statuses, errors, handles, and what the library says of itself.

use crate::*;
use core::ffi::{c_char, c_void};
use core::marker::{PhantomData, PhantomPinned};

/// Planned memory of a model: immutable.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_plan {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Pages and sequences.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_cache {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// One open step over a batch; belongs to its cache.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_forward {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Completion of copies.
#[repr(C)]
#[derive(Debug)]
pub struct kvc_fence {
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

kinds! {
    /// Result of a call.
    kvc_status: i32 {
        KVC_OK = 0,
        KVC_E_INVALID_ARGUMENT = 1,
        KVC_E_INVALID_STATE = 2,
        KVC_E_NOT_FOUND = 3,
        KVC_E_ALREADY_EXISTS = 4,
        KVC_E_OUT_OF_RANGE = 5,
        KVC_E_SHAPE = 6,
        KVC_E_DTYPE = 7,
        KVC_E_DEVICE_MISMATCH = 8,
        KVC_E_UNSUPPORTED = 9,
        KVC_E_NO_PAGES = 10,
        KVC_E_NEVER_FITS = 11,
        KVC_E_NO_MEMORY = 12,
        KVC_E_BUSY = 13,
        KVC_E_BUFFER_TOO_SMALL = 14,
        KVC_E_VERSION = 15,
        KVC_E_CORRUPT = 16,
        KVC_E_IO = 17,
        KVC_E_TIMEOUT = 18,
        KVC_E_PEER = 19,
        KVC_E_CANCELLED = 20,
        KVC_E_DEVICE = 21,
        KVC_E_INTERNAL = 22,
    }
}

/// Details of a failure
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_error {
    pub struct_size: usize,
    pub status: kvc_status,
    pub sys_code: i32,
    pub detail: i64,
    pub message: [c_char; 488],
}

/// Head of a chained option struct.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_ext {
    pub type_: i32,
    pub next: *const kvc_ext,
}

kinds! {
    /// Instruction set of the CPU kernels.
    kvc_cpu_isa: i32 {
        KVC_CPU_ISA_AUTO = 0,
        KVC_CPU_ISA_REFERENCE = 1,
        KVC_CPU_ISA_SCALAR = 2,
        KVC_CPU_ISA_AVX2 = 3,
        KVC_CPU_ISA_AVX512 = 4,
        KVC_CPU_ISA_AVX512_BF16 = 5,
    }
}

/// Bits of kvc_device_caps.dtypes.
pub const KVC_DTYPE_F32: u64 = 1;
pub const KVC_DTYPE_F16: u64 = 2;
pub const KVC_DTYPE_BF16: u64 = 4;
pub const KVC_DTYPE_F8_E4M3: u64 = 8;
pub const KVC_DTYPE_F8_E5M2: u64 = 16;
pub const KVC_DTYPE_INT8: u64 = 32;
pub const KVC_DTYPE_INT4: u64 = 64;
pub const KVC_DTYPE_F4_E2M1: u64 = 128;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_device_caps {
    pub struct_size: usize,
    pub backend_present: i32,
    pub arch: i32,
    pub num_cores: i32,
    pub page_granularity: i32,
    pub dtypes: u64,
    pub isas: u64,
    pub memory_bytes: u64,
    pub memory_free_bytes: u64,
    pub name: [c_char; 64],
}

kinds! {
    /// Weight of a log message.
    kvc_log_level: i32 {
        KVC_LOG_DEBUG = 0,
        KVC_LOG_INFO = 1,
        KVC_LOG_WARNING = 2,
        KVC_LOG_ERROR = 3,
    }
}

/// Sequence id, chosen by the caller, at least 0.
pub type kvc_seq = i64;

/// Device stream of the host program; ignored on the CPU.
pub type kvc_stream = *mut c_void;

/// The message is borrowed for the call. Any thread; must not call the library and must not unwind.
pub type kvc_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: kvc_log_level, message: *const c_char)>;

/// Version of the ABI that these declarations follow.
pub const KVC_ABI_VERSION_MAJOR: u32 = 0;
pub const KVC_ABI_VERSION_MINOR: u32 = 1;
pub const KVC_ABI_VERSION: u32 = KVC_ABI_VERSION_MAJOR << 16 | KVC_ABI_VERSION_MINOR;

extern "C" {
    /// Version of the loaded library's ABI, major \<\< 16 | minor.
    pub fn kvc_abi_version() -> u32;
    /// Version and build, for example "0.1.0 cpu".
    pub fn kvc_version_string() -> *const c_char;
    /// Name of a status, for example "KVC_E_NO_PAGES"
    pub fn kvc_status_name(status: kvc_status) -> *const c_char;
    /// 1 when the build has a feature, 0 when it has not or does not know the name.
    pub fn kvc_has_feature(name: *const c_char) -> i32;
    /// Says where modules lie: shared libraries of this project that are loaded when they are first needed.
    pub fn kvc_module_path_set(path: *const c_char, err: *mut kvc_error) -> kvc_status;
    /// What the library can do on a device.
    pub fn kvc_device_query(device: DLDevice, out: *mut kvc_device_caps, err: *mut kvc_error) -> kvc_status;
    /// Send messages of at least `min_level` to `fn`
    pub fn kvc_set_logger(
        fn_: kvc_log_fn,
        user: *mut c_void,
        min_level: kvc_log_level,
        err: *mut kvc_error,
    ) -> kvc_status;
}
