//! Streams: ordered queues of calls. The host's are each carried out by a thread of its own; those of GPUs are the driver's.

mod calls;

use crate::call::Call;
use crate::communicator::{Communicator, Hold, Shared};
use crate::config::Device;
use crate::device::{Signals, cuda};
use crate::error::Error;
use crate::group::{BucketWork, Flight};
use crate::work::{Completion, Work};
use oxccl_transports::fork::Origin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// An ordered queue of calls with a thread that carries them out.
///
/// Calls on one stream run in order. A communicator's calls run in the order they were made, on whatever streams.
#[derive(Debug)]
pub struct Stream {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    origin: Origin,
}

/// What a stream does, in order.
enum Job {
    Call {
        turn: Turn,
        call: Call,
        completion: Arc<Completion>,
        hold: Hold,
    },
    Group {
        turn: Turn,
        calls: Vec<Call>,
        flight: Arc<Flight>,
    },
    /// Marks a bucket of a group ready.
    Mark {
        flight: Arc<Flight>,
        bucket: usize,
    },
    /// Waits for a bucket of a group.
    Await {
        bucket: BucketWork,
        completion: Arc<Completion>,
    },
}

/// A call's place among its communicator's.
struct Turn {
    shared: Arc<Shared>,
    ticket: u64,
}

