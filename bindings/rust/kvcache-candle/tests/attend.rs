//! Attention and append on tensors as models make them, against sums in double.

#[path = "common/naive.rs"]
mod naive;

use candle_core::{DType, Device, Tensor};
use kvcache_candle::{dtype, kvcache, Attention, PagedBatch, PagedCache};
use naive::{assert_close, naive, normal, Options};

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 24;

fn cache_of(element: DType, layers: usize) -> kvcache_candle::Result<PagedCache> {
    let layer = kvcache::Layer::attention(HEADS as i32, KV_HEADS as i32, DIM as i32).dtype(dtype(element)?);
    PagedCache::new(&kvcache::Config::new(vec![layer; layers]).page_size(8).num_pages(64))
}

fn qkv(shape: (usize, usize), element: DType, seed: u64) -> candle_core::Result<[Tensor; 3]> {
    let (batch, len) = shape;
    let tensor = |heads: usize, seed| normal(&[batch, heads, len, DIM], element, seed);
    Ok([tensor(HEADS, seed)?, tensor(KV_HEADS, seed + 1)?, tensor(KV_HEADS, seed + 2)?])
}

#[test]
fn every_element_type_equals_the_sum_in_double_within_its_rounding() -> Result {
    for (element, tolerance) in [(DType::F32, 1e-5), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let mut cache = cache_of(element, 1)?;
        cache.add(0)?;
        let [q, k, v] = qkv((1, 40), element, 1)?;
        let expected = naive(&q, &k, &v, &Options::default())?;
        // A prompt in two parts, then single tokens.
        for (begin, len) in [(0, 21), (21, 15), (36, 1), (37, 1), (38, 1), (39, 1)] {
            let step = cache.step(&[0], &[len as i64])?;
            let part = |tensor: &Tensor| tensor.narrow(2, begin, len);
            let out = step.attend(0, &part(&q)?, &part(&k)?, &part(&v)?)?;
            assert_eq!((out.dims(), out.dtype()), ([1, HEADS, len, DIM].as_slice(), element));
            assert_close(&out, &expected.narrow(2, begin, len)?, tolerance)?;
            step.commit()?;
        }
        assert_eq!(cache.length(0)?, 40);
    }
    Ok(())
}

