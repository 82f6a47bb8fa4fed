//! Calls that streams of a GPU carry out: a thread, the watcher, sees each to its end. It reads the
//! word in which kernels say that they have ended ([`Ended`]), and how the call's channels did. Now
//! and then it asks the driver whether the context is still there.
//!
//! While a kernel waits, another thread, the guard, asks what a wait on the host asks: whether the
//! time-out has passed, and whether the ranks called the same. It stops a kernel by the abort word,
//! and never calls the driver: whoever frees memory waits inside the driver for this kernel, and
//! keeps all others out, the watcher too.

use super::chains::DeviceChain;
use crate::call::Record;
use crate::device::cuda::{Cells, Ended, Gpu, SLOTS, Stream, Tables};
use crate::engine::diagnosis::{Odd, Ranks};
use crate::engine::links::Links;
use crate::error::Error;
use crate::waiters::Waiters;
use crate::work::Flight;
use oxccl_kernels::format as f;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, beside_captures};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A launch in a stream.
#[derive(Debug)]
pub(super) struct Launched {
    /// Its number among this rank's launches.
    pub(super) number: u64,
    pub(super) record: Record,
    pub(super) channels: usize,
    /// Where it says how it ended.
    pub(super) slot: usize,
    /// Whether it is a kernel; otherwise copy engines carry it out.
    pub(super) is_kernel: bool,
    /// Its own time-out.
    pub(super) timeout: Option<Duration>,
    /// Who is told of its end.
    pub(super) flight: Arc<Flight>,
    /// The tables that its kernel reads.
    pub(super) _chain: Arc<DeviceChain>,
}

/// The calls under way, and the thread that looks after them.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    ranks: Arc<Ranks>,
    tables: Arc<Tables>,
    /// What copy engines wait for, if they carry out calls.
    cells: Option<Arc<Cells>>,
    ended: Arc<Ended>,
    /// The rank's own, by which the driver tells what went wrong on the GPU.
    stream: Arc<Stream>,
    /// The way to other nodes, awake while calls are under way.
    links: Option<Arc<Links>>,
    state: Mutex<State>,
    /// As in the state, for a look without the lock.
    entered: AtomicU64,
    changed: Waiters,
    guarded: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Launched>,
    /// Calls so far, and those that have ended.
    entered: u64,
    ended: u64,
    /// No more will come.
    closed: bool,
    /// The watcher is gone.
    over: bool,
    /// The call that the watcher sees through.
    under_way: Option<UnderWay>,
    /// The guard has seen no call for a while, and waits to be told of one.
    unguarded: bool,
    /// The last call that was captured. Nobody tells when it is replayed.
    captured: Option<Record>,
}

/// As [`Launched`] has it.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    number: u64,
    slot: usize,
    channels: usize,
}

/// The first looks after a call are close together.
const EAGER: Duration = Duration::from_micros(200);
/// Later ones are so far apart, or an eighth of how long the call has taken, up to a limit: it may
/// stand behind long work of others in its stream.
const NAP: Duration = Duration::from_micros(100);
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// So long after a call the watcher looks for the next one before it sleeps.
const LINGERING: Duration = Duration::from_micros(200);
/// The driver is asked so often whether a call that has not ended still can.
const ASK: Duration = Duration::from_millis(10);
/// The guard looks at a call so often, and goes to sleep after so many looks without one.
const GUARD_NAP: Duration = Duration::from_millis(5);
const IDLE_LOOKS: u32 = 200;
/// How long calls in a stream may take to end after an abort: only what else is in the stream keeps
/// them.
const LATER: Duration = Duration::from_secs(60);
/// A stream that waits for no notice for so long has come to its end, or does something else.
const QUIET: Duration = Duration::from_millis(5);
/// Replays of captured calls are looked after so often.
const REPLAY_NAP: Duration = Duration::from_millis(10);

impl State {
    /// No kernel is under way, and none comes that is not told of.
    fn is_quiet(&self) -> bool {
        self.entered == self.ended && self.captured.is_none()
    }
}

