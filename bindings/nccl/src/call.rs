//! A call as C asks for it, checked as far as one rank can without its communicator.

use crate::abi::StreamHandle;
use crate::answer::{Answer, Failure};
use crate::factor::{Op, Scalar};
use oxccl::{Call, CallOptions, DataType, Kind, Memory, OpKind};
use std::ffi::c_int;

/// One call, to be made now or at the end of a group.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) data_type: DataType,
    pub(crate) op: Op,
    pub(crate) ends: Ends,
    pub(crate) input: Memory,
    pub(crate) output: Memory,
    pub(crate) stream: StreamHandle,
    /// What the call has asked for by a configuration.
    pub(crate) options: CallOptions,
}

// SAFETY: a request is a description of memory, for which the caller vouches.
unsafe impl Send for Request {}
// SAFETY: as above.
unsafe impl Sync for Request {}

/// Which ranks it is from or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    All,
    Root(usize),
    To(usize),
    From(usize),
}

impl Request {
    /// What the runtime is asked for.
    pub(crate) fn call(&self) -> Result<Call<'_>, oxccl::Error> {
        let call = match self.ends {
            Ends::All => Call::of(self.kind, self.data_type, self.input, self.output),
            Ends::Root(root) => {
                Call::of(self.kind, self.data_type, self.input, self.output).root(root)
            }
            Ends::To(peer) => Call::send(self.data_type, self.input, peer),
            Ends::From(peer) => Call::recv(self.data_type, self.output, peer),
        };
        match &self.op {
            Op::Plain(op) => Ok(call.op(*op)),
            Op::Scaled(Scalar::Value(bytes)) => call.factor(bytes),
            Op::Scaled(Scalar::At(address)) => {
                Ok(call.factor_at(std::ptr::with_exposed_provenance(*address)))
            }
        }
    }

    /// Bytes of a message.
    pub(crate) fn message_bytes(&self) -> usize {
        let count = if let Ends::To(_) = self.ends { self.input.count } else { self.output.count };
        // `memory` has found that they fit.
        count * self.data_type.len_bytes()
    }
}

/// `ncclDataType_t`.
pub(crate) fn data_type(number: c_int) -> Answer<DataType> {
    const ALL: [DataType; 12] = [
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::F32,
        DataType::F64,
        DataType::BF16,
        DataType::F8E4M3,
        DataType::F8E5M2,
    ];
    let found = usize::try_from(number).ok().and_then(|number| ALL.get(number));
    found.copied().ok_or_else(|| Failure::argument(format!("{number} is no data type")))
}

/// A rank of so many, as an argument gives it.
pub(crate) fn rank(argument: &str, number: c_int, ranks: usize) -> Answer<usize> {
    let found = usize::try_from(number).ok().filter(|rank| *rank < ranks);
    let last = ranks - 1;
    found.ok_or_else(|| Failure::argument(format!("{argument} {number} is not in 0 to {last}")))
}

/// No process has more memory.
const MOST_BYTES: usize = 1 << 56;

/// So many elements, times so many parts, at an address.
pub(crate) fn memory(
    argument: &str,
    address: usize,
    count: usize,
    parts: usize,
    data_type: DataType,
) -> Answer<Memory> {
    let all = count.checked_mul(parts);
    let bytes = all.and_then(|all| all.checked_mul(data_type.len_bytes()));
    let Some((all, bytes)) = all.zip(bytes).filter(|(_, bytes)| *bytes <= MOST_BYTES) else {
        return Err(Failure::argument(format!("count {count} is more than memory can have")));
    };
    if bytes > 0 && address == 0 {
        return Err(Failure::argument(format!("{argument} is NULL")));
    }
    Ok(Memory { address: std::ptr::with_exposed_provenance_mut(address), count: all })
}

/// The operation of a call that reduces nothing.
pub(crate) const NO_OP: Op = Op::Plain(OpKind::Sum);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_counts_are_refused() {
        let of = |address, count, parts| memory("sendbuff", address, count, parts, DataType::F32);
        assert!(of(64, usize::MAX, 1).is_err() && of(64, usize::MAX / 2, 4).is_err());
        assert!(of(64, usize::MAX / 4, 1).is_err() && of(64, 1 << 55, 1).is_err());
        assert!(memory("sendbuff", 64, 1 << 62, 1, DataType::I8).is_err());
        assert!(of(0, 1, 1).unwrap_err().text.contains("sendbuff is NULL"));
        assert_eq!(of(0, 0, 8).unwrap().count, 0);
        assert_eq!(of(64, 3, 8).unwrap().count, 24);
        assert!(data_type(12).is_err() && data_type(-1).is_err());
        assert_eq!(data_type(11).unwrap(), DataType::F8E5M2);
        assert!(rank("root", -1, 2).is_err() && rank("root", 2, 2).is_err());
    }
}
