//! Lowering for copy engines: one rank's part of a verified schedule that only fetches, as copies
//! and notices, in their order.
//!
//! A notice is a word that one rank writes where another one waits for it. Who waits clears the
//! word then, so that the same one can be written again by the next call. Two words a pair are
//! enough, one for entering a call and one for leaving it, where each two ranks that have notices
//! for each other do all of the following, in this order:
//!
//! 1. tell each other that they have entered;
//! 2. wait for that, and only then read each other's buffers;
//! 3. tell each other that they are done with it;
//! 4. wait for that.
//!
//! Then nobody writes a word that was not cleared: a rank enters its next call once all of its
//! peers have told it that they are done with this one, which they do when they have cleared what
//! says that it had entered; and it says that it is done with the next one once they have entered
//! it, having cleared all of this one before. [`copies`] takes nothing else.
//!
//! Nothing is written to another rank's buffers: a rank that gives a call up has its waits ended
//! from outside, and what stands behind them in its stream happens all the same. A copy out of a
//! peer's buffer does no harm then.

use crate::length::{Length, TooLong};
use crate::schedule::{Buffer, Flag, Instruction, Layout, Operand};
use crate::verify::Verified;
use oxccl_format::Lane;
use std::collections::BTreeMap;
use thiserror::Error;

/// What a rank tells a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// It has entered the call: its input can be read.
    Entered = 0,
    /// It reads the peer's input no more.
    Done = 1,
}

/// Where a copy reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySource {
    /// This rank's input.
    Own,
    /// The input of this rank.
    Peer(usize),
}

/// What copy engines and a stream do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyAction {
    /// Tell a peer.
    Tell(usize, Notice),
    /// Wait until a peer has told that.
    Await(usize, Notice),
    /// Copy to this rank's output.
    Copy {
        /// Out of which input.
        source: CopySource,
        /// How far into the input.
        from_bytes: usize,
        /// How far into the output.
        to_bytes: usize,
        /// How much; more than nothing.
        len_bytes: usize,
    },
}

/// An action, and the number of the schedule's step that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStep {
    /// As in traces, errors and explanations.
    pub step: u32,
    /// What is done.
    pub action: CopyAction,
}

/// Why copy engines cannot carry a schedule out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotCopies {
    /// It is not made of copies and notices.
    #[error("step {step} is no copy out of an input, and no notice that ranks enter or are done")]
    Other {
        /// The first such step.
        step: u32,
    },
    /// It writes to peers' buffers.
    #[error(
        "step {step} writes to a peer's buffer, which a rank that gives up could not take back"
    )]
    WritesPeers {
        /// The first such step.
        step: u32,
    },
    /// Its ranks have several lists.
    #[error("its ranks have several lists")]
    SeveralLists,
    /// It tells ranks something at other times.
    #[error("with rank {peer} it does not enter, read and leave, once and in this order")]
    OtherOrder {
        /// The peer.
        peer: usize,
    },
    /// The buffers are longer than memory.
    #[error("its buffers come to {0}")]
    TooLong(#[from] TooLong),
}

/// How far a rank has come with a peer: what it has done, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Out,
    Entering,
    In,
    Leaving,
    Over,
}

/// One rank's part, for elements of so many bytes.
///
/// # Errors
/// [`NotCopies`]
pub fn copies(
    verified: &Verified,
    rank: usize,
    layout: &Layout,
    element_bytes: usize,
) -> Result<Vec<CopyStep>, NotCopies> {
    let schedule = verified.schedule();
    if schedule.lists_per_rank > 1 {
        return Err(NotCopies::SeveralLists);
    }
    // From here on no offset can wrap.
    Length::new(layout.end(), element_bytes)?;
    let mut steps = Vec::new();
    for (step, instruction) in schedule.steps(rank) {
        let step = step as u32;
        for action in actions(instruction, step, rank, layout, element_bytes)? {
            steps.push(CopyStep { step, action });
        }
    }
    check_order(&steps)?;
    steps.retain(|one| !matches!(one.action, CopyAction::Copy { len_bytes: 0, .. }));
    Ok(steps)
}

