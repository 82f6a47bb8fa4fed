//! Element types and reduction operations.

use oxccl_format::{Fold, Scale};
use std::fmt;
use std::str::FromStr;

pub use half::{bf16, f16};
pub use oxccl_format::DataType;

/// An 8-bit float with 4 exponent and 3 mantissa bits (OCP E4M3: no infinities), as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E4M3(
    /// The bits.
    pub u8,
);

/// An 8-bit float with 5 exponent and 2 mantissa bits (OCP E5M2), as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E5M2(
    /// The bits.
    pub u8,
);

mod sealed {
    pub trait Sealed {}
}

/// A type that collectives move and reduce.
///
/// Sealed: the machine has code for exactly these. Any bit pattern is a value, so memory that other
/// ranks write may hold them.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The machine's name of the type.
    const DATA_TYPE: DataType;

    /// The value in the type that it is accumulated in, as bits (zero-extended): f32 for floats of
    /// at most 32 bits, f64, i64 or u64.
    fn accumulator_bits(self) -> u64;
}

/// The accumulator's bits of a value that lies in memory as these bytes, as
/// [`Element::accumulator_bits`]. None for another number of bytes.
pub fn accumulator_bits(data_type: DataType, bytes: &[u8]) -> Option<u64> {
    bits_of(data_type, bytes)
}

macro_rules! element {
    ($($type:ty, $data_type:ident, |$value:ident| $bits:expr;)*) => {
        fn bits_of(data_type: DataType, bytes: &[u8]) -> Option<u64> {
            Some(match data_type {$(
                DataType::$data_type => {
                    let bytes: [u8; size_of::<$type>()] = bytes.try_into().ok()?;
                    // SAFETY: they are as many bytes, and any are a value (`Element`).
                    unsafe { bytes.as_ptr().cast::<$type>().read_unaligned() }.accumulator_bits()
                }
            )*})
        }
    $(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DATA_TYPE: DataType = DataType::$data_type;
            fn accumulator_bits(self) -> u64 {
                let $value = self;
                $bits
            }
        }
    )*};
}

element! {
    i8, I8, |v| i64::from(v) as u64;
    u8, U8, |v| u64::from(v);
    i32, I32, |v| i64::from(v) as u64;
    u32, U32, |v| u64::from(v);
    i64, I64, |v| v as u64;
    u64, U64, |v| v;
    f16, F16, |v| u64::from(v.to_f32().to_bits());
    bf16, BF16, |v| u64::from(v.to_f32().to_bits());
    f32, F32, |v| u64::from(v.to_bits());
    f64, F64, |v| v.to_bits();
    F8E4M3, F8E4M3, |v| u64::from(e4m3_to_f32(v.0).to_bits());
    F8E5M2, F8E5M2, |v| u64::from(f16::from_bits(u16::from(v.0) << 8).to_f32().to_bits());
}

/// The value of E4M3 bits.
fn e4m3_to_f32(bits: u8) -> f32 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f32::from(bits & 7));
    match exponent {
        0xf if bits & 7 == 7 => f32::NAN,
        0 => sign * mantissa / 512.0,
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// How values are reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReduceOp<T> {
    /// `a + b`; integers wrap; 8- and 16-bit floats accumulate in f32 and round once per reduction
    /// step.
    Sum,
    /// `a * b`; integers wrap.
    Prod,
    /// The smaller one. A NaN loses; of equal values the earlier operand's bits stay.
    Min,
    /// The larger one. A NaN loses; of equal values the earlier operand's bits stay.
    Max,
    /// The sum divided by the number of ranks, before rounding; integers divide the wrapped sum,
    /// truncating.
    Avg,
    /// Every input times the factor, summed. All ranks pass the same factor.
    PreMulSum(T),
    /// Bitwise and; integers only.
    BitAnd,
    /// Bitwise or; integers only.
    BitOr,
    /// Bitwise exclusive or; integers only.
    BitXor,
}