impl Stream {
    /// An idle stream.
    ///
    /// # Errors
    /// [`Error::System`] if there is no thread to be had.
    pub fn new() -> Result<Stream, Error> {
        let (jobs, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("oxccl-stream".into())
            .spawn(move || work(&inbox))
            .map_err(|source| Error::System { doing: "starting a stream's thread", source })?;
        Ok(Stream { jobs: Some(jobs), thread: Some(thread), origin: Origin::here() })
    }

    /// Makes what is put into this stream from here on wait until a bucket of a group on another stream is done. The work ends then.
    ///
    /// # Errors
    /// [`Error::System`] if the stream's thread has panicked. The work's, if the group ended before the bucket was done: what comes next on
    /// this stream is done all the same.
    pub fn wait(&self, bucket: &BucketWork) -> Result<Work, Error> {
        let completion = Arc::new(Completion::default());
        self.send(Job::Await { bucket: bucket.clone(), completion: completion.clone() })?;
        Ok(Work::new(completion))
    }

    /// Fails in a process that was forked from this stream's.
    fn check_process(&self) -> Result<(), Error> {
        if self.origin.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Marks a bucket ready when all before it is done.
    pub(crate) fn mark(&self, flight: Arc<Flight>, bucket: usize) -> Result<(), Error> {
        self.send(Job::Mark { flight, bucket })
    }

    fn send(&self, job: Job) -> Result<(), Error> {
        self.check_process()?;
        let Some(jobs) = &self.jobs else {
            unreachable!("a stream has its queue until it is dropped")
        };
        let Err(unsent) = jobs.send(job) else { return Ok(()) };
        // The worker is gone: it panicked. The ticket must not block later calls.
        if let Job::Call { turn, .. } | Job::Group { turn, .. } = unsent.0 {
            turn.shared.skip_ticket(turn.ticket);
        }
        let source = std::io::Error::other("the stream's thread has panicked");
        Err(Error::System { doing: "queueing a call", source })
    }
}

impl Drop for Stream {
    /// Waits for the calls that are queued; each ends, if it does not move by its communicator's time-out.
    fn drop(&mut self) {
        if self.check_process().is_err() {
            // The thread is the parent's, and so are the calls that are queued.
            std::mem::forget((self.jobs.take(), self.thread.take()));
            return;
        }
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has told so; its calls' works stay unended only then.
            let _ = thread.join();
        }
    }
}

fn work(inbox: &Receiver<Job>) {
    for job in inbox {
        match job {
            Job::Call { turn, call, completion, hold } => {
                // SAFETY: the ticket was issued for this call, and the hold keeps its buffers, which were borrowed as the call needs
                // them when it was made: the input shared, the output exclusively. Host accesses wait until the hold is gone. Without one,
                // whoever called `OnStream::run` vouches.
                let result = unsafe { turn.shared.run_ticket(turn.ticket, &call) };
                // In this order: whoever has seen the hold go finds the work done.
                completion.end(result);
                drop(hold);
            }
            Job::Group { turn, calls, flight } => {
                // SAFETY: as above, for each call; outputs were borrowed for all of the group. The flight has the holds, each until
                // its bucket is done. What is lent of an input that is not ready is given back before its mark.
                let result =
                    unsafe { turn.shared.run_group_ticket(turn.ticket, &calls, flight.signals()) };
                flight.end(result);
            }
            Job::Mark { flight, bucket } => flight.mark_ready(bucket),
            Job::Await { bucket, completion } => completion.end(bucket.wait()),
        }
    }
}

/// A stream of either kind; it must be of the communicator's.
#[derive(Clone, Copy, Debug)]
pub enum AnyStream<'a> {
    /// The host's.
    Host(&'a Stream),
    /// A GPU's.
    Cuda(&'a cuda::Stream),
}

impl<'a> From<&'a Stream> for AnyStream<'a> {
    fn from(stream: &'a Stream) -> AnyStream<'a> {
        AnyStream::Host(stream)
    }
}

impl<'a> From<&'a cuda::Stream> for AnyStream<'a> {
    fn from(stream: &'a cuda::Stream) -> AnyStream<'a> {
        AnyStream::Cuda(stream)
    }
}

/// A communicator's calls on a stream: see [`Communicator::on`].
#[derive(Clone, Copy, Debug)]
pub struct OnStream<'a> {
    comm: &'a Communicator,
    stream: AnyStream<'a>,
    /// What its calls' `channels` are.
    channels: u16,
}

impl Communicator {
    /// Calls that return at once and run on a stream, in the order they are made. They take communicator memory, which stays alive,
    /// and waits when the host touches it, until they are done. Shapes and rules are those of the blocking calls of the same
    /// names.
    ///
    /// ```
    /// use oxccl::{Communicator, ReduceOp, Stream};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let stream = Stream::new()?;
    /// let mut gradient = comm.alloc::<f32>(1000)?;
    /// gradient.fill(1.0);
    /// let work = comm.on(&stream).all_reduce_in_place(&mut gradient, ReduceOp::Avg)?;
    /// // … compute something else …
    /// work.wait()?;
    /// assert_eq!(gradient[999], 1.0);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// On a GPU:
    ///
    /// ```no_run
    /// use oxccl::cuda::Stream;
    /// use oxccl::{Communicator, Config, ReduceOp};
    ///
    /// let ranks = Communicator::local_with(2, &Config::cuda())?;
    /// std::thread::scope(|scope| {
    ///     for comm in ranks {
    ///         scope.spawn(move || {
    ///             let stream = Stream::new(&comm.context().expect("it is on a GPU"))?;
    ///             let mut gradient = comm.alloc::<f32>(1000)?;
    ///             gradient.write(&[1.0; 1000])?;
    ///             let work = comm.on(&stream).all_reduce_in_place(&mut gradient, ReduceOp::Sum)?;
    ///             // … other kernels; `work.wait_on(&other)` orders another stream behind …
    ///             work.wait()
    ///         });
    ///     }
    /// });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// There a stream may be captured: its calls are then recorded, their works are over at once, and what a replay does wrong
    /// ends the communicator. Replays and calls must happen in the same order on all ranks, and one after the other on each: launch
    /// them in one stream, or order their streams by events.
    pub fn on<'a>(&'a self, stream: impl Into<AnyStream<'a>>) -> OnStream<'a> {
        OnStream { comm: self, stream: stream.into(), channels: 0 }
    }
}

impl<'a> OnStream<'a> {
    /// The same, for calls and groups that use at most so many channels: on a GPU thread blocks, so that other kernels have room beside them. All
    /// ranks say the same.
    ///
    /// ```
    /// # use oxccl::{Communicator, ReduceOp, Stream};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// # let stream = Stream::new()?;
    /// # let mut gradient = comm.alloc::<f32>(1000)?;
    /// comm.on(&stream).with_channels(1)?.all_reduce_in_place(&mut gradient, ReduceOp::Avg)?.wait()?;
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for none, or for more than [`Config::max_channels`](crate::Config::max_channels). Ranks that say other numbers get
    /// [`Error::Mismatch`] from the work.
    pub fn with_channels(self, most: usize) -> Result<OnStream<'a>, Error> {
        let configured = self.comm.max_channels();
        match u16::try_from(most) {
            Ok(channels) if (1..=configured).contains(&most) => Ok(OnStream { channels, ..self }),
            _ => {
                let detail = format!("{most} is not in 1 to max_channels, which is {configured}");
                Err(Error::Config { variable: "channels", detail })
            }
        }
    }

