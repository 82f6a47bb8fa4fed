//! Calls on a GPU: put into a stream, chained where streams differ, and seen to their ends by [`Flights`].

use super::flights::{Ends, Flight, Flights};
use super::group::DeviceChain;
use super::{Engine, call_key, fold};
use crate::call::{Call, Described};
use crate::communicator::Hold;
use crate::device::cuda::{Arguments, CaptureState, Event, Gpu, SLOTS, Stream};
use crate::device::{Heap, Signals};
use crate::error::Error;
use crate::work::{Completion, Work};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Pointer, beside_captures};
use std::sync::Arc;

/// A rank's calls on its GPU.
#[derive(Debug)]
pub(super) struct GpuCalls {
    /// First, since its end waits for kernels.
    flights: Flights,
    pub(super) gpu: Gpu,
    last: Option<Last>,
    /// Events of earlier calls; those that nobody else holds can be used again.
    events: Vec<Arc<Event>>,
    /// Streams that calls have come on.
    streams: Vec<usize>,
    /// Ranks of this process on this GPU.
    neighbours: usize,
    /// Connections that this process' streams share.
    connections: usize,
    /// What captured groups use: nobody tells when they are not replayed any more.
    captured: Vec<(Arc<DeviceChain>, Arc<Signals>)>,
}

/// The call before.
#[derive(Debug)]
struct Last {
    event: Arc<Event>,
    stream: usize,
    /// The capture that recorded it.
    capture: Option<u64>,
}

impl GpuCalls {
    /// No calls yet. `neighbours` ranks of this process are on this GPU.
    pub(super) fn new(
        gpu: Gpu,
        flights: Flights,
        neighbours: usize,
        connections: usize,
    ) -> Result<GpuCalls, Error> {
        if neighbours > connections {
            let (streams, ranks) = (1, neighbours);
            return Err(CudaError::TooManyStreams { streams, ranks, connections }.into());
        }
        let (last, events, streams, captured) = (None, Vec::new(), Vec::new(), Vec::new());
        Ok(GpuCalls { flights, gpu, last, events, streams, neighbours, connections, captured })
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
        if self.neighbours > 1 && !self.streams.contains(&raw) {
            let (streams, ranks) = (self.streams.len() + 1, self.neighbours);
            if streams * ranks > self.connections {
                let connections = self.connections;
                return Err(CudaError::TooManyStreams { streams, ranks, connections });
            }
            self.streams.push(raw);
        }
        Ok(capture)
    }

    /// Fails for a buffer that the GPU, or a peer's, would not find.
    pub(super) fn check_buffers(
        &self,
        call: &Call,
        rank: usize,
        heap: &Heap,
    ) -> Result<(), CudaError> {
        let (input_bytes, output_bytes) = call.buffer_bytes(rank);
        for (address, len_bytes) in [(call.input, input_bytes), (call.output, output_bytes)] {
            if len_bytes == 0
                || address.is_null()
                || heap.offset(address as usize, len_bytes).is_some()
            {
                continue;
            }
            let context = self.gpu.context();
            let pointer = Pointer::of(context, address)?;
            pointer.check_device(context, len_bytes)?;
            if self.gpu.has_peers() && !pointer.is_legacy_shareable {
                let why = "GPUs of other ranks cannot reach it: it comes from a memory pool or from the \
                           virtual-memory API; allocate it with cudaMalloc, or from the communicator";
                return Err(CudaError::NotShareable { address: address as u64, why });
            }
        }
        Ok(())
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

    /// Has the stream wait for the call before, if that is in another one. A capture knows only what it has recorded.
    fn chain(&self, stream: &Stream, capture: Option<u64>) -> Result<(), CudaError> {
        match &self.last {
            Some(last) if last.stream != stream.raw() as usize && last.capture == capture => {
                last.event.hold(stream)
            }
            _ => Ok(()),
        }
    }
}

/// A call's place among those under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its number.
    pub(super) call: u64,
    /// Where it says how it ended.
    pub(super) slot: usize,
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
        let (tokens, windows) = self.tokens(call);
        let rank = self.ranks.rank;
        let calls = self.backend.gpu_calls()?;
        let own = calls.gpu.stream().clone();
        let stream = stream.unwrap_or(&own);
        let target = Target { stream, capture: calls.check_stream(stream)? };
        calls.check_buffers(call, rank, &self.heap)?;
        let key = call_key(call, windows);
        let prepared = self.cache.look_up(&self.config, rank, key, call, &mut self.backend)?;
        let (code, signature) = (prepared.code.on_gpu()?.clone(), prepared.signature);
        let described = Described::call(key, self.config.order, call.factor_bits);
        let completion = Arc::new(Completion::default());
        let ends = Ends::Call { completion: completion.clone(), hold };
        let event = self.put(target, described, code.channels(), ends, |calls, place| {
            let arguments = Arguments {
                input: call.input,
                output: call.output,
                tokens,
                scale_bits: call.factor_bits,
                call: place.call,
                signature: signature ^ fold(call.factor_bits),
                slot: place.slot,
            };
            // SAFETY: the program was prepared by this rank; the buffers are the caller's promise; calls in different streams are chained.
            unsafe { calls.gpu.launch(stream, &code, &arguments) }
        })?;
        Ok(Work::in_stream(completion, event))
    }

    /// Gives a call its place, launches it, and has it looked after. The event behind it.
    pub(super) fn put(
        &mut self,
        Target { stream, capture }: Target<'_>,
        mut described: Described,
        channels: usize,
        ends: Ends,
        launch: impl FnOnce(&mut GpuCalls, Place) -> Result<(), CudaError>,
    ) -> Result<Arc<Event>, Error> {
        let calls = self.backend.gpu_calls()?;
        let slot = capture.map_or_else(|| calls.flights.next_slot(), |_| SLOTS);
        let event = calls.event()?;
        calls.chain(stream, capture)?;
        let number = self.calls + 1;
        if capture.is_none() {
            self.calls = number;
            if described.is_collective() {
                self.collectives += 1;
                described.collective = self.collectives;
            }
            self.ranks.control.log(self.ranks.rank).enter(number, &described.encode());
        }
        let launched =
            launch(calls, Place { call: number, slot }).and_then(|()| event.record(stream));
        if let Err(error) = launched {
            calls.abort();
            if capture.is_none() {
                // The kernel may be under way, and its buffers are about to be the caller's again.
                let _ = stream.synchronize();
            }
            let error = Error::from(error);
            self.ranks.end(&error, self.calls);
            return Err(error);
        }
        calls.last = Some(Last { event: event.clone(), stream: stream.raw() as usize, capture });
        if capture.is_some() {
            calls.flights.captured(described);
            ends.end(Ok(()));
        } else {
            calls.flights.push(Flight {
                number,
                described,
                channels,
                slot,
                event: event.clone(),
                ends,
            });
        }
        Ok(event)
    }
}
