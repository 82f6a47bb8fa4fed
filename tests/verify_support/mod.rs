//! What the verifier's tests share: small worlds of every algorithm, and a model that runs schedules on real numbers.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod model;

use oxccl::algorithms::{Entry, catalogue};
use oxccl::collective::{Collective, Kind, Order};
use oxccl::schedule::{Schedule, Slots};

pub(crate) const SLOTS: Slots = Slots { ll: 2, slots: 2 };

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
            schedule: entry.schedule(collective, order, SLOTS),
            order,
            in_place: entry.in_place,
        }
    }

    /// The same with another schedule.
    pub(crate) fn with(&self, schedule: Schedule) -> Case {
        Case { schedule, ..self.clone() }
    }

    pub(crate) fn is_accepted(&self) -> bool {
        oxccl::verify::verify(self.schedule.clone(), self.order, self.in_place).is_ok()
    }
}

/// Every algorithm with this many ranks, in every order that it keeps.
pub(crate) fn cases(ranks: usize) -> Vec<Case> {
    let orders = |entry: &Entry| match entry.ordered && entry.kind.reduces() {
        true => vec![Order::Any, Order::Rank, Order::Tree],
        false => vec![Order::Any],
    };
    let case = |entry: &'static Entry| {
        orders(entry).into_iter().map(move |order| Case::new(entry, ranks, order))
    };
    catalogue().flat_map(case).collect()
}
