//! Greedy decoding with each of the caches, logits kept.

use crate::caches::{Appended, Contiguous, Paged};
use crate::model::{Attend, Llama};
use candle_core::{DType, Device, Result, Tensor};
use kvcache_candle::{PagedBatch, PagedCache};

/// What a run chose, and the logits it chose from.
#[derive(Clone, Default)]
pub struct Run {
    pub tokens: Vec<u32>,
    pub logits: Vec<Vec<f32>>,
}

impl Run {
    pub fn push(&mut self, logits: Vec<f32>) -> u32 {
        let better = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
        let token = (0..logits.len()).fold(0, better) as u32;
        self.tokens.push(token);
        self.logits.push(logits);
        token
    }

    /// Largest difference of two logits.
    pub fn distance(&self, other: &Run) -> f32 {
        assert_eq!(self.logits.len(), other.logits.len(), "runs of different lengths");
        let pairs = self.logits.iter().flatten().zip(other.logits.iter().flatten());
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    /// Largest logit minus least.
    pub fn range(&self) -> f32 {
        let all = || self.logits.iter().flatten().copied();
        all().fold(f32::MIN, f32::max) - all().fold(f32::MAX, f32::min)
    }
}

/// Rows of float32 from logits (1, T, vocab).
fn rows(logits: &Tensor, which: &Tensor) -> Result<Vec<Vec<f32>>> {
    logits.squeeze(0)?.index_select(which, 0)?.to_dtype(DType::F32)?.to_vec2()
}

fn forward_one(model: &Llama, tokens: &[u32], begin: usize, cache: &mut dyn Attend) -> Result<Vec<f32>> {
    let positions = Tensor::arange(begin as u32, (begin + tokens.len()) as u32, &Device::Cpu)?;
    let logits = model.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?, &positions, cache)?;
    let last = Tensor::new(&[tokens.len() as u32 - 1], &Device::Cpu)?;
    Ok(rows(&logits, &last)?.remove(0))
}

fn greedy_one(model: &Llama, prompt: &[u32], new_tokens: usize, cache: &mut dyn Attend) -> Result<Run> {
    let mut run = Run::default();
    let mut next = run.push(forward_one(model, prompt, 0, cache)?);
    for index in 1..new_tokens {
        next = run.push(forward_one(model, &[next], prompt.len() + index - 1, cache)?);
    }
    Ok(run)
}

/// One sequence with candle's own cache.
pub fn greedy_contiguous(model: &Llama, prompt: &[u32], new_tokens: usize) -> Result<Run> {
    greedy_one(model, prompt, new_tokens, &mut Contiguous::new(&model.config))
}

/// One sequence with pages behind candle's append.
pub fn greedy_appended(model: &Llama, cache: PagedCache, prompt: &[u32], new_tokens: usize) -> Result<Run> {
    let batch = PagedBatch::new(cache, &[0])?;
    greedy_one(model, prompt, new_tokens, &mut Appended(batch.layers()))
}

/// Any number of sequences, which exist, with attention over pages. `feeds[i]` is what sequence `seqs[i]` grows by first: a prompt, or
/// what is left of it behind an attached prefix.
pub fn greedy_paged(
    model: &Llama,
    cache: &mut PagedCache,
    seqs: &[i64],
    feeds: &[&[u32]],
    new_tokens: usize,
) -> Result<Vec<Run>> {
    let mut runs = vec![Run::default(); seqs.len()];
    let mut feeds: Vec<Vec<u32>> = feeds.iter().map(|feed| feed.to_vec()).collect();
    for _ in 0..new_tokens {
        let lengths: Vec<i64> = feeds.iter().map(|feed| feed.len() as i64).collect();
        let step = cache.step(seqs, &lengths)?;
        let packed = Tensor::new(feeds.concat(), &Device::Cpu)?.unsqueeze(0)?;
        let logits = model.forward(&packed, &step.positions()?, &mut Paged(&step))?;
        let last = rows(&logits, &step.last_rows()?)?;
        step.commit()?;
        feeds = runs.iter_mut().zip(last).map(|(run, logits)| vec![run.push(logits)]).collect();
    }
    Ok(runs)
}
