//! What the verifier's tests share: small worlds of every algorithm, and a model that runs
//! schedules on real numbers.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod model;

use oxccl_plans::algorithms::{Algorithm, Encoding, Entry, Outer, catalogue};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::{Schedule, Slots};
use oxccl_plans::topology::Placement;

pub(crate) const SLOTS: Slots = Slots { ll: 2, ll128: 2, slots: 2 };

/// A schedule and what it promises.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) schedule: Schedule,
    pub(crate) order: Order,
    pub(crate) in_place: bool,
}

impl Case {
    pub(crate) fn new(entry: &Entry, ranks: usize, order: Order) -> Case {
        let placement = placement(entry, ranks);
        let root = ranks / 2;
        let collective = match entry.kind {
            Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter => {
                Collective::rooted(entry.kind, ranks, root)
            }
            Kind::SendRecv => Collective::send_recv(ranks, root, 0),
            kind => Collective::new(kind, ranks),
        };
        Case {
            name: format!(
                "{} {} {} {order}, {ranks} ranks",
                entry.kind, entry.algorithm, entry.encoding
            ),
            schedule: entry.schedule(collective, placement, order, SLOTS).expect("it exists"),
            order,
            in_place: entry.in_place,
        }
    }

    /// The same with another schedule.
    pub(crate) fn with(&self, schedule: Schedule) -> Case {
        Case { schedule, ..self.clone() }
    }

    pub(crate) fn is_accepted(&self) -> bool {
        oxccl_plans::verify::verify(self.schedule.clone(), self.order, self.in_place).is_ok()
    }
}

/// Two nodes for what needs nodes, where there can be two; otherwise one.
pub(crate) fn placement(entry: &Entry, ranks: usize) -> Placement {
    match entry.algorithm {
        // Several groups of several nodes.
        Algorithm::Hierarchical(_, Outer::Grid) => Placement::uniform(1),
        Algorithm::Hierarchical(..) if ranks.is_multiple_of(2) => Placement::uniform(ranks / 2),
        Algorithm::Hierarchical(..) => Placement::uniform(1),
        _ => Placement::one_node(ranks),
    }
}

/// The orders that an entry keeps for types whose partial results are not rounded.
pub(crate) fn orders(entry: &Entry, ranks: usize) -> Vec<Order> {
    let all = [Order::Any, Order::Rank, Order::Tree];
    let placement = placement(entry, ranks);
    let kept = all.into_iter().filter(|order| entry.keeps_unrounded(*order, placement));
    if entry.kind.reduces() { kept.collect() } else { vec![Order::Any] }
}

/// Whether its schedules are worth a look: those in LL128 are those in LL on another lane
/// (`plans/tests/verify_all.rs`).
pub(crate) fn is_of_its_own(entry: &&'static Entry) -> bool {
    entry.encoding != Encoding::Ll128
}

/// Every algorithm with this many ranks, in every order that it keeps.
pub(crate) fn cases(ranks: usize) -> Vec<Case> {
    let case = |entry: &'static Entry| {
        orders(entry, ranks).into_iter().map(move |order| Case::new(entry, ranks, order))
    };
    let exists = |entry: &&Entry| entry.check(ranks, placement(entry, ranks), SLOTS).is_ok();
    catalogue().filter(is_of_its_own).filter(exists).flat_map(case).collect()
}
