//! A GPU as what carries launches out: they are put into a stream, chained where streams differ,
//! and seen to their ends by [`Watch`].

mod chains;
mod copies;
mod joint;
mod launcher;
mod registrations;
mod trace;
mod watch;

pub(crate) use joint::Joint;
pub(super) use registrations::Registrations;

use super::backend::{Backend, Code, Request};
use super::diagnosis::{Ranks, mismatch};
use super::links::Links;
use super::prepared::{Block, Buffers, Prepared, Source};
use super::tally::{Numbered, Tally};
use crate::call::{CheckedCall, Record};
use crate::device::cuda::{self, CallEnd, CaptureState, Event, Gpu, SLOTS, Stream, Turn};
use crate::device::{Heap, Heaps, Signals};
use crate::error::Error;
use crate::work::{Flight, Marks};
use chains::{DeviceChain, DeviceChains, Executor};
use copies::Copying;
use joint::{Behind, Joined, NotJoined};
use launcher::Launcher;
use oxccl_kernels::StepTrace;
use oxccl_kernels::format::{self as f, DataType, Fold};
use oxccl_plans::lower::{CopyStep, Program};
use oxccl_transports::cuda::{Context, DeviceRegion, KnownPointers, Pointer, beside_captures};
use oxccl_transports::{Bootstrap, CudaError, Error as Transport};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use watch::{Launched, Watch};

/// Handles of streams that CUDA has made: of the legacy default stream, which a null handle means,
/// too, and of each thread's default stream.
const LEGACY_STREAM: usize = 1;
const PER_THREAD_STREAM: usize = 2;

/// One rank's part of its GPU.
#[derive(Debug)]
pub(super) struct GpuBackend {
    /// First, since its end waits for kernels.
    watch: Watch,
    gpu: Gpu,
    programs: Vec<cuda::Prepared>,
    /// What copy engines do, of each call that they carry out.
    copies: Vec<Arc<[CopyStep]>>,
    /// Where the ranks' heaps begin here, by rank.
    heap_bases: Vec<*mut u8>,
    tables: Vec<DeviceChains>,
    ranks: Arc<Ranks>,
    heap: Arc<Heap>,
    /// Memory of other libraries that the ranks reach; none where they are one process, which finds
    /// all memory by its address.
    registrations: Option<Registrations>,
    /// What calls have asked of memory outside of the heap.
    pointers: KnownPointers,
    /// Where ranks of this process meet that share their launches.
    joint: Option<Arc<Joint>>,
    last: Option<Last>,
    /// Events of earlier calls; those that nobody else holds can be used again.
    events: Vec<Arc<Event>>,
    /// Streams that calls have come on, the rank's own first: that has a connection whether it is
    /// used or not.
    streams: Vec<usize>,
    /// Ranks of this process on this GPU.
    neighbours: usize,
    /// Connections that this process' streams share.
    connections: usize,
    /// Buckets of this rank's groups under way that are not marked ready.
    unready: Arc<AtomicUsize>,
    /// The last call before which all ranks of this process had marked all of theirs.
    marked: Arc<AtomicU64>,
    /// Whether launches write their steps.
    traces: bool,
    /// What captured launches use: nobody tells when they are not replayed any more.
    captured: Vec<(Arc<DeviceChain>, Option<Arc<Signals>>)>,
}

/// The call before.
#[derive(Debug)]
struct Last {
    end: Behind,
    stream: usize,
    /// The capture that recorded it.
    capture: Option<u64>,
}

