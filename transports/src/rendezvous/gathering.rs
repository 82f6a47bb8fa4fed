//! The exchanges under way, as the server collects them: each rank gets the pieces of all in few
//! messages, so that a thousand ranks are told a thousand times and not a million.

use std::collections::BTreeMap;

use crate::rendezvous::message::{MESSAGE_LIMIT_BYTES, Piece, Said};

/// What a message has besides its pieces, at most.
const FRAME_BYTES: usize = 48;

/// What a piece has besides its bytes, at most.
const PIECE_BYTES: usize = 16;

/// A rank's piece is of another exchange than its next.
#[derive(Debug, PartialEq)]
pub(super) struct OutOfTurn;

/// The exchanges of all ranks.
#[derive(Debug)]
pub(super) struct Gathering {
    /// Each rank's next exchange, if that is known.
    next: Vec<Option<u64>>,
    /// Those for which some ranks' pieces are missing or not told yet.
    rounds: BTreeMap<u64, Round>,
}

#[derive(Debug, Default)]
struct Round {
    come: usize,
    untold: Vec<(usize, Piece)>,
    untold_bytes: usize,
}

impl Gathering {
    pub(super) fn new(world: usize) -> Gathering {
        Gathering { next: vec![Some(0); world], rounds: BTreeMap::new() }
    }

    /// Of exchanges that have begun elsewhere: each rank tells its last pieces again.
    pub(super) fn resumed(world: usize) -> Gathering {
        Gathering { next: vec![None; world], rounds: BTreeMap::new() }
    }

    /// Takes a piece. What is to be told now: if it was the last one, or if no more fits into a
    /// message.
    pub(super) fn add(
        &mut self,
        rank: usize,
        number: u64,
        piece: Piece,
    ) -> Result<Vec<Said>, OutOfTurn> {
        if self.next[rank].is_some_and(|next| next != number) {
            return Err(OutOfTurn);
        }
        self.next[rank] = number.checked_add(1);
        let round = self.rounds.entry(number).or_default();
        let mut told = Vec::new();
        let bytes = piece.len_bytes() + PIECE_BYTES;
        if round.untold_bytes + bytes + FRAME_BYTES > MESSAGE_LIMIT_BYTES {
            told.extend(round.tell(number));
        }
        round.come += 1;
        round.untold.push((rank, piece));
        round.untold_bytes += bytes;
        if round.come == self.next.len() {
            told.extend(round.tell(number));
            // All have been told those before it.
            self.rounds.retain(|&other, _| other > number);
        }
        Ok(told)
    }

    /// Whether there are pieces that nobody has been told.
    pub(super) fn has_untold(&self) -> bool {
        self.rounds.values().any(|round| !round.untold.is_empty())
    }

    /// Takes all of them, so that whoever waits in vain knows for whom.
    pub(super) fn tell(&mut self) -> Vec<Said> {
        self.rounds.iter_mut().filter_map(|(&number, round)| round.tell(number)).collect()
    }
}

impl Round {
    fn tell(&mut self, round: u64) -> Option<Said> {
        self.untold_bytes = 0;
        let pieces = std::mem::take(&mut self.untold);
        (!pieces.is_empty()).then_some(Said::Gathered { round, pieces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::message::PIECE_LIMIT_BYTES;

    fn piece(byte: u8) -> Piece {
        Piece::new(&[byte])
    }

    fn told(round: u64, ranks: &[usize]) -> Said {
        let pieces = ranks.iter().map(|&rank| (rank, piece(rank as u8))).collect();
        Said::Gathered { round, pieces }
    }

    #[test]
    fn a_complete_exchange_is_told_at_once() {
        let mut gathering = Gathering::new(3);
        assert_eq!(gathering.add(2, 0, piece(2)), Ok(vec![]));
        assert_eq!(gathering.add(0, 0, piece(0)), Ok(vec![]));
        assert_eq!(gathering.add(0, 1, piece(0)), Ok(vec![]), "one is ahead");
        assert_eq!(gathering.add(1, 0, piece(1)), Ok(vec![told(0, &[2, 0, 1])]));
        assert!(gathering.has_untold());
        assert_eq!(gathering.tell(), [told(1, &[0])]);
        assert!(!gathering.has_untold());
        assert_eq!(gathering.tell(), []);
        assert_eq!(gathering.add(2, 1, piece(2)), Ok(vec![]));
        assert_eq!(gathering.add(1, 1, piece(1)), Ok(vec![told(1, &[2, 1])]));
    }

    #[test]
    fn exchanges_are_given_in_order_and_once() {
        let mut gathering = Gathering::new(2);
        assert_eq!(gathering.add(0, 1, piece(0)), Err(OutOfTurn));
        assert_eq!(gathering.add(0, 0, piece(0)), Ok(vec![]));
        assert_eq!(gathering.add(0, 0, piece(0)), Err(OutOfTurn));
    }

    #[test]
    fn exchanges_go_on_where_they_were() {
        let mut gathering = Gathering::resumed(2);
        assert_eq!(gathering.add(0, 6, piece(0)), Ok(vec![]));
        assert_eq!(gathering.add(0, 7, piece(0)), Ok(vec![]));
        assert_eq!(gathering.add(1, 5, piece(1)), Ok(vec![]));
        assert_eq!(gathering.add(1, 6, piece(1)), Ok(vec![told(6, &[0, 1])]));
        assert_eq!(gathering.tell(), [told(7, &[0])], "nobody waits for those before");
        assert_eq!(gathering.add(1, 6, piece(1)), Err(OutOfTurn));
        assert_eq!(gathering.add(1, 7, piece(1)), Ok(vec![told(7, &[1])]));
    }

    #[test]
    fn every_message_has_its_limit() {
        let mut gathering = Gathering::new(40);
        let sizes = [PIECE_LIMIT_BYTES, 0, 1000, PIECE_LIMIT_BYTES / 3].into_iter().cycle();
        let mut ranks = Vec::new();
        for (rank, size) in (0..40).zip(sizes) {
            for message in gathering.add(rank, 0, Piece::new(&vec![7; size])).unwrap() {
                assert!(message.clone().among(u64::MAX).encode().len() <= MESSAGE_LIMIT_BYTES + 8);
                let Said::Gathered { pieces, .. } = message else { panic!("{message:?}") };
                ranks.extend(pieces.into_iter().map(|(rank, _)| rank));
            }
        }
        assert_eq!(ranks, (0..40).collect::<Vec<_>>());
    }
}
