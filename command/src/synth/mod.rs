//! `oxccl synth`: searches for a schedule that is faster on a topology than the catalogue's.
//! Nothing is run; every figure is predicted.

mod judge;
mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use oxccl::plans::synth::{Found, Goal, synthesize};
use oxccl::{CustomSchedule, Kind};

use crate::failure::Failure;
use crate::options::{self, Size};
use crate::sim::{Call, Timed};
use crate::{names, topo};
use judge::Simulator;
use report::Report;

/// How long is searched if nothing is said.
const SECONDS: Duration = Duration::from_secs(10);
/// What takes a larger part of the catalogue's time is not called faster: the simulator
/// extrapolates rounds within 2 %, and a search finds such slack, too.
const FASTER: f64 = 0.98;

/// Searches for a schedule that is faster on a topology than the catalogue's.
///
/// Each candidate is proven, and timed as `oxccl sim` does: all figures are predicted. What is
/// found is a custom schedule in a file, for verify, sim, explain and bench. If nothing faster is
/// found, no file is written, and the exit status is 1. Ctrl-C ends the search and keeps the best.
#[derive(Args, Clone, Debug)]
pub(crate) struct SynthOptions {
    /// The collective: all_gather, reduce_scatter or all_reduce.
    #[arg(value_name = "OP", value_parser = names::kind)]
    kind: Kind,
    /// A preset (oxccl topo --list), a file that ends with .toml, or "this" machine.
    #[arg(long, short = 't', default_value = "dgx-h100")]
    topology: String,
    /// How many ranks, 128 at most [default: one a device].
    #[arg(long, short = 'g', value_parser = options::positive)]
    ranks: Option<usize>,
    /// Ranks of a node [default: one a device].
    #[arg(long, value_parser = options::positive)]
    per_node: Option<usize>,
    /// The size of the call, with K, M or G: the larger of one rank's input and output.
    #[arg(long, short = 'b', default_value = "64M")]
    bytes: Size,
    /// Writes what is found there: a custom schedule, JSON.
    #[arg(long, short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// For how many seconds is searched [default: 10, or without end where --candidates are named].
    #[arg(long, value_parser = options::seconds)]
    seconds: Option<Duration>,
    /// How many candidates are tried, at most. So many give the same schedule every time.
    #[arg(long, value_parser = options::positive)]
    candidates: Option<usize>,
    /// What chance begins with.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

/// Searches, writes and prints.
///
/// # Errors
/// What is not searched for, options that do not fit together, a file that cannot be written, or
/// nothing that is faster.
pub(crate) fn main(options: &SynthOptions) -> Result<(), Failure> {
    let start = Instant::now();
    let SynthOptions { kind, bytes, ranks, per_node, .. } = *options;
    let (_, network) = topo::with_ranks(&options.topology, None, ranks, per_node)?;
    let mut goal = Goal {
        kind,
        network: &network,
        bytes: bytes.0,
        ll128: false,
        channels: 1,
        seed: options.seed,
        candidates: options.candidates,
    };
    goal.check()?;
    let call = Call::new(kind, bytes, &options.topology, ranks, per_node)?;
    (goal.ll128, goal.channels) = (call.has_ll128(), call.most_channels());
    let catalogue = call.best()?;
    let mut judge = Simulator::new(&call, options.budget(), catalogue.time_us)?;
    let outcome = synthesize(&goal, &mut judge)?;
    judge.end();

    let found = match &outcome.best {
        Some(best) => Some(options.timed(&call, best, &catalogue)?),
        None => None,
    };
    let report = Report::new(options, &call, &catalogue, found.as_ref(), &outcome, start.elapsed());
    report.print(options.json);
    match report.is_faster() {
        true => Ok(()),
        false => Err(Failure::NothingFaster { best: catalogue.name }),
    }
}

impl SynthOptions {
    /// For how long is searched.
    fn budget(&self) -> Option<Duration> {
        self.seconds.or(self.candidates.is_none().then_some(SECONDS))
    }

    /// What was found; if it is faster, it is written, and what is timed is what has been written.
    fn timed(&self, call: &Call, best: &Found, catalogue: &Timed) -> Result<Timed, Failure> {
        let mut file = best.file.clone();
        let prove = |file| {
            let unproven =
                |violation: oxccl::plans::verify::Violation| Failure::Library(Box::new(violation));
            CustomSchedule::prove("found", file).map_err(unproven)
        };
        let timed = call.by(&prove(file.clone())?)?;
        let Some(path) = self.output.as_deref().filter(|_| is_faster(&timed, catalogue)) else {
            return Ok(timed);
        };
        file.notes.comment = Some(format!(
            "{}: {:.1} us predicted for {} bytes on {}, where {} takes {:.1}",
            best.recipe,
            timed.time_us,
            self.bytes,
            call.topology(),
            catalogue.name,
            catalogue.time_us
        ));
        write(path, &file.to_json())?;
        call.by(&CustomSchedule::read(path)?)
    }
}

/// Whether what was found is faster than the catalogue's.
fn is_faster(found: &Timed, catalogue: &Timed) -> bool {
    found.time_us < FASTER * catalogue.time_us
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let doing = || format!("writing the schedule {}", path.display());
    std::fs::write(path, text).map_err(Failure::system(doing()))
}
