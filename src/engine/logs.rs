//! Reads the ranks' call logs.

use crate::call::Described;
use crate::device::{BUCKET_WORDS, CallRecord, Control};
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
type Difference = (&'static str, String, String);

/// The first bucket in which two groups differ, and how.
fn bucket(
    control: &Control,
    (own, mine): (usize, &Described),
    (other, yours): (usize, &Described),
) -> Option<(usize, Difference)> {
    if !mine.group || !yours.group {
        return None;
    }
    let words =
        |rank, call: &Described| control.bucket_words(rank, call.words_offset, call.key.count);
    let (ours, theirs) = (words(own, mine), words(other, yours));
    let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
    let described = |words: &Vec<[u64; BUCKET_WORDS]>| -> Option<Described> {
        let [what, count, roots, hash] = *words.get(at)?;
        Described::decode(&CallRecord { number: 0, words: [what, count, roots, hash, 0, 0] })
    };
    let (ours, theirs) = (described(&ours), described(&theirs));
    let text = |call: &Option<Described>| call.as_ref().map_or("none".into(), Described::text);
    let difference = match (&ours, &theirs) {
        (Some(ours), Some(theirs)) => ours.difference(theirs)?,
        _ => ("the call", text(&ours), text(&theirs)),
    };
    Some((at, difference))
}

/// The first remembered collective in which this rank and another differ.
pub(super) fn mismatch(control: &Control, own: usize) -> Option<Error> {
    let ours = recent(control, own);
    let others =
        (0..control.ranks()).filter(|rank| *rank != own).map(|rank| (rank, recent(control, rank)));
    let differences = others.filter_map(|(rank, theirs)| {
        ours.iter().find_map(|mine| {
            let yours = theirs.iter().find(|yours| yours.collective == mine.collective)?;
            let difference = mine.difference(yours)?;
            let bucket = bucket(control, (own, mine), (rank, yours));
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
