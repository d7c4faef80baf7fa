//! A tensor of the host: new ones hold NaN (integers -1) in every element.

use kvcache::{Bf16, StateSpec, TensorMut, TensorRef, F16};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Type {
    F32,
    F16,
    Bf16,
    I32,
    I64,
}

impl Type {
    pub fn of(name: &str) -> Type {
        match name {
            "f32" => Type::F32,
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            _ => panic!("'{name}' is no element type"),
        }
    }

    pub fn dtype(self) -> kvcache::DType {
        match self {
            Type::F32 => kvcache::DType::F32,
            Type::F16 => kvcache::DType::F16,
            Type::Bf16 => kvcache::DType::BF16,
            Type::I32 => kvcache::DType::I32,
            Type::I64 => kvcache::DType::I64,
        }
    }
}

#[derive(Clone, Debug)]
enum Data {
    F32(Vec<f32>),
    F16(Vec<F16>),
    Bf16(Vec<Bf16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

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
            Data::I32($elements) => $body,
            Data::I64($elements) => $body,
        }
    };
}

impl HostTensor {
    pub fn new(shape: &[usize], kind: Type) -> Self {
        let size = shape.iter().product();
        let data = match kind {
            Type::F32 => Data::F32(vec![f32::NAN; size]),
            Type::F16 => Data::F16(vec![F16(0xFFFF); size]),
            Type::Bf16 => Data::Bf16(vec![Bf16(0xFFFF); size]),
            Type::I32 => Data::I32(vec![-1; size]),
            Type::I64 => Data::I64(vec![-1; size]),
        };
        HostTensor { shape: shape.to_vec(), data }
    }

    pub fn f32(shape: &[usize]) -> Self {
        HostTensor::new(shape, Type::F32)
    }

    /// Filled in order; what the iterator has not got stays NaN.
    pub fn of(shape: &[usize], kind: Type, elements: impl IntoIterator<Item = f64>) -> Self {
        let mut tensor = HostTensor::new(shape, kind);
        for (index, element) in elements.into_iter().enumerate() {
            tensor.set(index, element);
        }
        tensor
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

    pub fn size(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn set(&mut self, index: usize, x: f64) {
        let bits = (x as f32).to_bits();
        match &mut self.data {
            Data::F32(elements) => elements[index] = x as f32,
            Data::I32(elements) => elements[index] = x as i32,
            Data::I64(elements) => elements[index] = x as i64,
            // Only values that the type holds exactly come here, see values.rs.
            Data::Bf16(elements) => elements[index] = Bf16((bits >> 16) as u16),
            Data::F16(elements) => {
                let exponent = bits >> 23 & 0xFF;
                let half = if exponent == 0 { 0 } else { (exponent - 112) << 10 | (bits >> 13 & 0x3FF) };
                elements[index] = F16((half | bits >> 31 << 15) as u16);
            }
        }
    }

    /// float32 and integers only: outputs are asked for in these.
    pub fn get(&self, index: usize) -> f64 {
        match &self.data {
            Data::F32(elements) => elements[index].into(),
            Data::I32(elements) => elements[index].into(),
            Data::I64(elements) => elements[index] as f64,
            other => panic!("reading {other:?}"),
        }
    }

    pub fn elements(&self) -> Vec<f64> {
        (0..self.size()).map(|index| self.get(index)).collect()
    }
}
