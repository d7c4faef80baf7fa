//! What a program lends to the library: threads, memory for the pool, and a pool of its own.

mod common;

use common::{config, step};
use kvcache::ops::{self, OpOptions, Pool, PoolMut, Scales, ScalesMut, Table};
use kvcache::{
    Allocator, Cache, Config, DType, Executor, Layer, OpLayout, PoolKind, Quant, SharedExecutor, TensorMut,
    TensorRef, F8E4M3, F8E5M2,
};
use std::alloc::{alloc, dealloc, Layout};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Two threads for every parallel_for.
struct Pair(Arc<AtomicUsize>);

// SAFETY: each task is taken once from a counter, by one of two workers with numbers of their own; the scope
// waits for both.
unsafe impl Executor for Pair {
    fn concurrency(&self) -> usize {
        2
    }

    fn parallel_for(&self, num_tasks: i64, task: &(dyn Fn(i64, usize) + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let next = AtomicI64::new(0);
        let work = |worker: usize| loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= num_tasks {
                return;
            }
            task(index, worker);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(1));
            work(0);
        });
    }
}

/// A prompt that is long enough for several threads.
fn long_prompt(cache: &mut Cache) -> Vec<f32> {
    cache.add(0).unwrap();
    let values: Vec<f32> = (0..2000).map(|i| (i % 7) as f32).collect();
    step(cache, &[0], &[2000], &values).unwrap()
}

fn large() -> Config {
    config().num_pages(600)
}

#[test]
fn a_cache_runs_on_the_threads_of_its_host() {
    let calls = Arc::new(AtomicUsize::new(0));
    let executor = SharedExecutor::new(Pair(calls.clone()));
    let mut own = Cache::with_config(&large()).unwrap();
    let mut lent = Cache::with_config(&large().num_threads(0).executor(&executor)).unwrap();
    drop(executor);
    assert_eq!(long_prompt(&mut own), long_prompt(&mut lent));
    assert!(calls.load(Ordering::Relaxed) > 0, "the executor was asked");
}

/// Counts the blocks that are out.
struct Counting(AtomicUsize);

const ALIGNMENT: usize = 1 << 12;

// SAFETY: blocks of the global allocator.
unsafe impl Allocator for Counting {
    fn alloc(&self, bytes: u64, alignment: u64) -> *mut c_void {
        assert!(alignment as usize <= ALIGNMENT);
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the library asks for more than nothing.
        unsafe { alloc(Layout::from_size_align(bytes as usize, ALIGNMENT).unwrap()).cast() }
    }

    unsafe fn free(&self, block: *mut c_void, bytes: u64) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: from alloc, with this layout.
        unsafe { dealloc(block.cast(), Layout::from_size_align(bytes as usize, ALIGNMENT).unwrap()) }
    }
}

#[test]
fn a_pool_comes_from_the_hosts_allocator_and_goes_back_with_the_last_export() {
    static COUNTING: Counting = Counting(AtomicUsize::new(0));
    let mut cache = Cache::with_config(&config().allocator(&COUNTING)).unwrap();
    assert!(COUNTING.0.load(Ordering::Relaxed) > 0);
    let pool = cache.export_pool(0, PoolKind::Bytes).unwrap();
    drop(cache);
    assert!(COUNTING.0.load(Ordering::Relaxed) > 0, "the export keeps it");
    std::thread::spawn(move || drop(pool)).join().unwrap();
    assert_eq!(COUNTING.0.load(Ordering::Relaxed), 0);
}

/// Has no memory, and says so in the worst way.
struct Panicking;

// SAFETY: gives nothing.
unsafe impl Allocator for Panicking {
    fn alloc(&self, _bytes: u64, _alignment: u64) -> *mut c_void {
        std::panic::resume_unwind(Box::new("no memory"))
    }

    unsafe fn free(&self, _block: *mut c_void, _bytes: u64) {}
}

#[test]
fn a_panic_in_an_allocator_is_no_memory() {
    static PANICKING: Panicking = Panicking;
    let error = Cache::with_config(&config().allocator(&PANICKING)).unwrap_err();
    assert_eq!(error.status(), kvcache::Status::NoMemory);
}

