//! `oxccl bench`: times collectives and checks their results.
//!
//! One of three things happens: a launcher has started this process as a rank; all ranks are
//! threads of this process; or this process starts itself once per rank and waits.

mod against;
mod args;
mod buffers;
mod case;
mod check;
mod compare;
mod gpu;
mod group;
mod measure;
mod output;
mod predict;
mod rank;
mod report;
mod sample;
mod sizes;
mod suite;
mod sweep;
mod trace;
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use oxccl::{Advanced, Collectives, Communicator, Config, Device, Order, Pin, UniqueId};
use oxccl_transports::{Environment, EnvironmentError};

use crate::failure::Failure;
use crate::launch::{Job, launch};
use crate::machine::{self, Probe};
pub(crate) use args::BenchOptions;
pub use case::{Case, Shape};
pub use check::{Expected, Inputs, PERIOD};
pub(crate) use compare::{Comparison, DATA_TYPE, OP, Rounds, Taken, Turns};
pub(crate) use gpu::fit as fit_gpu;
pub use gpu::image;
pub use group::{Form, GroupOptions};
pub use measure::median;
use output::Output;
pub(crate) use rank::Comms;
pub use report::rounded;
pub(crate) use report::{CSV_COLUMNS, Row, csv_line, digits};
pub use sample::Sample;
pub(crate) use sizes::{Step, progression};
use sweep::RANKS;
pub use sweep::SweepOptions;
pub use watchdog::Watchdog;

/// How long the other ranks may go on after one has failed: long enough to say why.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) fn main(options: &BenchOptions) -> Result<(), Failure> {
    if let Some(path) = &options.suite {
        return suite::main(path);
    }
    let options = &options.completed()?;
    match environment()? {
        Some(environment) => as_rank(options, &environment),
        None if options.threads => as_threads(options),
        None => as_processes(options),
    }
}

/// Does `work` on every rank, each a process: this one starts itself once per rank, unless a
/// launcher has made it one of them.
///
/// # Errors
/// A launcher with another number of ranks; whatever `work` fails with.
pub(crate) fn on_ranks(
    ranks: Option<usize>,
    config: &Config,
    work: impl FnOnce(&mut Comms) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(environment) = environment()? else {
        return start_ranks(ranks.unwrap_or(RANKS));
    };
    let &Environment { local_rank, local_world, world, launcher, .. } = &environment;
    if ranks.is_some_and(|ranks| ranks != world) {
        return Err(Failure::Usage(format!(
            "this is for another number of ranks than the {world} of {launcher}"
        )));
    }
    bind(false, local_rank, local_world)?;
    work(&mut meet(config, environment.unique_id.host())?)
}

/// This rank's place, if a launcher has started it.
pub(crate) fn environment() -> Result<Option<Environment>, Failure> {
    let lookup = |name: &str| std::env::var_os(name);
    match Environment::from_lookup(lookup, std::os::unix::process::parent_id()) {
        Err(EnvironmentError::NoLauncher) => Ok(None),
        other => Ok(Some(other?)),
    }
}

fn as_processes(options: &BenchOptions) -> Result<(), Failure> {
    let ranks = options.sweep.ranks();
    options.cases(ranks)?;
    options.besides(ranks)?;
    start_ranks(ranks)
}

/// Starts this program once per rank.
fn start_ranks(ranks: usize) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(Failure::system("finding this program"))?;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let program = program.as_os_str();
    launch(&Job {
        program,
        arguments: &arguments,
        variables: &[],
        ranks,
        share: None,
        nodes: None,
        bind: false,
        grace: GRACE,
        keeps_going: false,
    })
}

