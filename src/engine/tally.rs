//! What this rank has called so far, in the words that ranks compare: in the header of each
//! message, and when they close.
//!
//! The [`Digest`] of a launch says what all ranks must agree on. The [`Tally`] chains the digests
//! of all collectives, in order, into one word, its history, which goes into the messages of the
//! next one. Ranks that once called different things therefore differ in every later message, so
//! that data of one call are never taken for another's, even where nobody waited. Messages between
//! two ranks have no number that all ranks know; they are counted, and [`Balance`] compares the
//! counts of all pairs by one word a rank.

use crate::call::Mix;
use std::hash::{Hash, Hasher};

/// An odd number whose multiples spread over all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What all ranks must agree on in a launch, hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Digest(u64);

impl Digest {
    /// Of what is agreed on.
    pub(super) fn of(agreed: &impl Hash) -> Digest {
        let mut mix = Mix::default();
        agreed.hash(&mut mix);
        Digest(mix.finish())
    }

    /// With a factor. No two factors give a call the same signature.
    #[inline]
    pub(super) fn with_factor(self, bits: u64) -> Digest {
        Digest((self.0 ^ bits).wrapping_mul(SPREAD))
    }

    /// All of it, and where it stands among the collectives.
    pub(super) fn behind(self, numbered: Numbered) -> u64 {
        Digest::of(&(self, numbered)).0
    }

    /// What messages say.
    #[inline]
    pub(super) fn word(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What one rank has called.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    rank: usize,
    /// Launches of this rank.
    launches: u64,
    /// Calls that all ranks make.
    collectives: u64,
    /// Their signatures, in order, as one word.
    history: u64,
    /// By rank: messages to it and from it.
    messages: Vec<(u64, u64)>,
    /// By rank: groups in which it and this one have messages for each other.
    exchanges: Vec<u64>,
    /// Whether all messages are counted: those of captured calls are not.
    counts_all: bool,
}

/// A collective's place among all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Numbered {
    /// Its number, from 1; 0 for what some ranks alone call.
    pub(super) collective: u64,
    /// The history before it, as [`Launch::history`](oxccl_kernels::format::Launch::history); then
    /// 0, too.
    pub(super) history: u64,
}

impl Tally {
    /// Nothing has been called.
    pub(super) fn new(rank: usize, world: usize) -> Tally {
        let (messages, exchanges) = (vec![(0, 0); world], vec![0; world]);
        let counts_all = true;
        Tally { rank, launches: 0, collectives: 0, history: 0, messages, exchanges, counts_all }
    }

    /// Launches so far.
    pub(super) fn launches(&self) -> u64 {
        self.launches
    }

    /// Counts a launch. Its number, from 1.
    #[inline]
    pub(super) fn launch(&mut self) -> u64 {
        self.launches += 1;
        self.launches
    }

    /// Counts a group in which this rank and these have messages for each other. By rank, how many
    /// there have been.
    pub(super) fn exchange(&mut self, peers: &[usize]) -> &[u64] {
        peers.iter().for_each(|peer| self.exchanges[*peer] += 1);
        &self.exchanges
    }

    /// Calls that all ranks make, so far.
    pub(super) fn collectives(&self) -> u64 {
        self.collectives
    }

    /// Adds a collective.
    #[inline]
    pub(super) fn collective(&mut self, signature: Digest) -> Numbered {
        let history = self.history >> 32;
        self.history = (self.history ^ signature.0).wrapping_mul(SPREAD);
        self.collectives += 1;
        Numbered { collective: self.collectives, history }
    }

    /// Adds a message of which this rank is one end.
    #[inline]
    pub(super) fn message(&mut self, sender: usize, receiver: usize) {
        if sender == self.rank {
            self.messages[receiver].0 += 1;
        } else {
            self.messages[sender].1 += 1;
        }
    }

    /// Messages may come and go that nobody counts.
    pub(super) fn lose_count(&mut self) {
        self.counts_all = false;
    }

    /// What this rank tells the others when it closes.
    pub(super) fn closing(&self) -> Closing {
        let sent = self.messages.iter().enumerate().map(|(peer, (sent, _))| {
            let pair = pair_word(self.rank, peer);
            pair.wrapping_mul(*sent)
        });
        let received = self.messages.iter().enumerate().map(|(peer, (_, received))| {
            let pair = pair_word(peer, self.rank);
            pair.wrapping_mul(*received).wrapping_neg()
        });
        Closing {
            collectives: self.collectives,
            history: self.history,
            balance: sent.chain(received).fold(0, u64::wrapping_add),
            counts_all: self.counts_all,
        }
    }

