//! The communicator: one rank's handle to a set of ranks.

mod grow;
mod guests;
mod registration;
mod split;
mod start;
mod starting;
mod submit;
mod suspend;

use crate::call::{Call, CallList, CallOptions, CheckedCall, Options, Placed, SpareList, Terms};
use crate::device::{DeviceBuffer, Heap, HostBuffer};
use crate::engine::{Engine, Handle, Request};
use crate::error::Error;
use crate::gate::Gate;
use crate::memory::{HeapAllocator, MemoryUse};
use crate::status::CallTimes;
use crate::target::Device;
use crate::work::{Flight, Flights};
use oxccl_kernels::StepTrace;
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::element::{Element, OpKind};
use oxccl_plans::length::Length;
use oxccl_plans::tune::Pin;
use oxccl_plans::tune::Plan;
use oxccl_transports::cuda::Context;
use oxccl_transports::fork::Origin;
pub use registration::Registration;
pub use starting::Starting;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::sync::Arc;
use std::time::Duration;

/// One rank of a set of ranks that carry out collectives together.
///
/// All ranks make the same calls in the same order. A blocking call runs in the caller's thread and
/// returns when this rank's part is done: its output is there and its input may be changed. On a
/// GPU it waits for a kernel in a stream of this rank's own. Calls [`on`](Communicator::on) a
/// stream return at once. Calls of one communicator run one after the other, however they are made.
///
/// It can move to another thread but not be shared: give each rank a thread or a process of its
/// own. It belongs to the process that made it: one that is forked from that can neither use nor
/// close it, and gets [`Error::Forked`].
#[derive(Debug)]
pub struct Communicator {
    rank: usize,
    world: usize,
    device: Device,
    max_channels: usize,
    shared: Arc<Shared>,
    heap: Arc<Heap>,
    /// Tickets issued to streams.
    issued: Cell<u64>,
    /// What calls ask for that are made now.
    terms: Cell<Terms>,
    /// The last group's calls, for the next one.
    calls: SpareList,
    /// What its launches on streams have been.
    flights: RefCell<Flights>,
    handle: Handle,
    origin: Origin,
}

/// What a communicator and its streams' workers share.
pub(crate) struct Shared {
    engine: UnsafeCell<Engine>,
    gate: Gate,
}

// SAFETY: the engine is used by whoever's turn it is: the worker that holds ticket t, once t - 1 is
// done, or the communicator's thread (there is one: `Communicator` is not `Sync`), once every
// ticket it issued is done. `Gate` orders them.
unsafe impl Sync for Shared {}
// SAFETY: `Engine` is `Send`, and so is the gate.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Shared {
    /// Runs a stream's launch in its turn.
    ///
    /// # Safety
    ///
    /// `ticket` was issued for this launch alone; the rest as for [`Engine::launch`].
    pub(crate) unsafe fn run_ticket(
        &self,
        ticket: u64,
        calls: &[CheckedCall],
        request: &Request<'_>,
    ) -> Result<(), Error> {
        self.gate.wait(ticket - 1);
        // SAFETY: it is this ticket's turn, so nobody else uses the engine; the buffers are the
        // caller's promise.
        let result = unsafe { (*self.engine.get()).launch(calls, &mut None, request) };
        self.gate.pass(ticket);
        result
    }

    /// Passes a ticket whose call cannot run.
    pub(crate) fn skip_ticket(&self, ticket: u64) {
        self.gate.wait(ticket - 1);
        self.gate.pass(ticket);
    }
}

