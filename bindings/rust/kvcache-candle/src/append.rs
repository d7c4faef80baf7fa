//! The append of `candle_nn::kv_cache::KvCache` over shared pages, for models that keep their own attention.

use crate::error::{refuse, Result};
use crate::rows::{packable, rows, Output};
use crate::PagedCache;
use candle_core::{Storage, Tensor};
use kvcache::{Batch, Cache, CacheRef, Forward, SeqId};
use std::sync::{Arc, Mutex, MutexGuard};

/// The rows of a model's batch and the sequences they stand for; the layers' [`PagedKvCache`]s share it.
///
/// A step begins with the first layer's append and ends with the last one's. When a model stops halfway, [`abort`](PagedBatch::abort)
/// forgets what it appended.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use kvcache_candle::{kvcache, PagedBatch, PagedCache};
///
/// # fn main() -> kvcache_candle::Result<()> {
/// let layer = kvcache::Layer::attention(4, 2, 16).dtype(kvcache::DType::F32);
/// let mut cache = PagedCache::new(&kvcache::Config::new(vec![layer; 2]).num_pages(8))?;
/// cache.add(0)?;
/// let batch = PagedBatch::new(cache, &[0])?;
/// let mut layers = batch.layers(); // one for each layer of the model
/// let kv = Tensor::zeros((1, 2, 5, 16), candle_core::DType::F32, &Device::Cpu)?;
/// for layer in &mut layers {
///     let (k, v) = layer.append(&kv, &kv)?;
///     assert_eq!((k.dims(), v.dims()), (kv.dims(), kv.dims()));
/// }
/// batch.with_cache(|cache| cache.fork(0, 1, None))?; // shares the prompt
/// batch.select(&[0, 1])?; // the model's batch has two rows from now on
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PagedBatch(Arc<Mutex<Inner>>);

/// One layer's cache: [`append`](PagedKvCache::append) as `candle_nn::kv_cache::KvCache` has it, with `dim` 2.
#[derive(Clone, Debug)]
pub struct PagedKvCache {
    batch: PagedBatch,
    layer: usize,
}

/// The step that is open: which layers have appended how many tokens per row.
#[derive(Debug)]
struct Open {
    // Borrows `Inner::cache`, see there.
    forward: Forward<'static>,
    len: usize,
    appended: Vec<usize>,
}

#[derive(Debug)]
struct Inner {
    // Before the cache, so that it is dropped first. While it is Some, the cache is reached through the forward alone.
    open: Option<Open>,
    cache: Cache,
    layers: Vec<usize>,
    seqs: Vec<SeqId>,
}

impl Inner {
    fn cache(&self) -> &CacheRef {
        self.open.as_ref().map_or(&*self.cache, |open| open.forward.cache())
    }

    fn cache_mut(&mut self) -> &mut CacheRef {
        match &mut self.open {
            Some(open) => open.forward.cache_mut(),
            None => &mut self.cache,
        }
    }

    /// All rows of a rectangle have one length.
    fn length(&self) -> Result<usize> {
        let mut common = None;
        for seq in &self.seqs {
            let length = self.cache().length(*seq)?;
            let (first, expected) = *common.get_or_insert((*seq, length));
            if length != expected {
                return refuse(format!(
                    "append returns one rectangle, but sequence {first} has {expected} tokens and sequence {seq} {length}: use \
                     Step::attend"
                ));
            }
        }
        Ok(common.map_or(0, |(_, length)| length as usize))
    }

    fn begin(&mut self, len: usize) -> Result<()> {
        self.length()?;
        let lengths = vec![len as i64; self.seqs.len()];
        let forward = self.cache.begin(&Batch::new(&self.seqs, &lengths))?;
        // SAFETY: the forward borrows an object of the library, which does not move with `Inner` and which `cache` owns; it is dropped
        // before `cache`, and `cache` is not used while it lives.
        let forward = unsafe { std::mem::transmute::<Forward<'_>, Forward<'static>>(forward) };
        self.open = Some(Open { forward, len, appended: Vec::new() });
        Ok(())
    }

    fn append(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (batch, _, len, _) = k.dims4()?;
        if v.dims4()?.0 != batch || v.dims4()?.2 != len {
            return refuse(format!("v has shape {:?}, but k has {:?}: B and L differ", v.dims(), k.dims()));
        }
        if batch != self.seqs.len() {
            return refuse(format!("k has {batch} rows, but the batch has {} sequences", self.seqs.len()));
        }
        if self.open.is_none() {
            self.begin(len)?;
        }
        let appended = self.append_open(layer, len, k, v)?;
        if self.open.as_ref().is_some_and(|open| open.appended.len() == self.layers.len()) {
            let open = self.open.take().expect("just seen");
            open.forward.end()?;
        }
        Ok(appended)
    }

