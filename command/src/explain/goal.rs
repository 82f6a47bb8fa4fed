//! A schedule as GOAL, the text of which LogGOPSim and ATLAHS make simulations (Hoefler, Siebert
//! and Lumsdaine 2009): each rank's sends and receives, and which of them come after which.
//!
//! Steps of a rank are in order: what comes after a receive needs its end (`requires`), and after a
//! send its start alone (`irequires`), since a send returns before it is received.

use std::fmt::Write as _;

use super::messages::{Message, Step};

/// The file's text, with the name of the call in front.
pub(super) fn goal(call: &str, ranks: &[Vec<Step>]) -> String {
    let mut text = format!("// {call}\nnum_ranks {}\n", ranks.len());
    for (rank, steps) in ranks.iter().enumerate() {
        let mut list = List::default();
        for step in steps {
            list.add("recv", "from", "requires", &step.received);
            list.add("send", "to", "irequires", &step.sent);
        }
        let _ = write!(text, "\nrank {rank} {{\n{}}}\n", list.text);
    }
    text
}

/// One rank's sends and receives.
#[derive(Default)]
struct List {
    text: String,
    /// Labels that are given.
    labels: usize,
    /// What the next message comes after.
    last: Vec<(&'static str, usize)>,
}

impl List {
    /// Adds messages, after what comes before them; what comes next is after these.
    fn add(&mut self, verb: &str, side: &str, after: &'static str, messages: &[Message]) {
        let mut added = Vec::new();
        for Message { peer, bytes, tag } in messages {
            self.labels += 1;
            let label = self.labels;
            let _ = writeln!(self.text, "l{label}: {verb} {bytes}b {side} {peer} tag {tag}");
            for (kind, before) in &self.last {
                let _ = writeln!(self.text, "l{label} {kind} l{before}");
            }
            added.push((after, label));
        }
        if !added.is_empty() {
            self.last = added;
        }
    }
}