fn actions(
    instruction: &Instruction,
    step: u32,
    rank: usize,
    layout: &Layout,
    element_bytes: usize,
) -> Result<Vec<CopyAction>, NotCopies> {
    let other = Err(NotCopies::Other { step });
    let (sources, destinations) = match instruction {
        // Tokens go through slots, for whose credits nobody waits here: see the module.
        Instruction::Wait { flag: Flag::Head(_), .. }
        | Instruction::Signal { flag: Flag::Head(_), .. } => return Ok(Vec::new()),
        Instruction::Wait { flag: Flag::Tail(link), value: 1 } if link.lane == Lane::Sync => {
            return Ok(vec![CopyAction::Await(link.peer, Notice::Done)]);
        }
        Instruction::Signal { flag: Flag::Tail(link), value: 1 } if link.lane == Lane::Sync => {
            return Ok(vec![CopyAction::Tell(link.peer, Notice::Done)]);
        }
        Instruction::Wait { .. } | Instruction::Signal { .. } => return other,
        Instruction::ReduceCopy { sources, destinations, .. } => (&sources[..], &destinations[..]),
    };
    let [source] = sources else { return other };
    let extent = |of: usize, buffer, chunk| {
        let extent = layout.extent(of, buffer, chunk);
        (extent.offset * element_bytes, extent.count * element_bytes)
    };
    let read = match source.operand {
        Operand::Input(chunk) => Some((CopySource::Own, extent(rank, Buffer::Input, chunk))),
        Operand::Window { peer, buffer: Buffer::Input, chunk } => {
            Some((CopySource::Peer(peer), extent(peer, Buffer::Input, chunk)))
        }
        _ => None,
    };
    let action = |destination: &Operand| match (read, source.operand, *destination) {
        (_, Operand::Tokens, Operand::PeerSlot { link, message: 0, segment: 0 }) => {
            Ok(CopyAction::Tell(link.peer, Notice::Entered))
        }
        (_, Operand::Slot { link, message: 0, segment: 0 }, Operand::PeerTokens(peer))
            if link.peer == peer =>
        {
            Ok(CopyAction::Await(peer, Notice::Entered))
        }
        (_, _, Operand::Window { .. } | Operand::Multicast { .. }) => {
            Err(NotCopies::WritesPeers { step })
        }
        (Some((source, (from_bytes, len_bytes))), _, Operand::Output(chunk)) => {
            let (to_bytes, to_len) = extent(rank, Buffer::Output, chunk);
            debug_assert_eq!(to_len, len_bytes, "the verifier has compared the chunks");
            Ok(CopyAction::Copy { source, from_bytes, to_bytes, len_bytes })
        }
        _ => Err(NotCopies::Other { step }),
    };
    destinations.iter().map(action).collect()
}

