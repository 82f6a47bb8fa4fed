//! An entry of the catalogue: what it is, what it keeps, and for which ranks it exists.

use super::hierarchical::nodes_of_group;
use super::request::Whose;
use super::{Algorithm, Encoding, Inner, Outer, Pipeline, Request};
use crate::collective::{Collective, Kind, Order};
use crate::element::OpKind;
use crate::schedule::{SEGMENTS, Schedule, Slots};
use crate::topology::Placement;
use oxccl_format::{DataType, MAX_TREE_SOURCES, Scale};
use std::ops::Range;
use thiserror::Error;

/// One way of carrying out a kind of collective.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The kind.
    pub kind: Kind,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The encoding.
    pub encoding: Encoding,
    /// Whether input and output may be the same memory.
    pub in_place: bool,
    /// Which orders of reduction it keeps.
    pub orders: Orders,
    needs: &'static [Need],
    /// Whether it writes to peers' buffers.
    writes_peers: bool,
    build: fn(&Request) -> Schedule,
}

/// Which orders of reduction an algorithm keeps besides [`Order::Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orders {
    /// All of them for every type, since results are rounded once. Also where nothing is reduced.
    All,
    /// None.
    None,
    /// [`Order::Rank`], by partial results: for types that accumulate in themselves.
    Rank,
    /// [`Order::Tree`], by partial results: for types that accumulate in themselves.
    Tree,
    /// As `Tree`, where the ranks of a node are a power of two.
    TreeOfNodes,
}

/// What an algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// At least so many ranks.
    AtLeast(usize),
    /// No more ranks: an instruction has so many operands.
    AtMost(usize),
    /// A power of two of ranks.
    PowerOfTwo,
    /// Slots for half of the ranks' chunks: what is forwarded stays in them until then.
    Held,
    /// At least two nodes, all of them full.
    Nodes,
    /// At least two nodes, with any numbers of ranks.
    NodesOfAnySize,
    /// Several groups of several nodes, all of them full.
    Grid,
    /// At least two ranks on each node.
    Beside,
    /// Of a hierarchical algorithm: so few nodes, and ranks on each, that one instruction can
    /// reduce what comes from all of them.
    Terms,
}

/// An algorithm does not exist for so many ranks, placed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{kind} {algorithm}/{encoding} does not exist for {ranks} ranks with {ranks_per_node} on a node: {reason}"
)]
pub struct Unavailable {
    /// The kind.
    pub kind: Kind,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The encoding.
    pub encoding: Encoding,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks of a node.
    pub ranks_per_node: usize,
    /// What it needs.
    pub reason: Reason,
}

/// What an algorithm would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Reason {
    /// More ranks.
    #[error("it needs at least {0} ranks")]
    AtLeast(usize),
    /// Fewer ranks.
    #[error("it takes at most {0} ranks")]
    AtMost(usize),
    /// A power of two.
    #[error("it needs a number of ranks that is a power of two")]
    PowerOfTwo,
    /// Several full nodes.
    #[error("it needs at least two nodes, with the same number of ranks each")]
    Nodes,
    /// Nodes that are several groups of several nodes.
    #[error("it needs full nodes, as many as several groups of several nodes have")]
    Grid,
    /// More ranks on each node.
    #[error("it needs at least two ranks on each node")]
    Beside,
    /// Fewer nodes, or fewer ranks on each.
    #[error("one instruction would have to reduce {terms} values, and can reduce {most}")]
    Terms {
        /// Values from all nodes, or from all ranks of one.
        terms: usize,
        /// So many can be.
        most: usize,
    },
}

impl Entry {
    /// The schedule for these ranks. `order` must be kept: see [`Entry::keeps`].
    ///
    /// # Errors
    /// [`Unavailable`], as [`Entry::check`] says.
    pub fn schedule(
        &self,
        collective: Collective,
        placement: Placement,
        order: Order,
        pipeline: impl Into<Pipeline>,
    ) -> Result<Schedule, Unavailable> {
        self.built(collective, placement, order, pipeline.into(), Whose::All)
    }

    /// The schedule with some ranks' instructions alone: its lists are theirs.
    ///
    /// # Errors
    /// [`Unavailable`], as [`Entry::check`] says.
    pub fn schedule_of_ranks(
        &self,
        collective: Collective,
        placement: Placement,
        order: Order,
        pipeline: impl Into<Pipeline>,
        ranks: Range<usize>,
    ) -> Result<Schedule, Unavailable> {
        self.built(collective, placement, order, pipeline.into(), Whose::Ranks(ranks))
    }

