//! `oxccl soak`: random calls for as long as one likes, with results checked bit for bit, and ranks
//! that die meanwhile.

mod random;
mod rank;

use std::time::Duration;

use clap::Args;
use oxccl::{Communicator, Config};

use crate::bench;
use crate::failure::Failure;
use crate::launch::{Job, launch};
use crate::options;
use rank::Rank;

/// Makes random calls and checks every result bit for bit.
///
/// All collectives, messages, groups and streams, of several types and operations, over random
/// sizes, in memory of comm.alloc and in ordinary memory, in the whole communicator and in parts
/// that are split off and closed again. With --deaths ranks kill themselves on the way, and the
/// others go on without them. The same seed makes the same calls. At the end it prints what was
/// done; wrong results, a rank that hangs, and descriptors, threads or mappings that accumulate are
/// failures.
#[derive(Args)]
pub(crate) struct SoakOptions {
    /// How many ranks to start here.
    #[arg(long, short = 'n', visible_alias = "np", default_value = "4", value_parser = options::ranks)]
    ranks: usize,
    /// For how long.
    #[arg(long, default_value = "1", value_parser = minutes)]
    minutes: Duration,
    /// After how many calls it ends, if that comes first.
    #[arg(long)]
    calls: Option<u64>,
    /// What the calls are made from.
    #[arg(long, default_value = "1")]
    seed: u64,
    /// How many ranks die on the way, fewer than there are.
    #[arg(long, default_value = "0")]
    deaths: usize,
    /// Lets this machine stand for so many nodes, which share no memory.
    #[arg(long, value_parser = options::positive)]
    nodes: Option<usize>,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no number of minutes above 0");
    let minutes: f64 = text.parse().map_err(|_| wrong())?;
    if minutes > 0.0 && minutes < 1e6 {
        Ok(Duration::from_secs_f64(60.0 * minutes))
    } else {
        Err(wrong())
    }
}

pub(crate) fn main(options: &SoakOptions) -> Result<(), Failure> {
    if options.deaths >= options.ranks {
        let detail = format!("--deaths {} leave none of {} ranks", options.deaths, options.ranks);
        return Err(Failure::Usage(detail));
    }
    if let Some(nodes) = options.nodes.filter(|nodes| *nodes > options.ranks) {
        let detail = format!("--nodes {nodes} are more than the {} ranks", options.ranks);
        return Err(Failure::Usage(detail));
    }
    if bench::environment()?.is_none() {
        return start(options);
    }
    let comm = Communicator::from_env_with(&Config::from_env()?)?;
    Rank::new(comm, options).run()
}

/// Starts this program once per rank.
fn start(options: &SoakOptions) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(Failure::system("finding this program"))?;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    launch(&Job {
        program: program.as_os_str(),
        arguments: &arguments,
        variables: &[],
        ranks: options.ranks,
        share: None,
        nodes: options.nodes,
        bind: false,
        grace: Duration::from_secs(10),
        keeps_going: options.deaths > 0,
    })
}
