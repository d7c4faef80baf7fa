//! Attention inside a forward, recurrent state, and what debugging reads.

use crate::*;

/// Bits of kvc_attn_opt.flags.
pub const KVC_ATTN_DETERMINISTIC: u64 = 1;
pub const KVC_ATTN_BATCH_INVARIANT: u64 = 2;
pub const KVC_ATTN_NO_CASCADE: u64 = 4;

/// Options of one attention call
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_attn_opt {
    pub struct_size: usize,
    pub ext: *const kvc_ext,
    pub flags: u64,
    pub scale: f32,
    pub soft_cap: f32,
    pub window: i64,
    pub sink_logits: *const DLTensor,
    pub alibi_slopes: *const DLTensor,
    pub bias: *const DLTensor,
    pub spans: *const DLTensor,
}

kinds! {
    /// Decay of linear attention.
    kvc_decay: i32 {
        KVC_DECAY_NONE = 0,
        KVC_DECAY_HEAD = 1,
        KVC_DECAY_TOKEN = 2,
        KVC_DECAY_CHANNEL = 3,
    }
}

pub const KVC_LINEAR_DELTA: u64 = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_linear_opt {
    pub struct_size: usize,
    pub ext: *const kvc_ext,
    pub flags: u64,
    pub decay: kvc_decay,
    pub state: i32,
    pub scale: f32,
    pub reserved: i32,
    pub skip: *const DLTensor,
}

kinds! {
    /// What a convolution ends with.
    kvc_activation: i32 {
        KVC_ACTIVATION_NONE = 0,
        KVC_ACTIVATION_SILU = 1,
    }
}

