//! A scenario's configuration, and what the checks need to know of each layer.

use crate::json::{Fields, Json};
use crate::tensor::{HostTensor, Type};
use crate::values::{value, Kind, Rope, Vector};
use kvcache::{
    Allocator, Config, CpuIsa, Layer, LayerKind, PoolLayout, RopeMode, RopeScaling, RopeSections, RopeStyle,
    StateSpec, Storage,
};
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

#[derive(Clone)]
pub struct StateView {
    pub shape: Vec<usize>,
    /// Id of the initial value; -1: zeros.
    pub init: i64,
}

#[derive(Clone)]
pub struct LayerView {
    pub kind: LayerKind,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub v_is_k: bool,
    pub source: Option<usize>,
    pub latent_rank: usize,
    pub rope: Rope,
    pub states: Vec<StateView>,
}

impl LayerView {
    pub fn keeps_tokens(&self) -> bool {
        matches!(self.kind, LayerKind::Attention | LayerKind::Mla)
    }
}

fn floats(json: &Json, key: &str) -> Vec<f32> {
    json.nums(key).into_iter().map(|x| x as f32).collect()
}

/// The rope of the call, and what the checks need.
pub fn read_rope(json: &Json, head_dim: usize, offset: usize) -> (kvcache::Rope, Rope) {
    let interleaved = json.text("style", "HALF") == "INTERLEAVED";
    let style = if interleaved { RopeStyle::Interleaved } else { RopeStyle::Half };
    let rope = kvcache::Rope {
        mode: match json.text("mode", "ON_APPEND") {
            "NONE" => RopeMode::None,
            "ON_APPEND" => RopeMode::OnAppend,
            "ON_READ" => RopeMode::OnRead,
            other => panic!("mode {other}"),
        },
        scaling: match json.text("scaling", "NONE") {
            "NONE" => RopeScaling::None,
            "LLAMA3" => RopeScaling::Llama3,
            "YARN" => RopeScaling::Yarn,
            "LONGROPE" => RopeScaling::LongRope,
            other => panic!("scaling {other}"),
        },
        rotary_dim: json.int("rotary_dim", 0) as i32,
        scale: json.num("scale", 0.0),
        freq_factors: floats(json, "freq_factors"),
        long_freq_factors: floats(json, "long_freq_factors"),
        sections: json.ints("sections").into_iter().map(|pairs| pairs as i32).collect(),
        section_layout: match json.text("section_layout", "CONTIGUOUS") {
            "CONTIGUOUS" => RopeSections::Contiguous,
            _ => RopeSections::Interleaved,
        },
        factor: json.num("factor", 0.0),
        low_freq_factor: json.num("low_freq_factor", 0.0),
        high_freq_factor: json.num("high_freq_factor", 0.0),
        beta_fast: json.num("beta_fast", 0.0),
        beta_slow: json.num("beta_slow", 0.0),
        attention_factor: json.num("attention_factor", 0.0),
        original_context: json.int("original_context", 0),
        ..kvcache::Rope::new(style, json.num("theta", 0.0))
    };
    let rotary_dim = if rope.rotary_dim == 0 { head_dim } else { rope.rotary_dim.max(0) as usize };
    let theta: f64 = if rope.theta == 0.0 { 10000.0 } else { rope.theta };
    let frequencies = |key: &str| -> Vector {
        let divisors = json.nums(key);
        let plain = |i: usize| theta.powf(-2.0 * i as f64 / rotary_dim as f64);
        // A plan with too few factors is to be refused.
        (0..rotary_dim / 2).map(|i| plain(i) / divisors.get(i).copied().unwrap_or(1.0)).collect()
    };
    let or_one = |x: f64| if x == 0.0 { 1.0 } else { x };
    let view = Rope {
        on: rope.mode != RopeMode::None,
        on_append: rope.mode == RopeMode::OnAppend,
        interleaved,
        offset,
        rotary_dim,
        scale: or_one(rope.scale),
        magnitude: json.num("magnitude", or_one(rope.attention_factor)),
        frequencies: if json.has("frequencies") {
            json.nums("frequencies")
        } else {
            frequencies("freq_factors")
        },
        long_frequencies: if json.has("long_freq_factors") {
            frequencies("long_freq_factors")
        } else {
            Vector::new()
        },
        sections: rope.sections.clone(),
        sections_interleaved: rope.section_layout == RopeSections::Interleaved,
    };
    (rope, view)
}

pub struct Model {
    pub config: Config,
    pub layers: Vec<LayerView>,
}

fn read_states(json: &Json, layer: i64) -> (Vec<StateSpec>, Vec<StateView>) {
    let state = |(number, state): (usize, &Json)| {
        let shape = state.ints("shape");
        let kind = Type::of(state.text("dtype", "f32"));
        let init = state.int("init", -1);
        let extents: Vec<usize> = shape.iter().map(|extent| (*extent).max(0) as usize).collect();
        let size: usize = extents.iter().product();
        let spec = if init < 0 {
            StateSpec::new(&shape, kind.dtype())
        } else {
            let values = (0..size).map(|i| value(Kind::State, layer, init, number, i));
            HostTensor::of(&extents, kind, values).state_spec()
        };
        (spec, StateView { shape: extents, init })
    };
    json.list("states").iter().enumerate().map(state).unzip()
}