    /// After how many ranks the instructions repeat, turned by as many ranks, where the algorithm
    /// is made so.
    ///
    /// # Errors
    /// [`Unavailable`], as [`Entry::check`] says.
    pub fn period(
        &self,
        collective: Collective,
        placement: Placement,
        order: Order,
        pipeline: impl Into<Pipeline>,
    ) -> Result<Option<usize>, Unavailable> {
        let pipeline = pipeline.into();
        let period = self.built(collective, placement, order, pipeline, Whose::Period)?.lists.len();
        Ok((period > 0).then_some(period))
    }

    /// Of algorithms on hypercubes: ranks that differ by a multiple of this, exclusive-or, do the
    /// same relative to their own rank, but for the order in which they name what they add up.
    pub fn cube(&self, ranks: usize, placement: Placement) -> Option<usize> {
        let period = match (self.kind, self.algorithm) {
            (_, Algorithm::HalvingDoubling) => 1,
            (Kind::AllReduce, Algorithm::RecursiveDoubling) => 1,
            (Kind::AllReduce, Algorithm::Hierarchical(_, Outer::Doubling)) => {
                placement.ranks_per_node()
            }
            _ => return None,
        };
        (placement.are_alike()
            && ranks.is_power_of_two()
            && period.is_power_of_two()
            && period < ranks)
            .then_some(period)
    }

    /// Of hierarchical all-reduces: so many ranks, those of a node, do the same relative to their
    /// own place, with the ranks at that place of other nodes, but for the order in which they name
    /// what they add up, wait for or signal.
    pub fn inside(&self, placement: Placement) -> Option<usize> {
        let is_alike = match (self.kind, self.algorithm) {
            (Kind::AllReduce, Algorithm::Hierarchical(inner, outer)) => {
                inner != Inner::Nvls && outer != Outer::Rails
            }
            _ => false,
        };
        (is_alike && placement.are_alike()).then_some(placement.ranks_per_node())
    }

    fn built(
        &self,
        collective: Collective,
        placement: Placement,
        order: Order,
        pipeline: Pipeline,
        whose: Whose,
    ) -> Result<Schedule, Unavailable> {
        debug_assert_eq!(collective.kind, self.kind);
        let (Pipeline { slots, parts }, encoding) = (pipeline, self.encoding);
        self.check(collective.ranks, placement, slots)?;
        Ok((self.build)(&Request { collective, placement, encoding, order, slots, parts, whose }))
    }

    /// Whether it exists for so many ranks, placed so.
    ///
    /// # Errors
    /// [`Unavailable`] says what it would need.
    pub fn check(
        &self,
        ranks: usize,
        placement: Placement,
        slots: Slots,
    ) -> Result<(), Unavailable> {
        let lacking = self.needs.iter().find_map(|need| match *need {
            Need::AtLeast(least) => (ranks < least).then_some(Reason::AtLeast(least)),
            Need::AtMost(most) => (ranks > most).then_some(Reason::AtMost(most)),
            Need::PowerOfTwo => (!ranks.is_power_of_two()).then_some(Reason::PowerOfTwo),
            Need::Held => {
                let most = 2 * (SEGMENTS * slots.on(self.encoding.lane())) as usize;
                (ranks > most).then_some(Reason::AtMost(most))
            }
            Need::Nodes => {
                let several = placement.nodes(ranks).is_some_and(|nodes| nodes > 1);
                (!several).then_some(Reason::Nodes)
            }
            Need::NodesOfAnySize => {
                let several = placement.nodes(ranks).is_some_and(|nodes| nodes > 1);
                let several = several || placement.uneven(ranks).is_some();
                (!several).then_some(Reason::Nodes)
            }
            Need::Grid => {
                let nodes = placement.nodes(ranks).unwrap_or(1);
                nodes_of_group(nodes).is_none().then_some(Reason::Grid)
            }
            Need::Beside => (placement.ranks_per_node() < 2).then_some(Reason::Beside),
            Need::Terms => {
                let (terms, most) = (self.terms(ranks, placement), MAX_TREE_SOURCES);
                (terms > most).then_some(Reason::Terms { terms, most })
            }
        });
        match lacking {
            None => Ok(()),
            Some(reason) => Err(Unavailable {
                kind: self.kind,
                algorithm: self.algorithm,
                encoding: self.encoding,
                ranks,
                ranks_per_node: placement.ranks_per_node(),
                reason,
            }),
        }
    }

