//! Reads the ranks' call logs.

use super::buckets;
use crate::call::{Difference, Record};
use crate::device::Control;
use crate::error::Error;

/// A rank's last collectives, oldest first.
pub(super) fn recent(control: &Control, rank: usize) -> Vec<Record> {
    let log = control.log(rank);
    let records = (log.oldest()..=log.entered()).filter_map(|number| log.record(number));
    records
        .filter_map(|record| Record::decode(&record))
        .filter(|call| call.collective != 0)
        .collect()
}

/// The first remembered collective in which ranks differ, if this one made it; otherwise the first
/// message.
pub(in crate::engine) fn mismatch(control: &Control, own: usize) -> Option<Error> {
    find(control, own).map(|found| found.error)
}

/// A mismatch.
pub(super) struct Found {
    pub(super) error: Error,
    /// Whether it is known who is the odd one. Calls that other ranks have yet to make, or to tell
    /// of, may show it.
    pub(super) is_decided: bool,
}

/// The same as [`mismatch`].
pub(super) fn find(control: &Control, own: usize) -> Option<Found> {
    let decided = |error| Found { error, is_decided: true };
    collective(control, own).or_else(|| buckets::messages(control, own).map(decided))
}

/// A rank's call of some number.
type Made<'a> = (usize, &'a Record);

fn collective(control: &Control, own: usize) -> Option<Found> {
    let all: Vec<Vec<Record>> = (0..control.ranks()).map(|rank| recent(control, rank)).collect();
    all[own].iter().find_map(|mine| {
        let number = mine.collective;
        let of_number =
            |calls: &'_ [Record]| calls.binary_search_by_key(&number, |call| call.collective).ok();
        let made: Vec<Made<'_>> = all
            .iter()
            .enumerate()
            .filter_map(|(rank, calls)| Some((rank, &calls[of_number(calls)?])))
            .collect();
        differing(control, (own, mine), &made)
    })
}

/// How two ranks' calls differ, and in which bucket of a group.
fn difference(
    control: &Control,
    one: Made<'_>,
    other: Made<'_>,
) -> Option<(Option<usize>, Difference)> {
    let difference = one.1.difference(other.1)?;
    let bucket = buckets::collectives(control, one, other);
    Some(bucket.map_or((None, difference), |(at, of)| (Some(at), of)))
}

/// The mismatch of calls with one number, if they are not all alike.
fn differing(control: &Control, mine: Made<'_>, made: &[Made<'_>]) -> Option<Found> {
    made.iter().find(|other| mine.1.difference(other.1).is_some())?;
    // What most ranks called is right; where there is no such thing, what this one did.
    let alike =
        |one: &Made<'_>| made.iter().filter(|other| one.1.difference(other.1).is_none()).count();
    let most = made.iter().map(alike).max()?;
    let right = match alike(&mine) == most {
        true => mine,
        false => *made.iter().find(|one| alike(one) == most)?,
    };
    let (odd, (bucket, (argument, ours, theirs))) =
        made.iter().find_map(|other| Some((other.0, difference(control, right, *other)?)))?;
    let error = Error::Mismatch {
        call: right.1.collective,
        bucket,
        argument,
        rank: odd,
        theirs,
        compared_with: right.0,
        ours,
        what: right.1.text().into(),
    };
    let is_decided = most * 2 > made.len() || made.len() == control.ranks();
    Some(Found { error, is_decided })
}
