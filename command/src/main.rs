//! The `oxccl` command.

mod bench;
mod doctor;
mod explain;
mod failure;
mod launch;
mod machine;
mod options;
mod run;
mod sim;
mod speak;
mod topo;
mod tune;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use nix::sys::signal::{SigHandler, Signal, signal};

#[derive(Parser)]
#[command(name = "oxccl", version, about = "Collective communication whose collectives are data")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Times collectives and checks their results, with nccl-tests' flags and table.
    Bench(bench::BenchOptions),
    /// Starts ranks on this machine.
    Run(run::RunOptions),
    /// Prints the schedule that a call would choose, and why.
    Explain(explain::ExplainOptions),
    /// Proves every schedule that there is for a collective.
    Verify(verify::VerifyOptions),
    /// Predicts how long every algorithm takes on a topology.
    Sim(sim::SimOptions),
    /// Prints how the devices of a topology, or of this machine, reach each other.
    Topo(topo::TopoOptions),
    /// Measures every algorithm on this machine and writes a table, by which communicators pick.
    Tune(tune::TuneOptions),
    /// Says what this machine has, and lacks, for each transport and device.
    Doctor,
}

impl Command {
    /// Whether it starts ranks, which talk over sockets.
    fn has_ranks(&self) -> bool {
        matches!(self, Command::Bench(_) | Command::Run(_) | Command::Tune(_))
    }
}

/// Ends as other commands do when nobody reads what is printed (`oxccl explain … | head`).
fn end_with_the_reader() {
    // SAFETY: the default action calls no code of this process. It cannot fail for this signal.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// The driver loads kernels when it is initialised, its own among them, and not when they are first used: then it may wait for all that
/// run, which may wait for this rank. What the user has set stays. Programs that `oxccl run` starts are the user's.
fn load_kernels_at_once() {
    const LOADING: &str = "CUDA_MODULE_LOADING";
    if std::env::var_os(LOADING).is_none() {
        // SAFETY: this process has no other thread yet, and the driver has not been loaded.
        unsafe { std::env::set_var(LOADING, "EAGER") };
    }
}

fn main() -> ExitCode {
    let command = Options::parse().command;
    if !matches!(command, Command::Run(_)) {
        load_kernels_at_once();
    }
    if !command.has_ranks() {
        end_with_the_reader();
    }
    let done = match command {
        Command::Bench(options) => bench::main(&options),
        Command::Run(options) => run::main(&options),
        Command::Explain(options) => explain::main(&options),
        Command::Verify(options) => verify::main(&options),
        Command::Sim(options) => sim::main(&options),
        Command::Topo(options) => topo::main(&options),
        Command::Tune(options) => tune::main(&options),
        Command::Doctor => doctor::main(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            speak::complain(&failure);
            ExitCode::from(failure.exit_status())
        }
    }
}