    /// The most values that one instruction of a hierarchical reduction has to reduce.
    fn terms(&self, ranks: usize, placement: Placement) -> usize {
        let Algorithm::Hierarchical(inner, outer) = self.algorithm else { return 0 };
        let local = placement.ranks_per_node();
        let nodes = placement.nodes(ranks).unwrap_or(1);
        let at_once = match outer {
            Outer::Grid => nodes_of_group(nodes).unwrap_or(nodes),
            _ => nodes,
        };
        let in_place = self.encoding == Encoding::Windows;
        let inside = if matches!(inner, Inner::Ring | Inner::Chain) { 2 } else { local };
        match outer {
            // What a rank keeps is added up in one go: of its node, its row and its column.
            Outer::Grid if self.kind == Kind::ReduceScatter => {
                local + at_once - 1 + nodes / at_once - 1
            }
            // In windows the node's own part is reduced together with those of the others.
            Outer::Direct | Outer::Grid if in_place && inner == Inner::Direct => {
                local + at_once - 1
            }
            Outer::Direct | Outer::Grid => inside.max(at_once),
            Outer::Ring => inside + 1,
            Outer::CollNet => inside,
            Outer::Doubling | Outer::Tree => inside.max(3),
            Outer::Rails => 2,
        }
    }

    /// Whether an order is kept for a type.
    pub fn keeps(&self, order: Order, placement: Placement, data_type: DataType) -> bool {
        let kept = match (self.orders, order) {
            (_, Order::Any) | (Orders::All, _) => return true,
            (Orders::Rank, Order::Rank) | (Orders::Tree, Order::Tree) => true,
            (Orders::TreeOfNodes, Order::Tree) => {
                placement.are_alike() && placement.ranks_per_node().is_power_of_two()
            }
            _ => false,
        };
        kept && data_type.accumulates_in_itself()
    }

    /// Whether it reduces elements of a type so: a switch does not know all types and folds, and
    /// does not scale.
    pub fn reduces(&self, data_type: DataType, op: OpKind) -> bool {
        let (fold, scale) = op.lower();
        let by_a_switch = scale == Scale::None && data_type.has_multicast(fold);
        !self.is_in_network() || by_a_switch
    }

    /// Whether it has switches reduce and multicast.
    pub fn is_in_network(&self) -> bool {
        self.algorithm.is_in_network()
    }

    /// Whether it has the fabric's switches reduce, which no executor can.
    pub fn is_in_fabric(&self) -> bool {
        self.algorithm.is_in_fabric()
    }

    /// Whether it writes to peers' buffers in place, not only reads them.
    pub fn writes_peers(&self) -> bool {
        self.encoding == Encoding::Windows && self.writes_peers
    }

    /// Whether it serves between nodes: what goes there goes in slots.
    pub fn crosses_nodes(&self) -> bool {
        match self.encoding {
            Encoding::Slots => true,
            Encoding::Windows => matches!(self.algorithm, Algorithm::Hierarchical(..)),
            Encoding::Ll | Encoding::Ll128 => false,
        }
    }

    /// As [`Entry::keeps`] for types whose partial results are not rounded.
    pub fn keeps_unrounded(&self, order: Order, placement: Placement) -> bool {
        self.keeps(order, placement, DataType::F32)
    }
}

/// Through slots, in any way.
pub(super) const IN_SLOTS: &[Encoding] = &[Encoding::Ll, Encoding::Ll128, Encoding::Slots];
/// In windows alone.
pub(super) const IN_WINDOWS: &[Encoding] = &[Encoding::Windows];

/// Entries that differ in their encoding alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entries {
    encodings: &'static [Encoding],
    /// In the first of the encodings.
    first: Entry,
}

impl Entries {
    /// With needs.
    pub(super) const fn needs(self, needs: &'static [Need]) -> Entries {
        Entries { first: Entry { needs, ..self.first }, ..self }
    }

    /// Writing to peers' buffers in place.
    pub(super) const fn writing_peers(self) -> Entries {
        Entries { first: Entry { writes_peers: true, ..self.first }, ..self }
    }

    /// One for each encoding.
    pub(super) fn each(&self) -> impl Iterator<Item = Entry> {
        self.encodings.iter().map(|&encoding| Entry { encoding, ..self.first })
    }
}

/// Table rows without the words: one for each encoding.
pub(super) const fn entries(
    kind: Kind,
    algorithm: Algorithm,
    encodings: &'static [Encoding],
    in_place: bool,
    orders: Orders,
    build: fn(&Request) -> Schedule,
) -> Entries {
    let encoding = encodings[0];
    let first = Entry {
        kind,
        algorithm,
        encoding,
        in_place,
        orders,
        needs: &[],
        writes_peers: false,
        build,
    };
    Entries { encodings, first }
}

