//! Element types as the checker needs them: values drawn at random, and arithmetic in the type that
//! the machine accumulates in.

use oxccl::{Element, F8E4M3, F8E5M2, OpKind, ReduceOp, bf16, f16};

/// An element type whose results can be computed independently.
pub trait Sample: Element {
    /// What values are accumulated in.
    type Accumulator: Accumulator;
    /// Half the distance of 1 and the next larger value; 0 where arithmetic is exact.
    const ROUNDOFF: f64;
    /// The smallest value above 0.
    const SMALLEST: f64;
    /// Zero.
    const ZERO: Self;
    /// What outputs hold before a call: no result is likely to be it.
    const POISON: Self;
    /// The factor of premul-sum.
    const FACTOR: Self;

    /// A value made of random bits; floats stay where no operation over or underflows.
    fn draw(random: u64, op: OpKind) -> Self;
    /// The same value in the accumulator's type.
    fn widen(self) -> Self::Accumulator;
    /// Rounded once, to the nearest, ties to even; integers wrap.
    fn narrow(value: Self::Accumulator) -> Self;

    /// Whether the bits are the same.
    fn same(self, other: Self) -> bool {
        self.accumulator_bits() == other.accumulator_bits()
    }

    /// The operation with its factor.
    fn reduce_op(op: OpKind) -> ReduceOp<Self> {
        match op {
            OpKind::Sum => ReduceOp::Sum,
            OpKind::Prod => ReduceOp::Prod,
            OpKind::Min => ReduceOp::Min,
            OpKind::Max => ReduceOp::Max,
            OpKind::Avg => ReduceOp::Avg,
            OpKind::PreMulSum => ReduceOp::PreMulSum(Self::FACTOR),
            OpKind::BitAnd => ReduceOp::BitAnd,
            OpKind::BitOr => ReduceOp::BitOr,
            OpKind::BitXor => ReduceOp::BitXor,
        }
    }
}

/// Evaluates an expression with the element type of a [`DataType`](oxccl::DataType) under a name:
/// `for_type!(data_type, T => f::<T>())`.
#[macro_export]
macro_rules! for_type {
    ($data_type:expr, $T:ident => $body:expr) => {{
        use oxccl::DataType as D;
        macro_rules! with {
            ($type:ty) => {{
                type $T = $type;
                $body
            }};
        }
        match $data_type {
            D::I8 => with!(i8),
            D::U8 => with!(u8),
            D::I32 => with!(i32),
            D::U32 => with!(u32),
            D::I64 => with!(i64),
            D::U64 => with!(u64),
            D::F16 => with!(oxccl::f16),
            D::BF16 => with!(oxccl::bf16),
            D::F32 => with!(f32),
            D::F64 => with!(f64),
            D::F8E4M3 => with!(oxccl::F8E4M3),
            D::F8E5M2 => with!(oxccl::F8E5M2),
        }
    }};
}

/// What values are accumulated in.
pub trait Accumulator: Copy {
    /// Two values become one.
    fn fold(self, other: Self, op: OpKind) -> Self;
    /// For premul-sum.
    fn times(self, factor: Self) -> Self;
    /// For avg; truncates where the type is an integer.
    fn divided_by(self, count: usize) -> Self;
    /// As a 64-bit float.
    fn approximate(self) -> f64;
}

macro_rules! integer_accumulator {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            fn fold(self, other: Self, op: OpKind) -> Self {
                match op {
                    OpKind::Sum | OpKind::Avg | OpKind::PreMulSum => self.wrapping_add(other),
                    OpKind::Prod => self.wrapping_mul(other),
                    OpKind::Min => self.min(other),
                    OpKind::Max => self.max(other),
                    OpKind::BitAnd => self & other,
                    OpKind::BitOr => self | other,
                    OpKind::BitXor => self ^ other,
                }
            }
            fn times(self, factor: Self) -> Self {
                self.wrapping_mul(factor)
            }
            fn divided_by(self, count: usize) -> Self {
                self / count as Self
            }
            fn approximate(self) -> f64 {
                self as f64
            }
        }
    )*};
}