    fn append_open(&mut self, layer: usize, len: usize, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let total = self.length()? + len;
        let open = self.open.as_mut().expect("an open step");
        if open.len != len {
            return refuse(format!(
                "k has {len} tokens, but the step began with {}: abort() forgets it",
                open.len
            ));
        }
        if open.appended.contains(&layer) {
            return refuse(format!(
                "layer {layer} is appended to again, but only {} of {} layers have been: abort() forgets the step",
                open.appended.len(),
                self.layers.len()
            ));
        }
        append_rows(&open.forward, layer, k, v)?;
        open.appended.push(layer);
        gather(&open.forward, layer, &self.seqs, total, k, v)
    }
}

fn append_rows(forward: &Forward<'_>, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
    let (k, v) = (packable(k, "k")?, packable(v, "v")?);
    let ((k, k_layout), (v, v_layout)) = (k.storage_and_layout(), v.storage_and_layout());
    let (Storage::Cpu(k), Storage::Cpu(v)) = (&*k, &*v) else {
        return refuse("k and v: expected tensors on the CPU".into());
    };
    Ok(forward.kv_append(layer, (&rows(k, k_layout)?, &rows(v, v_layout)?))?)
}

/// All tokens of the sequences as (B, H, total, D), contiguous.
fn gather(
    forward: &Forward<'_>,
    layer: usize,
    seqs: &[SeqId],
    total: usize,
    k: &Tensor,
    v: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let ((batch, heads, _, k_dim), v_dim) = (k.dims4()?, v.dims4()?.3);
    let mut k_out = Output::zeros(k.dtype(), batch * heads * total * k_dim)?;
    let mut v_out = Output::zeros(v.dtype(), batch * heads * total * v_dim)?;
    for (row, seq) in seqs.iter().enumerate() {
        let view = |out, dim| {
            let out: &mut Output = out;
            out.view(row * heads * total * dim, &[total, heads, dim], &[dim, total * dim, 1])
        };
        let mut k = view(&mut k_out, k_dim)?;
        let mut v = view(&mut v_out, v_dim)?;
        forward.kv_gather(layer, *seq, Some(&mut k), Some(&mut v))?;
    }
    Ok((k_out.into_tensor((batch, heads, total, k_dim))?, v_out.into_tensor((batch, heads, total, v_dim))?))
}

impl PagedBatch {
    /// Row i of the model's batch is sequence `seqs[i]`, which exists.
    pub fn new(cache: PagedCache, seqs: &[SeqId]) -> Result<Self> {
        let (cache, layers) = cache.into_parts();
        let batch = PagedBatch(Arc::new(Mutex::new(Inner { open: None, cache, layers, seqs: Vec::new() })));
        batch.select(seqs)?;
        Ok(batch)
    }

    /// A poisoned lock is one of a thread that panicked between two steps or inside one, which is undone or ended all the same.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// One cache for each attention layer, in their order.
    pub fn layers(&self) -> Vec<PagedKvCache> {
        let layers = self.lock().layers.clone();
        layers.into_iter().map(|layer| PagedKvCache { batch: self.clone(), layer }).collect()
    }

    /// Changes which sequences the rows stand for.
    pub fn select(&self, seqs: &[SeqId]) -> Result<()> {
        let mut inner = self.lock();
        if inner.open.is_some() {
            return refuse("select: a step is open, which the last layer's append or abort() ends".into());
        }
        for seq in seqs {
            inner.cache.length(*seq)?;
        }
        inner.seqs = seqs.to_vec();
        Ok(())
    }

    /// Adds, forks, removes, pops, attaches to prefixes.
    pub fn with_cache<T>(&self, call: impl FnOnce(&mut CacheRef) -> kvcache::Result<T>) -> Result<T> {
        Ok(call(self.lock().cache_mut())?)
    }

    /// Forgets the step that is open, if one is.
    pub fn abort(&self) {
        self.lock().open = None;
    }

    /// Forgets all tokens of the rows' sequences.
    pub fn reset(&self) -> Result<()> {
        let mut inner = self.lock();
        inner.open = None;
        for seq in inner.seqs.clone() {
            let length = inner.cache.length(seq)?;
            inner.cache.pop(seq, length)?;
        }
        Ok(())
    }
}

impl PagedKvCache {
    /// Appends k and v (B, H, L, D) and returns all keys and values of the rows' sequences, (B, H, S, D), contiguous. They are as stored:
    /// equal to what was appended where the layer's storage type is the model's.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        Ok(self.batch.lock().append(self.layer, k, v)?)
    }

    /// Tokens of the rows' sequences, this step's included once this layer has appended them.
    pub fn current_seq_len(&self) -> usize {
        let inner = self.batch.lock();
        let new =
            inner.open.as_ref().filter(|open| open.appended.contains(&self.layer)).map_or(0, |open| open.len);
        inner.length().unwrap_or(0) + new
    }

    /// Forgets all tokens of the rows' sequences, in every layer: the other layers' resets find nothing left to do.
    pub fn reset(&mut self) {
        // What can fail is a sequence that has been removed: nothing is left of it.
        let _ = self.batch.reset();
    }
}
