//! Zero-copy export: the pool and page tables as DLPack tensors, for a host's own kernels.

use crate::element::{DType, Device, Element};
use crate::error::{check, Result};
use crate::kinds::{PoolKind, TableKind};
use crate::library::loaded;
use crate::tensor::RawTensor;
use crate::{CacheRef, Forward, SeqId};
use kvcache_sys as sys;
use std::ffi::c_void;
use std::ptr::{null_mut, NonNull};

/// A tensor that keeps its memory alive, also after the cache is gone. Released when dropped, on any thread.
#[derive(Debug)]
pub struct ManagedTensor {
    raw: NonNull<sys::DLManagedTensorVersioned>,
    tensor: RawTensor,
}

// SAFETY: the deleter works from any thread.
unsafe impl Send for ManagedTensor {}
// SAFETY: a shared reference reads the tensor's description, and its elements only where nobody writes them.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    /// # Safety
    /// A valid tensor of the library, which is ours from now on.
    unsafe fn new(raw: *mut sys::DLManagedTensorVersioned) -> Result<Self> {
        let raw = NonNull::new(raw).expect("a tensor on success");
        // SAFETY: valid, says the caller.
        let tensor = unsafe { RawTensor::from_dl(&raw.as_ref().dl_tensor) };
        match tensor {
            Ok(tensor) => Ok(ManagedTensor { raw, tensor }),
            Err(error) => {
                // SAFETY: ours, and not used afterwards.
                unsafe { delete(raw) };
                Err(error)
            }
        }
    }

    /// Extents of the dimensions.
    pub fn shape(&self) -> &[i64] {
        self.tensor.shape()
    }

    /// Distances of neighbours in each dimension, in elements; `None`: compact, row-major.
    pub fn strides(&self) -> Option<&[i64]> {
        self.tensor.strides()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Where its memory lies.
    pub fn device(&self) -> Device {
        self.tensor.device()
    }

    /// Address of the first element.
    pub fn data(&self) -> *mut c_void {
        self.tensor.data()
    }

    /// A snapshot that nobody writes.
    pub fn is_read_only(&self) -> bool {
        // SAFETY: valid while we live.
        unsafe { self.raw.as_ref() }.flags & sys::DLPACK_FLAG_BITMASK_READ_ONLY != 0
    }

    /// The elements of a compact snapshot of this type (page tables are i32, slot mappings i64); `None` for
    /// other tensors.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let on_host = self.tensor.device() == Device::CPU;
        if !on_host || !self.is_read_only() || self.dtype() != T::DTYPE || self.strides().is_some() {
            return None;
        }
        let len = self.shape().iter().product::<i64>() as usize;
        if len == 0 {
            return Some(&[]);
        }
        // SAFETY: host memory of so many elements of the type, which nobody writes and which lives as long as
        // we do.
        Some(unsafe { std::slice::from_raw_parts(self.data().cast(), len) })
    }

    /// Hands the tensor to somebody who takes DLPack: they call its deleter.
    pub fn into_raw(self) -> *mut sys::DLManagedTensorVersioned {
        std::mem::ManuallyDrop::new(self).raw.as_ptr()
    }
}

/// # Safety
/// The tensor is valid, and not used afterwards.
unsafe fn delete(raw: NonNull<sys::DLManagedTensorVersioned>) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(deleter) = raw.as_ref().deleter {
            deleter(raw.as_ptr());
        }
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        // SAFETY: ours, once.
        unsafe { delete(self.raw) };
    }
}

/// A call that returns a tensor.
fn export(
    call: impl FnOnce(*mut *mut sys::DLManagedTensorVersioned, *mut sys::kvc_error) -> sys::kvc_status,
) -> Result<ManagedTensor> {
    let mut raw = null_mut();
    check(|error| call(&mut raw, error))?;
    // SAFETY: the library's, owned by the caller on success.
    unsafe { ManagedTensor::new(raw) }
}

impl CacheRef {
    /// The pool memory of one layer, writable and shared: reading or writing it is up to the caller.
    pub fn export_pool(&mut self, layer: usize, kind: PoolKind) -> Result<ManagedTensor> {
        let layer = crate::index(layer);
        // SAFETY: exclusive, one output.
        export(|out, error| unsafe {
            (loaded().export_pool)(self.as_mut_ptr(), layer, kind.to_raw(), out, error)
        })
    }

    /// Ids of the kept pages of one sequence's committed tokens: a snapshot of i32.
    pub fn export_seq_pages(&self, seq: SeqId, group: usize) -> Result<ManagedTensor> {
        let group = crate::index(group);
        // SAFETY: shared, one output.
        export(|out, error| unsafe { (loaded().export_seq_pages)(self.as_ptr(), seq, group, out, error) })
    }
}

impl Forward<'_> {
    /// The page tables of the batch, as they are with the new tokens: a snapshot of i32 or i64.
    pub fn export_page_table(&self, group: usize, kind: TableKind) -> Result<ManagedTensor> {
        let group = crate::index(group);
        // SAFETY: open, one call at a time, one output.
        export(|out, error| unsafe {
            (loaded().export_page_table)(self.as_ptr(), group, kind.to_raw(), out, error)
        })
    }
}
