//! Recurrent state inside a forward: one step of state per forward and sequence, whatever its number of
//! tokens.

use crate::error::{check, Result};
use crate::kinds::{Activation, Decay};
use crate::library::loaded;
use crate::tensor::{dl_or_null, pointer, TensorMut, TensorRef};
use crate::Forward;
use kvcache_sys as sys;

/// Options of linear attention; see `kvc_linear_opt`.
#[derive(Clone, Copy, Debug)]
pub struct LinearOptions<'a> {
    /// What the decay tensor holds.
    pub decay: Decay,
    /// The delta rule.
    pub delta: bool,
    /// Index of the recurrence's state among the layer's states.
    pub state: usize,
    /// Factor on the output; 0: 1/sqrt(Dk).
    pub scale: f32,
    /// float32 `[H]`: what of v is added to the output.
    pub skip: Option<&'a TensorRef<'a>>,
}

impl Default for LinearOptions<'_> {
    fn default() -> Self {
        LinearOptions { decay: Decay::None, delta: false, state: 0, scale: 0.0, skip: None }
    }
}

impl LinearOptions<'_> {
    pub(crate) fn with_raw<T>(&self, call: impl FnOnce(*const sys::kvc_linear_opt) -> T) -> T {
        let skip = dl_or_null(self.skip.map(|tensor| &tensor.raw));
        call(&sys::kvc_linear_opt {
            flags: if self.delta { sys::KVC_LINEAR_DELTA } else { 0 },
            decay: self.decay.to_raw(),
            state: crate::index(self.state),
            scale: self.scale,
            skip: pointer(&skip),
            ..Default::default()
        })
    }
}

/// Inputs of linear attention: q, k `[T, Hk, Dk]`, v `[T, H, Dv]`, the logarithm of the decay as the options
/// say, beta `[T, H]`.
#[derive(Clone, Copy, Debug)]
pub struct LinearInputs<'a> {
    /// Queries.
    pub q: &'a TensorRef<'a>,
    /// Keys.
    pub k: &'a TensorRef<'a>,
    /// Values.
    pub v: &'a TensorRef<'a>,
    /// ln(decay), at most 0.
    pub decay: Option<&'a TensorRef<'a>>,
    /// Weight of each token; absent: 1.
    pub beta: Option<&'a TensorRef<'a>>,
}

/// The inputs as C takes them.
pub(crate) struct RawLinearInputs {
    pub(crate) q: sys::DLTensor,
    pub(crate) k: sys::DLTensor,
    pub(crate) v: sys::DLTensor,
    pub(crate) decay: Option<sys::DLTensor>,
    pub(crate) beta: Option<sys::DLTensor>,
}

impl LinearInputs<'_> {
    pub(crate) fn raw(&self) -> RawLinearInputs {
        RawLinearInputs {
            q: self.q.raw.dl(),
            k: self.k.raw.dl(),
            v: self.v.raw.dl(),
            decay: dl_or_null(self.decay.map(|tensor| &tensor.raw)),
            beta: dl_or_null(self.beta.map(|tensor| &tensor.raw)),
        }
    }
}

impl Forward<'_> {
    /// State `state` of every sequence of the batch, as it was before the forward: out `[B, shape...]`.
    pub fn state_get(&self, layer: usize, state: usize, out: &mut TensorMut<'_>) -> Result<()> {
        let mut out = out.raw.dl();
        let (layer, state) = (crate::index(layer), crate::index(state));
        // SAFETY: open, one call at a time; the tensor is exclusive.
        check(|error| unsafe { (loaded().state_get)(self.as_ptr(), layer, state, &mut out, error) })
    }

    /// What the state is when the forward ends: value `[B, shape...]`.
    pub fn state_set(&self, layer: usize, state: usize, value: &TensorRef<'_>) -> Result<()> {
        let value = value.raw.dl();
        let (layer, state) = (crate::index(layer), crate::index(state));
        // SAFETY: open, one call at a time.
        check(|error| unsafe { (loaded().state_set)(self.as_ptr(), layer, state, &value, error) })
    }

    /// Linear attention over the new tokens: reads and sets the layer's state `[H, Dk, Dv]`.
    pub fn attn_linear(
        &self,
        layer: usize,
        opt: &LinearOptions<'_>,
        inputs: &LinearInputs<'_>,
        out: &mut TensorMut<'_>,
    ) -> Result<()> {
        let (inputs, mut out) = (inputs.raw(), out.raw.dl());
        let layer = crate::index(layer);
        opt.with_raw(|opt| {
            check(|error| {
                // SAFETY: open, one call at a time; the output is exclusive.
                unsafe {
                    (loaded().attn_linear)(
                        self.as_ptr(),
                        layer,
                        opt,
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
    }

    /// Causal depthwise convolution whose last inputs are the state `[C, W-1]`: x, out `[T, C]`, weight
    /// float32 `[C, W]`, bias `[C]`.
    pub fn state_conv(
        &self,
        (layer, state): (usize, usize),
        x: &TensorRef<'_>,
        weight: &TensorRef<'_>,
        bias: Option<&TensorRef<'_>>,
        activation: Activation,
        out: &mut TensorMut<'_>,
    ) -> Result<()> {
        let (x, weight, mut out) = (x.raw.dl(), weight.raw.dl(), out.raw.dl());
        let bias = dl_or_null(bias.map(|tensor| &tensor.raw));
        let (layer, state) = (crate::index(layer), crate::index(state));
        check(|error| {
            // SAFETY: open, one call at a time; the output is exclusive.
            unsafe {
                (loaded().state_conv)(
                    self.as_ptr(),
                    layer,
                    state,
                    &x,
                    &weight,
                    pointer(&bias),
                    activation.to_raw(),
                    &mut out,
                    error,
                )
            }
        })
    }
}
