//! `ncclRedOpCreatePreMulSum`: sums of what each rank has, times a factor.

use crate::answer::{Answer, Failure, lock};
use oxccl::{DataType, OpKind};
use std::ffi::c_int;
use std::sync::Mutex;

/// Numbers of operations below this are NCCL's own: sum, product, maximum, minimum, average.
const OWN: c_int = 5;

/// How a call reduces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Plain(OpKind),
    Scaled(Scalar),
}

/// A factor, of the type for which it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Value(Vec<u8>),
    /// Where it is in a GPU's memory when the call is carried out.
    At(usize),
}

/// A factor, and the type for which it was made.
type Factor = (DataType, Scalar);

/// A communicator's factors, by number.
#[derive(Debug, Default)]
pub(crate) struct Factors(Mutex<Vec<Option<Factor>>>);

impl Factors {
    /// An operation's number.
    pub(crate) fn create(&self, data_type: DataType, scalar: Scalar) -> c_int {
        let mut factors = lock(&self.0);
        let place = factors.iter().position(Option::is_none).unwrap_or_else(|| {
            factors.push(None);
            factors.len() - 1
        });
        factors[place] = Some((data_type, scalar));
        OWN + place as c_int
    }

    /// Ends an operation.
    pub(crate) fn destroy(&self, op: c_int) -> Answer {
        let mut factors = lock(&self.0);
        let place = usize::try_from(op.saturating_sub(OWN)).ok().filter(|_| op >= OWN);
        match place.and_then(|place| factors.get_mut(place)).and_then(Option::take) {
            Some(_) => Ok(()),
            None => Err(Failure::argument(format!("{op} is no operation that was created"))),
        }
    }

    /// What a number stands for.
    pub(crate) fn find(&self, op: c_int, data_type: DataType) -> Answer<Op> {
        let kind = match op {
            0 => OpKind::Sum,
            1 => OpKind::Prod,
            2 => OpKind::Max,
            3 => OpKind::Min,
            4 => OpKind::Avg,
            _ => {
                let factors = lock(&self.0);
                let place = usize::try_from(op).ok().and_then(|op| op.checked_sub(OWN as usize));
                return match place.and_then(|place| factors.get(place)?.clone()) {
                    Some((of, scalar)) if of == data_type => Ok(Op::Scaled(scalar)),
                    Some((of, _)) => Err(Failure::argument(format!(
                        "operation {op} was created for {of}, not for {data_type}"
                    ))),
                    None => Err(Failure::argument(format!("{op} is no operation"))),
                };
            }
        };
        Ok(Op::Plain(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_numbers_that_are_given_back() {
        let factors = Factors::default();
        let half = factors.create(DataType::F32, Scalar::Value(0.5f32.to_ne_bytes().into()));
        let two = factors.create(DataType::F64, Scalar::Value(2f64.to_ne_bytes().into()));
        assert_eq!((half, two), (5, 6));
        assert_eq!(
            factors.find(half, DataType::F32).unwrap(),
            Op::Scaled(Scalar::Value(0.5f32.to_ne_bytes().into()))
        );
        assert!(factors.find(half, DataType::F64).is_err());
        assert_eq!(factors.find(4, DataType::F64).unwrap(), Op::Plain(OpKind::Avg));
        factors.destroy(half).unwrap();
        assert!(factors.destroy(half).is_err() && factors.find(half, DataType::F32).is_err());
        assert_eq!(factors.create(DataType::I8, Scalar::At(64)), half);
        for wrong in [-1, c_int::MIN, c_int::MAX, 7, 0] {
            assert!(factors.destroy(wrong).is_err(), "{wrong}");
        }
        assert!(factors.find(-1, DataType::F32).is_err());
    }
}
