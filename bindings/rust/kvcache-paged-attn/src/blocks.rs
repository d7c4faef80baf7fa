//! Whole blocks: copies inside a cache, and between caches.

use crate::threads::op_options;
use candle_core::{bail, CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Tensor};
use kvcache::{ops, OpLayout, TensorRef};
use kvcache_candle::{tensor_mut, Error};
use std::collections::HashMap;

/// Copies blocks inside every cache: from each key of the mapping to all of its blocks. No block is a source and a destination, and none
/// a destination twice.
pub fn copy_blocks(
    key_caches: Vec<&mut Tensor>,
    value_caches: Vec<&mut Tensor>,
    block_mapping: &HashMap<usize, Vec<usize>>,
) -> Result<()> {
    if key_caches.len() != value_caches.len() {
        bail!("{} key_caches, but {} value_caches", key_caches.len(), value_caches.len());
    }
    let pairs = block_mapping.iter().flat_map(|(from, to)| to.iter().map(|to| [*from as i64, *to as i64]));
    let copy = CopyBlocks { pairs: pairs.flatten().collect() };
    for cache in key_caches.into_iter().chain(value_caches) {
        cache.inplace_op1(&copy)?;
    }
    Ok(())
}

struct CopyBlocks {
    pairs: Vec<i64>,
}

impl InplaceOp1 for CopyBlocks {
    fn name(&self) -> &'static str {
        "copy-blocks"
    }

    /// Elements of a block are moved as they lie, so that a block of the standard layout is one of HND with other extents.
    fn cpu_fwd(&self, cache: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (shape, strides) = match (layout.dims(), layout.stride()) {
            (dims @ [_, _, _, _], strides) => (dims.to_vec(), strides.to_vec()),
            (&[blocks, heads, chunks, block, x], &[of_block, of_head, ..]) if layout.is_contiguous() => {
                (vec![blocks, heads, chunks * block, x], vec![of_block, of_head, x, 1])
            }
            (dims, strides) => {
                bail!("a cache of shape {dims:?}, strides {strides:?}: expected 4 dimensions, or 5 that are contiguous")
            }
        };
        let k = tensor_mut(cache, layout.start_offset(), &shape, &strides)?;
        let pairs = TensorRef::new(&self.pairs, &[self.pairs.len() / 2, 2]).map_err(Error::from)?;
        let mut pool = ops::PoolMut { k, v: None, layout: OpLayout::Hnd, scales: Default::default() };
        ops::copy_pages(&mut pool, &op_options(), &pairs).map_err(Error::from)?;
        Ok(())
    }
}

/// Copies blocks of `src` to blocks of `dst`, another cache of the same type and block shape: the other half of swapping.
pub fn swap_blocks(src: Tensor, dst: &Tensor, block_mapping: HashMap<usize, usize>) -> Result<()> {
    if src.rank() == 0 || src.dims()[1..] != dst.dims().get(1..).unwrap_or(&[])[..] {
        bail!("src has shape {:?} and dst {:?}: blocks of one shape are expected", src.dims(), dst.dims());
    }
    let (src_blocks, dst_blocks) = (src.dims()[0], dst.dims()[0]);
    let mut targets: Vec<_> = block_mapping.values().copied().collect();
    targets.sort_unstable();
    if let Some(twice) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("block_mapping: block {} is the destination of two copies", twice[0]);
    }
    for (from, to) in &block_mapping {
        if *from >= src_blocks || *to >= dst_blocks {
            bail!("block_mapping: {from} -> {to}, but src has {src_blocks} blocks and dst {dst_blocks}");
        }
    }
    dst.inplace_op2(&src, &SwapBlocks { block_mapping })
}

struct SwapBlocks {
    block_mapping: HashMap<usize, usize>,
}

impl SwapBlocks {
    fn copy<T: Copy>(
        &self,
        dst: &mut [T],
        dst_layout: &Layout,
        src: &[T],
        src_layout: &Layout,
    ) -> Result<()> {
        let (Some((dst_begin, dst_end)), Some((src_begin, src_end))) =
            (dst_layout.contiguous_offsets(), src_layout.contiguous_offsets())
        else {
            bail!("src and dst: contiguous caches are expected");
        };
        let (dst, src) = (&mut dst[dst_begin..dst_end], &src[src_begin..src_end]);
        let len: usize = dst_layout.dims()[1..].iter().product();
        for (from, to) in &self.block_mapping {
            dst[to * len..][..len].copy_from_slice(&src[from * len..][..len]);
        }
        Ok(())
    }
}

impl InplaceOp2 for SwapBlocks {
    fn name(&self) -> &'static str {
        "swap-blocks"
    }

    fn cpu_fwd(&self, dst: &mut CpuStorage, to: &Layout, src: &CpuStorage, from: &Layout) -> Result<()> {
        match (dst, src) {
            (CpuStorage::F32(dst), CpuStorage::F32(src)) => self.copy(dst, to, src, from),
            (CpuStorage::F16(dst), CpuStorage::F16(src)) => self.copy(dst, to, src, from),
            (CpuStorage::BF16(dst), CpuStorage::BF16(src)) => self.copy(dst, to, src, from),
            (CpuStorage::F8E4M3(dst), CpuStorage::F8E4M3(src)) => self.copy(dst, to, src, from),
            (CpuStorage::U8(dst), CpuStorage::U8(src)) => self.copy(dst, to, src, from),
            _ => bail!("src and dst: expected F32, F16, BF16, F8E4M3 or U8, both the same"),
        }
    }
}
