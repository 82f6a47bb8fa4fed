//! `oxccl-against-nccl OP`: calls among ranks that are threads of this process and share one GPU,
//! timed beside what the hardware allows at best and beside NCCL: same buffers, same streams, same
//! loop, same checks, by turns.
//!
//! A number that several ranks on one GPU give is one of its memory, not of links between GPUs.

mod args;
mod buffers;
mod contestant;
mod floor;
mod flush;
mod group;
mod leaving;
mod nccl;
mod own;
mod race;
mod rank;
mod report;
mod restart;
mod site;
mod start;
mod turns;
mod work;

use std::process::ExitCode;

use clap::Parser;
use oxccl::cuda::Stream;
use oxccl::{Communicator, Config, Pin};
use oxccl_command::shared::{Failure, Watchdog, control_config, ended};
use oxccl_transports::cuda::{Context, Driver};

use args::Options;
use nccl::NcclLibrary;
use site::Site;
use start::Start;
use work::Work;

/// What may help where a step does not end.
const REMEDY: &str = "--patience allows more, and fewer --nccl-ctas may help";

fn main() -> ExitCode {
    ended(compare(&Options::parse()))
}

fn compare(options: &Options) -> Result<(), Failure> {
    let ranks = options.sweep.ranks();
    let config = options.config()?;
    let work = Work::of(options, ranks, &config)?;
    restart::with_environment()?;
    let nccl = match options.floor_only {
        true => None,
        false => Some(NcclLibrary::load(&options.nccl_lib)?),
    };
    let driver = Driver::load()?;
    let context = Context::primary(driver.device(options.gpu)?)?;
    let watchdog = Watchdog::start(options.patience.unwrap_or(config.timeout), REMEDY);
    watchdog.step("oxccl starts");
    // As users start it, whatever is pinned here.
    let usual = Config { pin: Pin::default(), ..config.clone() };
    let started = own::start_time(&context, ranks, &usual)?;
    // All of ours together, and before NCCL's communicators make theirs, of which each has several:
    // so each has a connection of its own, where there are enough.
    let streams: Vec<Stream> =
        (0..ranks).map(|_| Stream::new(&context)).collect::<Result<_, _>>()?;
    let own = Communicator::local_with(ranks, &own::wide_config(&config, ranks))?;
    let control = Communicator::local_with(ranks, &control_config(&config))?;
    let site = Site::new(&context, &watchdog, ranks);
    let start = Start::new(options, work, site, nccl, started)?;
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let run = |((control, own), stream)| {
            let start = &start;
            scope.spawn(move || rank::run(start, control, own, stream))
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