macro_rules! float_accumulator {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            fn fold(self, other: Self, op: OpKind) -> Self {
                match op {
                    OpKind::Sum | OpKind::Avg | OpKind::PreMulSum => self + other,
                    OpKind::Prod => self * other,
                    OpKind::Min => if other < self || self.is_nan() { other } else { self },
                    OpKind::Max => if other > self || self.is_nan() { other } else { self },
                    OpKind::BitAnd | OpKind::BitOr | OpKind::BitXor => {
                        unreachable!("bitwise operations are refused for floats")
                    }
                }
            }
            fn times(self, factor: Self) -> Self {
                self * factor
            }
            fn divided_by(self, count: usize) -> Self {
                self / count as Self
            }
            fn approximate(self) -> f64 {
                self.into()
            }
        }
    )*};
}

integer_accumulator!(i64, u64);
float_accumulator!(f32, f64);

macro_rules! integer_sample {
    ($($type:ty as $accumulator:ty;)*) => {$(
        impl Sample for $type {
            type Accumulator = $accumulator;
            const ROUNDOFF: f64 = 0.0;
            const SMALLEST: f64 = 1.0;
            const ZERO: Self = 0;
            const POISON: Self = 0xa5a5_a5a5_a5a5_a5a5_u64 as Self;
            const FACTOR: Self = 3;

            fn draw(random: u64, _op: OpKind) -> Self {
                random as Self
            }
            fn widen(self) -> $accumulator {
                self.into()
            }
            fn narrow(value: $accumulator) -> Self {
                value as Self
            }
        }
    )*};
}

integer_sample! {
    i8 as i64;
    u8 as u64;
    i32 as i64;
    u32 as u64;
    i64 as i64;
    u64 as u64;
}

macro_rules! float_sample {
    ($($type:ty as $accumulator:ty {
        mantissa: $mantissa:literal, bias: $bias:literal, bits: $bits:ty,
        from_bits: $from_bits:expr, widen: $widen:expr, narrow: $narrow:expr
    })*) => {$(
        impl Sample for $type {
            type Accumulator = $accumulator;
            const ROUNDOFF: f64 = 0.5 / (1u64 << $mantissa) as f64;
            const SMALLEST: f64 = power_of_two(1 - $bias - $mantissa);
            const ZERO: Self = $from_bits(0);
            const POISON: Self = $from_bits(0xa5a5_a5a5_a5a5_a5a5_u64 as $bits);
            /// 1.5.
            const FACTOR: Self = $from_bits(($bias << $mantissa) | (1 << ($mantissa - 1)));

            fn draw(random: u64, op: OpKind) -> Self {
                let (exponent, fraction) = magnitude(random, op);
                let exponent = ((($bias + exponent) as u64) << $mantissa) as $bits;
                let fraction = fraction as $bits & (((1 as $bits) << $mantissa) - 1);
                let sign = ((random >> 63) as $bits) << (<$bits>::BITS - 1);
                $from_bits(sign | exponent | fraction)
            }
            fn widen(self) -> $accumulator {
                $widen(self)
            }
            fn narrow(value: $accumulator) -> Self {
                $narrow(value)
            }
        }
    )*};
}

float_sample! {
    f16 as f32 {
        mantissa: 10, bias: 15, bits: u16,
        from_bits: f16::from_bits, widen: f16::to_f32, narrow: f16::from_f32
    }
    bf16 as f32 {
        mantissa: 7, bias: 127, bits: u16,
        from_bits: bf16::from_bits, widen: bf16::to_f32, narrow: bf16::from_f32
    }
    f32 as f32 {
        mantissa: 23, bias: 127, bits: u32,
        from_bits: f32::from_bits, widen: |v| v, narrow: |v| v
    }
    f64 as f64 {
        mantissa: 52, bias: 1023, bits: u64,
        from_bits: f64::from_bits, widen: |v| v, narrow: |v| v
    }
    F8E4M3 as f32 {
        mantissa: 3, bias: 7, bits: u8,
        from_bits: F8E4M3, widen: |v: F8E4M3| E4M3.value(v.0), narrow: |v| F8E4M3(E4M3.bits(v))
    }
    F8E5M2 as f32 {
        mantissa: 2, bias: 15, bits: u8,
        from_bits: F8E5M2, widen: |v: F8E5M2| E5M2.value(v.0), narrow: |v| F8E5M2(E5M2.bits(v))
    }
}

