//! One forward of a model over a batch of sequences.

use crate::attend::{attend, Attention};
use crate::error::{refuse, Result};
use candle_core::{Device, Tensor};
use kvcache::{Forward, TensorMut};

/// An open step: layers attend in it, [`commit`](Step::commit) makes its tokens part of their sequences, dropping it undoes it.
///
/// Tokens are packed over the batch in the order of its sequences: T of them. Tensors are (1, H, T, D), or, when all sequences grow by the
/// same length L, (B, H, L, D).
#[derive(Debug)]
#[must_use = "a step that is dropped is undone"]
pub struct Step<'c> {
    forward: Forward<'c>,
    lengths: Vec<i64>,
}

impl<'c> Step<'c> {
    pub(crate) fn new(forward: Forward<'c>, lengths: &[i64]) -> Self {
        Step { forward, lengths: lengths.to_vec() }
    }

    /// Appends k and v, then attends: a new token sees every token of its sequence up to and including itself.
    ///
    /// q, k, v (B, H, L, D), rotated; strides, offset and element type as they come. Returns (B, H, L, D) of v, in q's type, in such an
    /// order of memory that `.transpose(1, 2)?.reshape((b, l, ()))` copies nothing.
    pub fn attend(&self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> candle_core::Result<Tensor> {
        self.attend_with(layer, &Attention::default(), q, k, v)
    }

    /// [`attend`](Step::attend) with a scale, a soft cap, sink logits, ...
    pub fn attend_with(
        &self,
        layer: usize,
        options: &Attention,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
    ) -> candle_core::Result<Tensor> {
        for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
            self.check(name, tensor)?;
        }
        Ok(attend(&self.forward, layer, options, (q, k, v))?)
    }

    /// (B, L) fits the lengths that the step began with.
    fn check(&self, name: &str, tensor: &Tensor) -> Result<()> {
        let &[batch, _, len, _] = tensor.dims() else {
            return refuse(format!("{name} has shape {:?}, expected (B, H, L, D)", tensor.dims()));
        };
        let rectangle =
            batch == self.lengths.len() && self.lengths.iter().all(|length| *length == len as i64);
        let packed = batch == 1 && len == self.num_tokens();
        if rectangle || packed {
            return Ok(());
        }
        refuse(format!(
            "{name} has {batch} x {len} tokens, but the step's sequences grow by {:?}: expected (1, H, {}, D) packed, or \
             (B, H, L, D) where all lengths are L",
            self.lengths,
            self.num_tokens()
        ))
    }

    /// T: new tokens of the whole batch.
    pub fn num_tokens(&self) -> usize {
        self.forward.num_tokens()
    }

    /// Position of each new token, U32 (T): what rotary tables are indexed by.
    pub fn positions(&self) -> candle_core::Result<Tensor> {
        let mut positions = vec![0i32; self.num_tokens()];
        let len = positions.len();
        let mut out = TensorMut::new(&mut positions, &[len]).map_err(crate::Error::from)?;
        self.forward.positions(&mut out).map_err(crate::Error::from)?;
        Tensor::from_iter(positions.into_iter().map(|position| position as u32), &Device::Cpu)
    }

    /// Row of each sequence's last new token, U32 (B): whose logits are sampled.
    pub fn last_rows(&self) -> candle_core::Result<Tensor> {
        let ends = self.lengths.iter().scan(0u32, |end, length| {
            *end += *length as u32;
            Some(*end - 1)
        });
        Tensor::from_iter(ends, &Device::Cpu)
    }

    /// Makes the new tokens part of their sequences.
    pub fn commit(self) -> Result<()> {
        Ok(self.forward.end()?)
    }

    /// Undoes the step, as dropping does, and says whether that worked.
    pub fn abort(self) -> Result<()> {
        Ok(self.forward.abort()?)
    }

    /// The library's forward, for everything else: latents, states, cross attention.
    pub fn forward(&self) -> &Forward<'c> {
        &self.forward
    }
}
