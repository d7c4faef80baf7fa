//! Operators: the same kernels over a host's own pools and page tables; no cache, nothing is kept. Every page
//! id and length is checked against the pool before anything is written.

use crate::attention::{AttnOptions, Out, RawAttnOptions};
use crate::element::Stream;
use crate::error::{check, Result};
use crate::host::SharedExecutor;
use crate::kinds::{CpuIsa, OpLayout, Quant};
use crate::library::api;
use crate::raw_config::raw_rope;
use crate::state::{LinearInputs, LinearOptions};
use crate::tensor::{dl_or_null, pointer, pointer_mut, RawTensor, TensorMut, TensorRef};
use crate::Rope;
use kvcache_sys as sys;
use std::ptr::{from_ref, null};

/// How the rows of a [`Pool`] are stored, and the scales of quantised ones, which the CPU serves: rows of int8,
/// float8_e4m3fn or float8_e5m2.
#[derive(Clone, Copy, Debug, Default)]
pub enum Scales<'a> {
    /// Rows of float32, float16 or bfloat16.
    #[default]
    None,
    /// [`Quant::PerTensor`]: value = stored element * scale; 0: 1.
    PerTensor {
        /// Of K.
        k: f32,
        /// Of V; 0 where the pool has none.
        v: f32,
    },
    /// [`Quant::PerTokenHead`]: float32, one for each row. [`OpLayout::Hnd`]: `[pages, heads, page_size]`,
    /// [`OpLayout::Nhd`]: `[pages, page_size, heads]`, [`OpLayout::Mla`]: `[pages, page_size]`.
    PerTokenHead {
        /// Of K.
        k: &'a TensorRef<'a>,
        /// Of V; absent where the pool has none.
        v: Option<&'a TensorRef<'a>>,
    },
}

/// The same for a [`PoolMut`], whose scales are written with its rows.
// The pool around it has two more tensors, and boxes would cost an allocation for each.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Default)]
pub enum ScalesMut<'a> {
    /// As [`Scales::None`].
    #[default]
    None,
    /// As [`Scales::PerTensor`].
    PerTensor {
        /// Of K.
        k: f32,
        /// Of V; 0 where the pool has none.
        v: f32,
    },
    /// As [`Scales::PerTokenHead`].
    PerTokenHead {
        /// Of K.
        k: TensorMut<'a>,
        /// Of V; absent where the pool has none.
        v: Option<TensorMut<'a>>,
    },
}

/// Scales without what they borrow.
struct RawScales {
    quant: Quant,
    k: f32,
    v: f32,
    k_rows: Option<sys::DLTensor>,
    v_rows: Option<sys::DLTensor>,
}

impl RawScales {
    const NONE: RawScales = RawScales { quant: Quant::None, k: 0.0, v: 0.0, k_rows: None, v_rows: None };

    fn per_tensor(k: f32, v: f32) -> RawScales {
        RawScales { quant: Quant::PerTensor, k, v, ..RawScales::NONE }
    }

    fn per_token_head(k: &RawTensor, v: Option<&RawTensor>) -> RawScales {
        RawScales {
            quant: Quant::PerTokenHead,
            k_rows: Some(k.dl()),
            v_rows: dl_or_null(v),
            ..RawScales::NONE
        }
    }
}

/// One layer's pool, to read.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    /// K, or the latents.
    pub k: &'a TensorRef<'a>,
    /// Absent: MLA, or V is K.
    pub v: Option<&'a TensorRef<'a>>,
    /// Order of the dimensions.
    pub layout: OpLayout,
    /// Whether rows are quantised, and by what.
    pub scales: Scales<'a>,
}

/// One layer's pool, to write.
#[derive(Debug)]
pub struct PoolMut<'a> {
    /// K, or the latents.
    pub k: TensorMut<'a>,
    /// Absent: MLA, or V is K.
    pub v: Option<TensorMut<'a>>,
    /// Order of the dimensions.
    pub layout: OpLayout,
    /// Whether rows are quantised, and by what.
    pub scales: ScalesMut<'a>,
}