/// Fails unless the rank enters, reads and leaves with each peer, once and in this order.
fn check_order(steps: &[CopyStep]) -> Result<(), NotCopies> {
    let mut stages: BTreeMap<usize, Stage> = BTreeMap::new();
    for one in steps {
        let (peer, from, to) = match one.action {
            CopyAction::Tell(peer, Notice::Entered) => (peer, Stage::Out, Stage::Entering),
            CopyAction::Await(peer, Notice::Entered) => (peer, Stage::Entering, Stage::In),
            CopyAction::Tell(peer, Notice::Done) => (peer, Stage::In, Stage::Leaving),
            CopyAction::Await(peer, Notice::Done) => (peer, Stage::Leaving, Stage::Over),
            CopyAction::Copy { source: CopySource::Peer(peer), .. } => (peer, Stage::In, Stage::In),
            CopyAction::Copy { source: CopySource::Own, .. } => continue,
        };
        let stage = stages.entry(peer).or_default();
        if *stage != from {
            return Err(NotCopies::OtherOrder { peer });
        }
        *stage = to;
    }
    match stages.into_iter().find(|(_, stage)| *stage != Stage::Over) {
        Some((peer, _)) => Err(NotCopies::OtherOrder { peer }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Encoding, catalogue, find};
    use crate::collective::{Collective, Kind, Order};
    use crate::schedule::SLOTS;
    use crate::topology::Placement;
    use crate::verify::verify;

    /// The entries that can be carried out so.
    fn carried_out(ranks: usize) -> Vec<String> {
        let mut taken = Vec::new();
        for entry in catalogue() {
            let collective = match entry.kind {
                Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
                kind => Collective::new(kind, ranks),
            };
            let placement = Placement::one_node(ranks);
            let made = entry.schedule(collective, placement, Order::Any, SLOTS);
            let Ok(schedule) = made else { continue };
            let (input, output) = (schedule.input, schedule.output);
            let verified = verify(schedule, Order::Any, entry.in_place).unwrap();
            let layout = Layout::even(&collective, input, output, 100, 16).unwrap();
            let all = (0..ranks).map(|rank| copies(&verified, rank, &layout, 4));
            if all.collect::<Result<Vec<_>, _>>().is_ok() {
                taken.push(format!("{} {}/{}", entry.kind, entry.algorithm, entry.encoding));
            }
        }
        taken.sort();
        taken
    }

    #[test]
    fn what_fetches_in_windows_is_taken_and_nothing_else() {
        let expected = [
            "all_gather direct/windows",
            "all_to_all pairwise/windows",
            "broadcast direct_pull/windows",
            "gather direct_pull/windows",
            "scatter direct/windows",
            "send_recv direct/windows",
        ];
        assert_eq!(carried_out(4), expected);
    }

    /// Words that are written once told and cleared once seen are never written twice, however the
    /// ranks' streams are interleaved, and copies read what was written before: several calls in a
    /// row, of different roots, over one set of words.
    #[test]
    fn words_are_cleared_before_they_are_written_again() {
        use proptest::test_runner::{Config, TestRunner};
        let kinds = [
            (Kind::AllGather, "direct"),
            (Kind::AllToAll, "pairwise"),
            (Kind::Broadcast, "direct_pull"),
            (Kind::Gather, "direct_pull"),
            (Kind::Scatter, "direct"),
        ];
        let strategy = (2..6usize, proptest::collection::vec((0..5usize, 0..6usize), 1..6));
        let choices = proptest::collection::vec(0..100usize, 1..400);
        let mut runner = TestRunner::new(Config { cases: 400, ..Config::default() });
        let checked = runner.run(&(strategy, choices), |((ranks, calls), choices)| {
            let mut lists = vec![Vec::new(); ranks];
            for (number, (which, root)) in calls.iter().enumerate() {
                let (kind, name) = kinds[*which];
                let collective = match kind.is_rooted() {
                    true => Collective::rooted(kind, ranks, root % ranks),
                    false => Collective::new(kind, ranks),
                };
                let entry = find(kind, name.parse().unwrap(), Encoding::Windows).unwrap();
                let placement = Placement::one_node(ranks);
                let schedule = entry.schedule(collective, placement, Order::Any, SLOTS).unwrap();
                let (input, output) = (schedule.input, schedule.output);
                let verified = verify(schedule, Order::Any, entry.in_place).unwrap();
                let layout = Layout::even(&collective, input, output, 64, 16).unwrap();
                for (rank, list) in lists.iter_mut().enumerate() {
                    let steps = copies(&verified, rank, &layout, 1).unwrap();
                    list.extend(steps.into_iter().map(|one| (number, one.action)));
                }
            }
            interleave(ranks, &lists, &choices);
            Ok(())
        });
        checked.unwrap();
    }

    /// Runs all lists, in an order that `choices` say.
    fn interleave(ranks: usize, lists: &[Vec<(usize, CopyAction)>], choices: &[usize]) {
        // By reader, writer and notice: the call that has been told of.
        let mut words = vec![[None; 2]; ranks * ranks];
        let mut at = vec![0; ranks];
        let mut choices = choices.iter().cycle();
        loop {
            let can = |rank: &usize| match lists[*rank].get(at[*rank]) {
                None => false,
                Some((call, CopyAction::Await(peer, notice))) => {
                    let found: Option<usize> = words[rank * ranks + peer][*notice as usize];
                    assert!(found.is_none_or(|found| found == *call), "another call's word");
                    found.is_some()
                }
                Some(_) => true,
            };
            let able: Vec<usize> = (0..ranks).filter(can).collect();
            let Some(choice) = choices.next().filter(|_| !able.is_empty()) else { break };
            let rank = able[choice % able.len()];
            let (call, action) = lists[rank][at[rank]];
            at[rank] += 1;
            match action {
                CopyAction::Tell(peer, notice) => {
                    let word = &mut words[peer * ranks + rank][notice as usize];
                    assert_eq!(*word, None, "a word that was not cleared");
                    *word = Some(call);
                }
                CopyAction::Await(peer, notice) => {
                    words[rank * ranks + peer][notice as usize] = None;
                }
                CopyAction::Copy { source: CopySource::Peer(peer), .. } => {
                    let step = lists[peer].get(at[peer].saturating_sub(1));
                    assert!(step.is_some_and(|(its, _)| *its >= call), "the peer has not entered");
                    let is_in = lists[peer].get(at[peer]).is_some_and(|(its, _)| *its == call);
                    assert!(is_in, "the peer has left the call");
                }
                CopyAction::Copy { .. } => {}
            }
        }
        let ended = (0..ranks).all(|rank| at[rank] == lists[rank].len());
        assert!(ended, "all lists end: {at:?}");
        assert!(words.iter().all(|pair| *pair == [None; 2]), "all words are cleared");
    }

    #[test]
    fn offsets_are_those_of_the_layout() {
        let collective = Collective::new(Kind::AllGather, 3);
        let entry = find(Kind::AllGather, Algorithm::Direct, Encoding::Windows);
        let placement = Placement::one_node(3);
        let schedule = entry.unwrap().schedule(collective, placement, Order::Any, SLOTS).unwrap();
        let parts = schedule.parts(16);
        let verified = verify(schedule, Order::Any, true).unwrap();
        let layout = Layout::all_gather_v(&[5, 0, 7], parts).unwrap();
        let steps = copies(&verified, 2, &layout, 4).unwrap();
        let copied: Vec<_> = steps
            .iter()
            .filter_map(|one| match one.action {
                CopyAction::Copy { source, from_bytes, to_bytes, len_bytes } => {
                    Some((source, from_bytes, to_bytes, len_bytes))
                }
                _ => None,
            })
            .collect();
        assert_eq!(
            copied,
            [(CopySource::Own, 0, 20, 28), (CopySource::Peer(0), 0, 0, 20)],
            "what is empty is left out"
        );
    }
}
