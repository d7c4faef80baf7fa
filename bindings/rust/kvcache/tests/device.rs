//! A cache on a GPU: the emulated one of the library's own tests. `bindings/rust/test` runs this in a process that
//! has it; KVC_CUDA_MODULES names the directory of the back end, KVC_CUDA_RUNTIME the emulator's library, whose CUDA runtime is used here as an engine would.

use kvcache::{
    AttnOptions, Batch, Cache, Config, DType, Device, Layer, Quant, Status, Stream, TensorMut, TensorRef,
};
use std::ffi::{c_char, c_int, c_void, CString};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// One test has the device at a time: a device that is synchronised, or written to without a stream, invalidates what another thread captures.
static DEVICE: Mutex<()> = Mutex::new(());

/// The functions of the CUDA runtime that this test needs.
struct Cuda {
    _alone: MutexGuard<'static, ()>,
    malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int,
    copy: unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int) -> c_int,
    synchronize: unsafe extern "C" fn() -> c_int,
    new_stream: unsafe extern "C" fn(*mut *mut c_void, u32) -> c_int,
    begin_capture: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    end_capture: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int,
    instantiate: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u64) -> c_int,
    launch: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
}

const NON_BLOCKING: u32 = 1;
const RELAXED: c_int = 2;
const ANY_DIRECTION: c_int = 4;
const RTLD_NOW: c_int = 2;

/// A function of a library.
///
/// # Safety
/// `F` is the type of the function pointer.
unsafe fn find<F: Copy>(library: *mut c_void, name: &str) -> F {
    let name = CString::new(name).unwrap();
    // SAFETY: an open library and a terminated name; the type is the caller's promise.
    unsafe {
        let found = dlsym(library, name.as_ptr());
        assert!(!found.is_null(), "the CUDA runtime has no {name:?}");
        std::mem::transmute_copy(&found)
    }
}

impl Cuda {
    /// None: this process has no emulated device.
    fn open() -> Option<Cuda> {
        let file = CString::new(std::env::var("KVC_CUDA_RUNTIME").ok()?).unwrap();
        let alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
        kvcache::set_module_path(std::env::var("KVC_CUDA_MODULES").unwrap()).unwrap();
        // SAFETY: functions of the declared types, by the names of the CUDA runtime.
        unsafe {
            let library = dlopen(file.as_ptr(), RTLD_NOW);
            assert!(!library.is_null(), "{file:?} cannot be opened");
            Some(Cuda {
                _alone: alone,
                malloc: find(library, "cudaMalloc"),
                copy: find(library, "cudaMemcpy"),
                synchronize: find(library, "cudaDeviceSynchronize"),
                new_stream: find(library, "cudaStreamCreateWithFlags"),
                begin_capture: find(library, "cudaStreamBeginCapture"),
                end_capture: find(library, "cudaStreamEndCapture"),
                instantiate: find(library, "cudaGraphInstantiate"),
                launch: find(library, "cudaGraphLaunch"),
            })
        }
    }

    fn new_stream(&self) -> (*mut c_void, Stream) {
        let mut raw = null_mut();
        // SAFETY: one output; the stream lives as long as the process.
        unsafe {
            assert_eq!((self.new_stream)(&mut raw, NON_BLOCKING), 0);
            (raw, Stream::from_raw(raw))
        }
    }
}

/// Float32 on the device, kept as long as the process.
struct Array<'a> {
    cuda: &'a Cuda,
    data: *mut c_void,
    shape: Vec<usize>,
}

impl<'a> Array<'a> {
    fn new(cuda: &'a Cuda, shape: &[usize], values: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        let mut data = null_mut();
        // SAFETY: one output.
        assert_eq!(unsafe { (cuda.malloc)(&mut data, 4 * values.len()) }, 0);
        let array = Array { cuda, data, shape: shape.to_vec() };
        array.set(values);
        array
    }

    fn set(&self, values: &[f32]) {
        let (from, bytes) = (values.as_ptr().cast(), 4 * values.len());
        // SAFETY: as many bytes on both sides.
        let copied = unsafe { (self.cuda.copy)(self.data, from, bytes, ANY_DIRECTION) };
        assert_eq!(copied, 0);
    }

