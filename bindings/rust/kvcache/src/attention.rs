//! Attention inside a forward. Tokens are packed over the batch in the order of its sequences; T =
//! [`Forward::num_tokens`]. More rows than T are padding: neither read nor written.

use crate::error::{check, Result};
use crate::library::loaded;
use crate::tensor::{dl_or_null, pointer, pointer_mut, RawTensor, TensorMut, TensorRef};
use crate::{Forward, SeqId};
use kvcache_sys as sys;
use std::ptr::null;

/// Options of an attention call; see `kvc_attn_opt`. The default is none of them.
///
/// ```
/// use kvcache::AttnOptions;
/// let gemma = AttnOptions { soft_cap: 50.0, ..AttnOptions::default() };
/// # let _ = gemma;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AttnOptions<'a> {
    /// Factor on q . k; 0: 1/sqrt(k_dim).
    pub scale: f32,
    /// s = c * tanh(s / c); 0: off.
    pub soft_cap: f32,
    /// Sees at most that many keys in this call; 0: the layer's window.
    pub window: i64,
    /// A token's output does not depend on the rest of the batch, nor on how its prompt was cut.
    pub batch_invariant: bool,
    /// The same call gives the same bits; always so on the CPU.
    pub deterministic: bool,
    /// Shared prefixes are read once per sequence.
    pub no_cascade: bool,
    /// float32 `[num_q_heads]`: one more term of the denominator.
    pub sink_logits: Option<&'a TensorRef<'a>>,
    /// float32 `[num_q_heads]`.
    pub alibi_slopes: Option<&'a TensorRef<'a>>,
    /// float32 `[T, J]` or `[num_q_heads, T, J]`.
    pub bias: Option<&'a TensorRef<'a>>,
    /// int32 `[n, 3]`: (entry of the batch, begin, end), seen in both directions.
    pub spans: Option<&'a TensorRef<'a>>,
}

/// The C struct of options, with the tensors that it points at.
pub(crate) struct RawAttnOptions {
    tensors: [Option<sys::DLTensor>; 4],
    raw: sys::kvc_attn_opt,
}

impl AttnOptions<'_> {
    #[inline]
    fn is_default(&self) -> bool {
        self.scale == 0.0
            && self.soft_cap == 0.0
            && self.window == 0
            && !(self.batch_invariant || self.deterministic || self.no_cascade)
            && self.sink_logits.is_none()
            && self.alibi_slopes.is_none()
            && self.bias.is_none()
            && self.spans.is_none()
    }

    /// Calls with the C struct, or with NULL for the defaults.
    #[inline]
    pub(crate) fn with_raw<T>(&self, call: impl FnOnce(*const sys::kvc_attn_opt) -> T) -> T {
        if self.is_default() {
            return call(null());
        }
        call(RawAttnOptions::new(self).filled().as_ptr())
    }
}

impl RawAttnOptions {
    pub(crate) fn new(options: &AttnOptions<'_>) -> Self {
        let tensor = |tensor: Option<&TensorRef<'_>>| dl_or_null(tensor.map(|tensor| &tensor.raw));
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        RawAttnOptions {
            tensors: [
                tensor(options.sink_logits),
                tensor(options.alibi_slopes),
                tensor(options.bias),
                tensor(options.spans),
            ],
            raw: sys::kvc_attn_opt {
                flags: flag(options.deterministic, sys::KVC_ATTN_DETERMINISTIC)
                    | flag(options.batch_invariant, sys::KVC_ATTN_BATCH_INVARIANT)
                    | flag(options.no_cascade, sys::KVC_ATTN_NO_CASCADE),
                scale: options.scale,
                soft_cap: options.soft_cap,
                window: options.window,
                ..Default::default()
            },
        }
    }

    /// Points at the tensors, from where the struct lies now.
    pub(crate) fn filled(&mut self) -> &Self {
        let [sink_logits, alibi_slopes, bias, spans] = &self.tensors;
        self.raw.sink_logits = pointer(sink_logits);
        self.raw.alibi_slopes = pointer(alibi_slopes);
        self.raw.bias = pointer(bias);
        self.raw.spans = pointer(spans);
        self
    }

    pub(crate) fn as_ptr(&self) -> *const sys::kvc_attn_opt {
        &self.raw
    }
}

/// K and V of a call: `(&k, &v)`, or `&k` alone where a layer keeps no V (latents, K = V), or `()` for none.
#[derive(Clone, Copy, Debug)]
pub struct Kv<'a> {
    pub(crate) k: Option<&'a RawTensor>,
    pub(crate) v: Option<&'a RawTensor>,
}

