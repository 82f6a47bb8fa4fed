//! The event loop: every rank, on every bundle of channels, runs its instructions at the times at
//! which it can.
//!
//! A process runs on until it moves data; links serve in the order in which they are asked, so a
//! move waits in the queue of events until no other process is behind it in time. A wait whose
//! counter has not been raised parks its process there; whoever raises it wakes the process. When
//! nobody can run and somebody is parked, the schedule deadlocks.

use super::SimulationError;
use super::noise::{Delays, Noise};
use super::program::{Access, AccessKind, Compiled, Counter, Counts, Step};
use super::rails::Gathered;
use super::servers::{Servers, Time, from_ns};
use super::signals::{Queue, Signal, Signals};
use super::trace::{NO_EVENT, Recorder};
use crate::schedule::{Flag, Link, Operand};
use crate::topology::{DeviceKind, Network, Processor};
use crate::verify::{Awaited, Stuck, Violation};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nobody waits.
const NOBODY: u32 = u32::MAX;
const NO_SIGNAL: Signal = Signal { value: 0, arrival: 0, event: NO_EVENT };

pub(super) struct Machine<'a> {
    pub(super) compiled: &'a Compiled,
    devices: Vec<&'a DeviceKind>,
    pub(super) memories: Vec<u32>,
    pub(super) servers: Servers,
    /// `bundle * counters + counter`.
    counters: Vec<Raised>,
    /// Those that have been given and are not yet asked for.
    signals: Signals,
    /// When the last message that somebody else moves arrives: `bundle * connections + connection`.
    pub(super) arrivals: Vec<Time>,
    /// What has been given to rails' switches: `bundle * rails + rail`.
    pub(super) gathered: Vec<Gathered>,
    pub(super) processes: Vec<Process>,
    queue: BinaryHeap<Reverse<(Time, u32)>>,
    /// Rounds that are run, the last of them as the call's last.
    pub(super) rounds: u64,
    /// When the last process has ended each round.
    pub(super) marks: Vec<Time>,
    pub(super) events: u64,
    pub(super) recorder: Option<Recorder>,
    /// Of each process; none where nothing is left to chance.
    delays: Vec<Delays>,
}

/// A counter while it is raised and awaited: one line of the cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Raised {
    of: Counter,
    first: Signal,
    later: Queue,
    waiter: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) list: u32,
    pub(super) bundle: u32,
    pub(super) step: u32,
    pub(super) round: u64,
    pub(super) time: Time,
    /// When all stores into peers' memories have arrived there, and how long their acknowledgement
    /// takes.
    pub(super) stored: Time,
    pub(super) acknowledgement: Time,
    /// Messages of the step before are to be handed to adapters.
    pub(super) posts: bool,
    parked: bool,
    pub(super) last_event: u32,
}

/// How a step went.
pub(super) enum Went {
    On,
    /// To be asked again when its turn comes.
    Later(Time),
    Parked,
}