impl GpuBackend {
    /// Nothing launched yet.
    pub(super) fn new(
        gpu: Gpu,
        (ranks, heap, links): (Arc<Ranks>, Arc<Heap>, Option<Arc<Links>>),
        joint: Option<Arc<Joint>>,
        registrations: Option<Registrations>,
        connections: usize,
    ) -> Result<GpuBackend, Error> {
        let neighbours = gpu.in_process();
        if neighbours > connections && joint.is_none() {
            let (streams, ranks) = (1, neighbours);
            return Err(CudaError::TooManyStreams { streams, ranks, connections }.into());
        }
        let (last, events, captured) = (None, Vec::new(), Vec::new());
        let streams = vec![gpu.stream().raw() as usize];
        let (unready, marked) = Default::default();
        let base = |heap: &Option<Arc<DeviceRegion>>| {
            heap.as_ref().map_or(std::ptr::null_mut(), |heap| heap.as_ptr())
        };
        let heap_bases = gpu.heaps().iter().map(base).collect();
        Ok(GpuBackend {
            watch: Watch::new(&gpu, ranks.clone(), links)?,
            gpu,
            programs: Vec::new(),
            copies: Vec::new(),
            heap_bases,
            tables: Vec::new(),
            ranks,
            heap,
            registrations,
            pointers: KnownPointers::default(),
            joint,
            last,
            events,
            streams,
            neighbours,
            connections,
            unready,
            marked,
            traces: false,
            captured,
        })
    }

    /// Fails for a stream that the call cannot go into; the capture that it is in.
    fn check_stream(&mut self, stream: &Stream) -> Result<Option<u64>, CudaError> {
        let device = self.gpu.context().device();
        if stream.context().raw() != self.gpu.context().raw() {
            let found = stream.context().device().ordinal();
            return Err(CudaError::OtherStream { found, ordinal: device.ordinal() });
        }
        let raw = stream.raw() as usize;
        if raw == PER_THREAD_STREAM {
            return Err(CudaError::PerThreadStream);
        }
        if matches!(raw, 0 | LEGACY_STREAM) && self.neighbours > 1 {
            return Err(CudaError::DefaultStream { ranks: self.neighbours });
        }
        let capture = match stream.capture_state()? {
            CaptureState::None => None,
            CaptureState::Active(number) => Some(number),
            CaptureState::Invalid => return Err(CudaError::InvalidCapture),
        };
        if self.joint.is_none() {
            self.check_alone(stream)?;
        }
        // What comes behind a group would keep back its marks.
        if capture.is_none() && self.unready.load(Ordering::Relaxed) > 0 {
            stream.check_connections(self.connections)?;
        }
        Ok(capture)
    }

    /// Fails if a kernel of this rank alone may keep back one of another rank's that it waits for.
    fn check_alone(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let raw = stream.raw() as usize;
        if self.neighbours > 1 && !self.streams.contains(&raw) {
            let (streams, ranks) = (self.streams.len() + 1, self.neighbours);
            if streams * ranks > self.connections {
                let connections = self.connections;
                return Err(CudaError::TooManyStreams { streams, ranks, connections });
            }
            self.streams.push(raw);
        }
        Ok(())
    }

    /// Where a switch finds a call's buffers, if both lie in the heap.
    fn multicast(&self, call: &CheckedCall) -> f::Multicast {
        let (input_bytes, output_bytes) = call.buffer_bytes();
        let offset =
            |at: *mut u8, len| self.heap.offset(at as usize, len).map(|offset| offset as u64);
        self.gpu.multicast(offset(call.input, input_bytes), offset(call.output, output_bytes))
    }

    /// How peers find a buffer; `None` if they do not.
    fn find_buffer(&self, address: *const u8, len_bytes: usize) -> Result<Option<u64>, CudaError> {
        let offset = self.heap.offset(address as usize, len_bytes);
        let is_nothing = len_bytes == 0 || address.is_null();
        let context = self.gpu.context();
        let Some(registrations) = &self.registrations else {
            if !is_nothing && offset.is_none() {
                let pointer = self.pointers.of(context, address)?;
                pointer.check_device(context, len_bytes)?;
                self.check_peers_reach(&pointer)?;
            }
            return Ok(Some(address as u64));
        };
        if is_nothing || offset.is_some() {
            return Ok(Some(offset.unwrap_or(0) as u64));
        }
        let pointer = self.pointers.of(context, address)?;
        pointer.check_device(context, len_bytes)?;
        Ok(registrations.token(&pointer))
    }

