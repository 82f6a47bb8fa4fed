//! `oxccl run`: starts this machine's ranks.

mod nccl;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::failure::Failure;
use crate::launch::{Job, Share, launch};
use crate::options;
pub(crate) use nccl::library;

/// Starts a program once per rank and waits for all of them.
///
/// The program finds its rank through Communicator::from_env. Rank 0 reads this command's input,
/// unless that is a terminal; all write to its output. If a rank fails, here or on another machine,
/// the others have the grace period to notice and end by themselves, are then told to (SIGTERM),
/// and 2 seconds later made to (SIGKILL); the exit status is that of the rank that the others
/// failed of, 128 + N where signal N ended it. Ranks that wait for it to join get an error at once.
///
/// SIGINT, SIGTERM and SIGHUP are passed on to the ranks, which start with a fresh process'
/// signals. Those that handle one have the grace period to end, and a second signal, half a second
/// later or more, kills them at once.
///
/// On several machines it is started once on each, with the same --ranks, --nnodes and --rendezvous
/// and the --node-rank of the machine; OXCCL_SECRET is the job's secret, any bytes; only at a
/// loopback address ranks may meet without. Machine 0 serves the rendezvous.
///
/// Ranks find RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, too, as
/// torchrun sets them, so that PyTorch's programs can be started. On several machines the port is
/// the one behind the rendezvous'.
///
/// With --nccl the program takes oxccl's libnccl.so.2 for NVIDIA's. Without --ranks it is then
/// started once, as it would be without this command: a launcher, such as torchrun, or a program
/// that has several GPUs.
#[derive(Args)]
pub(crate) struct RunOptions {
    /// How many ranks to start here.
    #[arg(long, short = 'n', visible_alias = "np", value_parser = options::ranks,
        required_unless_present = "nccl")]
    ranks: Option<usize>,
    /// Puts oxccl's libnccl.so.2, which lies beside this command, in front of NVIDIA's.
    #[arg(long)]
    nccl: bool,
    /// How many machines there are, each with as many ranks.
    #[arg(long, value_parser = options::positive, requires = "rendezvous", requires = "node_rank")]
    nnodes: Option<usize>,
    /// Which of them this is, from 0.
    #[arg(long, requires = "nnodes")]
    node_rank: Option<usize>,
    /// Where the ranks of all machines meet: an address of machine 0, and a free port there.
    #[arg(long, value_name = "HOST:PORT", requires = "nnodes")]
    rendezvous: Option<String>,
    /// Lets this machine stand for so many nodes, which share no memory.
    #[arg(long, value_parser = options::positive, conflicts_with = "nnodes")]
    nodes: Option<usize>,
    /// Gives rank r the r-th of this command's cores, starting over when there are more ranks.
    #[arg(long)]
    bind: bool,
    /// Seconds that the other ranks may go on after one has failed, and that all may after a
    /// signal.
    #[arg(long, value_parser = options::seconds, default_value = "10")]
    grace: Duration,
    /// Lets the other ranks go on after one has failed, as long as they like: they may make a
    /// communicator without it. The exit status is 0 if a rank ends with 0. A launcher that fails
    /// still ends the job.
    #[arg(long)]
    keep_going: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl RunOptions {
    fn share(&self) -> Result<Option<Share<'_>>, Failure> {
        let (Some(machines), Some(machine), Some(meeting)) =
            (self.nnodes, self.node_rank, self.rendezvous.as_deref())
        else {
            return Ok(None);
        };
        if machine >= machines {
            let detail = format!("--node-rank {machine} is not below --nnodes {machines}");
            return Err(Failure::Usage(detail));
        }
        Ok(Some(Share { machines, machine, meeting }))
    }
}

pub(crate) fn main(options: &RunOptions) -> Result<(), Failure> {
    let Some((program, arguments)) = options.program.split_first() else {
        return Err(Failure::Usage("no program was given".to_owned()));
    };
    let variables = if options.nccl { nccl::variables()? } else { Vec::new() };
    let Some(ranks) = options.ranks else {
        let program_error = Command::new(program).args(arguments).envs(variables).exec();
        let program = program.to_string_lossy();
        return Err(Failure::system(format!("starting {program}"))(program_error));
    };
    if let Some(nodes) = options.nodes.filter(|nodes| *nodes > ranks) {
        let detail = format!("--nodes {nodes} are more than the {ranks} ranks");
        return Err(Failure::Usage(detail));
    }
    launch(&Job {
        program,
        arguments,
        variables: &variables,
        ranks,
        share: options.share()?,
        nodes: options.nodes,
        bind: options.bind,
        grace: options.grace,
        keeps_going: options.keep_going,
    })
}
