//! Layers of a model: what each keeps, and how it is rotated. The fields are those of the C structs; zero
//! means the default.

use crate::element::{DType, Element};
use crate::kinds::{LayerKind, Quant, RopeMode, RopeScaling, RopeSections, RopeStyle};
use crate::layout::{check_bounds, compact_len};
use crate::Result;
use kvcache_sys as sys;

/// Setters that take and return the struct, so that they chain.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}
pub(crate) use setters;

/// Rotary embedding of a layer; see `kvc_rope`. Wherever a layer has one, q and k are handed over unrotated.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Rope {
    pub mode: RopeMode,
    pub style: RopeStyle,
    pub scaling: RopeScaling,
    pub rotary_dim: i32,
    pub theta: f64,
    pub scale: f64,
    pub freq_factors: Vec<f32>,
    pub long_freq_factors: Vec<f32>,
    /// Pairs of each section; empty: one position per token.
    pub sections: Vec<i32>,
    pub section_layout: RopeSections,
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    pub attention_factor: f64,
    pub original_context: i64,
}

impl Rope {
    /// Rotation of `style` by `theta`, on append.
    pub fn new(style: RopeStyle, theta: f64) -> Self {
        Rope {
            mode: RopeMode::OnAppend,
            style,
            scaling: RopeScaling::None,
            rotary_dim: 0,
            theta,
            scale: 0.0,
            freq_factors: Vec::new(),
            long_freq_factors: Vec::new(),
            sections: Vec::new(),
            section_layout: RopeSections::Contiguous,
            factor: 0.0,
            low_freq_factor: 0.0,
            high_freq_factor: 0.0,
            beta_fast: 0.0,
            beta_slow: 0.0,
            attention_factor: 0.0,
            original_context: 0,
        }
    }

    /// Pairs (i, i + dim/2), as Llama has them.
    pub fn half(theta: f64) -> Self {
        Rope::new(RopeStyle::Half, theta)
    }

    /// Pairs (2i, 2i + 1), as GPT-J has them.
    pub fn interleaved(theta: f64) -> Self {
        Rope::new(RopeStyle::Interleaved, theta)
    }

    setters! {
        /// When K is rotated.
        mode: RopeMode,
        /// How frequencies change for long contexts.
        scaling: RopeScaling,
        /// Elements that turn; 0: all.
        rotary_dim: i32,
        /// Factor on the position; 0: 1.
        scale: f64,
        /// Divisors of the frequencies.
        freq_factors: Vec<f32>,
        /// LongRope: divisors beyond the original context.
        long_freq_factors: Vec<f32>,
        /// Pairs of each section (M-RoPE).
        sections: Vec<i32>,
        /// Order of the sections.
        section_layout: RopeSections,
        /// Llama3, Yarn, LongRope.
        factor: f64,
        /// Llama3.
        low_freq_factor: f64,
        /// Llama3.
        high_freq_factor: f64,
        /// Yarn.
        beta_fast: f64,
        /// Yarn.
        beta_slow: f64,
        /// Factor on the turned elements.
        attention_factor: f64,
        /// Context that the model was trained for.
        original_context: i64,
    }
}

/// Elements of an initial state, in memory that is aligned to any of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InitialState {
    pub(crate) shape: Vec<i64>,
    pub(crate) dtype: DType,
    pub(crate) words: Vec<u64>,
}

/// One recurrent state of a layer: a shape, a type, and what an empty sequence has.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    /// Extents, of one sequence.
    pub shape: Vec<i64>,
    /// float32, float16 or bfloat16.
    pub dtype: DType,
    pub(crate) init: Option<InitialState>,
}

impl StateSpec {
    /// A state that begins with zeros.
    pub fn new(shape: &[i64], dtype: DType) -> Self {
        StateSpec { shape: shape.to_vec(), dtype, init: None }
    }

    /// A state that begins with `values`, of the state's shape and type.
    pub fn with_init<T: Element>(shape: &[usize], values: &[T]) -> Result<Self> {
        let len = compact_len(shape)?;
        check_bounds(values.len(), len, shape)?;
        let bytes = len * size_of::<T>();
        let mut words = vec![0u64; bytes.div_ceil(8)];
        // SAFETY: `bytes` bytes of plain numbers into at least as many.
        unsafe {
            std::ptr::copy_nonoverlapping(
                values.as_ptr().cast::<u8>(),
                words.as_mut_ptr().cast::<u8>(),
                bytes,
            )
        };
        let shape: Vec<_> = shape.iter().map(|extent| *extent as i64).collect();
        let init = Some(InitialState { shape: shape.clone(), dtype: T::DTYPE, words });
        Ok(StateSpec { shape, dtype: T::DTYPE, init })
    }
}

