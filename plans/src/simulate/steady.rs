//! Long messages: rounds are simulated until one takes as long as the next.
//!
//! A first run has eight rounds, the last of them as long as the call's last. If the two halves of
//! its middle take equally long, all rounds between take as long as these; otherwise a run has
//! twice as many, until it has them all.

use super::machine::Machine;
use super::program::Compiled;
use super::servers::Time;
use super::trace::Recorder;
use super::{LinkUse, Options, Prediction, SimulationError};
use crate::topology::Network;

/// Rounds of the first run.
const FIRST: u64 = 8;
/// By how much two halves may differ.
const TOLERANCE: f64 = 0.002;

pub(super) fn run(
    compiled: &Compiled,
    network: &Network,
    options: &Options,
) -> Result<Prediction, SimulationError> {
    let all = compiled.rounds.count;
    let extrapolates = options.extrapolate
        && !options.trace
        && options.noise.is_none()
        && are_rounds_alike(compiled);
    let mut rounds = if extrapolates { all.min(FIRST) } else { all };
    loop {
        let recorder = options.trace.then(Recorder::default);
        let mut machine = Machine::new(compiled, network, rounds, recorder, options.noise);
        let end = machine.run()?;
        let a_round = if rounds == all { Some(0.0) } else { steady_round(&machine.marks) };
        let Some(a_round) = a_round else {
            rounds = (2 * rounds).min(all);
            continue;
        };
        let time_ps = end as f64 + (all - rounds) as f64 * a_round;
        let events = machine.events;
        let links = links(&machine, network, time_ps, all - rounds);
        let trace = machine.recorder.take().map(|recorder| recorder.finish(compiled, network, end));
        return Ok(Prediction {
            time_ns: time_ps / 1e3,
            rounds: all,
            simulated_rounds: rounds,
            statement: compiled.statement.clone(),
            links,
            events,
            trace,
        });
    }
}

/// Whether every part lasts until the end, or nearly: then rounds differ only there.
fn are_rounds_alike(compiled: &Compiled) -> bool {
    let tile = compiled.rounds.tile_bytes;
    let parts = compiled.bundles.iter().flat_map(|bundle| &bundle.parts);
    // Tokens are sent once and weigh nothing.
    let mut rounds = parts.filter(|part| **part > 64).map(|part| part.div_ceil(tile) as u64);
    rounds.all(|rounds| rounds + 2 >= compiled.rounds.count)
}

/// How long a round takes in the middle of a run, if it no longer changes.
fn steady_round(marks: &[Time]) -> Option<f64> {
    let last = marks.len() - 2;
    let (first, middle) = (last / 3, last / 3 + (last - last / 3) / 2);
    let mean = |from: usize, to: usize| (marks[to] - marks[from]) as f64 / (to - from) as f64;
    let (before, after) = (mean(first, middle), mean(middle, last));
    ((before - after).abs() <= TOLERANCE * after).then_some(after)
}

/// What each link carries in the whole call: the rounds that were left out carry as much as the
/// second.
fn links(machine: &Machine<'_>, network: &Network, time_ps: f64, left_out: u64) -> Vec<LinkUse> {
    let mut links: Vec<LinkUse> = Vec::new();
    for (at, server) in machine.servers.all.iter().enumerate().filter(|(_, one)| one.bytes > 0) {
        let view = network.link(at as u32);
        let bytes = server.bytes + left_out * server.a_round;
        let name = network.link_name(at as u32);
        let utilisation = (bytes as f64 * 1e3 / view.gbps / time_ps.max(1.0)).min(1.0);
        links.push(LinkUse { name, bytes, utilisation });
    }
    links.sort_by(|a, b| b.utilisation.total_cmp(&a.utilisation).then(a.name.cmp(&b.name)));
    links
}
