//! A piece of memory that other ranks can map.
//!
//! A region is an anonymous memory file (memfd). It lives in the kernel's own shared-memory mount:
//! it has no name that could be left behind when a process is killed, and a full /dev/shm, as
//! containers like to have it, does not matter to it. It is sparse: a page exists once it is
//! touched or reserved. Touching more than the machine has kills a process, so memory is reserved
//! first ([`Region::reserve`]), and that fails with an error instead.
//!
//! What is reserved in whole huge pages gets huge pages: large copies are up to a third faster, and
//! first touches ten times. A process may ask for them (MADV_COLLAPSE, Linux 6.1) even where the
//! machine gives shared memory none of its own accord, which is the usual setting.
//!
//! Its size is sealed: no rank can shrink it under another rank's feet.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use crate::claims::{Claim, Claims};
use crate::fork::Origin;
use crate::{Error, memory};

/// The size of a huge page. A file of at least one is mapped at a multiple of it.
pub const HUGE_PAGE: usize = 2 << 20;
const HUGE: &str = "asking for huge pages";
/// So much is reserved before memory is looked at again: whole huge pages.
const STEP_BYTES: usize = 64 << 20;
/// How long a reservation waits for those of others on its node.
const CLAIM_WAIT: Duration = Duration::from_secs(1);