impl Model {
    pub fn new(json: &Json, isa: CpuIsa) -> Self {
        let mut model = Model { config: Config::new(Vec::new()), layers: Vec::new() };
        for layer in json.list("layers") {
            model.read_layer(layer);
        }
        let budget = json.has("byte_budget");
        let storage = match json.text("storage", "OWNED") {
            "OWNED" => Storage::Owned,
            "NONE" => Storage::None,
            other => panic!("storage {other}"),
        };
        let page_first = json.text("pool_layout", "LAYER_FIRST") == "PAGE_FIRST";
        let config = std::mem::replace(&mut model.config, Config::new(Vec::new()));
        model.config = config
            .page_size(json.int("page_size", 4) as i32)
            .num_pages(json.int("num_pages", if budget { 0 } else { 64 }))
            .byte_budget(json.int("byte_budget", 0) as u64)
            .layer_range(json.int("layer_begin", 0) as i32, json.int("layer_end", 0) as i32)
            .max_seqs(json.int("max_seqs", 0) as i32)
            .max_tokens_per_forward(json.int("max_tokens_per_forward", 0))
            .max_seq_len(json.int("max_seq_len", 0))
            .storage(storage)
            .pool_layout(if page_first { PoolLayout::PageFirst } else { PoolLayout::LayerFirst })
            .max_cross_len(json.int("max_cross_len", 0))
            .state_stride(json.int("state_stride", 0))
            .num_state_slots(json.int("num_state_slots", 0))
            .pad_pages(json.flag("pad_pages", false))
            .num_threads(json.int("num_threads", 2) as i32)
            .event_capacity(json.int("event_capacity", 0))
            .cpu_isa(isa);
        if storage == Storage::Owned {
            model.config = model.config.allocator(&POISONED);
        }
        model
    }

    pub fn layer_begin(&self) -> usize {
        if self.config.layer_end == 0 {
            0
        } else {
            self.config.layer_begin as usize
        }
    }

    pub fn layer_end(&self) -> usize {
        if self.config.layer_end == 0 {
            self.layers.len()
        } else {
            self.config.layer_end as usize
        }
    }

    pub fn has_storage(&self) -> bool {
        self.config.storage != Storage::None
    }

    /// The layer whose keys `layer` reads.
    pub fn keys_of(&self, layer: usize) -> usize {
        self.layers[layer].source.unwrap_or(layer)
    }

    fn read_layer(&mut self, json: &Json) {
        let kind = match json.text("kind", "ATTENTION") {
            "ATTENTION" => LayerKind::Attention,
            "MLA" => LayerKind::Mla,
            "CROSS" => LayerKind::Cross,
            "STATE" => LayerKind::State,
            "SHARED" => LayerKind::Shared,
            "NONE" => LayerKind::None,
            other => panic!("kind {other}"),
        };
        let pages = matches!(kind, LayerKind::Attention | LayerKind::Cross);
        let mla = kind == LayerKind::Mla;
        let mut layer = Layer::none();
        layer.kind = kind;
        layer.num_kv_heads = json.int("heads", pages.into()) as i32;
        layer.num_q_heads = json.int("q_heads", mla.into()) as i32;
        layer.k_dim = json.int("k_dim", if pages { 4 } else { 0 }) as i32;
        layer.v_dim = json.int("v_dim", 0) as i32;
        layer.window = json.int("window", 0);
        layer.chunk = json.int("chunk", 0);
        layer.source_layer = json.int("source", 0) as i32;
        layer.latent_rank = json.int("latent_rank", 0) as i32;
        layer.latent_rope_dim = json.int("latent_rope_dim", 0) as i32;
        layer.v_is_k = json.flag("v_is_k", false);
        if pages || mla || json.has("dtype") {
            layer.k_dtype = Some(Type::of(json.text("dtype", "f32")).dtype());
        }
        layer.v_dtype = json.has("v_dtype").then(|| Type::of(json.text("v_dtype", "")).dtype());

        let size = |number: i32| number.max(0) as usize;
        let (rank, rope_dim) = (size(layer.latent_rank), size(layer.latent_rope_dim));
        let k_dim = size(layer.k_dim);
        let mut view = LayerView {
            kind,
            q_heads: size(if layer.num_q_heads == 0 { layer.num_kv_heads } else { layer.num_q_heads }),
            kv_heads: if mla { 1 } else { size(layer.num_kv_heads) },
            k_dim: if mla { rank + rope_dim } else { k_dim },
            v_dim: if mla {
                rank
            } else if layer.v_dim == 0 {
                k_dim
            } else {
                size(layer.v_dim)
            },
            v_is_k: layer.v_is_k,
            source: None,
            latent_rank: rank,
            rope: Rope::default(),
            states: Vec::new(),
        };
        if let Some(rope) = json.get("rope") {
            let (call, check) =
                read_rope(rope, if mla { rope_dim } else { k_dim }, if mla { rank } else { 0 });
            layer.rope = Some(call);
            view.rope = check;
        }
        if kind == LayerKind::Shared {
            view.source = Some(layer.source_layer as usize);
            if let Some(source) = self.layers.get(layer.source_layer as usize) {
                let q_heads = if layer.num_q_heads == 0 { source.kv_heads } else { size(layer.num_q_heads) };
                let (kind, own) = (view.kind, view.source);
                view = LayerView { kind, source: own, q_heads, states: Vec::new(), ..source.clone() };
            }
        }
        let (specs, states) = read_states(json, self.layers.len() as i64);
        layer.states = specs;
        view.states = states;
        self.config.layers.push(layer);
        self.layers.push(view);
    }
}
