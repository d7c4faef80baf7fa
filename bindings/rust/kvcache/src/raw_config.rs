//! A configuration as the C structs, and everything they point at.

use crate::element::Device;
use crate::error::{Error, Result, Status};
use crate::kinds::{Quant, RopeScaling};
use crate::layer::{raw_dtype, Layer, Rope, StateSpec};
use crate::Config;
use kvcache_sys as sys;
use std::ptr::{from_ref, null};

/// Valid as long as the configuration that it was made of. Vectors are boxes here: what C points at must not
/// move.
pub(crate) struct RawConfig {
    pub(crate) config: sys::kvc_config,
    _layers: Box<[sys::kvc_layer]>,
    _parts: Vec<LayerParts>,
    _pool: Box<[sys::DLTensor]>,
    _pool_pointers: Box<[*const sys::DLTensor]>,
    _allocator: Option<Box<sys::kvc_allocator>>,
    _executor: Option<Box<sys::kvc_executor>>,
}

/// What one layer points at.
struct LayerParts {
    rope: Option<Box<sys::kvc_rope>>,
    states: Box<[sys::kvc_state_spec]>,
    _inits: Box<[Option<sys::DLTensor>]>,
}

/// Numbers of an array, or NULL for none.
fn pointer<T>(values: &[T]) -> *const T {
    if values.is_empty() {
        null()
    } else {
        values.as_ptr()
    }
}

pub(crate) fn raw_rope(rope: &Rope) -> Result<sys::kvc_rope> {
    let (short, long) = (rope.freq_factors.len(), rope.long_freq_factors.len());
    if long != short && (long != 0 || rope.scaling == RopeScaling::LongRope) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("rope.long_freq_factors has {long} elements, rope.freq_factors {short}: equal numbers"),
        ));
    }
    if rope.sections.len() > 4 {
        return Err(Error::new(
            Status::OutOfRange,
            format!("rope.sections has {} elements: at most 4", rope.sections.len()),
        ));
    }
    let mut sections = [0; 4];
    sections[..rope.sections.len()].copy_from_slice(&rope.sections);
    Ok(sys::kvc_rope {
        mode: rope.mode.to_raw(),
        style: rope.style.to_raw(),
        rotary_dim: rope.rotary_dim,
        num_freq_factors: short as i32,
        theta: rope.theta,
        scale: rope.scale,
        freq_factors: pointer(&rope.freq_factors),
        scaling: rope.scaling.to_raw(),
        num_sections: rope.sections.len() as i32,
        sections,
        section_layout: rope.section_layout.to_raw(),
        factor: rope.factor,
        low_freq_factor: rope.low_freq_factor,
        high_freq_factor: rope.high_freq_factor,
        beta_fast: rope.beta_fast,
        beta_slow: rope.beta_slow,
        attention_factor: rope.attention_factor,
        original_context: rope.original_context,
        long_freq_factors: pointer(&rope.long_freq_factors),
        ..Default::default()
    })
}

impl LayerParts {
    fn new(layer: &Layer) -> Result<Self> {
        let inits: Box<[_]> = layer.states.iter().map(initial_tensor).collect();
        let states = layer.states.iter().zip(&inits).map(|(state, init)| sys::kvc_state_spec {
            ndim: state.shape.len() as i32,
            dtype: state.dtype.raw(),
            shape: pointer(&state.shape),
            init: crate::tensor::pointer(init),
            ..Default::default()
        });
        Ok(LayerParts {
            rope: layer.rope.as_ref().map(raw_rope).transpose()?.map(Box::new),
            states: states.collect(),
            _inits: inits,
        })
    }
}

fn initial_tensor(state: &StateSpec) -> Option<sys::DLTensor> {
    state.init.as_ref().map(|init| sys::DLTensor {
        data: init.words.as_ptr().cast_mut().cast(),
        device: Device::CPU.raw(),
        ndim: init.shape.len() as i32,
        dtype: init.dtype.raw(),
        shape: init.shape.as_ptr().cast_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    })
}