/// The pool's struct, for the length of a call.
fn with_pool<T>(
    k: &RawTensor,
    v: Option<&RawTensor>,
    layout: OpLayout,
    scales: &RawScales,
    call: impl FnOnce(*const sys::kvc_op_pool) -> T,
) -> T {
    let (k, v) = (k.dl(), dl_or_null(v));
    call(&sys::kvc_op_pool {
        k: &k,
        v: pointer(&v),
        layout: layout.to_raw(),
        quant: scales.quant.to_raw(),
        k_scale: scales.k,
        v_scale: scales.v,
        k_scales: pointer(&scales.k_rows),
        v_scales: pointer(&scales.v_rows),
        ..Default::default()
    })
}

impl Pool<'_> {
    fn with_raw<T>(&self, call: impl FnOnce(*const sys::kvc_op_pool) -> T) -> T {
        let scales = match self.scales {
            Scales::None => RawScales::NONE,
            Scales::PerTensor { k, v } => RawScales::per_tensor(k, v),
            Scales::PerTokenHead { k, v } => RawScales::per_token_head(&k.raw, v.map(|v| &v.raw)),
        };
        with_pool(&self.k.raw, self.v.map(|v| &v.raw), self.layout, &scales, call)
    }
}

impl PoolMut<'_> {
    fn with_raw<T>(&mut self, call: impl FnOnce(*const sys::kvc_op_pool) -> T) -> T {
        let scales = match &self.scales {
            ScalesMut::None => RawScales::NONE,
            ScalesMut::PerTensor { k, v } => RawScales::per_tensor(*k, *v),
            ScalesMut::PerTokenHead { k, v } => RawScales::per_token_head(&k.raw, v.as_ref().map(|v| &v.raw)),
        };
        with_pool(&self.k.raw, self.v.as_ref().map(|v| &v.raw), self.layout, &scales, call)
    }
}

/// Page tables of B sequences, int32: CSR (`page_indptr`, `page_indices`) or padded (`block_table`).
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// `[B]`: keys of each sequence, the new ones included.
    pub seq_lens: &'a TensorRef<'a>,
    /// `[B+1]`: rows of q of each sequence; absent: one each.
    pub qo_indptr: Option<&'a TensorRef<'a>>,
    /// `[B+1]`.
    pub page_indptr: Option<&'a TensorRef<'a>>,
    /// `[page_indptr[B]]`.
    pub page_indices: Option<&'a TensorRef<'a>>,
    /// `[B, most pages]`.
    pub block_table: Option<&'a TensorRef<'a>>,
}

impl<'a> Table<'a> {
    /// Sequences of these lengths, whose pages are `page_indices[page_indptr[i]..page_indptr[i + 1]]`.
    pub fn csr(
        seq_lens: &'a TensorRef<'a>,
        page_indptr: &'a TensorRef<'a>,
        page_indices: &'a TensorRef<'a>,
    ) -> Self {
        Table {
            seq_lens,
            qo_indptr: None,
            page_indptr: Some(page_indptr),
            page_indices: Some(page_indices),
            block_table: None,
        }
    }

    /// Sequences of these lengths, whose pages are the rows of `block_table`.
    pub fn padded(seq_lens: &'a TensorRef<'a>, block_table: &'a TensorRef<'a>) -> Self {
        Table {
            seq_lens,
            qo_indptr: None,
            page_indptr: None,
            page_indices: None,
            block_table: Some(block_table),
        }
    }

    /// Rows of q of each sequence.
    #[must_use]
    pub fn qo_indptr(mut self, qo_indptr: &'a TensorRef<'a>) -> Self {
        self.qo_indptr = Some(qo_indptr);
        self
    }

    fn with_raw<T>(&self, call: impl FnOnce(*const sys::kvc_op_table) -> T) -> T {
        let tensor = |tensor: Option<&TensorRef<'_>>| dl_or_null(tensor.map(|tensor| &tensor.raw));
        let seq_lens = self.seq_lens.raw.dl();
        let (qo_indptr, page_indptr) = (tensor(self.qo_indptr), tensor(self.page_indptr));
        let (page_indices, block_table) = (tensor(self.page_indices), tensor(self.block_table));
        call(&sys::kvc_op_table {
            seq_lens: &seq_lens,
            qo_indptr: pointer(&qo_indptr),
            page_indptr: pointer(&page_indptr),
            page_indices: pointer(&page_indices),
            block_table: pointer(&block_table),
            ..Default::default()
        })
    }
}