impl Watch {
    /// None yet.
    pub(super) fn new(
        gpu: &Gpu,
        ranks: Arc<Ranks>,
        links: Option<Arc<Links>>,
    ) -> Result<Watch, Error> {
        let (state, entered, changed, guarded) = Default::default();
        let (tables, ended, stream) =
            (gpu.tables().clone(), gpu.ended().clone(), gpu.stream().clone());
        let cells = gpu.cells().cloned();
        let shared = Arc::new(Shared {
            ranks,
            tables,
            cells,
            ended,
            stream,
            links,
            state,
            entered,
            changed,
            guarded,
        });
        let mut watch = Watch { shared: shared.clone(), threads: Vec::new() };
        let (watcher, context) = (shared.clone(), gpu.context().clone());
        watch.spawn("oxccl-watch", move || {
            let over = Over(&watcher);
            over.0.run(&context);
        })?;
        watch.spawn("oxccl-guard", move || shared.guard())?;
        Ok(watch)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        let failed = |source| Error::System { doing: "starting a watching thread", source };
        self.threads.push(thread.map_err(failed)?);
        Ok(())
    }

    /// Where the next call says how it ended; waits while as many as there are places are under
    /// way.
    pub(super) fn next_slot(&self) -> usize {
        let mut state = self.shared.lock();
        while state.entered - state.ended >= SLOTS as u64 {
            state = self.shared.changed.wait(state);
        }
        (state.entered % SLOTS as u64) as usize
    }

    /// Looks after a call that has been launched.
    pub(super) fn push(&self, launched: Launched) {
        let mut state = self.shared.lock();
        state.entered += 1;
        state.queue.push_back(launched);
        self.shared.entered.store(state.entered, Ordering::Relaxed);
        self.shared.wake_links();
        self.shared.changed.wake_all(state);
    }

    /// From here on replays of this call may come at any time.
    pub(super) fn captured(&self, record: Record) {
        let mut state = self.shared.lock();
        state.captured = Some(record);
        self.shared.wake_links();
        self.shared.changed.wake_all(state);
    }

    /// Waits until all calls have ended.
    pub(super) fn wait(&self) {
        let mut state = self.shared.lock();
        while state.entered > state.ended {
            state = self.shared.changed.wait(state);
        }
    }
}

impl Drop for Watch {
    /// Waits for the calls under way: each ends, if it does not move by its time-out.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.changed.wake_all(state);
        for thread in self.threads.drain(..) {
            // One that panicked has told so.
            let _ = thread.join();
        }
        // Replays of what was captured, of a communicator that has ended.
        if self.shared.lock().captured.is_some() {
            self.shared.release_all();
        }
    }
}

/// Tells the guard that there is nothing more to guard, if by a panic.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.guarded.notify_all();
    }
}

/// What the watcher does next.
enum Next {
    Launched(Launched),
    Replays(Record),
    End,
}

impl Shared {
    fn run(&self, context: &Context) {
        let driver = context.device().driver();
        let mut stuck = None;
        // What other threads capture must not mind the questions asked here.
        let ended: Result<(), CudaError> = beside_captures(driver, || {
            context.scope(|| {
                loop {
                    match self.next() {
                        Next::Launched(launched) => self.see_through(launched),
                        Next::Replays(record) => self.look_at_replays(&record, &mut stuck),
                        Next::End => return Ok(()),
                    }
                }
            })
        });
        if let Err(error) = ended {
            self.ranks.end(&Error::DeviceLost { source: error }, self.ranks.last_entered());
            self.fail_all();
        }
    }

    /// The driver refuses this thread: every call fails, once its kernel has ended.
    fn fail_all(&self) {
        self.tables.abort();
        loop {
            match self.next() {
                Next::Launched(launched) => {
                    self.settle(launched.number);
                    self.finish(launched, self.ranks.check());
                }
                Next::Replays(_) => {}
                Next::End => return,
            }
        }
    }

    fn next(&self) -> Next {
        let (mut state, mut lingers) = (self.lock(), true);
        loop {
            if let Some(launched) = state.queue.pop_front() {
                if let Some(timeout) = launched.timeout {
                    self.ranks.poll.limit_next(timeout);
                }
                self.ranks.poll.set_collective(launched.record.collective);
                let Launched { number, slot, channels, .. } = launched;
                state.under_way = Some(UnderWay { number, slot, channels });
                if state.unguarded {
                    self.guarded.notify_all();
                }
                return Next::Launched(launched);
            }
            if state.closed {
                return Next::End;
            }
            state = match state.captured {
                None if lingers => {
                    lingers = false;
                    self.linger(state)
                }
                None => self.changed.wait(state),
                Some(record) => {
                    let (state, late) = self.changed.wait_timeout(state, REPLAY_NAP);
                    if late && state.queue.is_empty() && !state.closed {
                        return Next::Replays(record);
                    }
                    state
                }
            };
        }
    }

