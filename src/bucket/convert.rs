//! Conversions between f32 and the types that gradients and parameters travel in, by the machine's
//! own code: what is rounded here has the bits that a collective would give it.

use crate::device;
use oxccl_plans::element::{DataType, Element, F8E4M3, F8E5M2, bf16, f16};

/// A float of at most 32 bits.
pub trait Float: Element {}

impl Float for f32 {}
impl Float for f16 {}
impl Float for bf16 {}
impl Float for F8E4M3 {}
impl Float for F8E5M2 {}

/// Rounds each value to the nearest of the type, ties to even; 8-bit floats saturate. As many as
/// both slices have.
pub fn narrow<T: Float>(from: &[f32], to: &mut [T]) {
    let count = from.len().min(to.len());
    let (from, to) = (device::bytes(&from[..count]), device::bytes_mut(&mut to[..count]));
    match T::DATA_TYPE {
        DataType::F32 => to.copy_from_slice(from),
        _ => device::narrow(T::DATA_TYPE, from, to),
    }
}

/// The values as f32, which has them all. As many as both slices have.
pub fn widen<T: Float>(from: &[T], to: &mut [f32]) {
    let count = from.len().min(to.len());
    let (from, to) = (device::bytes(&from[..count]), device::bytes_mut(&mut to[..count]));
    match T::DATA_TYPE {
        DataType::F32 => to.copy_from_slice(from),
        _ => device::widen(T::DATA_TYPE, from, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_or_are_rounded() {
        let values = [0.0, -1.5, 1.0 + 1.0 / 512.0, 1e6];
        let mut small = [F8E4M3(0); 4];
        narrow(&values, &mut small);
        let mut back = [0.0; 5];
        widen(&small, &mut back);
        assert_eq!(back, [0.0, -1.5, 1.0, 448.0, 0.0]);
        let mut same = [0f32; 4];
        narrow(&values, &mut same);
        assert_eq!(same, values);
        let mut half = [bf16::ZERO; 4];
        narrow(&values, &mut half);
        assert_eq!(half, values.map(bf16::from_f32));
    }
}
