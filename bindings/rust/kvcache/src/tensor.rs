//! Tensors as the library takes them: borrowed memory with a shape. Made from slices they are checked; made
//! from raw parts they are `unsafe` once.

use crate::element::{DType, Device, Element};
use crate::error::{Error, Result, Status};
use crate::layout::{check_bounds, check_disjoint, check_rank, compact_len, is_compact, strided_len, DIMS};
use kvcache_sys as sys;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

pub use crate::layout::MAX_DIMS;

/// Shape, strides and address; the shape lies inside, so that a tensor can be made of temporaries.
#[derive(Clone, Copy)]
pub(crate) struct RawTensor {
    /// As the call takes it, but for the pointers to shape and strides: copying it whole is faster than
    /// writing its fields.
    head: sys::DLTensor,
    strided: bool,
    /// Extents, then strides when there are any; what is behind them is not written. Small, because tensors
    /// are made for every call.
    dims: [MaybeUninit<i64>; DIMS],
}

impl RawTensor {
    /// A shape that `check_rank` or the functions of `layout` have passed.
    #[inline]
    fn new(
        data: *mut c_void,
        dtype: DType,
        device: Device,
        shape: &[usize],
        strides: Option<&[usize]>,
    ) -> Self {
        let mut raw = RawTensor {
            head: sys::DLTensor {
                data,
                device: device.raw(),
                ndim: shape.len() as i32,
                dtype: dtype.raw(),
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            strided: strides.is_some(),
            dims: [MaybeUninit::uninit(); DIMS],
        };
        for (to, from) in raw.dims.iter_mut().zip(shape.iter().chain(strides.unwrap_or(&[]))) {
            to.write(*from as i64);
        }
        raw
    }

    /// The struct of a call. It points into `self`; the library writes neither shape nor strides.
    #[inline]
    pub(crate) fn dl(&self) -> sys::DLTensor {
        let mut dl = self.head;
        dl.shape = self.dims.as_ptr().cast_mut().cast();
        // Behind the extents; there is room for both, see check_rank.
        let strides = self.dims.as_ptr().wrapping_add(self.rank()).cast_mut().cast();
        dl.strides = if self.strided { strides } else { std::ptr::null_mut() };
        dl
    }

    fn rank(&self) -> usize {
        self.head.ndim as usize
    }

    pub(crate) fn data(&self) -> *mut c_void {
        self.head.data
    }

    pub(crate) fn shape(&self) -> &[i64] {
        self.list(0)
    }

    pub(crate) fn strides(&self) -> Option<&[i64]> {
        self.strided.then(|| self.list(self.rank()))
    }

    fn list(&self, first: usize) -> &[i64] {
        // SAFETY: the first ndim are written, and as many behind them when there are strides.
        unsafe { std::slice::from_raw_parts(self.dims[first..].as_ptr().cast(), self.rank()) }
    }

    pub(crate) fn device(&self) -> Device {
        Device { kind: self.head.device.device_type, id: self.head.device.device_id }
    }

    pub(crate) fn dtype(&self) -> DType {
        DType::from_raw(self.head.dtype)
    }

    /// # Safety
    /// A valid DLTensor whose shape and strides can be read.
    pub(crate) unsafe fn from_dl(tensor: &sys::DLTensor) -> Result<Self> {
        let rank = tensor.ndim.max(0) as usize;
        // SAFETY: rank elements each, as the caller promises.
        let list = |pointer: *const i64| unsafe {
            let values = (0..rank).map(|index| *pointer.add(index)).collect::<Vec<_>>();
            values.iter().map(|value| usize::try_from(*value)).collect::<std::result::Result<Vec<_>, _>>()
        };
        let negative = |_| Error::new(Status::Shape, "a tensor with a negative extent or stride");
        let shape = list(tensor.shape).map_err(negative)?;
        let strides =
            if tensor.strides.is_null() { None } else { Some(list(tensor.strides).map_err(negative)?) };
        if tensor.dtype.lanes != 1 {
            return Err(Error::new(Status::Dtype, format!("a tensor of {} lanes: 1", tensor.dtype.lanes)));
        }
        let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize).cast();
        let device = Device { kind: tensor.device.device_type, id: tensor.device.device_id };
        // Strides that say nothing need no room.
        let strides = strides.filter(|strides| !is_compact(&shape, strides));
        check_rank(&shape, strides.as_deref())?;
        Ok(RawTensor::new(data, DType::from_raw(tensor.dtype), device, &shape, strides.as_deref()))
    }
}

