//! The event loop: every rank, on every bundle of channels, runs its instructions at the times at which it can.
//!
//! A process runs on until it moves data; links serve in the order in which they are asked, so a move waits in the queue of events until no
//! other process is behind it in time. A wait whose counter has not been raised parks its process there; whoever raises it wakes the process. When
//! nobody can run and somebody is parked, the schedule deadlocks.

use super::SimulationError;
use super::bundle::{Bundle, Rounds};
use super::compile::{Access, AccessKind, Compiled, Counts, Step};
use super::servers::{Servers, Time, from_ns, transfer};
use super::trace::{NO_EVENT, Recorder};
use crate::schedule::{Flag, Link, Operand};
use crate::topology::{DeviceKind, Network, Processor};
use crate::verify::{Awaited, Stuck, Violation};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Nobody waits.
const NOBODY: u32 = u32::MAX;

pub(super) struct Machine<'a> {
    compiled: &'a Compiled,
    devices: Vec<&'a DeviceKind>,
    memories: Vec<u32>,
    pub(super) servers: Servers,
    /// `bundle * counters + counter`.
    counters: Vec<Raised>,
    /// When the last message that somebody else moves arrives: `bundle * connections + connection`.
    arrivals: Vec<Time>,
    processes: Vec<Process>,
    queue: BinaryHeap<Reverse<(Time, u32)>>,
    /// Rounds that are run, the last of them as the call's last.
    rounds: u64,
    /// When the last process has ended each round.
    pub(super) marks: Vec<Time>,
    pub(super) events: u64,
    pub(super) recorder: Option<Recorder>,
}

/// A counter while it is raised and awaited.
#[derive(Clone, Debug)]
struct Raised {
    first: Signal,
    later: VecDeque<Signal>,
    waiter: u32,
}

#[derive(Clone, Copy, Debug)]
struct Signal {
    value: i64,
    arrival: Time,
    event: u32,
}

#[derive(Clone, Debug)]
struct Process {
    rank: u32,
    bundle: u32,
    step: u32,
    round: u64,
    time: Time,
    /// When all stores into peers' memories have arrived there, and how long their acknowledgement takes.
    stored: Time,
    acknowledgement: Time,
    /// Messages of the step before are to be handed to adapters.
    posts: bool,
    parked: bool,
    last_event: u32,
}

