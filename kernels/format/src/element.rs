//! Element types, and how they are folded.

use crate::*;

table! {
    /// Element types.
    #[repr(u8)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum DataType {
        /// Signed 8-bit integer.
        I8 = 0,
        /// Unsigned 8-bit integer.
        U8 = 1,
        /// Signed 32-bit integer.
        I32 = 2,
        /// Unsigned 32-bit integer.
        U32 = 3,
        /// Signed 64-bit integer.
        I64 = 4,
        /// Unsigned 64-bit integer.
        U64 = 5,
        /// IEEE binary16; accumulates in f32.
        F16 = 6,
        /// bfloat16; accumulates in f32.
        BF16 = 7,
        /// IEEE binary32.
        F32 = 8,
        /// IEEE binary64.
        F64 = 9,
        /// 8-bit float, 4 exponent and 3 mantissa bits (finite and NaN only); accumulates in f32,
        /// saturates.
        F8E4M3 = 10,
        /// 8-bit float, 5 exponent and 2 mantissa bits; accumulates in f32, saturates.
        F8E5M2 = 11,
    }

    /// How two values become one. `avg` is [`Fold::Sum`] with [`Scale::Average`], `premul-sum` is
    /// [`Fold::Sum`] with [`Scale::Premultiply`].
    #[repr(u8)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Fold {
        /// `a + b`; integers wrap.
        Sum = 0,
        /// `a * b`; integers wrap.
        Prod = 1,
        /// `(b < a || a is NaN) ? b : a`: a NaN loses, ties keep the earlier operand.
        Min = 2,
        /// `(b > a || a is NaN) ? b : a`: a NaN loses, ties keep the earlier operand.
        Max = 3,
        /// Bitwise and; integers only.
        BitAnd = 4,
        /// Bitwise or; integers only.
        BitOr = 5,
        /// Bitwise exclusive or; integers only.
        BitXor = 6,
    }

    /// What happens to values besides the fold.
    #[repr(u8)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Scale {
        /// Nothing.
        None = 0,
        /// Sources with [`OPERAND_RAW`] are multiplied by [`Launch::scale_bits`] in the accumulator
        /// type when read.
        Premultiply = 1,
        /// An instruction with [`INSTRUCTION_FINISH`] divides by [`Launch::ranks`] in the
        /// accumulator type before rounding (integers: the wrapped sum, truncating division).
        Average = 2,
    }
}

impl DataType {
    /// Size of an element.
    pub const fn len_bytes(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::F8E4M3 | DataType::F8E5M2 => 1,
            DataType::F16 | DataType::BF16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }

    /// Whether elements are integers.
    pub const fn is_integer(self) -> bool {
        (self as u8) <= DataType::U64 as u8
    }

    /// Whether elements can be folded so: bitwise folds are for integers only.
    pub const fn has(self, fold: Fold) -> bool {
        self.is_integer() || (fold as u8) < Fold::BitAnd as u8
    }

    /// Whether an NVSwitch folds elements so, on every GPU from sm_90 on (the table of
    /// `multimem.ld_reduce` in PTX's manual). It does so for halves' minima and maxima, too, but
    /// does not say which of a number and a NaN wins, which [`Fold::Min`] does.
    pub const fn has_multicast(self, fold: Fold) -> bool {
        match fold {
            Fold::Sum => !matches!(self.len_bytes(), 1),
            Fold::Prod => false,
            _ => self.is_integer() && self.len_bytes() >= 4,
        }
    }

    /// The name that users know, nccl-tests' where that has one.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::I8 => "int8",
            DataType::U8 => "uint8",
            DataType::I32 => "int32",
            DataType::U32 => "uint32",
            DataType::I64 => "int64",
            DataType::U64 => "uint64",
            DataType::F16 => "half",
            DataType::BF16 => "bfloat16",
            DataType::F32 => "float",
            DataType::F64 => "double",
            DataType::F8E4M3 => "f8e4m3",
            DataType::F8E5M2 => "f8e5m2",
        }
    }

    /// Whether values accumulate in the type itself, so that a partial result can be stored without
    /// being rounded once more. 8- and 16-bit floats accumulate in f32.
    pub const fn accumulates_in_itself(self) -> bool {
        self.is_integer() || matches!(self, DataType::F32 | DataType::F64)
    }

    /// The short name, as in kernel names.
    pub const fn symbol(self) -> &'static str {
        match self {
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
            DataType::F16 => "f16",
            DataType::BF16 => "bf16",
            DataType::F32 => "f32",
            DataType::F64 => "f64",
            DataType::F8E4M3 => "f8e4m3",
            DataType::F8E5M2 => "f8e5m2",
        }
    }
}

impl core::fmt::Display for DataType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

impl core::str::FromStr for DataType {
    type Err = String;

    /// Takes [`DataType::name`] and [`DataType::symbol`].
    fn from_str(text: &str) -> Result<DataType, String> {
        let is_it = |one: &DataType| one.name() == text || one.symbol() == text;
        DataType::ALL.into_iter().find(is_it).ok_or_else(|| {
            let names: Vec<_> = DataType::ALL.iter().map(|one| one.name()).collect();
            format!("{text:?} is no element type; there are {}", names.join(", "))
        })
    }
}

impl Fold {
    /// Short name, as in kernel names.
    pub const fn name(self) -> &'static str {
        match self {
            Fold::Sum => "sum",
            Fold::Prod => "prod",
            Fold::Min => "min",
            Fold::Max => "max",
            Fold::BitAnd => "band",
            Fold::BitOr => "bor",
            Fold::BitXor => "bxor",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for data_type in DataType::ALL {
            assert_eq!(data_type.name().parse(), Ok(data_type));
            assert_eq!(data_type.symbol().parse(), Ok(data_type));
            let known = |one: &&DataType| {
                one.name() == data_type.name() || one.symbol() == data_type.symbol()
            };
            assert_eq!(DataType::ALL.iter().filter(known).count(), 1);
        }
        assert!("int7".parse::<DataType>().is_err());
    }
}
