//! What ranks are doing, for people and programs that look at a job: from outside while it runs
//! ([`of_process`]), and in the files that its ranks leave when it fails
//! ([`Config::flight_recorder`](crate::Config::flight_recorder)).
//!
//! Each rank keeps its last calls, and what it waits for, in memory that others can read. A process
//! of the same user finds that under `/proc`, without any help of the rank: it costs a running job
//! nothing, and shows ranks that hang or are stopped.
//!
//! ```
//! # let ranks = oxccl::Communicator::local(2)?;
//! for rank in oxccl::status::of_process(std::process::id())?.ranks {
//!     println!("rank {} of {}: {} calls", rank.seen.rank, rank.world, rank.seen.entered);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod file;
mod process;
mod seen;

pub(crate) use file::FlightRecorder;
pub use file::{FileError, read};
pub(crate) use process::own_start;
pub use process::{Found, Refused, of_all, of_process};
pub use seen::{
    CallSeen, CallTimes, Ended, ProcessState, RankSeen, Snapshot, WaitFor, WaitSeen, lateness_s,
};
