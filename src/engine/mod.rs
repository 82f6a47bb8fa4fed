//! One rank's launches: looked up or prepared, carried out, and explained where they fail.
//!
//! Every call is a group of one, and goes one way: [`Engine::launch`] finds the calls among those
//! that are [`prepared`], the [`Backend`] carries them out, and [`diagnosis`] says what went wrong.

mod arrivals;
mod backend;
mod close;
mod cma;
mod diagnosis;
mod fabric;
mod gpu;
mod grow;
mod guests;
mod handle;
mod host;
mod links;
mod prepared;
mod recent;
mod split;
mod start;
mod suspend;
mod tally;

pub(crate) use backend::Request;
pub(crate) use gpu::Joint;
pub use handle::Handle;
pub(crate) use start::Beginning;

use crate::call::{Asked, Call, CheckedCall, Fit, Placed};
use crate::config::Config;
use crate::device::{Heap, Label, Rooms};
use crate::error::Error;
use crate::memory::MemoryUse;
use crate::target::Device;
use backend::Backend;
use close::Ending;
use diagnosis::Ranks;
use links::Links;
use oxccl_kernels::{StepTrace, format as f};
use oxccl_plans::tune::Plan;
use oxccl_transports::cuda::Context;
use oxccl_transports::proxy::Egress;
use oxccl_transports::{Bootstrap, Server, UniqueId};
use prepared::{Launches, Maker, Plans, Whose};
use recent::{Ready, Recent};
use start::Spins;
use std::sync::Arc;
use std::time::Duration;
use tally::Tally;

/// One rank of a communicator. Used by one thread at a time.
pub(crate) struct Engine {
    config: Config,
    /// The same as it was given: what follows from where the ranks are is not filled in.
    given: Config,
    spins: Spins,
    label: Label,
    egress: Option<Egress>,
    /// By rank, where the system reads private memory.
    readers: Option<cma::Readers>,
    /// Memory for parts, on hosts.
    rooms: Option<Rooms>,
    staging_bytes: usize,
    /// Where ranks of this process meet that may share their launches.
    joint: Option<Arc<Joint>>,
    plans: Plans,
    launches: Launches,
    backend: Box<dyn Backend>,
    /// The way to other nodes, where there are any.
    links: Option<Arc<Links>>,
    heap: Arc<Heap>,
    ranks: Arc<Ranks>,
    /// What it has called.
    tally: Tally,
    recent: Recent,
    _ending: Arc<Ending>,
    bootstrap: Box<dyn Bootstrap>,
    /// Where this rank serves those that are to join.
    invited: Option<(UniqueId, Arc<Server>)>,
    /// Where this rank serves the rendezvous; goes last, with the last of its engines.
    server: Option<Arc<Server>>,
}

// SAFETY: the raw pointers of launch blocks lead to memory that the engine owns or keeps mapped;
// nothing is tied to a thread.
unsafe impl Send for Engine {}

impl Engine {
    pub(crate) fn heap(&self) -> &Arc<Heap> {
        &self.heap
    }

    /// This rank.
    pub(crate) fn rank(&self) -> usize {
        self.ranks.rank
    }

    /// How many ranks there are.
    pub(crate) fn world(&self) -> usize {
        self.ranks.control.ranks()
    }

    /// Launches so far.
    pub(crate) fn launches(&self) -> u64 {
        self.tally.launches()
    }

    /// Wakes that waits have missed.
    pub(crate) fn missed_wakes(&self) -> u64 {
        self.backend.missed_wakes()
    }

    /// Most channels of a call.
    pub(crate) fn max_channels(&self) -> usize {
        self.config.max_channels
    }

    /// Launches prepared so far.
    pub(crate) fn plans(&self) -> u64 {
        self.launches.plans()
    }

    /// This rank, for any thread.
    pub(crate) fn handle(&self) -> Handle {
        Handle::new(&self.ranks)
    }

    /// How memory is used.
    pub(crate) fn memory(&self) -> MemoryUse {
        let (allocated_bytes, largest_free_bytes) = self.heap.usage();
        MemoryUse {
            heap_bytes: self.heap.len_bytes(),
            allocated_bytes,
            largest_free_bytes,
            staging_bytes: self.staging_bytes
                + self.links.as_ref().map_or(0, |links| links.memory_bytes()),
            registrations: self.backend.registrations(),
        }
    }