extern "C" {
    /// Append k and v (when given), then attend: new token i of a sequence sees every token up to and
    /// including itself, tree nodes their ancestors, all within the windows of layer and sequence.
    pub fn kvc_attn(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_attn on one packed tensor qkv \[>= T, num_q_heads + 2*num_kv_heads, k_dim\]: q heads, then k
    /// heads, then v heads.
    pub fn kvc_attn_fused_qkv(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        qkv: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attention among the new tokens only: causal inside each sequence; nothing is appended and no page is
    /// read. k and v are rounded to the layer's storage type and rotated as an append would do, so that
    /// merging with kvc_attn_cached equals kvc_attn.
    pub fn kvc_attn_self(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The new queries over the tokens that were cached before this forward: all of them that the windows
    /// show.
    pub fn kvc_attn_cached(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Merge two partial attentions over disjoint keys, in place into (out, lse): weights exp(lse) (Dao et
    /// al., FlashDecoding). out, other_out \[>= T, H, D\], any activation types; lse, other_lse float32 \[>=
    /// T, H\].
    pub fn kvc_attn_merge(
        fwd: *mut kvc_forward,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        other_out: *const DLTensor,
        other_lse: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Write k \[>= T, num_kv_heads, k_dim\] and v \[>= T, num_kv_heads, v_dim\] into the slots of this
    /// forward: rotated when the layer's rope mode is ON_APPEND, rounded to nearest even to the storage
    /// types.
    pub fn kvc_kv_append(
        fwd: *mut kvc_forward,
        layer: i32,
        k: *const DLTensor,
        v: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Write latents \[>= T, latent_rank + latent_rope_dim\] (or \[>= T, 1, ...\]) into the slots of this
    /// forward of an MLA layer: the last latent_rope_dim elements rotated when the layer's rope mode is
    /// ON_APPEND.
    pub fn kvc_mla_append(
        fwd: *mut kvc_forward,
        layer: i32,
        latent: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Encoder-decoder attention: every new token sees all encoder tokens of its sequence. k \[>= C,
    /// num_kv_heads, k_dim\] and v \[>= C, num_kv_heads, v_dim\], C = sum of kvc_forward_desc.cross_lengths,
    /// packed in the order of the batch: given in the forward that announced them, NULL otherwise.
    pub fn kvc_attn_cross(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Attention that reads another layer's K and V, which that layer has appended in this forward: what
    /// kvc_attn does on a SHARED layer, for a layer that is not in the plan. q \[>= T, H, k_dim of the
    /// source\], H any multiple of the source's kv heads; rotated by the source's rope.
    pub fn kvc_attn_shared_kv(
        fwd: *mut kvc_forward,
        source_layer: i32,
        opt: *const kvc_attn_opt,
        q: *const DLTensor,
        out: *mut DLTensor,
        lse: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copy a sequence's K and V of one layer, as stored, into k_out \[>= n, num_kv_heads, k_dim\] and v_out
    /// \[>= n, num_kv_heads, v_dim\], n = its length including this forward's new tokens and its tree nodes,
    /// which come in the order of their slots.
    pub fn kvc_kv_gather(
        fwd: *mut kvc_forward,
        layer: i32,
        seq: kvc_seq,
        k_out: *mut DLTensor,
        v_out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// State `state` of every sequence of the batch: out \[>= B, shape...\], any activation type, compact
    /// inside a state.
    pub fn kvc_state_get(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The other way: value \[>= B, shape...\], rounded to the state's dtype.
    pub fn kvc_state_set(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        value: *const DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Keep the state of the sequence's present length until it is popped below it or removed: makes fork and
    /// pop to it possible later.
    pub fn kvc_state_checkpoint(cache: *mut kvc_cache, seq: kvc_seq, err: *mut kvc_error) -> kvc_status;
    /// Linear attention over the new tokens, step or chunked prefill: reads and sets the layer's state, whose
    /// shape is \[H, Dk, Dv\]. q, k \[>= T, Hk, Dk\], Hk divides H (head h reads q and k head h / (H / Hk));
    /// v, out \[>= T, H, Dv\]; decay: ln(decay) \<= 0, as opt.decay says, NULL for NONE; beta \[>= T, H\] or
    /// NULL (1).
    pub fn kvc_attn_linear(
        fwd: *mut kvc_forward,
        layer: i32,
        opt: *const kvc_linear_opt,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        decay: *const DLTensor,
        beta: *const DLTensor,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Causal depthwise convolution over the new tokens with its last inputs kept as state \[C, W-1\] (newest
    /// last), W = kernel width >= 2: out\[t, c\] = act(bias\[c\] + sum_j weight\[c, j\] x\[t - W + 1 + j,
    /// c\]). x, out \[>= T, C\]; weight float32 \[C, W\]; bias float32 \[C\] or NULL.
    pub fn kvc_state_conv(
        fwd: *mut kvc_forward,
        layer: i32,
        state: i32,
        x: *const DLTensor,
        weight: *const DLTensor,
        bias: *const DLTensor,
        activation: kvc_activation,
        out: *mut DLTensor,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Copy the committed tokens \[begin, end) of a sequence, all layers of the slice, K as stored (rotated
    /// when ON_APPEND); what belongs to layers that are not ATTENTION is left as it is: k \[layers, end -
    /// begin, num_kv_heads, k_dim\], v \[layers, end - begin, num_kv_heads, v_dim\], any activation type.
    pub fn kvc_debug_get_kv(
        cache: *const kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        k: *mut DLTensor,
        v: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The other way: overwrite the committed tokens \[begin, begin + n), n = dimension 1 of k and v, with
    /// values as they are to be stored (not rotated again).
    pub fn kvc_debug_set_kv(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        k: *const DLTensor,
        v: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_debug_get_kv for the MLA layers: latent \[layers, n, latent_rank + latent_rope_dim\].
    pub fn kvc_debug_get_mla(
        cache: *const kvc_cache,
        seq: kvc_seq,
        begin: i64,
        end: i64,
        latent: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_debug_set_kv for the MLA layers.
    pub fn kvc_debug_set_mla(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        begin: i64,
        latent: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_debug_get_kv for one layer of any kind that keeps pages: k \[n, num_kv_heads, k_dim\], v \[n,
    /// num_kv_heads, v_dim\]
    pub fn kvc_debug_get_layer(
        cache: *const kvc_cache,
        seq: kvc_seq,
        layer: i32,
        begin: i64,
        end: i64,
        k: *mut DLTensor,
        v: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// kvc_debug_set_kv for one layer.
    pub fn kvc_debug_set_layer(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        layer: i32,
        begin: i64,
        k: *const DLTensor,
        v: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// The state of a sequence at its committed length: out \[shape...\].
    pub fn kvc_debug_get_state(
        cache: *const kvc_cache,
        seq: kvc_seq,
        layer: i32,
        state: i32,
        out: *mut DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
    /// Replace the state of a sequence at its committed length; checkpoints and other sequences keep theirs.
    pub fn kvc_debug_set_state(
        cache: *mut kvc_cache,
        seq: kvc_seq,
        layer: i32,
        state: i32,
        value: *const DLTensor,
        stream: kvc_stream,
        err: *mut kvc_error,
    ) -> kvc_status;
}
