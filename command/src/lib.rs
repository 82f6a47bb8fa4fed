//! The `oxccl` command, as a library of which its program is [`main`] alone.
//!
//! It is a library since `oxccl-against-nccl` (`benches/against_nccl/`) measures with the same
//! flags, sizes, inputs, checks and statistics, or its figures would not compare with those of
//! `oxccl bench`. That tool is a crate of its own: it calls NCCL, and is not published, on which a
//! published crate cannot depend. [`shared`] is all that it sees, and no interface for anybody
//! else.

mod bench;
mod blame;
mod date;
mod diff;
mod doctor;
mod explain;
mod failure;
mod figure;
mod interrupt;
mod launch;
mod machine;
mod manual;
mod names;
mod options;
mod run;
mod seen;
mod sim;
mod soak;
mod speak;
mod status;
mod synth;
mod topo;
mod tune;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use failure::Failure;
use nix::sys::signal::{SigHandler, Signal, signal};

/// What `oxccl-against-nccl` measures with, too.
#[doc(hidden)]
pub mod shared {
    pub use crate::bench::{
        Case, Expected, Form, GroupOptions, Inputs, PERIOD, Sample, Shape, SweepOptions, Watchdog,
        control_config, image, median, rounded,
    };
    pub use crate::ended;
    pub use crate::failure::Failure;
    pub use crate::for_type;
    pub use crate::options::Size;
    pub use crate::options::{Target, positive, seconds, target};
    pub use crate::speak::result;
}

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
    /// Shows where two custom schedules differ.
    Diff(diff::DiffOptions),
    /// Predicts how long every algorithm takes on a topology.
    Sim(sim::SimOptions),
    /// Searches for a schedule that is faster on a topology than the catalogue's.
    Synth(synth::SynthOptions),
    /// Prints how the devices of a topology, or of this machine, reach each other.
    Topo(topo::TopoOptions),
    /// Measures every algorithm on this machine and writes a table, by which communicators pick.
    Tune(tune::TuneOptions),
    /// Makes random calls and checks every result, while ranks die.
    Soak(soak::SoakOptions),
    /// Prints what the ranks of a job are doing, whether they run or hang.
    Status(status::StatusOptions),
    /// Names the rank at fault, by the files that the ranks of a failed job have left.
    Blame(blame::BlameOptions),
    /// Says what this machine has, and lacks, for each transport and device.
    Doctor(doctor::DoctorOptions),
    /// Prints completions of this command for a shell.
    Completions(manual::CompletionsOptions),
    /// Prints the manual page of this command, or writes those of all verbs into a folder.
    Man(manual::ManOptions),
}

impl Command {
    /// Whether it starts ranks, which talk over sockets.
    fn has_ranks(&self) -> bool {
        matches!(self, Command::Bench(_) | Command::Run(_) | Command::Soak(_) | Command::Tune(_))
    }
}

/// Ends as other commands do when nobody reads what is printed (`oxccl explain … | head`).
fn end_with_the_reader() {
    // SAFETY: the default action calls no code of this process. It cannot fail for this signal.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// The driver loads kernels when it is initialised, its own among them, and not when they are first
/// used: then it may wait for all that run, which may wait for this rank. What the user has set
/// stays. Programs that `oxccl run` starts are the user's.
fn load_kernels_at_once() {
    const LOADING: &str = "CUDA_MODULE_LOADING";
    if std::env::var_os(LOADING).is_none() {
        // SAFETY: this process has no other thread yet, and the driver has not been loaded.
        unsafe { std::env::set_var(LOADING, "EAGER") };
    }
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let command = Options::parse().command;
    if !matches!(command, Command::Run(_)) {
        load_kernels_at_once();
    }
    if !command.has_ranks() {
        end_with_the_reader();
    }
    ended(match command {
        Command::Bench(options) => bench::main(&options),
        Command::Run(options) => run::main(&options),
        Command::Explain(options) => explain::main(&options),
        Command::Verify(options) => verify::main(&options),
        Command::Diff(options) => diff::main(&options),
        Command::Sim(options) => sim::main(&options),
        Command::Synth(options) => synth::main(&options),
        Command::Topo(options) => topo::main(&options),
        Command::Tune(options) => tune::main(&options),
        Command::Soak(options) => soak::main(&options),
        Command::Status(options) => status::main(&options),
        Command::Blame(options) => blame::main(&options),
        Command::Doctor(options) => doctor::main(&options),
        Command::Completions(options) => {
            manual::completions::<Options>(&options);
            Ok(())
        }
        Command::Man(options) => manual::man::<Options>(&options),
    })
}

/// Says why something has failed, if it has, and with which status the process ends.
pub fn ended(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            speak::complain(&failure);
            ExitCode::from(failure.exit_status())
        }
    }
}