    /// By rank: messages to it and from it.
    pub(super) fn messages(&self) -> &[(u64, u64)] {
        &self.messages
    }
}

/// A word of its own for each ordered pair of ranks.
fn pair_word(sender: usize, receiver: usize) -> u64 {
    let mut mix = Mix::default();
    (sender, receiver).hash(&mut mix);
    mix.finish() | 1
}

/// What a rank tells the others when it closes, in a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closing {
    pub(super) collectives: u64,
    pub(super) history: u64,
    /// The pairs' words, each as often as this rank has sent, less those of what it has received:
    /// over all ranks, nothing.
    pub(super) balance: u64,
    pub(super) counts_all: bool,
}

impl Closing {
    /// Bytes of one.
    const LEN_BYTES: usize = 25;

    pub(super) fn encode(&self) -> Vec<u8> {
        let words = [self.collectives, self.history, self.balance];
        let words = words.into_iter().flat_map(u64::to_le_bytes);
        words.chain([u8::from(self.counts_all)]).collect()
    }

    /// `None` if these bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Closing> {
        let bytes: &[u8; Self::LEN_BYTES] = bytes.try_into().ok()?;
        let (words, flag) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        let counts_all = *flag == [1];
        Some(Closing { collectives: word(0), history: word(1), balance: word(2), counts_all })
    }

    /// Whether all ranks have called the same.
    pub(super) fn agree(all: &[Closing]) -> bool {
        all.iter().all(|one| (one.collectives, one.history) == (all[0].collectives, all[0].history))
    }

    /// Whether each message that was sent has been received, as far as they are counted.
    pub(super) fn balance(all: &[Closing]) -> bool {
        let sum = all.iter().fold(0, |sum: u64, one| sum.wrapping_add(one.balance));
        sum == 0 || all.iter().any(|one| !one.counts_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_count_in_all_their_bits() {
        let one = Digest::of(&7u32);
        let bits = [0, 1, 2, 1 << 32, 2 << 32, u64::MAX, (-2i64) as u64, 0x3ff0_0000_3ff0_0000];
        for (at, a) in bits.iter().enumerate() {
            for b in &bits[..at] {
                let (a, b) = (one.with_factor(*a), one.with_factor(*b));
                assert_ne!(a, b);
                assert_ne!(a.word(), b.word());
            }
        }
    }

    #[test]
    fn what_was_once_different_stays_so() {
        let [mut one, mut other] = [Tally::new(0, 2), Tally::new(1, 2)];
        let calls = [Digest::of(&1u32), Digest::of(&2u32)];
        assert_eq!(one.collective(calls[0]).history, other.collective(calls[0]).history);
        one.collective(calls[0]);
        other.collective(calls[1]);
        for _ in 0..1000 {
            let (a, b) = (one.collective(calls[0]), other.collective(calls[0]));
            assert_eq!(a.collective, b.collective);
            assert_ne!(a.history, b.history);
        }
        assert!(!Closing::agree(&[one.closing(), other.closing()]));
        assert!(Closing::agree(&[one.closing(), one.closing()]));
    }

    #[test]
    fn messages_balance_by_pairs() {
        let mut ranks: Vec<Tally> = (0..3).map(|rank| Tally::new(rank, 3)).collect();
        let closing = |ranks: &[Tally]| ranks.iter().map(Tally::closing).collect::<Vec<_>>();
        for (sender, receiver) in [(0, 1), (1, 0), (2, 1), (2, 1)] {
            ranks[sender].message(sender, receiver);
            assert!(!Closing::balance(&closing(&ranks)));
            ranks[receiver].message(sender, receiver);
            assert!(Closing::balance(&closing(&ranks)));
        }
        // As many were sent as received, but not by these pairs.
        ranks[0].message(0, 1);
        ranks[1].message(2, 1);
        assert!(!Closing::balance(&closing(&ranks)));
        ranks[0].lose_count();
        assert!(Closing::balance(&closing(&ranks)));
        let one = ranks[2].closing();
        assert_eq!(Closing::decode(&one.encode()), Some(one));
        assert_eq!(Closing::decode(&one.encode()[1..]), None);
    }
}
