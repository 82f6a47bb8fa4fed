//! `ncclCommWindowRegister`: memory that the other ranks reach in place.

use crate::answer::{Answer, Failure, lock};
use oxccl::{Communicator, Error, Registration};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// NCCL's flags: symmetric, strictly ordered.
const SERVED: c_int = 1 | 2;
/// Those for one-sided calls and counted writes alone.
const ONE_SIDED: c_int = 4 | 8;

/// A window of this rank's.
#[derive(Debug)]
struct Window {
    address: usize,
    /// None where all reach the memory as it is.
    registration: Option<Registration>,
}

/// A communicator's windows, by handle.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<BTreeMap<usize, Window>>);

/// What flags ask for that can be had.
pub(crate) fn check(address: usize, len_bytes: usize, flags: c_int) -> Answer {
    if address == 0 || len_bytes == 0 {
        return Err(Failure::argument("there is nothing to register"));
    }
    if flags & !(SERVED | ONE_SIDED) != 0 {
        return Err(Failure::argument(format!("winFlags is {flags:#x}")));
    }
    if flags & ONE_SIDED != 0 {
        let text = "a window for one-sided calls alone: oxccl has no one-sided calls";
        return Err(Failure::usage(text));
    }
    Ok(())
}

impl Windows {
    /// Registers memory with all ranks, which all do so. The handle; 0 where the memory cannot be
    /// reached in place, on all ranks alike: calls over it go through slots.
    pub(crate) fn open(
        &self,
        comm: &Communicator,
        address: usize,
        len_bytes: usize,
    ) -> Answer<usize> {
        static LAST: AtomicUsize = AtomicUsize::new(0x6f79_0000_0000);
        let at = std::ptr::with_exposed_provenance(address);
        let registration = match comm.register(at, len_bytes) {
            Ok(registration) => Some(registration),
            Err(Error::Unsupported { .. }) => None,
            // It has been logged with the reason.
            Err(Error::NotRegistered { .. }) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let handle = LAST.fetch_add(64, Ordering::Relaxed) + 64;
        lock(&self.0).insert(handle, Window { address, registration });
        Ok(handle)
    }

    /// Ends a window, by this rank alone.
    pub(crate) fn close(&self, comm: &Communicator, handle: usize) -> Answer {
        let window = lock(&self.0).remove(&handle).ok_or_else(|| unknown(handle))?;
        match window.registration {
            Some(registration) => Ok(comm.deregister_alone(registration)?),
            None => Ok(()),
        }
    }

    /// The address that a window was registered with.
    pub(crate) fn address(&self, handle: usize) -> Answer<usize> {
        let windows = lock(&self.0);
        windows.get(&handle).map(|window| window.address).ok_or_else(|| unknown(handle))
    }
}

fn unknown(handle: usize) -> Failure {
    Failure::argument(format!("{handle:#x} is no window of this communicator"))
}