impl fmt::Debug for RawTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, head) = (self.dtype(), &self.head);
        let (shape, strides) = (self.shape(), self.strides());
        write!(f, "{dtype:?} {shape:?} strides {strides:?} at {:?} on {:?}", head.data, head.device)
    }
}

/// `None` for NULL.
#[inline]
pub(crate) fn dl_or_null(tensor: Option<&RawTensor>) -> Option<sys::DLTensor> {
    tensor.map(RawTensor::dl)
}

/// A pointer to it, or NULL.
#[inline]
pub(crate) fn pointer(tensor: &Option<sys::DLTensor>) -> *const sys::DLTensor {
    tensor.as_ref().map_or(std::ptr::null(), |tensor| tensor)
}

/// The same for outputs.
#[inline]
pub(crate) fn pointer_mut(tensor: &mut Option<sys::DLTensor>) -> *mut sys::DLTensor {
    tensor.as_mut().map_or(std::ptr::null_mut(), |tensor| tensor)
}

/// A tensor that is read: memory borrowed for `'a`, with a shape.
///
/// ```
/// use kvcache::TensorRef;
/// let q = vec![0.0f32; 2 * 8 * 64];
/// let q = TensorRef::new(&q, &[2, 8, 64])?;
/// assert_eq!(q.shape(), [2, 8, 64]);
/// assert!(TensorRef::new(&[0.0f32; 3], &[2, 2]).is_err());
/// # Ok::<(), kvcache::Error>(())
/// ```
///
/// It cannot outlive its memory:
///
/// ```compile_fail,E0597
/// # use kvcache::TensorRef;
/// let tensor = {
///     let numbers = vec![0.0f32; 8];
///     TensorRef::new(&numbers, &[2, 4])? // error: numbers goes at the end of the block
/// };
/// println!("{:?}", tensor.shape());
/// # Ok::<(), kvcache::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    pub(crate) raw: RawTensor,
    memory: PhantomData<&'a [u8]>,
}

/// A tensor that is written: memory borrowed exclusively for `'a`, with a shape. Nobody else sees it
/// meanwhile:
///
/// ```compile_fail,E0502
/// # use kvcache::TensorMut;
/// let mut numbers = [0.0f32; 8];
/// let mut out = TensorMut::new(&mut numbers, &[2, 4])?;
/// println!("{}", numbers[0]); // error: out still borrows it
/// out.reborrow();
/// # Ok::<(), kvcache::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) raw: RawTensor,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: shared memory that is only read, as &[T] of plain numbers; raw parts promise the same.
unsafe impl Send for TensorRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for TensorRef<'_> {}
// SAFETY: exclusive memory, as &mut [T] of plain numbers; raw parts promise the same.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: a shared reference to it gives out nothing but shared reads.
unsafe impl Sync for TensorMut<'_> {}

impl<'a> TensorRef<'a> {
    /// A compact row-major tensor: `data` has at least as many elements as the shape.
    #[inline]
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Result<Self> {
        check_rank(shape, None)?;
        check_bounds(data.len(), compact_len(shape)?, shape)?;
        Ok(Self::checked(data, shape, None))
    }

    /// A tensor with strides, in elements: every element lies inside `data`.
    pub fn with_strides<T: Element>(data: &'a [T], shape: &[usize], strides: &[usize]) -> Result<Self> {
        check_rank(shape, Some(strides))?;
        check_bounds(data.len(), strided_len(shape, strides)?, shape)?;
        Ok(Self::checked(data, shape, Some(strides)))
    }

