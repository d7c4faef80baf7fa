//! Time of one layer's append and attention while decoding: candle's cache with its two attentions, and pages.
//!
//! ```text
//! cargo run --release --example decode_speed
//! ```
//!
//! float32, 32 query heads, 8 key heads, dim 128; the median of steps that take turns. candle's rows have equal lengths, because its cache
//! has one; the pages' sequences differ by up to a quarter.

use candle_core::{Device, Result, Storage, Tensor};
use candle_nn::attention::{flash_attn, AttnMask};
use candle_nn::kv_cache::KvCache;
use kvcache_candle::{kvcache, tensor_ref, PagedCache};
use std::time::Instant;

#[allow(dead_code)]
#[path = "llama/caches.rs"]
mod caches;
#[allow(dead_code)]
#[path = "llama/model.rs"]
mod model;

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
const STEPS: usize = 21;

/// Milliseconds of a call.
fn timed<T>(call: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(batch: usize, context: usize) -> Result<[f64; 3]> {
    let random = |heads, len| Tensor::randn(0f32, 1., (batch, heads, len, DIM), &Device::Cpu);
    let scale = 1.0 / (DIM as f32).sqrt();

    // candle's cache, in the order of heads for matrix products and in the order of tokens for its flash attention.
    let prompt = random(KV_HEADS, context)?;
    let mut by_head = KvCache::new(2, context + STEPS);
    by_head.append(&prompt, &prompt)?;
    let mut by_token = KvCache::new(1, context + STEPS);
    let prompt = prompt.transpose(1, 2)?.contiguous()?;
    by_token.append(&prompt, &prompt)?;

    let layer =
        kvcache::Layer::attention(HEADS as i32, KV_HEADS as i32, DIM as i32).dtype(kvcache::DType::F32);
    let pages = batch * (context + STEPS).div_ceil(16) + batch;
    let mut paged =
        PagedCache::new(&kvcache::Config::new(vec![layer]).page_size(16).num_pages(pages as i64))?;
    let seqs: Vec<i64> = (0..batch as i64).collect();
    for seq in &seqs {
        let len = context - context / 4 * (*seq as usize) / batch;
        paged.add(*seq)?;
        let step = paged.step(&[*seq], &[len as i64])?;
        // Written only: what attention over the prompt gives does not matter here.
        let part = prompt.get(*seq as usize)?.narrow(0, 0, len)?;
        let (storage, layout) = part.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { candle_core::bail!("expected the CPU") };
        let rows = tensor_ref(storage, layout.start_offset(), layout.dims(), layout.stride())?;
        step.forward().kv_append(0, (&rows, &rows)).map_err(kvcache_candle::Error::from)?;
        step.commit()?;
    }

    let mut times = [const { Vec::new() }; 3];
    for index in 0..STEPS {
        let (q, k) = (random(HEADS, 1)?, random(KV_HEADS, 1)?);
        times[0].push(timed(|| {
            let (keys, values) = by_head.append(&k, &k)?;
            caches::eager(&q, &keys, &values)
        })?);
        let (q_token, k_token) = (q.transpose(1, 2)?.contiguous()?, k.transpose(1, 2)?.contiguous()?);
        times[1].push(timed(|| {
            let (keys, values) = by_token.append(&k_token, &k_token)?;
            let mask = AttnMask::Causal { kv_offset: context + index };
            flash_attn::<f32>(&q_token, &keys, &values, scale, mask, None, None)
        })?);
        times[2].push(timed(|| {
            let step = paged.step(&seqs, &vec![1; batch])?;
            let out = step.attend(0, &q, &k, &k)?;
            step.commit()?;
            Ok(out)
        })?);
    }
    Ok(times.map(median))
}

fn main() -> Result<()> {
    println!(
        "{:>9} {:>9} {:>14} {:>14} {:>14}",
        "sequences", "context", "matmul ms", "flash_attn ms", "pages ms"
    );
    for (batch, context) in [(1, 512), (1, 4096), (8, 512), (8, 2048)] {
        let [eager, flash, pages] = measure(batch, context)?;
        println!("{batch:>9} {context:>9} {eager:>14.3} {flash:>14.3} {pages:>14.3}");
    }
    Ok(())
}
