//! candle's storages as the library's tensors: pointer, shape and strides, no copy.

use crate::error::{refuse, Result};
use candle_core::{CpuStorage, Layout, Tensor};
use kvcache::{TensorMut, TensorRef};

/// The library's name of an element type that activations can have.
pub fn dtype(dtype: candle_core::DType) -> Result<kvcache::DType> {
    match dtype {
        candle_core::DType::F32 => Ok(kvcache::DType::F32),
        candle_core::DType::F16 => Ok(kvcache::DType::F16),
        candle_core::DType::BF16 => Ok(kvcache::DType::BF16),
        other => refuse(format!("element type {other:?}: F32, F16 and BF16 are supported")),
    }
}

/// Elements of a storage from `offset` on. U32 is handed over as int32: what is beyond that, the library refuses as negative.
pub fn tensor_ref<'a>(
    storage: &'a CpuStorage,
    offset: usize,
    shape: &[usize],
    strides: &[usize],
) -> Result<TensorRef<'a>> {
    fn view<'a, T: kvcache::Element>(
        data: &'a [T],
        offset: usize,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<TensorRef<'a>> {
        let data = data.get(offset..).unwrap_or(&[]);
        Ok(TensorRef::with_strides(data, shape, strides)?)
    }
    match storage {
        CpuStorage::F32(data) => view(data, offset, shape, strides),
        CpuStorage::F16(data) => view(data, offset, shape, strides),
        CpuStorage::BF16(data) => view(data, offset, shape, strides),
        CpuStorage::I64(data) => view(data, offset, shape, strides),
        CpuStorage::I32(data) => view(data, offset, shape, strides),
        CpuStorage::U32(data) => {
            // SAFETY: the same memory under the name of a type of the same size, of which every bit pattern is a value.
            let data = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<i32>(), data.len()) };
            view(data, offset, shape, strides)
        }
        _ => refuse("element type: F32, F16, BF16, I64, I32 and U32 are supported".into()),
    }
}

/// Elements of a storage from `offset` on, to write: no two at one place.
pub fn tensor_mut<'a>(
    storage: &'a mut CpuStorage,
    offset: usize,
    shape: &[usize],
    strides: &[usize],
) -> Result<TensorMut<'a>> {
    fn view<'a, T: kvcache::Element>(
        data: &'a mut [T],
        offset: usize,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<TensorMut<'a>> {
        let data = data.get_mut(offset..).unwrap_or(&mut []);
        Ok(TensorMut::with_strides(data, shape, strides)?)
    }
    match storage {
        CpuStorage::F32(data) => view(data, offset, shape, strides),
        CpuStorage::F16(data) => view(data, offset, shape, strides),
        CpuStorage::BF16(data) => view(data, offset, shape, strides),
        _ => refuse("element type of an output: F32, F16 and BF16 are supported".into()),
    }
}

/// A storage of zeros for an output.
pub fn zeros(dtype: candle_core::DType, len: usize) -> Result<CpuStorage> {
    Ok(match dtype {
        candle_core::DType::F32 => CpuStorage::F32(vec![0.0; len]),
        candle_core::DType::F16 => CpuStorage::F16(vec![half::f16::ZERO; len]),
        candle_core::DType::BF16 => CpuStorage::BF16(vec![half::bf16::ZERO; len]),
        other => return refuse(format!("element type {other:?}: F32, F16 and BF16 are supported")),
    })
}

/// A vector of zeros that becomes a tensor.
pub(crate) struct Output(CpuStorage);

impl Output {
    pub(crate) fn zeros(dtype: candle_core::DType, len: usize) -> Result<Self> {
        Ok(Output(zeros(dtype, len)?))
    }

    /// Elements from `offset` on.
    pub(crate) fn view(
        &mut self,
        offset: usize,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<TensorMut<'_>> {
        tensor_mut(&mut self.0, offset, shape, strides)
    }

    pub(crate) fn into_storage(self) -> CpuStorage {
        self.0
    }

    pub(crate) fn into_tensor(self, shape: impl Into<candle_core::Shape>) -> Result<Tensor> {
        let (shape, device) = (shape.into(), candle_core::Device::Cpu);
        Ok(match self.0 {
            CpuStorage::F32(data) => Tensor::from_vec(data, shape, &device)?,
            CpuStorage::F16(data) => Tensor::from_vec(data, shape, &device)?,
            CpuStorage::BF16(data) => Tensor::from_vec(data, shape, &device)?,
            _ => return refuse("an output of another element type than F32, F16 and BF16".into()),
        })
    }
}

/// Strides of (B, H, L, D) seen as packed rows (B * L, H, D); `None` where the tokens of the batch lie at more than one stride.
pub(crate) fn row_strides(dims: &[usize], strides: &[usize]) -> Option<[usize; 3]> {
    let (&[batch, _, len, dim], &[of_batch, of_head, of_token, of_element]) = (dims, strides) else {
        return None;
    };
    let token = if batch == 1 || len == 0 {
        of_token
    } else if len == 1 || of_batch == len * of_token {
        of_batch / len
    } else {
        return None;
    };
    (of_element == 1 || dim == 1).then_some([token, of_head, 1])
}

/// The tensor, or a copy of it whose tokens lie at one stride.
pub(crate) fn packable(tensor: &Tensor, name: &str) -> Result<Tensor> {
    let dims = tensor.dims();
    if dims.len() != 4 {
        return refuse(format!("{name} has shape {dims:?}, expected (B, H, L, D)"));
    }
    if row_strides(dims, tensor.stride()).is_some() {
        return Ok(tensor.clone());
    }
    Ok(tensor.transpose(1, 2)?.contiguous()?.transpose(1, 2)?)
}

/// Rows (B * L, H, D) of a storage with the layout of a [`packable`] tensor.
pub(crate) fn rows<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<TensorRef<'a>> {
    let dims = layout.dims();
    let Some(strides) = row_strides(dims, layout.stride()) else {
        return refuse(format!("{layout:?} is not one of packed rows"));
    };
    tensor_ref(storage, layout.start_offset(), &[dims[0] * dims[2], dims[1], dims[3]], &strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_models_make_is_seen_without_a_copy() {
        // One sequence, contiguous; decoding; (B, L, H, D) transposed.
        assert_eq!(row_strides(&[1, 4, 7, 8], &[224, 56, 8, 1]), Some([8, 56, 1]));
        assert_eq!(row_strides(&[3, 4, 1, 8], &[32, 8, 8, 1]), Some([32, 8, 1]));
        assert_eq!(row_strides(&[3, 4, 7, 8], &[224, 8, 32, 1]), Some([32, 8, 1]));
    }

    #[test]
    fn several_sequences_of_several_tokens_in_head_order_are_copied() {
        assert_eq!(row_strides(&[3, 4, 7, 8], &[224, 56, 8, 1]), None);
        assert_eq!(row_strides(&[1, 4, 7, 8], &[224, 56, 1, 7]), None);
    }
}
