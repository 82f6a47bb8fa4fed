//! A piece of memory that other ranks can map.
//!
//! A region is an anonymous memory file (memfd). It lives in the kernel's own shared-memory mount:
//! it has no name that could be left behind when a process is killed, and a full /dev/shm, as
//! containers like to have it, does not matter to it. It is sparse: a page exists once it is
//! touched or reserved. Touching more than the machine has kills a process, so memory is reserved
//! first ([`Region::reserve`]), and that fails with an error instead.
//!
//! Its size is sealed: no rank can shrink it under another rank's feet.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use crate::{Error, memory};

/// Memory that other ranks can map.
///
/// Others write to it at any time, so it is never behind a reference: there is only its address,
/// and whoever uses that orders the accesses (atomics, volatile, or the executor's signals).
#[derive(Debug)]
pub struct Region {
    map: MmapRaw,
    /// The rank that created the region keeps the file, to share and to reserve it.
    file: Option<OwnedFd>,
}

impl Region {
    /// Makes a region of zeros. The name is shown in /proc/PID/maps and need not be unique.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it does not fit the address space, [`Error::OutOfRange`] if it
    /// has no bytes.
    pub fn create(name: &str, len_bytes: usize) -> Result<Region, Error> {
        if len_bytes == 0 {
            return Err(Error::OutOfRange { offset: 0, len_bytes, region_bytes: 0 });
        }
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(name, flags).map_err(Error::os("creating a memory file"))?;
        let too_big = |_| Error::OutOfMemory { bytes: len_bytes as u64, available_bytes: None };
        let size = i64::try_from(len_bytes).map_err(|_| too_big(Errno::EFBIG))?;
        ftruncate(&file, size).map_err(too_big)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(Error::os("sealing a memory file"))?;
        let map = map(&file, len_bytes)?;
        Ok(Region { map, file: Some(file) })
    }

    /// Maps a region that another rank sent. The file is closed; the mapping keeps the memory.
    ///
    /// # Errors
    /// What is wrong with it, where it is not a region of this length and sealed.
    pub(crate) fn receive(file: OwnedFd, len_bytes: usize) -> Result<Region, BadRegion> {
        let size = fstat(&file).map_err(|e| BadRegion::Refused(e.to_string()))?.st_size;
        if usize::try_from(size) != Ok(len_bytes) || len_bytes == 0 {
            let detail = format!("it has {size} bytes where {len_bytes} were announced");
            return Err(BadRegion::Refused(detail));
        }
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate);
        if !seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_SHRINK)) {
            return Err(BadRegion::Refused("it is not sealed against shrinking".to_owned()));
        }
        let map = map(&file, len_bytes).map_err(BadRegion::Failed)?;
        Ok(Region { map, file: None })
    }

    /// Where it is mapped in this process. It is aligned to a page and valid for
    /// [`len_bytes`](Self::len_bytes) until the region is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.map.len()
    }

    /// Reserves the pages of a range, so that touching them cannot fail. Content stays.
    ///
    /// The whole range is held against what the machine has left, as if none of it were reserved
    /// yet: the system fills memory until it kills a process, and does not tell beforehand.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the machine or a control group does not leave that much,
    /// [`Error::OutOfRange`], and [`Error::NotOwner`] for another rank's region.
    pub fn reserve(&self, offset: usize, len_bytes: usize) -> Result<(), Error> {
        let file = self.owned(offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let (bytes, available_bytes) = (len_bytes as u64, memory::available_bytes());
        let out_of_memory = Error::OutOfMemory { bytes, available_bytes };
        if available_bytes.is_some_and(|available| bytes > available) {
            return Err(out_of_memory);
        }
        match allocate(file, FallocateFlags::empty(), offset, len_bytes) {
            Err(Errno::ENOSPC | Errno::ENOMEM | Errno::EFBIG) => Err(out_of_memory),
            other => other.map_err(Error::os("reserving memory")),
        }
    }

    /// Gives the pages of a range back; it reads as zeros afterwards, on every rank.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and [`Error::NotOwner`] for another rank's region.
    pub fn release(&self, offset: usize, len_bytes: usize) -> Result<(), Error> {
        let file = self.owned(offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        allocate(file, hole, offset, len_bytes).map_err(Error::os("releasing memory"))
    }

    /// Asks for huge pages in a range, before it is touched. Whether there are any is up to the
    /// machine (/sys/kernel/mm/transparent_hugepage/shmem_enabled), and nothing depends on it.
    pub fn advise_huge(&self, offset: usize, len_bytes: usize) {
        if self.check(offset, len_bytes).is_ok() && len_bytes > 0 {
            let advised = self.map.advise_range(Advice::HugePage, offset, len_bytes);
            if let Err(error) = advised {
                tracing::debug!(%error, "no huge pages");
            }
        }
    }

    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    fn owned(&self, offset: usize, len_bytes: usize) -> Result<&OwnedFd, Error> {
        self.check(offset, len_bytes)?;
        self.file.as_ref().ok_or(Error::NotOwner)
    }

    fn check(&self, offset: usize, len_bytes: usize) -> Result<(), Error> {
        let region_bytes = self.len_bytes();
        match offset.checked_add(len_bytes) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(Error::OutOfRange { offset, len_bytes, region_bytes }),
        }
    }
}

