//! Memory files and mappings.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::CUresult;

use crate::call::Answer;
use crate::order;

/// What the virtual-memory API and IPC count in.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// Makes a memory file. The name tells other processes what it is.
pub(crate) fn file(name: &std::ffi::CStr, len: usize) -> Answer<OwnedFd> {
    // SAFETY: the name ends with a zero.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    // SAFETY: just made, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a descriptor that is open.
    if unsafe { libc::ftruncate(fd, len as i64) } != 0 {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    // Numbers of files come again.
    order::forget_file(inode(fd)?, len);
    Ok(file)
}

fn inode(fd: i32) -> Answer<u64> {
    // SAFETY: whoever has its number keeps it open meanwhile.
    status(&unsafe { BorrowedFd::borrow_raw(fd) }).map(|(_, inode)| inode)
}

/// The length and inode of a file.
pub(crate) fn status(file: &impl AsRawFd) -> Answer<(usize, u64)> {
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor that is open, and room for the answer.
    if unsafe { libc::fstat(file.as_raw_fd(), &mut status) } != 0 {
        return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
    }
    Ok((status.st_size as usize, status.st_ino))
}

/// Address space of its own, without access, until it is dropped.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Span {
    /// Takes address space at a multiple of the granularity.
    pub(crate) fn reserve(len: usize) -> Answer<Span> {
        let wanted = len + GRANULARITY;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), wanted, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let start = (at as usize).next_multiple_of(GRANULARITY);
        let end = at as usize + wanted;
        let behind = (start + len, end - start - len);
        for (from, len) in [(at as usize, start - at as usize), behind] {
            if len > 0 {
                // SAFETY: the ends of the mapping just made.
                unsafe { libc::munmap(from as *mut _, len) };
            }
        }
        Ok(Span { start, len })
    }

    /// Maps a file over the span's part at `offset`, without access to it if `access` is false.
    pub(crate) fn map(&self, offset: usize, len: usize, file: &OwnedFd, access: bool) -> Answer {
        let access = if access { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        self.replace(offset, len, access, flags, file.as_raw_fd())
    }

    /// Takes the access to a part, and what is mapped there.
    pub(crate) fn clear(&self, offset: usize, len: usize) -> Answer {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        self.replace(offset, len, libc::PROT_NONE, flags, -1)
    }

    /// Gives access to a part, or takes it.
    pub(crate) fn protect(&self, offset: usize, len: usize, access: bool) -> Answer {
        let access = if access { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        // SAFETY: a part of this span.
        match unsafe { libc::mprotect((self.start + offset) as *mut _, len, access) } {
            0 => Ok(()),
            _ => Err(CUresult::CUDA_ERROR_MAP_FAILED),
        }
    }

    fn replace(&self, offset: usize, len: usize, access: i32, flags: i32, fd: i32) -> Answer {
        if offset + len > self.len {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let at = (self.start + offset) as *mut _;
        // SAFETY: the range lies in this span, whose users know that it changes.
        if unsafe { libc::mmap(at, len, access, flags, fd, 0) } == libc::MAP_FAILED {
            return Err(CUresult::CUDA_ERROR_MAP_FAILED);
        }
        let key = (fd >= 0).then(|| inode(fd).map(order::key_of_file)).transpose()?;
        order::map(self.start + offset, len, key);
        Ok(())
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        order::forget_mappings(self.start, self.len);
        // SAFETY: this span's own range, given back once.
        unsafe { libc::munmap(self.start as *mut _, self.len) };
    }
}
