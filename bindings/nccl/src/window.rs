//! `ncclCommWindowRegister`: memory that the other ranks reach in place.

use crate::answer::{Answer, Failure, lock};
use crate::memory::with_last_page;
use oxccl::{Collectives, Communicator, Device, Error, HostRegistration, ReduceOp, Registration};
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
    reached: Reached,
}

/// How the others reach a window's memory.
#[derive(Debug)]
enum Reached {
    /// As it is.
    AsItIs,
    /// Registered with the GPU's driver.
    Gpu(Registration),
    /// Its pages are in this rank's heap, until this is dropped.
    Host(#[expect(dead_code, reason = "held to be dropped")] HostRegistration<'static, u8>),
}

impl Reached {
    /// Registers memory with all ranks; none where it cannot be reached in place, on all ranks
    /// alike.
    fn by(comm: &Communicator, address: usize, len_bytes: usize) -> Answer<Option<Reached>> {
        match comm.device() {
            Device::Host => Reached::on_host(comm, address, len_bytes),
            Device::Cuda(_) => {
                let at = std::ptr::with_exposed_provenance(address);
                match comm.register(at, len_bytes) {
                    Ok(registration) => Ok(Some(Reached::Gpu(registration))),
                    Err(Error::Unsupported { .. }) => Ok(Some(Reached::AsItIs)),
                    // It has been logged with the reason.
                    Err(Error::NotRegistered { .. }) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    fn on_host(comm: &Communicator, address: usize, len_bytes: usize) -> Answer<Option<Reached>> {
        let len_bytes = with_last_page(address, len_bytes);
        let at = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: it is the caller's for as long as the window is open, and is not looked at here.
        let memory = unsafe { std::slice::from_raw_parts_mut(at, len_bytes) };
        let own = match comm.register_host(memory) {
            Ok(registration) => Ok(Some(registration)),
            Err(Error::NotLent { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        // Where one rank has none, none has.
        let mut all = [u8::from(matches!(own, Ok(Some(_))))];
        comm.all_reduce_in_place(&mut all, ReduceOp::Min)?;
        Ok(own?.filter(|_| all == [1]).map(Reached::Host))
    }
}

/// A communicator's windows, by handle.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<BTreeMap<usize, Window>>);

/// What flags ask for that can be had.
pub(crate) fn check(address: usize, len_bytes: usize, flags: c_int) -> Answer {
    if address == 0 || len_bytes == 0 {
        return Err(Failure::argument("there is nothing to register"));
    }
    let end = address.checked_add(len_bytes);
    if end.is_none() || isize::try_from(len_bytes).is_err() {
        return Err(Failure::argument(format!("size {len_bytes} is more than memory can have")));
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
        let Some(reached) = Reached::by(comm, address, len_bytes)? else { return Ok(0) };
        let handle = LAST.fetch_add(64, Ordering::Relaxed) + 64;
        lock(&self.0).insert(handle, Window { address, reached });
        Ok(handle)
    }

    /// Ends a window, by this rank alone.
    pub(crate) fn close(&self, comm: &Communicator, handle: usize) -> Answer {
        let window = lock(&self.0).remove(&handle).ok_or_else(|| unknown(handle))?;
        match window.reached {
            Reached::Gpu(registration) => Ok(comm.deregister_alone(registration)?),
            Reached::Host(_) | Reached::AsItIs => Ok(()),
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
