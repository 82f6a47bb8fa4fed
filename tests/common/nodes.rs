//! Every operation by every algorithm that can run on several nodes.

use super::Rng;
use super::element::TestElement;
use super::run::{Case, Solution, check};
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::plans::schedule::SLOTS;
use oxccl::plans::topology::Placement;
use oxccl::{Advanced, Collectives, Communicator, Config, OpKind, Order};
use std::time::Duration;

/// Small slots, so that a few thousand elements are several rounds: just large enough for the
/// segments of 8 ranks.
pub fn config() -> Config {
    Config {
        timeout: Duration::from_secs(300),
        max_channels: 2,
        heap_bytes: 1 << 20,
        advanced: Advanced { link_slot_bytes: Some(576), ..Advanced::default() },
        ..Config::default()
    }
}

/// One element, less than a line, and several rounds.
pub const COUNTS: [Count; 3] = [Count::Exactly(1), Count::Exactly(17), Count::Rounds];

/// How many elements a case has.
#[derive(Clone, Copy)]
pub enum Count {
    Exactly(usize),
    /// So many that they take several rounds.
    Rounds,
}

/// Whether the ranks of a node reach each other's buffers.
#[derive(Clone, Copy, PartialEq)]
pub enum Memory {
    Reachable,
    Private,
}

/// Each operation by each algorithm, with each count; the random choices are the same on every
/// rank.
pub fn cases<T: TestElement>(
    (n, nodes): (usize, usize),
    memory: Memory,
    counts: &[Count],
    seed: u64,
) -> Vec<Case> {
    let mut rng = Rng(seed);
    let node_of = |rank: usize| rank * nodes / n;
    let size = |node: usize| (0..n).filter(|rank| node_of(*rank) == node).count();
    let placement = Placement::of_sizes(&(0..nodes).map(size).collect::<Vec<_>>());
    let crosses = |entry: &Entry| match entry.encoding {
        _ if entry.is_in_fabric() => false,
        Encoding::Slots => true,
        Encoding::Windows => {
            memory == Memory::Reachable && matches!(entry.algorithm, Algorithm::Hierarchical(..))
        }
        _ => false,
    };
    let wanted =
        catalogue().filter(|entry| crosses(entry) && entry.check(n, placement, SLOTS).is_ok());
    let mut cases = Vec::new();
    for entry in wanted {
        let mut orders = [Order::Any, Order::Rank, Order::Tree].into_iter().filter(|order| {
            *order == Order::Any
                || (entry.kind.reduces() && entry.keeps(*order, placement, T::DATA_TYPE))
        });
        let order = orders.next_back().unwrap();
        // A switch divides nothing.
        let preferred = [OpKind::Sum, OpKind::Avg][n / 4 % 2];
        let may = entry.kind.reduces() && entry.reduces(T::DATA_TYPE, preferred);
        let op = if may { preferred } else { OpKind::Sum };
        for count in counts {
            let count = match count {
                Count::Exactly(count) => *count,
                Count::Rounds => 700 + (rng.next() % 800) as usize,
            };
            let (in_place, channels) =
                (entry.in_place && rng.next().is_multiple_of(2), 1 + rng.next() as usize % 2);
            let (root, seed) = (rng.next() as usize % n, rng.next());
            cases.push(Case { entry, placement, order, op, in_place, root, count, channels, seed });
        }
    }
    cases
}

/// This rank's part of all cases.
pub fn run<T: TestElement>(comm: &mut Communicator, cases: &[Case]) {
    assert!(cases.len() > 30, "{}", cases.len());
    for case in cases {
        check::<T>(comm, case, &Solution::of(case, comm.world_size()));
        comm.barrier().unwrap();
    }
}
