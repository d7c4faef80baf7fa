//! The six functions on shuffled blocks of both layouts, against sums in double over rows that the test keeps itself.

#[path = "../../kvcache-candle/tests/common/naive.rs"]
mod naive;

use candle_core::{DType, Device, Tensor};
use kvcache_candle::Attention;
use kvcache_paged_attn::{
    attend, copy_blocks, gather_kv_cache, kv_scale_update, paged_attention, reshape_and_cache, swap_blocks,
    AttendOptions,
};
use naive::{assert_close, naive, normal, Options};
use std::collections::HashMap;

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 32;
const V_DIM: usize = 16;
const BLOCK: usize = 8;
const BLOCKS: usize = 40;
const LENGTHS: [usize; 4] = [1, 8, 29, 70];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Hnd,
    Standard,
}

/// A layer's caches, four sequences in blocks out of order, and their rows: k (1, Hkv, S, D), v (1, Hkv, S, Dv).
struct Host {
    element: DType,
    key_cache: Tensor,
    value_cache: Tensor,
    tables: Vec<Vec<u32>>,
    rows: Vec<[Tensor; 2]>,
}

impl Host {
    fn new(kind: Kind, element: DType) -> candle_core::Result<Self> {
        let x = 16 / element.size_in_bytes();
        // NaN wherever nothing has been written.
        let nan =
            |shape: &[usize]| Tensor::full(f32::NAN, shape, &Device::Cpu)?.to_dtype(element)?.contiguous();
        let (key_cache, value_cache) = match kind {
            Kind::Hnd => (nan(&[BLOCKS, KV_HEADS, BLOCK, DIM])?, nan(&[BLOCKS, KV_HEADS, BLOCK, V_DIM])?),
            Kind::Standard => {
                (nan(&[BLOCKS, KV_HEADS, DIM / x, BLOCK, x])?, nan(&[BLOCKS, KV_HEADS, V_DIM, BLOCK])?)
            }
        };
        let mut next = 0;
        let mut tables = Vec::new();
        for length in LENGTHS {
            let blocks = (0..length.div_ceil(BLOCK)).map(|_| {
                next += 1;
                (next * 17 % BLOCKS) as u32 // 17 and 40 share no factor: each block once
            });
            tables.push(blocks.collect());
        }
        Ok(Host { element, key_cache, value_cache, tables, rows: Vec::new() })
    }

    /// Writes all rows of all sequences in one call, a padding row between every two sequences.
    fn fill(mut self, seed: u64) -> candle_core::Result<Self> {
        let (mut keys, mut values, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let k = normal(&[1, KV_HEADS, length, DIM], self.element, seed + 2 * index as u64)?;
            let v = normal(&[1, KV_HEADS, length, V_DIM], self.element, seed + 2 * index as u64 + 1)?;
            keys.push(k.squeeze(0)?.transpose(0, 1)?);
            values.push(v.squeeze(0)?.transpose(0, 1)?);
            keys.push(Tensor::full(f32::NAN, (1, KV_HEADS, DIM), &Device::Cpu)?.to_dtype(self.element)?);
            values.push(Tensor::full(f32::NAN, (1, KV_HEADS, V_DIM), &Device::Cpu)?.to_dtype(self.element)?);
            slots
                .extend((0..length).map(|token| {
                    (self.tables[index][token / BLOCK] as usize * BLOCK + token % BLOCK) as i64
                }));
            slots.push(-1);
            self.rows.push([k, v]);
        }
        let slots = Tensor::new(slots, &Device::Cpu)?;
        let (k, v) = (Tensor::cat(&keys, 0)?, Tensor::cat(&values, 0)?);
        // Rows of k strided, as out of a fused projection.
        let k = Tensor::cat(&[&k, &k], 1)?.narrow(1, 0, KV_HEADS)?;
        reshape_and_cache(&k, &v, None, None, &self.key_cache, &self.value_cache, &slots)?;
        Ok(self)
    }

    fn caches(&self) -> (&Tensor, &Tensor) {
        (&self.key_cache, &self.value_cache)
    }

    fn block_tables(&self) -> candle_core::Result<Tensor> {
        let width = self.tables.iter().map(Vec::len).max().unwrap_or(0);
        let padded = self.tables.iter().flat_map(|table| {
            table.iter().copied().chain(std::iter::repeat(0)).take(width).collect::<Vec<_>>()
        });
        Tensor::from_vec(padded.collect::<Vec<u32>>(), (self.tables.len(), width), &Device::Cpu)
    }

    fn context_lens(&self) -> candle_core::Result<Tensor> {
        Tensor::new(LENGTHS.map(|length| length as u32).as_slice(), &Device::Cpu)
    }