    fn get(&self) -> Vec<f32> {
        let mut values = vec![0.0f32; self.shape.iter().product()];
        // SAFETY: as many bytes on both sides.
        unsafe {
            assert_eq!((self.cuda.synchronize)(), 0);
            assert_eq!(
                (self.cuda.copy)(values.as_mut_ptr().cast(), self.data, 4 * values.len(), ANY_DIRECTION),
                0
            );
        }
        values
    }

    fn view(&self) -> TensorRef<'_> {
        // SAFETY: allocated with this shape, and for ever.
        unsafe { TensorRef::from_raw_parts(self.data, DType::F32, Device::cuda(0), &self.shape, None) }
            .unwrap()
    }

    fn view_mut(&mut self) -> TensorMut<'_> {
        // SAFETY: as above; nobody reads it before `get` has waited.
        unsafe { TensorMut::from_raw_parts(self.data, DType::F32, Device::cuda(0), &self.shape, None) }
            .unwrap()
    }
}

fn config() -> Config {
    Config::new(vec![Layer::attention(2, 1, 4).dtype(DType::F32)]).page_size(4).num_pages(16)
}

fn on_gpu() -> Cache {
    let limits = config().max_seqs(2).max_seq_len(64).max_tokens_per_forward(8).host_byte_budget(1 << 16);
    Cache::with_config(&limits.device(Device::cuda(0))).unwrap()
}

/// q = 0, so that each output is the mean of the values that its token sees.
fn inputs<'a>(cuda: &'a Cuda, values: &[f32]) -> [Array<'a>; 4] {
    let tokens = values.len();
    let v: Vec<f32> = values.iter().flat_map(|value| [*value; 4]).collect();
    [
        Array::new(cuda, &[tokens, 2, 4], &vec![0.0; 8 * tokens]),
        Array::new(cuda, &[tokens, 1, 4], &vec![0.0; 4 * tokens]),
        Array::new(cuda, &[tokens, 1, 4], &v),
        Array::new(cuda, &[tokens, 2, 4], &vec![f32::NAN; 8 * tokens]),
    ]
}

fn means(out: &Array<'_>) -> Vec<f32> {
    out.get().chunks(8).map(|row| row[0]).collect()
}

#[test]
fn steps_on_a_stream_copies_with_fences_and_a_graph() {
    let Some(cuda) = Cuda::open() else { return };
    let (raw_stream, stream) = cuda.new_stream();
    let mut cache = on_gpu();
    cache.add(1).unwrap();

    let [q, k, v, mut out] = inputs(&cuda, &[1.0, 3.0, 5.0]);
    let step = cache.begin(&Batch::new(&[1], &[3]).stream(stream)).unwrap();
    step.attn(0, &AttnOptions::default(), &q.view(), (&k.view(), &v.view()), &mut out.view_mut()).unwrap();
    step.end().unwrap();
    assert_eq!(means(&out), [1.0, 2.0, 3.0]);

    cache.swap_out_on(&[1], stream).unwrap().wait_on_stream(stream).unwrap();
    cache.swap_in_on(&[1], stream).unwrap().wait().unwrap();

    // A decode step, captured, then replayed twice with new values.
    let [q, k, v, mut out] = inputs(&cuda, &[7.0]);
    let (mut graph, mut executable) = (null_mut(), null_mut());
    // SAFETY: the stream is this test's, and nothing else runs.
    unsafe { assert_eq!((cuda.begin_capture)(raw_stream, RELAXED), 0) };
    let step = cache.begin(&Batch::new(&[1], &[1]).stream(stream)).unwrap();
    step.attn(0, &AttnOptions::default(), &q.view(), (&k.view(), &v.view()), &mut out.view_mut()).unwrap();
    step.end().unwrap();
    // SAFETY: as above.
    unsafe {
        assert_eq!((cuda.end_capture)(raw_stream, &mut graph), 0);
        assert_eq!((cuda.instantiate)(&mut executable, graph, 0), 0);
        assert_eq!((cuda.launch)(executable, raw_stream), 0);
    }
    assert_eq!(means(&out), [4.0]);
    for (value, mean) in [(9.0, 5.0), (11.0, 6.0)] {
        v.set(&[value; 4]);
        let step = cache.begin(&Batch::new(&[1], &[1]).stream(stream).replay()).unwrap();
        let refused =
            step.attn(0, &AttnOptions::default(), &q.view(), (&k.view(), &v.view()), &mut out.view_mut());
        assert_eq!(refused.unwrap_err().status(), Status::InvalidState);
        // SAFETY: as above.
        unsafe { assert_eq!((cuda.launch)(executable, raw_stream), 0) };
        step.end().unwrap();
        assert_eq!(means(&out), [mean]);
    }
    cache.check().unwrap();
}

