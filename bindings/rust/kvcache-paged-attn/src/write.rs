//! New keys and values into their slots.

use crate::pools::{refuse_scales, BlockLayout, Pools};
use crate::standard;
use crate::threads::op_options;
use candle_core::{bail, CpuStorage, DType, InplaceOp3, Layout, Result, Tensor};
use kvcache::{ops, OpLayout};
use kvcache_candle::{tensor_mut, tensor_ref, Error};

/// Writes `key` and `value` `(T, Hkv, D)` into the slots `slot_mapping` (T): I64, block * block size + offset; negative: skip. Rows may be
/// strided. The caches are changed in place, through whatever tensors share their memory.
pub fn reshape_and_cache(
    key: &Tensor,
    value: &Tensor,
    k_scale: Option<&Tensor>,
    v_scale: Option<&Tensor>,
    key_cache: &Tensor,
    value_cache: &Tensor,
    slot_mapping: &Tensor,
) -> Result<()> {
    refuse_scales(k_scale, v_scale)?;
    let pools = Pools::new(key_cache, value_cache)?;
    let slots = slot_mapping.flatten_all()?.contiguous()?;
    if slots.dtype() != DType::I64 {
        bail!("slot_mapping has elements {:?}: expected I64", slots.dtype());
    }
    let rows = slots.elem_count();
    for (name, tensor, dim) in [("key", key, pools.k_dim), ("value", value, pools.v_dim)] {
        let expected = [rows, pools.heads, dim];
        if tensor.dims() != expected {
            bail!("{name} has shape {:?}, expected {expected:?}", tensor.dims());
        }
    }
    match pools.layout {
        BlockLayout::Hnd => {
            // One half at a time: each lies in a tensor of its own.
            key_cache.inplace_op3(&with_contiguous_rows(key)?, &slots, &AppendHnd)?;
            value_cache.inplace_op3(&with_contiguous_rows(value)?, &slots, &AppendHnd)
        }
        BlockLayout::Standard { x } => {
            let key = key.to_dtype(key_cache.dtype())?.contiguous()?;
            let value = value.to_dtype(value_cache.dtype())?.contiguous()?;
            // V is K with one element side by side.
            key_cache.inplace_op3(&key, &slots, &standard::Append { pools, dim: pools.k_dim, x })?;
            value_cache.inplace_op3(&value, &slots, &standard::Append { pools, dim: pools.v_dim, x: 1 })
        }
    }
}

/// The last dimension has to be contiguous, the others need not be.
fn with_contiguous_rows(tensor: &Tensor) -> Result<Tensor> {
    if tensor.stride().last() == Some(&1) {
        Ok(tensor.clone())
    } else {
        tensor.contiguous()
    }
}

struct AppendHnd;

impl InplaceOp3 for AppendHnd {
    fn name(&self) -> &'static str {
        "reshape-and-cache"
    }

    fn cpu_fwd(
        &self,
        pool: &mut CpuStorage,
        pool_layout: &Layout,
        rows: &CpuStorage,
        rows_layout: &Layout,
        slots: &CpuStorage,
        slots_layout: &Layout,
    ) -> Result<()> {
        let k = tensor_mut(pool, pool_layout.start_offset(), pool_layout.dims(), pool_layout.stride())?;
        let rows = tensor_ref(rows, rows_layout.start_offset(), rows_layout.dims(), rows_layout.stride())?;
        let slots =
            tensor_ref(slots, slots_layout.start_offset(), slots_layout.dims(), slots_layout.stride())?;
        let mut pool = ops::PoolMut { k, v: None, layout: OpLayout::Hnd, scales: Default::default() };
        ops::append(&mut pool, &op_options(), &slots, &rows, None).map_err(Error::from)?;
        Ok(())
    }
}
