//! The host as what carries launches out: in the thread that asks for them, and in a thread for
//! each further channel.

mod outputs;

use super::backend::{Backend, Code, Request};
use super::diagnosis::{Odd, Ranks};
use super::linked;
use super::links::Links;
use super::prepared::{Block, Buffers, Chain, Places, Prepared, Source, has_tables};
use super::tally::Tally;
use crate::call::CheckedCall;
use crate::device::{Edge, Heap, HeapBlock, Heaps, Host, Reached, Signals};
use crate::error::Error;
use crate::target::Device;
use crate::work::Flight;
use outputs::Outputs;
use oxccl_kernels::StepTrace;
use oxccl_kernels::format::{self as f, DataType, Fold};
use oxccl_plans::lower::Program;
use oxccl_transports::{Bootstrap, Reach, Region};
use std::sync::Arc;
use std::time::Instant;

const UNREADY_EDGES: &str = "a group whose buckets are not ready, over registered memory that shares pages with other memory,";

/// One rank's part of the host.
#[derive(Debug)]
pub(super) struct HostBackend {
    host: Host,
    /// With what each uses as its own.
    programs: Vec<(Program, Option<Region>)>,
    tables: Vec<Tables>,
    ranks: Arc<Ranks>,
    heap: Arc<Heap>,
    links: Option<Arc<Links>>,
    reach: Reach,
    /// Whether the times of calls are kept.
    has_times: bool,
    outputs: Outputs,
}

/// The tables of a launch: one is over before the next one begins.
#[derive(Debug)]
struct Tables {
    chain: Chain,
    /// A [`f::SegmentTokens`] for each entry: in the heap, for peers. None where the machine needs
    /// no tables.
    shared: Option<HeapBlock>,
    /// What is copied to the heap before the launch and, of outputs, back after it.
    edges: Edges,
}

#[derive(Debug, Default)]
struct Edges {
    inputs: Vec<Edge>,
    outputs: Vec<Edge>,
}

impl Edges {
    fn are_some(&self) -> bool {
        !(self.inputs.is_empty() && self.outputs.is_empty())
    }

    /// # Safety
    /// The memory of the calls is there, and nobody else uses it.
    unsafe fn copy_in(&self) {
        // SAFETY: by this function's contract.
        self.inputs.iter().chain(&self.outputs).for_each(|edge| unsafe { edge.copy_in() });
    }

    /// # Safety
    /// As for [`copy_in`](Edges::copy_in).
    unsafe fn copy_out(&self) {
        // SAFETY: by this function's contract.
        self.outputs.iter().for_each(|edge| unsafe { edge.copy_out() });
    }
}

impl HostBackend {
    /// Nothing loaded yet.
    pub(super) fn new(
        host: Host,
        ranks: Arc<Ranks>,
        heap: Arc<Heap>,
        links: Option<Arc<Links>>,
        (reach, has_times, cache_bytes): (Reach, bool, usize),
    ) -> HostBackend {
        let (programs, tables) = (Vec::new(), Vec::new());
        let here = match reach {
            Reach::SameProcess => ranks.control.ranks(),
            Reach::SharedMemory => host.heaps().iter().flatten().count(),
        };
        let outputs = Outputs::new(cache_bytes, here);
        HostBackend { host, programs, tables, ranks, heap, links, reach, has_times, outputs }
    }

    /// Looks for the call's buffers; what of them has to be copied to the heap is added.
    #[inline]
    fn look_for(&self, call: &CheckedCall, edges: &mut Edges) -> Found {
        let (addresses, lengths) = ([call.input, call.output], call.buffer_bytes());
        let found = |windows| Found {
            tokens: f::Tokens { input: addresses[0] as u64, output: addresses[1] as u64 },
            windows,
            addresses,
        };
        if self.reach == Reach::SameProcess {
            return found(true);
        }
        let reach = |at: *mut u8, len_bytes| match at.is_null() {
            true => Some(Reached { offset: 0, at, edges: [None; 2] }),
            false => self.heap.reach(at, len_bytes),
        };
        let is_one = addresses[0] == addresses[1] && lengths.0 == lengths.1;
        let input = reach(addresses[0], lengths.0);
        let output = if is_one { input } else { reach(addresses[1], lengths.1) };
        // What the system reads it finds by its address.
        let (Some(input), Some(output)) = (input, output) else { return found(false) };
        edges.inputs.extend(input.edges.into_iter().flatten());
        edges.outputs.extend(output.edges.into_iter().flatten());
        Found {
            tokens: f::Tokens { input: input.offset as u64, output: output.offset as u64 },
            windows: true,
            addresses: [input.at, output.at],
        }
    }
}

