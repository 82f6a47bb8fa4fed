//! The library: loading it, its version, and what it answers.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::Path;

use super::error::NcclError;
use super::raw::{Code, Comm, Functions, Id};

/// A release of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Since 2.9 the number has two digits for the minor release.
        let major_digits = if self.0 < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / major_digits, self.0 % major_digits / 100, self.0 % 100)
    }
}

/// The oldest release that allows several ranks on one GPU.
const OLDEST: Version = Version(23_000);

/// NCCL, which is never unloaded: nothing of it is destroyed, and the process ends.
#[derive(Clone, Copy)]
pub(crate) struct NcclLibrary {
    functions: &'static Functions,
    version: Version,
}

impl NcclLibrary {
    /// Loads NCCL from a file.
    ///
    /// # Errors
    /// [`NcclError::NotLoaded`], [`NcclError::MissingFunction`], [`NcclError::TooOld`].
    pub(crate) fn load(path: &Path) -> Result<NcclLibrary, NcclError> {
        // SAFETY: the user names a library whose initialisers are to run.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| {
            NcclError::NotLoaded { path: path.to_owned(), why: error.to_string() }
        })?;
        let version = version(&library)?;
        if version < OLDEST {
            return Err(NcclError::TooOld { found: version, needed: OLDEST });
        }
        // SAFETY: it says that it is NCCL of a release whose header has these functions; it stays
        // loaded.
        let functions = unsafe { Functions::look_up(&library) }?;
        std::mem::forget(library);
        Ok(NcclLibrary { functions: Box::leak(Box::new(functions)), version })
    }

    /// Its release.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// What the ranks of a new communicator have to know.
    ///
    /// # Errors
    /// NCCL's.
    pub(crate) fn unique_id(&self) -> Result<Id, NcclError> {
        let mut id = Id([0; 128]);
        // SAFETY: the pointer is valid.
        self.check("ncclGetUniqueId", std::ptr::null_mut(), unsafe {
            (self.functions.unique_id)(&raw mut id)
        })?;
        Ok(id)
    }

    /// Memory of the kind that windows need, on the GPU whose context is current. It is never
    /// freed.
    ///
    /// # Errors
    /// NCCL's.
    pub(crate) fn allocate(&self, len_bytes: usize) -> Result<*mut u8, NcclError> {
        let mut at = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        self.check("ncclMemAlloc", std::ptr::null_mut(), unsafe {
            (self.functions.mem_alloc)(&raw mut at, len_bytes)
        })?;
        Ok(at.cast())
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Makes an answer other than success an error.
    pub(super) fn check(
        &self,
        function: &'static str,
        comm: Comm,
        code: Code,
    ) -> Result<(), NcclError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: both take any value, and answer with texts of their own.
        let (name, detail) = unsafe {
            (text((self.functions.error_string)(code)), text((self.functions.last_error)(comm)))
        };
        Err(NcclError::Failed { function, code, name, detail })
    }
}

impl fmt::Debug for NcclLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {}", self.version)
    }
}

fn version(library: &libloading::Library) -> Result<Version, NcclError> {
    const NAME: &str = "ncclGetVersion";
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> Code;
    // SAFETY: a library with this name in it is NCCL, where it has this type.
    let get = unsafe { library.get::<GetVersion>(NAME) }
        .map_err(|_| NcclError::MissingFunction { function: NAME })?;
    let mut number = 0;
    // SAFETY: the pointer is valid.
    let code = unsafe { get(&raw mut number) };
    match u32::try_from(number) {
        Ok(number) if code == 0 => Ok(Version(number)),
        _ => Err(NcclError::Failed {
            function: NAME,
            code,
            name: "an error".to_owned(),
            detail: format!("it gave {number} as its version"),
        }),
    }
}

/// # Safety
/// Null, or a text that ends with a zero.
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return "nothing more is known".to_owned();
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(at) }.to_string_lossy().trim().to_owned();
    if text.is_empty() { "NCCL_DEBUG=WARN may tell more".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_releases_are_called() {
        assert_eq!(Version(23_007).to_string(), "2.30.7");
        assert_eq!(Version(2_804).to_string(), "2.8.4");
        assert_eq!(Version(22_900).to_string(), "2.29.0");
        assert!(Version(2_804) < OLDEST);
    }

    #[test]
    fn what_is_not_nccl_is_refused() {
        let missing = NcclLibrary::load(Path::new("no-such-libnccl.so.2"));
        assert!(matches!(missing, Err(NcclError::NotLoaded { .. })), "{missing:?}");
        let other = NcclLibrary::load(Path::new("libc.so.6"));
        let refused =
            matches!(other, Err(NcclError::MissingFunction { function: "ncclGetVersion" }));
        assert!(refused, "{other:?}");
    }
}
