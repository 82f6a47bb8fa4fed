//! The account of memory order (emulator/order.cpp): a library of its own, in which the kernels are
//! compiled so that each of their accesses is known.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Mutex, OnceLock};

use crate::emulator::Emulate;
use crate::memory;
use crate::registry::lock;
use crate::settings::settings;

struct Account {
    emulate: Emulate,
    begin_launch: unsafe extern "C" fn() -> u64,
    end_launch: unsafe extern "C" fn(u64),
    forget: unsafe extern "C" fn(u64, u64),
    host: unsafe extern "C" fn(u64, u64, Host),
    awaited: unsafe extern "C" fn(u64),
}

/// Where memory is. Its key is the same whatever addresses it has.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len_bytes: u64,
    key: u64,
}

/// Mapped files: start, length and key.
static MAPPED: Mutex<BTreeMap<usize, (usize, u64)>> = Mutex::new(BTreeMap::new());

/// The key of a file's first byte: no address is one.
pub(crate) fn key_of_file(inode: u64) -> u64 {
    1 << 63 | inode << 32
}

/// A file is mapped there now, or nothing.
pub(crate) fn map(start: usize, len: usize, key: Option<u64>) {
    let mut mapped = lock(&MAPPED);
    mapped.remove(&start);
    if let Some(key) = key {
        mapped.insert(start, (len, key));
    }
}

/// Nothing is mapped in these addresses any more.
pub(crate) fn forget_mappings(start: usize, len: usize) {
    lock(&MAPPED).retain(|at, _| !(start..start + len).contains(at));
}

fn ranges() -> Vec<Range> {
    let host = memory::host_ranges().into_iter();
    let mut all: Vec<Range> = host
        .map(|(start, len)| Range { start: start as u64, len_bytes: len as u64, key: start as u64 })
        .collect();
    let mapped = lock(&MAPPED);
    all.extend(mapped.iter().map(|(start, (len, key))| Range {
        start: *start as u64,
        len_bytes: *len as u64,
        key: *key,
    }));
    all.sort_by_key(|range| range.start);
    all
}

/// Writes what there is room for; the number of all.
unsafe extern "C" fn find_ranges(into: *mut Range, room: u32) -> u32 {
    let all = ranges();
    for (at, range) in all.iter().take(room as usize).enumerate() {
        // SAFETY: there is room for so many.
        unsafe { into.add(at).write(*range) };
    }
    all.len() as u32
}

/// The account, if one is kept.
fn account() -> Option<&'static Account> {
    static ACCOUNT: OnceLock<Option<Account>> = OnceLock::new();
    ACCOUNT.get_or_init(|| settings().memory_order.as_deref().map(open)).as_ref()
}

fn open(path: &str) -> Account {
    let name = CString::new(path).unwrap_or_default();
    // SAFETY: a name with a zero at its end.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "OXCCL_STAND_IN_MEMORY_ORDER: {path} cannot be loaded");
    let symbol = |name: &CStr| {
        // SAFETY: a library that is open, and a name with a zero at its end.
        let at = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!at.is_null(), "{path} has no {name:?}");
        at
    };
    // SAFETY: emulator/order.cpp and emulator/block.cpp have them so.
    unsafe {
        let register: unsafe extern "C" fn(unsafe extern "C" fn(*mut Range, u32) -> u32) =
            std::mem::transmute(symbol(c"oxccl_order_open"));
        register(find_ranges);
        Account {
            emulate: std::mem::transmute::<*mut c_void, Emulate>(symbol(c"oxccl_emulate")),
            begin_launch: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(
                symbol(c"oxccl_order_begin_launch"),
            ),
            end_launch: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64)>(symbol(
                c"oxccl_order_end_launch",
            )),
            forget: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, u64)>(symbol(
                c"oxccl_order_forget",
            )),
            host: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, u64, Host)>(symbol(
                c"oxccl_order_host",
            )),
            awaited: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64)>(symbol(
                c"oxccl_order_awaited",
            )),
        }
    }
}

/// What runs blocks, instead of the emulator that is built in.
pub(crate) fn emulator() -> Option<Emulate> {
    account().map(|account| account.emulate)
}

/// A launch, until it is dropped at its end. Those that begin later know what it has done.
pub(crate) struct Counted(pub(crate) u64);

pub(crate) fn launch() -> Counted {
    // SAFETY: it needs nothing.
    Counted(account().map_or(0, |account| unsafe { (account.begin_launch)() }))
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(account) = account() {
            // SAFETY: it began, and its blocks are at their ends.
            unsafe { (account.end_launch)(self.0) };
        }
    }
}

/// What the host, or a copy in a stream, is about to do with memory.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(crate) enum Host {
    Loads,
    Stores,
    GivesBack,
}

/// What ended launches have done and known is in front of it, and nothing else.
pub(crate) fn host(start: usize, len: usize, what: Host) {
    let Some(account) = account() else { return };
    for range in ranges() {
        let from = range.start.max(start as u64);
        let to = (range.start + range.len_bytes).min((start + len) as u64);
        if from < to {
            // SAFETY: it only looks at its own tables.
            unsafe { (account.host)(range.key + (from - range.start), to - from, what) };
        }
    }
}

/// A stream has waited for a word's value.
pub(crate) fn awaited(at: usize) {
    let Some(account) = account() else { return };
    for range in ranges() {
        if (range.start..range.start + range.len_bytes).contains(&(at as u64)) {
            // SAFETY: it only looks at its own tables.
            unsafe { (account.awaited)(range.key + (at as u64 - range.start)) };
        }
    }
}

/// A file is new: its number may have been another one's.
pub(crate) fn forget_file(inode: u64, len: usize) {
    if let Some(account) = account() {
        // SAFETY: as above.
        unsafe { (account.forget)(key_of_file(inode), len as u64) };
    }
}