impl<T: Element> ReduceOp<T> {
    /// The operation without its factor.
    pub fn kind(self) -> OpKind {
        match self {
            ReduceOp::Sum => OpKind::Sum,
            ReduceOp::Prod => OpKind::Prod,
            ReduceOp::Min => OpKind::Min,
            ReduceOp::Max => OpKind::Max,
            ReduceOp::Avg => OpKind::Avg,
            ReduceOp::PreMulSum(_) => OpKind::PreMulSum,
            ReduceOp::BitAnd => OpKind::BitAnd,
            ReduceOp::BitOr => OpKind::BitOr,
            ReduceOp::BitXor => OpKind::BitXor,
        }
    }

    /// The factor's bits; 0 where there is none.
    pub fn factor_bits(self) -> u64 {
        match self {
            ReduceOp::PreMulSum(factor) => factor.accumulator_bits(),
            _ => 0,
        }
    }
}

/// A reduction operation without its factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum OpKind {
    /// See [`ReduceOp::Sum`].
    Sum = 0,
    /// See [`ReduceOp::Prod`].
    Prod = 1,
    /// See [`ReduceOp::Min`].
    Min = 2,
    /// See [`ReduceOp::Max`].
    Max = 3,
    /// See [`ReduceOp::Avg`].
    Avg = 4,
    /// See [`ReduceOp::PreMulSum`].
    PreMulSum = 5,
    /// See [`ReduceOp::BitAnd`].
    BitAnd = 6,
    /// See [`ReduceOp::BitOr`].
    BitOr = 7,
    /// See [`ReduceOp::BitXor`].
    BitXor = 8,
}

impl OpKind {
    /// All operations.
    pub const ALL: [OpKind; 9] = [
        OpKind::Sum,
        OpKind::Prod,
        OpKind::Min,
        OpKind::Max,
        OpKind::Avg,
        OpKind::PreMulSum,
        OpKind::BitAnd,
        OpKind::BitOr,
        OpKind::BitXor,
    ];

    /// The name, as on the command line (nccl-tests' names, and the bitwise ones).
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Sum => "sum",
            OpKind::Prod => "prod",
            OpKind::Min => "min",
            OpKind::Max => "max",
            OpKind::Avg => "avg",
            OpKind::PreMulSum => "mulsum",
            OpKind::BitAnd => "band",
            OpKind::BitOr => "bor",
            OpKind::BitXor => "bxor",
        }
    }

    /// Whether the type has this operation.
    pub fn applies_to(self, data_type: DataType) -> bool {
        let bitwise = matches!(self, OpKind::BitAnd | OpKind::BitOr | OpKind::BitXor);
        !bitwise || data_type.is_integer()
    }

    /// What the machine does for it.
    pub fn lower(self) -> (Fold, Scale) {
        match self {
            OpKind::Sum => (Fold::Sum, Scale::None),
            OpKind::Prod => (Fold::Prod, Scale::None),
            OpKind::Min => (Fold::Min, Scale::None),
            OpKind::Max => (Fold::Max, Scale::None),
            OpKind::Avg => (Fold::Sum, Scale::Average),
            OpKind::PreMulSum => (Fold::Sum, Scale::Premultiply),
            OpKind::BitAnd => (Fold::BitAnd, Scale::None),
            OpKind::BitOr => (Fold::BitOr, Scale::None),
            OpKind::BitXor => (Fold::BitXor, Scale::None),
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OpKind {
    type Err = String;

    fn from_str(text: &str) -> Result<OpKind, String> {
        OpKind::ALL.into_iter().find(|op| op.name() == text).ok_or_else(|| {
            let names: Vec<_> = OpKind::ALL.iter().map(|op| op.name()).collect();
            format!("{text:?} is no operation; there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_factors_have_their_value() {
        assert_eq!(e4m3_to_f32(0x38), 1.0);
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x81), -1.0 / 512.0);
        assert_eq!(F8E5M2(0x3c).accumulator_bits(), u64::from(1f32.to_bits()));
    }
}