/// Memory that other ranks can map.
///
/// Others write to it at any time, so it is never behind a reference: there is only its address,
/// and whoever uses that orders the accesses (atomics, volatile, or the executor's signals).
#[derive(Debug)]
pub struct Region {
    map: Arc<Map>,
    /// Where it begins in the file.
    offset: usize,
    len_bytes: usize,
    /// The rank that created the region keeps the file, to share and to reserve it.
    file: Option<Arc<OwnedFd>>,
    /// Counts that it is dropped, with all its parts.
    departure: Option<Arc<Departure>>,
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
        let map = Map::new(&file, len_bytes)?;
        let (map, file) = (Arc::new(map), Some(Arc::new(file)));
        Ok(Region { map, offset: 0, len_bytes, file, departure: None })
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
        let map = Map::new(&file, len_bytes).map_err(BadRegion::Failed)?;
        Ok(Region { map: Arc::new(map), offset: 0, len_bytes, file: None, departure: None })
    }

    /// A range of it, as a region that cannot be shared or reserved by itself. All of it stays
    /// mapped as long as one of them is there.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]
    pub fn part(&self, offset: usize, len_bytes: usize) -> Result<Region, Error> {
        self.check(offset, len_bytes)?;
        let (map, departure) = (self.map.clone(), self.departure.clone());
        Ok(Region { map, offset: self.offset + offset, len_bytes, file: None, departure })
    }

    /// As [`part`](Self::part), but whoever can reserve this region can reserve that one, and once
    /// it and its parts are dropped, the 32-bit word at offset `word` of this region counts one
    /// more (release). In a forked child nothing is counted.
    ///
    /// # Errors
    /// As there; the word must lie at a multiple of 4.
    pub fn counted(&self, offset: usize, len_bytes: usize, word: usize) -> Result<Region, Error> {
        self.check(word, size_of::<u32>())?;
        if !word.is_multiple_of(size_of::<u32>()) {
            let (len_bytes, region_bytes) = (size_of::<u32>(), self.len_bytes);
            return Err(Error::OutOfRange { offset: word, len_bytes, region_bytes });
        }
        let part = self.part(offset, len_bytes)?;
        let (map, origin) = (self.map.clone(), Origin::here());
        let departure = Departure { map, word: self.offset + word, origin };
        Ok(Region { file: self.file.clone(), departure: Some(Arc::new(departure)), ..part })
    }

    /// Where it is mapped in this process. It is aligned to a page, from [`HUGE_PAGE`] bytes on to
    /// a huge one, and valid for [`len_bytes`](Self::len_bytes) until the region is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.start.wrapping_add(self.offset)
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Reserves the pages of a range, so that touching them cannot fail: huge ones where the range
    /// has room for them and the machine gives them ([`take_huge`](Self::take_huge)). Content
    /// stays.
    ///
    /// The whole range is held against what the machine has left, as if none of it were reserved
    /// yet, with what other ranks of the node claim: the system fills memory until it kills a
    /// process, and does not tell beforehand. It is looked at again after every step, but for
    /// little of what another reservation has just seen.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the machine or a control group does not leave that much; some
    /// pages may have been reserved. [`Error::OutOfRange`], and [`Error::NotOwner`] for another
    /// rank's region.
    pub fn reserve(
        &self,
        offset: usize,
        len_bytes: usize,
        claims: Option<&Claims>,
    ) -> Result<(), Error> {
        self.owned(offset, len_bytes)?;
        let mut claim = claims.map(|claims| claims.claim(len_bytes as u64));
        let end = offset + len_bytes;
        let mut at = offset;
        while at < end {
            // Steps end where huge pages do.
            let step = (end - at).min(STEP_BYTES - at % STEP_BYTES);
            await_room((end - at) as u64, claim.as_ref())
                .and_then(|available_bytes| self.reserve_step(at, step, available_bytes))
                .map_err(|error| error.of_bytes(len_bytes as u64))?;
            if let Some(claim) = &mut claim {
                claim.settle(step as u64);
            }
            at += step;
        }
        Ok(())
    }

    fn reserve_step(
        &self,
        offset: usize,
        len_bytes: usize,
        available_bytes: Option<u64>,
    ) -> Result<(), Error> {
        let (file, start) = self.owned(offset, len_bytes)?;
        if let Err(error) = self.take_huge(offset, len_bytes) {
            tracing::debug!(%error, "small pages");
        }
        match allocate(file, FallocateFlags::empty(), start, len_bytes) {
            Err(Errno::ENOSPC | Errno::ENOMEM | Errno::EFBIG) => {
                Err(Error::OutOfMemory { bytes: len_bytes as u64, available_bytes })
            }
            other => other.map_err(Error::os("reserving memory")),
        }
    }

    /// Gives the pages of a range back; it reads as zeros afterwards, on every rank.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and [`Error::NotOwner`] for another rank's region.
    pub fn release(&self, offset: usize, len_bytes: usize) -> Result<(), Error> {
        let (file, start) = self.owned(offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        allocate(file, hole, start, len_bytes).map_err(Error::os("releasing memory"))
    }

    /// Makes huge pages of what whole huge pages have room for in a range. Content stays.
    ///
    /// # Errors
    /// [`Error::Io`] where the machine gives none: its kernel is older than Linux 6.1 or denies
    /// them (/sys/kernel/mm/transparent_hugepage/shmem_enabled), or has no memory that lies
    /// together. [`Error::OutOfRange`], and [`Error::NotOwner`] for another rank's region.
    pub fn take_huge(&self, offset: usize, len_bytes: usize) -> Result<(), Error> {
        let (file, start) = self.owned(offset, len_bytes)?;
        let range = whole_huge_pages(start..start + len_bytes);
        // One small page in each: what is empty is not collapsed. The others need not exist before.
        for huge in range.clone().step_by(HUGE_PAGE) {
            allocate(file, FallocateFlags::empty(), huge, 1).map_err(Error::os(HUGE))?;
        }
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: inside the mapping; it changes which pages hold the content, and no content.
        let collapsed = Errno::result(unsafe {
            let start = self.map.start.add(range.start).cast();
            libc::madvise(start, range.len(), libc::MADV_COLLAPSE)
        });
        collapsed.map(drop).map_err(Error::os(HUGE))
    }

    /// Of a region that is a whole file of this rank's.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().filter(|_| self.departure.is_none()).map(AsFd::as_fd)
    }

    /// The file, and where a range begins in it.
    pub(crate) fn owned(
        &self,
        offset: usize,
        len_bytes: usize,
    ) -> Result<(&OwnedFd, usize), Error> {
        self.check(offset, len_bytes)?;
        let file = self.file.as_ref().ok_or(Error::NotOwner)?;
        Ok((file, self.offset + offset))
    }

    fn check(&self, offset: usize, len_bytes: usize) -> Result<(), Error> {
        let region_bytes = self.len_bytes();
        match offset.checked_add(len_bytes) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(Error::OutOfRange { offset, len_bytes, region_bytes }),
        }
    }
}

/// Counts its end in memory that others read.
#[derive(Debug)]
struct Departure {
    map: Arc<Map>,
    /// Where the count is.
    word: usize,
    origin: Origin,
}

impl Drop for Departure {
    fn drop(&mut self) {
        if self.origin.is_here() {
            let word = self.map.start.wrapping_add(self.word).cast::<AtomicU32>();
            // SAFETY: within the mapping and aligned, as was checked; all access it as an atomic.
            unsafe { (*word).fetch_add(1, Ordering::Release) };
        }
    }
}

