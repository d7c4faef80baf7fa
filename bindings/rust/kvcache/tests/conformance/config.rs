//! A configuration of a case as the crate takes it.

use crate::case::{dtype_of, Fields, HostTensor};
use kvcache::{
    Allocator, Config, CpuIsa, Layer, LayerKind, PoolLayout, Quant, Rope, RopeMode, RopeScaling,
    RopeSections, RopeStyle, StateSpec, Storage,
};
use kvcache_sys as sys;
use std::alloc::{alloc, dealloc, Layout};
use std::ffi::c_void;

/// Pool memory starts as NaN, so that a slot that nobody wrote spoils every result it enters.
struct Poisoned;

const ALIGNMENT: usize = 4096;

// SAFETY: blocks of the global allocator, of the size and alignment that were asked for.
unsafe impl Allocator for Poisoned {
    fn alloc(&self, bytes: u64, alignment: u64) -> *mut c_void {
        assert!(alignment <= ALIGNMENT as u64, "alignment {alignment}");
        let layout = Layout::from_size_align(bytes as usize, ALIGNMENT).unwrap();
        // SAFETY: the library asks for more than nothing; the block is ours to fill.
        unsafe {
            let block = alloc(layout);
            if !block.is_null() {
                block.write_bytes(0xFF, bytes as usize);
            }
            block.cast()
        }
    }

    unsafe fn free(&self, block: *mut c_void, bytes: u64) {
        // SAFETY: from alloc, with this layout.
        unsafe { dealloc(block.cast(), Layout::from_size_align(bytes as usize, ALIGNMENT).unwrap()) }
    }
}

static POISONED: Poisoned = Poisoned;

/// The value of an enum whose number a case gives; 0 where it gives none.
macro_rules! kind {
    ($json:expr, $key:literal, $type:ident, $raw:ident) => {{
        let number = $json.int_or($key, 0);
        $type::from_raw(sys::$raw(number as _)).unwrap_or_else(|| panic!("{} {number}", $key))
    }};
}
pub(crate) use kind;

pub fn rope_of(json: Fields<'_>) -> Option<Rope> {
    let rope = json.object("rope");
    let floats = |key: &str| rope.nums(key).into_iter().map(|x| x as f32).collect();
    json.has("rope").then(|| Rope {
        mode: kind!(rope, "mode", RopeMode, kvc_rope_mode),
        scaling: kind!(rope, "scaling", RopeScaling, kvc_rope_scaling),
        section_layout: kind!(rope, "section_layout", RopeSections, kvc_rope_section_layout),
        rotary_dim: rope.int_or("rotary_dim", 0) as i32,
        scale: rope.num("scale"),
        freq_factors: floats("freq_factors"),
        long_freq_factors: floats("long_freq_factors"),
        sections: rope.ints32("sections"),
        factor: rope.num("factor"),
        low_freq_factor: rope.num("low_freq_factor"),
        high_freq_factor: rope.num("high_freq_factor"),
        beta_fast: rope.num("beta_fast"),
        beta_slow: rope.num("beta_slow"),
        attention_factor: rope.num("attention_factor"),
        original_context: rope.int_or("original_context", 0),
        ..Rope::new(kind!(rope, "style", RopeStyle, kvc_rope_style), rope.num("theta"))
    })
}

fn layer_of(json: Fields<'_>) -> Layer {
    let int = |key: &str| json.int_or(key, 0) as i32;
    let dtype = |key: &str| json.has(key).then(|| dtype_of(json.text(key)));
    let mut layer = Layer::none();
    layer.kind = kind!(json, "kind", LayerKind, kvc_layer_kind);
    layer.num_q_heads = int("num_q_heads");
    layer.num_kv_heads = int("num_kv_heads");
    layer.k_dim = int("k_dim");
    layer.v_dim = int("v_dim");
    layer.window = json.int_or("window", 0);
    layer.chunk = json.int_or("chunk", 0);
    layer.source_layer = int("source_layer");
    layer.latent_rank = int("latent_rank");
    layer.latent_rope_dim = int("latent_rope_dim");
    layer.v_is_k = json.flag("v_is_k");
    layer.quant = kind!(json, "quant", Quant, kvc_quant);
    let is_off = json.int_or("v_quant", 0) == i64::from(sys::KVC_QUANT_OFF.0);
    layer.v_quant = json.has("v_quant").then(|| match is_off {
        true => Quant::None,
        false => kind!(json, "v_quant", Quant, kvc_quant),
    });
    layer.keep_tokens = json.int_or("keep_tokens", 0) as i32;
    layer.k_scale = json.num("k_scale") as f32;
    layer.v_scale = json.num("v_scale") as f32;
    layer.k_dtype = dtype("k_dtype");
    layer.v_dtype = dtype("v_dtype");
    layer.rope = rope_of(json);
    let states = json.list("states").iter().map(Fields);
    layer.states = states
        .map(|state| {
            let (shape, dtype) = (state.ints("shape"), dtype_of(state.text("dtype")));
            let init = state.find("init").map(|init| HostTensor::of(Fields(init)));
            init.map_or_else(|| StateSpec::new(&shape, dtype), |init| init.state_spec())
        })
        .collect();
    layer
}

pub fn config_of(json: Fields<'_>, isa: CpuIsa) -> Config {
    let int = |key: &str| json.int_or(key, 0);
    let storage = kind!(json, "storage", Storage, kvc_storage);
    let config = Config::new(json.list("layers").iter().map(|layer| layer_of(Fields(layer))).collect())
        .page_size(int("page_size") as i32)
        .num_pages(int("num_pages"))
        .byte_budget(int("byte_budget") as u64)
        .layer_range(int("layer_begin") as i32, int("layer_end") as i32)
        .max_seqs(int("max_seqs") as i32)
        .max_tokens_per_forward(int("max_tokens_per_forward"))
        .max_seq_len(int("max_seq_len"))
        .storage(storage)
        .pool_layout(kind!(json, "pool_layout", PoolLayout, kvc_pool_layout))
        .max_cross_len(int("max_cross_len"))
        .state_stride(int("state_stride"))
        .num_state_slots(int("num_state_slots"))
        .pad_pages(json.flag("pad_pages"))
        .num_threads(int("num_threads") as i32)
        .event_capacity(int("event_capacity"))
        .cpu_isa(isa);
    if storage == Storage::Owned {
        config.allocator(&POISONED)
    } else {
        config
    }
}
