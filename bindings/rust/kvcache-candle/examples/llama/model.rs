//! A Llama made of candle-nn's pieces, with random weights or those of a file. What knows of a cache is behind one trait.

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{ops, rotary_emb, Embedding, Linear, RmsNorm};

/// Appends a layer's new k and v and attends: q (B, Hq, L, D), k and v (B, Hkv, L, D) to (B, Hq, L, D).
pub trait Attend {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor>;
}

#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
    pub max_positions: usize,
    pub rope_theta: f32,
    pub norm_eps: f64,
    pub dtype: DType,
}

impl Config {
    pub fn tiny(dtype: DType) -> Self {
        Config {
            vocab: 199,
            hidden: 64,
            layers: 3,
            heads: 8,
            kv_heads: 2,
            head_dim: 16,
            intermediate: 160,
            max_positions: 512,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
            dtype,
        }
    }
}

/// Normal numbers, the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// splitmix64.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }

    /// The sum of uniform numbers, near enough to a normal one.
    pub fn tensor(&mut self, shape: &[usize], deviation: f32, dtype: DType) -> Result<Tensor> {
        let uniform = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        let mut normal = || (0..4).map(|_| uniform(self.next())).sum::<f32>() * 1.732 * deviation;
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| normal()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
    }
}

struct Layer {
    attention_norm: RmsNorm,
    qkv: [Linear; 3],
    output: Linear,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

pub struct Llama {
    pub config: Config,
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    cos: Tensor,
    sin: Tensor,
}

const EMBEDDING: &str = "model.embed_tokens.weight";

/// Tables of all positions, (positions, head_dim / 2).
fn rotary_tables(config: &Config) -> Result<(Tensor, Tensor)> {
    let half = config.head_dim / 2;
    let angle = |index: usize| {
        let (position, pair) = (index / half, index % half);
        position as f32 * config.rope_theta.powf(-((2 * pair) as f32) / config.head_dim as f32)
    };
    let angles: Vec<f32> = (0..config.max_positions * half).map(angle).collect();
    let angles = Tensor::from_vec(angles, (config.max_positions, half), &Device::Cpu)?;
    Ok((angles.cos()?.to_dtype(config.dtype)?, angles.sin()?.to_dtype(config.dtype)?))
}

impl Llama {
    /// Random weights, large enough that attention is far from uniform.
    pub fn new(config: Config, seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        Self::with_weights(config, |name, shape| match shape {
            [_] => Tensor::ones(shape, config.dtype, &Device::Cpu),
            [.., inner] => {
                let gain = if name == EMBEDDING { 1.0 } else { 1.6 / (*inner as f32).sqrt() };
                random.tensor(shape, gain, config.dtype)
            }
            [] => unreachable!("{name} has no shape"),
        })
    }

    /// The weights that `weight` has of a name, as transformers names it, and a shape.
    pub fn with_weights(
        config: Config,
        mut weight: impl FnMut(&str, &[usize]) -> Result<Tensor>,
    ) -> Result<Self> {
        let Config { vocab, hidden, heads, kv_heads, head_dim, intermediate, .. } = config;
        let norm = |name: &str, weight: &mut dyn FnMut(&str, &[usize]) -> Result<Tensor>| {
            Ok::<_, candle_core::Error>(RmsNorm::new(weight(name, &[hidden])?, config.norm_eps))
        };
        let mut layers = Vec::new();
        for index in 0..config.layers {
            let name = |part: &str| format!("model.layers.{index}.{part}.weight");
            let mut linear = |part: &str, out: usize, inner: usize| {
                Ok::<_, candle_core::Error>(Linear::new(weight(&name(part), &[out, inner])?, None))
            };
            let qkv = [
                linear("self_attn.q_proj", heads * head_dim, hidden)?,
                linear("self_attn.k_proj", kv_heads * head_dim, hidden)?,
                linear("self_attn.v_proj", kv_heads * head_dim, hidden)?,
            ];
            layers.push(Layer {
                qkv,
                output: linear("self_attn.o_proj", hidden, heads * head_dim)?,
                gate: linear("mlp.gate_proj", intermediate, hidden)?,
                up: linear("mlp.up_proj", intermediate, hidden)?,
                down: linear("mlp.down_proj", hidden, intermediate)?,
                attention_norm: norm(&name("input_layernorm"), &mut weight)?,
                mlp_norm: norm(&name("post_attention_layernorm"), &mut weight)?,
            });
        }
        let head = Linear::new(weight("lm_head.weight", &[vocab, hidden])?, None);
        let embedding = Embedding::new(weight(EMBEDDING, &[vocab, hidden])?, hidden);
        let norm = norm("model.norm.weight", &mut weight)?;
        let (cos, sin) = rotary_tables(&config)?;
        Ok(Llama { config, embedding, layers, norm, head, cos, sin })
    }

    /// The same weights in another type.
    #[allow(dead_code)]
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let linear = |linear: &Linear| {
            Ok::<_, candle_core::Error>(Linear::new(linear.weight().to_dtype(dtype)?, None))
        };
        let norm = |norm: &RmsNorm| {
            let weight = norm.clone().into_inner().weight().to_dtype(dtype)?;
            Ok::<_, candle_core::Error>(RmsNorm::new(weight, self.config.norm_eps))
        };
        let layer = |layer: &Layer| {
            let [q, k, v] = &layer.qkv;
            Ok(Layer {
                attention_norm: norm(&layer.attention_norm)?,
                qkv: [linear(q)?, linear(k)?, linear(v)?],
                output: linear(&layer.output)?,
                mlp_norm: norm(&layer.mlp_norm)?,
                gate: linear(&layer.gate)?,
                up: linear(&layer.up)?,
                down: linear(&layer.down)?,
            })
        };
        let config = Config { dtype, ..self.config };
        let (cos, sin) = rotary_tables(&config)?;
        Ok(Llama {
            config,
            embedding: Embedding::new(self.embedding.embeddings().to_dtype(dtype)?, config.hidden),
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            norm: norm(&self.norm)?,
            head: linear(&self.head)?,
            cos,
            sin,
        })
    }

    /// `tokens` (B, L), `positions` (L): those of every row. Returns logits (B, L, vocab).
    ///
    /// With packed sequences B is 1, and positions start again where a sequence does.
    pub fn forward(&self, tokens: &Tensor, positions: &Tensor, cache: &mut dyn Attend) -> Result<Tensor> {
        let (batch, len) = tokens.dims2()?;
        let cos = self.cos.index_select(positions, 0)?;
        let sin = self.sin.index_select(positions, 0)?;
        let mut x = self.embedding.forward(tokens)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = layer.attention_norm.forward(&x)?;
            let heads = |linear: &Linear| {
                linear.forward(&normed)?.reshape((batch, len, (), self.config.head_dim))?.transpose(1, 2)
            };
            let [q, k, v] = &layer.qkv;
            let q = rotary_emb::rope(&heads(q)?.contiguous()?, &cos, &sin)?;
            let k = rotary_emb::rope(&heads(k)?.contiguous()?, &cos, &sin)?;
            let context = cache.attend(index, &q, &k, &heads(v)?)?;
            x = (x + layer.output.forward(&context.transpose(1, 2)?.reshape((batch, len, ()))?)?)?;
            let normed = layer.mlp_norm.forward(&x)?;
            let gated = (ops::silu(&layer.gate.forward(&normed)?)? * layer.up.forward(&normed)?)?;
            x = (x + layer.down.forward(&gated)?)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}
