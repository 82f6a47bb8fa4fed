//! `oxccl soak`: random calls for as long as one likes, with results checked bit for bit, while
//! ranks fail and strangers disturb them.

mod faults;
mod random;
mod rank;

use std::time::Duration;

use clap::Args;
use oxccl::{Communicator, Config};
use oxccl_transports::disturb::Strangers;

use crate::bench;
use crate::failure::Failure;
use crate::launch::{Job, launch};
use crate::options;
use faults::Fault;
use random::Random;
use rank::Rank;

/// Makes random calls and checks every result bit for bit.
///
/// All collectives, messages, groups and streams, of several types and operations, over random
/// sizes, in memory of comm.alloc and in ordinary memory, in the whole communicator and in parts
/// that are split off and closed again. With --deaths ranks fail on the way, by --faults, and the
/// others go on without them. The same seed makes the same calls. At the end it prints what was
/// done; wrong results, a rank that hangs, one that is blamed for another's fault, and descriptors,
/// threads or mappings that accumulate are failures.
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
    /// How many ranks fail on the way, fewer than there are.
    #[arg(long, default_value = "0")]
    deaths: usize,
    /// How ranks fail, by turns, and what goes on all the time.
    #[arg(long, value_delimiter = ',', default_value = "kill")]
    faults: Vec<Fault>,
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

impl SoakOptions {
    /// How ranks end, by turns.
    fn ends(&self) -> impl Iterator<Item = Fault> + Clone + '_ {
        self.faults.iter().copied().filter(Fault::ends_a_rank)
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
    if options.deaths > 0 && options.ends().next().is_none() {
        return Err(Failure::Usage(format!(
            "--deaths {} need a fault that ends a rank: kill, stop or cut",
            options.deaths
        )));
    }
    if bench::environment()?.is_none() {
        return start(options);
    }
    let mut config = Config::from_env()?;
    // A rank that has stopped is noticed by that alone.
    if options.faults.contains(&Fault::Stop) && std::env::var_os("OXCCL_TIMEOUT").is_none() {
        config.timeout = faults::TIMEOUT;
    }
    let strangers = options.faults.contains(&Fault::Garbage).then(|| {
        let mut random = Random::of(options.seed, u64::from(std::process::id()));
        Strangers::begin(move || random.next())
    });
    let comm = Communicator::from_env_with(&config)?;
    let ended = Rank::new(comm, options).run();
    if let (Some(strangers), Ok(0)) = (strangers, &ended) {
        println!("{} strangers connected to rank 0", strangers.end());
    }
    ended.map(drop)
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
