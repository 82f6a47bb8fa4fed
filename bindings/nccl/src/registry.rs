//! Handles: what C holds are numbers that are never used twice, so that a handle that has ended, or
//! never was one, is refused and not followed.

use crate::abi::CommHandle;
use crate::answer::{Answer, Failure, lock};
use crate::comm::Comm;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

struct Live {
    last: CommHandle,
    comms: BTreeMap<CommHandle, Arc<Comm>>,
}

/// Handles are far from small numbers and from addresses, so that these are not taken for one.
static LIVE: Mutex<Live> = Mutex::new(Live { last: 0x6f78_0000_0000, comms: BTreeMap::new() });

/// A handle for a communicator.
pub(crate) fn add(comm: Arc<Comm>) -> CommHandle {
    let mut live = lock(&LIVE);
    live.last += 64;
    let handle = live.last;
    live.comms.insert(handle, comm);
    handle
}

/// The communicator of a handle.
pub(crate) fn get(handle: CommHandle) -> Answer<Arc<Comm>> {
    lock(&LIVE).comms.get(&handle).cloned().ok_or_else(|| unknown(handle))
}

/// The same, whose handle ends here.
pub(crate) fn remove(handle: CommHandle) -> Answer<Arc<Comm>> {
    lock(&LIVE).comms.remove(&handle).ok_or_else(|| unknown(handle))
}

fn unknown(handle: CommHandle) -> Failure {
    Failure::argument(match handle {
        0 => "the communicator is NULL".into(),
        _ => format!("{handle:#x} is no communicator, or one that was destroyed"),
    })
}
