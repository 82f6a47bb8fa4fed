//! A schedule as GOAL, the text of which LogGOPSim and ATLAHS make simulations (Hoefler, Siebert
//! and Lumsdaine 2009): each rank's sends and receives, and which of them come after which.
//!
//! Steps of a list are in order: what comes after a receive needs its end (`requires`), and after a
//! send its start alone (`irequires`), since a send returns before it is received. Where a rank has
//! several lists, each is a CPU of its own.

use std::fmt::Write as _;

use super::messages::Transfer;

/// The file's text, with the name of the call in front.
pub(super) fn goal(call: &str, ranks: &[Vec<Transfer>]) -> String {
    let mut text = format!("// {call}\nnum_ranks {}\n", ranks.len());
    let has_lists = ranks.iter().flatten().any(|transfer| transfer.list > 0);
    for (rank, transfers) in ranks.iter().enumerate() {
        let _ = write!(text, "\nrank {rank} {{\n");
        for (number, transfer) in transfers.iter().enumerate() {
            let Transfer { sends, peer, bytes, tag, list, after } = transfer;
            let (verb, side) = if *sends { ("send", "to") } else { ("recv", "from") };
            let label = number + 1;
            let cpu = if has_lists { format!(" cpu {list}") } else { String::new() };
            let _ = writeln!(text, "l{label}: {verb} {bytes}b {side} {peer} tag {tag}{cpu}");
            for before in after {
                let kind = if transfers[*before].sends { "irequires" } else { "requires" };
                let _ = writeln!(text, "l{label} {kind} l{}", before + 1);
            }
        }
        text.push_str("}\n");
    }
    text
}
