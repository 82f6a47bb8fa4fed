//! The virtual-memory API: physical memory, address space, mappings, and descriptors of the first.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocationType, CUresult,
};

use crate::call::{Answer, driver_calls, put};
use crate::memory::{self, Kind};
use crate::multicast::{TEAMS, Team};
use crate::pages::{self, GRANULARITY, Span};
use crate::registry::{Registry, lock};
use crate::settings::settings;
use crate::{context, device, multicast};

/// Physical memory, of this process or imported.
pub(crate) struct Physical {
    file: OwnedFd,
    len: usize,
    device: CUdevice,
    exportable: bool,
    imported: bool,
    /// Whether anybody has had access to it.
    used: AtomicBool,
}

pub(crate) static PHYSICAL: Registry<Physical> = Registry::new(2);
static SPANS: Mutex<BTreeMap<usize, Span>> = Mutex::new(BTreeMap::new());

pub(crate) const POSIX: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// The name of the memory files; the device's number is behind it.
const NAME: &str = "oxccl-stand-in-device-";

impl Physical {
    pub(crate) fn is_exportable(&self) -> bool {
        self.exportable
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    /// Another descriptor of it.
    pub(crate) fn copy(&self) -> Answer<OwnedFd> {
        self.file.try_clone().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if !self.imported {
            memory::give_back(self.device, self.len);
        }
    }
}

/// Reserved address ranges.
pub(crate) fn reservations() -> usize {
    lock(&SPANS).len()
}

fn supported() -> Answer {
    if settings().virtual_memory { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) }
}

