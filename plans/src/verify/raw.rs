//! Which sources are raw: the verifier's execution knows, so that authors need not say it.

use super::clock::Clock;
use super::machine::Machine;
use super::structure;
use crate::schedule::{Instruction, Schedule};

/// Marks as raw what a reduction reads of a rank's contribution that nothing has premultiplied.
///
/// What is marked already stays so. Of a schedule that is wrong, the sources are marked that are
/// read before the first fault, and [`verify`](super::verify) names it.
pub fn infer_raw(schedule: &mut Schedule) {
    if !schedule.collective.kind.reduces() {
        return;
    }
    let found = match structure::check(schedule, false) {
        Ok(routes) => {
            let mut machine = Machine::<Clock>::new(schedule, &routes, false);
            machine.inferred = Some(Vec::new());
            // A fault is the verifier's to tell.
            let _ = machine.run();
            machine.inferred.unwrap_or_default()
        }
        Err(_) => return,
    };
    for ((rank, step), index) in found {
        if let Instruction::ReduceCopy { sources, .. } = &mut schedule.lists[rank][step] {
            sources[index].raw = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::catalogue;
    use crate::collective::{Collective, Order};
    use crate::schedule::SLOTS;
    use crate::topology::Placement;

    #[test]
    fn what_the_catalogue_says_is_found_again() {
        for ranks in [1, 4, 6] {
            for entry in catalogue() {
                let collective = Collective::new(entry.kind, ranks);
                let placement = Placement::uniform(ranks / 2);
                let Ok(told) = entry.schedule(collective, placement, Order::Any, SLOTS) else {
                    continue;
                };
                let mut untold = told.clone();
                for instruction in untold.lists.iter_mut().flatten() {
                    if let Instruction::ReduceCopy { sources, .. } = instruction {
                        sources.iter_mut().for_each(|source| source.raw = false);
                    }
                }
                infer_raw(&mut untold);
                assert_eq!(untold, told, "{} {}", entry.kind, entry.algorithm);
            }
        }
    }
}
