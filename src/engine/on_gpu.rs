//! Calls on a GPU: put into a stream, chained where streams differ, and seen to their ends by [`Flights`].

use super::failure::Ranks;
use super::flights::{Ends, Flight, Flights};
use super::group::DeviceChain;
use super::joint::{Behind, Joined, Joint, NotJoined};
use super::launcher::Launcher;
use super::logs;
use super::registrations::Registrations;
use super::tally::{Numbered, Signature};
use super::{Backend, Engine, call_key};
use crate::call::{Call, Described};
use crate::communicator::Hold;
use crate::device::cuda::{Arguments, CallEnd, CaptureState, Event, Gpu, SLOTS, Stream};
use crate::device::{Heap, Signals};
use crate::error::Error;
use crate::group::Marks;
use crate::work::{Completion, Work};
use oxccl_kernels::format as f;
use oxccl_plans::collective::Kind;
use oxccl_transports::cuda::{Pointer, beside_captures};
use oxccl_transports::{CudaError, Reach};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A rank's calls on its GPU.
#[derive(Debug)]
pub(super) struct GpuCalls {
    /// First, since its end waits for kernels.
    flights: Flights,
    pub(super) gpu: Gpu,
    /// Memory of other libraries that the ranks reach; none where they are one process, which finds all memory by its address.
    pub(super) registrations: Option<Registrations>,
    /// Where ranks of this process meet that share their launches.
    joint: Option<Arc<Joint>>,
    last: Option<Last>,
    /// Events of earlier calls; those that nobody else holds can be used again.
    events: Vec<Arc<Event>>,
    /// Streams that calls have come on, the rank's own first: that has a connection whether it is used or not.
    streams: Vec<usize>,
    /// Ranks of this process on this GPU.
    neighbours: usize,
    /// Connections that this process' streams share.
    connections: usize,
    /// Buckets of this rank's groups under way that are not marked ready.
    unready: Arc<AtomicUsize>,
    /// The last call before which all ranks of this process had marked all of theirs.
    marked: Arc<AtomicU64>,
    /// What captured groups use: nobody tells when they are not replayed any more.
    captured: Vec<(Arc<DeviceChain>, Arc<Signals>)>,
}

/// The call before.
#[derive(Debug)]
struct Last {
    end: Behind,
    stream: usize,
    /// The capture that recorded it.
    capture: Option<u64>,
}

impl GpuCalls {
    /// No calls yet.
    pub(super) fn new(
        gpu: Gpu,
        flights: Flights,
        joint: Option<Arc<Joint>>,
        reach: Reach,
        connections: usize,
    ) -> Result<GpuCalls, Error> {
        let neighbours = if reach == Reach::SameProcess { gpu.sharing() } else { 1 };
        let registrations = (reach != Reach::SameProcess).then(Registrations::default);
        if neighbours > connections && joint.is_none() {
            let (streams, ranks) = (1, neighbours);
            return Err(CudaError::TooManyStreams { streams, ranks, connections }.into());
        }
        let (last, events, captured) = (None, Vec::new(), Vec::new());
        let streams = vec![gpu.stream().raw() as usize];
        let (unready, marked) = Default::default();
        Ok(GpuCalls {
            flights,
            gpu,
            registrations,
            joint,
            last,
            events,
            streams,
            neighbours,
            connections,
            unready,
            marked,
            captured,
        })
    }

    /// Waits until all calls have ended.
    pub(super) fn wait(&self) {
        self.flights.wait();
    }

    /// Stops all kernels of this rank.
    pub(super) fn abort(&self) {
        self.gpu.tables().abort();
    }

