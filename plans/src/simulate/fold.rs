//! Large worlds: as few ranks as stand for all.

use super::compile::{Compiler, LIMIT};
use super::program::{Access, Programs, Step};
use super::subject::Subject;
use super::{Fold, Options, RANK_BY_RANK, Statement};
use crate::schedule::Turning;
use crate::topology::Network;

/// Only as many ranks as stand for all; why not, if they do not; nothing if that is not wanted.
pub(super) fn folded<'a>(
    subject: &'a Subject<'a>,
    network: &'a Network,
    options: &Options,
    new: &impl Fn(usize) -> Compiler<'a>,
) -> Option<Result<(Statement, Compiler<'a>, Programs), String>> {
    let ranks = subject.collective.ranks;
    let per_pod = network.per_node() * network.nodes_per_pod();
    let wanted = match options.fold {
        Fold::Never => false,
        Fold::Always => true,
        Fold::Auto => ranks > RANK_BY_RANK,
    };
    if !wanted {
        return None;
    }
    if subject.lists_per_rank > 1 {
        return Some(Err("ranks with several lists are not compared".to_owned()));
    }
    let what = if network.nodes_per_pod() == 1 { "nodes" } else { "pods" };
    if !ranks.is_multiple_of(per_pod) || ranks == per_pod {
        return Some(Err(format!("{ranks} ranks are not several full {what} of {per_pod}")));
    }
    if let Some((simulated, turning)) = subject.firsts(per_pod) {
        let mut compiler = new(simulated).turned(turning);
        let programs = match compiler.lists(0..simulated) {
            Ok(programs) => programs,
            Err(error) => return Some(Err(error.to_string())),
        };
        let period = subject.period.or(subject.cube).unwrap_or(simulated);
        let how = match turning {
            Turning::Add => "turn by",
            Turning::Xor => "be a hypercube of",
        };
        let why = format!(
            "the algorithm is made to {how} {period} rank(s), and equal {what} turn by {per_pod}"
        );
        let statement = Statement::Folded { ranks: simulated, why };
        return Some(Ok((statement, compiler, programs)));
    }
    let (compared, turning) = subject.alike.get_or_init(|| (per_pod, alike(ranks, per_pod, new)));
    let turning = match (turning, *compared == per_pod) {
        (found, true) => found.clone(),
        (_, false) => alike(ranks, per_pod, new),
    };
    Some(turning.and_then(|turning| {
        let mut compiler = new(per_pod).turned(turning);
        let programs = compiler.lists(0..per_pod).map_err(|error| error.to_string())?;
        let why = format!("the programs of all {ranks} ranks were compared");
        Ok((Statement::Folded { ranks: per_pod, why }, compiler, programs))
    }))
}

/// How the first pod's ranks stand for all: every other rank's program is the same, relative to its
/// own rank. In rings a distance is added to ranks, in hypercubes their bits are turned over.
fn alike<'a>(
    ranks: usize,
    per_pod: usize,
    new: &impl Fn(usize) -> Compiler<'a>,
) -> Result<Turning, String> {
    let of_two = ranks.is_power_of_two() && per_pod.is_power_of_two();
    let added = compared(ranks, new(per_pod));
    match added {
        Err(_) if of_two => {
            let turned = compared(ranks, new(per_pod).turned(Turning::Xor));
            turned.or(added)
        }
        _ => added,
    }
}

fn compared(ranks: usize, mut compiler: Compiler<'_>) -> Result<Turning, String> {
    let simulated = compiler.simulated;
    let programs = compiler.lists(0..simulated).map_err(|error| error.to_string())?;
    let programs: Programs = programs.into_iter().map(in_any_order).collect();
    let first: u64 = programs.iter().map(|(steps, _)| steps.len() as u64).sum();
    let all = first.saturating_mul((ranks / simulated) as u64);
    if all > LIMIT {
        return Err(format!(
            "about {all} instructions would have to be compared, more than {LIMIT}"
        ));
    }
    // Most that are unlike are so at an end.
    for rank in [simulated, ranks - 1].into_iter().chain(simulated + 1..ranks - 1) {
        let program = compiler.list(rank, false).map_err(|error| error.to_string())?;
        if in_any_order(program) != programs[rank % simulated] {
            let first = rank % simulated;
            return Err(format!("rank {rank} does not do what rank {first} does, turned"));
        }
    }
    Ok(compiler.turning)
}

/// It takes as long whichever source is named first.
fn in_any_order((steps, mut accesses): (Vec<Step>, Vec<Access>)) -> (Vec<Step>, Vec<Access>) {
    for step in &steps {
        if let Step::Move { first, sources, .. } = *step {
            let sources = &mut accesses[first as usize..][..usize::from(sources)];
            sources.sort_unstable_by_key(|one| (one.kind, one.way, one.counter, one.message));
        }
    }
    (steps, accesses)
}

/// How many first ranks stand for all whose instructions are made to turn by `period` ranks.
pub(super) fn simulated(ranks: usize, per_pod: usize, period: usize) -> Option<usize> {
    let simulated = per_pod * period / greatest_common_divisor(per_pod, period);
    (ranks.is_multiple_of(simulated) && simulated < ranks).then_some(simulated)
}

pub(super) fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
