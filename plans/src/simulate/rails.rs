//! Reductions in the fabric's switches: what a rank gives crosses the links to them, and when the
//! last rank of the rail has given its part, the result crosses those to all of them. Switches
//! reduce as fast as links bring it.

use super::compile::Compiler;
use super::fold::greatest_common_divisor;
use super::machine::Machine;
use super::program::{Access, Connection, Counts, OnRail, Way};
use super::servers::{Time, from_ns};
use super::signals::Signal;
use crate::hash::Map;
use crate::schedule::{Lane, Operand, Rail, SEGMENTS};
use crate::verify::{Awaited, Stuck};
use std::collections::VecDeque;

/// The rails that a schedule uses.
#[derive(Default)]
pub(super) struct Rails {
    pub(super) all: Vec<OnRail>,
    /// The connection of a simulated rank with a rail's switches, and the rail's number.
    known: Map<(usize, Rail), (u32, u32)>,
}

impl Compiler<'_> {
    /// A rank's connection with the switches of its rail, and the rail's number; none where they do
    /// not reduce. Where first ranks stand for all, those of several rails may stand for one.
    pub(super) fn on_rail(&mut self, rank: usize, rail: Rail) -> Option<(u32, u32)> {
        let rank = self.turns.home(rank);
        if let Some(known) = self.rails.known.get(&(rank, rail)) {
            return Some(*known);
        }
        let apart = greatest_common_divisor(rail.0, self.turns.firsts);
        let (place, memory) = (rank % apart, self.link(self.network.memory(rank)));
        let ranks = rail.members(rank, self.subject.collective.ranks);
        let reduction = self.network.reduction(rank, ranks)?;
        let (back, at) = (self.ways.len() as u32, self.connections.len() as u32);
        self.ways.extend([&reduction.up, &reduction.down].map(|of| Way {
            links: self.here(of),
            latency: from_ns(reduction.latency_ns),
            posted: true,
            switch: None,
            switch_efficiency: 1.0,
            from_memory: memory,
            to_memory: memory,
        }));
        self.connections.push(Connection {
            from: rank as u32,
            to: rank as u32,
            lane: Lane::Slots,
            sent: 0,
            received: 0,
            way: back + 1,
            back,
            counters: [u32::MAX; 3],
        });
        let is_it = |one: &OnRail| (one.rail, one.place) == (rail, place);
        let number = self.rails.all.iter().position(is_it).unwrap_or_else(|| {
            let mut between = self.here(&reduction.between);
            between.sort_unstable();
            between.dedup();
            let (members, connections) = (self.turns.firsts / apart, Vec::new());
            self.rails.all.push(OnRail { rail, place, apart, members, connections, between });
            self.rails.all.len() - 1
        });
        self.rails.all[number].connections.push(at);
        self.rails.known.insert((rank, rail), (at, number as u32));
        Some((at, number as u32))
    }
}

/// What has been given to a rail's switches, on one bundle.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    /// How much by each member.
    given: Vec<usize>,
    /// How much by all.
    complete: usize,
    /// Until when links have brought what is not complete yet.
    brought: VecDeque<Time>,
}

impl Gathered {
    pub(super) fn new(rail: &OnRail) -> Gathered {
        Gathered { given: vec![0; rail.members], complete: 0, brought: VecDeque::new() }
    }

    /// A member has given something more. When all of it has been brought, if this was the last.
    fn give(&mut self, member: usize, brought: Time) -> Option<Time> {
        let number = self.given[member];
        self.given[member] += 1;
        let at = number - self.complete;
        match self.brought.get_mut(at) {
            Some(latest) => *latest = brought.max(*latest),
            None => self.brought.push_back(brought),
        }
        if self.given.iter().any(|given| *given <= self.complete) {
            return None;
        }
        self.complete += 1;
        self.brought.pop_front()
    }
}

impl Machine<'_> {
    /// Hands a contribution to this rank's adapter.
    pub(super) fn contribute(
        &mut self,
        at: usize,
        to: &Access,
        bytes: u64,
        (now, event): (Time, u32),
    ) {
        let compiled = self.compiled;
        let (bundle, rail) = (self.processes[at].bundle as usize, to.way as usize);
        let on_rail = &compiled.rails[rail];
        let counter = &compiled.counters[to.counter as usize];
        let connection = &compiled.connections[counter.connection as usize];
        let brought = self.cross(&compiled.ways[connection.back as usize].links, bytes, now);
        let member = connection.from as usize / on_rail.apart;
        let gathered = &mut self.gathered[bundle * compiled.rails.len() + rail];
        let number = gathered.complete;
        let Some(brought) = gathered.give(member, brought) else { return };
        let reduced = brought.max(self.cross(&on_rail.between, bytes, now));
        for &connection in &on_rail.connections {
            let connection = &compiled.connections[connection as usize];
            let way = &compiled.ways[connection.way as usize];
            let there = self.cross(&way.links, bytes, now);
            let there = reduced.max(there).max(self.cross(&[way.to_memory], bytes, now));
            let arrival = there + self.with_noise(at, way.latency);
            let counter = connection.counters[Counts::Messages as usize];
            // As `Access::number` counts.
            let value = number as i64 * i64::from(SEGMENTS) + 1;
            self.raise(at, counter, Signal { value, arrival, event });
        }
    }

    /// Who has not given what a process waits for.
    pub(super) fn stuck_on_rail(&self, at: usize, reduced: &Access) -> Stuck {
        let process = &self.processes[at];
        let on_rail = &self.compiled.rails[reduced.way as usize];
        let bundle = process.bundle as usize;
        let gathered = &self.gathered[bundle * self.compiled.rails.len() + reduced.way as usize];
        let missing = gathered.given.iter().position(|given| *given <= gathered.complete);
        let peer = on_rail.place + missing.unwrap_or(0) * on_rail.apart;
        let operand = Operand::Reduced { rail: on_rail.rail, message: reduced.message() };
        let (rank, step) = (self.compiled.turns.rank(process.list as usize), process.step as usize);
        let awaited = Awaited::Message(operand);
        Stuck { rank, list: 0, step, peer, peer_list: 0, awaited }
    }
}
