//! What a rank has said to the rendezvous, and what news it has heard there: all that a server
//! which takes the duty over needs to be told again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::Cause;
use crate::rendezvous::message::{Message, Piece, RealmId, Said, WORLD};

/// A rank's own pieces of so many exchanges are kept: others may be in the one before its last.
const PIECES: usize = 2;

/// So many realms are remembered that this rank has left: somebody there may not have heard it.
const LEFT_REALMS: usize = 256;

/// So many causes of a realm are remembered.
const CAUSES: usize = 16;

/// The journal of one rank.
#[derive(Debug)]
pub(super) struct Journal {
    realms: BTreeMap<RealmId, Entry>,
    /// Realms that this rank has left, the oldest first.
    left: VecDeque<RealmId>,
    silence: Option<Duration>,
    /// Ranks that are known to be lost, by their numbers in the world.
    lost: BTreeSet<usize>,
}

#[derive(Debug, Default)]
struct Entry {
    /// By their numbers in the world.
    ranks: Vec<usize>,
    pieces: VecDeque<(u64, Piece)>,
    causes: Vec<Cause>,
    /// Others that have left.
    others: BTreeMap<usize, u64>,
    /// How this rank has left.
    end: Option<Said>,
}

impl Journal {
    /// Of a rank of a world of so many.
    pub(super) fn new(world: usize) -> Journal {
        let realms = BTreeMap::from([(WORLD, Entry::of((0..world).collect()))]);
        Journal { realms, left: VecDeque::new(), silence: None, lost: BTreeSet::new() }
    }

    /// Ranks that are known to be lost.
    pub(super) fn lost(&self) -> &BTreeSet<usize> {
        &self.lost
    }

    /// This rank is lost.
    pub(super) fn lose(&mut self, rank: usize) {
        self.lost.insert(rank);
    }

    /// For how long machines may be silent, if somebody has said so.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.silence
    }

    /// This rank says something.
    pub(super) fn said(&mut self, message: &Message) {
        match message {
            Message::Open { realm, ranks } => {
                self.realms.insert(*realm, Entry::of(ranks.clone()));
            }
            Message::Silence { ms } => self.silence = Some(Duration::from_millis(*ms)),
            Message::Among { realm, said } => self.said_among(*realm, said),
            _ => {}
        }
    }

    fn said_among(&mut self, id: RealmId, said: &Said) {
        let Some(entry) = self.realms.get_mut(&id) else { return };
        match said {
            Said::Gather { round, piece } => {
                entry.pieces.truncate(PIECES - 1);
                entry.pieces.push_front((*round, piece.clone()));
            }
            Said::Abort(cause) => entry.hear(cause),
            Said::Goodbye { .. } | Said::Gone if entry.end.is_none() => {
                entry.end = Some(said.clone());
                self.left.push_back(id);
                if self.left.len() > LEFT_REALMS {
                    self.left
                        .pop_front()
                        .into_iter()
                        .for_each(|old| drop(self.realms.remove(&old)));
                }
            }
            _ => {}
        }
    }

    /// This rank hears something.
    pub(super) fn heard(&mut self, id: RealmId, said: &Said) {
        let Some(entry) = self.realms.get_mut(&id) else { return };
        match said {
            Said::Abort(cause) => {
                let lost = cause.lost().and_then(|rank| entry.ranks.get(rank));
                self.lost.extend(lost);
                entry.hear(cause);
            }
            Said::Left { rank, calls } => drop(entry.others.insert(*rank, *calls)),
            _ => {}
        }
    }

    /// All of it, for another server, in an order in which that can take it.
    pub(super) fn replay(&self) -> Vec<Message> {
        let silence = self.silence.map(|silence| Message::Silence {
            ms: u64::try_from(silence.as_millis()).unwrap_or(u64::MAX),
        });
        let realms = self.realms.iter().flat_map(|(&id, entry)| entry.replay(id));
        silence.into_iter().chain(realms).collect()
    }
}

impl Entry {
    fn of(ranks: Vec<usize>) -> Entry {
        Entry { ranks, ..Entry::default() }
    }

    fn hear(&mut self, cause: &Cause) {
        if self.causes.len() < CAUSES && !self.causes.contains(cause) {
            self.causes.push(cause.clone());
        }
    }

    fn replay(&self, id: RealmId) -> impl Iterator<Item = Message> {
        let ranks = self.ranks.clone();
        let open = (id != WORLD).then_some(Message::Open { realm: id, ranks });
        let gather =
            |(round, piece): &(u64, Piece)| Said::Gather { round: *round, piece: piece.clone() };
        let left = |(&rank, &calls): (&usize, &u64)| Said::Left { rank, calls };
        let pieces = self.pieces.iter().rev().map(gather);
        let causes = self.causes.iter().cloned().map(Said::Abort);
        let others = self.others.iter().map(left);
        let said = pieces.chain(others).chain(causes).chain(self.end.clone());
        open.into_iter().chain(said.map(move |said| said.among(id)).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_not_have_heard_is_told_again() {
        let mut journal = Journal::new(3);
        let gather = |round| Said::Gather { round, piece: Piece::new(&[round as u8]) };
        for round in 0..4 {
            journal.said(&gather(round).among(WORLD));
        }
        let open = Message::Open { realm: 9, ranks: vec![2, 1] };
        let died = Said::Abort(Cause::Died { rank: 0 });
        journal.said(&open);
        journal.said(&gather(0).among(9));
        journal.heard(9, &died);
        journal.heard(WORLD, &Said::Left { rank: 0, calls: 7 });
        journal.said(&Said::Goodbye { calls: 5 }.among(WORLD));
        journal.said(&Said::Goodbye { calls: 6 }.among(WORLD));
        journal.heard(77, &died);
        let expected = [
            gather(2).among(WORLD),
            gather(3).among(WORLD),
            Said::Left { rank: 0, calls: 7 }.among(WORLD),
            Said::Goodbye { calls: 5 }.among(WORLD),
            open,
            gather(0).among(9),
            died.among(9),
        ];
        assert_eq!(journal.replay(), expected);
        assert_eq!(journal.lost().iter().collect::<Vec<_>>(), [&2], "by its number in the world");
    }

    #[test]
    fn realms_that_were_left_are_forgotten_in_the_end() {
        let mut journal = Journal::new(1);
        for realm in 1..2000 {
            journal.said(&Message::Open { realm, ranks: vec![0] });
            journal.said(&Said::Gone.among(realm));
        }
        assert_eq!(journal.realms.len(), 1 + LEFT_REALMS);
    }
}
