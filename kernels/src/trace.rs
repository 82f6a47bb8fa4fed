//! When each step of a real run began and ended.

use crate::format::{Launch, Outcome};
use core::ffi::c_void;

/// One step of a channel in one round, as it was executed. Times on a host are CLOCK_MONOTONIC's,
/// the same in all processes of a machine; on a GPU they are of the GPU's own timer, the same for
/// all ranks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedStep {
    /// The channel.
    pub channel: u32,
    /// The round.
    pub round: u64,
    /// The step, as in the program.
    pub step: u32,
    /// When it began.
    pub start_ns: u64,
    /// When the next could begin.
    pub end_ns: u64,
}

/// The steps of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepTrace {
    /// Those of each channel in the order in which it took them.
    pub steps: Vec<TracedStep>,
    /// Steps before these for which there was no room: a GPU keeps so many of each channel.
    pub lost: u64,
}

pub(crate) type Sink = unsafe extern "C" fn(*mut c_void, u64, u32, u64, u64);
pub(crate) type Trace = unsafe extern "C" fn(*const Launch, u32, Sink, *mut c_void) -> u32;

/// A channel's steps while it runs.
struct Record {
    channel: u32,
    steps: Vec<TracedStep>,
}

unsafe extern "C" fn record(
    context: *mut c_void,
    round: u64,
    step: u32,
    start_ns: u64,
    end_ns: u64,
) {
    // SAFETY: the context that `run` has handed over, which nobody else uses while it runs.
    let record = unsafe { &mut *context.cast::<Record>() };
    let channel = record.channel;
    record.steps.push(TracedStep { channel, round, step, start_ns, end_ns });
}

/// Runs a channel of a program and returns what it did.
///
/// # Safety
///
/// As for `HostExecutor::execute`.
pub(crate) unsafe fn run(
    trace: Trace,
    launch: *const Launch,
    channel: u32,
) -> (Outcome, Vec<TracedStep>) {
    let mut kept = Record { channel, steps: Vec::new() };
    // SAFETY: the launch is the caller's promise; the sink fits the context, which outlives the
    // call.
    let outcome = unsafe { trace(launch, channel, record, (&raw mut kept).cast()) };
    (crate::host::outcome(outcome), kept.steps)
}
