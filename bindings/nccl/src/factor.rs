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
    Scaled(Vec<u8>),
}

/// A factor, and the type for which it was made.
type Factor = (DataType, Vec<u8>);

/// A communicator's factors, by number.
#[derive(Debug, Default)]
pub(crate) struct Factors(Mutex<Vec<Option<Factor>>>);

impl Factors {
    /// An operation's number.
    pub(crate) fn create(&self, data_type: DataType, bytes: Vec<u8>) -> c_int {
        let mut factors = lock(&self.0);
        let place = factors.iter().position(Option::is_none).unwrap_or_else(|| {
            factors.push(None);
            factors.len() - 1
        });
        factors[place] = Some((data_type, bytes));
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
                    Some((of, bytes)) if of == data_type => Ok(Op::Scaled(bytes)),
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
        let half = factors.create(DataType::F32, 0.5f32.to_ne_bytes().into());
        let two = factors.create(DataType::F64, 2f64.to_ne_bytes().into());
        assert_eq!((half, two), (5, 6));
        assert_eq!(
            factors.find(half, DataType::F32).unwrap(),
            Op::Scaled(0.5f32.to_ne_bytes().into())
        );
        assert!(factors.find(half, DataType::F64).is_err());
        assert_eq!(factors.find(4, DataType::F64).unwrap(), Op::Plain(OpKind::Avg));
        factors.destroy(half).unwrap();
        assert!(factors.destroy(half).is_err() && factors.find(half, DataType::F32).is_err());
        assert_eq!(factors.create(DataType::I8, vec![3]), half);
        for wrong in [-1, c_int::MIN, c_int::MAX, 7, 0] {
            assert!(factors.destroy(wrong).is_err(), "{wrong}");
        }
        assert!(factors.find(-1, DataType::F32).is_err());
    }
}
