//! A rank's communicator, its memory and its windows.

use std::ffi::c_void;
use std::sync::Arc;

use super::raw::{Code, Comm, Config, Functions, Window};
use super::{NcclError, NcclLibrary, UniqueId};

/// How many thread blocks ("CTAs") a rank's calls may have; none: as NCCL likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ctas {
    /// At least.
    pub(crate) min: Option<usize>,
    /// At most.
    pub(crate) max: Option<usize>,
}

/// One rank of NCCL's. Gone when dropped, once what is in streams is done.
pub(crate) struct NcclCommunicator {
    library: NcclLibrary,
    raw: Comm,
    /// Memory that the other ranks use in place.
    windows: Vec<(Window, Arc<Memory>)>,
}

// SAFETY: NCCL lets one thread at a time use a communicator, whichever it is.
unsafe impl Send for NcclCommunicator {}

impl NcclCommunicator {
    pub(crate) fn connect(
        library: &NcclLibrary,
        id: &UniqueId,
        rank: usize,
        ranks: usize,
        ctas: Ctas,
    ) -> Result<NcclCommunicator, NcclError> {
        let mut config = Config::undefined();
        let set = |field: &mut i32, wanted: Option<usize>| {
            if let Some(count) = wanted {
                *field = count as i32;
            }
        };
        set(&mut config.min_ctas, ctas.min);
        set(&mut config.max_ctas, ctas.max);
        let mut raw = std::ptr::null_mut();
        let init = library.functions().init;
        // SAFETY: the pointers are valid, and the configuration is as NCCL's initialiser leaves it.
        library.check("ncclCommInitRankConfig", std::ptr::null_mut(), unsafe {
            init(&raw mut raw, ranks as i32, id.0, rank as i32, &raw mut config)
        })?;
        Ok(NcclCommunicator { library: library.clone(), raw, windows: Vec::new() })
    }

    /// Lets the other ranks use memory in place, as long as this communicator lives. All ranks do so together, with memory of
    /// the same length.
    ///
    /// # Errors
    /// NCCL's; [`NcclError::NoWindow`].
    pub(crate) fn register(&mut self, memory: &Arc<Memory>) -> Result<(), NcclError> {
        const SYMMETRIC: i32 = 1;
        let mut raw = std::ptr::null_mut();
        let register = self.library.functions().window_register;
        // SAFETY: memory of that length, which is kept beside the window.
        self.library.check("ncclCommWindowRegister", self.raw, unsafe {
            register(self.raw, memory.at, memory.len_bytes, &raw mut raw, SYMMETRIC)
        })?;
        // Where NCCL cannot use memory so, it succeeds without.
        if raw.is_null() {
            return Err(NcclError::NoWindow);
        }
        self.windows.push((raw, memory.clone()));
        Ok(())
    }

    pub(crate) fn functions(&self) -> &Functions {
        self.library.functions()
    }

    pub(crate) fn check(&self, function: &'static str, code: Code) -> Result<(), NcclError> {
        self.library.check(function, self.raw, code)
    }

    pub(crate) fn raw(&self) -> Comm {
        self.raw
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        let functions = self.library.functions();
        for (window, _) in &self.windows {
            // SAFETY: registered by this object, once. An answer would change nothing, here and below.
            unsafe { (functions.window_deregister)(self.raw, *window) };
        }
        // SAFETY: made by this object, destroyed once.
        unsafe { (functions.destroy)(self.raw) };
    }
}

/// Device memory of the kind that windows need.
pub(crate) struct Memory {
    library: NcclLibrary,
    at: *mut c_void,
    len_bytes: usize,
}

// SAFETY: an address, which all threads may use.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates on the GPU whose context is current.
    ///
    /// # Errors
    /// NCCL's.
    pub(crate) fn allocate(library: &NcclLibrary, len_bytes: usize) -> Result<Memory, NcclError> {
        // Windows begin and end at such addresses.
        const ALIGNMENT: usize = 4096;
        let len_bytes = len_bytes.max(1).next_multiple_of(ALIGNMENT);
        let mut at = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        library.check("ncclMemAlloc", std::ptr::null_mut(), unsafe {
            (library.functions().mem_alloc)(&raw mut at, len_bytes)
        })?;
        Ok(Memory { library: library.clone(), at, len_bytes })
    }

    /// Where it begins; the host must not follow it. Valid until this is dropped.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.at.cast()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by this object, freed once.
        unsafe { (self.library.functions().mem_free)(self.at) };
    }
}
