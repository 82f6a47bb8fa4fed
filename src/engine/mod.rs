//! Carries out one rank's calls: looks up or prepares the program, launches it, and explains what went wrong.

mod fabric;
mod failure;
mod group;
mod links;
mod logs;
mod poll;
mod prepare;
mod start;

use crate::call::{Asked, Call, Described, Key};
use crate::collective::Kind;
use crate::config::Config;
use crate::device::{Control, Heap, Host, RECORD_WORDS};
use crate::error::Error;
use crate::schedule::size_bytes;
use crate::tune::Plan;
use group::Groups;
use links::Links;
use oxccl_kernels::format as f;
use oxccl_transports::{Bootstrap, Liveness, Reach, Region, Server};
use poll::Poll;
use prepare::Cache;
use std::sync::Arc;

/// One rank of a communicator. Used by one thread at a time.
pub(crate) struct Engine {
    rank: usize,
    world: usize,
    config: Config,
    reach: Reach,
    cache: Cache,
    groups: Groups,
    host: Host,
    /// The way to other nodes, where there are any.
    links: Option<Arc<Links>>,
    poll: Box<Poll>,
    control: Arc<Control>,
    heap: Arc<Heap>,
    /// All ranks', which windows lead to.
    _heaps: Vec<Arc<Region>>,
    liveness: Arc<Liveness>,
    /// What `launch` is set up for.
    ready: Option<Ready>,
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

/// A call for which everything is in place.
#[derive(Clone, Copy, Debug)]
struct Ready {
    /// What was asked, where an equal call may come again.
    asked: Option<Asked>,
    described: Described,
    channels: usize,
    record: [u64; RECORD_WORDS],
}

impl Engine {
    pub(crate) fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    /// Programs launched so far.
    pub(crate) fn launches(&self) -> u64 {
        self.calls
    }

    /// Most channels of a call.
    pub(crate) fn max_channels(&self) -> usize {
        self.config.max_channels
    }

    /// Groups planned so far.
    pub(crate) fn group_plans(&self) -> u64 {
        self.groups.plans()
    }

    /// Changes what plans depend on, and forgets them.
    pub(crate) fn reconfigure(&mut self, change: impl FnOnce(&mut Config)) -> Result<(), Error> {
        let mut config = self.config.clone();
        change(&mut config);
        config.check()?;
        self.poll.set_timeout(config.timeout);
        self.config = config;
        self.ready = None;
        self.cache.clear();
        self.groups.clear();
        Ok(())
    }

    /// Keeps the steps of calls from here on, or no longer.
    pub(crate) fn set_trace(&mut self, on: bool) {
        self.host.set_trace(on);
    }

    /// The steps that have been kept.
    pub(crate) fn take_trace(&mut self) -> Vec<oxccl_kernels::TracedStep> {
        self.host.take_trace()
    }

    /// What a call would choose.
    pub(crate) fn plan(&self, call: &Call, windows: bool) -> Result<Plan, Error> {
        self.cache.plan(&self.config, call, windows)
    }

    /// Whether the last call had these arguments, and [`Engine::run_again`] would repeat it.
    #[inline]
    pub(crate) fn has_just_run(&self, asked: &Asked) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.asked.as_ref() == Some(asked))
    }

    /// Runs the last call once more, over the same buffers.
    ///
    /// # Safety
    ///
    /// As for [`Engine::run`].
    #[inline]
    pub(crate) unsafe fn run_again(&mut self) -> Result<(), Error> {
        // SAFETY: by this function's contract.
        unsafe { self.launch() }
    }

    /// Runs one call to its end. A call with the same arguments may follow by [`Engine::run_again`].
    ///
    /// # Safety
    ///
    /// As for [`Engine::run`].
    pub(crate) unsafe fn run_as(&mut self, call: &Call, asked: Asked) -> Result<(), Error> {
        self.make_ready(call)?;
        if let Some(ready) = &mut self.ready {
            ready.asked = Some(asked);
        }
        // SAFETY: by this function's contract.
        unsafe { self.launch() }
    }

    /// Runs one call to its end.
    ///
    /// # Safety
    ///
    /// The call's buffers are valid for its lengths, and nobody else uses them until this returns.
    pub(crate) unsafe fn run(&mut self, call: &Call) -> Result<(), Error> {
        self.make_ready(call)?;
        // SAFETY: by this function's contract.
        unsafe { self.launch() }
    }

    /// Looks the call up, or prepares it, and points `launch` to it.
    fn make_ready(&mut self, call: &Call) -> Result<(), Error> {
        if self.failed.is_some() {
            return Err(self.broken());
        }
        self.ready = None;
        let (tokens, windows) = self.tokens(call);
        let key = call_key(call, windows);
        let prepared = self.cache.look_up(&self.config, self.rank, key, call)?;
        let launch = &mut *self.host.launch;
        launch.program = prepared.program.header();
        launch.input = call.input;
        launch.output = call.output;
        launch.tokens = tokens;
        launch.scale_bits = call.factor_bits;
        launch.signature = prepared.signature ^ fold(call.factor_bits);
        let (order, factor_bits) = (self.config.order, call.factor_bits);
        let described = Described::call(key, order, factor_bits);
        let (channels, record) = (prepared.program.channels(), described.encode());
        self.ready = Some(Ready { asked: None, described, channels, record });
        Ok(())
    }

    /// Runs what is ready.
    ///
    /// # Safety
    ///
    /// The buffers of the call that is ready are valid for its lengths, and nobody else uses them until this returns.
    #[inline]
    unsafe fn launch(&mut self) -> Result<(), Error> {
        let Some(ready) = &mut self.ready else { return Err(self.broken()) };
        self.calls += 1;
        if ready.described.key.kind != Kind::SendRecv {
            self.collectives += 1;
            ready.described.number(self.collectives, &mut ready.record);
        }
        self.poll.set_collective(ready.described.collective);
        let log = self.control.log(self.rank);
        log.enter(self.calls, &ready.record);
        self.host.launch.call = self.calls;
        // SAFETY: the program was lowered for these connections and for buffers of the call's lengths; the cache keeps
        // the program, and the caller vouches for the buffers.
        let outcome = linked(&self.links, || unsafe { self.host.run(ready.channels) });
        if outcome == f::Outcome::Done {
            log.leave(self.calls);
            return Ok(());
        }
        let described = ready.described;
        self.ready = None;
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

/// Runs a call with the links to other nodes awake.
#[inline]
fn linked(links: &Option<Arc<Links>>, run: impl FnOnce() -> f::Outcome) -> f::Outcome {
    let Some(links) = links else { return run() };
    links.begin();
    let outcome = run();
    links.end();
    outcome
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
