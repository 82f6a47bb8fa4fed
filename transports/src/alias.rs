//! Memory of this process that is made a range of a region, at the addresses that it has.
//!
//! ```text
//! before      private pages; a range of the region, of a file
//! put         their content is copied to the range; the file is mapped over them
//! given back  new private pages get the content, and are moved over the file's
//! ```
//!
//! Whoever has pointers to it goes on using them. Only pages that are private, and of no file, can
//! be: whatever else maps a file would see another content from then on.

use crate::fork::Origin;
use crate::{Error, Region};
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap, mmap_anonymous, mremap, munmap};
use nix::unistd::{SysconfVar, sysconf};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;

/// Pages that are a range of a region until this is dropped.
#[derive(Debug)]
pub struct Alias {
    start: NonNull<c_void>,
    len_bytes: NonZeroUsize,
    origin: Origin,
    is_back: bool,
}

// SAFETY: an address and a length, of memory that whoever made it has for itself.
unsafe impl Send for Alias {}
// SAFETY: as above; nothing is done through a reference.
unsafe impl Sync for Alias {}

impl Alias {
    /// Makes whole pages of this process what a range of its own region is, with their content.
    ///
    /// # Errors
    /// [`Error::NotPrivate`] if they are not private, or not all there, or no whole pages of this
    /// machine; [`Error::Io`] if the system refuses; [`Error::OutOfRange`], [`Error::NotOwner`],
    /// as for [`Region::reserve`].
    ///
    /// # Safety
    /// Nobody uses the pages meanwhile, nor the range. While this is there the range is used as the
    /// memory that it is. No device has their physical pages. When this is dropped they are still
    /// mapped here, and nobody uses them.
    pub unsafe fn put(region: &Region, offset: usize, pages: Range<usize>) -> Result<Alias, Error> {
        let (file, at) = region.owned(offset, pages.len())?;
        check_whole(&[pages.start, pages.len(), at])?;
        check_private(&pages)?;
        let (Some(start), Some(len_bytes)) =
            (NonZeroUsize::new(pages.start), NonZeroUsize::new(pages.len()))
        else {
            return Err(Error::OutOfRange { offset, len_bytes: 0, region_bytes: 0 });
        };
        let at = i64::try_from(at).map_err(|_| Error::OutOfRange {
            offset: at,
            len_bytes: pages.len(),
            region_bytes: region.len_bytes(),
        })?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED | MapFlags::MAP_POPULATE;
        // SAFETY: the range has been checked, is as long, and nobody uses either.
        let mapped = unsafe {
            let from = std::ptr::with_exposed_provenance::<u8>(pages.start);
            region.as_ptr().add(offset).copy_from_nonoverlapping(from, pages.len());
            mmap(Some(start), len_bytes, access, flags, file, at)
        };
        let start = mapped.map_err(Error::os("mapping a memory file over memory"))?;
        Ok(Alias { start, len_bytes, origin: Origin::here(), is_back: false })
    }

    /// Makes them private pages again, as dropping this does. In a forked process they stay what
    /// they are: its parent's, too.
    ///
    /// # Errors
    /// [`Error::Io`]: they are the region's still.
    pub fn give_back(&mut self) -> Result<(), Error> {
        if self.is_back || !self.origin.is_here() {
            return Ok(());
        }
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: new addresses.
        let fresh = unsafe { mmap_anonymous(None, self.len_bytes, access, MapFlags::MAP_PRIVATE) }
            .map_err(Error::os("mapping private memory"))?;
        let len_bytes = self.len_bytes.get();
        // SAFETY: both are mapped and as long, and by `put`'s contract nobody uses what is there.
        let moved = unsafe {
            let from = self.start.cast::<u8>();
            from.copy_to_nonoverlapping(fresh.cast(), len_bytes);
            let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
            mremap(fresh, len_bytes, len_bytes, flags, Some(self.start))
        };
        self.is_back = moved.is_ok();
        moved.map(drop).map_err(|error| {
            // SAFETY: it has just been mapped, and nobody has its address.
            let _ = unsafe { munmap(fresh, len_bytes) };
            Error::os("moving memory")(error)
        })
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        if let Err(error) = self.give_back() {
            tracing::warn!(%error, "memory stays shared");
        }
    }
}

/// Fails unless these are multiples of a page.
fn check_whole(all: &[usize]) -> Result<(), Error> {
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    let page = page.and_then(|page| usize::try_from(page).ok()).unwrap_or(usize::MAX);
    if all.iter().all(|one| one.is_multiple_of(page)) {
        return Ok(());
    }
    Err(Error::NotPrivate { detail: format!("pages of this machine have {page} bytes") })
}

