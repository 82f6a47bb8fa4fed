//! Sums with factors: each rank multiplies what it has by a factor of its own, into memory that
//! nobody else uses, and then all sum.
//!
//! The runtime's own operation has one factor for all ranks, so that any rank may apply it to what
//! it reads of another; a communicator of one rank applies this one's.

use crate::answer::Answer;
use crate::call::{Ends, Request};
use crate::config::{self, Asked};
use crate::factor::Op;
use oxccl::{AnyStream, Collectives, Communicator, Kind, Memory, OpKind, cuda};
use oxccl_transports::cuda::DeviceMemory;
use std::collections::BTreeMap;

/// Multiplies for one communicator.
pub(crate) struct Scaler {
    solo: Communicator,
    /// By stream, and by how many calls of the launch came before. What was too small stays: a
    /// graph may have it.
    scratch: BTreeMap<(usize, usize), Vec<Scratch>>,
}

enum Scratch {
    Host(Vec<u64>),
    Gpu(DeviceMemory),
}

impl Scratch {
    fn len_bytes(&self) -> usize {
        match self {
            Scratch::Host(words) => words.len() * size_of::<u64>(),
            Scratch::Gpu(memory) => memory.len_bytes(),
        }
    }

    fn address(&mut self) -> *mut u8 {
        match self {
            Scratch::Host(words) => words.as_mut_ptr().cast(),
            Scratch::Gpu(memory) => memory.as_ptr(),
        }
    }
}

impl Scaler {
    /// For a communicator.
    pub(crate) fn new(comm: &Communicator) -> Answer<Scaler> {
        let config = config::config(comm.device(), Asked::default())?;
        let mut solo = Communicator::local_with(1, &config)?;
        let Some(solo) = solo.pop() else { unreachable!("there is one rank") };
        Ok(Scaler { solo, scratch: BTreeMap::new() })
    }

    /// The same call as a plain sum, whose input is multiplied; other calls as they are.
    pub(crate) fn scale(
        &mut self,
        place: usize,
        request: &Request,
        stream: Option<&cuda::Stream>,
    ) -> Answer<Request> {
        if let Op::Plain(_) = request.op {
            return Ok(request.clone());
        }
        let count = request.input.count;
        // `memory` has found that they fit.
        let bytes = count * request.data_type.len_bytes();
        let all = self.scratch.entry((request.stream, place)).or_default();
        if all.last().is_none_or(|last| last.len_bytes() < bytes) {
            all.push(match stream {
                None => Scratch::Host(vec![0; bytes.div_ceil(size_of::<u64>())]),
                Some(stream) => {
                    let memory = DeviceMemory::allocate(stream.context(), bytes);
                    Scratch::Gpu(memory.map_err(oxccl_transports::Error::from)?)
                }
            });
        }
        let Some(scratch) = all.last_mut() else { unreachable!("there is one by now") };
        let scaled = Memory { address: scratch.address(), count };
        let alone =
            Request { kind: Kind::AllReduce, ends: Ends::All, output: scaled, ..request.clone() };
        match stream {
            // SAFETY: the caller vouches for the input, and the scratch is this call's alone: what
            // comes next in the stream comes behind it.
            None => unsafe { self.solo.run(alone.call()?) }?,
            Some(stream) => {
                let on = self.solo.on(AnyStream::Cuda(stream));
                // SAFETY: as above.
                drop(unsafe { on.run(alone.call()?) }?);
            }
        }
        Ok(Request { op: Op::Plain(OpKind::Sum), input: scaled, ..request.clone() })
    }
}
