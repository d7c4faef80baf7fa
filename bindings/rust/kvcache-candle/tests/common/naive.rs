//! Attention as sums in double.

#![allow(dead_code)]

use candle_core::{DType, Device, Result, Tensor};
use kvcache_candle::Attention;

/// Normal numbers, the same in every run: the sum of uniform ones by splitmix64.
pub fn normal(shape: &[usize], dtype: DType, seed: u64) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(0x1234_5678_9abc_def1);
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 1.7).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// What attention can be asked for; zero and empty: not.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub scale: f64,
    pub soft_cap: f64,
    pub window: usize,
    pub sinks: Vec<f32>,
    pub slopes: Vec<f32>,
}

impl Options {
    pub fn new(attention: &Attention) -> Result<Self> {
        let vector = |tensor: &Option<Tensor>| tensor.as_ref().map_or(Ok(Vec::new()), Tensor::to_vec1::<f32>);
        Ok(Options {
            scale: f64::from(attention.scale),
            soft_cap: f64::from(attention.soft_cap),
            window: attention.window as usize,
            sinks: vector(&attention.sink_logits)?,
            slopes: vector(&attention.alibi_slopes)?,
        })
    }
}

/// A tensor's values in double, and its extents.
pub struct Values {
    data: Vec<f64>,
    dims: [usize; 4],
}

impl Values {
    pub fn new(tensor: &Tensor) -> Result<Self> {
        let (a, b, c, d) = tensor.dims4()?;
        let data = tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        Ok(Values { data, dims: [a, b, c, d] })
    }

    pub fn row(&self, batch: usize, head: usize, token: usize) -> &[f64] {
        let [_, heads, len, dim] = self.dims;
        &self.data[((batch * heads + head) * len + token) * dim..][..dim]
    }
}

/// Causal attention of the newest L tokens, q (B, Hq, L, D), over S, k and v (B, Hkv, S, D); float32 (B, Hq, L, Dv).
pub fn naive(q: &Tensor, k: &Tensor, v: &Tensor, options: &Options) -> Result<Tensor> {
    let (batch, heads, len, dim) = q.dims4()?;
    let (_, kv_heads, total, v_dim) = v.dims4()?;
    let (q, k, v) = (Values::new(q)?, Values::new(k)?, Values::new(v)?);
    let scale = if options.scale == 0.0 { 1.0 / (dim as f64).sqrt() } else { options.scale };
    let mut out = Vec::with_capacity(batch * heads * len * v_dim);
    for (b, h, row) in (0..batch * heads * len).map(|i| (i / (heads * len), i / len % heads, i % len)) {
        let (kv_head, last) = (h / (heads / kv_heads), total - len + row);
        let first = if options.window == 0 { 0 } else { (last + 1).saturating_sub(options.window) };
        let score = |key: usize| {
            let dot: f64 = q.row(b, h, row).iter().zip(k.row(b, kv_head, key)).map(|(q, k)| q * k).sum();
            let scaled = dot * scale;
            let cap = options.soft_cap;
            let capped = if cap == 0.0 { scaled } else { cap * (scaled / cap).tanh() };
            capped - options.slopes.get(h).map_or(0.0, |slope| f64::from(*slope) * (last - key) as f64)
        };
        let weights: Vec<f64> = (first..=last).map(|key| score(key).exp()).collect();
        let sink = options.sinks.get(h).map_or(0.0, |sink| f64::from(*sink).exp());
        let sum = weights.iter().sum::<f64>() + sink;
        for d in 0..v_dim {
            let weighted =
                weights.iter().enumerate().map(|(i, weight)| weight * v.row(b, kv_head, first + i)[d]);
            out.push((weighted.sum::<f64>() / sum) as f32);
        }
    }
    Tensor::from_vec(out, (batch, heads, len, v_dim), &Device::Cpu)
}

/// Largest difference is within a tolerance.
pub fn assert_close(ours: &Tensor, expected: &Tensor, tolerance: f32) -> Result<()> {
    if ours.dims() != expected.dims() {
        candle_core::bail!("shape {:?}, expected {:?}", ours.dims(), expected.dims());
    }
    let float = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    for (index, (ours, expected)) in float(ours)?.into_iter().zip(float(expected)?).enumerate() {
        // A NaN is close to nothing but a NaN.
        if (ours - expected).abs() > tolerance || ours.is_nan() != expected.is_nan() {
            candle_core::bail!("element {index}: {ours}, expected {expected} within {tolerance}");
        }
    }
    Ok(())
}
