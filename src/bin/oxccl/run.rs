//! `oxccl run`: starts ranks on this machine.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::failure::Failure;
use crate::launch::{Job, launch};
use crate::options;

/// Starts a program once per rank and waits for all of them.
///
/// The program finds its rank through Communicator::from_env. Rank 0 reads this command's input,
/// unless that is a terminal; all write to its output. If a rank fails, the others have the grace period to notice and end by
/// themselves, are then told to (SIGTERM), and finally made to (SIGKILL); the exit status is that
/// of the rank that failed first, 128 + N where signal N ended it.
#[derive(Args)]
pub(crate) struct RunOptions {
    /// How many ranks to start.
    #[arg(long, short = 'n', visible_alias = "np", value_parser = options::positive)]
    ranks: usize,
    /// Gives rank r the r-th of this command's cores, starting over when there are more ranks.
    #[arg(long)]
    bind: bool,
    /// Seconds that the other ranks may go on after one has failed.
    #[arg(long, value_parser = options::seconds, default_value = "10")]
    grace: Duration,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

pub(crate) fn main(options: &RunOptions) -> Result<(), Failure> {
    let Some((program, arguments)) = options.program.split_first() else {
        return Err(Failure::Usage("no program was given".to_owned()));
    };
    launch(&Job {
        program,
        arguments,
        ranks: options.ranks,
        bind: options.bind,
        grace: options.grace,
    })
}
