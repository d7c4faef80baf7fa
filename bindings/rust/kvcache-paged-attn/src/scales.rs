//! Scales of caches of 8 bits, which hosts keep while they decide; the CPU writes no such caches.

use candle_core::{bail, CpuStorage, DType, InplaceOp1, Layout, Result, Tensor};

/// Largest value that a scale maps an element to.
const LARGEST: f32 = 240.0;

/// Raises the scales, F32 of one element each, so that |key| / k_scale and |value| / v_scale stay within 240.
pub fn kv_scale_update(key: &Tensor, value: &Tensor, k_scales: &Tensor, v_scales: &Tensor) -> Result<()> {
    for (name, scales) in [("k_scales", k_scales), ("v_scales", v_scales)] {
        if scales.dtype() != DType::F32 || scales.elem_count() != 1 {
            bail!("{name} has shape {:?} of {:?}: expected one F32", scales.dims(), scales.dtype());
        }
    }
    k_scales.inplace_op1(&Raise(largest(key)? / LARGEST))?;
    v_scales.inplace_op1(&Raise(largest(value)? / LARGEST))
}

fn largest(tensor: &Tensor) -> Result<f32> {
    if tensor.elem_count() == 0 {
        return Ok(0.0);
    }
    tensor.to_dtype(DType::F32)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

struct Raise(f32);

impl InplaceOp1 for Raise {
    fn name(&self) -> &'static str {
        "kv-scale-update"
    }

    fn cpu_fwd(&self, scale: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(scale) = scale else { bail!("{}: expected F32", self.name()) };
        let scale = &mut scale[layout.start_offset()];
        *scale = scale.max(self.0);
        Ok(())
    }
}