    /// Fails for memory that GPUs of other ranks of this process do not reach under its address.
    fn check_peers_reach(&self, pointer: &Pointer) -> Result<(), CudaError> {
        if !self.gpu.has_peers() || pointer.is_legacy_shareable {
            return Ok(());
        }
        let why = "GPUs of other ranks cannot reach it: it comes from a memory pool or from the virtual-memory API; \
                   allocate it with cudaMalloc, or from the communicator";
        Err(CudaError::NotShareable { address: pointer.address, why })
    }

    /// An event that nobody waits for.
    fn event(&mut self) -> Result<Arc<Event>, CudaError> {
        let spare = self.events.iter().position(|event| Arc::strong_count(event) == 1);
        let event = match spare {
            Some(at) => self.events[at].clone(),
            None => {
                let context = self.gpu.context();
                let made = beside_captures(context.device().driver(), || Event::new(context))?;
                self.events.push(Arc::new(made));
                self.events[self.events.len() - 1].clone()
            }
        };
        Ok(event)
    }

    /// What launches a call: with the other ranks' where they share launches, if it `shares` its
    /// own. `gated`: it has a bucket that is not ready. It may have a time-out of its own.
    fn launcher<'a, 'b>(
        &mut self,
        shares: bool,
        target: Target<'_>,
        (gated, timeout): (bool, Option<Duration>),
        turn: Option<&'a mut Turn<'b>>,
    ) -> Result<Launcher<'a, 'b>, CudaError> {
        let joint = match self.joint.clone().filter(|_| shares) {
            Some(joint) => Some((joint, self.event()?)),
            None => None,
        };
        let alone = match (&joint, target.capture) {
            (None, _) => self.check_alone(target.stream).map(Ok)?,
            (Some(_), None) => Ok(()),
            // Whether the ranks' streams are in one capture, they see only when all have come.
            (Some(_), Some(_)) => self.check_alone(target.stream),
        };
        let (ranks, ended, behind) =
            (self.ranks.clone(), self.gpu.ended().clone(), self.behind(target));
        Ok(Launcher { ranks, ended, joint, behind, turn, gated, timeout, alone })
    }

    /// Where a call that has been launched ends.
    fn end(&mut self, call: u64, target: Target<'_>) -> Result<CallEnd, CudaError> {
        if target.capture.is_some() {
            return Ok(CallEnd::Captured(self.mark(target.stream)?));
        }
        let (ended, connections) = (self.gpu.ended().clone(), self.keeps_back());
        Ok(CallEnd::Told { ended, call, connections })
    }

    /// What streams that wait for a group have to know. Not captured, it counts among those under
    /// way.
    fn marks(&self, turns: Arc<[usize]>, call: u64, captured: bool) -> Marks {
        let unready = (!captured).then(|| self.unready.clone());
        let (connections, marked) = (self.connections, self.marked.clone());
        Marks { turns, connections, unready, call, marked }
    }

    /// Connections, where a stream that waits for a call may keep back what other ranks of the
    /// process need to end it.
    fn keeps_back(&self) -> Option<usize> {
        (self.neighbours > 1 && self.joint.is_none()).then_some(self.connections)
    }

    /// An event at what is in the stream now.
    fn mark(&mut self, stream: &Stream) -> Result<Arc<Event>, CudaError> {
        let event = self.event()?;
        event.record(stream)?;
        Ok(event)
    }

    /// The call before, if it is in another stream. A capture knows only what it has recorded.
    fn behind(&self, Target { stream, capture }: Target<'_>) -> Option<Behind> {
        let last = self.last.as_ref()?;
        let is_elsewhere = last.stream != stream.raw() as usize && last.capture == capture;
        is_elsewhere.then(|| last.end.clone())
    }
}

/// A call's place among those under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its number.
    pub(super) call: u64,
    /// Where it says how it ended.
    pub(super) slot: usize,
    /// Its place among the collectives.
    pub(super) numbered: Numbered,
}

/// A stream that calls can go into, and the capture that it is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) stream: &'a Stream,
    pub(super) capture: Option<u64>,
}

impl Backend for GpuBackend {
    fn look_again(&self) {
        self.pointers.look_again();
    }

