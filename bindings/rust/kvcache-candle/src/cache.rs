//! Pages and sequences of a model.

use crate::error::{refuse, Result};
use crate::Step;
use kvcache::{Batch, Cache, CacheRef, Config, LayerKind, Query, SeqId};

/// The KV cache of a whole model. Sequences have ids that the caller chooses.
#[derive(Debug)]
pub struct PagedCache {
    cache: Cache,
    // Ids of the layers that keep K and V per token.
    attention_layers: Vec<usize>,
}

/// Token ids as the library takes them.
fn token_ids<'a>(tokens: impl Iterator<Item = &'a u32>) -> Result<Vec<i32>> {
    let ids: std::result::Result<Vec<i32>, _> = tokens.map(|token| i32::try_from(*token)).collect();
    match ids {
        Ok(ids) => Ok(ids),
        Err(_) => refuse(format!("a token id above {}", i32::MAX)),
    }
}

impl PagedCache {
    /// Plans the layers' memory and makes the cache. Set each layer's storage type: without one K and V are kept in bfloat16.
    pub fn new(config: &Config) -> Result<Self> {
        let cache = Cache::with_config(config)?;
        let is_attention = |layer: &usize| config.layers[*layer].kind == LayerKind::Attention;
        Ok(PagedCache { cache, attention_layers: (0..config.layers.len()).filter(is_attention).collect() })
    }

    /// Adds an empty sequence.
    pub fn add(&mut self, seq: SeqId) -> Result<()> {
        Ok(self.cache.add(seq)?)
    }

    /// Removes a sequence; pages that others share stay.
    pub fn remove(&mut self, seq: SeqId) -> Result<()> {
        Ok(self.cache.remove(seq)?)
    }

    /// Adds `child` with all tokens of `parent`. Nothing is copied.
    pub fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()> {
        Ok(self.cache.fork(parent, child, None)?)
    }

    /// Adds `child` with the first `len` tokens of `parent`.
    pub fn fork_at(&mut self, parent: SeqId, child: SeqId, len: i64) -> Result<()> {
        Ok(self.cache.fork(parent, child, Some(len))?)
    }

    /// Drops the last `n` tokens.
    pub fn pop(&mut self, seq: SeqId, n: i64) -> Result<()> {
        Ok(self.cache.pop(seq, n)?)
    }

    /// Tokens of a sequence.
    pub fn length(&self, seq: SeqId) -> Result<i64> {
        Ok(self.cache.length(seq)?)
    }

    /// Adds `seq` with the longest prefix of the prompt that the index knows, and returns its length: compute the rest. At least one
    /// token is left.
    pub fn prefix_attach(&mut self, seq: SeqId, prompt: &[u32]) -> Result<i64> {
        let prompt = token_ids(prompt.iter())?;
        Ok(self.cache.prefix_attach(seq, &Query::new(&prompt))?)
    }

    /// Says that the first tokens of `seq` are these, and publishes their full blocks. Returns how many tokens are in the index now.
    pub fn prefix_insert(&mut self, seq: SeqId, tokens: &[u32]) -> Result<i64> {
        let tokens = token_ids(tokens.iter())?;
        Ok(self.cache.prefix_insert(seq, &Query::new(&tokens))?)
    }

    /// Opens a step: sequence `seqs[i]` grows by `lengths[i]` tokens. Prefill and decode mix freely. When it fails, nothing has changed;
    /// [`is_no_pages`](crate::Error::is_no_pages) says that the pool is full now.
    pub fn step(&mut self, seqs: &[SeqId], lengths: &[i64]) -> Result<Step<'_>> {
        Ok(Step::new(self.cache.begin(&Batch::new(seqs, lengths))?, lengths))
    }

    /// [`step`](PagedCache::step) by these tokens, whose full blocks are published to the prefix index when it is committed.
    pub fn step_tokens(&mut self, seqs: &[SeqId], tokens: &[&[u32]]) -> Result<Step<'_>> {
        let lengths: Vec<_> = tokens.iter().map(|tokens| tokens.len() as i64).collect();
        let ids = token_ids(tokens.iter().copied().flatten())?;
        Ok(Step::new(self.cache.begin(&Batch::new(seqs, &lengths).tokens(&ids))?, &lengths))
    }

    /// Everything else that the library does to a cache: statistics, pins, quotas, shifts, swaps.
    pub fn cache(&self) -> &CacheRef {
        &self.cache
    }

    /// As [`cache`](PagedCache::cache), to change it.
    pub fn cache_mut(&mut self) -> &mut CacheRef {
        &mut self.cache
    }

    pub(crate) fn into_parts(self) -> (Cache, Vec<usize>) {
        (self.cache, self.attention_layers)
    }
}
