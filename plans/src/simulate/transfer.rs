//! Reduce-copies: loads, folds and stores, the links that they cross, and the messages that come of
//! them.

use super::bundle::{Bundle, Rounds};
use super::machine::{Machine, Went};
use super::program::{Access, AccessKind, Step, Way};
use super::servers::{Time, from_ns, transfer};
use super::signals::Signal;
use crate::topology::Processor;

impl Machine<'_> {
    /// A reduce-copy, if its turn has come and its messages are there.
    pub(super) fn carry_out(
        &mut self,
        at: usize,
        step: Step,
        accesses: &[Access],
        now: Time,
    ) -> Went {
        let Step::Move { first, sources, destinations, length, beside } = step else {
            return Went::On;
        };
        let first = first as usize;
        let split = first + sources as usize;
        let (sources, destinations) =
            (&accesses[first..split], &accesses[split..split + destinations as usize]);
        let mut cause = self.processes[at].last_event;
        for source in sources.iter().filter(|source| source.kind.is_awaited()) {
            let wanted = self.base(at, source.counter, false) + source.number();
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
        let (start, finish) = self.move_bytes(at, sources, destinations, (bytes, beside));
        let finish = start + self.with_noise(at, finish - start);
        let process = &mut self.processes[at];
        process.time = finish;
        let event = self.record(at, start, cause, bytes.total);
        self.announce(at, destinations, finish, event);
        let ways = &self.compiled.ways;
        self.processes[at].posts = destinations.iter().any(|to| match to.kind {
            AccessKind::Send(_) => ways[to.way as usize].posted,
            kind => kind == AccessKind::Contribution,
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
        (bytes, beside): (Bytes, bool),
    ) -> (Time, Time) {
        let compiled = self.compiled;
        let device = self.device(at);
        self.servers.in_second_round = self.processes[at].round == 1;
        let start = self.processes[at].time;
        let operands = (sources.len() + destinations.len()) as f64;
        // What goes to a rail's switches is signalled, and what comes from there awaited.
        let of_rail = sources.iter().chain(destinations).filter(|one| one.kind.is_of_rail());
        let counters = device.instruction_ns * of_rail.count() as f64;
        let own = device.move_ns + device.operand_ns * operands + counters;
        // A GPU's block makes them one step with those in front.
        let overhead = if beside && device.processor == Processor::Gpu { 0.0 } else { own };
        let begun = start + from_ns(overhead);
        let all = sources.iter().chain(destinations);
        let touched: u64 = all.map(|access| bytes.on_a_channel(access.kind)).sum();
        let folded = sources.len().saturating_sub(1) as u64;
        let engine = transfer(touched, device.channel_gbps)
            .max(transfer(bytes.one * folded, device.reduce_gbps));
        let mut finish = begun + engine;
        let mut local = 0;
        // Switches behind which, or before which, this instruction's data has been counted already.
        let mut counted: Vec<usize> = Vec::new();
        let mut answers = 0;
        for source in sources {
            if source.kind != AccessKind::Pull {
                local += bytes.on(source.kind);
                finish = finish.max(self.cross_own(source, true, bytes.total, begun));
                continue;
            }
            let way = &compiled.ways[source.way as usize];
            let shared = source.merges(way.switch, self.merges(), &mut counted);
            let end = shared.map_or(way.links.len(), |(split, _)| split);
            let efficiency = source.efficiency(way);
            let crossed = self.cross_at(&way.links[..end], bytes.total, efficiency, begun);
            finish = finish.max(crossed);
            finish = finish.max(self.cross(&[way.from_memory], bytes.total, begun));
            answers = answers.max(2 * way.latency);
        }
        counted.clear();
        let mut stored = None;
        for destination in destinations {
            finish = finish.max(self.cross_own(destination, false, bytes.total, begun));
            let way = match destination.kind {
                AccessKind::Local | AccessKind::Own | AccessKind::Contribution => None,
                _ => Some(&compiled.ways[destination.way as usize]),
            };
            let Some(way) = way.filter(|way| !way.posted) else {
                local += bytes.on(destination.kind);
                continue;
            };
            let shared = destination.merges(way.switch, self.merges(), &mut counted);
            let first = shared.map_or(0, |(split, _)| split);
            let last = match (destination.merged, way.switch) {
                (true, Some((split, _))) => split,
                _ => way.links.len(),
            };
            let wire = bytes.on(destination.kind);
            let links = &way.links[first.min(last)..last];
            finish = finish.max(self.cross_at(links, wire, destination.efficiency(way), begun));
            finish = finish.max(self.cross(&[way.to_memory], wire, begun));
            stored = stored.max(Some(way.latency));
        }
        let memory = self.memories[self.processes[at].list as usize];
        finish = finish.max(self.cross(&[memory], local, begun)) + answers;
        if let Some(latency) = stored {
            let process = &mut self.processes[at];
            process.stored = process.stored.max(finish + latency);
            process.acknowledgement = process.acknowledgement.max(latency);
        }
        (start, finish)
    }

    /// What a switch reads of this rank's own memory, or writes there, crosses the links between
    /// the two.
    fn cross_own(&mut self, access: &Access, reads: bool, bytes: u64, ready: Time) -> Time {
        if access.kind != AccessKind::Own {
            return ready;
        }
        let way = &self.compiled.ways[access.way as usize];
        let split = way.switch.map_or(way.links.len(), |(split, _)| split);
        let (to_switch, from_switch) = way.links.split_at(split);
        let links = if reads { to_switch } else { from_switch };
        self.cross_at(links, bytes, access.efficiency(way), ready)
    }

    /// Asks links to carry bytes; when the slowest has done so.
    pub(super) fn cross(&mut self, links: &[u32], bytes: u64, ready: Time) -> Time {
        self.cross_at(links, bytes, 1.0, ready)
    }

    /// The same at a part of their rate.
    fn cross_at(&mut self, links: &[u32], bytes: u64, efficiency: f64, ready: Time) -> Time {
        let mut end = ready;
        for &link in links.iter().filter(|_| bytes > 0) {
            let service = self.servers.serve(link, bytes, efficiency, ready);
            end = end.max(service.end);
            if let Some(recorder) = &mut self.recorder {
                let last = &mut self.servers.all[link as usize].last;
                recorder.serve(link, service, *last, ready);
                *last = recorder.owner();
            }
        }
        end
    }

    /// Messages with flags that have been stored announce themselves.
    fn announce(&mut self, at: usize, destinations: &[Access], finish: Time, event: u32) {
        for to in destinations.iter().filter(|to| to.kind.sends_flags()) {
            let way = &self.compiled.ways[to.way as usize];
            if !way.posted {
                let value = self.base(at, to.counter, true) + to.number();
                let arrival = finish + self.with_noise(at, way.latency);
                self.raise(at, to.counter, Signal { value, arrival, event });
            }
        }
    }

    /// Hands the messages of the step before to adapters.
    pub(super) fn post(&mut self, at: usize, steps: &[Step], accesses: &[Access], now: Time) {
        let compiled = self.compiled;
        let step = (self.processes[at].step as usize).wrapping_sub(1);
        let Some(Step::Move { first, sources, destinations, length, .. }) = steps.get(step) else {
            return;
        };
        let first = *first as usize + *sources as usize;
        let bytes = self.len_bytes(at, *length);
        self.servers.in_second_round = self.processes[at].round == 1;
        let event = self.processes[at].last_event;
        self.recorder.iter_mut().for_each(|recorder| recorder.continues(Some(event)));
        let mut counted = Vec::new();
        for to in &accesses[first..first + *destinations as usize] {
            if to.kind == AccessKind::Contribution {
                self.contribute(at, to, bytes.on(to.kind), (now, event));
            }
            if !matches!(to.kind, AccessKind::Send(_)) {
                continue;
            }
            let way = &compiled.ways[to.way as usize];
            if !way.posted {
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
            let there = crossed.max(self.cross(&[way.to_memory], wire, now));
            let arrival = there + self.with_noise(at, way.latency);
            if to.kind.sends_flags() {
                let value = self.base(at, to.counter, true) + to.number();
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
}

/// What one channel of a bundle moves, and all of them.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    one: u64,
    total: u64,
    channels: u64,
}

impl Bytes {
    /// As they lie in this operand of all channels.
    fn on(self, kind: AccessKind) -> u64 {
        self.channels * self.on_a_channel(kind)
    }

    fn on_a_channel(self, kind: AccessKind) -> u64 {
        match kind {
            AccessKind::Slot(flags) | AccessKind::Send(flags) => flags.len_bytes(self.one),
            _ => self.one,
        }
    }
}

impl Access {
    /// What is left of its links' rate.
    fn efficiency(&self, way: &Way) -> f64 {
        if self.switched { way.switch_efficiency } else { 1.0 }
    }

    /// The switch that this operand shares with an earlier one of the same instruction, if switches
    /// reduce.
    fn merges(
        &self,
        switch: Option<(usize, usize)>,
        enabled: bool,
        counted: &mut Vec<usize>,
    ) -> Option<(usize, usize)> {
        let reduces = enabled || self.switched;
        let switch = switch.filter(|_| reduces && !self.kind.sends_flags())?;
        if counted.contains(&switch.1) {
            return Some(switch);
        }
        counted.push(switch.1);
        None
    }
}
