//! What a sequence keeps, to read and to overwrite: how equality with another cache is proved.

use crate::error::{check, Result};
use crate::library::loaded;
use crate::tensor::{dl_or_null, pointer, pointer_mut, TensorMut, TensorRef};
use crate::{CacheRef, SeqId};
use kvcache_sys as sys;
use std::ops::Range;
use std::ptr::null_mut;

fn output(tensor: Option<&mut TensorMut<'_>>) -> Option<sys::DLTensor> {
    dl_or_null(tensor.as_deref().map(|tensor| &tensor.raw))
}

fn input(tensor: Option<&TensorRef<'_>>) -> Option<sys::DLTensor> {
    dl_or_null(tensor.map(|tensor| &tensor.raw))
}

impl CacheRef {
    /// Copies committed tokens of all ATTENTION layers, K as stored: `[layers, n, num_kv_heads, dim]`. Either
    /// may be left out.
    pub fn debug_get_kv(
        &self,
        seq: SeqId,
        tokens: Range<i64>,
        k: Option<&mut TensorMut<'_>>,
        v: Option<&mut TensorMut<'_>>,
    ) -> Result<()> {
        let (mut k, mut v) = (output(k), output(v));
        let (k, v) = (pointer_mut(&mut k), pointer_mut(&mut v));
        // SAFETY: shared; outputs are exclusive.
        check(|error| unsafe {
            (loaded().debug_get_kv)(self.as_ptr(), seq, tokens.start, tokens.end, k, v, null_mut(), error)
        })
    }

    /// Overwrites committed tokens from `begin` on with values as they are to be stored.
    pub fn debug_set_kv(
        &mut self,
        seq: SeqId,
        begin: i64,
        k: Option<&TensorRef<'_>>,
        v: Option<&TensorRef<'_>>,
    ) -> Result<()> {
        let (k, v) = (input(k), input(v));
        // SAFETY: exclusive.
        check(|error| unsafe {
            (loaded().debug_set_kv)(
                self.as_mut_ptr(),
                seq,
                begin,
                pointer(&k),
                pointer(&v),
                null_mut(),
                error,
            )
        })
    }

    /// Copies committed latents of all MLA layers: `[layers, n, rank + rope dim]`.
    pub fn debug_get_mla(&self, seq: SeqId, tokens: Range<i64>, latent: &mut TensorMut<'_>) -> Result<()> {
        let mut latent = latent.raw.dl();
        // SAFETY: shared; the output is exclusive.
        check(|error| unsafe {
            (loaded().debug_get_mla)(
                self.as_ptr(),
                seq,
                tokens.start,
                tokens.end,
                &mut latent,
                null_mut(),
                error,
            )
        })
    }

    /// Overwrites committed latents from `begin` on.
    pub fn debug_set_mla(&mut self, seq: SeqId, begin: i64, latent: &TensorRef<'_>) -> Result<()> {
        let latent = latent.raw.dl();
        // SAFETY: exclusive.
        check(|error| unsafe {
            (loaded().debug_set_mla)(self.as_mut_ptr(), seq, begin, &latent, null_mut(), error)
        })
    }

    /// Copies committed tokens of one layer of any kind that keeps pages: `[n, num_kv_heads, dim]`.
    pub fn debug_get_layer(
        &self,
        seq: SeqId,
        layer: usize,
        tokens: Range<i64>,
        k: Option<&mut TensorMut<'_>>,
        v: Option<&mut TensorMut<'_>>,
    ) -> Result<()> {
        let (mut k, mut v) = (output(k), output(v));
        let (k, v) = (pointer_mut(&mut k), pointer_mut(&mut v));
        let layer = crate::index(layer);
        check(|error| {
            // SAFETY: shared; outputs are exclusive.
            unsafe {
                (loaded().debug_get_layer)(
                    self.as_ptr(),
                    seq,
                    layer,
                    tokens.start,
                    tokens.end,
                    k,
                    v,
                    null_mut(),
                    error,
                )
            }
        })
    }

    /// Overwrites committed tokens of one layer from `begin` on.
    pub fn debug_set_layer(
        &mut self,
        seq: SeqId,
        layer: usize,
        begin: i64,
        k: Option<&TensorRef<'_>>,
        v: Option<&TensorRef<'_>>,
    ) -> Result<()> {
        let (k, v) = (input(k), input(v));
        let layer = crate::index(layer);
        check(|error| {
            // SAFETY: exclusive.
            unsafe {
                (loaded().debug_set_layer)(
                    self.as_mut_ptr(),
                    seq,
                    layer,
                    begin,
                    pointer(&k),
                    pointer(&v),
                    null_mut(),
                    error,
                )
            }
        })
    }

    /// The state of a sequence at its committed length.
    pub fn debug_get_state(
        &self,
        seq: SeqId,
        layer: usize,
        state: usize,
        out: &mut TensorMut<'_>,
    ) -> Result<()> {
        let mut out = out.raw.dl();
        let (layer, state) = (crate::index(layer), crate::index(state));
        // SAFETY: shared; the output is exclusive.
        check(|error| unsafe {
            (loaded().debug_get_state)(self.as_ptr(), seq, layer, state, &mut out, null_mut(), error)
        })
    }

    /// Replaces the state of a sequence at its committed length.
    pub fn debug_set_state(
        &mut self,
        seq: SeqId,
        layer: usize,
        state: usize,
        value: &TensorRef<'_>,
    ) -> Result<()> {
        let value = value.raw.dl();
        let (layer, state) = (crate::index(layer), crate::index(state));
        // SAFETY: exclusive.
        check(|error| unsafe {
            (loaded().debug_set_state)(self.as_mut_ptr(), seq, layer, state, &value, null_mut(), error)
        })
    }
}