    /// Fails for a stream that the call cannot go into; the capture that it is in.
    pub(super) fn check_stream(&mut self, stream: &Stream) -> Result<Option<u64>, CudaError> {
        let device = self.gpu.context().device();
        if stream.context().raw() != self.gpu.context().raw() {
            let found = stream.context().device().ordinal();
            return Err(CudaError::OtherStream { found, ordinal: device.ordinal() });
        }
        let raw = stream.raw() as usize;
        if raw == 0 && self.neighbours > 1 {
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

    /// How peers find a call's buffers, and whether they can. Fails for a buffer that the GPU would not find, or a peer's in place.
    pub(super) fn find_buffers(
        &self,
        call: &Call,
        heap: &Heap,
    ) -> Result<(f::Tokens, bool), CudaError> {
        let (input_bytes, output_bytes) = call.buffer_bytes();
        let input = self.find(call.input, input_bytes, heap)?;
        let output = self.find(call.output, output_bytes, heap)?;
        Ok(match (input, output) {
            (Some(input), Some(output)) => (f::Tokens { input, output }, true),
            _ => (f::Tokens::default(), false),
        })
    }

    /// Where a switch finds a call's buffers, if both lie in the heap.
    fn multicast(&self, call: &Call, heap: &Heap) -> f::Multicast {
        let (input_bytes, output_bytes) = call.buffer_bytes();
        let offset = |at: *mut u8, len| heap.offset(at as usize, len).map(|offset| offset as u64);
        self.gpu.multicast(offset(call.input, input_bytes), offset(call.output, output_bytes))
    }

    /// How peers find a buffer; `None` if they do not.
    pub(super) fn find(
        &self,
        address: *const u8,
        len_bytes: usize,
        heap: &Heap,
    ) -> Result<Option<u64>, CudaError> {
        let offset = heap.offset(address as usize, len_bytes);
        let is_nothing = len_bytes == 0 || address.is_null();
        let context = self.gpu.context();
        let Some(registrations) = &self.registrations else {
            if !is_nothing && offset.is_none() {
                let pointer = Pointer::of(context, address)?;
                pointer.check_device(context, len_bytes)?;
                self.check_peers_reach(&pointer)?;
            }
            return Ok(Some(address as u64));
        };
        if is_nothing || offset.is_some() {
            return Ok(Some(offset.unwrap_or(0) as u64));
        }
        let pointer = Pointer::of(context, address)?;
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

    /// What launches a call: with the other ranks' where they share launches, and all make it. `gated`: it has a bucket that is not ready.
    pub(super) fn launcher(
        &mut self,
        ranks: &Arc<Ranks>,
        described: &Described,
        target: Target<'_>,
        gated: bool,
    ) -> Result<Launcher, CudaError> {
        let joint = match self.joint.clone().filter(|_| described.is_collective()) {
            Some(joint) => Some((joint, self.event()?)),
            None => None,
        };
        let alone = match (&joint, target.capture) {
            (None, _) => self.check_alone(target.stream).map(Ok)?,
            (Some(_), None) => Ok(()),
            // Whether the ranks' streams are in one capture, they see only when all have come.
            (Some(_), Some(_)) => self.check_alone(target.stream),
        };
        let (ranks, ended, behind) = (ranks.clone(), self.gpu.ended().clone(), self.behind(target));
        Ok(Launcher { ranks, ended, joint, behind, gated, alone })
    }

    /// Where a call that has been launched ends.
    fn end(
        &mut self,
        call: u64,
        stream: &Stream,
        capture: Option<u64>,
    ) -> Result<CallEnd, CudaError> {
        if capture.is_some() {
            return Ok(CallEnd::Captured(self.mark(stream)?));
        }
        let (ended, connections) = (self.gpu.ended().clone(), self.keeps_back());
        Ok(CallEnd::Told { ended, call, connections })
    }

    /// What streams that wait for a group have to know. Not captured, it counts among those under way.
    pub(super) fn marks(&self, turns: Arc<[usize]>, call: u64, captured: bool) -> Marks {
        let unready = (!captured).then(|| self.unready.clone());
        let (connections, marked) = (self.connections, self.marked.clone());
        Marks { turns, connections, unready, call, marked }
    }

    /// Connections, where a stream that waits for a call may keep back what other ranks of the process need to end it.
    pub(super) fn keeps_back(&self) -> Option<usize> {
        (self.neighbours > 1 && self.joint.is_none()).then_some(self.connections)
    }

    /// Keeps what a captured group uses.
    pub(super) fn keep(&mut self, chain: Arc<DeviceChain>, signals: Arc<Signals>) {
        self.captured.push((chain, signals));
    }

    /// An event at what is in the stream now.
    pub(super) fn mark(&mut self, stream: &Stream) -> Result<Arc<Event>, CudaError> {
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

impl Engine {
    /// Puts a call into a stream; into this rank's own without one. In a stream that is captured it is recorded, and its work is over.
    ///
    /// # Safety
    ///
    /// The call's buffers are valid for its lengths, and nobody else uses them until the stream has come that far; of a call that is
    /// captured, whenever it is replayed, in the order of this rank's calls.
    pub(crate) unsafe fn enqueue(
        &mut self,
        call: &Call,
        stream: Option<&Stream>,
        hold: Hold,
    ) -> Result<Work, Error> {
        self.ranks.check()?;
        let rank = self.ranks.rank;
        let calls = self.backend.gpu_calls()?;
        let own = calls.gpu.stream().clone();
        let stream = stream.unwrap_or(&own);
        let target = Target { stream, capture: calls.check_stream(stream)? };
        let (tokens, windows) = calls.find_buffers(call, &self.heap)?;
        let multicast = calls.multicast(call, &self.heap);
        let key = call_key(call, windows);
        let prepared = self.cache.look_up(&self.config, rank, key, call, &mut self.backend)?;
        let signature = prepared.signature.with_factor(call.factor_bits);
        let code = prepared.code.on_gpu()?.clone();
        let described = Described::call(key, self.config.order, call.factor_bits);
        let completion = Arc::new(Completion::default());
        let ends = Ends::Call { completion: completion.clone(), hold };
        let calls = self.backend.gpu_calls()?;
        let launcher = calls.launcher(&self.ranks, &described, target, false)?;
        if call.collective.kind == Kind::SendRecv {
            match target.capture {
                None => self.tally.message(call.collective.root, call.collective.receiver),
                Some(_) => self.tally.lose_count(),
            }
        }
        let called = (described, signature);
        let put = |calls: &mut GpuCalls, place: Place, launcher: Launcher| {
            let arguments = Arguments {
                input: call.input,
                output: call.output,
                tokens,
                multicast,
                scale_bits: call.factor_bits,
                call: place.call,
                history: place.numbered.history,
                signature: signature.word(),
                slot: place.slot,
            };
            let (launch, kernel) = calls.gpu.part(&code, &arguments);
            // SAFETY: the program was prepared by this rank; the buffers are the caller's promise; calls in different streams are chained, and
            // `next_slot` keeps the number of those under way.
            unsafe { launcher.launch(target, place, (kernel, code.channels()), launch) }
        };
        let (end, _) = self.put(target, called, code.channels(), ends, launcher, put)?;
        Ok(Work::in_stream(completion, end))
    }

    /// Gives a call its place, launches it, and has it looked after. Its end, and how it was launched.
    pub(super) fn put(
        &mut self,
        Target { stream, capture }: Target<'_>,
        (mut described, signature): (Described, Signature),
        channels: usize,
        ends: Ends,
        launcher: Launcher,
        launch: impl FnOnce(&mut GpuCalls, Place, Launcher) -> Result<Joined, NotJoined>,
    ) -> Result<(CallEnd, Joined), Error> {
        let calls = self.backend.gpu_calls()?;
        let slot = capture.map_or_else(|| calls.flights.next_slot(), |_| SLOTS);
        let number = self.calls + 1;
        let mut numbered = Numbered::default();
        if capture.is_none() {
            self.calls = number;
            if described.is_collective() {
                numbered = self.tally.collective(signature);
                described.collective = numbered.collective;
            }
            self.ranks.control.log(self.ranks.rank).enter(number, &described.encode());
        }
        let place = Place { call: number, slot, numbered };
        let met = launcher.meet(place).map(|met| {
            if met {
                calls.marked.store(number, Ordering::Relaxed);
            }
        });
        let launched = met.and_then(|()| launch(calls, place, launcher));
        let launched =
            launched.and_then(|joined| Ok((calls.end(number, stream, capture)?, joined)));
        let (end, joined) = match launched {
            Ok(launched) => launched,
            Err(why) => return Err(self.not_launched(why, &described, stream, capture)),
        };
        let Backend::Cuda(calls) = &mut self.backend else {
            return Err(Error::OtherDevice { device: self.config.device });
        };
        let behind = match &end {
            CallEnd::Told { ended, call, .. } => Behind::Call(ended.clone(), *call),
            CallEnd::Captured(event) => Behind::Captured(event.clone()),
        };
        calls.last = Some(Last { end: behind, stream: stream.raw() as usize, capture });
        if capture.is_some() {
            calls.flights.captured(described);
            ends.end(Ok(()));
        } else {
            calls.flights.push(Flight { number, described, channels, slot, ends });
        }
        Ok((end, joined))
    }

    /// Ends the communicator after a call that could not be launched.
    #[cold]
    fn not_launched(
        &self,
        why: NotJoined,
        described: &Described,
        stream: &Stream,
        capture: Option<u64>,
    ) -> Error {
        let Backend::Cuda(calls) = &self.backend else {
            return Error::OtherDevice { device: self.config.device };
        };
        let last = self.ranks.last_entered();
        let error = match why {
            NotJoined::Refused(error) => {
                calls.abort();
                if capture.is_none() {
                    // The kernel may be under way, and its buffers are about to be the caller's again.
                    let _ = stream.synchronize();
                }
                Error::DeviceLost { source: error }
            }
            // Earlier calls end by themselves.
            NotJoined::Alone => {
                calls.wait();
                // Who has gone is told by the call at hand.
                self.ranks.poll.set_collective(described.collective);
                let ended = self.ranks.check();
                let failed = || self.ranks.fail(described, last, f::Outcome::Aborted, None);
                return ended.err().unwrap_or_else(failed);
            }
            NotJoined::Differ => {
                calls.wait();
                let mismatch = logs::mismatch(&self.ranks.control, self.ranks.rank);
                mismatch.unwrap_or_else(|| Error::CapturedApart { what: described.text() })
            }
        };
        self.ranks.end(&error, last);
        error
    }
}
