//! DLPack's structs (version 1), as far as `kvcache.h` uses them. Enumerations are integers here, so that a
//! value of a newer DLPack is a number like any other.

#![allow(non_upper_case_globals)]

use core::ffi::c_void;

/// Kinds of devices; see `DLDevice::device_type`.
pub const kDLCPU: i32 = 1;
pub const kDLCUDA: i32 = 2;
pub const kDLCUDAHost: i32 = 3;

/// Kinds of elements; see `DLDataType::code`.
pub const kDLInt: u8 = 0;
pub const kDLUInt: u8 = 1;
pub const kDLFloat: u8 = 2;
pub const kDLBfloat: u8 = 4;
pub const kDLFloat8_e4m3fn: u8 = 10;
pub const kDLFloat8_e5m2: u8 = 12;
pub const kDLFloat4_e2m1fn: u8 = 17;

/// Bit of `DLManagedTensorVersioned::flags`: the tensor may not be written.
pub const DLPACK_FLAG_BITMASK_READ_ONLY: u64 = 1;

/// Where a tensor lies.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

/// What a tensor's elements are.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// A tensor that somebody else owns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    /// In elements; NULL: compact, row-major.
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    pub major: u32,
    pub minor: u32,
}

/// A tensor with its owner: call `deleter` once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLManagedTensorVersioned {
    pub version: DLPackVersion,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(this: *mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}