#[test]
fn a_borrowed_pool_is_written_where_it_lies() {
    // Pages of K [1][4][4], then V [1][4][4].
    let mut memory = vec![f32::NAN; 16 * 32];
    let tensor = TensorMut::new(&mut memory, &[16, 32]).unwrap();
    // SAFETY: the memory outlives the cache, and is looked at when that is gone.
    let config = unsafe { config().num_pages(0).borrow_pool(&[tensor]) };
    let mut cache = Cache::with_config(&config).unwrap();
    cache.add(0).unwrap();
    assert_eq!(step(&mut cache, &[0], &[2], &[4.0, 8.0]).unwrap(), [4.0, 6.0]);
    drop(cache);
    assert_eq!(memory.iter().filter(|x| **x == 8.0).count(), 4, "V of the second token");
}

#[test]
fn operators_write_a_hosts_pool() {
    let (mut k_pool, mut v_pool) = (vec![0.0f32; 2 * 4 * 4], vec![0.0f32; 2 * 4 * 4]);
    let shape = [2, 1, 4, 4];
    let (k, v) = ([1.0f32; 4], [2.0f32; 4]);
    let (k, v) = (TensorRef::new(&k, &[1, 1, 4]).unwrap(), TensorRef::new(&v, &[1, 1, 4]).unwrap());
    let mut pool = PoolMut {
        k: TensorMut::new(&mut k_pool, &shape).unwrap(),
        v: Some(TensorMut::new(&mut v_pool, &shape).unwrap()),
        layout: OpLayout::Hnd,
        scales: ScalesMut::None,
    };
    let slots = |slots: &[i64; 1]| -> kvcache::Result<()> {
        let slots = TensorRef::new(slots, &[1])?;
        ops::append(&mut pool, &OpOptions::default(), &slots, &k, Some(&v))
    };
    let mut append = slots;
    append(&[5]).unwrap();
    assert_eq!(append(&[8]).unwrap_err().status(), kvcache::Status::OutOfRange);
    assert_eq!(v_pool[20..24], [2.0; 4]);
    assert_eq!(v_pool.iter().sum::<f32>(), 8.0);
}

#[test]
fn rows_of_eight_bits_come_back() {
    let opt = OpOptions::default();
    let x = [1.0f32, -4.0, 0.5, 8.0, f32::INFINITY, 0.25];
    let x_tensor = TensorRef::new(&x, &[3, 1, 2]).unwrap();
    let (mut codes, mut scales) = ([0i8; 6], [127.0f32 / 127.0]);
    let clipped = ops::quantize(
        &opt,
        Quant::PerTensor,
        &x_tensor,
        &mut TensorMut::new(&mut codes, &[3, 1, 2]).unwrap(),
        &mut TensorMut::new(&mut scales, &[1]).unwrap(),
    );
    assert_eq!(clipped.unwrap(), 1);
    assert_eq!(codes, [1, -4, 0, 8, 127, 0], "ties go to the even one");

    let (mut codes, mut scales) = ([F8E5M2(9); 6], [0.0f32; 3]);
    let mut quantize = |quant, x: &TensorRef<'_>| {
        ops::quantize(
            &opt,
            quant,
            x,
            &mut TensorMut::new(&mut codes, &[3, 1, 2]).unwrap(),
            &mut TensorMut::new(&mut scales, &[3, 1]).unwrap(),
        )
    };
    assert_eq!(quantize(Quant::None, &x_tensor).unwrap_err().status(), kvcache::Status::InvalidArgument);
    assert_eq!(quantize(Quant::Block16, &x_tensor).unwrap_err().status(), kvcache::Status::Unsupported);
    assert_eq!(quantize(Quant::PerTokenHead, &x_tensor).unwrap(), 0);
    assert_eq!(scales[..2], [4.0 / 57344.0, 8.0 / 57344.0]);
    assert!(scales[2].is_nan(), "a row with an infinity");
    let mut back = [0.0f32; 6];
    ops::dequantize(
        &opt,
        Quant::PerTokenHead,
        &TensorRef::new(&codes, &[3, 1, 2]).unwrap(),
        &TensorRef::new(&scales, &[3, 1]).unwrap(),
        &mut TensorMut::new(&mut back, &[3, 1, 2]).unwrap(),
    )
    .unwrap();
    assert_eq!(back[..4], x[..4], "elements of e5m2, all of them");
    assert!(back[4].is_nan() && back[5].is_nan());
}

