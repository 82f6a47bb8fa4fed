//! What carries launches out: the host ([`super::host`]) or a GPU ([`super::gpu`]).

use super::gpu::Registrations;
use super::prepared::{Block, Buffers, Prepared, Source};
use super::tally::Tally;
use crate::call::CheckedCall;
use crate::device::{Heaps, cuda};
use crate::error::Error;
use crate::work::Flight;
use oxccl_kernels::StepTrace;
use oxccl_kernels::format::{self as f, DataType, Fold};
use oxccl_plans::lower::{CopyStep, Program};
use oxccl_transports::Bootstrap;
use oxccl_transports::cuda::Context;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Carries out launches that are prepared. It keeps programs and tables, which it numbers.
pub(super) trait Backend: std::fmt::Debug {
    /// The calls of one launch are about to be looked for. What was seen of their buffers before
    /// may have been freed since.
    fn look_again(&self) {}

    /// How peers find the call's buffers, and whether they can. Fails for memory that cannot be
    /// used.
    fn find(&self, call: &CheckedCall) -> Result<(f::Tokens, bool), Error>;

    /// Where in the heap peers read this rank's buffer, if copy engines can carry the call out:
    /// all ranks say the same then, or they call different things.
    fn place_of(&self, _: &CheckedCall) -> Option<u64> {
        None
    }

    /// Whether what [`find`](Backend::find) has said of an address stays true.
    fn finds_for_good(&self) -> bool;

    /// What all launch blocks of this rank share.
    fn blank(&self) -> f::Launch;

    /// Brings a program to where it will run, on the launch's channels from `first_channel` on.
    /// `hot` is the hot schedule that it is, if it is one: a backend that has a kernel of that may
    /// launch it.
    fn load(
        &mut self,
        program: Program,
        reduction: (DataType, Fold),
        first_channel: usize,
        hot: Option<&'static str>,
    ) -> Result<Code, Error>;

    /// Whether copy engines carry out what they can.
    fn has_copies(&self) -> bool {
        false
    }

    /// Takes what copy engines are to do, of a call that has a [place](Backend::place_of).
    fn load_copies(&mut self, _: Vec<CopyStep>) -> Code {
        unreachable!("it has said that no call has a place")
    }

    /// Makes the tables of a launch. Their number.
    fn add_tables(
        &mut self,
        blocks: &[Block],
        sources: &[Source],
        segments: Vec<f::Segment>,
    ) -> Result<usize, Error>;

    /// Points the tables of a launch to these buffers.
    fn place(&mut self, prepared: &mut Prepared, buffers: Buffers<'_>) -> Result<(), Error>;

    /// Points the launch of a call by itself, which has been placed, to the call's other buffers.
    /// False if that takes another launch, or another look at the call.
    fn place_again(&mut self, _: &mut Prepared, _: &CheckedCall) -> bool {
        false
    }

    /// Forgets all programs and tables.
    fn forget(&mut self);

    /// Carries out a launch, whose buffers are [placed](Backend::place).
    ///
    /// # Safety
    ///
    /// As for [`Engine::launch`](super::Engine::launch).
    unsafe fn launch(
        &mut self,
        prepared: &mut Prepared,
        tally: &mut Tally,
        request: &Request<'_>,
    ) -> Result<(), Error>;

    /// The memory that the ranks of this node reach in place.
    fn heaps(&self) -> Heaps;

    /// Waits until all launches have ended.
    fn wait(&self) {}

    /// Wakes that waits have missed so far.
    fn missed_wakes(&self) -> u64 {
        0
    }

    /// Stops all that runs.
    fn abort(&self) {}

    /// The GPU, if it is one.
    fn gpu(&mut self) -> Option<&mut cuda::Gpu> {
        None
    }

    /// The GPU's context.
    fn context(&self) -> Option<Context> {
        None
    }

    /// Keeps the steps of launches from here on, on a GPU so many of each channel; or no longer.
    fn set_trace(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        steps: Option<usize>,
    ) -> Result<(), Error>;

    /// The steps that have been kept.
    fn take_trace(&mut self) -> Result<StepTrace, Error>;

    /// Lets all ranks reach memory of another library. The number by which it is known; none where
    /// all reach it as it is.
    fn register(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        address: *const u8,
        len_bytes: usize,
    ) -> Result<Option<u64>, Error>;

    /// Gives back the memory that messages go through, and keeps its addresses. No rank launches,
    /// and none goes on before all have done so.
    fn suspend(&mut self) -> Result<(), Error>;

    /// Has that memory again, as it was, behind the same addresses. All ranks do so together.
    fn resume(&mut self, bootstrap: &mut dyn Bootstrap, deadline: Instant) -> Result<(), Error>;

    /// Whether it is given back.
    fn is_suspended(&self) -> bool {
        false
    }

    /// Whether peers reach only what is in the heap.
    fn needs_heap(&self) -> bool {
        true
    }

    /// What a part of these ranks has of that from the start.
    fn registrations_of(&self, _: &[usize]) -> Option<Registrations> {
        None
    }

    /// How many allocations of other libraries are reached so.
    fn registrations(&self) -> usize {
        0
    }

    /// Takes that back.
    fn deregister(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        buffer: Option<u64>,
    ) -> Result<(), Error>;

    /// The same by this rank alone: the others hear of it when they register or take back next.
    fn leave(&mut self, _: Option<u64>) {}
}

/// A program where it will run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    /// Where the machine finds it. The backend keeps it. Null where copy engines do the work.
    pub(super) header: *const f::Header,
    /// Those that a launch of it needs: the program's, and those in front of them.
    pub(super) channels: usize,
    /// Its number among the backend's programs.
    pub(super) number: usize,
}

impl Request<'_> {
    /// One call, which has ended when the launch returns.
    pub(crate) const BLOCKING: Request<'static> =
        Request { grouped: false, gated: &[], stream: None, flight: None, timeout: None };
}

/// How calls are to be launched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request<'a> {
    /// They are a group, whose buckets can be waited for, and whose messages are exchanged
    /// together.
    pub(crate) grouped: bool,
    /// By call, in groups: whether its input is not ready. None of them, if there are fewer.
    pub(crate) gated: &'a [bool],
    /// A GPU's stream; without one, this rank's own.
    pub(crate) stream: Option<&'a cuda::Stream>,
    /// Who is told of the end. Without one the launch returns when it has ended.
    pub(crate) flight: Option<&'a Arc<Flight>>,
    /// How long it may wait without progress, instead of the communicator's time-out.
    pub(crate) timeout: Option<Duration>,
}
