//! What the machine should compute, written for clarity: one element at a time, in the listed
//! order.

pub(crate) mod small;

use oxccl_kernels::{DataType, Fold, Reduction, Scale};

/// A value in its accumulator type.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// All integers, sign- or zero-extended; wrapped to the type's width when stored.
    Integer(i128),
    Single(f32),
    Double(f64),
}

pub(crate) struct Reference<'a> {
    reduction: &'a Reduction,
}

impl<'a> Reference<'a> {
    pub(crate) fn new(reduction: &'a Reduction) -> Reference<'a> {
        Reference { reduction }
    }

    pub(crate) fn reduce(&self, sources: &[Vec<u8>]) -> Vec<u8> {
        let size = self.reduction.data_type.len_bytes();
        let count = sources[0].len() / size;
        let element = |source: &Vec<u8>, index: usize| {
            let bytes = &source[index * size..][..size];
            if sources.len() == 1 && !self.scales() {
                None
            } else {
                Some(self.scaled(self.load(bytes)))
            }
        };
        (0..count)
            .flat_map(|index| {
                let values: Option<Vec<Value>> =
                    sources.iter().map(|source| element(source, index)).collect();
                match values {
                    // A copy keeps the bits, even of a NaN.
                    None => sources[0][index * size..][..size].to_vec(),
                    Some(values) => self.store(self.finished(self.combine(&values))),
                }
            })
            .collect()
    }

    fn scales(&self) -> bool {
        let scale = self.reduction.scale;
        scale == Scale::Premultiply || (scale == Scale::Average && self.reduction.finish)
    }

    fn combine(&self, values: &[Value]) -> Value {
        if !self.reduction.tree {
            return values[1..].iter().fold(values[0], |a, &b| self.fold(a, b));
        }
        if values.len() == 1 {
            return values[0];
        }
        let middle = values.len().next_power_of_two() / 2;
        self.fold(self.combine(&values[..middle]), self.combine(&values[middle..]))
    }

    fn scaled(&self, value: Value) -> Value {
        if self.reduction.scale != Scale::Premultiply {
            return value;
        }
        let bits = self.reduction.scale_bits;
        match value {
            Value::Integer(value) => self.wrapped(value.wrapping_mul(i128::from(bits as i64))),
            Value::Single(value) => Value::Single(value * f32::from_bits(bits as u32)),
            Value::Double(value) => Value::Double(value * f64::from_bits(bits)),
        }
    }

    fn finished(&self, value: Value) -> Value {
        if self.reduction.scale != Scale::Average || !self.reduction.finish {
            return value;
        }
        let ranks = self.reduction.ranks;
        match value {
            Value::Integer(value) => Value::Integer(value / i128::from(ranks)),
            Value::Single(value) => Value::Single(value / ranks as f32),
            Value::Double(value) => Value::Double(value / f64::from(ranks)),
        }
    }

    fn fold(&self, a: Value, b: Value) -> Value {
        let fold = self.reduction.fold;
        match (a, b) {
            (Value::Integer(a), Value::Integer(b)) => self.wrapped(match fold {
                Fold::Sum => a + b,
                Fold::Prod => a.wrapping_mul(b),
                Fold::Min => a.min(b),
                Fold::Max => a.max(b),
                Fold::BitAnd => a & b,
                Fold::BitOr => a | b,
                Fold::BitXor => a ^ b,
            }),
            (Value::Single(a), Value::Single(b)) => Value::Single(match fold {
                Fold::Sum => a + b,
                Fold::Prod => a * b,
                Fold::Min => {
                    if b < a || a.is_nan() {
                        b
                    } else {
                        a
                    }
                }
                _ => {
                    if b > a || a.is_nan() {
                        b
                    } else {
                        a
                    }
                }
            }),
            (Value::Double(a), Value::Double(b)) => Value::Double(match fold {
                Fold::Sum => a + b,
                Fold::Prod => a * b,
                Fold::Min => {
                    if b < a || a.is_nan() {
                        b
                    } else {
                        a
                    }
                }
                _ => {
                    if b > a || a.is_nan() {
                        b
                    } else {
                        a
                    }
                }
            }),
            _ => unreachable!("values of one type"),
        }
    }

    /// An integer as the type keeps it.
    fn wrapped(&self, value: i128) -> Value {
        Value::Integer(match self.reduction.data_type {
            DataType::I8 => i128::from(value as i8),
            DataType::U8 => i128::from(value as u8),
            DataType::I32 => i128::from(value as i32),
            DataType::U32 => i128::from(value as u32),
            DataType::I64 => i128::from(value as i64),
            _ => i128::from(value as u64),
        })
    }

    fn load(&self, bytes: &[u8]) -> Value {
        let mut word = [0u8; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(word);
        match self.reduction.data_type {
            DataType::F32 => Value::Single(f32::from_bits(bits as u32)),
            DataType::F64 => Value::Double(f64::from_bits(bits)),
            data_type if data_type.is_integer() => self.wrapped(i128::from(bits)),
            data_type => Value::Single(small::widen(data_type, bits as u32)),
        }
    }

    fn store(&self, value: Value) -> Vec<u8> {
        let data_type = self.reduction.data_type;
        let bits = match value {
            Value::Integer(value) => value as u64,
            Value::Double(value) => value.to_bits(),
            Value::Single(value) if data_type == DataType::F32 => u64::from(value.to_bits()),
            Value::Single(value) => u64::from(small::narrow(data_type, value)),
        };
        bits.to_le_bytes()[..data_type.len_bytes()].to_vec()
    }

    /// Bit for bit, except that one NaN of f32 and f64 is as good as another: processors differ in
    /// which of two NaNs they keep. The small floats have one NaN only.
    pub(crate) fn assert_equal(
        data_type: DataType,
        found: &[u8],
        expected: &[u8],
        context: impl Fn() -> String,
    ) {
        if found == expected {
            return;
        }
        let size = data_type.len_bytes();
        let pairs = found.chunks_exact(size).zip(expected.chunks_exact(size));
        for (index, (found, expected)) in pairs.enumerate() {
            let both_nan = match data_type {
                DataType::F32 => [found, expected]
                    .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                    .iter()
                    .all(|value| value.is_nan()),
                DataType::F64 => [found, expected]
                    .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
                    .iter()
                    .all(|value| value.is_nan()),
                _ => false,
            };
            assert!(
                found == expected || both_nan,
                "element {index} is {found:x?}, not {expected:x?}: {}",
                context()
            );
        }
    }
}

/// SplitMix64.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Mostly numbers near one, so that sums round and products stay in range; some of any bits.
    pub(crate) fn elements(&mut self, data_type: DataType, fold: Fold, count: usize) -> Vec<u8> {
        (0..count)
            .flat_map(|_| {
                let bits = self.next();
                let wild = bits.is_multiple_of(16) || data_type.is_integer() || fold as u8 > 3;
                let near = ((bits >> 16) as i16 as f32 / 8192.0) + 0.01;
                let bits = match data_type {
                    _ if wild => self.next(),
                    DataType::F32 => u64::from(near.to_bits()),
                    DataType::F64 => (f64::from(near) * 1.000_000_1).to_bits(),
                    _ => u64::from(small::narrow(data_type, near)),
                };
                bits.to_le_bytes()[..data_type.len_bytes()].to_vec()
            })
            .collect()
    }

    /// A factor for [`Scale::Premultiply`].
    pub(crate) fn factor(&mut self, data_type: DataType) -> u64 {
        match data_type {
            DataType::F64 => (0.1 + (self.next() % 100) as f64 / 33.0).to_bits(),
            _ if data_type.is_integer() => self.next(),
            _ => u64::from((0.1 + (self.next() % 100) as f32 / 33.0).to_bits()),
        }
    }
}