/// Where a call's buffers are.
struct Found {
    /// How peers find them, and whether they can.
    tokens: f::Tokens,
    windows: bool,
    /// Where the machine uses them.
    addresses: [*mut u8; 2],
}

impl Backend for HostBackend {
    fn find(&self, call: &CheckedCall) -> Result<(f::Tokens, bool), Error> {
        let Found { tokens, windows, .. } = self.look_for(call, &mut Edges::default());
        Ok((tokens, windows))
    }

    fn missed_wakes(&self) -> u64 {
        self.host.missed_wakes()
    }

    fn finds_for_good(&self) -> bool {
        true
    }

    fn blank(&self) -> f::Launch {
        self.host.blank()
    }

    fn load(
        &mut self,
        mut program: Program,
        _: (DataType, Fold),
        first_channel: usize,
        _: Option<&'static str>,
    ) -> Result<Code, Error> {
        let scratch = match program.scratch_bytes() {
            0 => None,
            len_bytes => {
                let scratch = Region::create("oxccl scratch", len_bytes)?;
                scratch.reserve(0, len_bytes, None)?;
                program.set_scratch(scratch.as_ptr());
                Some(scratch)
            }
        };
        let (header, channels) = (program.header(), first_channel + program.channels());
        // A program's words stay where they are.
        self.programs.push((program, scratch));
        Ok(Code { header, channels, number: self.programs.len() - 1 })
    }

    fn add_tables(
        &mut self,
        blocks: &[Block],
        sources: &[Source],
        segments: Vec<f::Segment>,
    ) -> Result<usize, Error> {
        let shared = match has_tables(blocks) {
            true => Some(self.heap.alloc(segments.len() * size_of::<f::SegmentTokens>())?),
            false => None,
        };
        let tokens = shared.as_ref().map_or(std::ptr::null(), |of| of.as_ptr().cast_const().cast());
        let chain = Chain::new(blocks, sources, &segments, |launches, segments| Places {
            launches: launches.as_ptr(),
            segments: segments.as_ptr(),
            tokens,
        });
        self.tables.push(Tables { chain, shared, edges: Edges::default() });
        Ok(self.tables.len() - 1)
    }

    fn place(&mut self, prepared: &mut Prepared, buffers: Buffers<'_>) -> Result<(), Error> {
        let base = self.needs_heap().then(|| self.heap.base());
        let (mut edges, mut reached) = (Edges::default(), Vec::new());
        if self.needs_heap() && self.heap.has_lent() {
            reached.extend_from_slice(buffers.calls);
            for call in &mut reached {
                [call.input, call.output] = self.look_for(call, &mut edges).addresses;
            }
        }
        let calls = if reached.is_empty() { buffers.calls } else { &reached };
        let buffers = Buffers { calls, ..buffers };
        prepared.has_edges = edges.are_some();
        let Tables { chain, shared, edges: known } = &mut self.tables[prepared.tables];
        *known = edges;
        let tokens = shared.as_ref().map(|shared| shared.as_ptr().cast::<f::SegmentTokens>());
        chain.set_buffers((&prepared.blocks, &prepared.sources), buffers, base, |at, shared| {
            let Some(tokens) = tokens else { return };
            // SAFETY: the block has one for each entry. Peers read it only in a call, between this
            // rank's first message and its last, and no call is under way.
            unsafe { tokens.add(at).write_volatile(shared) };
        });
        prepared.first =
            chain.launches.first_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        Ok(())
    }

    fn place_again(&mut self, prepared: &mut Prepared, call: &CheckedCall) -> bool {
        let mut edges = Edges::default();
        let Found { tokens, windows, addresses } = self.look_for(call, &mut edges);
        // SAFETY: the tables of what is prepared live as long as it, and nobody else uses them.
        let first = unsafe { prepared.first.as_mut() };
        let Some(first) = first.filter(|_| windows == prepared.has_windows) else { return false };
        [first.input, first.output] = addresses;
        first.tokens = tokens;
        if prepared.has_edges || edges.are_some() {
            prepared.has_edges = edges.are_some();
            self.tables[prepared.tables].edges = edges;
        }
        true
    }

    fn heaps(&self) -> Heaps {
        Heaps::Host(self.host.heaps().to_vec())
    }

    fn forget(&mut self) {
        self.programs.clear();
        self.tables.clear();
    }

