//! A violation as a short story: who does what where, and who waits for whom.

use super::{Awaited, Stuck, Violation};
use crate::schedule::{Flag, Notes, Operand, Schedule};
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
                if let Some((rank, step)) = other.clone().place_mut() {
                    neighbours(&mut text, steps, *rank, *step);
                }
                text
            }
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
    let waited = |at: &Stuck| {
        let place = (at.peer, at.peer_list);
        stuck.iter().find(|stuck| (stuck.rank, stuck.list) == place)
    };
    let Some(mut at) = stuck.first() else { return String::new() };
    // The first ranks may only lead to the circle.
    for _ in stuck {
        at = waited(at).unwrap_or(at);
    }
    let several = steps.schedule.lists_per_rank > 1;
    let whose = |rank: usize, list: usize| match several {
        true => format!("list {list} of rank {rank}"),
        false => format!("rank {rank}"),
    };
    let mut text = String::new();
    let (first, mut told) = (at, 0);
    loop {
        let Stuck { rank, list, step, peer, peer_list, .. } = *at;
        let (who, whom) = (whose(rank, list), whose(peer, peer_list));
        let _ =
            writeln!(text, "{} waits at step {step} for {whom}: {}.", capital(&who), wanted(at));
        instruction(&mut text, steps, rank, step);
        told += 1;
        match waited(at) {
            Some(next) if std::ptr::eq(next, first) => {
                let _ = writeln!(text, "So {whom} waits for itself, and nobody goes on.");
                break;
            }
            Some(next) => at = next,
            None => {
                let whom = capital(&whom);
                let _ = writeln!(text, "{whom} has come to the end of its steps.");
                break;
            }
        }
    }
    if stuck.len() > told {
        let who = if several { "lists" } else { "ranks" };
        let _ = writeln!(text, "{} {who} wait in all.", stuck.len());
    }
    text
}

fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

/// What a rank waits for, in words.
fn wanted(stuck: &Stuck) -> String {
    match stuck.awaited {
        Awaited::Message(Operand::Reduced { rail, message }) => {
            format!("for its contribution to {rail}#{message}")
        }
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
    if let Some(instruction) = steps.schedule.step(rank, step) {
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