    fn find(&self, call: &CheckedCall) -> Result<(f::Tokens, bool), Error> {
        let (input_bytes, output_bytes) = call.buffer_bytes();
        let input = self.find_buffer(call.input, input_bytes)?;
        // In place it is asked once.
        let is_input = call.output.cast_const() == call.input && output_bytes <= input_bytes;
        let output = if is_input { input } else { self.find_buffer(call.output, output_bytes)? };
        Ok(match (input, output) {
            (Some(input), Some(output)) => (f::Tokens { input, output }, true),
            _ => (f::Tokens::default(), false),
        })
    }

    fn place_of(&self, call: &CheckedCall) -> Option<u64> {
        self.place(call)
    }

    fn has_copies(&self) -> bool {
        self.gpu.cells().is_some()
    }

    fn load_copies(&mut self, steps: Vec<CopyStep>) -> Code {
        self.copies.push(steps.into());
        Code { header: std::ptr::null(), channels: 1, number: self.copies.len() - 1 }
    }

    /// Memory may be freed, and its address given out again.
    fn finds_for_good(&self) -> bool {
        false
    }

    fn registrations_of(&self, ranks: &[usize]) -> Option<Registrations> {
        self.registrations.as_ref().map(|registrations| registrations.part(ranks))
    }

    fn registrations(&self) -> usize {
        self.registrations.as_ref().map_or(0, Registrations::len)
    }

    fn heaps(&self) -> Heaps {
        Heaps::Device(self.gpu.heaps().to_vec())
    }

    fn blank(&self) -> f::Launch {
        self.gpu.tables().blank()
    }

    fn load(
        &mut self,
        program: Program,
        (data_type, fold): (DataType, Fold),
        first_channel: usize,
        hot: Option<&'static str>,
    ) -> Result<Code, Error> {
        // A launch for several ranks is the interpreter's.
        let hot = hot.filter(|_| self.joint.is_none());
        let prepared = self.gpu.prepare(program, data_type, fold, hot)?;
        let (header, channels) = (prepared.program().header(), first_channel + prepared.channels());
        self.gpu.check_residency(prepared.kernel(), channels)?;
        self.programs.push(prepared);
        Ok(Code { header, channels, number: self.programs.len() - 1 })
    }

    fn add_tables(
        &mut self,
        blocks: &[Block],
        _: &[Source],
        segments: Vec<f::Segment>,
    ) -> Result<usize, Error> {
        let executor = match blocks {
            [block] if block.code.header.is_null() => {
                Executor::Copies(self.copies[block.code.number].clone())
            }
            _ => Executor::Kernel(self.kernel(blocks)?),
        };
        self.tables.push(DeviceChains::new(executor, segments));
        Ok(self.tables.len() - 1)
    }

    fn place(&mut self, prepared: &mut Prepared, buffers: Buffers<'_>) -> Result<(), Error> {
        let multicast = match buffers.calls {
            // Groups are not reduced by switches.
            [call] => self.multicast(call),
            _ => f::Launch::EMPTY.multicast,
        };
        let base = self.registrations.is_some().then(|| self.heap.base());
        let tables = &mut self.tables[prepared.tables];
        tables.place(&mut self.gpu, &self.heap, prepared, (buffers, base, multicast))
    }

    fn forget(&mut self) {
        self.programs.clear();
        self.copies.clear();
        self.tables.clear();
    }

    unsafe fn launch(
        &mut self,
        prepared: &mut Prepared,
        tally: &mut Tally,
        request: &Request<'_>,
    ) -> Result<(), Error> {
        if self.ranks.is_aborted() {
            return Err(self.ranks.aborted());
        }
        if self.gpu.is_suspended() {
            return Err(Error::Suspended);
        }
        let context = self.gpu.context().clone();
        let own;
        let flight = match request.flight {
            Some(flight) => flight,
            None => {
                own = Arc::<Flight>::default();
                &own
            }
        };
        // SAFETY: by this function's contract; without a flight of the caller's, this waits.
        context.undisturbed(|| unsafe { self.put(prepared, tally, request, flight) })?;
        match request.flight {
            Some(_) => Ok(()),
            None => flight.completion.wait(),
        }
    }

    fn wait(&self) {
        self.watch.wait();
    }