/// float8 holds 448 at most: K = 640, 1280 and V = 40960 are only right when each is divided by its own scale.
#[test]
fn scales_of_quantised_storage_are_those_of_the_layer() {
    let Some(cuda) = Cuda::open() else { return };
    let attended = |k_scale: f32, v_scale: f32| {
        let layer = Layer::attention(2, 1, 4).dtype(DType::F8_E4M3FN).quant(Quant::PerTensor);
        let config = Config::new(vec![layer.k_scale(k_scale).v_scale(v_scale)]).page_size(4).num_pages(4);
        let limits = config.max_seqs(1).max_seq_len(16).max_tokens_per_forward(8).device(Device::cuda(0));
        let mut cache = Cache::with_config(&limits).unwrap();
        cache.add(1).unwrap();
        let [q, k, v, mut out] = inputs(&cuda, &[0.0, 40960.0]);
        q.set(&[0.001; 16]);
        k.set(&[640.0, 640.0, 640.0, 640.0, 1280.0, 1280.0, 1280.0, 1280.0]);
        let step = cache.begin(&Batch::new(&[1], &[2])).unwrap();
        step.attn(0, &AttnOptions::default(), &q.view(), (&k.view(), &v.view()), &mut out.view_mut())
            .unwrap();
        step.end().unwrap();
        means(&out)[1]
    };
    let want = 40960.0 / (1.0 + f32::exp(-1.28)); // scores 1.28 and 2.56
    assert!((attended(64.0, 128.0) / want - 1.0).abs() < 1e-3);
    for (k_scale, v_scale) in [(128.0, 64.0), (0.0, 128.0), (64.0, 0.0)] {
        let found = attended(k_scale, v_scale);
        assert!((found / want - 1.0).abs() > 0.05, "{k_scale}, {v_scale}: {found}");
    }
}

#[test]
fn tensors_of_the_host_are_refused() {
    let Some(_cuda) = Cuda::open() else { return };
    let mut cache = on_gpu();
    cache.add(1).unwrap();
    let (q, k, mut out) = ([0.0f32; 8], [0.0f32; 4], [0.0f32; 8]);
    let step = cache.begin(&Batch::new(&[1], &[1])).unwrap();
    let k = TensorRef::new(&k, &[1, 1, 4]).unwrap();
    let refused = step.attn(
        0,
        &AttnOptions::default(),
        &TensorRef::new(&q, &[1, 2, 4]).unwrap(),
        (&k, &k),
        &mut TensorMut::new(&mut out, &[1, 2, 4]).unwrap(),
    );
    assert_eq!(refused.unwrap_err().status(), Status::DeviceMismatch);
}

#[test]
fn the_cpu_looks_at_no_stream() {
    let mut cache = Cache::with_config(&config()).unwrap();
    cache.add(1).unwrap();
    // SAFETY: the CPU does not use it.
    let stream = unsafe { Stream::from_raw(std::ptr::without_provenance_mut(12345)) };
    cache.begin(&Batch::new(&[1], &[1]).stream(stream).partial()).unwrap().end().unwrap();
    let refused = cache.begin(&Batch::new(&[1], &[1]).replay()).unwrap_err();
    assert_eq!(refused.status(), Status::Unsupported);
    assert_eq!(cache.length(1).unwrap(), 1);
}