/// Waits until what is left of a reservation fits into what the machine leaves, with what others
/// claim: those take it soon, or give it up. Returns what there is, if that was looked at.
fn await_room(left: u64, claim: Option<&Claim<'_>>) -> Result<Option<u64>, Error> {
    if memory::take_unseen(left) {
        return Ok(None);
    }
    let deadline = Instant::now() + CLAIM_WAIT;
    loop {
        let available_bytes = memory::available_bytes();
        let fits = |bytes: u64| available_bytes.is_none_or(|available| bytes <= available);
        if fits(claim.map_or(left, Claim::of_all)) {
            return Ok(available_bytes);
        }
        if !fits(left) || Instant::now() >= deadline {
            return Err(Error::OutOfMemory { bytes: left, available_bytes });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Why a region that another rank sent cannot be used.
pub(crate) enum BadRegion {
    /// It is not what a region has to be.
    Refused(String),
    /// Mapping it failed.
    Failed(Error),
}

/// A file in this process' memory, from its first byte on.
#[derive(Debug)]
struct Map {
    start: *mut u8,
    /// The addresses it lies in, unmapped on drop.
    _addresses: MmapRaw,
}

// SAFETY: as `MmapRaw`, whose addresses these are.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: &OwnedFd, len_bytes: usize) -> Result<Map, Error> {
        let out_of_memory =
            || Error::OutOfMemory { bytes: len_bytes as u64, available_bytes: None };
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOMEM) => out_of_memory(),
            _ if source.kind() == io::ErrorKind::InvalidInput => out_of_memory(),
            _ => Error::Io { doing: "mapping a memory file", source },
        };
        let addresses = |len_bytes| MmapOptions::new().len(len_bytes).map_raw(file.as_raw_fd());
        let length = match NonZeroUsize::new(len_bytes) {
            Some(length) if len_bytes >= HUGE_PAGE => length,
            _ => {
                let addresses = addresses(len_bytes).map_err(failed)?;
                return Ok(Map { start: addresses.as_mut_ptr(), _addresses: addresses });
            }
        };
        // The kernel takes any page. So: more addresses than the file needs (of it, too, since such
        // a mapping is not held against the machine's memory), and in them the file where it shall
        // be.
        let room = len_bytes.checked_add(HUGE_PAGE).ok_or_else(out_of_memory)?;
        let addresses = addresses(room).map_err(failed)?;
        let start = (addresses.as_mut_ptr() as usize).next_multiple_of(HUGE_PAGE);
        let (prot, flags) = (
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_SHARED | MapFlags::MAP_FIXED,
        );
        // SAFETY: these addresses are this mapping's own, and nobody knows them yet.
        let start = unsafe { mmap(NonZeroUsize::new(start), length, prot, flags, file, 0) };
        let start = start.map_err(|errno| failed(errno.into()))?.as_ptr().cast();
        Ok(Map { start, _addresses: addresses })
    }
}