#[test]
fn a_hosts_pool_may_have_eight_bits() {
    let opt = OpOptions::default();
    let (mut k_pool, mut v_pool) = ([0i8; 16], [F8E4M3(0); 16]);
    let (mut k_scales, mut v_scales) = ([0.0f32; 4], [0.0f32; 4]);
    let (k, v) = ([12.7f32, -6.4, 1.27, 0.0], [448.0f32, -1.0, 0.0, 2.0]);
    let mut pool = PoolMut {
        k: TensorMut::new(&mut k_pool, &[2, 1, 2, 4]).unwrap(),
        v: Some(TensorMut::new(&mut v_pool, &[2, 1, 2, 4]).unwrap()),
        layout: OpLayout::Hnd,
        scales: ScalesMut::PerTokenHead {
            k: TensorMut::new(&mut k_scales, &[2, 1, 2]).unwrap(),
            v: Some(TensorMut::new(&mut v_scales, &[2, 1, 2]).unwrap()),
        },
    };
    let slots = TensorRef::new(&[1i64], &[1]).unwrap();
    let (k, v) = (TensorRef::new(&k, &[1, 1, 4]).unwrap(), TensorRef::new(&v, &[1, 1, 4]).unwrap());
    ops::append(&mut pool, &opt, &slots, &k, Some(&v)).unwrap();
    ops::copy_pages(&mut pool, &opt, &TensorRef::new(&[0i64, 1], &[1, 2]).unwrap()).unwrap();
    assert_eq!(k_pool[12..], [127, -64, 13, 0], "a page is copied");
    assert_eq!(k_scales[1], k_scales[3], "and its scales are");
    assert_eq!(v_scales, [0.0, 1.0, 0.0, 1.0]);

    let lengths = TensorRef::new(&[2i32], &[1]).unwrap();
    let pages = TensorRef::new(&[1i32], &[1, 1]).unwrap();
    let (k, v) =
        (TensorRef::new(&k_pool, &[2, 1, 2, 4]).unwrap(), TensorRef::new(&v_pool, &[2, 1, 2, 4]).unwrap());
    let (k_rows, v_rows) =
        (TensorRef::new(&k_scales, &[2, 1, 2]).unwrap(), TensorRef::new(&v_scales, &[2, 1, 2]).unwrap());
    let mut got = [0.0f32; 8];
    let mut gather = |scales| {
        let pool = Pool { k: &k, v: Some(&v), layout: OpLayout::Hnd, scales };
        let mut out = TensorMut::new(&mut got, &[2, 1, 4]).unwrap();
        ops::gather(&pool, &Table::padded(&lengths, &pages), &opt, None, Some(&mut out))
    };
    let missing = Scales::PerTokenHead { k: &k_rows, v: None };
    assert!(gather(missing).unwrap_err().message().contains("pool.v_scales is NULL"));
    let odd = Scales::PerTensor { k: 1.0, v: -1.0 };
    assert_eq!(gather(odd).unwrap_err().status(), kvcache::Status::OutOfRange);
    gather(Scales::PerTokenHead { k: &k_rows, v: Some(&v_rows) }).unwrap();
    assert_eq!(got[4..], [448.0, -1.0, 0.0, 2.0]);
}

#[cfg(feature = "half")]
#[test]
fn half_floats_are_elements() {
    use half::{bf16, f16};
    let (halves, bfloats) = (vec![f16::ONE; 8], vec![bf16::ONE; 4]);
    assert_eq!(TensorRef::new(&halves, &[1, 2, 4]).unwrap().dtype(), DType::F16);
    assert_eq!(TensorRef::new(&bfloats, &[1, 1, 4]).unwrap().dtype(), DType::BF16);
}

#[test]
fn bits_of_sixteen_are_attended_to() {
    // 1.0 as bfloat16; storage of bfloat16 keeps it exactly.
    let bits = [0x3F80u16; 8];
    let layer = Layer::attention(2, 1, 4).dtype(DType::BF16);
    let mut cache = Cache::with_config(&Config::new(vec![layer]).num_pages(4).num_threads(1)).unwrap();
    cache.add(0).unwrap();
    let forward = cache.begin(&kvcache::Batch::new(&[0], &[1])).unwrap();
    let q = TensorRef::new(kvcache::Bf16::from_bits_slice(&bits), &[1, 2, 4]).unwrap();
    let k = TensorRef::new(kvcache::Bf16::from_bits_slice(&bits), &[1, 1, 4]).unwrap();
    let mut out = [0.0f32; 8];
    let mut out_tensor = TensorMut::new(&mut out, &[1, 2, 4]).unwrap();
    forward.attn(0, &Default::default(), &q, (&k, &k), &mut out_tensor).unwrap();
    forward.end().unwrap();
    assert_eq!(out, [1.0; 8]);
}
