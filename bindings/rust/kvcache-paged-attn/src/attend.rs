//! Attention over blocks.

use crate::pools::{indices, refuse_scales, BlockLayout, Pools};
use crate::standard;
use crate::threads::op_options;
use candle_core::backend::BackendStorage;
use candle_core::{bail, CpuStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor};
use kvcache::ops::{self, OpOptions};
use kvcache::{OpLayout, TensorRef};
use kvcache_candle::{tensor_mut, tensor_ref, zeros, Attention};

/// Decoding: attention of one query row per sequence, `q` (B, Hq, D), over its context. Returns (B, Hq, Dv).
///
/// * `block_tables` (B, most blocks), `context_lens` (B): U32 or I32. Entries behind a sequence's blocks are not read.
/// * `alibi_slopes`, `sink_logits` (Hq).
/// * `max_context_len` sizes the shared memory of GPUs; nothing depends on it here.
/// * `softcapping` 1.0: none.
#[allow(clippy::too_many_arguments)]
pub fn paged_attention(
    q: &Tensor,
    k_scale: Option<&Tensor>,
    v_scale: Option<&Tensor>,
    key_cache: &Tensor,
    value_cache: &Tensor,
    block_tables: &Tensor,
    context_lens: &Tensor,
    alibi_slopes: Option<&Tensor>,
    _max_context_len: usize,
    softmax_scale: f32,
    softcapping: f32,
    sink_logits: Option<&Tensor>,
) -> Result<Tensor> {
    refuse_scales(k_scale, v_scale)?;
    let float32 = |tensor: Option<&Tensor>| tensor.map(|tensor| tensor.to_dtype(DType::F32)).transpose();
    let attention = Attention {
        scale: softmax_scale,
        soft_cap: if softcapping == 1.0 { 0.0 } else { softcapping },
        sink_logits: float32(sink_logits)?,
        alibi_slopes: float32(alibi_slopes)?,
        ..Attention::default()
    };
    let options = AttendOptions { attention, cu_seqlens_q: None };
    attend(q, (key_cache, value_cache), block_tables, context_lens, &options)
}

/// What [`paged_attention`] has no arguments for.
#[derive(Clone, Debug, Default)]
pub struct AttendOptions {
    /// Scale, soft cap, window, sink logits, ALiBi.
    pub attention: Attention,
    /// U32 or I32 (B + 1): rows of q of each sequence, its newest tokens. Absent: one row each.
    pub cu_seqlens_q: Option<Tensor>,
}

/// Attention of any number of rows per sequence, `q` (T, Hq, D), with a window if wanted: prompts behind a cached prefix and windowed
/// decoding without gathering. A row sees the context up to and including itself; `context_lens` includes the new tokens, which have been
/// written by [`reshape_and_cache`](crate::reshape_and_cache).
pub fn attend(
    q: &Tensor,
    (key_cache, value_cache): (&Tensor, &Tensor),
    block_tables: &Tensor,
    context_lens: &Tensor,
    options: &AttendOptions,
) -> Result<Tensor> {
    let pools = Pools::new(key_cache, value_cache)?;
    let (rows, _, _) = q.dims3()?;
    let block_tables = indices(block_tables, "block_tables", 2)?;
    let context_lens = indices(context_lens, "context_lens", 1)?;
    let q = if q.stride()[2] == 1 { q.clone() } else { q.contiguous()? };
    let starts = match &options.cu_seqlens_q {
        Some(starts) => indices(starts, "cu_seqlens_q", 1)?,
        None => Tensor::arange(0, rows as u32 + 1, q.device())?,
    };
    if starts.elem_count() != context_lens.elem_count() + 1 {
        bail!(
            "q has {rows} rows in {} sequences, but context_lens has {}",
            starts.elem_count().saturating_sub(1),
            context_lens.elem_count()
        );
    }
    let of = |keys| Attend { attention: &options.attention, starts: &starts, keys };
    match pools.layout {
        BlockLayout::Hnd => {
            let keys = Keys::Blocks { tables: &block_tables, lengths: &context_lens };
            q.apply_op3_no_bwd(key_cache, value_cache, &of(keys))
        }
        BlockLayout::Standard { x } => {
            let lengths = int32(&context_lens)?;
            let (k, v) = standard::gather(&pools, x, (key_cache, value_cache), &block_tables, &lengths)?;
            let mut ends = vec![0u32];
            ends.extend(lengths.iter().scan(0u32, |end, length| {
                *end += *length as u32;
                Some(*end)
            }));
            let ends = Tensor::new(ends, q.device())?;
            q.apply_op3_no_bwd(&k, &v, &of(Keys::Rows { ends: &ends }))
        }
    }
}

fn int32(tensor: &Tensor) -> Result<Vec<i32>> {
    let values = tensor.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    let value = |value: i64| match i32::try_from(value) {
        Ok(value) if value >= 0 => Ok(value),
        _ => bail!("context_lens holds {value}: expected 0 to {}", i32::MAX),
    };
    values.into_iter().map(value).collect()
}

/// Where the second and third tensor of the op have their keys.
enum Keys<'a> {
    /// In blocks.
    Blocks { tables: &'a Tensor, lengths: &'a Tensor },
    /// In packed rows, cut at these ends.
    Rows { ends: &'a Tensor },
}

struct Attend<'a> {
    attention: &'a Attention,
    starts: &'a Tensor,
    keys: Keys<'a>,
}

/// Calls with the library's view of a tensor of indices.
fn with_indices<T>(
    tensor: &Tensor,
    call: impl FnOnce(&TensorRef<'_>) -> kvcache_candle::Result<T>,
) -> Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        bail!("indices on {:?}: expected the CPU", tensor.device())
    };
    Ok(call(&tensor_ref(storage, layout.start_offset(), layout.dims(), layout.stride())?)?)
}

impl CustomOp3 for Attend<'_> {
    fn name(&self) -> &'static str {
        "paged-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, heads, _) = q_layout.shape().dims3()?;
        let v_dim = v_layout.dims()[v_layout.dims().len() - 1];
        let mut out = zeros(q.dtype(), rows * heads * v_dim)?;
        let q = tensor_ref(q, q_layout.start_offset(), q_layout.dims(), q_layout.stride())?;
        let k = tensor_ref(k, k_layout.start_offset(), k_layout.dims(), k_layout.stride())?;
        let v = tensor_ref(v, v_layout.start_offset(), v_layout.dims(), v_layout.stride())?;
        let mut view = tensor_mut(&mut out, 0, &[rows, heads, v_dim], &[heads * v_dim, v_dim, 1])?;
        with_indices(self.starts, |starts| {
            self.attention.with_options(|attn| {
                let options = OpOptions { attn: Some(attn), ..op_options() };
                match &self.keys {
                    Keys::Blocks { tables, lengths } => {
                        let pool = ops::Pool { k: &k, v: Some(&v), layout: OpLayout::Hnd, scales: Default::default() };
                        with_indices(tables, |tables| {
                            Ok(with_indices(lengths, |lengths| {
                                let table = ops::Table::padded(lengths, tables).qo_indptr(starts);
                                Ok(ops::attention_paged(&pool, &table, &options, &q, &mut view)?)
                            })?)
                        })?;
                    }
                    Keys::Rows { ends } => with_indices(ends, |ends| {
                        let cuts = (starts, Some(ends));
                        Ok(ops::attention_ragged(cuts, &options, &q, (&k, &v), &mut view)?)
                    })?,
                }
                Ok(())
            })
        })?;
        Ok((out, Shape::from((rows, heads, v_dim))))
    }
}