#[test]
fn strides_and_offsets_are_seen_through() -> Result {
    let [q, k, v] = qkv((3, 5), DType::F32, 4)?;
    let expected = naive(&q, &k, &v, &Options::default())?;
    // The same values in other orders of memory.
    let transposed = |tensor: &Tensor| tensor.transpose(1, 2)?.contiguous()?.transpose(1, 2);
    let offset = |tensor: &Tensor| Tensor::cat(&[tensor, tensor], 2)?.narrow(2, 5, 5);
    let by_element = |tensor: &Tensor| tensor.transpose(2, 3)?.contiguous()?.transpose(2, 3);
    let with_gaps = |tensor: &Tensor| Tensor::cat(&[tensor, tensor], 3)?.narrow(3, 0, DIM);
    type Order<'a> = &'a dyn Fn(&Tensor) -> candle_core::Result<Tensor>;
    let orders: [Order<'_>; 4] = [&transposed, &offset, &by_element, &with_gaps];
    for (index, order) in orders.into_iter().enumerate() {
        let mut cache = cache_of(DType::F32, 1)?;
        for seq in 0..3 {
            cache.add(seq)?;
        }
        let step = cache.step(&[0, 1, 2], &[5, 5, 5])?;
        let out = step.attend(0, &order(&q)?, &order(&k)?, &order(&v)?)?;
        assert_close(&out, &expected, 1e-5).map_err(|error| format!("order {index}: {error}"))?;
        // What a model does next copies nothing.
        assert!(out.transpose(1, 2)?.is_contiguous());
    }
    Ok(())
}

#[test]
fn packed_sequences_of_unequal_lengths_equal_each_alone() -> Result {
    let lengths = [1i64, 13, 8, 2];
    let [q, k, v] = qkv((1, 24), DType::F32, 7)?;
    let mut cache = cache_of(DType::F32, 1)?;
    let seqs = [5, 3, 9, 0];
    for seq in seqs {
        cache.add(seq)?;
    }
    let step = cache.step(&seqs, &lengths)?;
    assert_eq!(step.positions()?.to_vec1::<u32>()?[..4], [0, 0, 1, 2]);
    assert_eq!(step.last_rows()?.to_vec1::<u32>()?, [0, 13, 21, 23]);
    let out = step.attend(0, &q, &k, &v)?;
    let mut begin = 0;
    for length in lengths.map(|length| length as usize) {
        let part = |tensor: &Tensor| tensor.narrow(2, begin, length);
        let alone = naive(&part(&q)?, &part(&k)?, &part(&v)?, &Options::default())?;
        assert_close(&part(&out)?, &alone, 1e-5)?;
        begin += length;
    }
    Ok(())
}

#[test]
fn scale_soft_cap_window_sinks_and_alibi_do_what_they_say() -> Result {
    let [q, k, v] = qkv((1, 30), DType::F32, 10)?;
    let per_head = normal(&[HEADS], DType::F32, 13)?;
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625, 0.03, 0.015], &Device::Cpu)?;
    let cases = [
        Attention { scale: 0.3, ..Attention::default() },
        Attention { soft_cap: 2.0, ..Attention::default() },
        Attention { window: 7, ..Attention::default() },
        Attention { sink_logits: Some(per_head), ..Attention::default() },
        Attention { alibi_slopes: Some(slopes), ..Attention::default() },
    ];
    for attention in cases {
        let mut cache = cache_of(DType::F32, 1)?;
        cache.add(0)?;
        let step = cache.step(&[0], &[30])?;
        let out = step.attend_with(0, &attention, &q, &k, &v)?;
        let expected = naive(&q, &k, &v, &Options::new(&attention)?)?;
        assert_close(&out, &expected, 1e-5).map_err(|error| format!("{attention:?}: {error}"))?;
    }
    Ok(())
}

