//! The standard layout: `[blocks, heads, dim / x, block, x]`; V has x = 1. A token's elements lie in chunks of x, a whole block apart, so
//! the library's operators cannot read them; what is here moves rows in and out.

use crate::pools::Pools;
use candle_core::{bail, CpuStorage, DType, InplaceOp3, Layout, Result, Shape, Tensor};
use candle_core::{CustomOp1, WithDType};

/// Offset of a token's first chunk inside a cache, and how far apart its heads and its chunks are.
#[derive(Clone, Copy)]
struct Place {
    block: usize,
    heads: usize,
    dim: usize,
    x: usize,
}

impl Place {
    fn new(pools: &Pools, dim: usize, x: usize) -> Self {
        Place { block: pools.block, heads: pools.heads, dim, x }
    }

    /// Calls with (offset in the cache, offset in a row of heads * dim elements) of every chunk of the token at a slot.
    fn for_each_chunk(&self, slot: usize, mut call: impl FnMut(usize, usize)) {
        let (block, offset) = (slot / self.block, slot % self.block);
        for head in 0..self.heads {
            for chunk in 0..self.dim / self.x {
                let chunks = (block * self.heads + head) * (self.dim / self.x) + chunk;
                call((chunks * self.block + offset) * self.x, head * self.dim + chunk * self.x);
            }
        }
    }
}

fn contiguous(layout: &Layout, name: &str) -> Result<(usize, usize)> {
    match layout.contiguous_offsets() {
        Some(range) => Ok(range),
        None => {
            bail!("{name} has strides {:?}: a cache of the standard layout is contiguous", layout.stride())
        }
    }
}

/// Rows `(T, heads, dim)` into their slots.
pub(crate) struct Append {
    pub pools: Pools,
    pub dim: usize,
    pub x: usize,
}

impl Append {
    fn scatter<T: WithDType>(&self, cache: &mut [T], rows: &[T], slots: &[i64]) -> Result<()> {
        let capacity = self.pools.blocks * self.pools.block;
        if let Some(slot) = slots.iter().find(|slot| **slot >= capacity as i64) {
            bail!("slot_mapping holds {slot}, but the cache has {capacity} slots");
        }
        let (place, row_len) = (Place::new(&self.pools, self.dim, self.x), self.pools.heads * self.dim);
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot >= 0) {
            let row = &rows[row * row_len..][..row_len];
            place.for_each_chunk(*slot as usize, |to, from| {
                cache[to..to + self.x].copy_from_slice(&row[from..from + self.x]);
            });
        }
        Ok(())
    }
}

/// Calls a generic function on the slices of storages of one element type.
macro_rules! same_type {
    ($pattern:ident, ($($storage:expr),+), |$($slice:ident),+| $body:expr) => {
        match ($($storage,)+) {
            ($(CpuStorage::F32($slice),)+) => $body,
            ($(CpuStorage::F16($slice),)+) => $body,
            ($(CpuStorage::BF16($slice),)+) => $body,
            _ => bail!("{}: elements of one type, F32, F16 or BF16, are expected", $pattern),
        }
    };
}

impl InplaceOp3 for Append {
    fn name(&self) -> &'static str {
        "reshape-and-cache-standard"
    }

    fn cpu_fwd(
        &self,
        cache: &mut CpuStorage,
        cache_layout: &Layout,
        rows: &CpuStorage,
        rows_layout: &Layout,
        slots: &CpuStorage,
        slots_layout: &Layout,
    ) -> Result<()> {
        let name = InplaceOp3::name(self);
        let (begin, end) = contiguous(cache_layout, "a cache")?;
        let (rows_begin, rows_end) = contiguous(rows_layout, "key or value")?;
        let (slots_begin, slots_end) = contiguous(slots_layout, "slot_mapping")?;
        let CpuStorage::I64(slots) = slots else { bail!("slot_mapping: expected I64") };
        let slots = &slots[slots_begin..slots_end];
        same_type!(name, (cache, rows), |cache, rows| {
            self.scatter(&mut cache[begin..end], &rows[rows_begin..rows_end], slots)
        })
    }
}

/// The tokens of sequences out of a cache, packed: `(T, heads, dim)`.
struct Gather<'a> {
    pools: Pools,
    dim: usize,
    x: usize,
    slots: &'a [usize],
}

impl Gather<'_> {
    fn rows<T: WithDType>(&self, cache: &[T]) -> Vec<T> {
        let (place, row_len) = (Place::new(&self.pools, self.dim, self.x), self.pools.heads * self.dim);
        let mut rows = vec![T::zero(); self.slots.len() * row_len];
        for (row, slot) in rows.chunks_exact_mut(row_len.max(1)).zip(self.slots) {
            place.for_each_chunk(*slot, |from, to| {
                row[to..to + self.x].copy_from_slice(&cache[from..from + self.x]);
            });
        }
        rows
    }
}

impl CustomOp1 for Gather<'_> {
    fn name(&self) -> &'static str {
        "gather-kv-cache-standard"
    }

    fn cpu_fwd(&self, cache: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (begin, end) = contiguous(layout, "a cache")?;
        let rows = match cache {
            CpuStorage::F32(cache) => CpuStorage::F32(self.rows(&cache[begin..end])),
            CpuStorage::F16(cache) => CpuStorage::F16(self.rows(&cache[begin..end])),
            CpuStorage::BF16(cache) => CpuStorage::BF16(self.rows(&cache[begin..end])),
            _ => bail!("{}: F32, F16 and BF16 are supported", self.name()),
        };
        Ok((rows, Shape::from((self.slots.len(), self.pools.heads, self.dim))))
    }
}

/// Slots of all tokens of the sequences, whose blocks are the rows of a table `(B, blocks)`.
fn slots_of(pools: &Pools, block_tables: &Tensor, lengths: &[i32]) -> Result<Vec<usize>> {
    let tables = block_tables.to_dtype(DType::I64)?.to_vec2::<i64>()?;
    if tables.len() != lengths.len() {
        bail!("block_tables has {} rows, but there are {} sequences", tables.len(), lengths.len());
    }
    let mut slots = Vec::new();
    for (row, (table, length)) in tables.iter().zip(lengths).enumerate() {
        for token in 0..usize::try_from(*length).unwrap_or(0) {
            let block = match table.get(token / pools.block) {
                Some(block) if *block >= 0 && (*block as usize) < pools.blocks => *block as usize,
                Some(block) => {
                    bail!("block_tables[{row}] holds {block}, but the cache has {} blocks", pools.blocks)
                }
                None => bail!(
                    "sequence {row} has {length} tokens, but its row of block_tables only {} blocks of {}",
                    table.len(),
                    pools.block
                ),
            };
            slots.push(block * pools.block + token % pools.block);
        }
    }
    Ok(slots)
}

/// All keys and values of the sequences, packed, in the caches' types.
pub(crate) fn gather(
    pools: &Pools,
    x: usize,
    (key_cache, value_cache): (&Tensor, &Tensor),
    block_tables: &Tensor,
    lengths: &[i32],
) -> Result<(Tensor, Tensor)> {
    let slots = slots_of(pools, block_tables, lengths)?;
    let of = |dim, x| Gather { pools: *pools, dim, x, slots: &slots };
    Ok((key_cache.apply_op1_no_bwd(&of(pools.k_dim, x))?, value_cache.apply_op1_no_bwd(&of(pools.v_dim, 1))?))
}
