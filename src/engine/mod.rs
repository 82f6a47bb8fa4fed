//! Carries out one rank's calls: looks up or prepares the program, launches it, and explains what went wrong.

mod close;
mod fabric;
mod failure;
mod flights;
mod group;
mod joint;
mod launcher;
mod links;
mod logs;
mod on_gpu;
mod poll;
mod prepare;
mod registrations;
mod start;
mod tally;

use crate::call::{Asked, Call, Described, Key};
use crate::config::{Config, Device};
use crate::device::{Heap, Host, RECORD_WORDS};
use crate::error::Error;
pub(crate) use group::Placed;
use oxccl_plans::collective::Kind;
use oxccl_plans::lower::Program;
use oxccl_plans::tune::Plan;

use failure::Ranks;
use group::Groups;
pub(crate) use joint::Joint;
use links::Links;
use on_gpu::GpuCalls;
use oxccl_kernels::format::{self as f, DataType, Fold};
use oxccl_transports::cuda::Context;
use oxccl_transports::{Bootstrap, Reach, Server};
use prepare::{Cache, Code};
use std::sync::Arc;
use tally::{Signature, Tally};

/// One rank of a communicator. Used by one thread at a time.
pub(crate) struct Engine {
    config: Config,
    reach: Reach,
    cache: Cache,
    groups: Groups,
    backend: Backend,
    /// The way to other nodes, where there are any.
    links: Option<Arc<Links>>,
    heap: Arc<Heap>,
    ranks: Arc<Ranks>,
    /// What the host's launch block is set up for.
    ready: Option<Ready>,
    /// Calls of this rank.
    calls: u64,
    /// What they were, for the other ranks.
    tally: Tally,
    bootstrap: Box<dyn Bootstrap>,
    /// Where this rank serves the rendezvous; goes last.
    _server: Option<Server>,
}

// SAFETY: the raw pointers lead to memory that the engine owns or keeps mapped; nothing is tied to a thread.
unsafe impl Send for Engine {}

/// What carries calls out.
#[derive(Debug)]
enum Backend {
    Host(Host),
    Cuda(Box<GpuCalls>),
}

impl Backend {
    /// The calls of a GPU.
    fn gpu_calls(&mut self) -> Result<&mut GpuCalls, Error> {
        match self {
            Backend::Cuda(calls) => Ok(calls),
            Backend::Host(_) => Err(Error::OtherDevice { device: Device::Host }),
        }
    }

    /// What all launch blocks of this rank share.
    fn blank_launch(&self) -> f::Launch {
        match self {
            Backend::Host(host) => *host.launch,
            Backend::Cuda(calls) => calls.gpu.tables().blank(),
        }
    }

    /// Brings a program to where it will run.
    fn load(&mut self, program: Program, data_type: DataType, fold: Fold) -> Result<Code, Error> {
        match self {
            Backend::Host(_) => Ok(Code::Host(program)),
            Backend::Cuda(calls) => Ok(Code::Cuda(calls.gpu.prepare(&program, data_type, fold)?)),
        }
    }
}