    /// Changes how long a call may wait.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> Result<(), Error> {
        let mut config = self.config.clone();
        config.timeout = timeout;
        config.check()?;
        (self.config, self.given.timeout) = (config, timeout);
        self.ranks.poll.set_timeout(timeout);
        Ok(())
    }

    /// Has waits ask this whether to give up.
    pub(crate) fn set_interrupt(&self, interrupt: Box<dyn Fn() -> bool + Send + Sync>) -> bool {
        self.ranks.poll.set_interrupt(interrupt)
    }

    /// Changes what plans depend on, and forgets them.
    pub(crate) fn reconfigure(&mut self, change: impl Fn(&mut Config)) -> Result<(), Error> {
        let mut config = self.config.clone();
        change(&mut config);
        config.check()?;
        change(&mut self.given);
        self.config = config;
        self.launches.clear();
        self.backend.forget();
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
        self.backend.context()
    }

    /// Keeps the steps of calls from here on, or no longer.
    pub(crate) fn set_trace(&mut self, on: bool) -> Result<(), Error> {
        let steps = on.then_some(self.config.advanced.trace_steps);
        self.backend.set_trace(&mut *self.bootstrap, steps)
    }

    /// The steps that have been kept.
    pub(crate) fn take_trace(&mut self) -> Result<StepTrace, Error> {
        self.backend.take_trace()
    }

    /// Whether the system reads the ranks' private memory for each other.
    pub(crate) fn reads_private_memory(&self) -> bool {
        self.readers.is_some()
    }

    /// What a call would choose, by itself or as one of a group.
    pub(crate) fn plan(
        &self,
        call: &CheckedCall,
        windows: bool,
        grouped: bool,
    ) -> Result<Plan, Error> {
        if windows
            && !grouped
            && self.backend.has_copies()
            && let Some(plan) = self.plans.plan_of_copies(&self.config, call)
        {
            return Ok(plan);
        }
        let whose = if grouped { Whose::OwnInGroup } else { Whose::Own };
        self.plans.plan(&self.config, call, windows, whose)
    }

    /// How long a call takes by the tuning table, if that tells.
    pub(crate) fn predict(&self, call: &CheckedCall) -> Result<Option<u64>, Error> {
        self.backend.look_again();
        let (_, windows) = self.backend.find(call)?;
        Ok(self.plan(call, windows, false)?.predicted_ns)
    }

    /// Launches a call with equal parts by itself, which has ended when this returns. One that
    /// comes again, buffers and all, is not looked at again; `check` looks at any other's memory.
    ///
    /// # Safety
    ///
    /// As for [`Engine::launch`].
    #[inline]
    pub(crate) unsafe fn launch_one(
        &mut self,
        call: &Call<'_>,
        check: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let asked = Asked::new(call);
        if let Some(at) = self.recent.again(&asked)
            // SAFETY: by this function's contract: it is the same call.
            && let Some(launched) = unsafe { self.launch_placed(at) }
        {
            return launched;
        }
        // SAFETY: by this function's contract.
        unsafe { self.launch_other(call, &asked, check) }
    }

    /// Launches the call that has been placed there once more, if it still is.
    ///
    /// # Safety
    ///
    /// As for [`Engine::launch`].
    #[inline]
    unsafe fn launch_placed(&mut self, at: Placed) -> Option<Result<(), Error>> {
        let prepared = self.launches.placed(at)?;
        // SAFETY: by this function's contract; tables point to the call's buffers since it was
        // placed.
        let launched =
            unsafe { self.backend.launch(prepared, &mut self.tally, &Request::BLOCKING) };
        Some(match launched {
            Ok(()) => Ok(()),
            Err(error) => self.displaced(error),
        })
    }

    /// Launches a call by itself that is not the last one.
    ///
    /// # Safety
    ///
    /// As for [`Engine::launch`].
    #[cold]
    #[inline(never)]
    unsafe fn launch_other(
        &mut self,
        call: &Call<'_>,
        asked: &Asked,
        check: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        check()?;
        // SAFETY: by this function's contract.
        if let Some(launched) = unsafe { self.launch_recent(call, asked) } {
            return launched;
        }
        let call = CheckedCall::new(call, self.ranks.rank, self.ranks.control.ranks())?;
        let mut at = None;
        // SAFETY: by this function's contract.
        let launched =
            unsafe { self.launch(std::slice::from_ref(&call), &mut at, &Request::BLOCKING) };
        let fit = Fit::of(&call, self.ranks.rank);
        self.recent.keep(asked, Ready { call, fit, at });
        launched
    }

    /// Launches a call that has been made before, but for its memory.
    ///
    /// # Safety
    ///
    /// As for [`Engine::launch`].
    #[inline]
    unsafe fn launch_recent(
        &mut self,
        call: &Call<'_>,
        asked: &Asked,
    ) -> Option<Result<(), Error>> {
        let Ready { call: known, fit, at } = self.recent.find(asked)?;
        let at = (*at)?;
        let prepared = self.launches.placed(at)?;
        if known.asked != *asked
            && !(known.move_to(call, asked, fit) && self.backend.place_again(prepared, known))
        {
            self.recent.forget();
            return None;
        }
        self.recent.found(asked, at);
        // SAFETY: by this function's contract; its tables point to the call's buffers now.
        let launched =
            unsafe { self.backend.launch(prepared, &mut self.tally, &Request::BLOCKING) };
        Some(launched.or_else(|error| self.displaced(error)))
    }

    /// Launches calls as one. On the host they have ended when this returns. Of a GPU it puts them
    /// into a stream; in one that is captured they are recorded. Who gives the same calls again may
    /// say so with what was left in `placed`; then they are not looked at.
    ///
    /// # Safety
    ///
    /// The calls' buffers are valid for their lengths, no call's output overlaps another's buffers,
    /// and nobody else uses them until the launch has ended, or their bucket is done; of a launch
    /// that is captured, whenever it is replayed, in the order of this rank's calls. The input of a
    /// gated bucket may still be in use until that is marked ready.
    #[inline]
    pub(crate) unsafe fn launch(
        &mut self,
        calls: &[CheckedCall],
        placed: &mut Option<Placed>,
        request: &Request<'_>,
    ) -> Result<(), Error> {
        if let Some(at) = *placed
            && let Some(prepared) = self.launches.placed(at)
        {
            // SAFETY: by this function's contract; tables point to the calls' buffers since they
            // were placed.
            return match unsafe { self.backend.launch(prepared, &mut self.tally, request) } {
                Ok(()) => Ok(()),
                Err(error) => self.displaced(error),
            };
        }
        // SAFETY: by this function's contract.
        unsafe { self.launch_anew(calls, placed, request) }
    }

    /// Launches calls that have not been placed, or are placed no more.
    ///
    /// # Safety
    ///
    /// As for [`Engine::launch`].
    #[cold]
    unsafe fn launch_anew(
        &mut self,
        calls: &[CheckedCall],
        placed: &mut Option<Placed>,
        request: &Request<'_>,
    ) -> Result<(), Error> {
        let at = self.place(calls, request.grouped)?;
        *placed = Some(at).filter(|_| self.backend.finds_for_good());
        let Some(prepared) = self.launches.just_placed(at) else {
            unreachable!("they have just been placed")
        };
        // SAFETY: as in `launch`.
        let launched = unsafe { self.backend.launch(prepared, &mut self.tally, request) };
        launched.or_else(|error| self.displaced(error))
    }

    /// After a launch that failed: nothing is where it was placed.
    #[cold]
    #[inline(never)]
    fn displaced(&mut self, error: Error) -> Result<(), Error> {
        self.launches.displace();
        Err(error)
    }

    fn place(&mut self, calls: &[CheckedCall], grouped: bool) -> Result<Placed, Error> {
        self.ranks.check()?;
        let mut maker = Maker {
            config: &self.config,
            ranks: &self.ranks,
            links: self.links.as_ref(),
            plans: &mut self.plans,
            backend: &mut *self.backend,
        };
        self.launches.place(calls, grouped, &mut maker)
    }

    /// Makes the allocation that holds these bytes reachable for all ranks, which all call this.
    /// The driver's number of it; none if all ranks reach it as it is.
    pub(crate) fn register(
        &mut self,
        address: *const u8,
        len_bytes: usize,
    ) -> Result<Option<u64>, Error> {
        self.backend.register(&mut *self.bootstrap, address, len_bytes)
    }

    /// Whether peers reach only what is in this rank's heap, or lent to it.
    pub(crate) fn needs_heap(&self) -> bool {
        self.backend.needs_heap()
    }

    /// Registered once less, on all ranks, which all call this.
    pub(crate) fn deregister(&mut self, buffer: Option<u64>) -> Result<(), Error> {
        self.backend.deregister(&mut *self.bootstrap, buffer)
    }

    /// Registered once less, by this rank alone.
    pub(crate) fn leave(&mut self, buffer: Option<u64>) {
        self.backend.leave(buffer);
    }
}

impl Drop for Engine {
    /// Tells the others, before anything of this rank goes.
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        if panicking {
            self.backend.abort();
        }
        self.backend.wait();
        // A thread that panics has not closed in order: to the others it is dead.
        if self.ranks.check().is_ok() && !panicking {
            self.ranks.leave(self.tally.collectives());
        }
        self.ranks.control.leave();
    }
}

/// Runs a launch with the links to other nodes awake.
#[inline]
fn linked(links: Option<&Links>, run: impl FnOnce() -> f::Outcome) -> f::Outcome {
    let Some(links) = links else { return run() };
    links.begin();
    let outcome = run();
    links.end();
    outcome
}