fn raw_layer(layer: &Layer, parts: &LayerParts) -> sys::kvc_layer {
    sys::kvc_layer {
        kind: layer.kind.to_raw(),
        num_q_heads: layer.num_q_heads,
        num_kv_heads: layer.num_kv_heads,
        k_dim: layer.k_dim,
        v_dim: layer.v_dim,
        quant: layer.quant.to_raw(),
        k_dtype: raw_dtype(layer.k_dtype),
        v_dtype: raw_dtype(layer.v_dtype),
        rope: parts.rope.as_deref().map_or(null(), from_ref),
        window: layer.window,
        chunk: layer.chunk,
        source_layer: layer.source_layer,
        latent_rank: layer.latent_rank,
        latent_rope_dim: layer.latent_rope_dim,
        flags: if layer.v_is_k { sys::KVC_LAYER_V_IS_K } else { 0 },
        states: pointer(&parts.states),
        num_states: parts.states.len() as i32,
        k_scale: layer.k_scale,
        v_scale: layer.v_scale,
        keep_tokens: layer.keep_tokens,
        v_quant: match layer.v_quant {
            None => sys::KVC_QUANT_NONE,
            Some(Quant::None) => sys::KVC_QUANT_OFF,
            Some(quant) => quant.to_raw(),
        },
        ..Default::default()
    }
}

impl RawConfig {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let parts = config.layers.iter().map(LayerParts::new).collect::<Result<Vec<_>>>()?;
        let layers: Box<[_]> =
            config.layers.iter().zip(&parts).map(|(layer, parts)| raw_layer(layer, parts)).collect();
        let pool: Box<[_]> = config.pool.iter().map(|tensor| tensor.0.dl()).collect();
        let pool_pointers: Box<[_]> = pool.iter().map(from_ref).collect();
        let allocator = config.allocator.map(|allocator| Box::new(allocator.0));
        let executor = config.executor.as_ref().map(|executor| Box::new(executor.raw));
        let raw = sys::kvc_config {
            flags: if config.pad_pages { sys::KVC_CONFIG_PAD_PAGES } else { 0 }
                | if config.clear_pages { sys::KVC_CONFIG_CLEAR_PAGES } else { 0 }
                | if config.no_huge_pages { sys::KVC_CONFIG_NO_HUGE_PAGES } else { 0 },
            device: config.device.raw(),
            page_size: config.page_size,
            num_layers: layers.len() as i32,
            layers: pointer(&layers),
            layer_begin: config.layer_begin,
            layer_end: config.layer_end,
            max_seqs: config.max_seqs,
            forwards_in_flight: config.forwards_in_flight,
            max_tokens_per_forward: config.max_tokens_per_forward,
            max_seq_len: config.max_seq_len,
            num_pages: config.num_pages,
            byte_budget: config.byte_budget,
            host_byte_budget: config.host_byte_budget,
            storage: config.storage.to_raw(),
            pool_layout: config.pool_layout.to_raw(),
            pool_tensors: pointer(&pool_pointers),
            num_pool_tensors: pool.len() as i32,
            num_threads: config.num_threads,
            cpu_isa: config.cpu_isa.to_raw(),
            allocator: allocator.as_deref().map_or(null(), from_ref),
            executor: executor.as_deref().map_or(null(), from_ref),
            max_cross_len: config.max_cross_len,
            state_stride: config.state_stride,
            num_state_slots: config.num_state_slots,
            event_capacity: config.event_capacity,
            cp_size: config.cp_size,
            ..Default::default()
        };
        Ok(RawConfig {
            config: raw,
            _layers: layers,
            _parts: parts,
            _pool: pool,
            _pool_pointers: pool_pointers,
            _allocator: allocator,
            _executor: executor,
        })
    }
}