impl<'a> From<(&'a TensorRef<'_>, &'a TensorRef<'_>)> for Kv<'a> {
    fn from((k, v): (&'a TensorRef<'_>, &'a TensorRef<'_>)) -> Self {
        Kv { k: Some(&k.raw), v: Some(&v.raw) }
    }
}

impl<'a> From<&'a TensorRef<'_>> for Kv<'a> {
    fn from(k: &'a TensorRef<'_>) -> Self {
        Kv { k: Some(&k.raw), v: None }
    }
}

impl<'a> From<(Option<&'a TensorRef<'_>>, Option<&'a TensorRef<'_>>)> for Kv<'a> {
    fn from((k, v): (Option<&'a TensorRef<'_>>, Option<&'a TensorRef<'_>>)) -> Self {
        Kv { k: k.map(|k| &k.raw), v: v.map(|v| &v.raw) }
    }
}

impl From<()> for Kv<'_> {
    fn from(_: ()) -> Self {
        Kv { k: None, v: None }
    }
}

/// Outputs of a call: `&mut out`, or `(&mut out, &mut lse)` for the logarithm of the denominator too.
#[derive(Debug)]
pub struct Out<'a> {
    pub(crate) out: &'a mut RawTensor,
    pub(crate) lse: Option<&'a mut RawTensor>,
}

impl<'a> From<&'a mut TensorMut<'_>> for Out<'a> {
    fn from(out: &'a mut TensorMut<'_>) -> Self {
        Out { out: &mut out.raw, lse: None }
    }
}

impl<'a> From<(&'a mut TensorMut<'_>, &'a mut TensorMut<'_>)> for Out<'a> {
    fn from((out, lse): (&'a mut TensorMut<'_>, &'a mut TensorMut<'_>)) -> Self {
        Out { out: &mut out.raw, lse: Some(&mut lse.raw) }
    }
}

impl<'a> From<(&'a mut TensorMut<'_>, Option<&'a mut TensorMut<'_>>)> for Out<'a> {
    fn from((out, lse): (&'a mut TensorMut<'_>, Option<&'a mut TensorMut<'_>>)) -> Self {
        Out { out: &mut out.raw, lse: lse.map(|lse| &mut lse.raw) }
    }
}

/// Something in a cache line of its own: the library reads what was written a moment before, which takes
/// longer across the border of two lines.
#[repr(align(64))]
struct Line<T>(T);

/// The common shape of attention calls: options, q, k and v in; out and lse out.
macro_rules! attention {
    ($self:ident, $name:ident, $layer:ident, $opt:ident, [$($input:expr),*], $out:expr) => {{
        let output: Out<'_> = $out.into();
        let mut out = Line(output.out.dl());
        let mut lse = Line(dl_or_null(output.lse.as_deref()));
        let layer = crate::index($layer);
        $opt.with_raw(|opt| {
            check(|error| {
                // SAFETY: open, one call at a time because Forward is not Sync; tensors are borrowed, outputs
                // exclusively.
                unsafe {
                    let lse = pointer_mut(&mut lse.0);
                    (loaded().$name)($self.as_ptr(), layer, opt, $($input,)* &mut out.0, lse, error)
                }
            })
        })
    }};
}

