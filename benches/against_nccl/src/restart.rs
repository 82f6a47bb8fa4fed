//! NCCL and the driver read their settings from the environment when they are loaded, so they have
//! to be there from the start.

use std::os::unix::process::CommandExt;
use std::process::Command;

use oxccl_command::shared::Failure;

/// What several ranks on one GPU need. What the user has set stays.
const NEEDED: [(&str, &str); 4] = [
    // Ranks of a communicator may share a GPU.
    ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
    // No rank's stream waits for another's to get to the GPU.
    ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    // No rank waits for kernels to be loaded while another's, which waits for that rank, runs.
    ("CUDA_MODULE_LOADING", "EAGER"),
    // Nothing goes through a network card.
    ("NCCL_NET_GDR_LEVEL", "LOC"),
];

/// Goes on if all of it is set; otherwise this process starts itself once more, with it.
pub(crate) fn with_environment() -> Result<(), Failure> {
    let missing: Vec<_> =
        NEEDED.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(Failure::system("finding this program"))?;
    let error = Command::new(program).args(std::env::args_os().skip(1)).envs(missing).exec();
    Err(Failure::system("starting this program again")(error))
}
