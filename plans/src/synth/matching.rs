//! Trees by greedy matching on the time-expanded network.
//!
//! ```text
//! while somebody lacks a chunk:
//!     for each way whose links are all idle now:
//!         of the chunks that its begin holds and its end lacks, send the one that is held least
//!     go on to the next time at which a link is idle or a chunk arrives
//! ```
//!
//! Won, Elavazhagan, Srinivasan, Gupta and Krishna ("TACOS: topology-aware collective algorithm
//! synthesizer for distributed machine learning", 2024) match so. TACCL (Shah and others, 2023) and
//! TE-CCL (Liu and others, 2024) solve integer programs over the same network, and ForestColl (Zhao
//! and others, 2024) packs spanning trees. What is added here: links that several ways share, a
//! rule that a chunk enters a node once, and ways that are left out since they are slow.

use super::trees::Trees;
use super::ways::{Load, Time, Ways};
use crate::random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How it chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Matching {
    /// Ways inside of nodes that are slower are left out.
    pub(super) floor: f64,
    /// Whether a chunk enters a node once.
    pub(super) once: bool,
    /// Whether ranks pass on inside of a node what came from inside of it, where its first holder
    /// could send it itself.
    pub(super) relays: bool,
    /// Whom a rank serves first: by chance, or if there is no seed, the one behind the last.
    pub(super) seed: Option<u64>,
}

/// The trees; none if somebody is not reached.
pub(super) fn matched(
    ways: &Ways,
    matching: &Matching,
    chunks: usize,
    chunk_bytes: usize,
) -> Option<Trees> {
    let mut matcher = Matcher::new(ways, *matching, chunks, chunk_bytes);
    while matcher.lacking > 0 {
        matcher.match_all();
        matcher.go_on()?;
    }
    Some(matcher.trees)
}

struct Matcher<'a> {
    ways: &'a Ways,
    matching: Matching,
    chunk_bytes: usize,
    random: Random,
    trees: Trees,
    load: Load,
    now: Time,
    /// By rank, the chunks that are there.
    held: Vec<Set>,
    /// By rank, the chunks that are neither there nor under way.
    wanted: Vec<Set>,
    /// By chunk and node, who had it first there, or will.
    heads: Vec<Vec<Option<usize>>>,
    /// By chunk, how many hold it or will.
    holders: Vec<usize>,
    /// By rank, how many it has sent.
    sent: Vec<usize>,
    /// Chunks that nobody has been sent yet.
    lacking: usize,
    events: BinaryHeap<Reverse<Time>>,
    /// When, whom, which chunk.
    arrivals: BinaryHeap<Reverse<(Time, usize, usize)>>,
}

impl<'a> Matcher<'a> {
    fn new(ways: &'a Ways, matching: Matching, chunks: usize, chunk_bytes: usize) -> Self {
        let ranks = ways.ranks();
        let all = ranks * chunks;
        let own = |rank: usize| Set::new(all, |chunk| chunk / chunks == rank);
        let mut heads = vec![vec![None; ways.nodes()]; all];
        for (chunk, heads) in heads.iter_mut().enumerate() {
            heads[ways.node(chunk / chunks)] = Some(chunk / chunks);
        }
        Matcher {
            ways,
            matching,
            chunk_bytes,
            random: Random::new(matching.seed.unwrap_or(0)),
            trees: Trees::empty(ranks, chunks),
            load: Load::new(ways),
            now: 0,
            held: (0..ranks).map(own).collect(),
            wanted: (0..ranks).map(|rank| Set::new(all, |chunk| chunk / chunks != rank)).collect(),
            heads,
            holders: vec![1; all],
            sent: vec![0; ranks],
            lacking: all * (ranks - 1),
            events: BinaryHeap::new(),
            arrivals: BinaryHeap::new(),
        }
    }

    /// Sends whatever can be sent now.
    fn match_all(&mut self) {
        let others = self.ways.ranks() - 1;
        let first = |from: usize, random: &mut Random| match self.matching.seed {
            Some(_) => random.below(others),
            None => self.sent[from],
        };
        let firsts: Vec<usize> = (0..=others).map(|from| first(from, &mut self.random)).collect();
        for step in 0..others {
            for (from, first) in firsts.iter().enumerate() {
                let to = (from + 1 + (step + first) % others) % (others + 1);
                let way = self.ways.way(from, to);
                if self.load.is_idle(way, self.now)
                    && self.ways.is_allowed(from, to, self.matching.floor)
                    && let Some(chunk) = self.pick(from, to)
                {
                    self.send(from, to, chunk);
                }
            }
        }
    }

    /// The chunk that a rank had better send another.
    fn pick(&mut self, from: usize, to: usize) -> Option<usize> {
        let (near, there) = (self.ways.node(from) == self.ways.node(to), self.ways.node(to));
        let mut best = None;
        for chunk in self.held[from].and(&self.wanted[to]) {
            let head = self.heads[chunk][there];
            if !near && self.matching.once && head.is_some() {
                continue;
            }
            let is_head = head == Some(from);
            if near && !is_head && !self.matching.relays {
                let direct =
                    head.is_some_and(|head| self.ways.is_allowed(head, to, self.matching.floor));
                if direct {
                    continue;
                }
            }
            let chance = self.matching.seed.map_or(0, |_| self.random.below(1 << 16));
            let rank = (!is_head, self.holders[chunk], chance, chunk);
            if best.is_none_or(|best| rank < best) {
                best = Some(rank);
            }
        }
        best.map(|(.., chunk)| chunk)
    }

    fn send(&mut self, from: usize, to: usize, chunk: usize) {
        let way = self.ways.way(from, to);
        let end = self.load.carry(way, self.chunk_bytes, self.now);
        let arrival = end + way.latency + self.ways.step;
        self.events.extend(self.load.ends(way).chain([arrival]).map(Reverse));
        self.arrivals.push(Reverse((arrival, to, chunk)));
        self.trees.0[chunk].join(from, to, arrival);
        self.wanted[to].remove(chunk);
        self.heads[chunk][self.ways.node(to)].get_or_insert(to);
        self.holders[chunk] += 1;
        self.sent[from] += 1;
        self.lacking -= 1;
    }

    /// To the next time at which anything can be sent.
    fn go_on(&mut self) -> Option<()> {
        if self.lacking == 0 {
            return Some(());
        }
        let next = loop {
            let Reverse(time) = self.events.pop()?;
            if time > self.now {
                break time;
            }
        };
        self.now = next;
        while let Some(Reverse((time, rank, chunk))) = self.arrivals.peek().copied() {
            if time > next {
                break;
            }
            self.arrivals.pop();
            self.held[rank].insert(chunk);
        }
        Some(())
    }
}

/// A set of chunks.
#[derive(Clone, Debug)]
struct Set(Vec<u64>);

impl Set {
    fn new(count: usize, is_in: impl Fn(usize) -> bool) -> Set {
        let mut set = Set(vec![0; count.div_ceil(64)]);
        (0..count).filter(|at| is_in(*at)).for_each(|at| set.insert(at));
        set
    }

    fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    /// What is in both.
    fn and(&self, other: &Set) -> Vec<usize> {
        let mut both = Vec::new();
        for (at, (a, b)) in self.0.iter().zip(&other.0).enumerate() {
            let mut word = a & b;
            while word != 0 {
                both.push(at * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
        both
    }
}