/// Options of an operator; see `kvc_op_opt`.
#[derive(Clone, Copy, Debug)]
pub struct OpOptions<'a> {
    /// Threads; absent: the caller's only.
    pub executor: Option<&'a SharedExecutor>,
    /// Instruction set.
    pub cpu_isa: CpuIsa,
    /// Every row sees all keys, instead of those up to its own.
    pub full: bool,
    /// Attention.
    pub attn: Option<&'a AttnOptions<'a>>,
    /// int32 `[T]`: of the tokens that are rotated.
    pub positions: Option<&'a TensorRef<'a>>,
    /// How they are rotated.
    pub rope: Option<&'a Rope>,
    /// Of all work, where the tensors lie on a GPU.
    pub stream: Stream,
}

impl Default for OpOptions<'_> {
    fn default() -> Self {
        OpOptions {
            executor: None,
            cpu_isa: CpuIsa::Auto,
            full: false,
            attn: None,
            positions: None,
            rope: None,
            stream: Stream::LEGACY,
        }
    }
}

impl OpOptions<'_> {
    fn with_raw<T>(&self, call: impl FnOnce(*const sys::kvc_op_opt) -> Result<T>) -> Result<T> {
        let executor = self.executor.map(|executor| &executor.raw);
        let mut attn = self.attn.map(RawAttnOptions::new);
        let attn = attn.as_mut().map(|attn| attn.filled().as_ptr());
        let positions = dl_or_null(self.positions.map(|tensor| &tensor.raw));
        let rope = self.rope.map(raw_rope).transpose()?;
        call(&sys::kvc_op_opt {
            executor: executor.map_or(null(), from_ref),
            cpu_isa: self.cpu_isa.to_raw(),
            full: self.full.into(),
            attn: attn.unwrap_or(null()),
            positions: pointer(&positions),
            rope: rope.as_ref().map_or(null(), from_ref),
            stream: self.stream.raw(),
            ..Default::default()
        })
    }
}

fn raw(tensor: Option<&TensorRef<'_>>) -> Option<sys::DLTensor> {
    dl_or_null(tensor.map(|tensor| &tensor.raw))
}

/// Writes k `[T, heads, k_dim]` and v to `slots` int64 `[T]` = page * page_size + offset; negative: skip.
pub fn append(
    pool: &mut PoolMut<'_>,
    opt: &OpOptions<'_>,
    slots: &TensorRef<'_>,
    k: &TensorRef<'_>,
    v: Option<&TensorRef<'_>>,
) -> Result<()> {
    let api = api()?;
    let (slots, k, v) = (slots.raw.dl(), k.raw.dl(), raw(v));
    pool.with_raw(|pool| {
        opt.with_raw(|opt| {
            // SAFETY: live tensors; the pool is exclusive.
            check(|error| unsafe { (api.op_append)(pool, opt, &slots, &k, pointer(&v), error) })
        })
    })
}

/// Attention of q `[T, num_q_heads, k_dim]` over pages.
pub fn attention_paged<'o>(
    pool: &Pool<'_>,
    table: &Table<'_>,
    opt: &OpOptions<'_>,
    q: &TensorRef<'_>,
    out: impl Into<Out<'o>>,
) -> Result<()> {
    let api = api()?;
    let output = out.into();
    let (q, mut out, mut lse) = (q.raw.dl(), output.out.dl(), dl_or_null(output.lse.as_deref()));
    pool.with_raw(|pool| {
        table.with_raw(|table| {
            opt.with_raw(|opt| {
                check(|error| {
                    // SAFETY: live tensors; outputs are exclusive.
                    unsafe {
                        (api.op_attention_paged)(pool, table, opt, &q, &mut out, pointer_mut(&mut lse), error)
                    }
                })
            })
        })
    })
}

/// Attention of packed q over packed k and v; the indptrs, int32 `[B+1]`, cut them into sequences.
pub fn attention_ragged<'o>(
    (qo_indptr, kv_indptr): (&TensorRef<'_>, Option<&TensorRef<'_>>),
    opt: &OpOptions<'_>,
    q: &TensorRef<'_>,
    (k, v): (&TensorRef<'_>, &TensorRef<'_>),
    out: impl Into<Out<'o>>,
) -> Result<()> {
    let api = api()?;
    let output = out.into();
    let (qo_indptr, kv_indptr) = (qo_indptr.raw.dl(), raw(kv_indptr));
    let (q, k, v) = (q.raw.dl(), k.raw.dl(), v.raw.dl());
    let (mut out, mut lse) = (output.out.dl(), dl_or_null(output.lse.as_deref()));
    opt.with_raw(|opt| {
        check(|error| {
            // SAFETY: live tensors; outputs are exclusive.
            unsafe {
                (api.op_attention_ragged)(
                    &qo_indptr,
                    pointer(&kv_indptr),
                    opt,
                    &q,
                    &k,
                    &v,
                    &mut out,
                    pointer_mut(&mut lse),
                    error,
                )
            }
        })
    })
}

