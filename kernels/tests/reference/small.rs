//! 16- and 8-bit floats: the former by the `half` crate, the latter by their definition.

use half::{bf16, f16};
use oxccl_kernels::DataType;
use std::sync::OnceLock;

/// The bits of an element.
pub(crate) fn bits(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u32::from(byte))
}

/// The value of an element.
pub(crate) fn widen(data_type: DataType, bits: u32) -> f32 {
    match data_type {
        DataType::F16 => f16::from_bits(bits as u16).to_f32(),
        DataType::BF16 => bf16::from_bits(bits as u16).to_f32(),
        DataType::F8E4M3 => tiny(bits, 4, 3, true),
        _ => tiny(bits, 5, 2, false),
    }
}

/// The nearest element, ties to even; fp8 saturates; NaN is the canonical one.
pub(crate) fn narrow(data_type: DataType, value: f32) -> u32 {
    match data_type {
        DataType::F16 | DataType::BF16 if value.is_nan() => 0x7fff,
        DataType::F16 => u32::from(f16::from_f32(value).to_bits()),
        DataType::BF16 => u32::from(bf16::from_f32(value).to_bits()),
        _ if value.is_nan() => 0x7f,
        _ => nearest(data_type, value),
    }
}

fn tiny(bits: u32, exponent_bits: u32, mantissa_bits: u32, finite: bool) -> f32 {
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let fraction = f64::from(mantissa) / f64::from(1 << mantissa_bits);
    let highest = (1 << exponent_bits) - 1;
    let magnitude = if exponent == 0 {
        fraction * 2f64.powi(1 - bias)
    } else if finite && bits & 0x7f == 0x7f {
        f64::NAN
    } else if !finite && exponent == highest {
        if mantissa == 0 { f64::INFINITY } else { f64::NAN }
    } else {
        (1.0 + fraction) * 2f64.powi(exponent as i32 - bias)
    };
    (sign * magnitude) as f32
}

/// All magnitudes of the type, ascending; the index is the bit pattern.
fn magnitudes(data_type: DataType) -> &'static [f64] {
    static TABLES: [OnceLock<Vec<f64>>; 2] = [OnceLock::new(), OnceLock::new()];
    TABLES[usize::from(data_type == DataType::F8E5M2)].get_or_init(|| {
        let values = (0..0x80).map(|bits| f64::from(widen(data_type, bits)));
        values.take_while(|value| value.is_finite()).collect()
    })
}

fn nearest(data_type: DataType, value: f32) -> u32 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let (table, magnitude) = (magnitudes(data_type), f64::from(value.abs()));
    let above = table.partition_point(|&candidate| candidate < magnitude);
    let chosen = if above == table.len() {
        above - 1
    } else if above == 0 {
        0
    } else {
        // Exact in f64: the values have a few bits only.
        let (low, high) = (magnitude - table[above - 1], table[above] - magnitude);
        if low < high || (low == high && above % 2 == 1) { above - 1 } else { above }
    };
    chosen as u32 | sign
}
