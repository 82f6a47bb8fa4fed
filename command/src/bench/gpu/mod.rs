//! `oxccl bench OP --compare …`: calls among ranks that are threads of this process and share one GPU, timed beside what the
//! hardware allows at best and, with `--compare nccl`, beside NCCL: same buffers, same streams, same loop, same checks, by turns.
//!
//! A number that several ranks on one GPU give is one of its memory, not of links between GPUs.

mod buffers;
mod contestant;
mod floor;
mod group;
mod nccl;
mod own;
mod rank;
mod report;
mod restart;
mod turns;
mod watchdog;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use oxccl::cuda::{Image, Stream};
use oxccl::{Communicator, Config, Device, Kind};
use oxccl_peer_nccl::NcclLibrary;
use oxccl_transports::cuda::{Context, Driver};

use super::args::BenchOptions;
use super::case::Case;
use super::{RANKS, control_config};
use crate::failure::Failure;
use crate::options::{self, Target};
pub(super) use buffers::copy_elements;
use group::Group;
use rank::{Start, Work};
pub(super) use watchdog::Watchdog;

/// What calls on a GPU are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Against {
    /// What copies and an empty kernel take.
    Floor,
    /// That, and NCCL.
    Nccl,
}

/// How NCCL reaches other ranks' buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NcclWay {
    /// By copies and pointers, as it likes.
    Default,
    /// In place, by symmetric windows.
    Symmetric,
}

/// What `oxccl bench OP --compare` compares.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareOptions {
    /// Calls on a GPU that all ranks share as threads of this process, beside the floor that the hardware sets, and NCCL.
    #[arg(long, value_enum, value_name = "WITH")]
    pub(crate) compare: Option<Against>,
    /// --compare nccl: libnccl.so.2, of release 2.30 or newer.
    #[arg(long, value_name = "FILE", default_value = "libnccl.so.2")]
    pub(crate) nccl_lib: PathBuf,
    /// --compare nccl: thread blocks ("CTAs") of a rank that NCCL may use; each is a setting, and the best counts [default: as
    /// many as the GPU holds for all ranks at once].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = options::positive)]
    pub(crate) nccl_ctas: Vec<usize>,
    /// --compare nccl: with which kinds of buffers it is measured. One that it cannot be set up with is left out, and a row says so.
    #[arg(
        long,
        value_enum,
        value_name = "WAY",
        value_delimiter = ',',
        default_value = "default,symmetric"
    )]
    pub(crate) nccl_ways: Vec<NcclWay>,
    /// --compare, --threads: seconds after which a step that does not end, of whatever library, ends the command, which says what it was
    /// doing [default: with --compare --timeout, otherwise none].
    #[arg(long, value_name = "SECONDS", value_parser = options::seconds)]
    pub(crate) patience: Option<Duration>,
    /// --compare: the GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gpu: usize,
    /// --compare: kernels are those of this file instead of those built in, for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) image: Option<PathBuf>,
}

/// Runs the comparison.
pub(super) fn main(options: &BenchOptions, against: Against) -> Result<(), Failure> {
    let ranks = options.ranks.unwrap_or(RANKS);
    let work = work(options, ranks)?;
    restart::with_environment()?;
    let nccl = match against {
        Against::Floor => None,
        Against::Nccl => Some(NcclLibrary::load(&options.compare.nccl_lib)?),
    };
    let driver = Driver::load()?;
    let context = Context::primary(driver.device(options.compare.gpu)?)?;
    // Before anything else makes some: NCCL's communicators have several each.
    let streams: Vec<Stream> =
        (0..ranks).map(|_| Stream::new(&context)).collect::<Result<_, _>>()?;
    let config = options.config()?;
    let watchdog = Watchdog::start(options.compare.patience.unwrap_or(config.timeout));
    watchdog.step("oxccl starts");
    let mut usual = own::usual_config(options.compare.gpu)?;
    usual.advanced.image = image(options.compare.image.as_deref())?;
    usual.advanced.single_launch = config.advanced.single_launch;
    let started = own::start_time(&context, ranks, &usual)?;
    let wide = Config { order: config.order, ..own::wide_config(&usual, ranks, &config.pin) };
    let own = Communicator::local_with(ranks, &wide)?;
    let control = Communicator::local_with(ranks, &control_config(&config))?;
    let start = Start::new(options, work, &context, nccl, started, &watchdog)?;
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let run = |((control, own), stream)| {
            let start = &start;
            scope.spawn(move || start.run(control, own, stream))
        };
        let ranks = control.into_iter().zip(own).zip(streams);
        let threads: Vec<_> = ranks.map(run).collect();
        let join = |(rank, thread): (usize, std::thread::ScopedJoinHandle<_>)| {
            thread.join().unwrap_or(Err(Failure::Panicked(rank)))
        };
        threads.into_iter().enumerate().map(join).collect()
    });
    // Exit handlers wait for kernels, too.
    watchdog.step("the process ends");
    results.into_iter().collect()
}

/// What is compared: a group, or of all collectives those that both know.
fn work(options: &BenchOptions, ranks: usize) -> Result<Work, Failure> {
    if options.target() == Target::Group {
        return Ok(Work::Group(Group::of(&options.group, ranks)?));
    }
    let is_known = |case: &Case| !matches!(case.kind, Kind::SendRecv | Kind::Barrier);
    let (known, unknown): (Vec<_>, Vec<_>) = options.cases(ranks)?.into_iter().partition(is_known);
    match unknown.first() {
        Some(case) if known.is_empty() => Err(not_compared(case.kind)),
        _ => Ok(Work::Calls { cases: known, sizes: options.sizes()? }),
    }
}

/// A kind that no comparison knows.
fn not_compared(kind: Kind) -> Failure {
    Failure::Usage(format!("--compare does not know {kind}: name another collective"))
}

/// Fits a configuration to calls of up to so many bytes on a GPU, if it is one of a GPU's.
pub(crate) fn fit(
    config: &mut Config,
    largest_bytes: usize,
    image: Option<&Path>,
) -> Result<(), Failure> {
    if let Device::Cuda(_) = config.device {
        // Memory of a GPU is taken at the start: room for input and output, each in pages of 2 MiB.
        let each = largest_bytes.next_multiple_of(2 << 20) + (2 << 20);
        config.heap_bytes = config.heap_bytes.max(2 * each);
        config.advanced.image = self::image(image)?;
    }
    Ok(())
}

/// The kernels of a file, where one is named instead of those that were built in.
fn image(path: Option<&Path>) -> Result<Option<Image>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let reading = || format!("reading {}", path.display());
    let mut bytes = std::fs::read(path).map_err(Failure::system(reading()))?;
    // A text has to end with a zero.
    bytes.push(0);
    // SAFETY: whoever names the file vouches for it; it lives to the end of the process.
    Ok(Some(unsafe { Image::from_bytes(Box::leak(bytes.into_boxed_slice())) }))
}
