//! Large worlds: a few ranks are proven, and every other is made by turning their instructions, or
//! compared with them on all cores.

use std::ops::Range;
use std::time::Instant;

use oxccl::Order;
use oxccl::plans::algorithms::Entry;
use oxccl::plans::schedule::{SLOTS, Turning};
use oxccl::plans::verify::{Symmetric, Unproven};

use super::outcome::{Outcome, Proof, Verdict};
use super::{Tally, UseSymmetry, VerifyOptions, instructions, name, prove_whole};

/// Up to so many ranks are executed one by one unless asked otherwise.
pub(super) const RANK_BY_RANK: usize = 512;
/// So many instructions are held and proven rank by rank: about 2 GiB.
const INSTRUCTIONS: usize = 10 << 20;

/// Proves an algorithm by symmetry, or else rank by rank if it has few steps; whether it exists.
pub(super) fn prove(
    options: &VerifyOptions,
    entry: &Entry,
    order: Order,
    tally: &mut Tally,
) -> bool {
    let start = Instant::now();
    let (collective, placement) = (options.collective(entry.kind), options.placement());
    let proof = match Symmetric::prove(entry, collective, placement, order, SLOTS) {
        Ok(proof) => proof,
        Err(why) => return otherwise(options, entry, order, tally, why),
    };
    let proven = start.elapsed();
    let start = Instant::now();
    let others = match proof.is_by_construction() {
        true => format!("{} ranks are made from it", options.ranks),
        false => {
            if let Err(why) = compare(&proof, options.ranks) {
                return otherwise(options, entry, order, tally, why);
            }
            format!("{} ranks made and compared in {:.0?}", options.ranks, start.elapsed())
        }
    };
    let total = instructions(proof.first()) * options.ranks / proof.symmetry().firsts();
    let mut text = format!(
        "proven   {:<60} {total:>9} instructions, by symmetry: {} proven in {proven:.0?}, {others}",
        name(entry, order),
        firsts(&proof)
    );
    if options.algorithm.is_some() {
        text += &format!("\n{}\n{}", ranks_line(&proof), Proof::from(&proof).lines());
    }
    let outcome = Outcome {
        instructions: Some(total),
        firsts: Some(proof.symmetry().firsts()),
        seconds: Some((proven + start.elapsed()).as_secs_f64()),
        proof: Some(Proof::from(&proof)),
        ..Outcome::of(options, entry, order, Verdict::Proven)
    };
    tally.tell(options, &outcome, || text);
    true
}

/// What every rank does.
fn ranks_line(proof: &Symmetric) -> String {
    let of = match proof.symmetry().firsts() {
        1 => "rank 0".to_owned(),
        firsts => format!("one of the first {firsts}"),
    };
    let moved = match proof.symmetry().turning() {
        Turning::Add => "moved on by a distance",
        Turning::Xor => "taken exclusive-or a distance",
    };
    format!(
        "         ranks    every one does what {of} does, its number and those of chunks and peers {moved}"
    )
}

/// Who stands for all.
fn firsts(proof: &Symmetric) -> String {
    match proof.symmetry().firsts() {
        1 => "rank 0".to_owned(),
        firsts => format!("ranks 0 to {}", firsts - 1),
    }
}

/// What is wrong is said; what is merely not alike may be small enough to be proven rank by rank.
fn otherwise(
    options: &VerifyOptions,
    entry: &Entry,
    order: Order,
    tally: &mut Tally,
    why: Unproven,
) -> bool {
    let name = name(entry, order);
    let of = |verdict: Verdict| Outcome::of(options, entry, order, verdict);
    match why {
        Unproven::Unavailable(unavailable) => {
            let outcome = of(Verdict::Unavailable).because(unavailable);
            tally.tell(options, &outcome, String::new);
            return false;
        }
        Unproven::Unlike(unlike) => {
            let asked = options.symmetry == UseSymmetry::Always;
            if !asked && count(options, entry, order).is_some() {
                return prove_whole(options, entry, order, tally);
            }
            let why = match asked {
                true => unlike.to_string(),
                false => format!(
                    "it has more than {INSTRUCTIONS} instructions, and cannot be proven by symmetry: \
                     {unlike}; --symmetry never takes the time and memory"
                ),
            };
            let text = format!("NOT PROVEN {name:<58} {why}");
            tally.tell(options, &of(Verdict::NotProven).because(why), || text);
        }
        other => {
            let text = format!("REFUSED  {name:<60} {other}");
            tally.tell(options, &of(Verdict::Refused).because(other), || text);
        }
    }
    true
}

/// How many instructions all ranks have, if they can be held.
fn count(options: &VerifyOptions, entry: &Entry, order: Order) -> Option<usize> {
    let (collective, placement) = (options.collective(entry.kind), options.placement());
    let mut total = 0;
    for rank in 0..options.ranks {
        let made =
            entry.schedule_of_ranks(collective, placement, order, SLOTS, rank..rank + 1).ok()?;
        total += instructions(&made);
        if total > INSTRUCTIONS {
            return None;
        }
    }
    Some(total)
}

/// Compares all ranks with those that stand for them, on all cores.
fn compare(proof: &Symmetric, ranks: usize) -> Result<(), Unproven> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(ranks);
    let part = |thread: usize| -> Range<usize> {
        thread * ranks / threads..(thread + 1) * ranks / threads
    };
    std::thread::scope(|scope| {
        let run = |thread| scope.spawn(move || proof.compare(part(thread)));
        let running: Vec<_> = (0..threads).map(run).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        running.into_iter().try_for_each(join)
    })
}