#[test]
fn a_step_that_is_dropped_leaves_nothing() -> Result {
    let mut cache = cache_of(DType::F32, 1)?;
    cache.add(0)?;
    let free = cache.cache().available_pages();
    let [q, k, v] = qkv((1, 20), DType::F32, 20)?;
    let step = cache.step(&[0], &[20])?;
    step.attend(0, &q, &k, &v)?;
    drop(step);
    assert_eq!((cache.length(0)?, cache.cache().available_pages()), (0, free));
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() -> Result {
    let mut cache = cache_of(DType::F32, 1)?;
    cache.add(0)?;
    cache.add(1)?;
    let full = cache.step(&[0], &[10_000]).expect_err("64 pages of 8 tokens");
    assert!(full.cache().is_some_and(|error| error.is_never_fits()), "{full}");
    let unknown = cache.step(&[7], &[1]).expect_err("no such sequence");
    assert!(unknown.cache().is_some_and(|error| error.is_not_found()), "{unknown}");
    // Inside candle's functions the same text arrives.
    assert!(candle_core::Error::from(unknown).to_string().contains("KVC_E_NOT_FOUND"));

    let step = cache.step(&[0, 1], &[3, 4])?;
    let [q, k, v] = qkv((2, 4), DType::F32, 30)?;
    let error = step.attend(0, &q, &k, &v).expect_err("lengths differ").to_string();
    assert!(error.contains("2 x 4 tokens") && error.contains("[3, 4]"), "{error}");
    let [q, k, v] = qkv((1, 7), DType::F32, 30)?;
    let error = step.attend(1, &q, &k, &v).expect_err("one layer").to_string();
    assert!(error.contains("layer"), "{error}");
    let error = step.attend(0, &q.to_dtype(DType::F64)?, &k, &v).expect_err("double").to_string();
    assert!(error.contains("F64"), "{error}");
    let error = step.attend(0, &q, &k.narrow(3, 0, 8)?, &v).expect_err("short rows").to_string();
    assert!(error.contains('8') && error.contains("24"), "{error}");
    let rank = step.attend(0, &q.squeeze(0)?, &k, &v).expect_err("three dimensions").to_string();
    assert!(rank.contains("(B, H, L, D)"), "{rank}");
    Ok(())
}

#[test]
fn append_returns_what_candles_own_cache_returns() -> Result {
    for element in [DType::F32, DType::F16, DType::BF16] {
        let mut cache = cache_of(element, 2)?;
        cache.add(0)?;
        cache.add(1)?;
        let batch = PagedBatch::new(cache, &[0, 1])?;
        let mut pages = batch.layers();
        let mut candle = vec![candle_nn::kv_cache::KvCache::new(2, 64); 2];
        for (index, len) in [9, 1, 1, 6, 1].into_iter().enumerate() {
            for layer in 0..2 {
                let [_, k, v] = qkv((2, len), element, 40 + (2 * index + layer) as u64)?;
                // A view, as models hand it over.
                let view = v.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
                let (k_pages, v_pages) = pages[layer].append(&k, &view)?;
                let (k_candle, v_candle) = candle[layer].append(&k, &v)?;
                for (ours, theirs) in [(k_pages, k_candle), (v_pages, v_candle)] {
                    assert_eq!(ours.dims(), theirs.dims());
                    let float =
                        |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
                    assert_eq!(float(&ours)?, float(&theirs.contiguous()?)?);
                }
                assert_eq!(pages[layer].current_seq_len(), candle[layer].current_seq_len());
            }
        }
        pages[0].reset();
        assert_eq!(pages[1].current_seq_len(), 0);
    }
    Ok(())
}

#[test]
fn caches_go_where_models_go() {
    fn shared<T: Send + Sync>() {}
    shared::<PagedCache>();
    shared::<PagedBatch>();
    shared::<kvcache_candle::PagedKvCache>();
    fn moved<T: Send>() {}
    moved::<kvcache_candle::Step<'static>>();
}

#[test]
fn append_shares_prompts_and_refuses_what_is_no_rectangle() -> Result {
    let mut cache = cache_of(DType::F32, 2)?;
    cache.add(0)?;
    let batch = PagedBatch::new(cache, &[0])?;
    let mut layers = batch.layers();
    let [_, k, v] = qkv((1, 11), DType::F32, 60)?;
    for layer in &mut layers {
        layer.append(&k, &v)?;
    }
    batch.with_cache(|cache| cache.fork(0, 1, None))?;
    batch.with_cache(|cache| cache.fork(0, 2, Some(4)))?;

    batch.select(&[1, 0])?;
    let [_, k2, v2] = qkv((2, 1), DType::F32, 63)?;
    let (all, _) = layers[0].append(&k2, &v2)?;
    assert_eq!(all.dims(), [2, KV_HEADS, 12, DIM]);
    let again = layers[0].append(&k2, &v2).expect_err("layer 1 has not appended").to_string();
    assert!(again.contains("layer 0") && again.contains("1 of 2"), "{again}");
    assert!(batch.select(&[0]).is_err(), "a step is open");
    batch.abort();
    assert_eq!(layers[0].current_seq_len(), 11);

    batch.select(&[0, 2])?;
    let ragged = layers[0].append(&k2, &v2).expect_err("11 and 4 tokens").to_string();
    assert!(ragged.contains("11") && ragged.contains('4'), "{ragged}");
    let rows = layers[0].append(&k, &v).expect_err("one row for two sequences").to_string();
    assert!(rows.contains("1 rows") && rows.contains("2 sequences"), "{rows}");
    assert!(batch.select(&[77]).is_err());
    Ok(())
}
