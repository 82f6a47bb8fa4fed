//! The points of one collective over one kind of memory.

use oxccl::algorithms::Entry;
use oxccl::tune::{Curve, MemoryKind, Point, offered};
use oxccl::{Kind, Order};

use super::{Plan, memory_name, name};
use crate::bench::{Comms, Comparison, Taken};
use crate::failure::Failure;

/// An entry whose fastest turn takes more than so many times as long as the best one's …
const FAR: f64 = 4.0;
/// … at so many sizes in a row is measured no further.
const GIVEN_UP_AFTER: usize = 2;

/// An entry with what has been measured of it.
struct Candidate {
    entry: &'static Entry,
    points: Vec<Point>,
    far_sizes: usize,
}

/// Measures all entries of a kind. Rank 0 prints the best ones of each size.
pub(super) fn sweep(
    comms: &mut Comms,
    plan: &Plan,
    kind: Kind,
    windows: bool,
) -> Result<Vec<Curve>, Failure> {
    let (ranks, prints) = (comms.world(), comms.rank() == 0);
    let Some(&largest) = plan.sizes.last() else { return Ok(Vec::new()) };
    let entries = offered(&plan.question(kind, ranks, largest, windows));
    let candidate = |entry| Candidate { entry, points: Vec::new(), far_sizes: 0 };
    let mut candidates: Vec<Candidate> = entries.into_iter().map(candidate).collect();
    if prints {
        println!(
            "\n{kind} over {ranks} ranks, {}, {} entries",
            memory_name(windows),
            candidates.len()
        );
        println!("{:>10}  {:>10}  {:<36}  next", "bytes", "us", "best");
    }
    let mut comparison = Comparison::new(comms, (kind, 0), largest, !windows, Order::Any)?;
    let mut last_bytes = 0;
    for &size in &plan.sizes {
        let bytes = plan.question(kind, ranks, size, windows).total_bytes;
        if bytes <= last_bytes {
            continue;
        }
        last_bytes = bytes;
        let mut alive: Vec<&mut Candidate> =
            candidates.iter_mut().filter(|c| c.far_sizes < GIVEN_UP_AFTER).collect();
        let entries: Vec<&Entry> = alive.iter().map(|candidate| candidate.entry).collect();
        let times = comparison.times(size, &entries, &plan.turns)?;
        note(&mut alive, bytes, &times);
        if prints {
            println!("{}", row(bytes, &entries, &times));
        }
    }
    let curve = |Candidate { entry, points, .. }: Candidate| Curve {
        kind,
        memory: MemoryKind::of(windows),
        algorithm: entry.algorithm,
        encoding: entry.encoding,
        points,
    };
    Ok(candidates.into_iter().map(curve).filter(|curve| !curve.points.is_empty()).collect())
}

fn note(candidates: &mut [&mut Candidate], bytes: usize, times: &[Taken]) {
    let best_us = times.iter().map(Taken::fastest_us).fold(f64::INFINITY, f64::min);
    for (candidate, taken) in candidates.iter_mut().zip(times) {
        let is_far = taken.fastest_us() > FAR * best_us;
        candidate.far_sizes = if is_far { candidate.far_sizes + 1 } else { 0 };
        // A nanosecond is less than what is between two runs.
        let time_us = (taken.median_us() * 1e3).round().max(1.0) / 1e3;
        candidate.points.push(Point { bytes, time_us });
    }
}

/// The best entry of a size, and the two behind it.
fn row(bytes: usize, entries: &[&Entry], times: &[Taken]) -> String {
    let times_us: Vec<f64> = times.iter().map(Taken::median_us).collect();
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|one, other| times_us[*one].total_cmp(&times_us[*other]));
    let name = |place: &usize| name(entries[*place].algorithm, entries[*place].encoding);
    let next: Vec<String> = order
        .iter()
        .skip(1)
        .take(2)
        .map(|place| format!("{} {:.3}", name(place), times_us[*place]))
        .collect();
    match order.first() {
        Some(best) => format!(
            "{bytes:>10}  {:>10.3}  {:<36}  {}",
            times_us[*best],
            name(best),
            next.join(", ")
        ),
        None => format!("{bytes:>10}  no algorithm"),
    }
}