/// A call for which everything is in place.
#[derive(Clone, Copy, Debug)]
struct Ready {
    /// What was asked; nothing where it cannot be repeated.
    asked: Asked,
    described: Described,
    signature: Signature,
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
        self.ranks.poll.set_timeout(config.timeout);
        self.config = config;
        self.ready = None;
        self.cache.clear();
        self.groups.clear();
        Ok(())
    }

    /// Nodes that the ranks are on.
    pub(crate) fn nodes(&self) -> usize {
        self.links.as_ref().map_or(1, |links| links.nodes())
    }

    /// What it computes on.
    pub(crate) fn device(&self) -> Device {
        self.config.device
    }

    /// Its GPU's context.
    pub(crate) fn context(&self) -> Option<Context> {
        match &self.backend {
            Backend::Host(_) => None,
            Backend::Cuda(calls) => Some(calls.gpu.context().clone()),
        }
    }

    /// Keeps the steps of calls from here on, or no longer.
    pub(crate) fn set_trace(&mut self, on: bool) -> Result<(), Error> {
        match &mut self.backend {
            Backend::Host(host) => host.set_trace(on),
            Backend::Cuda(_) => {
                let device = self.config.device;
                return Err(Error::Unsupported { what: "a trace of steps", device });
            }
        }
        Ok(())
    }

    /// The steps that have been kept.
    pub(crate) fn take_trace(&mut self) -> Vec<oxccl_kernels::TracedStep> {
        match &mut self.backend {
            Backend::Host(host) => host.take_trace(),
            Backend::Cuda(_) => Vec::new(),
        }
    }

    /// What a call would choose.
    pub(crate) fn plan(&self, call: &Call, windows: bool) -> Result<Plan, Error> {
        self.cache.plan(&self.config, call, windows, prepare::Buffers::Own)
    }

    /// Whether the last call had these arguments, and [`Engine::run_again`] would repeat it.
    #[inline]
    pub(crate) fn has_just_run(&self, asked: &Asked) -> bool {
        self.ready.as_ref().is_some_and(|ready| ready.asked == *asked)
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
        if let Backend::Cuda(_) = self.backend {
            // SAFETY: by this function's contract.
            return unsafe { self.run(call) };
        }
        self.make_ready(call)?;
        if let Some(ready) = &mut self.ready {
            ready.asked = asked;
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
        if let Backend::Cuda(_) = self.backend {
            // SAFETY: by this function's contract: this waits.
            return unsafe { self.enqueue(call, None, [None, None]) }?.wait();
        }
        self.make_ready(call)?;
        // SAFETY: by this function's contract.
        unsafe { self.launch() }
    }

    /// Looks the call up, or prepares it, and points the host's launch block to it.
    fn make_ready(&mut self, call: &Call) -> Result<(), Error> {
        self.ranks.check()?;
        self.ready = None;
        let (tokens, windows) = self.tokens(call);
        let key = call_key(call, windows);
        let rank = self.ranks.rank;
        let prepared = self.cache.look_up(&self.config, rank, key, call, &mut self.backend)?;
        let program = prepared.code.on_host()?;
        let Backend::Host(host) = &mut self.backend else { return Err(wrong_device(&self.config)) };
        let launch = &mut *host.launch;
        launch.program = program.header();
        launch.input = call.input;
        launch.output = call.output;
        launch.tokens = tokens;
        launch.scale_bits = call.factor_bits;
        let signature = prepared.signature.with_factor(call.factor_bits);
        launch.signature = signature.word();
        let (order, factor_bits) = (self.config.order, call.factor_bits);
        let described = Described::call(key, order, factor_bits);
        let (channels, record) = (program.channels(), described.encode());
        self.ready = Some(Ready { asked: Asked::NOTHING, described, signature, channels, record });
        Ok(())
    }

    /// Runs what is ready.
    ///
    /// # Safety
    ///
    /// The buffers of the call that is ready are valid for its lengths, and nobody else uses them until this returns.
    #[inline]
    unsafe fn launch(&mut self) -> Result<(), Error> {
        let (Backend::Host(host), Some(ready)) = (&mut self.backend, &mut self.ready) else {
            return Err(wrong_device(&self.config));
        };
        self.calls += 1;
        let key = &ready.described.key;
        host.launch.history = if key.kind == Kind::SendRecv {
            self.tally.message(key.root as usize, key.receiver as usize);
            0
        } else {
            let numbered = self.tally.collective(ready.signature);
            ready.described.number(numbered.collective, &mut ready.record);
            numbered.history
        };
        self.ranks.poll.set_collective(ready.described.collective);
        let log = self.ranks.control.log(self.ranks.rank);
        log.enter(self.calls, &ready.record);
        host.launch.call = self.calls;
        // SAFETY: the program was lowered for these connections and for buffers of the call's lengths; the cache keeps
        // the program, and the caller vouches for the buffers.
        let outcome = linked(&self.links, || unsafe { host.run(ready.channels) });
        if outcome == f::Outcome::Done {
            log.leave(self.calls);
            return Ok(());
        }
        let (described, odd) = (ready.described, host.odd_peer());
        self.ready = None;
        Err(self.ranks.fail(&described, self.calls, outcome, odd))
    }

    /// How peers find the call's buffers, and whether they can. Fails for a buffer that a GPU does not have.
    fn find_buffers(&self, call: &Call) -> Result<(f::Tokens, bool), Error> {
        match &self.backend {
            Backend::Host(_) => Ok(self.tokens(call)),
            Backend::Cuda(calls) => Ok(calls.find_buffers(call, &self.heap)?),
        }
    }

    /// The same on a host.
    #[inline]
    fn tokens(&self, call: &Call) -> (f::Tokens, bool) {
        if self.reach == Reach::SameProcess {
            return (f::Tokens { input: call.input as u64, output: call.output as u64 }, true);
        }
        let (input_bytes, output_bytes) = call.buffer_bytes();
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
    /// Tells the others, before anything of this rank goes.
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        if let Backend::Cuda(calls) = &self.backend {
            if panicking {
                calls.abort();
            }
            calls.wait();
        }
        // A thread that panics has not closed in order: to the others it is dead.
        if self.ranks.check().is_err() || panicking {
            return;
        }
        match logs::mismatch(&self.ranks.control, self.ranks.rank) {
            Some(error) => {
                // Nobody is there to return it to.
                eprintln!("oxccl: a communicator was dropped, not closed: {error}");
                self.ranks.end(&error, self.ranks.last_entered());
            }
            None => self.ranks.close(self.tally.collectives()),
        }
    }
}

/// What is asked for is another device's.
#[cold]
fn wrong_device(config: &Config) -> Error {
    Error::OtherDevice { device: config.device }
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
        channels: call.channels,
        count: call.common_count(),
        counts_hash: call.counts.as_ref().map_or(0, |counts| prepare::counts_hash(counts)),
    }
}

/// Elements that a chunk of a whole buffer is aligned to: a cache line.
fn chunk_align(call: &Call) -> usize {
    64 / call.data_type.len_bytes()
}