/// Sizes and addresses count in the granularity.
pub(crate) fn whole(number: usize) -> Answer<usize> {
    if number.is_multiple_of(GRANULARITY) {
        Ok(number)
    } else {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

fn create(prop: &CUmemAllocationProp, len: usize) -> Answer<Physical> {
    let placed = prop.location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let pinned = prop.type_ == CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    if !placed || !pinned || whole(len)? == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let device = prop.location.id;
    device::check(device)?;
    let name = std::ffi::CString::new(format!("{NAME}{device}"))
        .map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
    memory::take(device, len)?;
    let file = pages::file(&name, len).inspect_err(|_| memory::give_back(device, len))?;
    let exportable = prop.requestedHandleTypes == POSIX;
    Ok(Physical { file, len, device, exportable, imported: false, used: AtomicBool::new(false) })
}

/// Finds out about a descriptor that some process exported; the handle of what it is.
fn import(fd: c_int) -> Answer<usize> {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let name = link.to_str().and_then(|name| name.strip_prefix("/memfd:")?.split(' ').next());
    let name = name.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: it is open, as its link shows, and the caller keeps it so during the call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let file = file.try_clone_to_owned().map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    if name == multicast::NAME {
        return Ok(TEAMS.add(Arc::new(Team::import(file)?)));
    }
    let device = name.strip_prefix(NAME).and_then(|device| device.parse().ok());
    let device = device.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    device::check(device)?;
    let (len, _) = pages::status(&file)?;
    Ok(PHYSICAL.add(Arc::new(Physical {
        file,
        len,
        device,
        exportable: true,
        imported: true,
        used: AtomicBool::new(true),
    })))
}

/// Calls `act` with the reservation that holds all of these addresses, and the offset into it.
fn with_span<T>(at: usize, len: usize, act: impl FnOnce(&Span, usize) -> Answer<T>) -> Answer<T> {
    let spans = lock(&SPANS);
    let found = spans.range(..=at).next_back().map(|(_, span)| span);
    match found.filter(|span| at + len <= span.start + span.len) {
        Some(span) => act(span, at - span.start),
        None => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// The mapping that is exactly this range.
fn mapping(at: usize, len: usize) -> Answer<(Arc<Physical>, CUdevice)> {
    match memory::find(at) {
        Some(range) if range.start == at && range.len == len => match range.kind {
            Kind::Mapped(physical, _) => Ok((physical, range.device)),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        },
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// The mapping of a team's memory that is exactly this range.
fn team_mapping(at: usize, len: usize) -> Answer<Arc<Team>> {
    match memory::find(at) {
        Some(range) if range.start == at && range.len == len => match range.kind {
            Kind::Multicast(team, _) => Ok(team),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        },
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Nothing is mapped there: no processor reaches a multicast address.
fn map_team(at: usize, len: usize, zeros: [u64; 2], team: Arc<Team>) -> Answer {
    team.check_joined()?;
    if zeros != [0, 0] || whole(len)? != team.len() || memory::overlaps(at, len) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    with_span(at, len, |_, _| Ok(()))?;
    let (handle, context) = context::current()?;
    memory::enter(at, len, Kind::Multicast(team, false), context.device, handle);
    Ok(())
}

fn grant_team(at: usize, team: &Arc<Team>, devices: impl Iterator<Item = CUdevice>) -> Answer {
    for device in devices {
        device::check(device)?;
    }
    memory::change(at, |range| range.kind = Kind::Multicast(team.clone(), true));
    Ok(())
}

driver_calls! {
    fn cuMemGetAllocationGranularity(
        out: *mut usize,
        prop: *const CUmemAllocationProp,
        _option: CUmemAllocationGranularity_flags,
    ) {
        supported()?;
        device::check((*prop).location.id)?;
        put(out, GRANULARITY)
    }

    fn cuMemCreate(
        out: *mut CUmemGenericAllocationHandle,
        len: usize,
        prop: *const CUmemAllocationProp,
        flags: u64,
    ) {
        supported()?;
        if flags != 0 || prop.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let physical = create(&*prop, len)?;
        put(out, PHYSICAL.add(Arc::new(physical)) as u64)
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        let handle = handle as usize;
        PHYSICAL.remove(handle).map(drop).or_else(|_| TEAMS.remove(handle).map(drop))
    }

    fn cuMemRetainAllocationHandle(out: *mut CUmemGenericAllocationHandle, at: *mut c_void) {
        match memory::find(at as usize).map(|range| range.kind) {
            Some(Kind::Mapped(physical, _)) => put(out, PHYSICAL.add(physical) as u64),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuMemExportToShareableHandle(
        out: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        kind: CUmemAllocationHandleType,
        flags: u64,
    ) {
        if kind != POSIX || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let copy = match TEAMS.find(handle as usize) {
            Ok(team) => team.export()?,
            Err(_) => {
                let physical = PHYSICAL.find(handle as usize)?;
                let exported = physical.exportable.then(|| physical.copy());
                exported.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)??
            }
        };
        put(out.cast::<c_int>(), copy.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(
        out: *mut CUmemGenericAllocationHandle,
        handle: *mut c_void,
        kind: CUmemAllocationHandleType,
    ) {
        supported()?;
        if kind != POSIX {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(out, import(handle as usize as c_int)? as u64)
    }

    fn cuMemAddressReserve(
        out: *mut CUdeviceptr,
        len: usize,
        alignment: usize,
        _wanted: CUdeviceptr,
        flags: u64,
    ) {
        supported()?;
        if flags != 0 || whole(len)? == 0 || alignment > GRANULARITY {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let span = Span::reserve(len)?;
        put(out, span.start as CUdeviceptr)?;
        lock(&SPANS).insert(span.start, span);
        Ok(())
    }

    fn cuMemAddressFree(at: CUdeviceptr, len: usize) {
        let mut spans = lock(&SPANS);
        let whole = spans.get(&(at as usize)).is_some_and(|span| span.len == len);
        if !whole || memory::overlaps(at as usize, len) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        spans.remove(&(at as usize));
        Ok(())
    }

    fn cuMemMap(
        at: CUdeviceptr,
        len: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) {
        if let Ok(team) = TEAMS.find(handle as usize) {
            return map_team(at as usize, len, [offset as u64, flags], team);
        }
        let physical = PHYSICAL.find(handle as usize)?;
        let taken = memory::overlaps(at as usize, len);
        if flags != 0 || offset != 0 || whole(len)? != physical.len || taken {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        with_span(at as usize, len, |span, offset| span.map(offset, len, &physical.file, false))?;
        let (device, context) = (physical.device, context::current().map_or(0, |(handle, _)| handle));
        memory::enter(at as usize, len, Kind::Mapped(physical, false), device, context);
        Ok(())
    }

    fn cuMemSetAccess(at: CUdeviceptr, len: usize, list: *const CUmemAccessDesc, count: usize) {
        if let Ok(team) = team_mapping(at as usize, len) {
            let wanted = (0..count).map(|index| (*list.add(index)).location.id);
            return grant_team(at as usize, &team, wanted);
        }
        let (physical, _) = mapping(at as usize, len)?;
        for index in 0..count {
            let wanted = &*list.add(index);
            device::check(wanted.location.id)?;
            let own = wanted.location.id == physical.device;
            if !own && !device::reaches(wanted.location.id, physical.device) {
                return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
            }
            let access = wanted.flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            with_span(at as usize, len, |span, offset| span.protect(offset, len, access))?;
            if access && !physical.used.swap(true, Ordering::AcqRel) {
                memory::spoil(at as usize, len);
            }
            let physical = physical.clone();
            memory::change(at as usize, |range| range.kind = Kind::Mapped(physical, access));
        }
        Ok(())
    }

    fn cuMemUnmap(at: CUdeviceptr, len: usize) {
        if team_mapping(at as usize, len).is_ok() {
            memory::leave(at as usize);
            return Ok(());
        }
        mapping(at as usize, len)?;
        memory::leave(at as usize);
        with_span(at as usize, len, |span, offset| span.clear(offset, len))
    }
}