#[cfg(test)]
mod tests {
    use crate::algorithms::{PAGES, catalogue};
    use crate::collective::{Collective, Order};
    use crate::schedule::SLOTS;
    use crate::topology::Placement;

    /// What would be too much for an instruction is said to be absent, not refused when it is
    /// proven.
    #[test]
    fn nodes_may_be_too_many_for_one_instruction() {
        use super::Reason;
        use crate::algorithms::{Algorithm, Encoding, Inner, Outer, find};
        use crate::collective::Kind;
        use crate::verify::verify;
        let direct = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);
        for (encoding, nodes, local) in
            [(Encoding::Slots, 256, 1), (Encoding::Windows, 255, 2), (Encoding::Slots, 2, 256)]
        {
            let entry = find(Kind::ReduceScatter, direct, encoding).unwrap();
            let placement = Placement::uniform(local);
            assert_eq!(entry.check(nodes * local, placement, SLOTS), Ok(()));
            let more = entry.check((nodes + 256) * local, placement, SLOTS).unwrap_err();
            assert!(matches!(more.reason, Reason::Terms { most: 256, .. }), "{more}");
        }
        // As many as there can be are not refused.
        let entry = find(Kind::ReduceScatter, direct, Encoding::Slots).unwrap();
        let collective = Collective::new(Kind::ReduceScatter, 256);
        let schedule = entry.schedule(collective, Placement::uniform(1), Order::Tree, SLOTS);
        verify(schedule.unwrap(), Order::Tree, true).unwrap_or_else(|why| panic!("{why}"));
    }

    #[test]
    fn some_ranks_alone_have_the_instructions_that_they_have_among_all() {
        let mut rotational = 0;
        for entry in catalogue() {
            for ranks in 2..9 {
                let collective = match entry.kind {
                    crate::collective::Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
                    kind => Collective::new(kind, ranks),
                };
                let (placement, order) = (Placement::uniform(2), Order::Any);
                let Ok(all) = entry.schedule(collective, placement, order, SLOTS) else { continue };
                for rank in 0..ranks {
                    let some = rank..ranks.min(rank + 2);
                    let made =
                        entry.schedule_of_ranks(collective, placement, order, SLOTS, some.clone());
                    assert_eq!(made.unwrap().lists, all.lists[some], "{entry:?} {ranks} {rank}");
                }
                let period = entry.period(collective, placement, order, SLOTS).unwrap();
                rotational += usize::from(period.is_some());
            }
        }
        assert!(rotational >= 7 * 7, "{rotational}");
    }

    #[test]
    fn entries_say_whether_they_write_to_peers_buffers() {
        for entry in catalogue() {
            for (ranks, local) in [(2, 2), (4, 4), (4, 2), (5, 5)] {
                let collective = match entry.kind {
                    crate::collective::Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
                    kind => Collective::new(kind, ranks),
                };
                let placement = Placement::uniform(local);
                let made = entry.schedule(collective, placement, Order::Any, SLOTS);
                let Ok(schedule) = made else { continue };
                // Of hierarchical ones it is said of all.
                let hierarchical =
                    matches!(entry.algorithm, crate::algorithms::Algorithm::Hierarchical(..));
                let said = entry.writes_peers() && (!hierarchical || schedule.writes_windows());
                assert_eq!(schedule.writes_windows(), said && ranks > 1, "{entry:?}");
            }
        }
    }

    #[test]
    fn what_differs_in_the_encoding_alone_is_told_once() {
        let told: Vec<_> = PAGES.into_iter().flatten().map(|entries| entries.first).collect();
        for (at, one) in told.iter().enumerate() {
            let again = told[at + 1..].iter().find(|other| {
                (one.kind, one.algorithm, one.in_place, one.orders, one.needs)
                    == (other.kind, other.algorithm, other.in_place, other.orders, other.needs)
                    && std::ptr::fn_addr_eq(one.build, other.build)
            });
            assert!(again.is_none(), "{one:?} {again:?}");
        }
        assert!(told.len() < catalogue().count());
    }

    #[test]
    fn no_entry_is_there_twice() {
        let name = |entry: &crate::algorithms::Entry| {
            format!("{} {}/{}", entry.kind, entry.algorithm, entry.encoding)
        };
        let mut names: Vec<String> = catalogue().map(name).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