    /// Most channels of its calls; 0: as many as the communicator takes.
    pub(crate) fn channels(&self) -> u16 {
        self.channels
    }

    /// Queues a call made with [`Call::new`].
    ///
    /// # Safety
    ///
    /// The call's memory is valid for its counts, writable where it is output, and used by nobody else until the work has ended; of a
    /// call that is captured, whenever it is replayed.
    ///
    /// # Errors
    /// See above.
    pub unsafe fn run(&self, call: &Call) -> Result<Work, Error> {
        // SAFETY: by this function's contract.
        unsafe { self.submit(call.clone(), [None, None]) }
    }

    /// # Safety
    ///
    /// The call's buffers are valid, and unused by others, as long as `hold` or until the work has ended.
    unsafe fn submit(&self, mut call: Call, hold: Hold) -> Result<Work, Error> {
        call.channels = self.channels;
        match self.stream {
            // SAFETY: by this function's contract.
            AnyStream::Cuda(stream) => unsafe { self.comm.enqueue(&call, stream, hold) },
            AnyStream::Host(_) => self.hand_over(call, hold),
        }
    }

    fn hand_over(&self, call: Call, hold: Hold) -> Result<Work, Error> {
        let stream = self.host_stream()?;
        if hold.iter().flatten().any(|buffer| !buffer.is_host()) {
            return Err(Error::OtherMemory { device: self.comm.device() });
        }
        let completion = Arc::new(Completion::default());
        let turn = self.turn();
        stream.send(Job::Call { turn, call, completion: completion.clone(), hold })?;
        Ok(Work::new(completion))
    }

    /// The communicator.
    pub(crate) fn comm(&self) -> &Communicator {
        self.comm
    }

    /// Puts a group into the stream. `gated` says which of its buckets are not ready.
    ///
    /// # Safety
    ///
    /// The buffers of all calls are valid, and unused by others, as long as the flight holds them or until it has ended; those of gated
    /// buckets' inputs from their mark on. No call's output overlaps another call's buffers.
    pub(crate) unsafe fn submit_group(
        &self,
        calls: &[Call],
        gated: &[bool],
        flight: &Arc<Flight>,
    ) -> Result<(), Error> {
        let submitted = match self.stream {
            // SAFETY: by this function's contract.
            AnyStream::Cuda(stream) => unsafe {
                self.comm.enqueue_group(calls, stream, gated, flight)
            },
            AnyStream::Host(_) => self.hand_group_over(calls, gated, flight.clone()),
        };
        submitted.inspect_err(|_| flight.cancel())
    }

    fn hand_group_over(
        &self,
        calls: &[Call],
        gated: &[bool],
        flight: Arc<Flight>,
    ) -> Result<(), Error> {
        let stream = self.host_stream()?;
        flight.check_host()?;
        let is_gated = gated.contains(&true);
        let signals = Signals::new(gated.len(), self.comm.max_channels(), is_gated);
        flight.board(Arc::new(signals), gated, None);
        let turn = self.turn();
        stream.send(Job::Group { turn, calls: calls.to_vec(), flight })
    }

    /// The stream, if it is the host's.
    fn host_stream(&self) -> Result<&Stream, Error> {
        match (self.stream, self.comm.device()) {
            (AnyStream::Host(stream), Device::Host) => {
                self.comm.check_process()?;
                stream.check_process()?;
                Ok(stream)
            }
            (_, device) => Err(Error::OtherDevice { device }),
        }
    }

    fn turn(&self) -> Turn {
        let (shared, ticket) = self.comm.issue();
        Turn { shared, ticket }
    }
}
