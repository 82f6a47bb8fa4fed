//! NCCL's interface over the stand-in driver's memory, so that `oxccl-against-nccl` runs from end
//! to end on machines without a GPU: its loop, its checks, its turns and its errors. It says
//! nothing about NCCL's speed.
//!
//! Ranks are threads of one process. A call becomes a host function in the caller's stream (so it
//! is captured and replayed as any other node), in which all ranks meet and each works out its own
//! output. What NCCL refuses in this set-up is refused: several ranks on one GPU without
//! `NCCL_MULTI_RANK_GPU_ENABLE=1`, windows on memory that is not `ncclMemAlloc`'s. Messages are
//! missing, and so is what destroys: the tool does not ask for them.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `OXCCL_NCCL_STAND_IN_VERSION` | what `ncclGetVersion` says | 23007 |
//! | `OXCCL_NCCL_STAND_IN_FAIL` | `FUNCTION:N`: the Nth call of it fails | none |
//! | `OXCCL_NCCL_STAND_IN_NO_WINDOWS` | 1: `ncclCommWindowRegister` succeeds without a window | 0 |
//! | `OXCCL_NCCL_STAND_IN_WRONG` | 1: one element of each reduction is wrong | 0 |

mod answer;
mod calls;
mod meeting;
mod memory;
mod reduce;
mod world;

/// The library, which a build leaves beside tests.
///
/// # Panics
/// It was not built.
pub fn library() -> std::path::PathBuf {
    let test = std::env::current_exe().expect("a program knows its file");
    let library = test.with_file_name("liboxccl_nccl_stand_in.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}
