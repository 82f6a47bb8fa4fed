//! The verifier of groups: parts in a row, cut by the moments at which buckets become ready and are
//! done.
//!
//! A part is a proven schedule over a virtual buffer in which buckets are concatenated, so
//! what is proven of its chunks holds for every bucket's share of them: the values are right if
//! each bucket lies in one part, alone. Parts leave their links drained, so in a row they are
//! proven if all ranks run them in the same order. What remains are the words of single buckets.
//! Before a bucket is ready, nobody may touch it on that rank; when it is done there, nobody may
//! touch it any more, its last byte must be there, and its rank must know so. Where a part is run
//! between the two as a whole, that is what its own proof says of its caller's buffers. Where it is
//! cut, it is run again with the two moments in the places of the call's beginning and end.
//!
//! Channels go from part to part by themselves. Where each rank has one list, every channel has
//! connections of its own, the same in all parts. Several lists use each other's: which, is a
//! matter of the schedule. So another part uses others, and the same schedule's the same.

use super::clock::Clock;
use super::machine::{Machine, Moments};
use super::{Verified, Violation, structure};
use crate::schedule::Schedule;
use oxccl_format::SEGMENT_ALIGN;
use std::collections::BTreeMap;
use std::ops::Range;
use thiserror::Error;

/// A bucket in its part's virtual buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its number in the group.
    pub bucket: usize,
    /// Where it begins, in bytes.
    pub start: usize,
    /// Its length.
    pub len_bytes: usize,
}

/// One part of a group.
#[derive(Clone, Debug)]
pub struct GroupPart<'a> {
    /// What is proven of it alone.
    pub verified: &'a Verified,
    /// How often its instructions are run.
    pub rounds: u64,
    /// Its buckets.
    pub spans: Vec<Span>,
    /// Length of its virtual buffer.
    pub len_bytes: usize,
    /// Whose channels' connections it uses.
    pub connections: Range<usize>,
}

impl GroupPart<'_> {
    /// How many instructions all of a rank's lists have.
    pub fn len(&self, rank: usize) -> usize {
        let schedule = self.verified.schedule();
        schedule.lists_of(rank).map(|list| schedule.lists[list].len()).sum()
    }

    fn has_lists(&self) -> bool {
        self.verified.schedule().lists_per_rank > 1
    }

    /// Whether a connection has the same list of each rank at its ends in both.
    fn agrees(&self, other: &GroupPart<'_>) -> bool {
        let (one, two) = (&self.connections, &other.connections);
        let is_apart = one.end <= two.start || two.end <= one.start;
        let is_same = std::ptr::eq(self.verified, other.verified) && one.start == two.start;
        is_apart || is_same || !(self.has_lists() || other.has_lists())
    }
}

/// What a rank does in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// Waits until a bucket is ready. A bucket that is not awaited is ready from the beginning.
    Await(usize),
    /// Runs a part's instructions up to this one, from where it was.
    Run {
        /// The part.
        part: usize,
        /// How many of its rank's instructions are done then, of all its lists.
        until: usize,
    },
    /// Says that a bucket is done.
    Done(usize),
}

/// Why a group is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GroupViolation {
    /// A bucket in no part, or in several.
    #[error("bucket {bucket} is in {parts} parts")]
    Parts {
        /// The bucket.
        bucket: usize,
        /// How many.
        parts: usize,
    },
    /// A bucket does not lie where it can.
    #[error(
        "bucket {bucket} does not begin at a multiple of 64 bytes, behind its part's last bucket, or end within the part"
    )]
    Span {
        /// The bucket.
        bucket: usize,
    },
    /// A rank does not run the parts one after the other, each to its end.
    #[error("rank {rank} does not run all parts to their ends in order: step {step}")]
    Order {
        /// The rank.
        rank: usize,
        /// Its step.
        step: usize,
    },
    /// A bucket is not done once.
    #[error("rank {rank} says {times} times that bucket {bucket} is done")]
    Done {
        /// The rank.
        rank: usize,
        /// The bucket.
        bucket: usize,
        /// How often.
        times: usize,
    },
    /// Two parts of which one has several lists a rank use a channel's connections, each for other
    /// lists.
    #[error("parts {one} and {other} use the same connections for other lists")]
    Connections {
        /// A part.
        one: usize,
        /// A later one.
        other: usize,
    },
    /// A part of several rounds is cut, so that what is said after a part of its first round would
    /// be said of all. Or one of several lists, of which each is elsewhere.
    #[error("rank {rank} awaits or finishes a bucket within the rounds or lists of part {part}")]
    Cut {
        /// The rank.
        rank: usize,
        /// The part.
        part: usize,
    },
    /// A bucket is touched before it is ready or after it is done, or not whole when it is done.
    #[error("part {part}: {violation}")]
    Part {
        /// The part.
        part: usize,
        /// What is wrong, where the call's beginning and end are the moments at which its buckets
        /// are ready and done.
        violation: Violation,
    },
}

