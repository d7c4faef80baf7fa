//! Do the elements of a shape lie inside a slice, and each at a place of its own?

use crate::error::{Error, Result, Status};

/// Most dimensions of a tensor here: a batch of states of 8 dimensions. With strides at most 5.
pub const MAX_DIMS: usize = 9;

/// Room for extents and strides together.
pub(crate) const DIMS: usize = 10;

#[cold]
fn overflow(shape: &[usize]) -> Error {
    Error::new(Status::Shape, format!("shape {shape:?}: more elements than memory has"))
}

/// As many strides as extents, and not too many of either.
#[inline]
pub(crate) fn check_rank(shape: &[usize], strides: Option<&[usize]>) -> Result<()> {
    let fits = match strides {
        None => shape.len() <= MAX_DIMS,
        Some(strides) => shape.len() <= DIMS / 2 && strides.len() == shape.len(),
    };
    if fits {
        return Ok(());
    }
    Err(bad_rank(shape, strides))
}

#[cold]
fn bad_rank(shape: &[usize], strides: Option<&[usize]>) -> Error {
    let message = match strides {
        Some(strides) if strides.len() != shape.len() => {
            format!("{} strides for a shape of {} dimensions", strides.len(), shape.len())
        }
        Some(_) => format!("a tensor of {} dimensions with strides: at most {}", shape.len(), DIMS / 2),
        None => format!("a tensor of {} dimensions: at most {MAX_DIMS}", shape.len()),
    };
    Error::new(Status::Shape, message)
}

/// Elements of a compact tensor.
#[inline]
pub(crate) fn compact_len(shape: &[usize]) -> Result<usize> {
    let mut product = 1usize;
    for extent in shape {
        match product.checked_mul(*extent) {
            Some(next) if *extent <= i64::MAX as usize => product = next,
            _ => return Err(overflow(shape)),
        }
    }
    Ok(product)
}

/// Row-major without gaps.
pub(crate) fn is_compact(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1usize;
    shape.iter().zip(strides).rev().all(|(extent, stride)| {
        let fits = *extent == 1 || *stride == expected;
        expected = expected.saturating_mul(*extent);
        fits
    })
}

/// One past the last element that a tensor with strides touches.
pub(crate) fn strided_len(shape: &[usize], strides: &[usize]) -> Result<usize> {
    if compact_len(shape)? == 0 {
        return Ok(0);
    }
    let steps = shape.iter().zip(strides).try_fold(1usize, |end, (extent, stride)| {
        (extent - 1).checked_mul(*stride).and_then(|step| end.checked_add(step))
    });
    steps.ok_or_else(|| overflow(shape))
}

#[inline]
pub(crate) fn check_bounds(given: usize, needed: usize, shape: &[usize]) -> Result<()> {
    if needed <= given {
        return Ok(());
    }
    Err(out_of_bounds(given, needed, shape))
}

#[cold]
fn out_of_bounds(given: usize, needed: usize, shape: &[usize]) -> Error {
    Error::new(Status::Shape, format!("shape {shape:?} needs {needed} elements, but the slice has {given}"))
}

/// No two elements at one place: taken by ascending stride, each dimension steps over all the smaller ones.
pub(crate) fn check_disjoint(shape: &[usize], strides: &[usize]) -> Result<()> {
    let mut dims: Vec<_> = strides.iter().zip(shape).filter(|(_, extent)| **extent > 1).collect();
    dims.sort_unstable();
    let mut reach = 0usize;
    for (stride, extent) in dims {
        if *stride <= reach {
            return Err(Error::new(
                Status::Shape,
                format!("strides {strides:?} of shape {shape:?}: elements overlap, an output must not"),
            ));
        }
        reach = reach.saturating_add((extent - 1).saturating_mul(*stride));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_bounded_by_the_last_element() {
        assert_eq!(strided_len(&[2, 3], &[10, 1]).unwrap(), 13);
        assert_eq!(strided_len(&[0, 3], &[10, 1]).unwrap(), 0);
        assert_eq!(strided_len(&[], &[]).unwrap(), 1);
        assert!(check_rank(&[2], Some(&[1, 1])).is_err());
        assert!(check_rank(&[1; 10], None).is_err());
        assert!(check_rank(&[1; 6], Some(&[1; 6])).is_err());
        assert!(is_compact(&[2, 1, 3], &[3, 7, 1]) && !is_compact(&[2, 3], &[4, 1]));
        assert!(strided_len(&[2, 2], &[usize::MAX, 1]).is_err());
        assert!(compact_len(&[usize::MAX, 2]).is_err());
    }

    #[test]
    fn overlapping_outputs_are_found() {
        assert!(check_disjoint(&[2, 3], &[3, 1]).is_ok());
        assert!(check_disjoint(&[3, 2], &[1, 3]).is_ok());
        assert!(check_disjoint(&[2, 3], &[2, 1]).is_err());
        assert!(check_disjoint(&[2, 3], &[0, 1]).is_err());
        assert!(check_disjoint(&[1, 3], &[0, 1]).is_ok());
    }
}
