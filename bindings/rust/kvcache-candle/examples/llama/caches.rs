//! The three ways to keep K and V: candle's own cache, pages with attention over them, pages behind candle's append.

use crate::model::{Attend, Config};
use candle_core::{Device, Result, Tensor, D};
use candle_nn::kv_cache::KvCache;
use kvcache_candle::{kvcache, PagedCache, PagedKvCache, Step};

/// candle's way: all keys and values of a rectangle, repeated for each query head, a mask, a softmax.
pub fn eager(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (batch, heads, len, dim) = q.dims4()?;
    let (_, kv_heads, total, _) = k.dims4()?;
    let repeat = |x: &Tensor| {
        x.unsqueeze(2)?
            .expand((batch, kv_heads, heads / kv_heads, total, dim))?
            .reshape((batch, heads, total, dim))
    };
    let scores = (q.matmul(&repeat(k)?.t()?)? * (1.0 / (dim as f64).sqrt()))?;
    let hidden = |row: usize, key: usize| if key > total - len + row { f32::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f32> = (0..len * total).map(|index| hidden(index / total, index % total)).collect();
    let mask = Tensor::from_vec(mask, (len, total), &Device::Cpu)?.to_dtype(q.dtype())?;
    let scores = scores.broadcast_add(&mask)?;
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&repeat(v)?)
}

/// candle's own cache.
pub struct Contiguous(Vec<KvCache>);

impl Contiguous {
    pub fn new(config: &Config) -> Self {
        Contiguous(vec![KvCache::new(2, config.max_positions); config.layers])
    }
}

impl Attend for Contiguous {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (k, v) = self.0[layer].append(&k.contiguous()?, &v.contiguous()?)?;
        eager(q, &k, &v)
    }
}

/// Pages behind candle's append: the line above, unchanged.
pub struct Appended(pub Vec<PagedKvCache>);

impl Attend for Appended {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (k, v) = self.0[layer].append(k, v)?;
        eager(q, &k, &v)
    }
}

/// Attention over pages.
pub struct Paged<'a, 'c>(pub &'a Step<'c>);

impl Attend for Paged<'_, '_> {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        self.0.attend(layer, q, k, v)
    }
}

/// Pages for a model, stored in the model's type.
pub fn paged_cache(config: &Config, num_pages: i64) -> kvcache_candle::Result<PagedCache> {
    let Config { heads, kv_heads, head_dim, .. } = *config;
    let layer = kvcache::Layer::attention(heads as i32, kv_heads as i32, head_dim as i32)
        .dtype(kvcache_candle::dtype(config.dtype)?);
    PagedCache::new(&kvcache::Config::new(vec![layer; config.layers]).page_size(16).num_pages(num_pages))
}