/// What whole huge pages have room for in a range of a file.
fn whole_huge_pages(range: Range<usize>) -> Range<usize> {
    let start = range.start.div_ceil(HUGE_PAGE).saturating_mul(HUGE_PAGE);
    start..(range.end / HUGE_PAGE * HUGE_PAGE).max(start)
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
        region.reserve(PAGE, 3 * PAGE, None).unwrap();
        assert_eq!(resident_bytes(&region), 3 * PAGE);
        // SAFETY: inside the region, and nobody else knows it.
        unsafe { region.as_ptr().add(PAGE).write(7) };
        region.reserve(0, 8 * PAGE, None).unwrap();
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
        let error = region.reserve(0, 1 << 46, None).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { bytes, .. } if bytes == 1 << 46), "{error}");
        region.reserve(0, PAGE, None).unwrap();
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
            assert!(matches!(
                region.reserve(offset, len_bytes, None),
                Err(Error::OutOfRange { .. })
            ));
            assert!(matches!(region.release(offset, len_bytes), Err(Error::OutOfRange { .. })));
        }
        region.reserve(PAGE, 0, None).unwrap();
        region.take_huge(0, PAGE).unwrap();
        assert!(matches!(region.take_huge(0, 2 * PAGE), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn whole_huge_pages_of_a_range() {
        const H: usize = HUGE_PAGE;
        for (range, whole) in [
            (0..H, 0..H),
            (1..3 * H + 1, H..3 * H),
            (H..2 * H, H..2 * H),
            (1..H, H..H),
            (H + 1..2 * H - 1, 2 * H..2 * H),
            (PAGE..2 * H, H..2 * H),
        ] {
            assert_eq!(whole_huge_pages(range.clone()), whole, "{range:?}");
        }
    }

    /// Bytes of a mapping of a region that huge pages hold, of what was touched through it.
    fn huge_bytes(region: &Region) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let head = format!("{:x}-", region.as_ptr() as usize);
        let mut map = maps.lines().skip_while(|line| !line.starts_with(&head));
        let line = map.find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
        let kibibytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kibibytes << 10
    }

    #[test]
    fn every_rank_maps_the_huge_pages_that_a_range_has_room_for() {
        let region = Region::create("test", 5 * HUGE_PAGE + PAGE).unwrap();
        let file = region.file.as_ref().unwrap().try_clone().unwrap();
        let Ok(received) = Region::receive(file, region.len_bytes()) else { panic!("refused") };
        for mapping in [&region, &received] {
            assert_eq!(mapping.as_ptr() as usize % HUGE_PAGE, 0);
        }
        assert!(matches!(received.take_huge(0, HUGE_PAGE), Err(Error::NotOwner)));

        let (start, len_bytes) = (HUGE_PAGE - PAGE, 3 * HUGE_PAGE + 2 * PAGE);
        // SAFETY: inside the region, and nobody else knows it.
        unsafe { received.as_ptr().add(HUGE_PAGE + 5).write(7) };
        region.reserve(start, len_bytes, None).unwrap();
        assert_eq!(resident_bytes(&region), len_bytes, "no more than what is reserved");
        // SAFETY: as above; the kernel may write a page's zeros meanwhile, and nothing else.
        let content = unsafe { std::slice::from_raw_parts(received.as_ptr(), region.len_bytes()) };
        let found: Vec<_> = content.iter().enumerate().filter(|(_, byte)| **byte != 0).collect();
        assert_eq!(found, [(HUGE_PAGE + 5, &7)]);

        match region.take_huge(start, len_bytes) {
            Ok(()) => assert_eq!(huge_bytes(&received), 3 * HUGE_PAGE),
            Err(error) => println!("this machine has none: {error}"),
        }
        region.release(start, len_bytes).unwrap();
        assert_eq!(resident_bytes(&region), region.len_bytes() - len_bytes, "what was read");
    }

    #[test]
    fn a_part_lies_in_the_whole_and_keeps_it() {
        let region = Region::create("test", 4 * PAGE).unwrap();
        let part = region.part(PAGE, 2 * PAGE).unwrap();
        let inner = part.part(PAGE, PAGE).unwrap();
        assert_eq!((part.len_bytes(), inner.len_bytes()), (2 * PAGE, PAGE));
        // SAFETY: inside the region, and nobody else knows it.
        unsafe { region.as_ptr().add(2 * PAGE + 3).write(7) };
        drop((region, part.part(0, 0).unwrap()));
        // SAFETY: as above; the mapping is still there.
        assert_eq!(unsafe { inner.as_ptr().add(3).read() }, 7);
        assert!(matches!(part.part(PAGE, 2 * PAGE), Err(Error::OutOfRange { .. })));
        assert!(matches!(part.reserve(0, PAGE, None), Err(Error::NotOwner)));
    }

    #[test]
    fn what_is_counted_counts_once_its_parts_are_gone() {
        let region = Region::create("test", 4 * PAGE).unwrap();
        let count = || {
            let word = region.as_ptr().wrapping_add(3 * PAGE).cast::<u32>();
            // SAFETY: inside the region, and only this thread uses it.
            unsafe { word.read() }
        };
        let counted = region.counted(PAGE, 2 * PAGE, 3 * PAGE).unwrap();
        assert!(region.file().is_some() && counted.file().is_none());
        counted.reserve(PAGE, PAGE, None).unwrap();
        // SAFETY: inside the region, and nobody else knows it.
        unsafe { region.as_ptr().add(2 * PAGE).write(7) };
        counted.release(0, 2 * PAGE).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { region.as_ptr().add(2 * PAGE).read() }, 0, "ranges are its own");
        let inner = counted.part(0, 8).unwrap();
        drop(counted);
        assert_eq!(count(), 0);
        drop(inner);
        assert_eq!(count(), 1);
        drop(region.counted(0, PAGE, 3 * PAGE).unwrap());
        assert_eq!(count(), 2);
        for word in [4 * PAGE, 4 * PAGE - 2, 3 * PAGE + 2] {
            let refused = region.counted(0, PAGE, word);
            assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{word}");
        }
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
        assert!(matches!(received.reserve(0, PAGE, None), Err(Error::NotOwner)));

        let unsealed = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&unsealed, PAGE as i64).unwrap();
        assert!(matches!(
            Region::receive(unsealed, PAGE),
            Err(BadRegion::Refused(detail)) if detail.contains("sealed")
        ));
    }
}