/// Why a region that another rank sent cannot be used.
pub(crate) enum BadRegion {
    /// It is not what a region has to be.
    Refused(String),
    /// Mapping it failed.
    Failed(Error),
}

fn map(file: &OwnedFd, len_bytes: usize) -> Result<MmapRaw, Error> {
    MmapOptions::new().len(len_bytes).map_raw(file.as_raw_fd()).map_err(|source| {
        if source.raw_os_error() == Some(libc::ENOMEM)
            || source.kind() == io::ErrorKind::InvalidInput
        {
            Error::OutOfMemory { bytes: len_bytes as u64, available_bytes: None }
        } else {
            Error::Io { doing: "mapping a memory file", source }
        }
    })
}

fn allocate(
    file: &OwnedFd,
    flags: FallocateFlags,
    offset: usize,
    len_bytes: usize,
) -> Result<(), Errno> {
    loop {
        match fallocate(file, flags, offset as i64, len_bytes as i64) {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn resident_bytes(region: &Region) -> usize {
        let file = region.file.as_ref().unwrap();
        fstat(file).unwrap().st_blocks as usize * 512
    }

    #[test]
    fn pages_exist_once_reserved_and_until_released() {
        let region = Region::create("test", 64 * PAGE).unwrap();
        assert_eq!(resident_bytes(&region), 0);
        region.reserve(PAGE, 3 * PAGE).unwrap();
        assert_eq!(resident_bytes(&region), 3 * PAGE);
        // SAFETY: inside the region, and nobody else knows it.
        unsafe { region.as_ptr().add(PAGE).write(7) };
        region.reserve(0, 8 * PAGE).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { region.as_ptr().add(PAGE).read() }, 7, "reserving keeps content");
        region.release(0, 64 * PAGE).unwrap();
        assert_eq!(resident_bytes(&region), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { region.as_ptr().add(PAGE).read() }, 0);
    }

    #[test]
    fn more_than_there_is_cannot_be_reserved() {
        let region = Region::create("test", 1 << 46).unwrap();
        let error = region.reserve(0, 1 << 46).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { bytes, .. } if bytes == 1 << 46), "{error}");
        region.reserve(0, PAGE).unwrap();
    }

    #[test]
    fn more_than_can_be_addressed_cannot_be_created() {
        for len_bytes in [1 << 50, usize::MAX] {
            let error = Region::create("test", len_bytes).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        }
        assert!(matches!(Region::create("test", 0), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn ranges_are_checked() {
        let region = Region::create("test", PAGE).unwrap();
        for (offset, len_bytes) in [(0, PAGE + 1), (PAGE, 1), (usize::MAX, 2)] {
            assert!(matches!(region.reserve(offset, len_bytes), Err(Error::OutOfRange { .. })));
            assert!(matches!(region.release(offset, len_bytes), Err(Error::OutOfRange { .. })));
        }
        region.reserve(PAGE, 0).unwrap();
        region.advise_huge(0, 2 * PAGE);
        region.advise_huge(0, PAGE);
    }

    #[test]
    fn a_region_cannot_be_resized() {
        let region = Region::create("test", 2 * PAGE).unwrap();
        let file = region.file.as_ref().unwrap();
        assert_eq!(ftruncate(file, PAGE as i64), Err(Errno::EPERM));
        assert_eq!(ftruncate(file, 3 * PAGE as i64), Err(Errno::EPERM));
    }

    #[test]
    fn a_received_file_must_be_sealed_and_as_long_as_announced() {
        let copy = |region: &Region| region.file.as_ref().unwrap().try_clone().unwrap();
        let region = Region::create("test", 2 * PAGE).unwrap();
        assert!(matches!(
            Region::receive(copy(&region), PAGE),
            Err(BadRegion::Refused(detail)) if detail.contains("announced")
        ));
        let Ok(received) = Region::receive(copy(&region), 2 * PAGE) else { panic!("refused") };
        // SAFETY: inside the region, and nobody else knows it.
        unsafe { region.as_ptr().add(PAGE + 1).write(9) };
        // SAFETY: as above.
        assert_eq!(unsafe { received.as_ptr().add(PAGE + 1).read() }, 9);
        assert!(matches!(received.reserve(0, PAGE), Err(Error::NotOwner)));

        let unsealed = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&unsealed, PAGE as i64).unwrap();
        assert!(matches!(
            Region::receive(unsealed, PAGE),
            Err(BadRegion::Refused(detail)) if detail.contains("sealed")
        ));
    }
}
