//! Reads the ranks' call logs.

use crate::call::Described;
use crate::device::Staging;
use crate::error::Error;

/// A rank's last collectives, oldest first.
pub(super) fn recent(staging: &Staging, rank: usize) -> Vec<Described> {
    let log = staging.log(rank);
    let records = (log.oldest()..=log.entered()).filter_map(|number| log.record(number));
    records
        .filter_map(|record| Described::decode(&record))
        .filter(|call| call.collective != 0)
        .collect()
}

/// The first remembered collective in which this rank and another differ.
pub(super) fn mismatch(staging: &Staging, own: usize) -> Option<Error> {
    let ours = recent(staging, own);
    let others =
        (0..staging.ranks()).filter(|rank| *rank != own).map(|rank| (rank, recent(staging, rank)));
    let differences = others.filter_map(|(rank, theirs)| {
        ours.iter().find_map(|mine| {
            let yours = theirs.iter().find(|yours| yours.collective == mine.collective)?;
            mine.difference(yours).map(|difference| (mine, rank, difference))
        })
    });
    let (mine, rank, (argument, ours, theirs)) =
        differences.min_by_key(|(mine, rank, _)| (mine.collective, *rank))?;
    Some(Error::Mismatch { call: mine.collective, argument, rank, ours, theirs, what: mine.text() })
}
