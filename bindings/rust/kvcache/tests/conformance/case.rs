//! A case as its file has it: JSON whose keys are noted as they are read, and the tensors in it.

use kvcache::{Bf16, DType, StateSpec, TensorMut, TensorRef, F16, F8E4M3, F8E5M2};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashSet;

pub type Json = Value;

thread_local! {
    /// Values of the keys that were read, by address: a file stays in memory while it is played.
    static READ: RefCell<HashSet<*const Json>> = RefCell::default();
}

/// Before a file is played: no key of it is read.
pub fn forget_reads() {
    READ.with(|read| read.borrow_mut().clear());
}

fn note(value: &Json) {
    READ.with(|read| read.borrow_mut().insert(value));
}

/// A JSON object. A key that nobody reads is one that this runner does not know.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a Json);

static NOTHING: Json = Json::Null;

impl<'a> Fields<'a> {
    pub fn find(self, key: &str) -> Option<&'a Json> {
        self.0.get(key).inspect(|value| note(value))
    }
    pub fn has(self, key: &str) -> bool {
        self.find(key).is_some()
    }
    pub fn at(self, key: &str) -> &'a Json {
        self.find(key).unwrap_or_else(|| panic!("'{key}' is missing"))
    }
    /// The object under a key; an empty one where there is none.
    pub fn object(self, key: &str) -> Fields<'a> {
        Fields(self.find(key).unwrap_or(&NOTHING))
    }
    pub fn int(self, key: &str) -> i64 {
        self.at(key).as_i64().unwrap_or_else(|| panic!("{key} is no integer"))
    }
    pub fn int_or(self, key: &str, absent: i64) -> i64 {
        self.find(key).map_or(absent, |_| self.int(key))
    }
    pub fn num(self, key: &str) -> f64 {
        self.find(key).map_or(0.0, |x| x.as_f64().unwrap_or_else(|| panic!("{key} is no number")))
    }
    pub fn text(self, key: &str) -> &'a str {
        self.find(key).map_or("", |x| x.as_str().unwrap_or_else(|| panic!("{key} is no text")))
    }
    pub fn flag(self, key: &str) -> bool {
        self.find(key).is_some_and(|x| x.as_bool().unwrap_or_else(|| panic!("{key} is no truth value")))
    }
    pub fn list(self, key: &str) -> &'a [Json] {
        self.find(key).map_or(&[], |x| x.as_array().unwrap_or_else(|| panic!("{key} is no list")))
    }
    pub fn nums(self, key: &str) -> Vec<f64> {
        self.list(key).iter().map(|x| x.as_f64().unwrap_or(f64::NEG_INFINITY)).collect()
    }
    pub fn ints(self, key: &str) -> Vec<i64> {
        self.list(key).iter().map(|x| x.as_i64().unwrap_or_else(|| panic!("{key}: {x}"))).collect()
    }
    pub fn ints32(self, key: &str) -> Vec<i32> {
        self.ints(key).into_iter().map(|x| x as i32).collect()
    }
    pub fn sizes(self, key: &str) -> Vec<usize> {
        self.ints(key).into_iter().map(|x| x.max(0) as usize).collect()
    }
    pub fn seq(self) -> i64 {
        self.int("seq")
    }
    /// A layer of any number: one below zero becomes one that no model has.
    pub fn layer(self) -> usize {
        self.int("layer") as usize
    }
    pub fn state(self) -> usize {
        self.int("state") as usize
    }
    /// Members of the object under a key; all of them count as read.
    pub fn members(self, key: &str) -> impl Iterator<Item = (&'a str, &'a Json)> {
        let object = self.find(key).and_then(Json::as_object).into_iter().flatten();
        object.map(|(name, value)| (name.as_str(), value)).inspect(|(_, value)| note(value))
    }

    pub fn note_all(self) {
        for child in self.0.as_object().into_iter().flatten().map(|(_, child)| child) {
            note(child);
            Fields(child).note_all();
        }
        self.0.as_array().into_iter().flatten().for_each(|child| Fields(child).note_all());
    }

    pub fn refuse_unread(self, place: &str) {
        for (key, child) in self.0.as_object().into_iter().flatten() {
            let read = READ.with(|read| read.borrow().contains(&(child as *const Json)));
            assert!(read, "{place}: unknown key '{key}'");
            Fields(child).refuse_unread(&format!("{place}.{key}"));
        }
        self.0.as_array().into_iter().flatten().for_each(|child| Fields(child).refuse_unread(place));
    }
}

/// The generator of README.md: a multiple of 1/64 in [-1, 1); kind 0 is zero.
pub fn value(kind: i64, layer: i64, id: i64, head: i64, element: i64) -> f64 {
    if kind == 0 {
        return 0.0;
    }
    let part = |x: i64, factor: u32| (x as u32).wrapping_mul(factor);
    let mut x = part(id, 0x9E37_79B1)
        .wrapping_add(part(layer, 0x85EB_CA77))
        .wrapping_add(part(head, 0xC2B2_AE3D))
        .wrapping_add(part(element, 0x27D4_EB2F))
        .wrapping_add(part(kind, 0x1656_67B1));
    x = (x ^ x >> 15).wrapping_mul(0x2C1B_3C6D);
    x = (x ^ x >> 12).wrapping_mul(0x297A_2D39);
    (f64::from((x ^ x >> 15) & 127) - 64.0) / 64.0
}

