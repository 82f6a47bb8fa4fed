//! Large worlds: as few ranks as stand for all.

use super::compile::Compiler;
use super::program::Programs;
use super::subject::Subject;
use super::{Fold, Options, RANK_BY_RANK, Statement};
use crate::topology::Network;

/// Instructions that are made to prove ranks alike.
const COMPARED: u64 = 128 << 20;

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
    let what = if network.nodes_per_pod() == 1 { "nodes" } else { "pods" };
    if !ranks.is_multiple_of(per_pod) || ranks == per_pod {
        return Some(Err(format!("{ranks} ranks are not several full {what} of {per_pod}")));
    }
    if let Some(period) = subject.period {
        let simulated = per_pod * period / greatest_common_divisor(per_pod, period);
        if ranks.is_multiple_of(simulated) && simulated < ranks {
            let mut compiler = new(simulated);
            let programs = match compiler.ranks(0..simulated) {
                Ok(programs) => programs,
                Err(error) => return Some(Err(error.to_string())),
            };
            let why = format!(
                "the algorithm is made to turn by {period} rank(s), and equal {what} turn by {per_pod}"
            );
            let statement = Statement::Folded { ranks: simulated, why };
            return Some(Ok((statement, compiler, programs)));
        }
    }
    Some(compared(ranks, new(per_pod)))
}

/// The first pod's ranks stand for all if every other rank's program is the same, relative to
/// its own rank.
fn compared<'a>(
    ranks: usize,
    mut compiler: Compiler<'a>,
) -> Result<(Statement, Compiler<'a>, Programs), String> {
    let simulated = compiler.simulated;
    let programs = compiler.ranks(0..simulated).map_err(|error| error.to_string())?;
    let first: u64 = programs.iter().map(|(steps, _)| steps.len() as u64).sum();
    let all = first.saturating_mul((ranks / simulated) as u64);
    if all > COMPARED {
        return Err(format!(
            "about {all} instructions would have to be compared, more than {COMPARED}"
        ));
    }
    for rank in simulated..ranks {
        let program = compiler.rank(rank, false).map_err(|error| error.to_string())?;
        if program != programs[rank % simulated] {
            let first = rank % simulated;
            return Err(format!("rank {rank} does not do what rank {first} does, turned"));
        }
    }
    let why = format!("the programs of all {ranks} ranks were compared");
    Ok((Statement::Folded { ranks: simulated, why }, compiler, programs))
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
