//! What thread blocks of a rank tell each other, where each is a list of its own: that steps are
//! done on which others depend, and at the end of a round that scratch is not used any more.

use super::compile::List;
use super::parse::{Algorithm, At};
use crate::schedule::{Flag, Link};
use oxccl_format::Lane;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Signals from one thread block of a rank to another, each awaited once, in order.
pub(super) struct Told {
    /// By step: which thread blocks are told behind it.
    behind: HashMap<At, Vec<(usize, i64)>>,
    /// By step: whom it awaits.
    before: HashMap<At, (usize, i64)>,
    /// By rank, whose steps are done before all others, and what they tell whom.
    first: HashMap<usize, Vec<(usize, usize)>>,
    /// By rank and thread blocks: signals so far.
    count: HashMap<(usize, usize, usize), i64>,
}

impl Told {
    pub(super) fn new(algorithm: &Algorithm) -> Told {
        let mut told = Told {
            behind: HashMap::new(),
            before: HashMap::new(),
            first: HashMap::new(),
            count: HashMap::new(),
        };
        for (rank, blocks) in algorithm.ranks.iter().enumerate() {
            // By thread blocks: of how many steps the other one knows that they are done.
            let mut known = HashMap::new();
            for (of, first) in blocks.iter().enumerate().filter(|(_, block)| block.is_first) {
                let Some(last) = first.steps.len().checked_sub(1) else { continue };
                let others = blocks.iter().enumerate().filter(|(_, block)| !block.is_first);
                for (block, _) in others.filter(|(_, block)| !block.steps.is_empty()) {
                    known.insert((of, block), first.steps.len());
                    let value = told.next(rank, of, block);
                    told.behind.entry((rank, of, last)).or_default().push((block, value));
                    told.first.entry(rank).or_default().push((of, block));
                }
            }
            for (block, steps) in blocks.iter().enumerate().map(|(at, block)| (at, &block.steps)) {
                for (at, step) in steps.iter().enumerate() {
                    let Some((of, index)) = step.dependency.filter(|(of, _)| *of != block) else {
                        continue;
                    };
                    let known = known.entry((of, block)).or_default();
                    if *known <= index {
                        *known = index + 1;
                        let value = told.next(rank, of, block);
                        told.behind.entry((rank, of, index)).or_default().push((block, value));
                        told.before.insert((rank, block, at), (of, value));
                    }
                }
            }
        }
        told
    }

    fn next(&mut self, rank: usize, from: usize, to: usize) -> i64 {
        let count = self.count.entry((rank, from, to)).or_default();
        *count += 1;
        *count
    }

    /// What lists of a rank await before they begin.
    pub(super) fn begin(&self, rank: usize, lists: &mut [List]) {
        for (of, block) in self.first.get(&rank).into_iter().flatten() {
            lists[*block].wait(tail(rank, *of), 1);
        }
    }

    /// What a step awaits.
    pub(super) fn before(&self, at: At, list: &mut List) {
        if let Some((of, value)) = self.before.get(&at) {
            list.wait(tail(at.0, *of), *value);
        }
    }

    /// Whom a step tells that it is done.
    pub(super) fn behind(&self, at: At, list: &mut List) {
        for (block, value) in self.behind.get(&at).into_iter().flatten() {
            list.signal(tail(at.0, *block), *value);
        }
    }

    /// Whoever writes to scratch does so again in the next round, and hears first that others are
    /// done with it. All tell before any waits.
    pub(super) fn give_back(
        &mut self,
        rank: usize,
        users: &BTreeMap<usize, BTreeMap<usize, bool>>,
        lists: &mut [List],
    ) {
        let mut pairs = BTreeSet::new();
        for lists in users.values() {
            for (writer, _) in lists.iter().filter(|(_, writes)| **writes) {
                let others = lists.keys().filter(|other| *other != writer);
                pairs.extend(others.map(|other| (*other, *writer)));
            }
        }
        for (from, to) in &pairs {
            let value = self.next(rank, *from, *to);
            lists[*from].signal(tail(rank, *to), value);
        }
        for (from, to) in pairs {
            lists[to].wait(tail(rank, from), self.count[&(rank, from, to)]);
        }
    }
}

fn tail(rank: usize, list: usize) -> Flag {
    Flag::Tail(Link { peer: rank, list: list as u16, lane: Lane::Sync })
}
