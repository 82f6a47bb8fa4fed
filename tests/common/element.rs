//! Elements as tests see them: made at random, accumulated in the declared type, rounded by an
//! implementation of its own.

use super::Rng;
use oxccl::{DataType, Element, F8E4M3, F8E5M2, OpKind, ReduceOp, bf16, f16};
use std::sync::OnceLock;

/// A value in the accumulator.
#[derive(Clone, Copy, Debug)]
pub enum Acc {
    Int(u64),
    F32(f32),
    F64(f64),
}

pub trait TestElement: Element + std::fmt::Debug {
    fn from_random(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn widen(self) -> Acc;
    fn round(acc: Acc) -> Self;
    /// The result of dividing by n; integers divide what has wrapped in their own width.
    fn divide(acc: Acc, n: usize) -> Acc;
    fn is_nan(self) -> bool {
        match self.widen() {
            Acc::Int(_) => false,
            Acc::F32(value) => value.is_nan(),
            Acc::F64(value) => value.is_nan(),
        }
    }
    /// Integers compare in their own signedness.
    fn less(a: u64, b: u64) -> bool;
}

pub fn same<T: TestElement>(a: T, b: T) -> bool {
    a.bits() == b.bits() || (a.is_nan() && b.is_nan())
}

/// The operation with a factor for premul-sum.
pub fn reduce_op<T: TestElement>(kind: OpKind, rng: &mut Rng) -> ReduceOp<T> {
    match kind {
        OpKind::Sum => ReduceOp::Sum,
        OpKind::Prod => ReduceOp::Prod,
        OpKind::Min => ReduceOp::Min,
        OpKind::Max => ReduceOp::Max,
        OpKind::Avg => ReduceOp::Avg,
        OpKind::PreMulSum => ReduceOp::PreMulSum(T::from_random(rng.next())),
        OpKind::BitAnd => ReduceOp::BitAnd,
        OpKind::BitOr => ReduceOp::BitOr,
        OpKind::BitXor => ReduceOp::BitXor,
    }
}

pub fn fold<T: TestElement>(kind: OpKind, a: Acc, b: Acc) -> Acc {
    macro_rules! float {
        ($variant:ident, $a:expr, $b:expr) => {
            Acc::$variant(match kind {
                OpKind::Prod => $a * $b,
                OpKind::Min => {
                    if $b < $a || $a.is_nan() {
                        $b
                    } else {
                        $a
                    }
                }
                OpKind::Max => {
                    if $b > $a || $a.is_nan() {
                        $b
                    } else {
                        $a
                    }
                }
                OpKind::Sum | OpKind::Avg | OpKind::PreMulSum => $a + $b,
                _ => unreachable!("bitwise operations are for integers"),
            })
        };
    }
    match (a, b) {
        (Acc::F32(a), Acc::F32(b)) => float!(F32, a, b),
        (Acc::F64(a), Acc::F64(b)) => float!(F64, a, b),
        (Acc::Int(a), Acc::Int(b)) => Acc::Int(match kind {
            OpKind::Prod => a.wrapping_mul(b),
            OpKind::Min => {
                if T::less(b, a) {
                    b
                } else {
                    a
                }
            }
            OpKind::Max => {
                if T::less(a, b) {
                    b
                } else {
                    a
                }
            }
            OpKind::BitAnd => a & b,
            OpKind::BitOr => a | b,
            OpKind::BitXor => a ^ b,
            OpKind::Sum | OpKind::Avg | OpKind::PreMulSum => a.wrapping_add(b),
        }),
        _ => unreachable!("one type at a time"),
    }
}

pub fn scale<T: TestElement>(op: ReduceOp<T>, value: T) -> Acc {
    match (op, value.widen()) {
        (ReduceOp::PreMulSum(factor), value) => match (factor.widen(), value) {
            (Acc::Int(a), Acc::Int(b)) => Acc::Int(a.wrapping_mul(b)),
            (Acc::F32(a), Acc::F32(b)) => Acc::F32(a * b),
            (Acc::F64(a), Acc::F64(b)) => Acc::F64(a * b),
            _ => unreachable!("one type at a time"),
        },
        (_, value) => value,
    }
}

macro_rules! integers {
    ($($type:ty: $wide:ty;)*) => {$(
        impl TestElement for $type {
            fn from_random(bits: u64) -> Self { bits as Self }
            fn bits(self) -> u64 { self as $wide as u64 }
            fn widen(self) -> Acc { Acc::Int(self as $wide as u64) }
            fn round(acc: Acc) -> Self {
                let Acc::Int(value) = acc else { unreachable!() };
                value as Self
            }
            fn divide(acc: Acc, n: usize) -> Acc {
                (Self::round(acc) / Self::try_from(n).unwrap()).widen()
            }
            fn less(a: u64, b: u64) -> bool { (a as $wide) < (b as $wide) }
        }
    )*};
}

integers! { i8: i64; u8: u64; i32: i64; u32: u64; i64: i64; u64: u64; }

/// Mostly moderate values of both signs, sometimes zeros and extremes.
fn random_f32(bits: u64) -> f32 {
    match bits % 61 {
        0 => 0.0,
        1 => -0.0,
        2 => 1.0,
        3 => 60000.0,
        _ => ((bits >> 8) as i32 as f32 / i32::MAX as f32) * 4.0,
    }
}

macro_rules! floats {
    ($($type:ty: |$bits:ident| $from:expr, |$value:ident| $raw:expr, $wide:expr, |$acc:ident| $round:expr;)*) => {$(
        impl TestElement for $type {
            fn from_random($bits: u64) -> Self { $from }
            fn bits(self) -> u64 { let $value = self; $raw }
            fn widen(self) -> Acc { let $value = self; Acc::F32($wide) }
            fn round(acc: Acc) -> Self {
                let Acc::F32($acc) = acc else { unreachable!() };
                $round
            }
            fn divide(acc: Acc, n: usize) -> Acc {
                let Acc::F32(value) = acc else { unreachable!() };
                Acc::F32(value / n as f32)
            }
            fn less(_: u64, _: u64) -> bool { unreachable!() }
        }
    )*};
}

floats! {
    f32: |bits| random_f32(bits), |v| u64::from(v.to_bits()), v, |a| a;
    f16: |bits| f16::from_f32(random_f32(bits)), |v| u64::from(v.to_bits()), v.to_f32(), |a| f16::from_f32(a);
    bf16: |bits| bf16::from_f32(random_f32(bits)), |v| u64::from(v.to_bits()), v.to_f32(), |a| bf16::from_f32(a);
    F8E4M3: |bits| F8E4M3(nearest(random_f32(bits), DataType::F8E4M3)), |v| u64::from(v.0), decode(v.0, DataType::F8E4M3),
        |a| F8E4M3(nearest(a, DataType::F8E4M3));
    F8E5M2: |bits| F8E5M2(nearest(random_f32(bits), DataType::F8E5M2)), |v| u64::from(v.0), decode(v.0, DataType::F8E5M2),
        |a| F8E5M2(nearest(a, DataType::F8E5M2));
}

impl TestElement for f64 {
    fn from_random(bits: u64) -> Self {
        f64::from(random_f32(bits)) + f64::from(random_f32(bits.rotate_left(17))) * 1e-9
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn widen(self) -> Acc {
        Acc::F64(self)
    }
    fn round(acc: Acc) -> Self {
        let Acc::F64(value) = acc else { unreachable!() };
        value
    }
    fn divide(acc: Acc, n: usize) -> Acc {
        let Acc::F64(value) = acc else { unreachable!() };
        Acc::F64(value / n as f64)
    }
    fn less(_: u64, _: u64) -> bool {
        unreachable!()
    }
}

/// The value of an 8-bit float.
fn decode(bits: u8, data_type: DataType) -> f32 {
    values(data_type)[usize::from(bits)]
}

/// The values of all bit patterns.
fn values(data_type: DataType) -> &'static [f32; 256] {
    static VALUES: [OnceLock<[f32; 256]>; 2] = [OnceLock::new(), OnceLock::new()];
    let values = &VALUES[usize::from(data_type == DataType::F8E4M3)];
    values.get_or_init(|| std::array::from_fn(|bits| value(bits as u8, data_type)))
}

/// The value of an 8-bit float, by its definition.
fn value(bits: u8, data_type: DataType) -> f32 {
    let e4m3 = data_type == DataType::F8E4M3;
    let mantissa_bits = if e4m3 { 3 } else { 2 };
    let bias = if e4m3 { 7 } else { 15 };
    let sign = if bits & 0x80 == 0 { 1.0f32 } else { -1.0 };
    let exponent = i32::from((bits & 0x7f) >> mantissa_bits);
    let mantissa = f32::from(bits & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits) as f32;
    if e4m3 && bits & 0x7f == 0x7f {
        return f32::NAN;
    }
    if !e4m3 && exponent == 31 {
        return if mantissa == 0.0 { sign * f32::INFINITY } else { f32::NAN };
    }
    match exponent {
        0 => sign * mantissa * 2f32.powi(1 - bias),
        _ => sign * (1.0 + mantissa) * 2f32.powi(exponent - bias),
    }
}

/// The 8-bit float nearest to a value, ties to the even one, saturating at the largest finite one:
/// by search among them.
fn nearest(value: f32, data_type: DataType) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return 0x7f;
    }
    let finite = if data_type == DataType::F8E4M3 { 0x7eu8 } else { 0x7b };
    let size = f64::from(value.abs());
    let values = values(data_type);
    let exact = |bits: u8| f64::from(values[usize::from(bits)]);
    // Positive bit patterns are in the order of their values.
    let positive = &values[..=usize::from(finite)];
    let above = positive.partition_point(|value| f64::from(*value) < size) as u8;
    if above == 0 || above > finite {
        return sign | above.min(finite);
    }
    let (down, up) = (size - exact(above - 1), exact(above) - size);
    let odd = (above - 1) & 1 == 1;
    sign | if up < down || (up == down && odd) { above } else { above - 1 }
}