/// Fails unless all of these pages are mapped, and private, and of no file.
fn check_private(pages: &Range<usize>) -> Result<(), Error> {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|source| Error::Io { doing: "reading /proc/self/maps", source })?;
    is_private(&maps, pages).map_err(|detail| Error::NotPrivate { detail })
}

fn is_private(maps: &str, pages: &Range<usize>) -> Result<(), String> {
    let mut at = pages.start;
    for mapping in maps.lines().filter_map(Mapping::read) {
        if mapping.end <= at || mapping.start > at {
            continue;
        }
        if mapping.access != "rw-p" {
            return Err(format!(
                "it lies in memory that is not private and writable ({})",
                mapping.access
            ));
        }
        if mapping.is_file {
            return Err("it is mapped from a file".to_owned());
        }
        if mapping.is_stack {
            return Err("it lies in a stack".to_owned());
        }
        at = mapping.end;
        if at >= pages.end {
            return Ok(());
        }
    }
    Err("it is not all mapped".to_owned())
}

/// A line of /proc/PID/maps.
struct Mapping<'a> {
    start: usize,
    end: usize,
    access: &'a str,
    is_file: bool,
    is_stack: bool,
}

impl<'a> Mapping<'a> {
    fn read(line: &'a str) -> Option<Mapping<'a>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let access = words.next()?;
        let inode = words.nth(2)?;
        let is_stack = words.next().is_some_and(|name| name == "[stack]");
        Some(Mapping {
            start: address(start)?,
            end: address(end)?,
            access,
            is_file: inode != "0",
            is_stack,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;

    const PAGE: usize = 4096;

    fn pages_of(map: &MmapMut) -> Range<usize> {
        let start = map.as_ptr().expose_provenance();
        start..start + map.len()
    }

    #[test]
    fn content_comes_along_both_ways() {
        let region = Region::create("test", 16 * PAGE).unwrap();
        let mut map = MmapMut::map_anon(6 * PAGE).unwrap();
        for (at, byte) in map.iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        let kept = map.to_vec();
        let pages = pages_of(&map);
        // SAFETY: the map is this test's, and its middle is used as a range of the region below.
        let alias =
            unsafe { Alias::put(&region, 3 * PAGE, pages.start + PAGE..pages.end - PAGE) }.unwrap();
        assert_eq!(&map[..], kept);
        let shared = region.as_ptr().wrapping_add(3 * PAGE);
        // SAFETY: within the region.
        assert_eq!(unsafe { shared.add(5).read() }, kept[PAGE + 5]);
        map[PAGE + 7] = 77;
        // SAFETY: as above; nobody has references to it.
        unsafe {
            assert_eq!(shared.add(7).read_volatile(), 77);
            shared.add(9).write_volatile(99);
        }
        drop(alias);
        assert_eq!((map[PAGE + 7], map[PAGE + 9], map[0]), (77, 99, kept[0]));
        map[PAGE + 7] = 1;
        // SAFETY: as above.
        assert_eq!(unsafe { shared.add(7).read_volatile() }, 77, "it is private again");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(is_private(&maps, &pages), Ok(()));
    }

    #[test]
    fn what_is_not_private_is_refused() {
        let region = Region::create("test", 16 * PAGE).unwrap();
        let refused = |pages: Range<usize>| {
            // SAFETY: it is refused before anything is done.
            let error = unsafe { Alias::put(&region, 0, pages) }.unwrap_err();
            assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
            error.to_string()
        };
        let shared = Region::create("test", PAGE).unwrap();
        let start = shared.as_ptr().expose_provenance();
        assert!(refused(start..start + PAGE).contains("not private"));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        // SAFETY: nobody writes to the program while it runs.
        let copy = unsafe { memmap2::MmapOptions::new().len(PAGE).map_copy(&file) }.unwrap();
        assert!(refused(pages_of(&copy)).contains("from a file"));
        // Below what the system maps for anybody: what was unmapped may be another thread's by now.
        let nowhere = PAGE..3 * PAGE;
        assert!(refused(nowhere.clone()).contains("not all mapped"));
        assert!(refused(nowhere.start..nowhere.end - 1).contains("have 4096 bytes"));
        let here = 0u8;
        let page = std::ptr::from_ref(&here).expose_provenance() / PAGE * PAGE;
        let maps = format!("{page:x}-{:x} rw-p 00000000 00:00 0    [stack]", page + PAGE);
        assert!(is_private(&maps, &(page..page + PAGE)).unwrap_err().contains("a stack"));
    }
}