    fn abort(&self) {
        self.gpu.tables().abort();
    }

    fn gpu(&mut self) -> Option<&mut Gpu> {
        Some(&mut self.gpu)
    }

    fn context(&self) -> Option<Context> {
        Some(self.gpu.context().clone())
    }

    fn set_trace(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        steps: Option<usize>,
    ) -> Result<(), Error> {
        self.switch_trace(bootstrap, steps)
    }

    fn take_trace(&mut self) -> Result<StepTrace, Error> {
        self.take_steps()
    }

    fn suspend(&mut self) -> Result<(), Error> {
        let driver = self.gpu.context().device().driver();
        beside_captures(driver, || self.gpu.suspend())
            .map_err(|source| Error::DeviceLost { source })
    }

    fn resume(&mut self, bootstrap: &mut dyn Bootstrap, deadline: Instant) -> Result<(), Error> {
        let driver = self.gpu.context().device().driver();
        let resumed = beside_captures(driver, || self.gpu.resume(bootstrap, deadline));
        resumed.map_err(|error| match error {
            Transport::Cuda(source) => Error::DeviceLost { source },
            Transport::Stopped(cause) => Error::from_cause(cause, "resume".into()),
            other => other.into(),
        })
    }

    fn is_suspended(&self) -> bool {
        self.gpu.is_suspended()
    }

    fn register(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        address: *const u8,
        len_bytes: usize,
    ) -> Result<Option<u64>, Error> {
        self.register_memory(bootstrap, address, len_bytes)
    }

    fn deregister(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        buffer: Option<u64>,
    ) -> Result<(), Error> {
        self.deregister_memory(bootstrap, buffer)
    }

    fn leave(&mut self, buffer: Option<u64>) {
        self.leave_memory(buffer);
    }
}

impl GpuBackend {
    /// Puts a launch into a stream; into this rank's own if none is named. In a stream that is
    /// captured it is recorded, and its flight ends.
    ///
    /// # Safety
    ///
    /// As for [`Backend::launch`].
    unsafe fn put(
        &mut self,
        prepared: &mut Prepared,
        tally: &mut Tally,
        request: &Request<'_>,
        flight: &Arc<Flight>,
    ) -> Result<(), Error> {
        let own = self.gpu.stream().clone();
        let stream = request.stream.unwrap_or(&own);
        let target = Target { stream, capture: self.check_stream(stream)? };
        if prepared.blocks.is_empty() {
            flight.end(Ok(()));
            return Ok(());
        }
        let is_gated = request.gated.contains(&true);
        let is_captured = target.capture.is_some();
        let (executor, ring) = match self.tables[prepared.tables].executor() {
            Executor::Kernel(kernel) => {
                let (kernel, ring) = self.traced(prepared, kernel, is_captured)?;
                (Executor::Kernel(kernel), ring)
            }
            // Steps are what kernels write.
            copies => (copies, std::ptr::null_mut()),
        };
        let is_kernel = matches!(executor, Executor::Kernel(_));
        let tables = &mut self.tables[prepared.tables];
        let chain = tables.chain();
        let is_boarded = request.grouped && request.flight.is_some();
        // All buckets of one part are done when its kernel is, and a capture knows its kernels'
        // ends: words that say so would have to be cleared in front of each replay.
        let is_told = !(is_captured && prepared.blocks.len() == 1);
        let signals = match is_boarded && (is_gated || is_told) {
            true => {
                let wanted = (is_gated, is_told);
                Some(tables.signals(&mut self.gpu, prepared, wanted, is_captured)?)
            }
            false => None,
        };
        // Who needs no multiprocessor waits for nobody's.
        let seat = self.gpu.seat().filter(|_| is_kernel).cloned();
        let mut turn = seat.as_ref().and_then(|seat| seat.turn());
        if let Some(cells) = self.gpu.cells().filter(|_| !is_kernel && self.neighbours > 1) {
            // What a stream waits for may have to come by its own connection.
            stream.check_connections(self.connections)?;
            cells.take_stream(stream, target.capture)?;
        }
        let waits = (is_gated, request.timeout);
        let shares = is_kernel && prepared.record.is_collective();
        let launcher = self.launcher(shares, target, waits, turn.as_mut())?;
        let place = self.take_place(prepared, tally, target);
        let entry = Entry { chain, executor, ring, signals, own: &own, request, flight };
        let met = launcher.meet(place).map(|met| {
            if met {
                self.marked.store(place.call, Ordering::Relaxed);
            }
        });
        // SAFETY: by this function's contract.
        let launched =
            met.and_then(|()| unsafe { self.enter(prepared, target, place, launcher, &entry) });
        let launched = launched.and_then(|joined| Ok((self.end(place.call, target)?, joined)));
        let (end, joined) = match launched {
            Ok(launched) => launched,
            Err(why) => {
                let call = (&prepared.record, request.timeout);
                return Err(self.not_launched(why, call, target));
            }
        };
        let behind = match &end {
            CallEnd::Told { ended, call, .. } => Behind::Call(ended.clone(), *call),
            CallEnd::Captured(event) => Behind::Captured(event.clone()),
        };
        let capture = target.capture;
        if let Some(turn) = &mut turn {
            turn.launched(
                prepared.channels,
                end.clone(),
                capture,
                is_gated.then_some(self.connections),
            );
        }
        self.last = Some(Last { end: behind, stream: stream.raw() as usize, capture });
        let alone = request.grouped && self.keeps_back().is_some();
        let Entry { chain, signals, .. } = entry;
        if is_captured {
            self.captured.push((chain, signals));
            self.watch.captured(prepared.record);
            flight.end(Ok(()));
        } else {
            let (record, channels) = (prepared.record, prepared.channels);
            let (number, slot, flight) = (place.call, place.slot, flight.clone());
            let (timeout, _chain) = (request.timeout, chain);
            let launched =
                Launched { number, record, channels, slot, is_kernel, timeout, flight, _chain };
            self.watch.push(launched);
        }
        flight.launched(end, alone || joined == Joined::Gated);
        Ok(())
    }

