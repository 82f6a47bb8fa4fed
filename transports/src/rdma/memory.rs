//! Memory that adapters read and write.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::resource::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::device::Device;
use super::{RdmaError, sys};

/// A protection domain: queue pairs reach the memory that is registered in theirs.
pub struct Domain {
    device: Arc<Device>,
    raw: NonNull<sys::Domain>,
    /// What is registered now, so that no range is registered twice.
    registered: Mutex<Vec<Weak<MemoryRegion>>>,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// Registered memory: pinned, and known to the adapter by keys, until this is dropped.
pub struct MemoryRegion {
    raw: NonNull<sys::MemoryRegion>,
    start: u64,
    len_bytes: usize,
    domain: Arc<Domain>,
}

// SAFETY: as of `Domain`.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

/// Memory of another rank, as an adapter names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMemory {
    /// Where it begins, in the other rank's addresses.
    pub start: u64,
    /// Its length.
    pub len_bytes: usize,
    /// What the adapter there lets in.
    pub key: u32,
}

const ACCESS: c_int = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ;

/// How many bytes this process may pin; `None` where it may pin all.
pub fn locked_memory_limit() -> Option<u64> {
    let (limit_bytes, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (limit_bytes != libc::RLIM_INFINITY && !may_lock_all()).then_some(limit_bytes)
}

/// Whether this process has the capability to pin beyond the limit.
fn may_lock_all() -> bool {
    const IPC_LOCK: u32 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> IPC_LOCK & 1 != 0)
}

impl Domain {
    /// A domain of its own.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Domain>, RdmaError> {
        // SAFETY: the context is valid.
        let raw = NonNull::new(unsafe { (device.library.alloc_pd)(device.context()) })
            .ok_or_else(|| device.error("ibv_alloc_pd"))?;
        let registered = Mutex::default();
        Ok(Arc::new(Domain { device: Arc::clone(device), raw, registered }))
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Registers memory of the host, or of a GPU whose driver has the peer-memory module. A range
    /// that a living registration covers is not registered again: pinning pages takes longer than
    /// sending them.
    ///
    /// # Errors
    /// [`RdmaError::LockedMemory`] if the process may not pin so much; [`RdmaError::Verbs`].
    ///
    /// # Safety
    /// The range is mapped, and stays so until the result is dropped. Whoever knows the key may
    /// write there meanwhile: no reference to it may exist then.
    pub unsafe fn register(
        self: &Arc<Domain>,
        start: *mut u8,
        len_bytes: usize,
    ) -> Result<Arc<MemoryRegion>, RdmaError> {
        self.cached(start as u64, len_bytes, || {
            // SAFETY: the domain is valid, the range as the caller promises.
            unsafe {
                (self.device.library.reg_mr)(self.raw(), start.cast::<c_void>(), len_bytes, ACCESS)
            }
        })
    }

    /// Registers memory of a device that was exported as a dmabuf: `start` is its address there,
    /// `offset` where it begins in the exported buffer.
    ///
    /// # Errors
    /// [`RdmaError::MissingFunction`] with an old library; [`RdmaError::Verbs`] where kernel or
    /// driver cannot.
    ///
    /// # Safety
    /// As [`register`](Domain::register).
    pub unsafe fn register_dmabuf(
        self: &Arc<Domain>,
        buffer: BorrowedFd<'_>,
        offset: u64,
        start: u64,
        len_bytes: usize,
    ) -> Result<Arc<MemoryRegion>, RdmaError> {
        let register = self
            .device
            .library
            .reg_dmabuf_mr
            .ok_or(RdmaError::MissingFunction { function: "ibv_reg_dmabuf_mr", since: "34" })?;
        self.cached(start, len_bytes, || {
            // SAFETY: the domain and the descriptor are valid, the range as the caller promises.
            unsafe { register(self.raw(), offset, len_bytes, start, buffer.as_raw_fd(), ACCESS) }
        })
    }

    /// The living registration of a range of a GPU's memory.
    ///
    /// # Errors
    /// [`RdmaError::NotDirect`] if there is none.
    pub(super) fn registered(
        &self,
        start: u64,
        len_bytes: usize,
    ) -> Result<Arc<MemoryRegion>, RdmaError> {
        let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        living(&registered, start, len_bytes).ok_or_else(|| RdmaError::NotDirect {
            why: format!("{} was not made to reach it", self.device.name()),
        })
    }

