//! How a communicator is closed: all ranks compare what they have called, so that nothing stays
//! unnoticed in which nobody waited. And how it leaves when its process ends before it was dropped.

use super::Engine;
use super::diagnosis::{Ranks, mismatch, words_of_groups};
use super::links::Links;
use super::tally::{Closing, Digest};
use crate::call::{Meeting, Record, What};
use crate::error::Error;
use oxccl_transports::Error as Transport;
use oxccl_transports::exit::{Leave, Stage, leaves_at_exit};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The farthest deadline: what no rank waits for.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The most peers whose messages are told when counts are compared one by one.
const TOLD_PEERS: usize = 1 << 15;

/// Messages to and from a peer.
type Exchanged = (usize, u64, u64);

/// What leaves in order when the process ends with status 0, whatever thread has the engine.
#[derive(Debug)]
pub(super) struct Ending {
    ranks: Arc<Ranks>,
    links: Option<Arc<Links>>,
}

impl Ending {
    pub(super) fn at_exit(ranks: &Arc<Ranks>, links: Option<&Arc<Links>>) -> Arc<Ending> {
        let ending = Arc::new(Ending { ranks: ranks.clone(), links: links.cloned() });
        leaves_at_exit(&ending);
        ending
    }
}

impl Leave for Ending {
    fn leave(&self, stage: Stage) {
        match (stage, &self.links) {
            (Stage::Tell, _) => self.ranks.leave_at_exit(),
            (Stage::Deliver, Some(links)) if self.ranks.has_left() => links.finish(),
            (Stage::Deliver | Stage::Serve, _) => {}
        }
    }
}

impl Engine {
    /// Ends the communicator on all ranks together, once they have compared their calls.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        let (number, record) = self.meet(Meeting::Close)?;
        if let Err(error) = self.compare(&record) {
            self.ranks.end(&error, number);
            return Err(error);
        }
        self.ranks.control.log(self.ranks.rank).leave(number);
        self.ranks.close(self.tally.collectives());
        Ok(())
    }

    /// Begins, once this rank's calls are done, something that all ranks do together: it is in the
    /// log, and counts among the collectives, so that ranks which do something else notice. Its
    /// number.
    pub(super) fn meet(&mut self, meeting: Meeting) -> Result<(u64, Record), Error> {
        self.ranks.check()?;
        self.backend.wait();
        self.ranks.check()?;
        self.ranks.poll.limit_none();
        let number = self.tally.launch();
        let collective = self.tally.collective(Digest::of(&meeting)).collective;
        let record = Record { collective, what: What::Meeting(meeting) };
        self.ranks.control.own_log().enter(number, &record.encode());
        // What comes now is waiting.
        self.ranks.control.own_badge().wait(number);
        Ok((number, record))
    }

    /// Compares all ranks' calls. All ranks come to the same result.
    fn compare(&mut self, close: &Record) -> Result<(), Error> {
        let timeout = self.ranks.poll.timeout().min(LONGEST);
        let deadline = Instant::now() + timeout;
        let all = self.told(close, &self.tally.closing().encode(), deadline)?;
        let all: Option<Vec<Closing>> = all.iter().map(|bytes| Closing::decode(bytes)).collect();
        let all = all.unwrap_or_default();
        let alike = !all.is_empty() && Closing::agree(&all);
        if alike && Closing::balance(&all) {
            return Ok(());
        }
        // Where: told by the logs, or message by message.
        let report = {
            let control = &self.ranks.control;
            control.report(&words_of_groups(control, self.ranks.rank))
        };
        let told = encode(&report, self.tally.messages());
        let details = self.told(close, &told, deadline)?;
        let mut messages = Vec::new();
        for (rank, bytes) in details.iter().enumerate() {
            let (report, exchanged) = decode(bytes).unwrap_or_default();
            if self.ranks.control.is_mirror(rank) {
                self.ranks.control.take_report(rank, report);
            }
            messages.push(exchanged);
        }
        let mismatch = mismatch(&self.ranks.control, self.ranks.rank);
        let forgotten = || match alike {
            true => unreceived(&messages),
            false => Some(self.forgotten(close, &all)),
        };
        mismatch.or_else(forgotten).map_or(Ok(()), Err)
    }

    /// Tells all ranks, and hears from all.
    pub(super) fn told(
        &mut self,
        close: &Record,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let all = self.bootstrap.all_gather(bytes, deadline);
        all.map_err(|error| self.unheard(error, close))
    }

    /// Why what all ranks were to tell did not come.
    pub(super) fn unheard(&self, error: Transport, asked: &Record) -> Error {
        let during = || asked.text();
        match error {
            // Whoever noticed a difference has ended all; the logs say more.
            Transport::Stopped(cause) => self.ranks.differing(asked).unwrap_or_else(|| {
                // Whoever knows more has told it.
                let cause = self.ranks.liveness.cause().unwrap_or(cause);
                Error::from_cause(cause, during())
            }),
            Transport::Left { rank, calls } => Error::Left { rank, calls, during: during() },
            Transport::Timeout { .. } => self.ranks.late(asked),
            other => other.into(),
        }
    }

    /// The logs no longer know in what the ranks differ.
    fn forgotten(&self, close: &Record, all: &[Closing]) -> Error {
        let own = self.ranks.rank;
        let mine = all[own];
        let differs =
            |one: &Closing| (one.collectives, one.history) != (mine.collectives, mine.history);
        let rank = all.iter().position(differs).unwrap_or(own);
        let text = |one: &Closing| {
            format!("{} calls, hashed to {:016x}", one.collectives - 1, one.history)
        };
        Error::Mismatch {
            call: close.collective,
            bucket: None,
            argument: "what was called before the last calls that are remembered",
            rank,
            theirs: text(&all[rank]),
            compared_with: own,
            ours: text(&mine),
            what: close.text().into(),
        }
    }
}

