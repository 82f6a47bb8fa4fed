//! What is known of a message only once all ranks are compiled: its length where it is forwarded,
//! and whether a switch reduces it on its way.

use super::bundle::Length;
use super::compile::Compiler;
use super::program::{AS_IT_CAME, Access, AccessKind, Flags, Programs, Step};
use crate::hash::Map;
use std::collections::HashSet;

/// Gives what is moved from slot to slot the length with which it was sent.
pub(super) fn follow_lengths(compiler: &mut Compiler<'_>, programs: &mut Programs) {
    let mut sent: Map<(AccessKind, u32, u32), u32> = Map::default();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (rank, (steps, accesses)) in programs.iter().enumerate() {
        for (at, step) in steps.iter().enumerate() {
            let &Step::Move { length, .. } = step else { continue };
            if length == AS_IT_CAME {
                open.push((rank, at));
            } else {
                sent.extend(sends(step, accesses).map(|key| (key, length)));
            }
        }
    }
    loop {
        let before = open.len();
        open.retain(|&(rank, at)| {
            let (steps, accesses) = &mut programs[rank];
            let Some(length) = received(&steps[at], accesses).and_then(|key| sent.get(&key)) else {
                return true;
            };
            let found = *length;
            if let Step::Move { length, .. } = &mut steps[at] {
                *length = found;
            }
            sent.extend(sends(&steps[at], accesses).map(|key| (key, found)));
            false
        });
        if open.len() == before {
            break;
        }
    }
    // What nobody sends never comes: the deadlock is found when it is simulated.
    for (rank, at) in open {
        let nothing = compiler.number_of(Length::Fixed(0));
        if let Step::Move { length, .. } = &mut programs[rank].0[at] {
            *length = nothing;
        }
    }
}

/// The messages that a step sends, as their receivers know them.
fn sends<'a>(
    step: &Step,
    accesses: &'a [Access],
) -> impl Iterator<Item = (AccessKind, u32, u32)> + use<'a> {
    let (first, count) = match *step {
        Step::Move { first, sources, destinations, .. } => {
            (first as usize + sources as usize, destinations as usize)
        }
        _ => (0, 0),
    };
    accesses[first..first + count].iter().filter_map(|access| match access.kind {
        AccessKind::Send(flags) => Some((AccessKind::Slot(flags), access.counter, access.message)),
        // What is reduced is as long as this rank's part of it.
        AccessKind::Contribution => Some((AccessKind::Reduced, access.counter, access.message)),
        _ => None,
    })
}

/// The first message that a step receives.
fn received(step: &Step, accesses: &[Access]) -> Option<(AccessKind, u32, u32)> {
    let &Step::Move { first, sources, .. } = step else { return None };
    let sources = &accesses[first as usize..first as usize + sources as usize];
    let slot = |access: &&Access| matches!(access.kind, AccessKind::Slot(_) | AccessKind::Reduced);
    sources.iter().find(slot).map(|access| (access.kind, access.counter, access.message))
}

/// Messages that one reduce-copy reads come through a switch that reduces as one: all but the first
/// are marked.
pub(super) fn merge(compiler: &mut Compiler<'_>, programs: &mut Programs) {
    let mut merged = HashSet::new();
    for (steps, accesses) in programs.iter() {
        for step in steps {
            let &Step::Move { first, sources, .. } = step else { continue };
            let mut switches = HashSet::new();
            let sources = &accesses[first as usize..first as usize + sources as usize];
            for access in
                sources.iter().filter(|access| access.kind == AccessKind::Slot(Flags::None))
            {
                let Some((_, switch)) = compiler.ways[access.way as usize].switch else { continue };
                if !switches.insert(switch) {
                    merged.insert((access.counter, access.message));
                }
            }
        }
    }
    for (_, accesses) in programs {
        for access in
            accesses.iter_mut().filter(|access| access.kind == AccessKind::Send(Flags::None))
        {
            access.merged = merged.contains(&(access.counter, access.message));
        }
    }
}
