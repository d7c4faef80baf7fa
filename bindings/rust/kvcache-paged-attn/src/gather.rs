//! Whole contexts out of the caches, for hosts that attend themselves.

use crate::pools::{indices, refuse_scales, BlockLayout, Pools};
use crate::standard;
use crate::threads::op_options;
use candle_core::backend::BackendStorage;
use candle_core::{bail, CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};
use kvcache::{ops, OpLayout, TensorRef};
use kvcache_candle::{tensor_mut, tensor_ref, zeros, Error};

/// All keys and values of B sequences, packed: `(T, Hkv, D)` and `(T, Hkv, Dv)` of `out_dtype`, T = `cu_seq_lens[B]`.
///
/// `block_table` (B, most blocks) and `cu_seq_lens` (B + 1) are U32 or I32.
pub fn gather_kv_cache(
    key_cache: &Tensor,
    value_cache: &Tensor,
    k_scale: Option<&Tensor>,
    v_scale: Option<&Tensor>,
    block_table: &Tensor,
    cu_seq_lens: &Tensor,
    out_dtype: DType,
) -> Result<(Tensor, Tensor)> {
    refuse_scales(k_scale, v_scale)?;
    let pools = Pools::new(key_cache, value_cache)?;
    let block_table = indices(block_table, "block_table", 2)?;
    let lengths = lengths_of(&indices(cu_seq_lens, "cu_seq_lens", 1)?)?;
    let (k, v) = match pools.layout {
        BlockLayout::Hnd => {
            let gather =
                |cache: &Tensor| cache.apply_op2_no_bwd(&block_table, &GatherHnd { lengths: &lengths });
            (gather(key_cache)?, gather(value_cache)?)
        }
        BlockLayout::Standard { x } => {
            standard::gather(&pools, x, (key_cache, value_cache), &block_table, &lengths)?
        }
    };
    Ok((k.to_dtype(out_dtype)?, v.to_dtype(out_dtype)?))
}

/// Differences of ascending ends.
fn lengths_of(cu_seq_lens: &Tensor) -> Result<Vec<i32>> {
    let ends = cu_seq_lens.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    if ends.first() != Some(&0) {
        bail!("cu_seq_lens begins with {:?}, expected 0", ends.first());
    }
    let length = |pair: &[i64]| match i32::try_from(pair[1] - pair[0]) {
        Ok(length) if length >= 0 => Ok(length),
        _ => bail!("cu_seq_lens: {} after {}, expected it to ascend", pair[1], pair[0]),
    };
    ends.windows(2).map(length).collect()
}

/// One cache's rows by a block table.
struct GatherHnd<'a> {
    lengths: &'a [i32],
}

impl CustomOp2 for GatherHnd<'_> {
    fn name(&self) -> &'static str {
        "gather-kv-cache"
    }

    fn cpu_fwd(
        &self,
        cache: &CpuStorage,
        cache_layout: &Layout,
        table: &CpuStorage,
        table_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, heads, _, dim) = cache_layout.shape().dims4()?;
        let shape = [self.lengths.iter().map(|length| *length as usize).sum(), heads, dim];
        let mut rows = zeros(cache.dtype(), shape.iter().product())?;
        let k = tensor_ref(cache, cache_layout.start_offset(), cache_layout.dims(), cache_layout.stride())?;
        let table =
            tensor_ref(table, table_layout.start_offset(), table_layout.dims(), table_layout.stride())?;
        let lengths = TensorRef::new(self.lengths, &[self.lengths.len()]).map_err(Error::from)?;
        let mut out = tensor_mut(&mut rows, 0, &shape, &[heads * dim, dim, 1])?;
        let pool = ops::Pool { k: &k, v: None, layout: OpLayout::Hnd, scales: Default::default() };
        let table = ops::Table::padded(&lengths, &table);
        ops::gather(&pool, &table, &op_options(), Some(&mut out), None).map_err(Error::from)?;
        Ok((rows, Shape::from(shape.to_vec())))
    }
}
