//! What the safe interface costs above C: the same attention call through the C function, through this crate,
//! and through this crate with its four tensors made anew from slices each time. Run: `cargo bench --bench
//! call_cost`. Fails when the call costs more than LIMIT_NS above C.

use kvcache::{AttnOptions, Batch, Cache, Config, DType, Forward, Layer, TensorMut, TensorRef};
use kvcache_sys as sys;
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::time::Instant;

/// Nanoseconds that one call may take longer than in C.
const LIMIT_NS: f64 = 20.0;
const ROUNDS: usize = 401;
const CALLS: usize = 2000;

struct Numbers {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    out: Vec<f32>,
}

const Q: [usize; 3] = [1, 2, 4];
const KV: [usize; 3] = [1, 1, 4];

/// Nanoseconds per call.
fn time(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..CALLS).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / CALLS as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Through this crate, with tensors made before.
fn safe(forward: &Forward<'_>, numbers: &mut Numbers) -> f64 {
    let opt = AttnOptions::default();
    let q = TensorRef::new(&numbers.q, &Q).unwrap();
    let k = TensorRef::new(&numbers.k, &KV).unwrap();
    let v = TensorRef::new(&numbers.v, &KV).unwrap();
    let mut out = TensorMut::new(&mut numbers.out, &Q).unwrap();
    time(|| forward.attn(0, &opt, black_box(&q), (&k, &v), &mut out).unwrap())
}

/// Through this crate, tensors and all.
fn with_tensors(forward: &Forward<'_>, numbers: &mut Numbers) -> f64 {
    let opt = AttnOptions::default();
    time(|| {
        let q = TensorRef::new(black_box(&numbers.q), &Q).unwrap();
        let k = TensorRef::new(black_box(&numbers.k), &KV).unwrap();
        let v = TensorRef::new(black_box(&numbers.v), &KV).unwrap();
        let mut out = TensorMut::new(black_box(&mut numbers.out), &Q).unwrap();
        forward.attn(0, &opt, &q, (&k, &v), &mut out).unwrap();
    })
}

/// Through the C function, with everything prepared.
fn plain(raw: *mut sys::kvc_forward, numbers: &mut Numbers) -> f64 {
    let (mut q_shape, mut kv_shape) = (Q.map(|extent| extent as i64), KV.map(|extent| extent as i64));
    let tensor = |data: *mut f32, shape: &mut [i64; 3]| sys::DLTensor {
        data: data.cast(),
        device: sys::DLDevice { device_type: sys::kDLCPU, device_id: 0 },
        ndim: 3,
        dtype: sys::DLDataType { code: sys::kDLFloat, bits: 32, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let q = tensor(numbers.q.as_mut_ptr(), &mut q_shape);
    let k = tensor(numbers.k.as_mut_ptr(), &mut kv_shape);
    let v = tensor(numbers.v.as_mut_ptr(), &mut kv_shape);
    let mut out = tensor(numbers.out.as_mut_ptr(), &mut q_shape);
    let mut error = sys::kvc_error::default();
    time(|| {
        // SAFETY: an open forward and live tensors.
        let status =
            unsafe { sys::kvc_attn(raw, 0, null(), black_box(&q), &k, &v, &mut out, null_mut(), &mut error) };
        assert_eq!(status, sys::KVC_OK);
    })
}

fn main() {
    let layer = Layer::attention(2, 1, 4).dtype(DType::F32);
    let config = Config::new(vec![layer]).page_size(16).num_pages(4).num_threads(1);
    let mut cache = Cache::with_config(&config).unwrap();
    cache.add(0).unwrap();
    let forward = cache.begin(&Batch::new(&[0], &[1])).unwrap();
    let raw = forward.as_raw();
    let mut numbers = Numbers { q: vec![0.5; 8], k: vec![0.5; 4], v: vec![0.5; 4], out: vec![0.0; 8] };
    // In turns, so that all see the same machine; the difference of neighbours is what counts.
    let (mut in_c, mut calls, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let below = plain(raw, &mut numbers);
        in_c.push(below);
        calls.push(safe(&forward, &mut numbers) - below);
        whole.push(with_tensors(&forward, &mut numbers) - below);
    }
    let (in_c, call, whole) = (median(in_c), median(calls), median(whole));
    println!("kvc_attn, one token, in C: {in_c:.0} ns; in Rust {call:.1} ns more (limit {LIMIT_NS} ns)");
    println!("with four tensors made from slices for the call: {whole:.1} ns more");
    assert!(call <= LIMIT_NS, "the binding costs {call:.1} ns per call, more than {LIMIT_NS}");
}
