//! Why a command failed, and with which exit status.

use crate::launch::{JobEnd, signal_name};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments do not fit together. (clap finds those that are wrong by themselves.)
    #[error("{0}")]
    Usage(String),
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] oxccl::Error),
    /// The ranks could not meet.
    #[error(transparent)]
    Transport(#[from] oxccl_transports::Error),
    /// A GPU failed, or cannot be used.
    #[error(transparent)]
    Cuda(#[from] oxccl_transports::CudaError),
    /// Another library failed, or cannot be used.
    #[error(transparent)]
    Library(Box<dyn std::error::Error + Send + Sync>),
    /// A topology is wrong.
    #[error(transparent)]
    Topology(#[from] oxccl::plans::topology::TopologyError),
    /// A schedule cannot be simulated.
    #[error(transparent)]
    Simulation(#[from] oxccl::plans::simulate::SimulationError),
    /// No schedule is searched for.
    #[error(transparent)]
    Synth(#[from] oxccl::plans::synth::SynthError),
    /// No faster schedule was found.
    #[error("nothing was found that is predicted to be faster than the catalogue's {best}")]
    NothingFaster {
        /// The catalogue's fastest.
        best: String,
    },
    /// The launcher's variables are wrong.
    #[error(transparent)]
    Environment(#[from] oxccl_transports::EnvironmentError),
    /// Results were wrong.
    #[error("{count} elements are wrong")]
    Wrong {
        /// How many, on all ranks.
        count: u64,
    },
    /// Contestants of a suite failed.
    #[error("{failed} of {turns} turns failed")]
    Turns {
        /// How many.
        failed: usize,
        /// Of how many.
        turns: usize,
    },
    /// Started ranks failed.
    #[error("{0}")]
    Job(Box<JobEnd>),
    /// The command itself was told to stop.
    #[error("stopped by signal {}", signal_name(*signal))]
    Signal {
        /// The signal.
        signal: i32,
    },
    /// A process cannot be looked at.
    #[error(transparent)]
    Look(#[from] oxccl::status::Refused),
    /// What a rank has left cannot be read.
    #[error(transparent)]
    Left(#[from] oxccl::status::FileError),
    /// There is no rank where one was looked for.
    #[error("no rank of oxccl runs {0}")]
    NoRank(String),
    /// A custom schedule cannot be used.
    #[error(transparent)]
    Custom(Box<oxccl::CustomError>),
    /// Schedules were not accepted.
    #[error("schedules that were refused: {count}")]
    Unproven {
        /// How many.
        count: usize,
    },
    /// Two schedules are not the same.
    #[error("the schedules differ")]
    Differ,
    /// Something that every oxccl program needs is missing.
    #[error("{0} of the things that oxccl cannot do without are missing here")]
    Unfit(usize),
    /// A rank's thread panicked.
    #[error("rank {0} panicked")]
    Panicked(usize),
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    System {
        /// What was done.
        doing: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl From<oxccl::CustomError> for Failure {
    fn from(error: oxccl::CustomError) -> Failure {
        Failure::Custom(Box::new(error))
    }
}

impl Failure {
    /// The exit status: 2 for wrong usage, a rank's own where one failed, otherwise 1.
    pub fn exit_status(&self) -> u8 {
        use oxccl::Error;
        match self {
            Failure::Usage(_)
            | Failure::Topology(_)
            | Failure::Synth(_)
            | Failure::Left(_)
            | Failure::Custom(_)
            | Failure::Collective(
                Error::NoAlgorithm { .. }
                | Error::Op { .. }
                | Error::Config { .. }
                | Error::ConfigDiffers { .. },
            ) => 2,
            Failure::Job(end) => end.status(),
            Failure::Signal { signal } => 128 + (*signal & 0x7f) as u8,
            _ => 1,
        }
    }

    /// Makes the system's answer a failure of what was done.
    pub fn system(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Failure {
        let doing = doing.into();
        move |source| Failure::System { doing, source }
    }
}