/// Is one rank of a launcher's.
fn as_rank(options: &BenchOptions, environment: &Environment) -> Result<(), Failure> {
    let &Environment { rank, world, local_rank, local_world, launcher, .. } = environment;
    if options.threads {
        return Err(Failure::Usage(format!(
            "--threads puts all ranks into one process, but {launcher} has started one a rank"
        )));
    }
    if options.sweep.ranks.is_some_and(|ranks| ranks != world) {
        return Err(Failure::Usage(format!("--ranks differs from the {world} of {launcher}")));
    }
    // Before the ranks meet: the others then wait without using a core.
    let output = if rank == 0 { Some(first_output(options, world)?) } else { None };
    bind(options.no_bind, local_rank, local_world)?;
    let mut comms = meet(&options.config()?, environment.unique_id.host())?;
    rank::run(options, &comms, &mut output.unwrap_or_else(Output::silent))?;
    trace::write(options, &mut comms)
}

/// Runs all ranks as threads.
fn as_threads(options: &BenchOptions) -> Result<(), Failure> {
    let ranks = options.sweep.ranks();
    options.cases(ranks)?;
    let mut first = Some(first_output(options, ranks)?);
    let watch = |patience| Arc::new(Watchdog::start(patience, "--patience allows more"));
    let watchdog = options.patience.map(watch);
    if let Some(watchdog) = &watchdog {
        watchdog.step("ranks start");
    }
    let control = Communicator::local_with(ranks, &control_config(&options.config()?))?;
    let measured = Communicator::local_with(ranks, &options.config()?)?;
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let start = |(control, measured): (Communicator, Communicator)| {
            let (output, watchdog) = (first.take(), watchdog.clone());
            scope.spawn(move || {
                bind(options.no_bind, control.rank(), ranks)?;
                let mut comms = Comms { control, measured, watchdog, _server: None };
                rank::run(options, &comms, &mut output.unwrap_or_else(Output::silent))?;
                trace::write(options, &mut comms)
            })
        };
        let threads: Vec<_> = control.into_iter().zip(measured).map(start).collect();
        let join = |(rank, thread): (usize, std::thread::ScopedJoinHandle<_>)| {
            thread.join().unwrap_or(Err(Failure::Panicked(rank)))
        };
        threads.into_iter().enumerate().map(join).collect()
    });
    results.into_iter().collect()
}

fn first_output(options: &BenchOptions, ranks: usize) -> Result<Output, Failure> {
    let besides = options.besides(ranks)?;
    let probe = (!options.no_probe).then(Probe::measure);
    Ok(Output::of(options, ranks, probe, besides))
}

/// Makes both communicators of a rank that a launcher has started. Others reach rank 0's machine as
/// this host.
fn meet(config: &Config, host: &str) -> Result<Comms, Failure> {
    let control = Communicator::from_env_with(&control_config(config))?;
    let mut text = [0u8; 512];
    let mut server = None;
    if control.rank() == 0 {
        let (id, started) = UniqueId::create_on(&at_any_port(host))?;
        let id = id.to_string();
        text[..id.len()].copy_from_slice(id.as_bytes());
        server = Some(started);
    }
    control.broadcast_in_place(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text);
    let id: UniqueId =
        text.trim_end_matches('\0').parse().map_err(oxccl_transports::EnvironmentError::from)?;
    let measured = Communicator::connect(&id, control.rank(), control.world_size(), config)?;
    Ok(Comms { control, measured, watchdog: None, _server: server })
}

fn at_any_port(host: &str) -> String {
    if host.contains(':') { format!("[{host}]:0") } else { format!("{host}:0") }
}

/// The configuration of communicators by which ranks tell each other what they have measured.
pub fn control_config(config: &Config) -> Config {
    Config {
        device: Device::Host,
        tuning: None,
        order: Order::Any,
        pin: Pin::default(),
        schedule: None,
        advanced: Advanced { single_launch: None, ..config.advanced.clone() },
        ..config.clone()
    }
}

/// Keeps this rank on a core of its own, if there are enough and nobody has done it already.
fn bind(no_bind: bool, local_rank: usize, local_world: usize) -> Result<(), Failure> {
    let cores = machine::usable_cores();
    if no_bind || cores.len() < local_world {
        return Ok(());
    }
    machine::pin_to(cores[local_rank]).map_err(Failure::system("pinning a rank to a core"))
}
