//! A violation as a short story: who does what where, and who waits for whom.

use super::{Awaited, Stuck, Violation};
use crate::schedule::{Flag, Notes, Schedule};
use std::fmt::Write;

impl Violation {
    /// What went wrong in this schedule, step by step, behind what the violation itself says. A
    /// deadlock is told from the rank on that leads to its cause.
    pub fn story(&self, schedule: &Schedule, notes: &Notes) -> String {
        let steps = &Steps { schedule, notes };
        match self {
            Violation::Deadlock(stuck) => deadlock(stuck, steps),
            Violation::InPlace(inner) => {
                format!("With input and output in one buffer:\n{}", inner.story(schedule, notes))
            }
            other => {
                let mut text = String::new();
                if let Some((rank, step)) = other.place() {
                    neighbours(&mut text, steps, rank, step);
                }
                text
            }
        }
    }

    /// The rank and step of a violation that has one.
    fn place(&self) -> Option<(usize, usize)> {
        match *self {
            Violation::Instruction { rank, step, .. }
            | Violation::Operand { rank, step, .. }
            | Violation::Message { rank, step, .. }
            | Violation::Credit { rank, step, .. }
            | Violation::Arrival { rank, step, .. }
            | Violation::Signal { rank, step, .. }
            | Violation::SyncWait { rank, step, .. }
            | Violation::Undefined { rank, step, .. }
            | Violation::Misplaced { rank, step, .. }
            | Violation::Arithmetic { rank, step, .. }
            | Violation::Closed { rank, step, .. }
            | Violation::Race { rank, step, .. } => Some((rank, step)),
            _ => None,
        }
    }
}

/// The steps that a story quotes, with their comments.
struct Steps<'a> {
    schedule: &'a Schedule,
    notes: &'a Notes,
}

/// Follows the waiting until it closes in a circle or ends at a rank that has done all it does.
fn deadlock(stuck: &[Stuck], steps: &Steps<'_>) -> String {
    let waits = |rank: usize| stuck.iter().find(|stuck| stuck.rank == rank);
    let Some(mut at) = stuck.first() else { return String::new() };
    // The first ranks may only lead to the circle.
    for _ in stuck {
        at = waits(at.peer).unwrap_or(at);
    }
    let mut text = String::new();
    let first = at.rank;
    loop {
        let Stuck { rank, step, peer, .. } = *at;
        let _ = writeln!(text, "Rank {rank} waits at step {step} for rank {peer}: {}.", wanted(at));
        instruction(&mut text, steps, rank, step);
        match waits(peer) {
            Some(next) if next.rank == first => {
                let _ = writeln!(text, "So rank {peer} waits for itself, and nobody goes on.");
                break;
            }
            Some(next) => at = next,
            None => {
                let _ = writeln!(text, "Rank {peer} has come to the end of its steps.");
                break;
            }
        }
    }
    let told = text.lines().filter(|line| line.starts_with("Rank")).count();
    if stuck.len() > told {
        let _ = writeln!(text, "{} ranks wait in all.", stuck.len());
    }
    text
}

/// What a rank waits for, in words.
fn wanted(stuck: &Stuck) -> String {
    match stuck.awaited {
        Awaited::Message(operand) => format!("for its message, {operand}"),
        Awaited::Counter { flag: Flag::Tail(_), value, reached } => {
            format!("{} to have come, and {}", messages(value), have(reached))
        }
        Awaited::Counter { flag: Flag::Head(_), value, reached } => {
            format!("{} to have been consumed, and {}", messages(value), have(reached))
        }
    }
}

fn messages(count: i64) -> String {
    if count == 1 { "one message is".to_owned() } else { format!("{count} messages are") }
}

fn have(count: i64) -> String {
    match count {
        0 => "none has".to_owned(),
        1 => "one has".to_owned(),
        _ => format!("{count} have"),
    }
}

fn instruction(text: &mut String, steps: &Steps<'_>, rank: usize, step: usize) {
    let Some(list) = steps.schedule.ranks.get(rank) else { return };
    if let Some(instruction) = list.get(step) {
        let _ = match steps.notes.step(rank, step) {
            Some(comment) => writeln!(text, "    {step:>4}  {instruction}    # {comment}"),
            None => writeln!(text, "    {step:>4}  {instruction}"),
        };
    }
}

/// A step and those around it.
fn neighbours(text: &mut String, steps: &Steps<'_>, rank: usize, step: usize) {
    let _ = writeln!(text, "Rank {rank} does:");
    for near in step.saturating_sub(3)..step + 2 {
        instruction(text, steps, rank, near);
    }
}
