//! The layers of a Hugging Face `config.json`.

use crate::element::DType;
use crate::error::{check, Error, Result, Status};
use crate::kinds::{LayerKind, Quant, RopeMode, RopeScaling, RopeSections, RopeStyle};
use crate::library::api;
use crate::{Config, Layer, Rope, StateSpec};
use kvcache_sys as sys;
use std::ffi::CString;
use std::ptr::{null, null_mut};

fn newer() -> Error {
    Error::new(Status::Version, "config.json: the library knows kinds of layers that this crate does not")
}

fn dtype(raw: sys::DLDataType) -> Option<DType> {
    (raw.bits != 0).then(|| DType::from_raw(raw))
}

/// # Safety
/// `count` elements from `first` on, or none.
unsafe fn list<T: Copy>(first: *const T, count: usize) -> Vec<T> {
    if first.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, count) }.to_vec()
}

/// # Safety
/// A rope of the library with its arrays.
unsafe fn rope(raw: &sys::kvc_rope) -> Option<Rope> {
    let factors = raw.num_freq_factors.max(0) as usize;
    Some(Rope {
        mode: RopeMode::from_raw(raw.mode)?,
        style: RopeStyle::from_raw(raw.style)?,
        scaling: RopeScaling::from_raw(raw.scaling)?,
        rotary_dim: raw.rotary_dim,
        theta: raw.theta,
        scale: raw.scale,
        // SAFETY: arrays of num_freq_factors elements.
        freq_factors: unsafe { list(raw.freq_factors, factors) },
        // SAFETY: as above.
        long_freq_factors: unsafe { list(raw.long_freq_factors, factors) },
        sections: raw.sections[..raw.num_sections.clamp(0, 4) as usize].to_vec(),
        section_layout: RopeSections::from_raw(raw.section_layout)?,
        factor: raw.factor,
        low_freq_factor: raw.low_freq_factor,
        high_freq_factor: raw.high_freq_factor,
        beta_fast: raw.beta_fast,
        beta_slow: raw.beta_slow,
        attention_factor: raw.attention_factor,
        original_context: raw.original_context,
    })
}

/// # Safety
/// A layer of the library with all it points at.
unsafe fn layer(raw: &sys::kvc_layer) -> Option<Layer> {
    let states = (0..raw.num_states.max(0) as usize).map(|index| {
        // SAFETY: num_states elements, whose distance the first one states; each with its shape.
        unsafe {
            let stride = (*raw.states).struct_size;
            let state = raw.states.byte_add(index * stride);
            let shape = list((*state).shape, (*state).ndim.max(0) as usize);
            StateSpec::new(&shape, dtype((*state).dtype).unwrap_or(DType::F32))
        }
    });
    // SAFETY: NULL, or a rope.
    let rope = match unsafe { raw.rope.as_ref() } {
        // SAFETY: with its arrays.
        Some(raw) => Some(unsafe { rope(raw) }?),
        None => None,
    };
    Some(Layer {
        kind: LayerKind::from_raw(raw.kind)?,
        num_q_heads: raw.num_q_heads,
        num_kv_heads: raw.num_kv_heads,
        k_dim: raw.k_dim,
        v_dim: raw.v_dim,
        quant: Quant::from_raw(raw.quant)?,
        k_dtype: dtype(raw.k_dtype),
        v_dtype: dtype(raw.v_dtype),
        rope,
        window: raw.window,
        chunk: raw.chunk,
        source_layer: raw.source_layer,
        latent_rank: raw.latent_rank,
        latent_rope_dim: raw.latent_rope_dim,
        v_is_k: raw.flags & sys::KVC_LAYER_V_IS_K != 0,
        states: states.collect(),
        k_scale: raw.k_scale,
        v_scale: raw.v_scale,
        keep_tokens: raw.keep_tokens,
        v_quant: match raw.v_quant {
            sys::KVC_QUANT_NONE => None,
            sys::KVC_QUANT_OFF => Some(Quant::None),
            quant => Some(Quant::from_raw(quant)?),
        },
    })
}

fn text(name: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| {
        Error::new(Status::InvalidArgument, format!("{name}: byte {} is zero", error.nul_position()))
    })
}

/// How [`Config::from_hf`] reads a file.
#[derive(Clone, Debug, Default)]
pub struct HfOptions<'a> {
    /// The family whose rules read a `model_type` that is not known: "llama" for a plain decoder.
    pub assume: Option<&'a str>,
    /// Layers of multi-token prediction that are appended, at most those of the model.
    pub mtp_layers: i32,
}

impl Config {
    /// Reads the text of a Hugging Face `config.json`: layers, `max_seq_len`, and `max_cross_len` where the
    /// encoder is fixed. Add pages or a budget. Rotations are read, with [`RopeMode::OnAppend`].
    ///
    /// ```
    /// let config = kvcache::Config::from_hf_json(r#"{
    ///     "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    ///     "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0
    /// }"#)?;
    /// assert_eq!(config.layers.len(), 32);
    /// assert_eq!(config.layers[0].k_dim, 128);
    /// # Ok::<(), kvcache::Error>(())
    /// ```
    pub fn from_hf_json(json: &str) -> Result<Self> {
        Self::from_hf(json, &HfOptions::default())
    }

    /// As [`Config::from_hf_json`], read as `options` say.
    ///
    /// ```
    /// use kvcache::{Config, HfOptions};
    /// let strange = r#"{"model_type": "novel", "num_hidden_layers": 32, "hidden_size": 4096,
    ///     "num_attention_heads": 32, "kv_groups_map": 3}"#;
    /// assert!(Config::from_hf_json(strange).unwrap_err().is_unsupported());
    /// let config = Config::from_hf(strange, &HfOptions { assume: Some("llama"), ..Default::default() })?;
    /// assert_eq!(config.layers.len(), 32);
    /// # Ok::<(), kvcache::Error>(())
    /// ```
    pub fn from_hf(json: &str, options: &HfOptions<'_>) -> Result<Self> {
        let api = api()?;
        let json = text("config.json", json)?;
        let assume = options.assume.map(|family| text("assume", family)).transpose()?;
        let options = sys::kvc_hf_options {
            assume: assume.as_ref().map_or(null(), |family| family.as_ptr()),
            mtp_layers: options.mtp_layers,
            ..Default::default()
        };
        let mut config = sys::kvc_config::default();
        let mut count = 0;
        // SAFETY: terminated strings; NULL asks for the count.
        check(|error| unsafe {
            (api.config_from_hf)(json.as_ptr(), &options, &mut config, null_mut(), &mut count, error)
        })?;
        let mut layers = vec![sys::kvc_layer::default(); count];
        // SAFETY: an array with its capacity, which also holds what the layers point at.
        check(|error| unsafe {
            (api.config_from_hf)(json.as_ptr(), &options, &mut config, layers.as_mut_ptr(), &mut count, error)
        })?;
        let num_layers = config.num_layers.max(0) as usize;
        // SAFETY: filled by the library; the array is still there.
        let read = layers[..num_layers].iter().map(|raw| unsafe { layer(raw) }.ok_or_else(newer));
        let mut result = Config::new(read.collect::<Result<_>>()?);
        result.max_seq_len = config.max_seq_len;
        result.max_cross_len = config.max_cross_len;
        Ok(result)
    }
}
