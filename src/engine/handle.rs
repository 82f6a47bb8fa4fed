//! What any thread may ask and do.

use super::diagnosis::Ranks;
use crate::error::Error;
use oxccl_transports::fork::Origin;
use std::sync::Arc;

/// A communicator as any thread sees it, whatever the thread that makes its calls waits for: see
/// [`Communicator::handle`](crate::Communicator::handle). It may outlive the communicator.
#[derive(Clone, Debug)]
pub struct Handle {
    ranks: Arc<Ranks>,
    origin: Origin,
}

impl Handle {
    pub(super) fn new(ranks: &Arc<Ranks>) -> Handle {
        Handle { ranks: ranks.clone(), origin: Origin::here() }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.ranks.rank
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.ranks.control.ranks()
    }

    /// Ends the communicator on all ranks, whatever they wait for. Calls that wait, here and on
    /// other ranks, end within milliseconds with [`Error::Stopped`], which names this rank and the
    /// reason. So do later ones, or with [`Error::Broken`] where one has failed before. Of a
    /// communicator that has ended or was closed it does nothing.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn abort(&self, reason: &str) -> Result<(), Error> {
        if !self.origin.is_here() {
            return Err(Error::Forked);
        }
        if self.ranks.error().is_none() && !self.ranks.has_left() {
            self.ranks.abort(reason);
        }
        Ok(())
    }

    /// Why the communicator has ended, if it has: by a failure of this rank's calls, by one that
    /// another rank has told of, or by an abort. It waits for nothing. `None` also of a
    /// communicator that was closed.
    pub fn error(&self) -> Option<Error> {
        self.ranks.error()
    }
}
