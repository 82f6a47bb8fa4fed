//! What addresses belong to, and plain allocations.
//!
//! Small allocations share blocks of 2 MiB, as the driver's do: that is what legacy IPC exports.
//! Memory is filled with a pattern when it is handed out and when it is freed, so that whoever
//! takes it for zeroed, or still reads it, notices.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUresult};

use crate::call::{Answer, driver_calls, put};
use crate::multicast::Team;
use crate::order::{self, Host};
use crate::pages::{self, GRANULARITY, Span};
use crate::registry::lock;
use crate::settings::settings;
use crate::virtual_memory::Physical;
use crate::{capture, context};

/// A range of addresses that devices can use.
#[derive(Clone)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    pub(crate) device: CUdevice,
    pub(crate) context: usize,
    /// Never given twice in a process.
    pub(crate) id: u64,
}

#[derive(Clone)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Plain(Arc<Block>),
    /// `cuMemMap`; accessible or not.
    Mapped(Arc<Physical>, bool),
    /// `cuMemMap` of a team's memory; accessible or not, but only as a multicast address.
    Multicast(Arc<Team>, bool),
    /// `cuIpcOpenMemHandle`.
    Imported,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`; whether it is mapped for devices.
    Registered(bool),
}

impl Kind {
    pub(crate) fn is_host(&self) -> bool {
        matches!(self, Kind::Pinned | Kind::Registered(_))
    }
}

/// A memory file and where it is mapped.
pub(crate) struct Block {
    pub(crate) file: OwnedFd,
    pub(crate) span: Span,
    device: CUdevice,
}

static RANGES: Mutex<BTreeMap<usize, Range>> = Mutex::new(BTreeMap::new());
static BLOCKS: Mutex<Vec<Shared>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static USED: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// Allocations of at least this size have blocks of their own.
const OWN_BLOCK: usize = 1 << 20;
const GRAIN: usize = 512;

/// A block that small allocations share.
struct Shared {
    block: Arc<Block>,
    /// What was never used begins here.
    next: usize,
    /// Freed parts (offset, length).
    free: Vec<(usize, usize)>,
}

/// Enters a range.
pub(crate) fn enter(start: usize, len: usize, kind: Kind, device: CUdevice, context: usize) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    lock(&RANGES).insert(start, Range { start, len, kind, device, context, id });
}

pub(crate) fn leave(start: usize) -> Option<Range> {
    lock(&RANGES).remove(&start)
}

/// Changes a range that is there.
pub(crate) fn change(start: usize, change: impl FnOnce(&mut Range)) {
    lock(&RANGES).get_mut(&start).map(change);
}

/// The range that an address lies in.
pub(crate) fn find(address: usize) -> Option<Range> {
    let ranges = lock(&RANGES);
    let (_, range) = ranges.range(..=address).next_back()?;
    (address < range.start + range.len).then(|| range.clone())
}

/// Starts and lengths of the host's memory that devices reach.
pub(crate) fn host_ranges() -> Vec<(usize, usize)> {
    let ranges = lock(&RANGES);
    ranges
        .values()
        .filter(|range| range.kind.is_host())
        .map(|range| (range.start, range.len))
        .collect()
}

/// Whether any range overlaps these addresses.
pub(crate) fn overlaps(start: usize, len: usize) -> bool {
    let ranges = lock(&RANGES);
    ranges.range(..start + len).next_back().is_some_and(|(_, r)| r.start + r.len > start)
}

/// Whether a device can access all of these addresses.
pub(crate) fn is_reachable(start: usize, len: usize) -> bool {
    let Some(range) = find(start) else { return false };
    let accessible = match range.kind {
        Kind::Mapped(_, access) => access,
        Kind::Registered(mapped) => mapped,
        // Other accesses than a switch's are undefined.
        Kind::Multicast(..) => false,
        _ => true,
    };
    accessible && start + len <= range.start + range.len
}

/// Number of ranges of a kind.
pub(crate) fn count(is_kind: impl Fn(&Kind) -> bool) -> usize {
    lock(&RANGES).values().filter(|range| is_kind(&range.kind)).count()
}

/// Takes memory of a device's.
pub(crate) fn take(device: CUdevice, len: usize) -> Answer {
    let used = &USED[device as usize % USED.len()];
    let fits = |used: usize| used.checked_add(len).filter(|sum| *sum <= settings().memory_bytes);
    let taken = used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
    taken.map(|_| ()).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

pub(crate) fn give_back(device: CUdevice, len: usize) {
    USED[device as usize % USED.len()].fetch_sub(len, Ordering::AcqRel);
}

/// Overwrites memory that nobody may rely on. Of what is large, every sixteenth page is enough: it
/// is found as surely by who reads all of it, and the others take no memory until somebody writes
/// them.
pub(crate) fn spoil(start: usize, len: usize) {
    const SPOILED: u8 = 0xa5;
    const ALL_OF: usize = 1 << 20;
    const PAGE: usize = 4096;
    order::host(start, len, Host::GivesBack);
    // SAFETY: a range of a block that is mapped, and that is not, or no longer, anybody's.
    let spoil = |at: usize, len| unsafe { std::ptr::write_bytes(at as *mut u8, SPOILED, len) };
    spoil(start, len.min(ALL_OF));
    for at in (start + ALL_OF..start + len).step_by(16 * PAGE).take(1 << 14) {
        spoil(at, PAGE.min(start + len - at));
    }
}

/// Zeroes a range of device memory. Its whole pages are given back, and read as zeros from then on:
/// it is the same to whoever looks at them, and most of what is cleared at a start is never used.
///
/// # Safety
///
/// It is mapped from a block, writable, and the caller's to write.
pub(crate) unsafe fn zero(start: usize, len: usize) {
    const PAGE: usize = 4096;
    let (pages, end) = (start.next_multiple_of(PAGE), (start + len) / PAGE * PAGE);
    let given_back = end.saturating_sub(pages) >= 16 * PAGE
        // SAFETY: pages that belong to the range wholly; a block is a shared file.
        && unsafe { libc::madvise(pages as *mut c_void, end - pages, libc::MADV_REMOVE) } == 0;
    // SAFETY: the caller's promise.
    let zero =
        |from: usize, to: usize| unsafe { std::ptr::write_bytes(from as *mut u8, 0, to - from) };
    if given_back {
        zero(start, pages);
        zero(end, start + len);
    } else {
        zero(start, start + len);
    }
}

impl Block {
    fn new(device: CUdevice, len: usize) -> Answer<Arc<Block>> {
        take(device, len)?;
        let make = || {
            let file = pages::file(c"oxccl-stand-in", len)?;
            let span = Span::reserve(len)?;
            span.map(0, len, &file, true)?;
            Ok(Arc::new(Block { file, span, device }))
        };
        make().inspect_err(|_| give_back(device, len))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        give_back(self.device, self.span.len);
    }
}

fn allocate(device: CUdevice, len: usize) -> Answer<(usize, Arc<Block>)> {
    if len >= OWN_BLOCK {
        let block = Block::new(device, len.next_multiple_of(GRANULARITY))?;
        return Ok((block.span.start, block));
    }
    let len = len.next_multiple_of(GRAIN);
    let mut blocks = lock(&BLOCKS);
    for shared in blocks.iter_mut().filter(|shared| shared.block.device == device) {
        // The last one freed first: addresses come again as soon as they can.
        if let Some(at) = shared.free.iter().rposition(|(_, free)| *free == len) {
            let (offset, _) = shared.free.remove(at);
            return Ok((shared.block.span.start + offset, shared.block.clone()));
        }
        if shared.next + len <= GRANULARITY {
            shared.next += len;
            return Ok((shared.block.span.start + shared.next - len, shared.block.clone()));
        }
    }
    let block = Block::new(device, GRANULARITY)?;
    blocks.push(Shared { block: block.clone(), next: len, free: Vec::new() });
    Ok((block.span.start, block))
}

fn free(range: Range) {
    let Kind::Plain(block) = range.kind else { return };
    spoil(range.start, range.len);
    let mut blocks = lock(&BLOCKS);
    let Some(at) = blocks.iter().position(|shared| Arc::ptr_eq(&shared.block, &block)) else {
        return;
    };
    let part = (range.start - block.span.start, range.len.next_multiple_of(GRAIN));
    blocks[at].free.push(part);
    drop(block);
    if Arc::strong_count(&blocks[at].block) == 1 {
        blocks.remove(at);
    }
}

driver_calls! {
    fn cuMemAlloc_v2(out: *mut CUdeviceptr, len: usize) {
        let (handle, context) = context::current()?;
        capture::forbid()?;
        if len == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        context::may_wait()?;
        let (start, block) = allocate(context.device, len)?;
        spoil(start, len);
        enter(start, len, Kind::Plain(block), context.device, handle);
        put(out, start as CUdeviceptr)
    }

    fn cuMemFree_v2(at: CUdeviceptr) {
        let (_, context) = context::current()?;
        capture::forbid()?;
        let range = find(at as usize).filter(|range| range.start == at as usize);
        let Some(range) = range.filter(|range| matches!(range.kind, Kind::Plain(_))) else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        // The driver waits for what may still use it.
        context.drain(range.context);
        leave(range.start);
        free(range);
        Ok(())
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (_, context) = context::current()?;
        let used = USED[context.device as usize % USED.len()].load(Ordering::Acquire);
        put(free, settings().memory_bytes - used)?;
        put(total, settings().memory_bytes)
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, at: CUdeviceptr) {
        let range = find(at as usize).filter(|range| !range.kind.is_host());
        let range = range.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        if !base.is_null() {
            put(base, range.start as CUdeviceptr)?;
        }
        if size.is_null() { Ok(()) } else { put(size, range.len) }
    }
}
