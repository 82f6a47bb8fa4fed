//! Carries out one rank's calls: looks up or prepares the program, launches it, and explains what went wrong.

mod failure;
mod logs;
mod poll;
mod prepare;
mod start;

use crate::call::{Call, Described, Key};
use crate::collective::Kind;
use crate::config::Config;
use crate::device::{Channels, Heap, Staging};
use crate::error::Error;
use crate::schedule::size_bytes;
use crate::tune::Plan;
use oxccl_kernels::format as f;
use oxccl_transports::{Bootstrap, Liveness, Reach, Server};
use poll::Poll;
use prepare::{Cache, Prepared};
use std::sync::Arc;

/// One rank of a communicator. Used by one thread at a time.
pub(crate) struct Engine {
    rank: usize,
    world: usize,
    config: Config,
    reach: Reach,
    cache: Cache,
    channels: Channels,
    launch: Box<f::Launch>,
    /// What `launch` points to.
    tables: LaunchTables,
    poll: Box<Poll>,
    staging: Arc<Staging>,
    heap: Arc<Heap>,
    liveness: Arc<Liveness>,
    /// Why this communicator ended.
    failed: Option<String>,
    /// Calls of this rank.
    calls: u64,
    /// Calls that all ranks make.
    collectives: u64,
    _bootstrap: Box<dyn Bootstrap>,
    /// Where this rank serves the rendezvous; goes last.
    _server: Option<Server>,
}

// SAFETY: the raw pointers lead to memory that the engine owns or keeps mapped; nothing is tied to a thread.
unsafe impl Send for Engine {}

/// The machine's tables of this rank. They stay where they are: `Launch` points to them.
struct LaunchTables {
    _connections: Box<[f::Connection]>,
    _windows: Box<[f::Window]>,
    statuses: Box<[f::Status]>,
}

impl Engine {
    pub(crate) fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    /// Programs launched so far.
    pub(crate) fn launches(&self) -> u64 {
        self.calls
    }

    /// Changes what plans depend on, and forgets them.
    pub(crate) fn reconfigure(&mut self, change: impl FnOnce(&mut Config)) -> Result<(), Error> {
        let mut config = self.config.clone();
        change(&mut config);
        config.check()?;
        self.poll.set_timeout(config.timeout);
        self.config = config;
        self.cache.clear();
        Ok(())
    }

    /// Keeps the steps of calls from here on, or no longer.
    pub(crate) fn set_trace(&mut self, on: bool) {
        self.channels.set_trace(on);
    }

    /// The steps that have been kept.
    pub(crate) fn take_trace(&mut self) -> Vec<oxccl_kernels::TracedStep> {
        self.channels.take_trace()
    }

    /// What a call would choose.
    pub(crate) fn plan(&self, call: &Call, windows: bool) -> Result<Plan, Error> {
        prepare::plan(&self.config, call, windows)
    }

    /// Runs one call to its end.
    ///
    /// # Safety
    ///
    /// The call's buffers are valid for its lengths, and nobody else uses them until this returns.
    #[inline]
    pub(crate) unsafe fn run(&mut self, call: &Call) -> Result<(), Error> {
        if self.failed.is_some() {
            return Err(self.broken());
        }
        let (tokens, windows) = self.tokens(call);
        let key = call_key(call, windows);
        let prepared: *const Prepared = match self.cache.last(&key, call) {
            Some(prepared) => prepared,
            None => self.cache.look_up(&self.config, self.rank, key, call)?,
        };
        // SAFETY: it points into the cache, which is not changed before the next look-up.
        let prepared = unsafe { &*prepared };
        self.calls += 1;
        let collective = call.collective.kind != Kind::SendRecv;
        self.collectives += u64::from(collective);
        let described = Described {
            key,
            order: self.config.order,
            factor_bits: call.factor_bits,
            collective: if collective { self.collectives } else { 0 },
        };
        self.poll.set_collective(described.collective);
        let log = self.staging.log(self.rank);
        log.enter(self.calls, &described.encode());
        let launch = &mut *self.launch;
        launch.program = prepared.program.header();
        launch.input = call.input;
        launch.output = call.output;
        launch.tokens = tokens;
        launch.scale_bits = call.factor_bits;
        launch.call = self.calls;
        launch.signature = prepared.signature ^ fold(call.factor_bits);
        // SAFETY: the program was lowered for these connections and for buffers of the call's lengths; the tables are this
        // engine's own, and the caller vouches for the buffers.
        let outcome = unsafe { self.channels.run(launch, prepared.program.channels()) };
        if outcome == f::Outcome::Done {
            log.leave(self.calls);
            return Ok(());
        }
        Err(self.fail(&described, outcome))
    }

    /// How peers find the call's buffers, and whether they can.
    #[inline]
    fn tokens(&self, call: &Call) -> (f::Tokens, bool) {
        if self.reach == Reach::SameProcess {
            return (f::Tokens { input: call.input as u64, output: call.output as u64 }, true);
        }
        let (input_bytes, output_bytes) = call.buffer_bytes(self.rank);
        let token = |address: *mut u8, len| {
            if address.is_null() { Some(0) } else { self.heap.offset(address as usize, len) }
        };
        match (token(call.input, input_bytes), token(call.output, output_bytes)) {
            (Some(input), Some(output)) => {
                (f::Tokens { input: input as u64, output: output as u64 }, true)
            }
            _ => (f::Tokens::default(), false),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A thread that panics has not closed in order: to the others it is dead.
        if self.failed.is_none() && !std::thread::panicking() {
            self.liveness.close(self.collectives);
        }
    }
}

#[inline]
fn call_key(call: &Call, windows: bool) -> Key {
    Key {
        kind: call.collective.kind,
        data_type: call.data_type,
        op: call.op,
        in_place: call.in_place,
        windows,
        root: call.collective.root as u32,
        receiver: call.collective.receiver as u32,
        count: call.count as u64,
        counts_hash: call.counts.as_ref().map_or(0, |counts| prepare::counts_hash(counts)),
    }
}

/// 64 bits as 32; 0 stays 0.
#[inline]
fn fold(bits: u64) -> u32 {
    (bits ^ (bits >> 32)) as u32
}

/// Elements that a chunk of a whole buffer is aligned to: a cache line.
fn chunk_align(call: &Call) -> usize {
    64 / size_bytes(call.data_type)
}
