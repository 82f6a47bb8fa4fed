//! Ids: where ranks meet, as 128 bytes of text. The process that makes one serves the meeting.

use crate::abi::{CommHandle, Id};
use crate::address;
use crate::answer::{Answer, Failure, lock};
use oxccl::UniqueId;
use oxccl_transports::Server;
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

/// Servers of ids from which this process has made no communicator yet.
static UNUSED: Mutex<BTreeMap<String, Arc<Server>>> = Mutex::new(BTreeMap::new());
/// Those that communicators of this process hold.
static USED: Mutex<BTreeMap<String, Weak<Server>>> = Mutex::new(BTreeMap::new());

/// `ncclGetUniqueId`.
pub(crate) fn make() -> Answer<Id> {
    let (_, ip) = address::own(|name| std::env::var(name).ok())?;
    let (id, server) = UniqueId::create_on(&SocketAddr::new(ip, 0).to_string())?;
    let text = id.to_string();
    let mut bytes = [0; Id::LEN];
    if text.len() >= bytes.len() {
        return Err(Failure::usage(format!("the address {ip} is too long for an id")));
    }
    for (to, byte) in bytes.iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    lock(&UNUSED).insert(text, Arc::new(server));
    Ok(Id { bytes })
}

/// What the bytes say, and the server, if it is this process'. It lives as long as a communicator
/// that was made from it, and before that.
pub(crate) fn read(id: &Id) -> Answer<(UniqueId, Option<Arc<Server>>)> {
    let bytes: Vec<u8> = id.bytes.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8(bytes).unwrap_or_default();
    let unique_id = text.parse().map_err(|_| {
        Failure::argument("the id was not made by this library's ncclGetUniqueId on any rank")
    })?;
    let mut used = lock(&USED);
    let server = lock(&UNUSED).remove(&text);
    let server = server.or_else(|| used.get(&text).and_then(Weak::upgrade));
    used.retain(|_, server| server.strong_count() > 0);
    if let Some(server) = &server {
        used.insert(text, Arc::downgrade(server));
    }
    Ok((unique_id, server))
}

/// An id from bytes in memory.
///
/// # Safety
/// There are that many ids.
pub(crate) unsafe fn first(ids: *const Id, count: i32) -> Answer<Id> {
    if ids.is_null() || count < 1 {
        return Err(Failure::argument("there is no id"));
    }
    // SAFETY: by this function's contract there is one.
    Ok(unsafe { ids.read_unaligned() })
}

const _: () = assert!(size_of::<CommHandle>() == size_of::<*const ()>());