impl<'a> Machine<'a> {
    pub(super) fn new(
        compiled: &'a Compiled,
        network: &'a Network,
        rounds: u64,
        recorder: Option<Recorder>,
        noise: Option<Noise>,
    ) -> Machine<'a> {
        let (lists, bundles) = (compiled.programs.len(), compiled.bundles.len());
        let devices: Vec<&DeviceKind> =
            (0..lists).map(|list| network.device(compiled.rank(list))).collect();
        let process = |at: usize| {
            let list = at / bundles;
            Process {
                list: list as u32,
                bundle: (at % bundles) as u32,
                step: 0,
                round: 0,
                time: from_ns(devices[list].launch_ns),
                stored: 0,
                acknowledgement: 0,
                posts: false,
                parked: false,
                last_event: NO_EVENT,
            }
        };
        let mut processes: Vec<Process> = (0..lists * bundles).map(process).collect();
        let delays = |noise: Noise| (0..processes.len()).map(|at| noise.delays(at)).collect();
        let mut delays: Vec<Delays> = noise.map_or(Vec::new(), delays);
        for (process, delays) in processes.iter_mut().zip(&mut delays) {
            process.time += delays.of(process.time);
        }
        let raised =
            |of: Counter| Raised { of, first: NO_SIGNAL, later: Queue::EMPTY, waiter: NOBODY };
        Machine {
            servers: Servers::new(network, compiled.pods),
            memories: (0..lists).map(|list| network.memory(compiled.rank(list))).collect(),
            counters: (0..bundles).flat_map(|_| &compiled.counters).map(|of| raised(*of)).collect(),
            signals: Signals::default(),
            gathered: (0..bundles).flat_map(|_| &compiled.rails).map(Gathered::new).collect(),
            arrivals: vec![0; compiled.connections.len() * bundles],
            queue: processes.iter().zip(0..).map(|(p, at)| Reverse((p.time, at))).collect(),
            processes,
            devices,
            rounds,
            marks: vec![0; rounds as usize],
            events: 0,
            recorder,
            delays,
            compiled,
        }
    }

    /// Runs all processes to their ends; when the last one ends.
    pub(super) fn run(&mut self) -> Result<Time, SimulationError> {
        while let Some(Reverse((now, process))) = self.queue.pop() {
            self.advance(process as usize, now)?;
        }
        let mut stuck: Vec<Stuck> =
            (0..self.processes.len()).filter_map(|at| self.stuck(at)).collect();
        // All channels of a rank are stuck alike.
        stuck.dedup();
        if !stuck.is_empty() {
            return Err(SimulationError::Schedule(Violation::Deadlock(stuck)));
        }
        Ok(self.marks.last().copied().unwrap_or(0))
    }

    fn advance(&mut self, at: usize, now: Time) -> Result<(), SimulationError> {
        let compiled = self.compiled;
        let list = self.processes[at].list as usize;
        let (steps, accesses) = &compiled.programs[list];
        self.processes[at].time = self.processes[at].time.max(now);
        self.processes[at].parked = false;
        if std::mem::take(&mut self.processes[at].posts) {
            self.post(at, steps, accesses, now);
        }
        loop {
            let Some(step) = steps.get(self.processes[at].step as usize) else {
                if self.end_round(at) {
                    continue;
                } else {
                    return Ok(());
                };
            };
            let went = match *step {
                Step::Wait { counter, value } => {
                    let cost = self.instruction(at, |before| matches!(before, Step::Wait { .. }));
                    self.wait(at, counter, value, cost)
                }
                Step::Signal { counter, value } => {
                    let cost = self.instruction(at, |before| matches!(before, Step::Signal { .. }));
                    self.signal(at, counter, value, cost)
                }
                Step::Move { .. } => self.carry_out(at, *step, accesses, now),
            };
            if let Some(limit) = self.recorder.as_ref().and_then(Recorder::overflow) {
                return Err(SimulationError::TraceTooLarge { limit });
            }
            match went {
                Went::On => self.processes[at].step += 1,
                Went::Later(time) => {
                    self.queue.push(Reverse((time, at as u32)));
                    return Ok(());
                }
                Went::Parked => {
                    self.processes[at].parked = true;
                    return Ok(());
                }
            }
        }
    }

    /// Whether there is another round.
    fn end_round(&mut self, at: usize) -> bool {
        let process = &mut self.processes[at];
        let mark = &mut self.marks[process.round as usize];
        // A call has ended when what it stored into others' memory is there.
        *mark = (*mark).max(process.time).max(process.stored);
        process.round += 1;
        process.step = 0;
        process.round < self.rounds
    }

    fn wait(&mut self, at: usize, counter: u32, value: i32, instruction: Time) -> Went {
        let wanted = self.base(at, counter, false) + i64::from(value);
        let Some(signal) = self.raised(at, counter, wanted) else {
            self.park(at, counter);
            return Went::Parked;
        };
        let process = &mut self.processes[at];
        let start = process.time;
        process.time = start.max(signal.arrival) + instruction;
        let cause = if signal.arrival > start { signal.event } else { process.last_event };
        self.record(at, start, cause, 0);
        Went::On
    }

    fn signal(&mut self, at: usize, counter: u32, value: i32, instruction: Time) -> Went {
        let compiled = self.compiled;
        let number = self.base(at, counter, true) + i64::from(value);
        let of = self.counters[self.counter_index(at, counter)].of;
        let bundle = self.processes[at].bundle as usize;
        // Messages that adapters move come before their announcement.
        let posted = match of.counts {
            Counts::Tail => {
                self.arrivals[bundle * compiled.connections.len() + of.connection as usize]
            }
            _ => 0,
        };
        let gpu = self.device(at).processor == Processor::Gpu;
        let process = &mut self.processes[at];
        let start = process.time;
        let mut earliest = process.stored;
        if gpu && process.acknowledgement > 0 {
            // The release waits until the stores before it are known to be there.
            process.time = process.time.max(process.stored + process.acknowledgement);
            (process.acknowledgement, earliest) = (0, 0);
        }
        process.time += instruction;
        let time = process.time;
        let latency = self.with_noise(at, of.latency);
        let arrival = (time + latency).max(earliest).max(posted);
        let cause = self.processes[at].last_event;
        let event = self.record(at, start, cause, 0);
        self.raise(at, counter, Signal { value: number, arrival, event });
        Went::On
    }

    /// What a counter has been raised to before this round, as the process counts.
    pub(super) fn base(&self, at: usize, counter: u32, raises: bool) -> i64 {
        let a_round = self.counters[self.counter_index(at, counter)].of.a_round;
        self.processes[at].round as i64 * i64::from(a_round[usize::from(raises)])
    }

    /// The first signal that is high enough, if it has been given.
    pub(super) fn raised(&mut self, at: usize, counter: u32, wanted: i64) -> Option<Signal> {
        if wanted <= 0 {
            // Raised by the calls before.
            return Some(Signal { value: wanted, arrival: 0, event: NO_EVENT });
        }
        let index = self.counter_index(at, counter);
        let raised = &mut self.counters[index];
        while raised.first.value < wanted {
            raised.first = self.signals.pop(&mut raised.later)?;
        }
        Some(raised.first)
    }

    pub(super) fn raise(&mut self, at: usize, counter: u32, signal: Signal) {
        let index = self.counter_index(at, counter);
        let raised = &mut self.counters[index];
        self.signals.push(&mut raised.later, signal);
        let waiter = std::mem::replace(&mut raised.waiter, NOBODY);
        if waiter != NOBODY {
            let time = self.processes[waiter as usize].time;
            self.queue.push(Reverse((time, waiter)));
        }
    }

    pub(super) fn park(&mut self, at: usize, counter: u32) {
        let index = self.counter_index(at, counter);
        self.counters[index].waiter = at as u32;
    }

    fn counter_index(&self, at: usize, counter: u32) -> usize {
        self.processes[at].bundle as usize * self.compiled.counters.len() + counter as usize
    }

    pub(super) fn device(&self, at: usize) -> &'a DeviceKind {
        self.devices[self.processes[at].list as usize]
    }

    /// What a wait or a signal costs: on a GPU nothing behind another one, as threads of a block
    /// take them at once.
    fn instruction(&mut self, at: usize, is_alike: impl Fn(&Step) -> bool) -> Time {
        let (device, process) = (self.device(at), &self.processes[at]);
        let (steps, _) = &self.compiled.programs[process.list as usize];
        let before = (process.step as usize).checked_sub(1).and_then(|before| steps.get(before));
        let joins = device.processor == Processor::Gpu && before.is_some_and(is_alike);
        let duration = if joins { 0 } else { from_ns(device.instruction_ns) };
        self.with_noise(at, duration)
    }

    /// How long something takes that would take so long.
    pub(super) fn with_noise(&mut self, at: usize, duration: Time) -> Time {
        duration + self.delays.get_mut(at).map_or(0, |delays| delays.of(duration))
    }

    pub(super) fn record(&mut self, at: usize, start: Time, cause: u32, bytes: u64) -> u32 {
        let process = &mut self.processes[at];
        let Some(recorder) = &mut self.recorder else { return NO_EVENT };
        let place = (process.list, process.bundle, process.round as u32, process.step);
        process.last_event = recorder.record(place, start, process.time, cause, bytes);
        process.last_event
    }

    /// What a parked process waits for.
    fn stuck(&self, at: usize) -> Option<Stuck> {
        let process = &self.processes[at];
        if process.round >= self.rounds {
            return None;
        }
        let (steps, accesses) = &self.compiled.programs[process.list as usize];
        let step = process.step as usize;
        let (counter, value, message) = match steps[step] {
            Step::Wait { counter, value } => (counter, i64::from(value), None),
            Step::Move { first, sources, .. } => {
                let sources = &accesses[first as usize..first as usize + sources as usize];
                let missing = |source: &&Access| {
                    source.kind.is_awaited()
                        && self.counters[self.counter_index(at, source.counter)].waiter == at as u32
                };
                let source = sources.iter().find(missing)?;
                (source.counter, 0, Some(source))
            }
            Step::Signal { .. } => return None,
        };
        let raised = &self.counters[self.counter_index(at, counter)];
        let of = raised.of;
        let connection = &self.compiled.connections[of.connection as usize];
        if let Some(reduced) = message.filter(|access| access.kind == AccessKind::Reduced) {
            return Some(self.stuck_on_rail(at, reduced));
        }
        let peer = if of.counts == Counts::Head { connection.to } else { connection.from } as usize;
        let of_each = self.compiled.lists_per_rank;
        let (peer, peer_list) = (peer / of_each, peer % of_each);
        let link = Link { peer, list: peer_list as u16, lane: connection.lane };
        let reached = self.signals.last(raised.later).unwrap_or(raised.first).value
            - self.base(at, counter, false);
        let awaited = match message {
            Some(access) => {
                let (message, segment) = (access.message(), access.segment());
                Awaited::Message(Operand::Slot { link, message, segment })
            }
            None => {
                let flag = match of.counts {
                    Counts::Head => Flag::Head(link),
                    _ => Flag::Tail(link),
                };
                Awaited::Counter { flag, value, reached }
            }
        };
        let list = process.list as usize;
        let (rank, list) = (self.compiled.rank(list), list % of_each);
        let step = self.compiled.first_step(process.list as usize) + step;
        Some(Stuck { rank, list, step, peer, peer_list, awaited })
    }
}
