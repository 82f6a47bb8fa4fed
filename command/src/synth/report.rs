//! What is printed of a search: a table, or one JSON object.

use std::path::Path;
use std::time::Duration;

use oxccl::plans::synth::Outcome;
use serde::Serialize;

use super::{SynthOptions, is_faster};
use crate::bench::{digits, rounded};
use crate::options::Size;
use crate::sim::{Call, Timed};
use crate::speak::{self, say};

/// What a search has come to.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    op: &'static str,
    topology: &'a str,
    ranks: usize,
    nodes: usize,
    bytes: usize,
    predicted: bool,
    /// The catalogue's fastest.
    catalogue: &'a Timed,
    /// The fastest that was found; none if there was no time for any.
    found: Option<&'a Timed>,
    /// What that is made of.
    recipe: Option<&'a str>,
    /// The found one's time over the catalogue's.
    ratio: Option<f64>,
    faster: bool,
    /// Where it is.
    file: Option<&'a Path>,
    candidates: usize,
    stalled: usize,
    refused: usize,
    seed: u64,
    seconds: f64,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        options: &'a SynthOptions,
        call: &'a Call,
        catalogue: &'a Timed,
        found: Option<&'a Timed>,
        outcome: &'a Outcome,
        took: Duration,
    ) -> Report<'a> {
        let faster = found.is_some_and(|found| is_faster(found, catalogue));
        Report {
            op: options.kind.name(),
            topology: call.topology(),
            ranks: call.network().ranks(),
            nodes: call.network().nodes(),
            bytes: options.bytes.0,
            predicted: true,
            catalogue,
            found,
            recipe: outcome.best.as_ref().map(|best| best.recipe.as_str()),
            ratio: found.map(|found| rounded(found.time_us / catalogue.time_us)),
            faster,
            file: options.output.as_deref().filter(|_| faster),
            candidates: outcome.tried(),
            stalled: outcome.stalled,
            refused: outcome.refused,
            seed: options.seed,
            seconds: rounded(took.as_secs_f64()),
        }
    }

    /// Whether what was found is faster than the catalogue's.
    pub(super) fn is_faster(&self) -> bool {
        self.faster
    }

    /// Prints it.
    pub(super) fn print(&self, json: bool) {
        if json {
            say!("{}", speak::json(self));
            return;
        }
        say!(
            "# oxccl {} synth: PREDICTED times of {}, nothing was run\n\
             # topology {}, {} ranks on {} node(s), {}",
            env!("CARGO_PKG_VERSION"),
            self.op,
            self.topology,
            self.ranks,
            self.nodes,
            Size(self.bytes),
        );
        say!(
            "# {} candidates in {:.1} s, seed {}; all were proven but {} that stalled and {} that \
             were refused\n#",
            self.candidates,
            self.seconds,
            self.seed,
            self.stalled,
            self.refused
        );
        say!("{}", self.table());
        match (self.ratio, self.faster) {
            (Some(ratio), true) => {
                say!("# predicted: the found one takes {ratio:.3} times as long as the catalogue's")
            }
            (Some(ratio), false) => {
                say!("# predicted: nothing faster; the best found takes {ratio:.3} times as long")
            }
            (None, _) => say!("# nothing was found in this time"),
        }
        if let Some(file) = self.file {
            say!("# written to {}", file.display());
        }
    }

    fn table(&self) -> String {
        let found = self.found.map(|found| ("found", self.recipe.unwrap_or(&found.name), found));
        let rows: Vec<(&str, &str, &Timed)> =
            [("catalogue", self.catalogue.name.as_str(), self.catalogue)]
                .into_iter()
                .chain(found)
                .collect();
        let width = rows.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or(0);
        let head = |a: &str, b: &str, c: &str, d: [&str; 3]| {
            let [time, algbw, busbw] = d;
            format!("{a:<12}{b:<width$} {c:>8} {time:>9} {algbw:>7} {busbw:>7}")
        };
        let mut lines = vec![
            head("#", "schedule", "channels", ["time", "algbw", "busbw"]),
            head("#", "", "x tile", ["(us)", "(GB/s)", "(GB/s)"]),
        ];
        lines.extend(rows.iter().map(|(which, name, timed)| {
            let channels = format!("{}x{}", timed.channels, Size(timed.tile_bytes));
            let figures = [
                digits(timed.time_us, 9),
                digits(timed.algbw_gbps, 7),
                digits(timed.busbw_gbps, 7),
            ];
            head(&format!("  {which}"), name, &channels, figures.each_ref().map(String::as_str))
        }));
        lines.join("\n")
    }
}