    #[inline]
    fn checked<T: Element>(data: &'a [T], shape: &[usize], strides: Option<&[usize]>) -> Self {
        let data = data.as_ptr().cast_mut().cast();
        TensorRef { raw: RawTensor::new(data, T::DTYPE, Device::CPU, shape, strides), memory: PhantomData }
    }

    /// A tensor of any memory. Strides are in elements; `None` is compact row-major.
    ///
    /// # Safety
    /// For `'a`, all elements lie on `device` from `data` on, can be read and are not written.
    pub unsafe fn from_raw_parts(
        data: *const c_void,
        dtype: DType,
        device: Device,
        shape: &[usize],
        strides: Option<&[usize]>,
    ) -> Result<Self> {
        check_rank(shape, strides)?;
        Ok(TensorRef {
            raw: RawTensor::new(data.cast_mut(), dtype, device, shape, strides),
            memory: PhantomData,
        })
    }

    /// The view of a DLPack tensor; its shape and strides are copied.
    ///
    /// # Safety
    /// The tensor is valid, and for `'a` its elements can be read and are not written.
    pub unsafe fn from_dlpack(tensor: &sys::DLTensor) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(TensorRef { raw: unsafe { RawTensor::from_dl(tensor)? }, memory: PhantomData })
    }

    /// Extents of the dimensions.
    pub fn shape(&self) -> &[i64] {
        self.raw.shape()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.raw.dtype()
    }
}

impl<'a> TensorMut<'a> {
    /// A compact row-major tensor: `data` has at least as many elements as the shape.
    #[inline]
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<Self> {
        check_rank(shape, None)?;
        check_bounds(data.len(), compact_len(shape)?, shape)?;
        Ok(Self::checked(data, shape, None))
    }

    /// A tensor with strides, in elements: every element lies inside `data`, and no two at the same place.
    pub fn with_strides<T: Element>(data: &'a mut [T], shape: &[usize], strides: &[usize]) -> Result<Self> {
        check_rank(shape, Some(strides))?;
        check_bounds(data.len(), strided_len(shape, strides)?, shape)?;
        check_disjoint(shape, strides)?;
        Ok(Self::checked(data, shape, Some(strides)))
    }

    #[inline]
    fn checked<T: Element>(data: &'a mut [T], shape: &[usize], strides: Option<&[usize]>) -> Self {
        let data = data.as_mut_ptr().cast();
        TensorMut { raw: RawTensor::new(data, T::DTYPE, Device::CPU, shape, strides), memory: PhantomData }
    }

    /// A tensor of any memory. Strides are in elements; `None` is compact row-major.
    ///
    /// # Safety
    /// For `'a`, all elements lie on `device` from `data` on, can be written, and nobody else reads or writes
    /// them.
    pub unsafe fn from_raw_parts(
        data: *mut c_void,
        dtype: DType,
        device: Device,
        shape: &[usize],
        strides: Option<&[usize]>,
    ) -> Result<Self> {
        check_rank(shape, strides)?;
        Ok(TensorMut { raw: RawTensor::new(data, dtype, device, shape, strides), memory: PhantomData })
    }

    /// The view of a DLPack tensor; its shape and strides are copied.
    ///
    /// # Safety
    /// The tensor is valid, and for `'a` its elements can be written and nobody else reads or writes them.
    pub unsafe fn from_dlpack(tensor: &mut sys::DLTensor) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(TensorMut { raw: unsafe { RawTensor::from_dl(tensor)? }, memory: PhantomData })
    }

    /// The same tensor to read.
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef { raw: self.raw, memory: PhantomData }
    }

    /// The same tensor for a shorter time.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut { raw: self.raw, memory: PhantomData }
    }

    /// Extents of the dimensions.
    pub fn shape(&self) -> &[i64] {
        self.raw.shape()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.raw.dtype()
    }
}
