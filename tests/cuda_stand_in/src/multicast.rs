//! NVSwitch multicast: teams of devices, one address for memory of all of them.
//!
//! A team is a memory file, which other processes import: a board on which each device's state
//! stands, and where its memory is found: the process that has bound it, and the descriptor there.
//! The address is never accessible; a launch gets, instead of a switch, where each device's memory
//! really is ([`members`]). What would wait for other devices on hardware is refused here.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{
    CUdevice, CUmemGenericAllocationHandle, CUmulticastGranularity_flags, CUmulticastObjectProp,
    CUresult,
};
use oxccl_kernels::format::Launch;

use crate::call::{Answer, driver_calls, put};
use crate::memory::{self, Kind};
use crate::pages::{self, GRANULARITY, Span};
use crate::registry::{Registry, lock};
use crate::settings::settings;
use crate::virtual_memory::{PHYSICAL, POSIX};
use crate::{device, virtual_memory};

pub(crate) static TEAMS: Registry<Team> = Registry::new(9);

/// The name of teams' files.
pub(crate) const NAME: &str = "oxccl-stand-in-team";
/// Devices of a board, by number.
const DEVICES: usize = 16;

/// What a device has done.
const JOINED: u32 = 1;
const BOUND: u32 = 2;

/// What all processes see.
#[repr(C)]
struct Board {
    gpus: AtomicU64,
    len: AtomicU64,
    devices: [Entry; DEVICES],
}

#[repr(C)]
struct Entry {
    state: AtomicU32,
    /// Where the memory is found once it is bound.
    process: AtomicU32,
    descriptor: AtomicI32,
    reserved: AtomicU32,
}

/// A team, as this process sees it.
pub(crate) struct Team {
    file: OwnedFd,
    board: Span,
    /// Memory that this process has bound.
    bound: Mutex<BTreeMap<CUdevice, OwnedFd>>,
    /// All devices' memory, once a launch has asked for it.
    members: Mutex<Option<Vec<Span>>>,
}

impl Team {
    fn over(file: OwnedFd) -> Answer<Team> {
        let board = Span::reserve(GRANULARITY)?;
        board.map(0, GRANULARITY, &file, true)?;
        Ok(Team { file, board, bound: Mutex::default(), members: Mutex::default() })
    }

    fn create(gpus: usize, len: usize) -> Answer<Team> {
        let name = std::ffi::CString::new(NAME).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        let team = Team::over(pages::file(&name, GRANULARITY)?)?;
        team.board().gpus.store(gpus as u64, Ordering::Release);
        team.board().len.store(len as u64, Ordering::Release);
        Ok(team)
    }

    /// The team of a descriptor that some process exported.
    pub(crate) fn import(file: OwnedFd) -> Answer<Team> {
        Team::over(file)
    }

    pub(crate) fn export(&self) -> Answer<OwnedFd> {
        self.file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }

    fn board(&self) -> &Board {
        // SAFETY: mapped as long as this, zeroed when it was made, and accessed as atomics alone.
        unsafe { &*(self.board.start as *const Board) }
    }

    pub(crate) fn len(&self) -> usize {
        self.board().len.load(Ordering::Acquire) as usize
    }

    fn gpus(&self) -> usize {
        self.board().gpus.load(Ordering::Acquire) as usize
    }

