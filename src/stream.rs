//! Streams: ordered queues of calls. The host's are each carried out by a thread of its own; those
//! of GPUs are the driver's.

use crate::call::{Call, CallOptions, CheckedCall, Terms};
use crate::collectives::Submit;
use crate::communicator::{Communicator, Shared};
use crate::device::{InFlight, Signals, cuda};
use crate::engine::Request;
use crate::error::Error;
use crate::memory::Streamed;
use crate::target::Device;
use crate::work::{Flight, Work};
use oxccl_transports::fork::Origin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// An ordered queue of calls with a thread that carries them out.
///
/// Calls on one stream run in order. A communicator's calls run in the order they were made, on
/// whatever streams.
#[derive(Debug)]
pub struct Stream {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    origin: Origin,
}

/// What a stream does, in order.
enum Job {
    /// Launches calls, as a group or one by itself.
    Launch {
        turn: Turn,
        calls: Vec<CheckedCall>,
        grouped: bool,
        timeout: Option<Duration>,
        flight: Arc<Flight>,
    },
    /// Marks a bucket of a group ready.
    Mark { flight: Arc<Flight>, bucket: usize },
    /// Waits for something else.
    Await { work: Work, flight: Arc<Flight> },
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

    /// Makes what is put into this stream from here on wait for what another stream carries out,
    /// such as a bucket of a group. The work that it returns ends then.
    ///
    /// # Errors
    /// [`Error::System`] if the stream's thread has panicked. The work's, if what is awaited has
    /// failed: what comes next on this stream is done all the same.
    pub fn wait(&self, work: &Work) -> Result<Work, Error> {
        let flight = Arc::<Flight>::default();
        self.send(Job::Await { work: work.clone(), flight: flight.clone() })?;
        Ok(Work::new(flight))
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
        if let Job::Launch { turn, .. } = unsent.0 {
            turn.shared.skip_ticket(turn.ticket);
        }
        let source = std::io::Error::other("the stream's thread has panicked");
        Err(Error::System { doing: "queueing a call", source })
    }
}

impl Drop for Stream {
    /// Waits for the calls that are queued; each ends, if it does not move by its communicator's
    /// time-out.
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
            Job::Launch { turn, calls, grouped, timeout, flight } => {
                let flight_of = Some(&flight);
                let request = Request { grouped, timeout, flight: flight_of, ..Request::default() };
                // SAFETY: the ticket was issued for this launch. The flight holds the buffers, each
                // until its bucket is done, or to the end; they were borrowed as the calls need
                // them, inputs shared and outputs exclusively, and host accesses wait until the
                // hold is gone. What is lent of an input that is not ready is given back before its
                // mark. Without a hold whoever made the calls vouches.
                let result = unsafe { turn.shared.run_ticket(turn.ticket, &calls, &request) };
                flight.end(result);
            }
            Job::Mark { flight, bucket } => flight.mark_ready(bucket),
            Job::Await { work, flight } => flight.end(work.wait()),
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
    /// What its calls ask for.
    terms: Terms,
}

impl Communicator {
    /// Calls that return at once and run on a stream, in the order they are made. They take
    /// communicator memory, which stays alive, and waits when the host touches it, until they are
    /// done.
    ///
    /// ```
    /// use oxccl::{Collectives, Communicator, ReduceOp, Stream};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let stream = Stream::new()?;
    /// let mut gradient = comm.alloc_host::<f32>(1000)?;
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
    /// use oxccl::{Collectives, Communicator, Config, ReduceOp};
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
    /// There a stream may be captured: its calls are then recorded, their works are over at once,
    /// and what a replay does wrong ends the communicator. Replays and calls must happen in the
    /// same order on all ranks, and one after the other on each: launch them in one stream, or
    /// order their streams by events. What begins beside a replay ends the communicator
    /// ([`Error::ReplayedBeside`](crate::Error::ReplayedBeside)).
    pub fn on<'a>(&'a self, stream: impl Into<AnyStream<'a>>) -> OnStream<'a> {
        OnStream { comm: self, stream: stream.into(), terms: self.terms() }
    }
}

impl<'a> OnStream<'a> {
    /// The same, for calls and groups that ask for more than the communicator is set to. All ranks
    /// say the same, but for the time-out, which is this rank's own.
    ///
    /// ```
    /// # use oxccl::{CallOptions, Collectives, Communicator, ReduceOp, Stream};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// # let stream = Stream::new()?;
    /// # let mut gradient = comm.alloc::<f32>(1000)?;
    /// let few = CallOptions { channels: Some(1), ..CallOptions::default() };
    /// let few = comm.on(&stream).with_options(few)?;
    /// few.all_reduce_in_place(&mut gradient, ReduceOp::Avg)?.wait()?;
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::with_options`].
    pub fn with_options(self, options: CallOptions) -> Result<OnStream<'a>, Error> {
        Ok(OnStream { terms: options.terms(self.comm.max_channels())?, ..self })
    }

    /// What its calls ask for.
    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }

    /// The communicator.
    pub(crate) fn comm(&self) -> &Communicator {
        self.comm
    }

    /// Puts a launch into the stream. `gated` says which buckets of a group are not ready.
    ///
    /// # Safety
    ///
    /// The buffers of all calls are valid, and unused by others, as long as the flight holds them
    /// or until it has ended; those of gated buckets' inputs from their mark on. No call's output
    /// overlaps another call's buffers.
    pub(crate) unsafe fn launch(
        &self,
        calls: &[CheckedCall],
        grouped: bool,
        gated: &[bool],
        flight: &Arc<Flight>,
    ) -> Result<(), Error> {
        let submitted = match self.stream {
            AnyStream::Cuda(_) if self.comm.device() == Device::Host => {
                Err(Error::OtherDevice { device: Device::Host })
            }
            AnyStream::Cuda(stream) => {
                let (stream, flight) = (Some(stream), Some(flight));
                let timeout = self.terms.timeout;
                let request = Request { grouped, gated, stream, flight, timeout };
                // SAFETY: by this function's contract.
                unsafe { self.comm.launch(calls, &mut None, &request) }
            }
            AnyStream::Host(_) => self.hand_over(calls, grouped, gated, flight.clone()),
        };
        submitted.inspect_err(|_| flight.cancel())
    }

    fn hand_over(
        &self,
        calls: &[CheckedCall],
        grouped: bool,
        gated: &[bool],
        flight: Arc<Flight>,
    ) -> Result<(), Error> {
        let stream = self.host_stream()?;
        flight.check_host()?;
        if grouped {
            let is_gated = gated.contains(&true);
            let signals = Signals::new(gated.len(), self.comm.max_channels(), is_gated);
            flight.board(Arc::new(signals), gated, None);
        }
        let (turn, timeout) = (self.turn(), self.terms.timeout);
        stream.send(Job::Launch { turn, calls: calls.to_vec(), grouped, timeout, flight })
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

impl<'b> Submit<'b> for OnStream<'_> {
    type Done = Work;
    type Access = Streamed;

    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn world_size(&self) -> usize {
        self.comm.world_size()
    }

    unsafe fn submit(self, call: Call<'_>, holds: [Option<InFlight>; 2]) -> Result<Work, Error> {
        let call = CheckedCall::new(&call, self.comm.rank(), self.comm.world_size())?;
        let flight = self.comm.take_flight();
        flight.keep(holds.into_iter().flatten().map(|buffer| (0, buffer)).collect());
        let call = [CheckedCall { options: self.terms.options, ..call }];
        // SAFETY: by this function's contract.
        unsafe { self.launch(&call, false, &[], &flight) }?;
        Ok(Work::new(flight))
    }
}
