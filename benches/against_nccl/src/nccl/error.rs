//! What can go wrong with NCCL.

use std::path::PathBuf;

use oxccl_command::shared::Failure;

use super::library::Version;

/// Why NCCL cannot be used, or what it answered.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NcclError {
    /// The library cannot be loaded.
    #[error(
        "{path} cannot be loaded as NCCL: {why}; name libnccl.so.2 by --nccl-lib, or use --floor-only"
    )]
    NotLoaded {
        /// The file.
        path: PathBuf,
        /// What the loader says.
        why: String,
    },
    /// The library has no such function.
    #[error("the library has no {function}: it is not NCCL, or not of release 2.30 or newer")]
    MissingFunction {
        /// The function.
        function: &'static str,
    },
    /// The library is older than what is needed.
    #[error("NCCL is {found}, {needed} or newer is needed: several ranks on one GPU came with it")]
    TooOld {
        /// Its version.
        found: Version,
        /// The oldest that serves.
        needed: Version,
    },
    /// It makes no windows here.
    #[error("ncclCommWindowRegister has made no window: there is no symmetric memory here")]
    NoWindow,
    /// Each way to set it up has failed on some rank.
    #[error("NCCL cannot be set up in any way that is compared")]
    NoWay,
    /// A call failed.
    #[error("{function} answered {name} ({code}): {detail}")]
    Failed {
        /// The function.
        function: &'static str,
        /// NCCL's number of the error.
        code: i32,
        /// NCCL's name for it.
        name: String,
        /// What `ncclGetLastError` says.
        detail: String,
    },
}

impl From<NcclError> for Failure {
    fn from(error: NcclError) -> Failure {
        Failure::Library(Box::new(error))
    }
}