impl Forward<'_> {
    /// Appends k and v (when given), then attends: a new token sees every token up to and including itself.
    ///
    /// q `[T, num_q_heads, k_dim]`, k `[T, num_kv_heads, k_dim]`, v `[T, num_kv_heads, v_dim]`, out `[T,
    /// num_q_heads, v_dim]`, lse float32 `[T, num_q_heads]`. MLA layers: q `[T, num_q_heads, rank + rope
    /// dim]`, k the latents, no v, `opt.scale` given.
    #[inline]
    pub fn attn<'o>(
        &self,
        layer: usize,
        opt: &AttnOptions<'_>,
        q: &TensorRef<'_>,
        kv: impl Into<Kv<'o>>,
        out: impl Into<Out<'o>>,
    ) -> Result<()> {
        let kv = kv.into();
        let q = Line(q.raw.dl());
        let (k, v) = (Line(dl_or_null(kv.k)), Line(dl_or_null(kv.v)));
        attention!(self, attn, layer, opt, [&q.0, pointer(&k.0), pointer(&v.0)], out)
    }

    /// [`attn`](Forward::attn) on one packed tensor `[T, num_q_heads + 2 * num_kv_heads, k_dim]`: q heads,
    /// then k heads, then v heads.
    pub fn attn_fused_qkv(
        &self,
        layer: usize,
        opt: &AttnOptions<'_>,
        qkv: &TensorRef<'_>,
        out: &mut TensorMut<'_>,
    ) -> Result<()> {
        let (qkv, mut out) = (qkv.raw.dl(), out.raw.dl());
        let layer = crate::index(layer);
        opt.with_raw(|opt| {
            // SAFETY: as in attention!.
            check(|error| unsafe {
                (loaded().attn_fused_qkv)(self.as_ptr(), layer, opt, &qkv, &mut out, error)
            })
        })
    }

    /// Attention among the new tokens only; nothing is appended and no page is read.
    pub fn attn_self<'o>(
        &self,
        layer: usize,
        opt: &AttnOptions<'_>,
        q: &TensorRef<'_>,
        (k, v): (&TensorRef<'_>, &TensorRef<'_>),
        out: impl Into<Out<'o>>,
    ) -> Result<()> {
        let (q, k, v) = (q.raw.dl(), k.raw.dl(), v.raw.dl());
        attention!(self, attn_self, layer, opt, [&q, &k, &v], out)
    }

    /// The new queries over the tokens that were cached before this forward.
    pub fn attn_cached<'o>(
        &self,
        layer: usize,
        opt: &AttnOptions<'_>,
        q: &TensorRef<'_>,
        out: impl Into<Out<'o>>,
    ) -> Result<()> {
        let q = q.raw.dl();
        attention!(self, attn_cached, layer, opt, [&q], out)
    }

    /// Encoder-decoder attention: every new token sees all encoder tokens of its sequence. k and v are given
    /// in the forward whose batch announces them by [`cross_lengths`](crate::Batch::cross_lengths).
    pub fn attn_cross<'o>(
        &self,
        layer: usize,
        opt: &AttnOptions<'_>,
        q: &TensorRef<'_>,
        kv: impl Into<Kv<'o>>,
        out: impl Into<Out<'o>>,
    ) -> Result<()> {
        let kv = kv.into();
        let (q, k, v) = (q.raw.dl(), dl_or_null(kv.k), dl_or_null(kv.v));
        attention!(self, attn_cross, layer, opt, [&q, pointer(&k), pointer(&v)], out)
    }

    /// Attention that reads the K and V of `source_layer`, for a layer that is not in the plan.
    pub fn attn_shared_kv<'o>(
        &self,
        source_layer: usize,
        opt: &AttnOptions<'_>,
        q: &TensorRef<'_>,
        out: impl Into<Out<'o>>,
    ) -> Result<()> {
        let q = q.raw.dl();
        attention!(self, attn_shared_kv, source_layer, opt, [&q], out)
    }

    /// Merges two partial attentions over disjoint keys into `out` and `lse`.
    pub fn attn_merge(
        &self,
        (out, lse): (&mut TensorMut<'_>, &mut TensorMut<'_>),
        (other_out, other_lse): (&TensorRef<'_>, &TensorRef<'_>),
    ) -> Result<()> {
        let (mut out, mut lse) = (out.raw.dl(), lse.raw.dl());
        let (other_out, other_lse) = (other_out.raw.dl(), other_lse.raw.dl());
        // SAFETY: as in attention!.
        check(|error| unsafe {
            (loaded().attn_merge)(self.as_ptr(), &mut out, &mut lse, &other_out, &other_lse, error)
        })
    }

    /// Writes k and v into the slots of this forward: rotated when the layer says so, rounded to the storage
    /// type.
    pub fn kv_append<'o>(&self, layer: usize, kv: impl Into<Kv<'o>>) -> Result<()> {
        let kv = kv.into();
        let (k, v) = (dl_or_null(kv.k), dl_or_null(kv.v));
        let layer = crate::index(layer);
        // SAFETY: as in attention!.
        check(|error| unsafe { (loaded().kv_append)(self.as_ptr(), layer, pointer(&k), pointer(&v), error) })
    }

    /// Writes latents `[T, rank + rope dim]` of an MLA layer.
    pub fn mla_append(&self, layer: usize, latent: &TensorRef<'_>) -> Result<()> {
        let latent = latent.raw.dl();
        let layer = crate::index(layer);
        // SAFETY: as in attention!.
        check(|error| unsafe { (loaded().mla_append)(self.as_ptr(), layer, &latent, error) })
    }

    /// Copies a sequence's K and V of one layer, as stored, new tokens included: `[n, num_kv_heads, dim]`.
    /// Either may be left out.
    pub fn kv_gather(
        &self,
        layer: usize,
        seq: SeqId,
        k_out: Option<&mut TensorMut<'_>>,
        v_out: Option<&mut TensorMut<'_>>,
    ) -> Result<()> {
        let mut k = dl_or_null(k_out.as_deref().map(|tensor| &tensor.raw));
        let mut v = dl_or_null(v_out.as_deref().map(|tensor| &tensor.raw));
        let layer = crate::index(layer);
        // SAFETY: as in attention!.
        check(|error| unsafe {
            (loaded().kv_gather)(self.as_ptr(), layer, seq, pointer_mut(&mut k), pointer_mut(&mut v), error)
        })
    }
}