    /// q (T, Hq, D) of each sequence's newest rows over its context.
    fn expected(&self, q: &Tensor, rows: &[usize], options: &Options) -> candle_core::Result<Tensor> {
        let mut begin = 0;
        let mut parts = Vec::new();
        for ([k, v], count) in self.rows.iter().zip(rows) {
            let part = q.narrow(0, begin, *count)?.transpose(0, 1)?.unsqueeze(0)?;
            parts.push(naive(&part, k, v, options)?.squeeze(0)?.transpose(0, 1)?);
            begin += count;
        }
        Tensor::cat(&parts, 0)
    }
}

fn each_case(test: impl Fn(Kind, DType, f32) -> candle_core::Result<()>) -> Result {
    for kind in [Kind::Hnd, Kind::Standard] {
        for (element, tolerance) in [(DType::F32, 1e-5), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
            test(kind, element, tolerance).map_err(|error| format!("{kind:?}, {element:?}: {error}"))?;
        }
    }
    Ok(())
}

#[test]
fn decoding_over_blocks_equals_the_sum_in_double() -> Result {
    each_case(|kind, element, tolerance| {
        let host = Host::new(kind, element)?.fill(1)?;
        let q = normal(&[LENGTHS.len(), HEADS, DIM], element, 50)?;
        let sinks = normal(&[HEADS], element, 51)?;
        let slopes = Tensor::from_iter((0..HEADS).map(|head| 0.5f32.powi(head as i32 + 1)), &Device::Cpu)?;
        let sink_values = sinks.to_dtype(DType::F32)?.to_vec1()?;
        let cases = [
            (1.0, None, None, Options::default()),
            (3.0, None, None, Options { soft_cap: 3.0, ..Options::default() }),
            (1.0, Some(&slopes), None, Options { slopes: slopes.to_vec1()?, ..Options::default() }),
            (1.0, None, Some(&sinks), Options { sinks: sink_values, ..Options::default() }),
        ];
        for (soft_cap, slopes, sinks, options) in cases {
            let scale = 0.2;
            let out = paged_attention(
                &q,
                None,
                None,
                &host.key_cache,
                &host.value_cache,
                &host.block_tables()?,
                &host.context_lens()?,
                slopes,
                70,
                scale,
                soft_cap,
                sinks,
            )?;
            let options = Options { scale: f64::from(scale), ..options };
            assert_close(&out, &host.expected(&q, &[1; 4], &options)?, tolerance)?;
        }
        Ok(())
    })
}

#[test]
fn prompts_behind_a_cached_prefix_and_windows_need_no_gather() -> Result {
    each_case(|kind, element, tolerance| {
        let host = Host::new(kind, element)?.fill(2)?;
        let rows = [1, 3, 29, 20];
        let q = normal(&[rows.iter().sum(), HEADS, DIM], element, 60)?;
        for window in [0, 5, 16] {
            let options = AttendOptions {
                attention: Attention { window, ..Attention::default() },
                cu_seqlens_q: Some(Tensor::new(&[0u32, 1, 4, 33, 53], &Device::Cpu)?),
            };
            let out = attend(&q, host.caches(), &host.block_tables()?, &host.context_lens()?, &options)?;
            let options = Options { window: window as usize, ..Options::default() };
            assert_close(&out, &host.expected(&q, &rows, &options)?, tolerance)?;
        }
        Ok(())
    })
}

#[test]
fn elements_lie_where_the_layouts_say() -> Result {
    each_case(|kind, element, _| {
        let host = Host::new(kind, element)?.fill(9)?;
        let x = 16 / element.size_in_bytes();
        for (index, token) in [(0, 0), (2, 28), (3, 9), (3, 69)] {
            let (block, offset) = (host.tables[index][token / BLOCK] as usize, token % BLOCK);
            let (k, v) = (host.key_cache.get(block)?, host.value_cache.get(block)?);
            // (Hkv, D) of the token.
            let (k, v) = match kind {
                Kind::Hnd => (k.narrow(1, offset, 1)?.squeeze(1)?, v.narrow(1, offset, 1)?.squeeze(1)?),
                Kind::Standard => (
                    k.narrow(2, offset, 1)?.reshape((KV_HEADS, DIM / x * x))?,
                    v.narrow(2, offset, 1)?.squeeze(2)?,
                ),
            };
            let row = |tensor: &Tensor| tensor.squeeze(0)?.narrow(1, token, 1)?.squeeze(1);
            assert_close(&k, &row(&host.rows[index][0])?, 0.0)?;
            assert_close(&v, &row(&host.rows[index][1])?, 0.0)?;
        }
        Ok(())
    })
}

