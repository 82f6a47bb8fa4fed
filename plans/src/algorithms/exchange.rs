//! Exchanges: messages between any pairs of ranks, at most one from each rank to each other a
//! round. Pipelines are made of these.
//!
//! In a round every rank first sends all its messages and then receives all that come to it. Longer
//! messages take several rounds, and each pair takes part in as many rounds as it needs, counted
//! from the exchange's first. So the k-th message of a pair is sent in its sender's round k and
//! received in its receiver's round k, whatever else the two do. No pattern can deadlock: number
//! what happens by the round, and within a round sends before receipts. A send waits for the
//! receipt of an earlier round's message, which frees its slot; a receipt waits for the send of its
//! own round; and a rank's list is in this order. So whatever waits does so for something with a
//! smaller number. What has one channel comes before what has several, on all ranks, so a round's
//! number begins with that.
//!
//! A rank knows its own messages alone. Its list does not depend on others', so it is the same in
//! the pattern of all ranks and in the one that has only the messages to and from itself, which is
//! the one that it has proven before it runs. Tests prove patterns of all ranks.

use crate::collective::{Collective, Kind};
use crate::schedule::{
    Chunking, Flag, Instruction, Lane, Link, Operand, RankBuilder, Schedule, Slots, Tree,
};

/// Who sends to whom in a round, and how. A rank's message to itself is a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    ranks: usize,
    lanes: Vec<Option<Lane>>,
}

impl Pattern {
    /// Nobody sends.
    pub fn new(ranks: usize) -> Pattern {
        Pattern { ranks, lanes: vec![None; ranks * ranks] }
    }

    /// Adds a message.
    pub fn add(&mut self, sender: usize, receiver: usize, lane: Lane) {
        self.lanes[sender * self.ranks + receiver] = Some(lane);
    }

    /// How a rank's message to another goes, if there is one.
    pub fn lane(&self, sender: usize, receiver: usize) -> Option<Lane> {
        self.lanes[sender * self.ranks + receiver]
    }

    fn schedule(&self, slots: Slots, list: impl Fn(&mut RankBuilder)) -> Schedule {
        let lists = (0..self.ranks).map(|rank| {
            let mut builder = RankBuilder::new(rank, slots, Tree::Left);
            list(&mut builder);
            builder.finish()
        });
        Schedule {
            collective: Collective::new(Kind::AllToAll, self.ranks),
            input: Chunking::PerRank(1),
            output: Chunking::PerRank(1),
            scratch: 0,
            slots,
            lists_per_rank: 1,
            lists: lists.collect(),
        }
    }

    /// The other ranks, the next one first.
    fn peers(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let ranks = self.ranks;
        (1..ranks).map(move |step| (rank + step) % ranks)
    }
}

/// One round: chunk r of each input goes to rank r, as in an all-to-all, where the pattern says so.
pub fn exchange(pattern: &Pattern, slots: Slots) -> Schedule {
    pattern.schedule(slots, |b| {
        let rank = b.rank();
        for peer in pattern.peers(rank) {
            if let Some(lane) = pattern.lane(rank, peer) {
                b.send(Operand::Input(peer), Link::new(peer, lane));
            }
        }
        if pattern.lane(rank, rank).is_some() {
            b.copy(Operand::Input(rank), &[Operand::Output(rank)]);
        }
        for peer in pattern.peers(rank) {
            if let Some(lane) = pattern.lane(peer, rank) {
                b.recv_copy(Link::new(peer, lane), Operand::Output(peer));
            }
        }
    })
}

/// Waits until all that was sent in earlier rounds has been received: who sends what nobody
/// receives then learns of it.
pub fn receipts(pattern: &Pattern, slots: Slots) -> Schedule {
    let mut schedule = pattern.schedule(slots, |_| {});
    for (rank, list) in schedule.lists.iter_mut().enumerate() {
        let links = pattern
            .peers(rank)
            .filter_map(|peer| pattern.lane(rank, peer).map(|lane| Link::new(peer, lane)));
        list.extend(links.map(|link| Instruction::Wait { flag: Flag::Head(link), value: 0 }));
    }
    schedule
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::SLOTS;
    use crate::verify::{Violation, verify_exchange};

    /// The pattern whose bits say who sends to whom.
    fn pattern(ranks: usize, bits: u64, lane: impl Fn(usize) -> Lane) -> Pattern {
        let mut pattern = Pattern::new(ranks);
        for pair in (0..ranks * ranks).filter(|pair| bits >> (pair % 64) & 1 == 1) {
            pattern.add(pair / ranks, pair % ranks, lane(pair));
        }
        pattern
    }

    /// The messages to and from one rank.
    fn own(whole: &Pattern, rank: usize) -> Pattern {
        let mut pattern = Pattern::new(whole.ranks);
        for peer in 0..whole.ranks {
            for (sender, receiver) in [(rank, peer), (peer, rank)] {
                if let Some(lane) = whole.lane(sender, receiver) {
                    pattern.add(sender, receiver, lane);
                }
            }
        }
        pattern
    }

    fn check(pattern: &Pattern) {
        for slots in [SLOTS, Slots { ll: 1, ll128: 1, slots: 1 }] {
            let schedule = exchange(pattern, slots);
            for rank in 0..pattern.ranks {
                let alone = exchange(&own(pattern, rank), slots);
                assert_eq!(schedule.lists[rank], alone.lists[rank]);
            }
            verify_exchange(schedule, |sender, receiver| pattern.lane(sender, receiver).is_some())
                .unwrap();
            verify_exchange(receipts(pattern, slots), |_, _| false).unwrap();
        }
    }

    #[test]
    fn every_pattern_of_three_ranks_is_proven() {
        for bits in 0..1 << 9 {
            for lane in [Lane::Ll, Lane::Slots] {
                check(&pattern(3, bits, |_| lane));
            }
        }
    }

    #[test]
    fn random_patterns_of_more_ranks_are_proven() {
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        for ranks in 4..=8 {
            for _ in 0..40 {
                bits = bits.wrapping_mul(0xd129_0d3d_e2a5_f1c7).wrapping_add(1).rotate_left(23);
                let lane =
                    |pair| if (bits >> (pair % 61)) & 2 == 0 { Lane::Ll } else { Lane::Slots };
                check(&pattern(ranks, bits, lane));
            }
        }
    }

    #[test]
    fn receiving_before_sending_is_refused() {
        let both = pattern(2, 0b0110, |_| Lane::Slots);
        let mut schedule = exchange(&both, SLOTS);
        for list in &mut schedule.lists {
            let sends = list.len() / 2;
            list.rotate_left(sends);
        }
        let wanted = |sender, receiver| both.lane(sender, receiver).is_some();
        let found = verify_exchange(schedule, wanted).unwrap_err();
        assert!(matches!(found, Violation::Deadlock(_)), "{found}");
    }

    #[test]
    fn a_message_that_nobody_asked_for_is_refused() {
        let both = pattern(2, 0b0110, |_| Lane::Slots);
        let found = verify_exchange(exchange(&both, SLOTS), |sender, receiver| {
            (sender, receiver) == (0, 1)
        })
        .unwrap_err();
        assert!(matches!(found, Violation::WrongValue { rank: 0, chunk: 1, .. }), "{found}");
        let missing =
            verify_exchange(exchange(&pattern(2, 0b0010, |_| Lane::Ll), SLOTS), |_, _| true);
        assert!(matches!(missing, Err(Violation::Missing { rank: 0, chunk: 0 })), "{missing:?}");
    }
}