/// Absorbed MLA over a pool of latents: q `[T, heads, rank + rope dim]`, out `[T, heads, latent_rank]`; the
/// scale must be given.
pub fn mla_paged<'o>(
    pool: &Pool<'_>,
    table: &Table<'_>,
    latent_rank: i32,
    opt: &OpOptions<'_>,
    q: &TensorRef<'_>,
    out: impl Into<Out<'o>>,
) -> Result<()> {
    let api = api()?;
    let output = out.into();
    let (q, mut out, mut lse) = (q.raw.dl(), output.out.dl(), dl_or_null(output.lse.as_deref()));
    pool.with_raw(|pool| {
        table.with_raw(|table| {
            opt.with_raw(|opt| {
                check(|error| {
                    // SAFETY: live tensors; outputs are exclusive.
                    unsafe {
                        (api.op_mla_paged)(
                            pool,
                            table,
                            latent_rank,
                            opt,
                            &q,
                            &mut out,
                            pointer_mut(&mut lse),
                            error,
                        )
                    }
                })
            })
        })
    })
}

/// Merges two partial attentions over disjoint keys into `out` and `lse`.
pub fn merge(
    opt: &OpOptions<'_>,
    (out, lse): (&mut TensorMut<'_>, &mut TensorMut<'_>),
    (other_out, other_lse): (&TensorRef<'_>, &TensorRef<'_>),
) -> Result<()> {
    let api = api()?;
    let (mut out, mut lse) = (out.raw.dl(), lse.raw.dl());
    let (other_out, other_lse) = (other_out.raw.dl(), other_lse.raw.dl());
    opt.with_raw(|opt| {
        // SAFETY: live tensors; outputs are exclusive.
        check(|error| unsafe { (api.op_merge)(opt, &mut out, &mut lse, &other_out, &other_lse, error) })
    })
}

/// Copies all keys of the table's sequences, packed in their order, quantised ones as their values; either
/// output may be left out.
pub fn gather(
    pool: &Pool<'_>,
    table: &Table<'_>,
    opt: &OpOptions<'_>,
    k_out: Option<&mut TensorMut<'_>>,
    v_out: Option<&mut TensorMut<'_>>,
) -> Result<()> {
    let api = api()?;
    let mut k = dl_or_null(k_out.as_deref().map(|tensor| &tensor.raw));
    let mut v = dl_or_null(v_out.as_deref().map(|tensor| &tensor.raw));
    let (k, v) = (pointer_mut(&mut k), pointer_mut(&mut v));
    pool.with_raw(|pool| {
        table.with_raw(|table| {
            // SAFETY: live tensors; outputs are exclusive.
            opt.with_raw(|opt| check(|error| unsafe { (api.op_gather)(pool, table, opt, k, v, error) }))
        })
    })
}

/// Copies pages inside a pool, with their scales: pairs int64 `[n, 2]` of (from, to), distinct destinations,
/// none of which is a source.
pub fn copy_pages(pool: &mut PoolMut<'_>, opt: &OpOptions<'_>, pairs: &TensorRef<'_>) -> Result<()> {
    let api = api()?;
    let pairs = pairs.raw.dl();
    pool.with_raw(|pool| {
        // SAFETY: live tensors; the pool is exclusive.
        opt.with_raw(|opt| check(|error| unsafe { (api.op_copy_pages)(pool, opt, &pairs, error) }))
    })
}

/// Rotates x `[T, heads, dim]` into `out` by the options' rope at their positions.
pub fn rotate(opt: &OpOptions<'_>, x: &TensorRef<'_>, out: &mut TensorMut<'_>) -> Result<()> {
    rotate_raw(opt, &x.raw, &out.raw)
}

/// Rotates x `[T, heads, dim]` where it lies.
pub fn rotate_in_place(opt: &OpOptions<'_>, x: &mut TensorMut<'_>) -> Result<()> {
    rotate_raw(opt, &x.raw, &x.raw)
}