impl Communicator {
    fn from_engine(engine: Engine) -> Communicator {
        let (rank, world) = (engine.rank(), engine.world());
        let (heap, device) = (engine.heap().clone(), engine.device());
        let (max_channels, handle) = (engine.max_channels(), engine.handle());
        let shared = Shared { engine: UnsafeCell::new(engine), gate: Gate::new() };
        Communicator {
            rank,
            world,
            device,
            max_channels,
            shared: Arc::new(shared),
            heap,
            issued: Cell::new(0),
            terms: Cell::default(),
            calls: SpareList::default(),
            flights: RefCell::default(),
            handle,
            origin: Origin::here(),
        }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Most channels of a call.
    pub(crate) fn max_channels(&self) -> usize {
        self.max_channels
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.world
    }

    /// Number of nodes that the ranks are on.
    pub fn nodes(&self) -> usize {
        self.idle().nodes()
    }

    /// What it computes on: with GPUs, this rank's.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Its GPU's context, for streams, events and graphs ([`crate::cuda`]); none on the host.
    pub fn context(&self) -> Option<Context> {
        self.idle().context()
    }

    /// Takes `count` zeroed elements of its device's memory, which every rank reaches in place. Not
    /// collective: each rank allocates what it needs. It outlives the communicator.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the heap or the machine does not have that much;
    /// [`Error::Overflow`] if no machine has; [`Error::Forked`].
    pub fn alloc<T: Element>(&self, count: usize) -> Result<DeviceBuffer<T>, Error> {
        self.check_process()?;
        let length =
            Length::new(count, size_of::<T>()).map_err(Error::too_long("alloc", "count"))?;
        Ok(DeviceBuffer::new(self.heap.alloc(length.bytes())?, count))
    }

    /// As [`alloc`](Communicator::alloc), for the host to look at.
    ///
    /// # Errors
    /// As [`alloc`](Communicator::alloc); [`Error::MemoryOfGpu`] of a communicator on a GPU.
    pub fn alloc_host<T: Element>(&self, count: usize) -> Result<HostBuffer<T>, Error> {
        self.alloc(count)?.into_host()
    }

    /// An allocator over the heap of this rank, for memory of whatever owner. It is not a call of
    /// all ranks.
    ///
    /// # Errors
    /// [`Error::MemoryOfGpu`] of a communicator on a GPU.
    pub fn heap_allocator(&self) -> Result<HeapAllocator, Error> {
        match self.device {
            Device::Host => Ok(HeapAllocator::new(self.heap.clone())),
            Device::Cuda(_) => Err(Error::MemoryOfGpu),
        }
    }

    /// Ends the communicator on all ranks. They compare what they have called, in all its
    /// arguments, and how many messages they have sent and received: what went wrong where nobody
    /// waited, such as a message that nobody received or a broadcast with two roots, is an error on
    /// all ranks here. Dropping a communicator ends it, too, but neither waits for the others nor
    /// compares messages.
    ///
    /// It waits for its streams' calls and for all ranks, which must all close, each at most for
    /// the time-out.
    ///
    /// # Errors
    /// [`Error::Mismatch`] and [`Error::Unreceived`], on all ranks, name the ranks that differ;
    /// [`Error::TimedOut`] and [`Error::Left`] a rank that does not close; [`Error::Broken`] an
    /// earlier failure.
    pub fn close(mut self) -> Result<(), Error> {
        self.idle_mut()?.close()
    }

    /// What any thread may use to ask after this communicator, and to end it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits for all ranks, at most for this time, once this rank's streams are done. How much
    /// later than the first each rank has come, to a millisecond or so: who is a straggler. It goes
    /// over the connection to the rendezvous, and takes about a tenth of a millisecond for each
    /// rank; [`barrier`](crate::Collectives::barrier) is for speed.
    ///
    /// # Errors
    /// [`Error::TimedOut`] names all ranks that have not come, on all ranks, and ends the
    /// communicator; otherwise as other calls of all ranks.
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<Vec<Duration>, Error> {
        // SAFETY: all issued tickets are done (`idle_engine`), and no other comes from this thread
        // meanwhile.
        unsafe { (*self.idle_engine()?).monitored_barrier(timeout) }
    }

    /// How long calls have taken, by rank, since the start: those that no rank leaves before all
    /// have come, which is all but messages, calls with a root, and those of uneven counts. Who
    /// comes first waits longest, so a straggler is who takes the least time
    /// ([`lateness_s`](crate::status::lateness_s)). That needs no common clock of several machines.
    /// Ranks that are late by turns show as calls that take long on all.
    ///
    /// All ranks call this, between the same calls. It goes over the connection to the rendezvous.
    ///
    /// # Errors
    /// [`Error::Config`] if no times are kept ([`Config::call_times`](crate::Config::call_times));
    /// otherwise as other calls of all ranks.
    pub fn call_times(&self) -> Result<Vec<CallTimes>, Error> {
        // SAFETY: all issued tickets are done (`idle_engine`), and no other comes from this thread
        // meanwhile.
        unsafe { (*self.idle_engine()?).call_times() }
    }

    /// How its memory is used.
    pub fn memory(&self) -> MemoryUse {
        self.idle().memory()
    }

    /// Programs launched so far: one a call.
    pub fn launches(&self) -> u64 {
        self.idle().launches()
    }

    /// Wakes that this rank's sleeping waits have missed so far, each of which has cost it up to a
    /// millisecond: none where the kernel has membarrier. On a GPU nothing sleeps.
    pub fn missed_wakes(&self) -> u64 {
        self.idle().missed_wakes()
    }

    /// Launches planned so far: one that comes again, with buffers wherever they are, is not
    /// planned again.
    pub fn plans(&self) -> u64 {
        self.idle().plans()
    }

    /// Whether the system reads ordinary memory of the ranks of this machine for each other (by
    /// cross-memory attach). Then large buffers that are not of [`alloc`](Communicator::alloc) need
    /// no way through slots. See `OXCCL_CMA` in the settings. Threads of one process reach all
    /// memory without.
    pub fn reads_private_memory(&self) -> bool {
        self.idle().reads_private_memory()
    }

    /// Changes the promised order of reduction. All ranks must do so between the same calls.
    pub fn set_order(&mut self, order: Order) -> Result<(), Error> {
        self.idle_mut()?.reconfigure(|config| config.order = order)
    }

    /// Changes what the tuner must choose. All ranks must do so between the same calls.
    pub fn set_pin(&mut self, pin: Pin) -> Result<(), Error> {
        self.idle_mut()?.reconfigure(|config| config.pin = pin)
    }

    /// Makes calls that ask for more than the communicator is set to, blocking ones and those on
    /// streams ([`on`](Communicator::on)) and in groups that begin meanwhile. All ranks say the
    /// same, but for the time-out, which is this rank's own.
    ///
    /// ```
    /// use oxccl::{CallOptions, Collectives, Communicator, Order, ReduceOp};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let options = CallOptions { order: Some(Order::Tree), ..CallOptions::default() };
    /// let mut loss = [0.1f32];
    /// comm.with_options(options, || comm.all_reduce_in_place(&mut loss, ReduceOp::Sum))??;
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for options that cannot be. The calls': [`Error::NoAlgorithm`] where
    /// nothing fits, [`Error::Mismatch`] where ranks ask for different things.
    pub fn with_options<R>(
        &self,
        options: CallOptions,
        make: impl FnOnce() -> R,
    ) -> Result<R, Error> {
        struct Until<'a>(&'a Cell<Terms>, Terms);
        impl Drop for Until<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }

        let terms = options.terms(self.max_channels())?;
        let _until = Until(&self.terms, self.terms.replace(terms));
        Ok(make())
    }

    /// What calls ask for that are made now.
    #[inline]
    pub(crate) fn terms(&self) -> Terms {
        self.terms.get()
    }

    /// Changes how long a call may wait for other ranks; with [`Duration::MAX`], without end.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), Error> {
        self.idle_mut()?.set_timeout(timeout)
    }

    /// Has calls of the host that wait longer than some hundredths of a second ask this, about
    /// twice a second, whether to give up: in the thread that waits, for languages whose signal
    /// handlers run there. Once it says so, the communicator is
    /// [aborted](crate::Handle::abort), and the call fails with [`Error::Stopped`]. It can be set
    /// once; false if it is set already.
    pub fn set_interrupt(&self, interrupt: impl Fn() -> bool + Send + Sync + 'static) -> bool {
        self.idle().set_interrupt(Box::new(interrupt))
    }

    /// Keeps the time of every step of this rank's calls from here on, or no longer. Calls then run
    /// in a slower build of the executor.
    ///
    /// On a GPU this is a call of all ranks: it loads the traced kernels while none of theirs runs.
    /// There are some for sums of `f32`, [`f16`](crate::f16), [`bf16`](crate::bf16) and
    /// [`F8E4M3`](crate::F8E4M3), for groups that reduce in several ways, and for what only copies.
    /// Other calls, and captured ones, are errors while it traces. A channel keeps as many steps as
    /// [`Advanced::trace_steps`](crate::Advanced::trace_steps) says.
    ///
    /// # Errors
    /// On a GPU [`Error::NotTraced`] on all ranks alike if one of them cannot: it has captured
    /// calls, which would not be traced, or has no memory or no kernels for that; otherwise as
    /// [`register`](Communicator::register).
    pub fn set_trace(&mut self, on: bool) -> Result<(), Error> {
        self.idle_mut()?.set_trace(on)
    }

    /// The steps of all calls since [`set_trace`](Communicator::set_trace) or the last time they
    /// were taken, and how many were lost. None if it does not trace.
    ///
    /// # Errors
    /// [`Error::Transport`] if a GPU's driver does not give them; [`Error::Forked`].
    pub fn take_trace(&mut self) -> Result<StepTrace, Error> {
        self.idle_mut()?.take_trace()
    }

    /// The algorithm that a call of this kind would use, and why. `count` is in elements of `T`:
    /// the whole buffer for all-reduce, broadcast, reduce and send/recv, one rank's part for the
    /// others. `windows` says that every rank's buffers are reached by all.
    ///
    /// # Errors
    /// [`Error::NoAlgorithm`] if nothing fits; [`Error::Op`]; [`Error::Rank`]; [`Error::Overflow`].
    pub fn plan<T: Element>(
        &self,
        kind: Kind,
        op: OpKind,
        count: usize,
        root: usize,
        in_place: bool,
        windows: bool,
    ) -> Result<Plan, Error> {
        self.plan_of::<T>((kind, op, count, root), (in_place, windows, false))
    }

    /// As [`plan`](Self::plan), for the calls of a group that are alike but for their counts, which
    /// share a plan. `count` is that of all of them together.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn plan_in_group<T: Element>(
        &self,
        kind: Kind,
        op: OpKind,
        count: usize,
        root: usize,
        in_place: bool,
        windows: bool,
    ) -> Result<Plan, Error> {
        self.plan_of::<T>((kind, op, count, root), (in_place, windows, true))
    }

    fn plan_of<T: Element>(
        &self,
        (kind, op, count, root): (Kind, OpKind, usize, usize),
        (in_place, windows, grouped): (bool, bool, bool),
    ) -> Result<Plan, Error> {
        if root >= self.world {
            return Err(Error::Rank {
                argument: "root",
                rank: root,
                last: self.world - 1,
                own: false,
            });
        }
        let collective = Collective::rooted(kind, self.world, root);
        let call = CheckedCall {
            in_place: in_place && kind == Kind::AllToAll,
            ..CheckedCall::without_memory(collective, T::DATA_TYPE, op, count)?
        };
        self.check_process()?;
        self.idle().plan(&call, windows, grouped)
    }

    /// How many nanoseconds a call would take by itself, by the measured table of
    /// [`Config::tuning`](crate::Config::tuning); `None` without a table that tells. Nothing is
    /// launched.
    ///
    /// # Errors
    /// As running it would fail before anything is sent.
    pub fn predict(&self, call: Call<'_>) -> Result<Option<u64>, Error> {
        let call = CheckedCall::new(&call, self.rank, self.world)?;
        let call = CheckedCall { options: self.terms().options, ..call };
        // SAFETY: all issued tickets are done (`idle_engine`), and no other comes from this thread
        // meanwhile.
        unsafe { (*self.idle_engine()?).predict(&call) }
    }

    /// Launches calls in the calling thread, or puts them into a stream of the GPU.
    ///
    /// # Safety
    ///
    /// As for [`Engine::launch`].
    #[inline]
    pub(crate) unsafe fn launch(
        &self,
        calls: &[CheckedCall],
        placed: &mut Option<Placed>,
        request: &Request<'_>,
    ) -> Result<(), Error> {
        // SAFETY: all issued tickets are done (`idle_engine`), so nobody else uses the engine; the
        // buffers are the caller's promise.
        unsafe { (*self.idle_engine()?).launch(calls, placed, request) }
    }

    /// The list that groups are made in.
    #[inline]
    pub(crate) fn take_calls(&self, options: Options) -> Box<CallList> {
        let new = || Box::new(CallList::new(self.rank, self.world));
        let mut list = self.calls.0.take().unwrap_or_else(new);
        list.begin(options);
        list
    }

    /// Keeps the list for the next group.
    #[inline]
    pub(crate) fn give_calls(&self, calls: Box<CallList>) {
        self.calls.0.set(Some(calls));
    }

    /// What a launch on a stream will be.
    pub(crate) fn take_flight(&self) -> Arc<Flight> {
        self.flights.borrow_mut().take()
    }

    /// Issues the next ticket to a stream.
    pub(crate) fn issue(&self) -> (Arc<Shared>, u64) {
        self.issued.set(self.issued.get() + 1);
        (self.shared.clone(), self.issued.get())
    }

    /// Fails in a process that was forked from this communicator's.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.origin.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// The engine, once no stream uses it.
    #[inline]
    fn idle_engine(&self) -> Result<*mut Engine, Error> {
        self.check_process()?;
        if !self.shared.gate.is_done(self.issued.get()) {
            self.shared.gate.wait(self.issued.get());
        }
        Ok(self.shared.engine.get())
    }

    /// To be looked at. A forked process looks at its copy, in which no stream goes on.
    fn idle(&self) -> &Engine {
        let engine = self.idle_engine().unwrap_or(self.shared.engine.get());
        // SAFETY: no ticket is out, and new ones, like blocking calls, come from this thread, not
        // while the reference lives: every caller ends it before it returns.
        unsafe { &*engine }
    }

    fn idle_mut(&mut self) -> Result<&mut Engine, Error> {
        let engine = self.idle_engine()?;
        // SAFETY: as in `idle`; `&mut self` excludes blocking calls.
        Ok(unsafe { &mut *engine })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // In a forked process: the threads, the sockets and the memory are the parent's, so
            // nothing of it may end here.
            let (calls, flights) = (self.calls.0.take(), self.flights.take());
            std::mem::forget((self.shared.clone(), self.heap.clone(), calls, flights));
            return;
        }
        // Calls on streams end first; each ends, if it does not move by its time-out.
        self.shared.gate.wait(self.issued.get());
    }
}
