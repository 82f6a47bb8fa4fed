//! The oxccl machine: a three-instruction interpreter for collective schedules, written once in
//! `machine/` and built for host CPUs (several instruction sets, picked at start) and for CUDA
//! devices (one embedded fat binary), with the binary layout of its programs.
//!
//! [`mod@format`] is the layout, [`HostExecutor`] runs programs on the calling thread, and
//! [`image`] holds the GPU kernels. The crate knows nothing of ranks, sockets or algorithms.

pub use oxccl_format as format;
mod host;
pub mod image;
mod trace;

pub use host::{HostExecutor, Isa, Reduction};
pub use oxccl_format::{DataType, Fold, Outcome, Scale};
pub use trace::{StepTrace, TracedStep};

/// `oxccl/device.h`, for user kernels.
pub const DEVICE_HEADER: &str = include_str!("../include/oxccl/device.h");