fn rotate_raw(opt: &OpOptions<'_>, x: &RawTensor, out: &RawTensor) -> Result<()> {
    let api = api()?;
    let (x, mut out) = (x.dl(), out.dl());
    // SAFETY: live tensors; the output is exclusive, or x itself, which the function allows.
    opt.with_raw(|opt| check(|error| unsafe { (api.op_rotate)(opt, &x, &mut out, error) }))
}

/// Stores x `[T, heads, dim]` as a cache with this [`Quant`] stores it: `out` `[T, heads, dim]` of int8,
/// float8_e4m3fn or float8_e5m2, and `scales`, float32. [`Quant::PerTokenHead`]: `[T, heads]`, written.
/// [`Quant::PerTensor`]: `[1]`, read. On the CPU.
///
/// Returns how many elements were clipped to the ends of the type's range, infinities among them. With
/// [`Quant::PerTokenHead`] none are.
///
/// ```
/// use kvcache::{ops, F8E4M3, Quant, TensorMut, TensorRef};
/// let (x, mut codes, mut scales) = ([1.0f32, -0.5, 0.25, 2.0], [F8E4M3(0); 4], [0.0f32]);
/// ops::quantize(
///     &Default::default(),
///     Quant::PerTokenHead,
///     &TensorRef::new(&x, &[1, 1, 4])?,
///     &mut TensorMut::new(&mut codes, &[1, 1, 4])?,
///     &mut TensorMut::new(&mut scales, &[1, 1])?,
/// )?;
/// assert_eq!(scales, [2.0 / 448.0]);
/// assert_eq!(codes[3], F8E4M3(0x7e)); // 448
/// # Ok::<(), kvcache::Error>(())
/// ```
pub fn quantize(
    opt: &OpOptions<'_>,
    quant: Quant,
    x: &TensorRef<'_>,
    out: &mut TensorMut<'_>,
    scales: &mut TensorMut<'_>,
) -> Result<u64> {
    let api = api()?;
    let (x, mut out, mut scales) = (x.raw.dl(), out.raw.dl(), scales.raw.dl());
    let mut saturated = 0;
    opt.with_raw(|opt| {
        check(|error| {
            // SAFETY: live tensors; outputs are exclusive.
            unsafe {
                (api.op_quantize)(opt, quant.to_raw(), &x, &mut out, &mut scales, &mut saturated, error)
            }
        })
    })?;
    Ok(saturated)
}

/// Computes `out` = x * scale, of what [`quantize`] made; `out` is of float32, float16 or bfloat16.
pub fn dequantize(
    opt: &OpOptions<'_>,
    quant: Quant,
    x: &TensorRef<'_>,
    scales: &TensorRef<'_>,
    out: &mut TensorMut<'_>,
) -> Result<()> {
    let api = api()?;
    let (x, scales, mut out) = (x.raw.dl(), scales.raw.dl(), out.raw.dl());
    opt.with_raw(|opt| {
        // SAFETY: live tensors; the output is exclusive.
        check(|error| unsafe { (api.op_dequantize)(opt, quant.to_raw(), &x, &scales, &mut out, error) })
    })
}

/// [`Forward::attn_linear`](crate::Forward::attn_linear) over the host's own states `[B, H, Dk, Dv]`, updated
/// in place; `qo_indptr` int32 `[B+1]` cuts the tokens into sequences, absent: one each.
pub fn linear_step(
    linear: &LinearOptions<'_>,
    opt: &OpOptions<'_>,
    qo_indptr: Option<&TensorRef<'_>>,
    states: &mut TensorMut<'_>,
    inputs: &LinearInputs<'_>,
    out: &mut TensorMut<'_>,
) -> Result<()> {
    let api = api()?;
    let (qo_indptr, inputs) = (raw(qo_indptr), inputs.raw());
    let (mut states, mut out) = (states.raw.dl(), out.raw.dl());
    linear.with_raw(|linear| {
        opt.with_raw(|opt| {
            check(|error| {
                // SAFETY: live tensors; states and output are exclusive.
                unsafe {
                    (api.op_linear_step)(
                        linear,
                        opt,
                        pointer(&qo_indptr),
                        &mut states,
                        &inputs.q,
                        &inputs.k,
                        &inputs.v,
                        pointer(&inputs.decay),
                        pointer(&inputs.beta),
                        &mut out,
                        error,
                    )
                }
            })
        })
    })
}