/// One layer of a model; see `kvc_layer`.
///
/// ```
/// use kvcache::{DType, Layer, Rope};
/// let llama = Layer::attention(32, 8, 128).rope(Rope::half(500_000.0));
/// let windowed = Layer::attention(32, 8, 128).window(4096).dtype(DType::F16);
/// # let _ = (llama, windowed);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Layer {
    pub kind: LayerKind,
    pub num_q_heads: i32,
    pub num_kv_heads: i32,
    pub k_dim: i32,
    pub v_dim: i32,
    pub quant: Quant,
    /// Storage type; `None`: bfloat16.
    pub k_dtype: Option<DType>,
    /// `None`: that of K; bfloat16 where `v_quant` says that V is not quantised.
    pub v_dtype: Option<DType>,
    pub rope: Option<Rope>,
    pub window: i64,
    pub chunk: i64,
    pub source_layer: i32,
    pub latent_rank: i32,
    pub latent_rope_dim: i32,
    pub v_is_k: bool,
    pub states: Vec<StateSpec>,
    /// [`Quant::PerTensor`]: value of K = stored element * scale; 0: 1. Other layers: 0.
    pub k_scale: f32,
    /// The same of V.
    pub v_scale: f32,
    /// Quantised storage of V apart from K; `None`: that of K. `Some(Quant::None)`: V is not quantised.
    pub v_quant: Option<Quant>,
    /// Quantised attention and MLA layers: so many leading tokens of a sequence, the attention sinks, are kept in
    /// bfloat16.
    pub keep_tokens: i32,
}

impl Layer {
    fn of_kind(kind: LayerKind) -> Self {
        Layer {
            kind,
            num_q_heads: 0,
            num_kv_heads: 0,
            k_dim: 0,
            v_dim: 0,
            quant: Quant::None,
            k_dtype: None,
            v_dtype: None,
            rope: None,
            window: 0,
            chunk: 0,
            source_layer: 0,
            latent_rank: 0,
            latent_rope_dim: 0,
            v_is_k: false,
            states: Vec::new(),
            k_scale: 0.0,
            v_scale: 0.0,
            v_quant: None,
            keep_tokens: 0,
        }
    }

    /// K and V per token: `num_q_heads` query heads read `num_kv_heads` key heads of `dim` elements.
    pub fn attention(num_q_heads: i32, num_kv_heads: i32, dim: i32) -> Self {
        Layer { num_q_heads, num_kv_heads, k_dim: dim, ..Layer::of_kind(LayerKind::Attention) }
    }

    /// A latent of `rank` + `rope_dim` elements per token for all heads (DeepSeek-V2).
    pub fn mla(num_q_heads: i32, rank: i32, rope_dim: i32) -> Self {
        Layer { num_q_heads, latent_rank: rank, latent_rope_dim: rope_dim, ..Layer::of_kind(LayerKind::Mla) }
    }

    /// K and V of encoder tokens.
    pub fn cross(num_q_heads: i32, num_kv_heads: i32, dim: i32) -> Self {
        Layer { kind: LayerKind::Cross, ..Layer::attention(num_q_heads, num_kv_heads, dim) }
    }

    /// Recurrent states.
    pub fn state(states: Vec<StateSpec>) -> Self {
        Layer { states, ..Layer::of_kind(LayerKind::State) }
    }

    /// Reads the K and V of `source_layer`.
    pub fn shared(source_layer: i32) -> Self {
        Layer { source_layer, ..Layer::of_kind(LayerKind::Shared) }
    }

    /// Keeps nothing: a place holder for its id.
    pub fn none() -> Self {
        Layer::of_kind(LayerKind::None)
    }

    /// Storage type of K and V.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.k_dtype = Some(dtype);
        self.v_dtype = Some(dtype);
        self
    }

    /// How q and k are rotated.
    #[must_use]
    pub fn rope(mut self, rope: Rope) -> Self {
        self.rope = Some(rope);
        self
    }

    setters! {
        /// Query heads.
        num_q_heads: i32,
        /// Elements of a key head; MLA: of q and k in [`attn_self`](crate::Forward::attn_self).
        k_dim: i32,
        /// Elements of a value head; 0: as of K.
        v_dim: i32,
        /// Quantised storage.
        quant: Quant,
        /// Storage type of K.
        k_dtype: Option<DType>,
        /// Storage type of V.
        v_dtype: Option<DType>,
        /// A query at position p sees keys p-W+1..p; 0: all.
        window: i64,
        /// A query at position p sees keys from p/C*C on; 0: all.
        chunk: i64,
        /// The K row is the V row too.
        v_is_k: bool,
        /// [`Quant::PerTensor`]: value of K = stored element * scale, finite and above 0; 0: 1.
        k_scale: f32,
        /// The same of V.
        v_scale: f32,
        /// Quantised storage of V apart from K; `None`: that of K. `Some(Quant::None)`: V is not quantised.
        v_quant: Option<Quant>,
        /// Quantised attention and MLA layers: so many leading tokens of a sequence, the attention sinks, are kept in
        /// bfloat16.
        keep_tokens: i32,
    }
}

/// A dtype that may be left out.
pub(crate) fn raw_dtype(dtype: Option<DType>) -> sys::DLDataType {
    dtype.map_or(sys::DLDataType { code: 0, bits: 0, lanes: 0 }, DType::raw)
}
