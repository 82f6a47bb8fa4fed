//! What ranks share as threads of one process on one GPU.

use std::sync::Barrier;

use oxccl_command::shared::Watchdog;
use oxccl_transports::cuda::Context;

/// The GPU, who watches that steps follow each other, and where all ranks meet.
pub(crate) struct Site<'a> {
    pub(crate) context: &'a Context,
    pub(crate) watchdog: &'a Watchdog,
    pub(crate) meeting: Barrier,
}

impl<'a> Site<'a> {
    /// Of so many ranks.
    pub(crate) fn new(context: &'a Context, watchdog: &'a Watchdog, ranks: usize) -> Site<'a> {
        Site { context, watchdog, meeting: Barrier::new(ranks) }
    }
}
