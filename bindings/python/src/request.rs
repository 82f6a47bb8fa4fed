//! A call as Python asks for it.

use crate::array::Array;
use crate::element::Element;
use crate::error::{misuse, raise};
use oxccl::{Call, DataType, Kind, Memory, OpKind};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// One call, with what it needs to be made later.
pub(crate) struct Request {
    kind: Kind,
    data_type: DataType,
    op: OpKind,
    factor: Option<Vec<u8>>,
    ends: Ends,
    parts: Parts,
    input: Memory,
    output: Memory,
    pub(crate) keep: Vec<Py<PyAny>>,
}

// SAFETY: a request is a description of memory that its arrays keep, whatever the thread.
unsafe impl Send for Request {}
// SAFETY: as above.
unsafe impl Sync for Request {}

/// Which ranks it is from or to.
#[derive(Clone, Copy)]
pub(crate) enum Ends {
    All,
    Root(usize),
    To(usize),
    From(usize),
}

/// How long parts are, in the runtime's elements.
enum Parts {
    Even,
    PerRank(Vec<usize>),
    Own(Vec<usize>, Vec<usize>),
}

/// Arrays that are kept until a call has ended.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Vec<Py<PyAny>>>);

impl Kept {
    /// Keeps these.
    pub(crate) fn set(&self, keep: Vec<Py<PyAny>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = keep;
    }

    /// Gives the arrays back.
    pub(crate) fn release(&self) {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(kept);
    }
}

impl Request {
    /// A call over these arrays; of one that is not there, this rank needs none.
    pub(crate) fn new(
        kind: Kind,
        input: Option<Array>,
        output: Option<Array>,
    ) -> PyResult<(Request, Element)> {
        if let (Some(input), Some(output)) = (&input, &output) {
            if input.element != output.element {
                return Err(misuse(format!(
                    "{kind}: the input is of {}, the output of {}",
                    input.element.name, output.element.name
                )));
            }
            if input.is_gpu != output.is_gpu {
                return Err(misuse(format!("{kind}: one array is a GPU's, the other the host's")));
            }
        }
        if output.as_ref().is_some_and(|output| !output.is_writable) {
            return Err(misuse(format!("{kind}: the output cannot be written")));
        }
        let Some(element) = input.as_ref().or(output.as_ref()).map(|array| array.element) else {
            return Err(misuse(format!("{kind}: there is neither an input nor an output")));
        };
        let memory =
            |array: &Option<Array>| array.as_ref().map_or(Memory::NONE, |array| array.memory);
        let request = Request {
            kind,
            data_type: element.data_type,
            op: OpKind::Sum,
            factor: None,
            ends: Ends::All,
            parts: Parts::Even,
            input: memory(&input),
            output: memory(&output),
            keep: input.into_iter().chain(output).map(|array| array.keep).collect(),
        };
        Ok((request, element))
    }

    /// One without arrays.
    pub(crate) fn barrier() -> Request {
        Request {
            kind: Kind::Barrier,
            data_type: DataType::U8,
            op: OpKind::Sum,
            factor: None,
            ends: Ends::All,
            parts: Parts::Even,
            input: Memory::NONE,
            output: Memory::NONE,
            keep: Vec::new(),
        }
    }

    /// The same with these ends.
    pub(crate) fn ends(self, ends: Ends) -> Request {
        Request { ends, ..self }
    }

    /// The same, reducing so.
    pub(crate) fn reducing(
        self,
        element: Element,
        op: &str,
        factor: Option<f64>,
    ) -> PyResult<Request> {
        let op = if factor.is_some() && op == "sum" { "mulsum" } else { op };
        let op = element.op(op)?;
        if (op == OpKind::PreMulSum) != factor.is_some() {
            return Err(misuse(format!(
                "{}: a factor goes with mulsum, and it with a factor",
                self.kind
            )));
        }
        let factor = factor.map(|factor| element.factor(factor)).transpose()?;
        Ok(Request { op, factor, ..self })
    }

    /// The same with parts that differ by rank.
    pub(crate) fn counts(self, element: Element, counts: Option<Vec<usize>>) -> Request {
        match counts {
            None => self,
            Some(counts) => Request { parts: Parts::PerRank(lanes(element, counts)), ..self },
        }
    }

    /// The same with parts that differ by rank, both ways.
    pub(crate) fn own_counts(
        self,
        element: Element,
        send: Option<Vec<usize>>,
        recv: Option<Vec<usize>>,
    ) -> PyResult<Request> {
        match (send, recv) {
            (None, None) => Ok(self),
            (Some(send), Some(recv)) => Ok(Request {
                parts: Parts::Own(lanes(element, send), lanes(element, recv)),
                ..self
            }),
            _ => Err(misuse("all_to_all: send_counts and recv_counts go together")),
        }
    }

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
        let call = match &self.factor {
            None => call.op(self.op),
            Some(bytes) => call.factor(bytes)?,
        };
        Ok(match &self.parts {
            Parts::Even => call,
            Parts::PerRank(counts) => call.counts(counts),
            Parts::Own(send, recv) => call.own_counts(send, recv),
        })
    }

    /// Fails as making it would.
    pub(crate) fn check(&self, rank: usize, ranks: usize) -> PyResult<()> {
        let checked = self.call().and_then(|call| call.check(rank, ranks));
        checked.map_err(|error| raise(&error))
    }
}

/// Counts of an array's elements as those of the runtime's.
fn lanes(element: Element, counts: Vec<usize>) -> Vec<usize> {
    counts.into_iter().map(|count| count.saturating_mul(element.lanes)).collect()
}