/// The first pair of ranks of which the one has sent what the other has not received, or has
/// received more.
fn unreceived(messages: &[Vec<Exchanged>]) -> Option<Error> {
    let between = |rank: usize, peer: usize| {
        let found = messages[rank].iter().find(|(other, ..)| *other == peer);
        found.map_or((0, 0), |(_, sent, received)| (*sent, *received))
    };
    let ranks = messages.len();
    (0..ranks).find_map(|one| {
        messages[one].iter().find_map(|(other, sent, received)| {
            if *other >= ranks {
                return None;
            }
            let (sent_back, arrived) = between(*other, one);
            if *sent != arrived {
                let (sender, receiver, sent, received) = (one, *other, *sent, arrived);
                return Some(Error::Unreceived { sender, receiver, sent, received });
            }
            let (sender, receiver, sent, received) = (*other, one, sent_back, *received);
            (sent != received).then_some(Error::Unreceived { sender, receiver, sent, received })
        })
    })
}

/// A rank's report and its messages.
fn encode(report: &[u8], messages: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = (report.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(report);
    let any = messages.iter().enumerate().filter(|(_, (sent, received))| sent + received > 0);
    for (peer, (sent, received)) in any.take(TOLD_PEERS) {
        for word in [peer as u64, *sent, *received] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<(&[u8], Vec<Exchanged>)> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    let (report, rest) = rest.split_at_checked(len)?;
    let (words, _) = rest.as_chunks::<8>();
    let word = |word: &[u8; 8]| u64::from_le_bytes(*word);
    let exchanged = words
        .chunks_exact(3)
        .map(|one| (word(&one[0]) as usize, word(&one[1]), word(&one[2])))
        .collect();
    Some((report, exchanged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_is_found() {
        let told: Vec<Vec<Exchanged>> = [
            vec![(0, 0), (2, 1), (0, 0)],
            vec![(1, 2), (0, 0), (0, 0)],
            vec![(0, 0), (0, 0), (0, 0)],
        ]
        .iter()
        .map(|messages| decode(&encode(&[1, 2, 3], messages)).unwrap().1)
        .collect();
        assert!(unreceived(&told).is_none());
        for (rank, peer, sent, received) in [(2, 1, 1, 0), (1, 2, 0, 1), (0, 1, 3, 1)] {
            let mut told = told.clone();
            told[rank].retain(|(other, ..)| *other != peer);
            told[rank].push((peer, sent, received));
            let Some(Error::Unreceived { sender, receiver, .. }) = unreceived(&told) else {
                panic!("{told:?}");
            };
            let ends = if (rank, peer) == (1, 2) { (2, 1) } else { (rank, peer) };
            assert_eq!((sender, receiver), ends);
        }
        assert!(decode(&[9, 0, 0, 0, 0, 0, 0, 0, 1]).is_none());
    }
}