    /// Stops kernels that wait for what will not come, until the watcher is gone.
    fn guard(&self) {
        let (mut state, mut idle) = (self.lock(), 0);
        loop {
            let Some(call) = state.under_way else {
                if state.over {
                    return;
                }
                idle += 1;
                state = if idle > IDLE_LOOKS {
                    state.unguarded = true;
                    self.guarded.wait(state).unwrap_or_else(PoisonError::into_inner)
                } else {
                    self.nap(state)
                };
                continue;
            };
            (state.unguarded, idle) = (false, 0);
            drop(state);
            let waits = |channel| self.own_progress(channel).call == call.number;
            if (0..call.channels).any(waits) && (self.ranks.poll.stops(0) || self.has_failed(call))
            {
                self.tables.abort();
            }
            state = self.nap(self.lock());
        }
    }

    /// Whether a channel of the call has failed, so that its others may wait in vain, or a replay
    /// has.
    fn has_failed(&self, call: UnderWay) -> bool {
        self.tables.outcome(call.slot, call.channels).is_err()
            || self.odd_copy().is_some()
            || self.failed_replay().is_some()
    }

    /// A peer has told this rank, which waits for a copy, of another call.
    fn odd_copy(&self) -> Option<f::Status> {
        self.cells.as_ref()?.odd(&self.ranks.control)
    }

    /// Ends what a stream waits for before and behind copies, once this rank has given up. Whether
    /// there was something.
    fn release(&self) -> bool {
        let is_over = || self.tables.abort_word().load(Ordering::Acquire) != 0;
        let cells = self.cells.as_ref().filter(|_| is_over());
        cells.is_some_and(|cells| cells.release(&self.ranks.control))
    }

