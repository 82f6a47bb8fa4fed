//! A communicator that gives back its GPU's memory between calls, and has it again.

use super::Engine;
use crate::call::Meeting;
use crate::error::Error;
use crate::target::Device;
use oxccl_transports::deadline_in;

impl Engine {
    /// Gives back what messages go through. All ranks call it.
    pub(crate) fn suspend(&mut self) -> Result<(), Error> {
        if self.backend.is_suspended() {
            return Err(Error::Suspended);
        }
        if self.device() == Device::Host {
            return Err(Error::Unsupported { what: "suspending", device: Device::Host });
        }
        let (number, record) = self.meet(Meeting::Suspend)?;
        let deadline = deadline_in(self.ranks.poll.timeout());
        let suspended = self
            .told(&record, &[], deadline)
            // No rank's kernel runs any more.
            .and_then(|_| self.backend.suspend())
            // Only now is it free: each rank had all of it mapped.
            .and_then(|()| self.told(&record, &[], deadline).map(drop));
        self.met(number, suspended)?;
        tracing::info!(rank = self.ranks.rank, bytes = self.staging_bytes, "suspended");
        Ok(())
    }

    /// Has it again. All ranks call it; where none is suspended, nothing changes.
    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        if self.device() == Device::Host {
            return Err(Error::Unsupported { what: "resuming", device: Device::Host });
        }
        let (number, record) = self.meet(Meeting::Resume)?;
        let deadline = deadline_in(self.ranks.poll.timeout());
        let resumed = self
            .told(&record, &[], deadline)
            .and_then(|_| self.backend.resume(&mut *self.bootstrap, deadline));
        self.met(number, resumed)?;
        tracing::info!(rank = self.ranks.rank, "resumed");
        Ok(())
    }

    /// Whether it is suspended.
    pub(crate) fn is_suspended(&self) -> bool {
        self.backend.is_suspended()
    }

    /// Ends a meeting, and with an error the communicator.
    pub(super) fn met<T>(&mut self, number: u64, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Ok(_) => self.ranks.control.log(self.ranks.rank).leave(number),
            Err(error) => drop(self.ranks.end(error, number)),
        }
        result
    }
}