    /// Counts the launch, unless it is only recorded.
    fn take_place(&self, prepared: &mut Prepared, tally: &mut Tally, target: Target<'_>) -> Place {
        if target.capture.is_some() {
            if prepared.has_messages() {
                tally.lose_count();
            }
            let call = tally.launches() + 1;
            return Place { call, slot: SLOTS, numbered: Numbered::default() };
        }
        let slot = self.watch.next_slot();
        let call = tally.launch();
        let numbered = prepared.count(self.ranks.rank, tally);
        self.ranks.control.log(self.ranks.rank).enter(call, &prepared.words);
        Place { call, slot, numbered }
    }

    /// Puts what a launch needs into its stream, and the kernel behind that.
    ///
    /// # Safety
    ///
    /// As for [`Backend::launch`].
    unsafe fn enter(
        &mut self,
        prepared: &Prepared,
        target: Target<'_>,
        place: Place,
        launcher: Launcher<'_, '_>,
        entry: &Entry<'_>,
    ) -> Result<Joined, NotJoined> {
        let Target { stream, capture } = target;
        let (captured, gated) = (capture.is_some(), entry.request.gated);
        entry.chain.upload(if captured { entry.own } else { stream }, captured)?;
        let mut first = f::Launch {
            call: place.call,
            history: place.numbered.history,
            statuses: self.gpu.tables().statuses(place.slot),
            poll_context: entry.ring,
            ..entry.chain.first()
        };
        if let Some(signals) = &entry.signals {
            signals.begin(place.call);
            signals.launch(prepared.channels);
            let marks = self.marks(prepared.turns.clone(), place.call, captured);
            entry.flight.board(signals.clone(), gated, Some(marks));
            if captured && signals.tells() {
                signals.clear_done_on(stream)?;
                entry.flight.cleared(self.mark(stream)?);
            }
            (first.ready, first.done) = (signals.ready_words(), signals.done_words());
        }
        let kernel = match &entry.executor {
            Executor::Kernel(kernel) => *kernel,
            Executor::Copies(steps) => {
                let copying = self.copying(prepared, place, steps, (first, captured))?;
                // SAFETY: buffers are the caller's promise; the ranks' heaps are kept mapped.
                unsafe { launcher.copy(target, place, &copying) }?;
                return Ok(Joined::ByOneself);
            }
        };
        // SAFETY: the programs were prepared by this rank; the tables are there when the stream
        // comes so far, and stay until the flight has ended; buffers are the caller's promise;
        // launches in different streams are chained, and `next_slot` keeps the number of those
        // under way.
        let joined = unsafe { launcher.launch(target, place, (kernel, prepared.channels), first) }?;
        if let (true, Some(signals)) = (captured, &entry.signals) {
            let mut gated = gated.iter().enumerate().filter(|(_, gated)| **gated);
            gated.try_for_each(|(bucket, _)| signals.clear_ready_on(stream, bucket))?;
        }
        Ok(joined)
    }