    fn nap<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.guarded.wait_timeout(state, GUARD_NAP);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn see_through(&self, launched: Launched) {
        let result = match self.await_end(&launched) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => self.fail(&launched, status),
            Err(error) => self.lose(&launched, error),
        };
        self.finish(launched, result);
    }

    fn finish(&self, launched: Launched, result: Result<(), Error>) {
        self.ranks.control.log(self.ranks.rank).leave_at_least(launched.number);
        if let (false, Some(cells)) = (launched.is_kernel, &self.cells) {
            cells.leave_stream();
        }
        launched.flight.end(result);
        drop(launched);
        let mut state = self.lock();
        state.under_way = None;
        state.ended += 1;
        // Replays of what was captured may come at any time.
        if let Some(links) = self.links.as_ref().filter(|_| state.is_quiet()) {
            links.end();
        }
        self.changed.wake_all(state);
    }

    /// Whatever kernels write for other nodes from here on is carried.
    fn wake_links(&self) {
        self.links.iter().for_each(|links| links.begin());
    }

    /// Waits until a call's kernel says that it has ended. One that cannot, since its context is
    /// lost, the driver tells of.
    fn await_end(&self, launched: &Launched) -> Result<Result<(), f::Status>, CudaError> {
        let (begin, mut asked, mut odd) = (Instant::now(), Duration::ZERO, None);
        while !self.ended.has(launched.number) {
            let waited = begin.elapsed();
            if waited >= asked + ASK {
                self.stream.is_done()?;
                asked = waited;
            }
            odd = odd.or_else(|| if launched.is_kernel { None } else { self.odd_copy() });
            self.release();
            match waited < EAGER {
                true => std::thread::yield_now(),
                false => std::thread::sleep((waited / 8).clamp(NAP, LONGEST_NAP)),
            }
        }
        if let (false, Some(cells)) = (launched.is_kernel, &self.cells) {
            let outcome = cells.outcome(launched.number);
            let stopped = f::Status { outcome: outcome as u32, ..f::Status::default() };
            return Ok(match (outcome, odd) {
                (f::Outcome::Done, _) => Ok(()),
                (_, odd) => Err(odd.unwrap_or(stopped)),
            });
        }
        Ok(self.tables.outcome(launched.slot, launched.channels).map_err(|(_, status)| status))
    }

    fn own_progress(&self, channel: usize) -> f::Progress {
        self.ranks.control.progress(self.ranks.rank, channel)
    }

    /// Names what went wrong, once the kernels of later calls, too, have ended.
    #[cold]
    fn fail(&self, launched: &Launched, status: f::Status) -> Result<(), Error> {
        self.tables.abort();
        self.ranks.check()?;
        let last = self.await_later(launched);
        let is_aborted = status.outcome == f::Outcome::Aborted as u32;
        let replay = if is_aborted { self.failed_replay() } else { None };
        let (record, status) = replay.unwrap_or((launched.record, status));
        let odd = (status.outcome != f::Outcome::Aborted as u32).then(|| Odd::of(&status));
        Err(self.ranks.fail(&record, last, outcome(&status), odd))
    }

    /// The driver cannot tell how the call ended: its context may be lost.
    #[cold]
    fn lose(&self, launched: &Launched, error: CudaError) -> Result<(), Error> {
        self.tables.abort();
        self.settle(launched.number);
        self.ranks.check()?;
        let last = self.await_later(launched);
        let error = Error::DeviceLost { source: error };
        self.ranks.end(&error, last);
        Err(error)
    }

    /// Waits for the kernels of later calls, which stop by the abort word. The number of the last.
    fn await_later(&self, launched: &Launched) -> u64 {
        let last = self.lock().queue.back().map_or(launched.number, |later| later.number);
        self.settle(last);
        last
    }

    /// Waits until nothing of a call and of those before it can run any more: it has ended, or the
    /// driver keeps failing, as when its context is lost.
    fn settle(&self, number: u64) {
        const LOST: u32 = 3;
        let (begin, mut failures) = (Instant::now(), 0);
        while !self.ended.has(number) {
            self.release();
            failures = if self.stream.is_done().is_err() { failures + 1 } else { 0 };
            if failures == LOST {
                return;
            }
            if begin.elapsed() > LATER {
                tracing::error!(
                    "a call has not ended a minute after the abort; its memory may still be written"
                );
                return;
            }
            std::thread::sleep(NAP);
        }
    }

    /// A replay that fails, or waits too long, ends the communicator as a call does. What it waits
    /// for stands in the progress words.
    fn look_at_replays(&self, record: &Record, stuck: &mut Option<(f::Progress, Instant)>) {
        if self.ranks.check().is_err() {
            self.release_all();
            return;
        }
        if let Some(status) = self.odd_copy() {
            self.fail_replay(record, outcome(&status), Some(Odd::of(&status)));
            return;
        }
        if let Some((record, status)) = self.failed_replay() {
            self.fail_replay(&record, outcome(&status), Some(Odd::of(&status)));
            return;
        }
        let waits = (0..self.ranks.control.channels()).map(|channel| self.own_progress(channel));
        let Some(wait) = waits.into_iter().find(|progress| progress.call != 0) else {
            *stuck = None;
            return;
        };
        self.ranks.control.log(self.ranks.rank).beat();
        match stuck {
            Some((before, since)) if same(before, &wait) => {
                let gone = self.ranks.poll.left_before().is_some();
                if gone || since.elapsed() >= self.ranks.poll.timeout() {
                    self.fail_replay(record, f::Outcome::Aborted, None);
                }
            }
            _ => *stuck = Some((wait, Instant::now())),
        }
    }

    /// Ends all that streams wait for, as far as it can be seen.
    fn release_all(&self) {
        if self.cells.is_none() {
            return;
        }
        let (begin, mut last) = (Instant::now(), Instant::now());
        while last.elapsed() < QUIET && begin.elapsed() < LATER {
            if self.release() {
                last = Instant::now();
            }
            std::thread::sleep(NAP);
        }
    }

    /// How a replay has failed, and the last call that was captured. Beside a call as well, which
    /// may be what it failed for.
    fn failed_replay(&self) -> Option<(Record, f::Status)> {
        let record = self.lock().captured?;
        let (_, status) = self.tables.outcome(SLOTS, self.ranks.control.channels()).err()?;
        Some((record, status))
    }

    #[cold]
    fn fail_replay(&self, record: &Record, outcome: f::Outcome, odd: Option<Odd>) {
        self.tables.abort();
        let error = self.ranks.fail(record, self.ranks.last_entered(), outcome, odd);
        tracing::error!(%error, "a replay of a captured call failed");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether another call comes soon. While the watcher does not sleep, whoever makes the
    /// call need not wake it.
    fn linger<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (begin, entered) = (Instant::now(), state.entered);
        drop(state);
        while self.entered.load(Ordering::Relaxed) == entered && begin.elapsed() < LINGERING {
            std::thread::yield_now();
        }
        self.lock()
    }
}

fn same(a: &f::Progress, b: &f::Progress) -> bool {
    (a.call, a.step, a.peer, a.lane, a.awaited) == (b.call, b.step, b.peer, b.lane, b.awaited)
}

fn outcome(status: &f::Status) -> f::Outcome {
    use f::Outcome::*;
    [Done, Aborted, Mismatch, BadProgram, Beside]
        .into_iter()
        .find(|outcome| *outcome as u32 == status.outcome)
        .unwrap_or(BadProgram)
}