    fn entry(&self, device: CUdevice) -> Answer<&Entry> {
        let at = usize::try_from(device).ok();
        let entry = at.and_then(|at| self.board().devices.get(at));
        entry.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Whether as many devices as the team has are at least so far.
    pub(crate) fn have_all(&self, state: u32) -> bool {
        let devices = self.board().devices.iter();
        let so_far = |entry: &&Entry| entry.state.load(Ordering::Acquire) >= state;
        devices.filter(so_far).count() == self.gpus()
    }

    /// Whether memory can be bound and mapped, for which the driver waits.
    pub(crate) fn check_joined(&self) -> Answer {
        if self.have_all(JOINED) {
            return Ok(());
        }
        eprintln!("stand-in: not all devices of a multicast team have joined it");
        Err(CUresult::CUDA_ERROR_NOT_READY)
    }

    /// Maps all devices' memory into this process, once.
    fn map_members(&self) -> Answer<Vec<usize>> {
        let mut members = lock(&self.members);
        if members.is_none() {
            if !self.have_all(BOUND) {
                eprintln!("stand-in: not all devices of a multicast team have bound memory");
                return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            }
            let bound = self.board().devices.iter();
            let bound = bound.filter(|entry| entry.state.load(Ordering::Acquire) == BOUND);
            *members = Some(bound.map(|entry| self.map(entry)).collect::<Answer<_>>()?);
        }
        Ok(members.iter().flatten().map(|span| span.start).collect())
    }

    fn map(&self, entry: &Entry) -> Answer<Span> {
        let process = entry.process.load(Ordering::Acquire);
        let descriptor = entry.descriptor.load(Ordering::Acquire);
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        let span = Span::reserve(self.len())?;
        span.map(0, self.len(), &file.into(), true)?;
        Ok(span)
    }
}

/// Launches that have had a multicast address.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// How far each device's memory is from a launch's multicast address, if it has one.
pub(crate) fn members(launch: &Launch) -> Answer<Option<Vec<u64>>> {
    let multicast = &launch.multicast;
    if multicast.base.is_null() {
        return Ok(None);
    }
    let base = multicast.base as usize;
    let mapped = match memory::find(base) {
        Some(range) if range.start == base => match range.kind {
            Kind::Multicast(team, true) => Some(team),
            _ => None,
        },
        _ => None,
    };
    let inside = |team: &Arc<Team>| {
        let len = team.len() as u64;
        let of_nodes = (launch.ranks as usize).is_multiple_of(team.gpus());
        multicast.input < len && multicast.output < len && of_nodes
    };
    let Some(team) = mapped.filter(inside) else {
        eprintln!(
            "stand-in: {base:#x} is no multicast address of the launch's ranks, or of a node's"
        );
        return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    };
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let distance = |start: usize| (start as u64).wrapping_sub(base as u64);
    Ok(Some(team.map_members()?.into_iter().map(distance).collect()))
}

/// Whether a device can join teams.
pub(crate) fn is_supported(device: CUdevice) -> bool {
    usize::try_from(device).is_ok_and(|device| device < settings().multicast)
}

fn check(prop: *const CUmulticastObjectProp) -> Answer<CUmulticastObjectProp> {
    if settings().multicast == 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    if prop.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: whoever calls the driver passes one that can be read.
    let prop = unsafe { prop.read() };
    let alone = (prop.numDevices as usize) < 2 || prop.numDevices as usize > DEVICES;
    if alone || prop.handleTypes != u64::from(POSIX.0) || prop.flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(prop)
}

driver_calls! {
    fn cuMulticastGetGranularity(
        out: *mut usize,
        prop: *const CUmulticastObjectProp,
        _option: CUmulticastGranularity_flags,
    ) {
        // Drivers may refuse a team without memory.
        if check(prop)?.size == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(out, GRANULARITY)
    }

    fn cuMulticastCreate(out: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp) {
        let prop = check(prop)?;
        if virtual_memory::whole(prop.size)? == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let team = Team::create(prop.numDevices as usize, prop.size)?;
        put(out, TEAMS.add(Arc::new(team)) as u64)
    }

    fn cuMulticastAddDevice(handle: CUmemGenericAllocationHandle, dev: CUdevice) {
        let team = TEAMS.find(handle as usize)?;
        device::check(dev)?;
        if !is_supported(dev) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let free = team.entry(dev)?.state.compare_exchange(0, JOINED, Ordering::AcqRel, Ordering::Acquire);
        free.map(|_| ()).map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    fn cuMulticastBindMem(
        handle: CUmemGenericAllocationHandle,
        offset: usize,
        memory: CUmemGenericAllocationHandle,
        memory_offset: usize,
        len: usize,
        flags: u64,
    ) {
        let (team, physical) = (TEAMS.find(handle as usize)?, PHYSICAL.find(memory as usize)?);
        team.check_joined()?;
        // Whole teams' memory is all that is bound by us.
        let fits = len == team.len() && len <= physical.len() && [offset, memory_offset] == [0, 0];
        if flags != 0 || !fits || virtual_memory::whole(len)? == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let entry = team.entry(physical.device())?;
        if entry.state.load(Ordering::Acquire) != JOINED {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        let file = physical.copy()?;
        entry.process.store(std::process::id(), Ordering::Release);
        entry.descriptor.store(file.as_raw_fd(), Ordering::Release);
        lock(&team.bound).insert(physical.device(), file);
        entry.state.store(BOUND, Ordering::Release);
        Ok(())
    }

    fn cuMulticastUnbind(handle: CUmemGenericAllocationHandle, dev: CUdevice, offset: usize, len: usize) {
        let team = TEAMS.find(handle as usize)?;
        let whole = offset == 0 && len == team.len();
        match lock(&team.bound).remove(&dev).filter(|_| whole) {
            Some(_) => {
                team.entry(dev)?.state.store(JOINED, Ordering::Release);
                Ok(())
            }
            None => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}