    #[inline]
    unsafe fn launch(
        &mut self,
        prepared: &mut Prepared,
        tally: &mut Tally,
        request: &Request<'_>,
    ) -> Result<(), Error> {
        let ranks = &*self.ranks;
        let told = request.flight.and_then(|flight| Flight::signals(flight));
        let edges = prepared.has_edges.then(|| &self.tables[prepared.tables].edges);
        if edges.is_some() && told.is_some_and(Signals::is_gated) {
            return Err(Error::Unsupported { what: UNREADY_EDGES, device: Device::Host });
        }
        // Of what is copied behind the launch, nothing is done before.
        let signals = told.filter(|_| edges.is_none());
        let call = tally.launch();
        let numbered = prepared.count(ranks.rank, tally);
        if let Some(timeout) = request.timeout {
            ranks.poll.limit_next(timeout);
        }
        ranks.poll.set_collective(numbered.collective);
        let log = ranks.control.own_log();
        if self.has_times {
            ranks.control.own_badge().begin(call);
        }
        log.enter(call, &prepared.words);
        let channels = prepared.channels;
        if let Some(edges) = edges {
            // SAFETY: the caller vouches for the buffers.
            unsafe { edges.copy_in() };
        }
        // SAFETY: the tables of what is prepared live as long as it, and nobody else uses them.
        let outcome = match unsafe { prepared.first.as_mut() } {
            None => f::Outcome::Done,
            Some(first) => {
                if let Some(footprint) = &prepared.footprint {
                    self.outputs.decide(footprint, first);
                }
                begin(first, (call, numbered.history), signals, channels);
                linked(self.links.as_deref(), || {
                    // SAFETY: programs were lowered for these connections and for buffers of the
                    // calls' lengths; the caller vouches for the buffers, to which the tables
                    // point.
                    unsafe { self.host.run(first, channels) }
                })
            }
        };
        // A call that has waited for nobody may have ended well.
        if outcome == f::Outcome::Done && !ranks.is_aborted() {
            if let Some(edges) = edges {
                // SAFETY: as above.
                unsafe { edges.copy_out() };
                told.inspect(|told| told.launch(channels)).inspect(|told| told.finish());
            }
            if self.has_times {
                ranks.control.own_badge().end(call, prepared.meets_all);
            }
            log.leave(call);
            return Ok(());
        }
        let odd = self.host.odd().map(Odd::of);
        Err(ranks.fail(&prepared.record, call, outcome, odd))
    }

    fn set_trace(&mut self, _: &mut dyn Bootstrap, steps: Option<usize>) -> Result<(), Error> {
        self.host.set_trace(steps.is_some());
        Ok(())
    }

    fn take_trace(&mut self) -> Result<StepTrace, Error> {
        Ok(StepTrace { steps: self.host.take_trace(), lost: 0 })
    }

    fn suspend(&mut self) -> Result<(), Error> {
        Err(Error::Unsupported { what: "suspending", device: Device::Host })
    }

    fn resume(&mut self, _: &mut dyn Bootstrap, _: Instant) -> Result<(), Error> {
        Err(Error::Unsupported { what: "resuming", device: Device::Host })
    }

    fn registrations(&self) -> usize {
        self.heap.lent_count()
    }

    fn needs_heap(&self) -> bool {
        self.reach != Reach::SameProcess
    }

    fn register(
        &mut self,
        _: &mut dyn Bootstrap,
        _: *const u8,
        _: usize,
    ) -> Result<Option<u64>, Error> {
        Err(Error::Unsupported { what: "registering memory", device: Device::Host })
    }

    fn deregister(&mut self, _: &mut dyn Bootstrap, _: Option<u64>) -> Result<(), Error> {
        Err(Error::Unsupported { what: "registering memory", device: Device::Host })
    }
}

/// Tells the machine the number of the launch and what was called before it, and where its words
/// are. It has so many channels.
#[inline]
fn begin(
    first: &mut f::Launch,
    (call, history): (u64, u64),
    signals: Option<&Signals>,
    channels: usize,
) {
    (first.call, first.history) = (call, history);
    match signals {
        Some(signals) => begin_signalling(first, signals, channels),
        None if first.done.is_null() => {}
        None => (first.ready, first.done) = (std::ptr::null(), std::ptr::null_mut()),
    }
}

/// Apart, so that a call that signals nothing has nothing of it.
#[inline(never)]
fn begin_signalling(first: &mut f::Launch, signals: &Signals, channels: usize) {
    (first.ready, first.done) = (signals.ready_words(), signals.done_words());
    debug_assert_eq!(signals.stride(), first.done_stride as usize);
    signals.launch(channels);
}
