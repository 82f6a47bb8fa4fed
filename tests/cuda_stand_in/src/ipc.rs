//! Legacy IPC: handles of plain allocations. What changes hands is the whole block that an
//! allocation lies in.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

use cudarc::driver::sys::{CUdeviceptr, CUipcMemHandle, CUresult};

use crate::call::{Answer, driver_calls, put};
use crate::memory::{self, Kind};
use crate::pages::{self, Span};
use crate::registry::lock;
use crate::{capture, context};

/// What a handle's bytes mean.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ticket {
    magic: u64,
    inode: u64,
    block_len: u64,
    offset: u64,
    process: u32,
    file: i32,
    device: i32,
    reserved: [u32; 5],
}

const MAGIC: u64 = 0x7069_6364_6e61_7473;
const _: () = assert!(size_of::<Ticket>() == size_of::<CUipcMemHandle>());

/// A block of another process.
struct Opened {
    inode: u64,
    span: Span,
    _file: OwnedFd,
    /// How often each address has been handed out.
    uses: BTreeMap<usize, usize>,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

fn ticket_of(at: usize) -> Answer<Ticket> {
    let range = memory::find(at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Plain(block) = &range.kind else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
    let (block_len, inode) = pages::status(&block.file)?;
    Ok(Ticket {
        magic: MAGIC,
        inode,
        block_len: block_len as u64,
        // Of the allocation, wherever in it the pointer is.
        offset: (range.start - block.span.start) as u64,
        process: std::process::id(),
        file: block.file.as_raw_fd(),
        device: range.device,
        reserved: [0; 5],
    })
}

fn open(ticket: &Ticket, device: i32, context: usize) -> Answer<usize> {
    let gone = CUresult::CUDA_ERROR_INVALID_VALUE;
    let mut opened = lock(&OPENED);
    let known = opened.iter().position(|block| block.inode == ticket.inode);
    let at = match known {
        Some(at) => at,
        None => {
            let path = format!("/proc/{}/fd/{}", ticket.process, ticket.file);
            let file = OpenOptions::new().read(true).write(true).open(path).map_err(|_| gone)?;
            let file = OwnedFd::from(file);
            if pages::status(&file)? != (ticket.block_len as usize, ticket.inode) {
                return Err(gone);
            }
            let span = Span::reserve(ticket.block_len as usize)?;
            span.map(0, span.len, &file, true)?;
            memory::enter(span.start, span.len, Kind::Imported, device, context);
            let uses = BTreeMap::new();
            opened.push(Opened { inode: ticket.inode, span, _file: file, uses });
            opened.len() - 1
        }
    };
    let start = opened[at].span.start + ticket.offset as usize;
    *opened[at].uses.entry(start).or_default() += 1;
    Ok(start)
}

driver_calls! {
    fn cuIpcGetMemHandle(out: *mut CUipcMemHandle, at: CUdeviceptr) {
        context::current()?;
        let ticket = ticket_of(at as usize)?;
        put(out.cast::<Ticket>(), ticket)
    }

    fn cuIpcOpenMemHandle_v2(out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32) {
        let (current, context) = context::current()?;
        capture::forbid()?;
        let ticket = (&raw const handle).cast::<Ticket>().read_unaligned();
        if ticket.magic != MAGIC || flags != 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // The driver does not open what the process itself exported.
        if ticket.process == std::process::id() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let own = ticket.device == context.device;
        if !own && !crate::device::reaches(context.device, ticket.device) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        put(out, open(&ticket, context.device, current)? as CUdeviceptr)
    }

    fn cuIpcCloseMemHandle(at: CUdeviceptr) {
        context::current()?;
        let at = at as usize;
        let mut opened = lock(&OPENED);
        let block = opened.iter().position(|block| block.uses.contains_key(&at));
        let block = block.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let uses = &mut opened[block].uses;
        if let Some(count) = uses.get_mut(&at) {
            *count -= 1;
        }
        uses.retain(|_, count| *count > 0);
        if uses.is_empty() {
            memory::leave(opened[block].span.start);
            opened.remove(block);
        }
        Ok(())
    }
}
