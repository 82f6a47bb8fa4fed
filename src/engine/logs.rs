//! Reads the ranks' call logs.

use super::group::differences;
use crate::call::Described;
use crate::device::Control;
use crate::error::Error;

/// A rank's last collectives, oldest first.
pub(super) fn recent(control: &Control, rank: usize) -> Vec<Described> {
    let log = control.log(rank);
    let records = (log.oldest()..=log.entered()).filter_map(|number| log.record(number));
    records
        .filter_map(|record| Described::decode(&record))
        .filter(|call| call.collective != 0)
        .collect()
}

/// What differs: its name, ours, theirs.
pub(super) type Difference = (&'static str, String, String);

/// The first remembered collective in which this rank and another differ; otherwise the first message.
pub(super) fn mismatch(control: &Control, own: usize) -> Option<Error> {
    collective(control, own).or_else(|| differences::messages(control, own))
}

fn collective(control: &Control, own: usize) -> Option<Error> {
    let ours = recent(control, own);
    let others =
        (0..control.ranks()).filter(|rank| *rank != own).map(|rank| (rank, recent(control, rank)));
    let differences = others.filter_map(|(rank, theirs)| {
        ours.iter().find_map(|mine| {
            let yours = theirs.iter().find(|yours| yours.collective == mine.collective)?;
            let difference = mine.difference(yours)?;
            let bucket = differences::collectives(control, (own, mine), (rank, yours));
            let (at, difference) = bucket.map_or((None, difference), |(at, of)| (Some(at), of));
            Some((mine, rank, at, difference))
        })
    });
    let (mine, rank, bucket, (argument, ours, theirs)) =
        differences.min_by_key(|(mine, rank, _, _)| (mine.collective, *rank))?;
    Some(Error::Mismatch {
        call: mine.collective,
        bucket,
        argument,
        rank,
        ours,
        theirs,
        what: mine.text(),
    })
}