/// The elements that a tensor of a case gives, in their order.
pub fn elements_of(spec: Fields<'_>) -> Vec<f64> {
    if spec.has("values") || !spec.has("kind") {
        return spec.nums("values");
    }
    let (kind, layer, shape) = (spec.int("kind"), spec.int("layer"), spec.ints("shape"));
    let (heads, dim) = (if shape.len() > 2 { shape[1] } else { 1 }, shape[shape.len() - 1]);
    let runs = spec.list("ids").iter().map(|run| (run[0].as_i64().unwrap(), run[1].as_i64().unwrap()));
    runs.flat_map(|(first, count)| first..first + count)
        .flat_map(|id| (0..heads).flat_map(move |h| (0..dim).map(move |d| value(kind, layer, id, h, d))))
        .collect()
}

pub fn dtype_of(name: &str) -> DType {
    match name {
        "f32" | "" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "i8" => DType::I8,
        "e4m3" => DType::F8_E4M3FN,
        "e5m2" => DType::F8_E5M2,
        _ => panic!("'{name}' is no element type"),
    }
}

#[derive(Clone, Debug)]
enum Data {
    F32(Vec<f32>),
    F16(Vec<F16>),
    Bf16(Vec<Bf16>),
    E4m3(Vec<F8E4M3>),
    E5m2(Vec<F8E5M2>),
    I8(Vec<i8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

/// A tensor of the host: new ones hold NaN, and -1 in integers.
#[derive(Clone, Debug)]
pub struct HostTensor {
    shape: Vec<usize>,
    data: Data,
}

/// Does the same with the elements, whatever their type.
macro_rules! each {
    ($data:expr, $elements:ident => $body:expr) => {
        match $data {
            Data::F32($elements) => $body,
            Data::F16($elements) => $body,
            Data::Bf16($elements) => $body,
            Data::E4m3($elements) => $body,
            Data::E5m2($elements) => $body,
            Data::I8($elements) => $body,
            Data::I32($elements) => $body,
            Data::I64($elements) => $body,
        }
    };
}

/// Elements that bits of float32 make; cases give 16-bit types only values that they hold exactly.
fn half(bits: u32) -> F16 {
    let exponent = bits >> 23 & 0xFF;
    let half = if exponent == 0 { 0 } else { (exponent - 112) << 10 | (bits >> 13 & 0x3FF) };
    F16((half | bits >> 31 << 15) as u16)
}

impl HostTensor {
    pub fn new(shape: Vec<usize>, dtype: &str, given: Vec<f64>) -> Self {
        fn filled<T: Clone>(size: usize, empty: T, given: &[f64], make: impl Fn(f64) -> T) -> Vec<T> {
            let mut elements: Vec<T> = given.iter().map(|x| make(*x)).collect();
            elements.resize(size, empty);
            elements
        }
        let size = shape.iter().product();
        assert!(given.len() <= size, "a tensor has too many values");
        let data = match dtype {
            "f32" | "" => Data::F32(filled(size, f32::NAN, &given, |x| x as f32)),
            "f16" => Data::F16(filled(size, F16(0xFFFF), &given, |x| half((x as f32).to_bits()))),
            "bf16" => {
                let bf16 = |x| Bf16(((x as f32).to_bits() >> 16) as u16);
                Data::Bf16(filled(size, Bf16(0xFFFF), &given, bf16))
            }
            // float8 by its bits.
            "e4m3" => Data::E4m3(filled(size, F8E4M3(0xFF), &given, |x| F8E4M3(x as u8))),
            "e5m2" => Data::E5m2(filled(size, F8E5M2(0xFF), &given, |x| F8E5M2(x as u8))),
            "i8" => Data::I8(filled(size, -1, &given, |x| x as i8)),
            "i32" => Data::I32(filled(size, -1, &given, |x| x as i32)),
            "i64" => Data::I64(filled(size, -1, &given, |x| x as i64)),
            _ => panic!("'{dtype}' is no element type"),
        };
        HostTensor { shape, data }
    }

    /// The tensor that a case describes; elements that it does not give stay NaN.
    pub fn of(spec: Fields<'_>) -> Self {
        HostTensor::new(spec.sizes("shape"), spec.text("dtype"), elements_of(spec))
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn view(&self) -> TensorRef<'_> {
        each!(&self.data, elements => TensorRef::new(elements, &self.shape)).unwrap()
    }

    pub fn view_mut(&mut self) -> TensorMut<'_> {
        each!(&mut self.data, elements => TensorMut::new(elements, &self.shape)).unwrap()
    }

    pub fn state_spec(&self) -> StateSpec {
        each!(&self.data, elements => StateSpec::with_init(&self.shape, elements)).unwrap()
    }

    /// float32, integers and the bits of float8 only: results have these types.
    pub fn elements(&self) -> Vec<f64> {
        match &self.data {
            Data::F32(elements) => elements.iter().map(|x| f64::from(*x)).collect(),
            Data::E4m3(elements) => elements.iter().map(|x| f64::from(x.0)).collect(),
            Data::E5m2(elements) => elements.iter().map(|x| f64::from(x.0)).collect(),
            Data::I8(elements) => elements.iter().map(|x| f64::from(*x)).collect(),
            Data::I32(elements) => elements.iter().map(|x| f64::from(*x)).collect(),
            Data::I64(elements) => elements.iter().map(|x| *x as f64).collect(),
            other => panic!("reading {other:?}"),
        }
    }
}