    pub(super) fn raw(&self) -> *mut sys::Domain {
        self.raw.as_ptr()
    }

    fn cached(
        self: &Arc<Domain>,
        start: u64,
        len_bytes: usize,
        register: impl FnOnce() -> *mut sys::MemoryRegion,
    ) -> Result<Arc<MemoryRegion>, RdmaError> {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.retain(|region| region.strong_count() > 0);
        if let Some(found) = living(&registered, start, len_bytes) {
            return Ok(found);
        }
        let raw = NonNull::new(register()).ok_or_else(|| self.refused(len_bytes))?;
        let region = Arc::new(MemoryRegion { raw, start, len_bytes, domain: Arc::clone(self) });
        registered.push(Arc::downgrade(&region));
        Ok(region)
    }

    /// Why a registration failed. The kernel answers ENOMEM both without memory and above the limit
    /// of locked memory.
    fn refused(&self, wanted_bytes: usize) -> RdmaError {
        let error = self.device.error("ibv_reg_mr");
        let RdmaError::Verbs { source, .. } = &error else { return error };
        if !matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM)) {
            return error;
        }
        match locked_memory_limit() {
            Some(limit_bytes) => RdmaError::LockedMemory {
                device: self.device.name().to_owned(),
                wanted_bytes,
                limit_bytes,
            },
            None => error,
        }
    }
}

/// One of these registrations that has not been given back, and covers a range.
fn living(
    registered: &[Weak<MemoryRegion>],
    start: u64,
    len_bytes: usize,
) -> Option<Arc<MemoryRegion>> {
    let mut living = registered.iter().filter_map(Weak::upgrade);
    living.find(|region| region.covers(start, len_bytes))
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs hold the domain, so nothing of it is left.
        unsafe { (self.device.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl MemoryRegion {
    /// Where it begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// A part of it, as other ranks name it.
    ///
    /// # Errors
    /// [`RdmaError::OutOfRange`].
    pub fn remote(&self, start: u64, len_bytes: usize) -> Result<RemoteMemory, RdmaError> {
        self.piece(start, len_bytes)?;
        // SAFETY: the registration is valid, and its keys do not change.
        Ok(RemoteMemory { start, len_bytes, key: unsafe { self.raw.as_ref() }.rkey })
    }

    /// A part of it, as the adapter reads or writes it for this rank.
    pub(super) fn piece(&self, start: u64, len_bytes: usize) -> Result<sys::Piece, RdmaError> {
        let offset = start.wrapping_sub(self.start) as usize;
        match u32::try_from(len_bytes) {
            Ok(length) if self.covers(start, len_bytes) => {
                // SAFETY: as in `remote`.
                Ok(sys::Piece { addr: start, length, lkey: unsafe { self.raw.as_ref() }.lkey })
            }
            _ => Err(RdmaError::OutOfRange { offset, len_bytes, registered_bytes: self.len_bytes }),
        }
    }

    fn covers(&self, start: u64, len_bytes: usize) -> bool {
        let end = start.checked_add(len_bytes as u64);
        start >= self.start && end.is_some_and(|end| end <= self.start + self.len_bytes as u64)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // What is still under way ends with an error: the adapter looks keys up for each packet.
        // SAFETY: the registration is given back once.
        unsafe { (self.domain.device.library.dereg_mr)(self.raw.as_ptr()) };
    }
}

impl RemoteMemory {
    /// Whether it has this length, and lies within what can be addressed.
    pub(super) fn is_as_long_as(&self, len_bytes: u64) -> bool {
        self.len_bytes as u64 == len_bytes && self.start.checked_add(len_bytes).is_some()
    }

    /// The address of a part of it.
    ///
    /// # Errors
    /// [`RdmaError::OutOfRange`].
    pub fn at(&self, offset: usize, len_bytes: usize) -> Result<u64, RdmaError> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.len_bytes => Ok(self.start + offset as u64),
            _ => Err(RdmaError::OutOfRange { offset, len_bytes, registered_bytes: self.len_bytes }),
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("start", &self.start)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}