/// Proves a group of so many buckets: what each rank does, over proven parts.
///
/// # Errors
///
/// The first [`GroupViolation`] found.
pub fn verify_group(
    buckets: usize,
    parts: &[GroupPart<'_>],
    ranks: &[Vec<GroupStep>],
) -> Result<(), GroupViolation> {
    let part_of = check_spans(buckets, parts)?;
    check_connections(parts)?;
    let mut moments = vec![BTreeMap::<usize, Moments>::new(); parts.len()];
    for (rank, steps) in ranks.iter().enumerate() {
        check_order(rank, steps, parts)?;
        for (part, of_rank) in cuts(rank, steps, parts, &part_of)?.into_iter().enumerate() {
            let whole = Moments { ready: 0, done: parts[part].len(rank) };
            if of_rank == whole {
                continue;
            }
            if parts[part].rounds > 1 || parts[part].has_lists() {
                return Err(GroupViolation::Cut { rank, part });
            }
            moments[part].insert(rank, of_rank);
        }
    }
    for (part, cut) in moments.iter().enumerate().filter(|(_, cut)| !cut.is_empty()) {
        let verified = parts[part].verified;
        for in_place in [false, true].into_iter().filter(|place| !place || verified.in_place()) {
            prove_cut(verified.schedule(), in_place, cut)
                .map_err(|violation| GroupViolation::Part { part, violation })?;
        }
    }
    Ok(())
}

/// The part of each bucket.
fn check_spans(buckets: usize, parts: &[GroupPart<'_>]) -> Result<Vec<usize>, GroupViolation> {
    let mut found = vec![Vec::new(); buckets];
    for (number, part) in parts.iter().enumerate() {
        let mut end = 0;
        for span in &part.spans {
            let bucket = span.bucket;
            let last = span.start + span.len_bytes;
            let aligned = span.start.is_multiple_of(SEGMENT_ALIGN);
            if bucket >= buckets || !aligned || span.start < end || last > part.len_bytes {
                return Err(GroupViolation::Span { bucket });
            }
            end = last;
            found[bucket].push(number);
        }
    }
    match found.iter().position(|parts| parts.len() != 1) {
        Some(bucket) => Err(GroupViolation::Parts { bucket, parts: found[bucket].len() }),
        None => Ok(found.into_iter().flatten().collect()),
    }
}

/// No connection changes its lists.
fn check_connections(parts: &[GroupPart<'_>]) -> Result<(), GroupViolation> {
    if !parts.iter().any(GroupPart::has_lists) {
        return Ok(());
    }
    for (other, of_other) in parts.iter().enumerate() {
        if let Some(one) = parts[..other].iter().position(|one| !one.agrees(of_other)) {
            return Err(GroupViolation::Connections { one, other });
        }
    }
    Ok(())
}

/// All parts are run to their ends, each when the ones before it have ended.
fn check_order(
    rank: usize,
    steps: &[GroupStep],
    parts: &[GroupPart<'_>],
) -> Result<(), GroupViolation> {
    let len = |part: usize| parts[part].len(rank);
    let (mut part, mut at) = (0, 0);
    for (step, one) in steps.iter().enumerate() {
        let GroupStep::Run { part: runs, until } = *one else { continue };
        while part < parts.len() && part < runs && at == len(part) {
            (part, at) = (part + 1, 0);
        }
        if runs != part || part == parts.len() || until < at || until > len(part) {
            return Err(GroupViolation::Order { rank, step });
        }
        at = until;
    }
    while part < parts.len() && at == len(part) {
        (part, at) = (part + 1, 0);
    }
    if part == parts.len() {
        Ok(())
    } else {
        Err(GroupViolation::Order { rank, step: steps.len() })
    }
}

/// After how many of a rank's instructions all of each part's buckets are ready, and the first is
/// done.
fn cuts(
    rank: usize,
    steps: &[GroupStep],
    parts: &[GroupPart<'_>],
    part_of: &[usize],
) -> Result<Vec<Moments>, GroupViolation> {
    let mut at = vec![0; parts.len()];
    let mut done = vec![0; part_of.len()];
    let mut moments: Vec<Moments> =
        parts.iter().map(|part| Moments { ready: 0, done: part.len(rank) }).collect();
    for step in steps {
        match *step {
            GroupStep::Run { part, until } => at[part] = until,
            GroupStep::Await(bucket) => {
                let part =
                    *part_of.get(bucket).ok_or(GroupViolation::Parts { bucket, parts: 0 })?;
                moments[part].ready = moments[part].ready.max(at[part]);
            }
            GroupStep::Done(bucket) => {
                let part =
                    *part_of.get(bucket).ok_or(GroupViolation::Parts { bucket, parts: 0 })?;
                moments[part].done = moments[part].done.min(at[part]);
                done[bucket] += 1;
            }
        }
    }
    match done.iter().position(|times| *times != 1) {
        Some(bucket) => Err(GroupViolation::Done { rank, bucket, times: done[bucket] }),
        None => Ok(moments),
    }
}

/// Values are those of the part's own proof: the instructions are the same, and nothing is written
/// when a bucket is done.
fn prove_cut(
    schedule: &Schedule,
    in_place: bool,
    cut: &BTreeMap<usize, Moments>,
) -> Result<(), Violation> {
    let routes = structure::check(schedule, in_place)?;
    let mut machine = Machine::<Clock>::new(schedule, &routes, in_place);
    for (rank, moments) in cut {
        machine.set_moments(*rank, *moments);
    }
    machine.run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Encoding, catalogue, find};
    use crate::collective::{Collective, Kind, Order};
    use crate::schedule::{Flag, Instruction, Lane, Operand, SLOTS};
    use crate::topology::Placement;
    use crate::verify::verify;

    const RANKS: usize = 3;

    fn proven(kind: Kind, algorithm: Algorithm, encoding: Encoding) -> Verified {
        let entry = find(kind, algorithm, encoding).unwrap();
        let (collective, placement) = (Collective::new(kind, RANKS), Placement::one_node(RANKS));
        let schedule = entry.schedule(collective, placement, Order::Any, SLOTS).unwrap();
        verify(schedule, Order::Any, entry.in_place).unwrap()
    }

    /// A part with one bucket, of this number.
    fn part(verified: &Verified, bucket: usize) -> GroupPart<'_> {
        let spans = vec![Span { bucket, start: 0, len_bytes: 100 }];
        GroupPart { verified, rounds: 1, spans, len_bytes: 128, connections: 0..2 }
    }

    /// Awaits each part's buckets, runs it, and says that they are done.
    fn steps(parts: &[GroupPart<'_>], rank: usize) -> Vec<GroupStep> {
        let of_part = |(number, part): (usize, &GroupPart<'_>)| {
            let until = part.len(rank);
            let buckets = part.spans.iter().map(|span| span.bucket);
            let mut steps: Vec<GroupStep> = buckets.clone().map(GroupStep::Await).collect();
            steps.push(GroupStep::Run { part: number, until });
            steps.extend(buckets.map(GroupStep::Done));
            steps
        };
        parts.iter().enumerate().flat_map(of_part).collect()
    }

    fn all_steps(parts: &[GroupPart<'_>]) -> Vec<Vec<GroupStep>> {
        (0..RANKS).map(|rank| steps(parts, rank)).collect()
    }

    /// With one rank's first part cut: `ready` and `done` after so many instructions.
    fn cut(parts: &[GroupPart<'_>], rank: usize, ready: usize, done: usize) -> Vec<Vec<GroupStep>> {
        let mut ranks = all_steps(parts);
        let bucket = parts[0].spans[0].bucket;
        let until = parts[0].len(rank);
        let mut moments = [(ready, GroupStep::Await(bucket)), (done, GroupStep::Done(bucket))];
        moments.sort_by_key(|moment| moment.0);
        let cut = moments
            .into_iter()
            .flat_map(|(until, what)| [GroupStep::Run { part: 0, until }, what])
            .chain([GroupStep::Run { part: 0, until }]);
        ranks[rank].splice(0..3, cut);
        ranks
    }

    #[test]
    fn parts_in_a_row_are_accepted() {
        let ring = proven(Kind::AllReduce, Algorithm::Ring, Encoding::Slots);
        let gather = proven(Kind::AllGather, Algorithm::Direct, Encoding::Ll);
        let mut parts = [part(&ring, 1), part(&gather, 0)];
        parts[0].rounds = 7;
        parts[0].spans.push(Span { bucket: 2, start: 128, len_bytes: 0 });
        assert_eq!(verify_group(3, &parts, &all_steps(&parts)), Ok(()));
    }

    /// Which memory of its own rank or of others an instruction touches.
    fn touches(instruction: &Instruction) -> bool {
        let Instruction::ReduceCopy { sources, destinations, .. } = instruction else {
            return false;
        };
        let all = sources.iter().map(|source| &source.operand).chain(destinations);
        all.into_iter().any(|operand| {
            matches!(operand, Operand::Input(_) | Operand::Output(_)) || operand.is_window()
        })
    }

    /// Whether a rank's list reaches into another's buffers.
    fn reaches(list: &[Instruction], other: usize) -> bool {
        let into = |operand: &Operand| match operand {
            Operand::Window { peer, .. } => *peer == other,
            operand => matches!(operand, Operand::Multicast { .. }),
        };
        list.iter().any(|one| match one {
            Instruction::ReduceCopy { sources, destinations, .. } => {
                let sources = sources.iter().map(|source| &source.operand);
                sources.chain(destinations).any(into)
            }
            _ => false,
        })
    }

    /// Every schedule of the catalogue, every rank, and every place in its list: a bucket that is
    /// done before the last access, or ready after the first, is refused. Where peers reach into
    /// buffers, done needs the exit barrier, and ready must come before tokens are sent.
    #[test]
    fn words_that_are_set_too_early_or_awaited_too_late_are_refused() {
        let mut refused = 0;
        for entry in catalogue().filter(|entry| entry.kind != Kind::Barrier) {
            let collective = match entry.kind {
                Kind::SendRecv => Collective::send_recv(RANKS, 0, 1),
                kind => Collective::new(kind, RANKS),
            };
            let placement = Placement::one_node(RANKS);
            let Ok(schedule) = entry.schedule(collective, placement, Order::Any, SLOTS) else {
                continue;
            };
            let name = format!("{} {} {}", entry.kind, entry.algorithm, entry.encoding);
            let verified = verify(schedule, Order::Any, entry.in_place).unwrap();
            let parts = [part(&verified, 0)];
            for rank in 0..RANKS {
                let list = &verified.schedule().lists[rank];
                let Some(own) = list.iter().rposition(touches) else { continue };
                let reached =
                    (0..RANKS).any(|peer| reaches(&verified.schedule().lists[peer], rank));
                // Where peers reach in, they are known to be done after the first wait of the last
                // barrier at the earliest.
                let is_exit = |one: &Instruction| matches!(one, Instruction::Wait { flag: Flag::Tail(link), .. } if link.lane == Lane::Sync);
                let exit = list.iter().skip(own).position(is_exit).map(|at| own + at);
                let last = exit.filter(|_| reached).unwrap_or(own);
                let is_first = |one: &Instruction| match one {
                    Instruction::ReduceCopy { sources, .. } if reached => {
                        touches(one) || sources[0].operand == Operand::Tokens
                    }
                    _ => touches(one),
                };
                let first = list.iter().position(is_first).unwrap_or(own);
                for done in [last / 2, last] {
                    let found = verify_group(1, &parts, &cut(&parts, rank, 0, done));
                    assert!(
                        matches!(found, Err(GroupViolation::Part { part: 0, .. })),
                        "{name}, rank {rank}: done after {done} of {}: {found:?}",
                        list.len()
                    );
                    refused += 1;
                }
                for ready in first + 1..list.len().min(first + 4) {
                    let found = verify_group(1, &parts, &cut(&parts, rank, ready, list.len()));
                    assert!(
                        matches!(found, Err(GroupViolation::Part { part: 0, .. })),
                        "{name}, rank {rank}: ready after {ready} of {}: {found:?}",
                        list.len()
                    );
                    refused += 1;
                }
                assert_eq!(verify_group(1, &parts, &cut(&parts, rank, 0, list.len())), Ok(()));
            }
        }
        assert!(refused > 200, "only {refused}");
    }

    #[test]
    fn what_is_left_out_doubled_or_turned_around_is_refused() {
        let ring = proven(Kind::AllReduce, Algorithm::Ring, Encoding::Slots);
        let parts = [part(&ring, 0), part(&ring, 1)];
        let whole = all_steps(&parts);
        let with = |change: &dyn Fn(&mut Vec<GroupStep>)| {
            let mut ranks = whole.clone();
            change(&mut ranks[1]);
            verify_group(2, &parts, &ranks).unwrap_err()
        };
        for (step, one) in whole[1].iter().enumerate() {
            let missing = match *one {
                // What is not awaited is ready.
                GroupStep::Await(_) => continue,
                GroupStep::Run { .. } => with(&|steps| {
                    steps.remove(step);
                }),
                GroupStep::Done(bucket) => {
                    let found = with(&|steps| {
                        steps.remove(step);
                    });
                    assert_eq!(found, GroupViolation::Done { rank: 1, bucket, times: 0 });
                    with(&|steps| steps.push(GroupStep::Done(bucket)))
                }
            };
            let expected = matches!(
                missing,
                GroupViolation::Order { rank: 1, .. } | GroupViolation::Done { times: 2, .. }
            );
            assert!(expected, "{missing}");
        }
        let turned = with(&|steps| steps.rotate_left(3));
        assert!(matches!(turned, GroupViolation::Order { rank: 1, .. }), "{turned}");
    }

    #[test]
    fn buckets_lie_apart_and_in_one_part() {
        let ring = proven(Kind::AllReduce, Algorithm::Ring, Encoding::Slots);
        let check = |spans: &[(usize, usize, usize)]| {
            let mut one = part(&ring, 0);
            let span = |&(bucket, start, len_bytes)| Span { bucket, start, len_bytes };
            one.spans = spans.iter().map(span).collect();
            verify_group(2, &[one.clone()], &all_steps(&[one]))
        };
        assert_eq!(check(&[(0, 0, 64), (1, 64, 64)]), Ok(()));
        let bad = |bucket| Err(GroupViolation::Span { bucket });
        assert_eq!(check(&[(0, 0, 65), (1, 64, 64)]), bad(1));
        assert_eq!(check(&[(0, 0, 8), (1, 8, 64)]), bad(1));
        assert_eq!(check(&[(0, 0, 64), (1, 64, 65)]), bad(1));
        assert_eq!(check(&[(0, 0, 64)]), Err(GroupViolation::Parts { bucket: 1, parts: 0 }));
        let twice = check(&[(0, 0, 64), (0, 64, 1), (1, 128, 0)]);
        assert_eq!(twice, Err(GroupViolation::Parts { bucket: 0, parts: 2 }));
    }

    /// A gather of two lists a rank, which use each other's connections.
    fn by_lists() -> Verified {
        let gather = proven(Kind::AllGather, Algorithm::Direct, Encoding::Slots);
        let one = gather.schedule();
        let lists = one.lists.iter().flat_map(|list| [list.clone(), Vec::new()]).collect();
        verify(Schedule { lists_per_rank: 2, lists, ..one.clone() }, Order::Any, false).unwrap()
    }

    #[test]
    fn several_lists_have_connections_of_their_own() {
        let (lists, gather) =
            (by_lists(), proven(Kind::AllGather, Algorithm::Direct, Encoding::Slots));
        let check = |one: (&Verified, Range<usize>), other: (&Verified, Range<usize>)| {
            let mut parts = [part(one.0, 0), part(other.0, 1)];
            (parts[0].connections, parts[1].connections) = (one.1, other.1);
            verify_group(2, &parts, &all_steps(&parts))
        };
        assert_eq!(check((&gather, 0..2), (&gather, 1..3)), Ok(()));
        assert_eq!(check((&lists, 2..4), (&gather, 0..2)), Ok(()));
        assert_eq!(check((&lists, 2..4), (&lists, 2..6)), Ok(()));
        let refused = Err(GroupViolation::Connections { one: 0, other: 1 });
        assert_eq!(check((&lists, 1..3), (&gather, 0..2)), refused);
        assert_eq!(check((&gather, 0..2), (&lists, 0..2)), refused);
        assert_eq!(check((&lists, 0..2), (&lists, 1..3)), refused);
        let again = by_lists();
        assert_eq!(check((&lists, 0..2), (&again, 0..2)), refused);
    }

    #[test]
    fn a_part_of_several_lists_is_not_cut() {
        let lists = by_lists();
        let parts = [part(&lists, 0)];
        let end = parts[0].len(1);
        assert_eq!(verify_group(1, &parts, &cut(&parts, 1, 0, end)), Ok(()));
        let refused = Err(GroupViolation::Cut { rank: 1, part: 0 });
        assert_eq!(verify_group(1, &parts, &cut(&parts, 1, 1, end)), refused);
        assert_eq!(verify_group(1, &parts, &cut(&parts, 1, 0, end - 1)), refused);
    }

    #[test]
    fn a_part_of_several_rounds_is_not_cut() {
        let ring = proven(Kind::AllReduce, Algorithm::Ring, Encoding::Slots);
        let mut parts = [part(&ring, 0)];
        parts[0].rounds = 2;
        let end = ring.schedule().lists[2].len();
        let found = verify_group(1, &parts, &cut(&parts, 2, 0, end - 1));
        assert_eq!(found, Err(GroupViolation::Cut { rank: 2, part: 0 }));
    }
}