#[test]
fn gathering_returns_what_was_written() -> Result {
    each_case(|kind, element, _| {
        let host = Host::new(kind, element)?.fill(3)?;
        let ends = Tensor::new(&[0u32, 1, 9, 38, 108], &Device::Cpu)?;
        let (k, v) = gather_kv_cache(
            &host.key_cache,
            &host.value_cache,
            None,
            None,
            &host.block_tables()?,
            &ends,
            DType::F32,
        )?;
        assert_eq!(
            (k.dims(), v.dims()),
            ([108, KV_HEADS, DIM].as_slice(), [108, KV_HEADS, V_DIM].as_slice())
        );
        let packed = |index: usize| {
            let rows =
                host.rows.iter().map(|rows| rows[index].squeeze(0)?.transpose(0, 1)?.to_dtype(DType::F32));
            Tensor::cat(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)
        };
        assert_close(&k, &packed(0)?, 0.0)?;
        assert_close(&v, &packed(1)?, 0.0)
    })
}

/// Elements of a block.
fn block(cache: &Tensor, index: usize) -> candle_core::Result<Vec<f32>> {
    cache.get(index)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

#[test]
fn copied_blocks_hold_the_same_bits() -> Result {
    each_case(|kind, element, _| {
        let mut host = Host::new(kind, element)?.fill(4)?;
        let mut second = Host::new(kind, element)?.fill(5)?;
        // Full blocks of the longest sequence, to blocks that nobody has.
        let (from, other) = (host.tables[3][0] as usize, host.tables[3][1] as usize);
        let free: Vec<usize> = (0..BLOCKS)
            .filter(|index| !host.tables.iter().flatten().any(|used| *used as usize == *index))
            .collect();
        let mapping = HashMap::from([(from, vec![free[0], free[1]]), (other, vec![free[2]])]);
        copy_blocks(
            vec![&mut host.key_cache, &mut second.key_cache],
            vec![&mut host.value_cache, &mut second.value_cache],
            &mapping,
        )?;
        for host in [&host, &second] {
            for cache in [&host.key_cache, &host.value_cache] {
                assert_eq!(block(cache, from)?, block(cache, free[0])?);
                assert_eq!(block(cache, from)?, block(cache, free[1])?);
                assert_eq!(block(cache, other)?, block(cache, free[2])?);
                assert!(block(cache, free[3])?.iter().all(|value| value.is_nan()));
            }
        }
        let twice = HashMap::from([(from, vec![free[3]]), (other, vec![free[3]])]);
        assert!(copy_blocks(vec![&mut host.key_cache], vec![&mut host.value_cache], &twice).is_err());
        Ok(())
    })
}

#[test]
fn swapped_out_blocks_come_back_at_other_places() -> Result {
    each_case(|kind, element, tolerance| {
        let mut host = Host::new(kind, element)?.fill(6)?;
        let store = Host::new(kind, element)?;
        let out: HashMap<usize, usize> =
            host.tables[2].iter().enumerate().map(|(index, block)| (*block as usize, index)).collect();
        swap_blocks(host.key_cache.clone(), &store.key_cache, out.clone())?;
        swap_blocks(host.value_cache.clone(), &store.value_cache, out)?;
        let free =
            (0..BLOCKS).filter(|index| !host.tables.iter().flatten().any(|used| *used as usize == *index));
        let places: Vec<usize> = free.take(host.tables[2].len()).collect();
        let back: HashMap<usize, usize> = places.iter().copied().enumerate().collect();
        swap_blocks(store.key_cache, &host.key_cache, back.clone())?;
        swap_blocks(store.value_cache, &host.value_cache, back)?;
        host.tables[2] = places.iter().map(|place| *place as u32).collect();

        let q = normal(&[LENGTHS.len(), HEADS, DIM], element, 70)?;
        let (tables, lengths) = (host.block_tables()?, host.context_lens()?);
        let out = attend(&q, host.caches(), &tables, &lengths, &AttendOptions::default())?;
        assert_close(&out, &host.expected(&q, &[1; 4], &Options::default())?, tolerance)
    })
}

#[test]
#[allow(clippy::type_complexity)]
fn the_arguments_are_those_that_mistral_rs_passes() {
    type Scale<'a> = Option<&'a Tensor>;
    let _: fn(&Tensor, &Tensor, Scale, Scale, &Tensor, &Tensor, &Tensor) -> candle_core::Result<()> =
        reshape_and_cache;
    let _: fn(
        &Tensor,
        Scale,
        Scale,
        &Tensor,
        &Tensor,
        &Tensor,
        &Tensor,
        Option<&Tensor>,
        usize,
        f32,
        f32,
        Option<&Tensor>,
    ) -> candle_core::Result<Tensor> = paged_attention;
    let _: fn(
        &Tensor,
        &Tensor,
        Scale,
        Scale,
        &Tensor,
        &Tensor,
        DType,
    ) -> candle_core::Result<(Tensor, Tensor)> = gather_kv_cache;
    let _: fn(Vec<&mut Tensor>, Vec<&mut Tensor>, &HashMap<usize, Vec<usize>>) -> candle_core::Result<()> =
        copy_blocks;
    let _: fn(Tensor, &Tensor, HashMap<usize, usize>) -> candle_core::Result<()> = swap_blocks;
    let _: fn(&Tensor, &Tensor, &Tensor, &Tensor) -> candle_core::Result<()> = kv_scale_update;
}

#[test]
fn scales_only_rise() -> Result {
    let scale = |value: f32| Tensor::new(&[value], &Device::Cpu);
    let (k_scale, v_scale) = (scale(0.5)?, scale(0.001)?);
    let key = Tensor::new(&[-24.0f32, 12.0], &Device::Cpu)?;
    let value = Tensor::new(&[1.0f32, -48.0], &Device::Cpu)?;
    kv_scale_update(&key, &value, &k_scale, &v_scale)?;
    assert_eq!(k_scale.to_vec1::<f32>()?, [0.5]);
    assert_eq!(v_scale.to_vec1::<f32>()?, [0.2]);
    kv_scale_update(&key.to_dtype(DType::BF16)?, &value, &v_scale, &k_scale)?;
    assert_eq!(v_scale.to_vec1::<f32>()?, [0.2]);
    assert!(kv_scale_update(&key, &value, &key, &v_scale).is_err(), "a scale of two elements");
    Ok(())
}

#[test]
fn what_the_cpu_does_not_serve_is_refused_by_name() -> Result {
    let host = Host::new(Kind::Hnd, DType::F32)?.fill(7)?;
    let q = normal(&[4, HEADS, DIM], DType::F32, 80)?;
    let (tables, lengths) = (host.block_tables()?, host.context_lens()?);
    let scale = Tensor::new(&[1f32], &Device::Cpu)?;
    let call = |q: &Tensor, scale: Option<&Tensor>, k: &Tensor, tables: &Tensor, lengths: &Tensor| {
        let result =
            paged_attention(q, scale, scale, k, &host.value_cache, tables, lengths, None, 70, 0.1, 1.0, None);
        result.map(|_| String::new()).unwrap_or_else(|error| error.to_string())
    };
    assert_eq!(call(&q, None, &host.key_cache, &tables, &lengths), "");

    let message = call(&q, Some(&scale), &host.key_cache, &tables, &lengths);
    assert!(message.contains("k_scale"), "{message}");
    let bytes = host.key_cache.to_dtype(DType::F8E4M3)?;
    let message = call(&q, None, &bytes, &tables, &lengths);
    assert!(message.contains("key_cache") && message.contains("F8E4M3"), "{message}");
    let message = call(&q, None, &host.key_cache.flatten(1, 2)?, &tables, &lengths);
    assert!(message.contains("HND"), "{message}");
    let message = call(&q, None, &host.key_cache, &tables.to_dtype(DType::I64)?, &lengths);
    assert!(message.contains("block_tables") && message.contains("I64"), "{message}");
    let message = call(&q, None, &host.key_cache, &tables, &(lengths.clone() * 100.)?);
    assert!(message.contains("7000") || message.contains("100"), "{message}");
    let beyond = Tensor::full(u32::MAX, tables.shape(), &Device::Cpu)?;
    let message = call(&q, None, &host.key_cache, &beyond, &lengths);
    assert!(message.contains("out of range"), "{message}");
    let message = call(&q.narrow(0, 0, 3)?, None, &host.key_cache, &tables, &lengths);
    assert!(message.contains("3 rows") && message.contains('4'), "{message}");

    // A slot behind the last block; the caches are as they were.
    for kind in [Kind::Hnd, Kind::Standard] {
        let host = Host::new(kind, DType::F32)?.fill(8)?;
        let used = host.tables[3][0] as usize;
        let before = block(&host.key_cache, used)?;
        let rows = |dim| normal(&[2, KV_HEADS, dim], DType::F32, 90);
        let slots = Tensor::new(&[(used * BLOCK) as i64, (BLOCKS * BLOCK) as i64], &Device::Cpu)?;
        let (k, v) = (rows(DIM)?, rows(V_DIM)?);
        let error = reshape_and_cache(&k, &v, None, None, &host.key_cache, &host.value_cache, &slots);
        let message = error.expect_err("a slot behind the last").to_string();
        assert!(message.contains("320"), "{message}");
        assert_eq!(before, block(&host.key_cache, used)?);
    }
    Ok(())
}
