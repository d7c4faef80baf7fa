//! What the two caches of a layer are, from their shapes.

use candle_core::{bail, DType, Result, Tensor};

/// Order of the elements of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockLayout {
    /// `[blocks, heads, block, dim]`.
    Hnd,
    /// K `[blocks, heads, dim / x, block, x]`, V `[blocks, heads, dim, block]`.
    Standard { x: usize },
}

/// Extents of a layer's caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pools {
    pub layout: BlockLayout,
    pub blocks: usize,
    pub heads: usize,
    pub block: usize,
    pub k_dim: usize,
    pub v_dim: usize,
}

impl Pools {
    /// Reads and checks both shapes.
    pub(crate) fn new(key_cache: &Tensor, value_cache: &Tensor) -> Result<Self> {
        let (k, v) = (key_cache.dims(), value_cache.dims());
        let pools = match (k, v) {
            (&[blocks, heads, block, k_dim], &[_, _, _, v_dim]) => {
                Pools { layout: BlockLayout::Hnd, blocks, heads, block, k_dim, v_dim }
            }
            (&[blocks, heads, chunks, block, x], &[_, _, v_dim, _]) => {
                Pools { layout: BlockLayout::Standard { x }, blocks, heads, block, k_dim: chunks * x, v_dim }
            }
            _ => bail!(
                "key_cache has shape {k:?} and value_cache {v:?}: expected [blocks, Hkv, block, D] twice (HND), or \
                 [blocks, Hkv, D/x, block, x] and [blocks, Hkv, Dv, block] (standard)"
            ),
        };
        let expected = pools.value_dims();
        if v != expected {
            bail!("value_cache has shape {v:?}, expected {expected:?} beside key_cache {k:?}");
        }
        for (name, cache) in [("key_cache", key_cache), ("value_cache", value_cache)] {
            if !matches!(cache.dtype(), DType::F32 | DType::F16 | DType::BF16) {
                bail!("{name} has elements {:?}: F32, F16 and BF16 are supported on the CPU", cache.dtype());
            }
        }
        Ok(pools)
    }

    fn value_dims(&self) -> [usize; 4] {
        match self.layout {
            BlockLayout::Hnd => [self.blocks, self.heads, self.block, self.v_dim],
            BlockLayout::Standard { .. } => [self.blocks, self.heads, self.v_dim, self.block],
        }
    }
}

/// Scales belong to caches of 8 bits, which [`Pools::new`] refuses.
pub(crate) fn refuse_scales(k_scale: Option<&Tensor>, v_scale: Option<&Tensor>) -> Result<()> {
    if k_scale.is_some() || v_scale.is_some() {
        bail!("k_scale and v_scale belong to F8E4M3 caches, which the CPU does not serve: expected none");
    }
    Ok(())
}

/// A tensor of indices with its last dimension contiguous: U32 or I32, as hosts have them.
pub(crate) fn indices(tensor: &Tensor, name: &str, rank: usize) -> Result<Tensor> {
    if tensor.rank() != rank {
        bail!("{name} has shape {:?}, expected {rank} dimensions", tensor.dims());
    }
    if !matches!(tensor.dtype(), DType::U32 | DType::I32) {
        bail!("{name} has elements {:?}: expected U32 or I32", tensor.dtype());
    }
    tensor.contiguous()
}
