//! What tensors are made of and where they lie.

use kvcache_sys as sys;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Where a tensor or a cache lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// DLPack's `DLDeviceType`.
    pub kind: i32,
    /// Which of them.
    pub id: i32,
}

impl Device {
    /// Host memory.
    pub const CPU: Device = Device { kind: sys::kDLCPU, id: 0 };

    /// A CUDA device.
    pub const fn cuda(id: i32) -> Device {
        Device { kind: sys::kDLCUDA, id }
    }

    pub(crate) fn raw(self) -> sys::DLDevice {
        sys::DLDevice { device_type: self.kind, device_id: self.id }
    }
}

/// A stream of a GPU: what is given to it is done in that order, after the call has returned. Caches on the CPU
/// look at none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(*mut c_void);

impl Default for Stream {
    fn default() -> Stream {
        Stream::LEGACY
    }
}

// SAFETY: an address; streams may be used from every thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// The legacy default stream.
    pub const LEGACY: Stream = Stream(null_mut());

    /// A `cudaStream_t` of the host program.
    ///
    /// # Safety
    /// The stream is one of the device of every cache that is given it, and lives until what calls enqueued on it
    /// is done.
    pub const unsafe fn from_raw(stream: *mut c_void) -> Stream {
        Stream(stream)
    }

    pub(crate) fn raw(self) -> sys::kvc_stream {
        self.0
    }
}

/// Element type, as DLPack has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DType {
    /// DLPack's `DLDataTypeCode`.
    pub code: u8,
    /// Of one element.
    pub bits: u8,
}

#[allow(missing_docs)]
impl DType {
    pub const F64: DType = DType { code: sys::kDLFloat, bits: 64 };
    pub const F32: DType = DType { code: sys::kDLFloat, bits: 32 };
    pub const F16: DType = DType { code: sys::kDLFloat, bits: 16 };
    pub const BF16: DType = DType { code: sys::kDLBfloat, bits: 16 };
    pub const F8_E4M3FN: DType = DType { code: sys::kDLFloat8_e4m3fn, bits: 8 };
    pub const F8_E5M2: DType = DType { code: sys::kDLFloat8_e5m2, bits: 8 };
    pub const F4_E2M1FN: DType = DType { code: sys::kDLFloat4_e2m1fn, bits: 4 };
    pub const I64: DType = DType { code: sys::kDLInt, bits: 64 };
    pub const I32: DType = DType { code: sys::kDLInt, bits: 32 };
    pub const I8: DType = DType { code: sys::kDLInt, bits: 8 };
    pub const I4: DType = DType { code: sys::kDLInt, bits: 4 };
    pub const U8: DType = DType { code: sys::kDLUInt, bits: 8 };

    pub(crate) fn raw(self) -> sys::DLDataType {
        sys::DLDataType { code: self.code, bits: self.bits, lanes: 1 }
    }

    pub(crate) fn from_raw(raw: sys::DLDataType) -> Self {
        DType { code: raw.code, bits: raw.bits }
    }
}

/// Types that are elements of tensors.
///
/// # Safety
/// `DTYPE` has the size of `Self`, and every bit pattern is a value.
pub unsafe trait Element: Copy + 'static {
    /// DLPack's name of the type.
    const DTYPE: DType;
}

/// Bits of a float16.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct F16(pub u16);

/// Bits of a bfloat16.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bf16(pub u16);

/// Bits of a float8_e4m3fn.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct F8E4M3(pub u8);

/// Bits of a float8_e5m2.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct F8E5M2(pub u8);

macro_rules! elements {
    ($($type:ty = $dtype:ident,)*) => {
        // SAFETY: plain numbers of the size of their names.
        $(unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}
elements! { f64 = F64, f32 = F32, i64 = I64, i32 = I32, i8 = I8, u8 = U8, F16 = F16, Bf16 = BF16, F8E4M3 = F8_E4M3FN, F8E5M2 = F8_E5M2, }
#[cfg(feature = "half")]
elements! { half::f16 = F16, half::bf16 = BF16, }

macro_rules! from_bits {
    ($($type:ident)*) => {$(
        impl $type {
            /// The same bits under their name.
            pub fn from_bits_slice(bits: &[u16]) -> &[$type] {
                // SAFETY: transparent, and every pattern of bits is a value.
                unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
            }

            /// The same bits under their name.
            pub fn from_bits_slice_mut(bits: &mut [u16]) -> &mut [$type] {
                // SAFETY: as above.
                unsafe { std::slice::from_raw_parts_mut(bits.as_mut_ptr().cast(), bits.len()) }
            }
        }
    )*};
}
from_bits! { F16 Bf16 }