    /// What copy engines do for a call, and how the host is told of its end: nobody waits for that
    /// of one that is captured.
    fn copying<'a>(
        &'a self,
        prepared: &Prepared,
        place: Place,
        steps: &'a [CopyStep],
        (launch, captured): (f::Launch, bool),
    ) -> Result<Copying<'a>, NotJoined> {
        let Some(cells) = self.gpu.cells() else { unreachable!("calls with a place have words") };
        let ended = (!captured).then(|| self.gpu.ended().tell(place.call));
        let (at, agreed) = (prepared.place(), prepared.agreed(place.numbered));
        let bases = self.bases(at)?;
        Ok(Copying { cells, steps, launch, place: at, bases, agreed, ended })
    }

    /// The kernel that runs all blocks. Each copies for all; where all that reduce do it alike,
    /// theirs is the fastest.
    fn kernel(&self, blocks: &[Block]) -> Result<cuda::Kernel, Error> {
        let kernel_of = |block: &Block| self.programs[block.code.number].kernel();
        let kernels: Vec<_> = blocks.iter().filter(|block| block.reduces).map(kernel_of).collect();
        match (kernels.first(), blocks.first()) {
            (Some(first), _) if kernels.iter().all(|kernel| kernel == first) => Ok(*first),
            (None, Some(block)) => Ok(kernel_of(block)),
            _ => {
                let channels = blocks.iter().map(|block| block.code.channels).max();
                Ok(self.gpu.any_kernel(channels.unwrap_or(1))?)
            }
        }
    }

    /// Ends the communicator after a launch that failed.
    #[cold]
    fn not_launched(
        &self,
        why: NotJoined,
        (record, timeout): (&Record, Option<Duration>),
        Target { stream, capture }: Target<'_>,
    ) -> Error {
        let last = self.ranks.last_entered();
        let error = match why {
            NotJoined::Refused(error) => {
                self.abort();
                if capture.is_none() {
                    // The kernel may be under way, and its buffers are about to be the caller's
                    // again.
                    let _ = stream.synchronize();
                }
                Error::DeviceLost { source: error }
            }
            // Earlier calls end by themselves.
            NotJoined::Alone => {
                self.wait();
                // Who has gone is told by the call at hand.
                timeout.into_iter().for_each(|timeout| self.ranks.poll.limit_next(timeout));
                self.ranks.poll.set_collective(record.collective);
                let ended = self.ranks.check();
                let failed = || self.ranks.fail(record, last, f::Outcome::Aborted, None);
                return ended.err().unwrap_or_else(failed);
            }
            NotJoined::Differ => {
                self.wait();
                let mismatch = mismatch(&self.ranks.control, self.ranks.rank);
                mismatch.unwrap_or_else(|| Error::CapturedApart { what: record.text() })
            }
        };
        self.ranks.end(&error, last);
        error
    }
}

/// What a launch is put into a stream with.
struct Entry<'a> {
    chain: Arc<DeviceChain>,
    executor: Executor,
    /// Where a traced kernel writes its steps.
    ring: *mut std::ffi::c_void,
    /// The words of its buckets, if somebody may wait for these.
    signals: Option<Arc<Signals>>,
    /// The rank's own stream.
    own: &'a Stream,
    request: &'a Request<'a>,
    flight: &'a Arc<Flight>,
}