/// How a step went.
enum Went {
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
    ) -> Machine<'a> {
        let (ranks, bundles) = (compiled.programs.len(), compiled.bundles.len());
        let devices: Vec<&DeviceKind> = (0..ranks).map(|rank| network.device(rank)).collect();
        let process = |at: usize| {
            let rank = at / bundles;
            Process {
                rank: rank as u32,
                bundle: (at % bundles) as u32,
                step: 0,
                round: 0,
                time: from_ns(devices[rank].launch_ns),
                stored: 0,
                acknowledgement: 0,
                posts: false,
                parked: false,
                last_event: NO_EVENT,
            }
        };
        let processes: Vec<Process> = (0..ranks * bundles).map(process).collect();
        let none = Signal { value: 0, arrival: 0, event: NO_EVENT };
        let raised = Raised { first: none, later: VecDeque::new(), waiter: NOBODY };
        Machine {
            servers: Servers::new(network, compiled.nodes),
            memories: (0..ranks).map(|rank| network.memory(rank)).collect(),
            counters: vec![raised; compiled.counters.len() * bundles],
            arrivals: vec![0; compiled.connections.len() * bundles],
            queue: processes.iter().zip(0..).map(|(p, at)| Reverse((p.time, at))).collect(),
            processes,
            devices,
            rounds,
            marks: vec![0; rounds as usize],
            events: 0,
            recorder,
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
        let rank = self.processes[at].rank as usize;
        let (steps, accesses) = &compiled.programs[rank];
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
                Step::Wait { counter, value } => self.wait(at, counter, value),
                Step::Signal { counter, value } => self.signal(at, counter, value),
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

    fn wait(&mut self, at: usize, counter: u32, value: i32) -> Went {
        let wanted = self.base(at, counter, false) + i64::from(value);
        let instruction = self.instruction(at);
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

    fn signal(&mut self, at: usize, counter: u32, value: i32) -> Went {
        let compiled = self.compiled;
        let instruction = self.instruction(at);
        let number = self.base(at, counter, true) + i64::from(value);
        let of = compiled.counters[counter as usize];
        let connection = &compiled.connections[of.connection as usize];
        let way = if of.counts == Counts::Head { connection.back } else { connection.way };
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
        let latency = compiled.ways[way as usize].latency;
        let arrival = (process.time + latency).max(earliest).max(posted);
        let cause = process.last_event;
        let event = self.record(at, start, cause, 0);
        self.raise(at, counter, Signal { value: number, arrival, event });
        Went::On
    }

    /// A reduce-copy, if its turn has come and its messages are there.
    fn carry_out(&mut self, at: usize, step: Step, accesses: &[Access], now: Time) -> Went {
        let Step::Move { first, sources, destinations, length } = step else { return Went::On };
        let first = first as usize;
        let split = first + sources as usize;
        let (sources, destinations) =
            (&accesses[first..split], &accesses[split..split + destinations as usize]);
        let mut cause = self.processes[at].last_event;
        for source in sources.iter().filter(|source| source.kind == AccessKind::LlSlot) {
            let wanted = self.base(at, source.counter, false) + i64::from(source.message) + 1;
            let Some(signal) = self.raised(at, source.counter, wanted) else {
                self.park(at, source.counter);
                return Went::Parked;
            };
            if signal.arrival > self.processes[at].time {
                self.processes[at].time = signal.arrival;
                cause = signal.event;
            }
        }
        if self.processes[at].time > now {
            self.processes[at].last_event = cause;
            return Went::Later(self.processes[at].time);
        }
        let bytes = self.len_bytes(at, length);
        let (start, finish) = self.move_bytes(at, sources, destinations, bytes);
        let process = &mut self.processes[at];
        process.time = finish;
        let event = self.record(at, start, cause, bytes.total);
        self.announce(at, destinations, finish, event);
        let ways = &self.compiled.ways;
        self.processes[at].posts = destinations.iter().any(|to| {
            matches!(to.kind, AccessKind::Send | AccessKind::SendLl) && ways[to.way as usize].posted
        });
        self.events += 1;
        self.processes[at].step += 1;
        // Asked for at `finish`, so that what it posts, or the next move, comes in its turn.
        Went::Later(finish)
    }

    /// Loads, folds and stores; from when, until when.
    fn move_bytes(
        &mut self,
        at: usize,
        sources: &[Access],
        destinations: &[Access],
        bytes: Bytes,
    ) -> (Time, Time) {
        let compiled = self.compiled;
        let device = self.device(at);
        self.servers.in_second_round = self.processes[at].round == 1;
        let start = self.processes[at].time;
        let begun = start + from_ns(device.instruction_ns);
        let is_ll =
            |access: &&Access| matches!(access.kind, AccessKind::LlSlot | AccessKind::SendLl);
        let ll = sources.iter().chain(destinations).filter(is_ll).count() as u64;
        let touched = (sources.len() + destinations.len()) as u64 + ll;
        let folded = sources.len().saturating_sub(1) as u64;
        let engine = transfer(bytes.one * touched, device.channel_gbps)
            .max(transfer(bytes.one * folded, device.reduce_gbps));
        let mut finish = begun + engine;
        let mut local = 0;
        // Switches behind which, or before which, this instruction's data has been counted already.
        let mut counted: Vec<usize> = Vec::new();
        let mut answers = 0;
        for source in sources {
            if source.kind != AccessKind::Pull {
                local += bytes.on(source.kind);
                continue;
            }
            let way = &compiled.ways[source.way as usize];
            let shared = source.merges(way.switch, self.merges(), &mut counted);
            let end = shared.map_or(way.links.len(), |(split, _)| split);
            finish = finish.max(self.cross(&way.links[..end], bytes.total, begun));
            finish = finish.max(self.cross(&[way.from_memory], bytes.total, begun));
            answers = answers.max(2 * way.latency);
        }
        counted.clear();
        let mut stored = None;
        for destination in destinations {
            let way = &compiled.ways[destination.way as usize];
            if destination.kind == AccessKind::Local || way.posted {
                local += bytes.on(destination.kind);
                continue;
            }
            let shared = destination.merges(way.switch, self.merges(), &mut counted);
            let first = shared.map_or(0, |(split, _)| split);
            let last = match (destination.merged, way.switch) {
                (true, Some((split, _))) => split,
                _ => way.links.len(),
            };
            let wire = bytes.on(destination.kind);
            finish = finish.max(self.cross(&way.links[first.min(last)..last], wire, begun));
            finish = finish.max(self.cross(&[way.to_memory], wire, begun));
            stored = stored.max(Some(way.latency));
        }
        let memory = self.memories[self.processes[at].rank as usize];
        finish = finish.max(self.cross(&[memory], local, begun)) + answers;
        if let Some(latency) = stored {
            let process = &mut self.processes[at];
            process.stored = process.stored.max(finish + latency);
            process.acknowledgement = process.acknowledgement.max(latency);
        }
        (start, finish)
    }

    /// Asks links to carry bytes; when the slowest has done so.
    fn cross(&mut self, links: &[u32], bytes: u64, ready: Time) -> Time {
        let mut end = ready;
        for &link in links.iter().filter(|_| bytes > 0) {
            let service = self.servers.serve(link, bytes, ready);
            end = end.max(service.end);
            if let Some(recorder) = &mut self.recorder {
                recorder.serve(link, service, self.servers.last[link as usize], ready);
                self.servers.last[link as usize] = recorder.owner();
            }
        }
        end
    }

    /// LL messages that have been stored announce themselves.
    fn announce(&mut self, at: usize, destinations: &[Access], finish: Time, event: u32) {
        for to in destinations.iter().filter(|to| to.kind == AccessKind::SendLl) {
            let way = &self.compiled.ways[to.way as usize];
            if !way.posted {
                let value = self.base(at, to.counter, true) + i64::from(to.message) + 1;
                let arrival = finish + way.latency;
                self.raise(at, to.counter, Signal { value, arrival, event });
            }
        }
    }

    /// Hands the messages of the step before to adapters.
    fn post(&mut self, at: usize, steps: &[Step], accesses: &[Access], now: Time) {
        let compiled = self.compiled;
        let step = (self.processes[at].step as usize).wrapping_sub(1);
        let Some(Step::Move { first, sources, destinations, length }) = steps.get(step) else {
            return;
        };
        let first = *first as usize + *sources as usize;
        let bytes = self.len_bytes(at, *length);
        self.servers.in_second_round = self.processes[at].round == 1;
        let event = self.processes[at].last_event;
        self.recorder.iter_mut().for_each(|recorder| recorder.continues(Some(event)));
        let mut counted = Vec::new();
        for to in &accesses[first..first + *destinations as usize] {
            let way = &compiled.ways[to.way as usize];
            if !matches!(to.kind, AccessKind::Send | AccessKind::SendLl) || !way.posted {
                continue;
            }
            let shared = to.merges(way.switch, self.merges(), &mut counted);
            let begin = shared.map_or(0, |(split, _)| split);
            let end = match (to.merged, way.switch) {
                (true, Some((split, _))) => split,
                _ => way.links.len(),
            };
            let wire = bytes.on(to.kind);
            let crossed = self.cross(&way.links[begin.min(end)..end], wire, now);
            let arrival = crossed.max(self.cross(&[way.to_memory], wire, now)) + way.latency;
            if to.kind == AccessKind::SendLl {
                let value = self.base(at, to.counter, true) + i64::from(to.message) + 1;
                self.raise(at, to.counter, Signal { value, arrival, event });
            } else {
                let bundle = self.processes[at].bundle as usize;
                let last =
                    &mut self.arrivals[bundle * compiled.connections.len() + to.counter as usize];
                *last = (*last).max(arrival);
            }
        }
        self.recorder.iter_mut().for_each(|recorder| recorder.continues(None));
    }

    /// What a counter has been raised to before this round, as the process counts.
    fn base(&self, at: usize, counter: u32, raises: bool) -> i64 {
        let of = self.compiled.counters[counter as usize];
        let connection = &self.compiled.connections[of.connection as usize];
        // Tails and messages are raised by senders and awaited by receivers; heads the other way round.
        let sends = raises == (of.counts != Counts::Head);
        let a_round = if sends { connection.sent } else { connection.received };
        self.processes[at].round as i64 * i64::from(a_round)
    }

    /// The first signal that is high enough, if it has been given.
    fn raised(&mut self, at: usize, counter: u32, wanted: i64) -> Option<Signal> {
        if wanted <= 0 {
            // Raised by the calls before.
            return Some(Signal { value: wanted, arrival: 0, event: NO_EVENT });
        }
        let index = self.counter_index(at, counter);
        let raised = &mut self.counters[index];
        while raised.first.value < wanted {
            raised.first = raised.later.pop_front()?;
        }
        Some(raised.first)
    }

    fn raise(&mut self, at: usize, counter: u32, signal: Signal) {
        let index = self.counter_index(at, counter);
        let raised = &mut self.counters[index];
        raised.later.push_back(signal);
        let waiter = std::mem::replace(&mut raised.waiter, NOBODY);
        if waiter != NOBODY {
            let time = self.processes[waiter as usize].time;
            self.queue.push(Reverse((time, waiter)));
        }
    }

    fn park(&mut self, at: usize, counter: u32) {
        let index = self.counter_index(at, counter);
        self.counters[index].waiter = at as u32;
    }

    fn counter_index(&self, at: usize, counter: u32) -> usize {
        self.processes[at].bundle as usize * self.compiled.counters.len() + counter as usize
    }

    fn device(&self, at: usize) -> &'a DeviceKind {
        self.devices[self.processes[at].rank as usize]
    }

    fn instruction(&self, at: usize) -> Time {
        from_ns(self.device(at).instruction_ns)
    }

    /// The bytes that a process moves in its round.
    fn len_bytes(&self, at: usize, length: u32) -> Bytes {
        let process = &self.processes[at];
        let bundle: &Bundle = &self.compiled.bundles[process.bundle as usize];
        // The last round that is run is the call's last.
        let rounds: Rounds = self.compiled.rounds;
        let round = if process.round + 1 == self.rounds { rounds.count - 1 } else { process.round };
        let one = rounds.len_bytes(bundle.parts[length as usize], round) as u64;
        Bytes { one, total: one * bundle.channels as u64, channels: bundle.channels as u64 }
    }

    fn merges(&self) -> bool {
        self.compiled.merges
    }

    fn record(&mut self, at: usize, start: Time, cause: u32, bytes: u64) -> u32 {
        let process = &mut self.processes[at];
        let Some(recorder) = &mut self.recorder else { return NO_EVENT };
        let place = (process.rank, process.bundle, process.round as u32, process.step);
        process.last_event = recorder.record(place, start, process.time, cause, bytes);
        process.last_event
    }

    /// What a parked process waits for.
    fn stuck(&self, at: usize) -> Option<Stuck> {
        let process = &self.processes[at];
        if process.round >= self.rounds {
            return None;
        }
        let (steps, accesses) = &self.compiled.programs[process.rank as usize];
        let step = process.step as usize;
        let (counter, value, message) = match steps[step] {
            Step::Wait { counter, value } => (counter, i64::from(value), None),
            Step::Move { first, sources, .. } => {
                let sources = &accesses[first as usize..first as usize + sources as usize];
                let missing = |source: &&Access| {
                    source.kind == AccessKind::LlSlot
                        && self.counters[self.counter_index(at, source.counter)].waiter == at as u32
                };
                let source = sources.iter().find(missing)?;
                (source.counter, 0, Some(source.message))
            }
            Step::Signal { .. } => return None,
        };
        let of = self.compiled.counters[counter as usize];
        let connection = &self.compiled.connections[of.connection as usize];
        let peer = if of.counts == Counts::Head { connection.to } else { connection.from } as usize;
        let link = Link { peer, lane: connection.lane };
        let raised = &self.counters[self.counter_index(at, counter)];
        let reached = raised.later.back().map_or(raised.first.value, |signal| signal.value)
            - self.base(at, counter, false);
        let awaited = match message {
            Some(message) => Awaited::Message(Operand::Slot { link, message }),
            None => {
                let flag = match of.counts {
                    Counts::Head => Flag::Head(link),
                    _ => Flag::Tail(link),
                };
                Awaited::Counter { flag, value, reached }
            }
        };
        Some(Stuck { rank: process.rank as usize, step, peer, awaited })
    }
}

/// What one channel of a bundle moves, and all of them.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    one: u64,
    total: u64,
    channels: u64,
}

impl Bytes {
    /// As they lie in this operand: LL messages carry flags, and a header in front.
    fn on(self, kind: AccessKind) -> u64 {
        match kind {
            AccessKind::LlSlot | AccessKind::SendLl => {
                self.channels * (self.one.div_ceil(8) * 16 + 16)
            }
            _ => self.total,
        }
    }
}

impl Access {
    /// The switch that this operand shares with an earlier one of the same instruction, if switches reduce.
    fn merges(
        &self,
        switch: Option<(usize, usize)>,
        enabled: bool,
        counted: &mut Vec<usize>,
    ) -> Option<(usize, usize)> {
        let is_ll = self.kind == AccessKind::SendLl;
        let switch = switch.filter(|_| enabled && !is_ll)?;
        if counted.contains(&switch.1) {
            return Some(switch);
        }
        counted.push(switch.1);
        None
    }
}
