//! Attention as a custom op of candle: q, k and v in, a new storage out.

use crate::error::{refuse, Result};
use crate::rows::{packable, rows, tensor_ref, Output};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Storage, Tensor};
use kvcache::{AttnOptions, Forward, TensorRef};

/// Options of an attention call; the default is none of them.
///
/// ```
/// use kvcache_candle::Attention;
/// let gemma = Attention { soft_cap: 50.0, ..Attention::default() };
/// # let _ = gemma;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attention {
    /// Factor on q . k; 0: 1/sqrt(D).
    pub scale: f32,
    /// s = c * tanh(s / c); 0: off.
    pub soft_cap: f32,
    /// Sees at most that many keys in this call; 0: the layer's window.
    pub window: i64,
    /// A token's output does not depend on the rest of the batch, nor on how its prompt was cut.
    pub batch_invariant: bool,
    /// F32 (H): one more term of the denominator (GPT-OSS).
    pub sink_logits: Option<Tensor>,
    /// F32 (H).
    pub alibi_slopes: Option<Tensor>,
}

/// Calls with the library's view of a vector, or without one.
fn with_vector<T>(
    tensor: Option<&Tensor>,
    name: &str,
    call: impl FnOnce(Option<&TensorRef<'_>>) -> Result<T>,
) -> Result<T> {
    let Some(tensor) = tensor else { return call(None) };
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return refuse(format!("{name} lies on {:?}, expected the CPU", tensor.device()));
    };
    call(Some(&tensor_ref(storage, layout.start_offset(), layout.dims(), layout.stride())?))
}

impl Attention {
    /// Calls with the library's options, which borrow the tensors.
    pub fn with_options<T>(&self, call: impl FnOnce(&AttnOptions<'_>) -> Result<T>) -> Result<T> {
        with_vector(self.sink_logits.as_ref(), "sink_logits", |sink_logits| {
            with_vector(self.alibi_slopes.as_ref(), "alibi_slopes", |alibi_slopes| {
                call(&AttnOptions {
                    scale: self.scale,
                    soft_cap: self.soft_cap,
                    window: self.window,
                    batch_invariant: self.batch_invariant,
                    sink_logits,
                    alibi_slopes,
                    ..AttnOptions::default()
                })
            })
        })
    }
}

/// One layer's attention in an open step.
struct Attend<'a> {
    forward: &'a Forward<'a>,
    layer: usize,
    options: &'a Attention,
}

impl Attend<'_> {
    fn run(
        &self,
        q: TensorRef<'_>,
        k: TensorRef<'_>,
        v: TensorRef<'_>,
        out: &mut Output,
        heads: usize,
    ) -> Result<()> {
        let (rows, v_dim) = (q.shape()[0] as usize, v.shape()[2] as usize);
        let mut out = out.view(0, &[rows, heads, v_dim], &[heads * v_dim, v_dim, 1])?;
        self.options
            .with_options(|options| Ok(self.forward.attn(self.layer, options, &q, (&k, &v), &mut out)?))
    }
}

impl CustomOp3 for Attend<'_> {
    fn name(&self) -> &'static str {
        "kvcache-attend"
    }

    /// The output is compact in the order of tokens, (B, L, H, D): what a model reshapes to (B, L, H * D) next, for free.
    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (batch, heads, len, _) = q_layout.shape().dims4()?;
        let v_dim = v_layout.shape().dims4()?.3;
        let mut out = Output::zeros(q.dtype(), batch * len * heads * v_dim)?;
        self.run(rows(q, q_layout)?, rows(k, k_layout)?, rows(v, v_layout)?, &mut out, heads)?;
        Ok((out.into_storage(), Shape::from((batch, len, heads, v_dim))))
    }
}

/// Appends k and v, attends, and returns (B, H, L, D).
pub(crate) fn attend(
    forward: &Forward<'_>,
    layer: usize,
    options: &Attention,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
) -> Result<Tensor> {
    let (q, k, v) = (packable(q, "q")?, packable(k, "k")?, packable(v, "v")?);
    let out = q.apply_op3_no_bwd(&k, &v, &Attend { forward, layer, options })?;
    Ok(out.transpose(1, 2)?)
}