/// Exponent and fraction of a drawn float: between 1/4 and 1 for sums; near 1, and mostly 1, for
/// products.
fn magnitude(random: u64, op: OpKind) -> (i32, u64) {
    let coin = (random >> 62 & 1) as i32;
    match op {
        OpKind::Prod if random >> 60 & 3 != 0 => (0, 0),
        OpKind::Prod => (-coin, random),
        _ => (-1 - coin, random),
    }
}

const fn power_of_two(exponent: i32) -> f64 {
    match exponent {
        -1022.. => f64::from_bits(((1023 + exponent) as u64) << 52),
        _ => f64::from_bits(1 << (exponent + 1074)),
    }
}

/// An 8-bit float format, for finite values; what is too large becomes the largest.
struct Float8 {
    mantissa: i32,
    bias: i32,
    largest: u8,
}

const E4M3: Float8 = Float8 { mantissa: 3, bias: 7, largest: 0x7e };
const E5M2: Float8 = Float8 { mantissa: 2, bias: 15, largest: 0x7b };

impl Float8 {
    fn value(&self, bits: u8) -> f32 {
        let fraction = f32::from(bits & ((1 << self.mantissa) - 1));
        let exponent = i32::from(bits & 0x7f) >> self.mantissa;
        let unit = 2f32.powi(1 - self.bias - self.mantissa);
        let magnitude = match exponent {
            0 => fraction * unit,
            _ => ((1 << self.mantissa) as f32 + fraction) * unit * 2f32.powi(exponent - 1),
        };
        if bits & 0x80 == 0 { magnitude } else { -magnitude }
    }

    fn bits(&self, value: f32) -> u8 {
        let magnitude = value.abs();
        let own = (magnitude.to_bits() >> 23) as i32 - 127;
        let exponent = own.max(1 - self.bias);
        // In units of the last place; up to 2 ^ (mantissa + 1), which carries into the exponent.
        let units = (magnitude / 2f32.powi(exponent - self.mantissa)).round_ties_even() as u32;
        let bits = ((exponent + self.bias - 1) << self.mantissa) as u32 + units;
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        sign | bits.min(u32::from(self.largest)) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_go_there_and_back() {
        for (format, others) in [(E4M3, [0x7f, 0xff]), (E5M2, [0x7f, 0xff])] {
            for bits in (0..=255u8).filter(|bits| bits & 0x7f <= format.largest) {
                assert!(!others.contains(&bits));
                assert_eq!(format.bits(format.value(bits)), bits, "{bits:#x}");
            }
        }
        assert_eq!(E4M3.value(0x7e), 448.0);
        assert_eq!(E5M2.value(0x7b), 57344.0);
        assert_eq!(E4M3.value(1), 2f32.powi(-9));
    }

    #[test]
    fn eight_bit_floats_round_to_the_nearest_and_saturate() {
        // 1 and 1.125 are neighbours: their middle goes to the even one.
        assert_eq!(E4M3.value(E4M3.bits(1.0625)), 1.0);
        assert_eq!(E4M3.value(E4M3.bits(1.0626)), 1.125);
        assert_eq!(E4M3.value(E4M3.bits(1.1875)), 1.25);
        assert_eq!(E4M3.value(E4M3.bits(1e6)), 448.0);
        assert_eq!(E5M2.value(E5M2.bits(-1e9)), -57344.0);
        assert_eq!(E4M3.bits(2f32.powi(-11)), 0, "half of the smallest goes to zero");
    }

    #[test]
    fn constants_are_what_they_say() {
        assert_eq!(f16::FACTOR.to_f32(), 1.5);
        assert_eq!(E4M3.value(F8E4M3::FACTOR.0), 1.5);
        assert_eq!(f64::FACTOR, 1.5);
        assert_eq!(f32::ROUNDOFF, f64::from(f32::EPSILON) / 2.0);
        assert_eq!(f64::SMALLEST, f64::from_bits(1));
        assert_eq!(f16::SMALLEST, f16::from_bits(1).to_f64());
    }

    #[test]
    fn drawn_values_stay_in_range() {
        let mut random = 1u64;
        for _ in 0..1000 {
            random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(12345);
            for op in [OpKind::Sum, OpKind::Min] {
                let value = f32::draw(random, op).abs();
                assert!((0.25..1.0).contains(&value), "{value}");
            }
            let value = E4M3.value(F8E4M3::draw(random, OpKind::Prod).0).abs();
            assert!((0.5..2.0).contains(&value), "{value}");
        }
    }
}
