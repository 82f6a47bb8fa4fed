//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use oxccl::{Config, Device};
use oxccl_command::shared::{
    Failure, GroupOptions, Size, SweepOptions, Target, image, positive, seconds, target,
};

/// How NCCL reaches other ranks' buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NcclWay {
    /// By copies and pointers, as it likes.
    Default,
    /// In place, by symmetric windows.
    Symmetric,
}

/// Times calls on a GPU that all ranks share as threads of this process, beside the floor that the
/// hardware sets, and NCCL.
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub(crate) struct Options {
    /// The collective, or all: all_reduce, reduce_scatter, all_gather, all_to_all, broadcast,
    /// reduce, gather, scatter; or group: buckets that are reduced.
    #[arg(value_name = "OP", value_parser = target)]
    pub(crate) target: Target,
    /// What a group groups.
    #[command(flatten)]
    pub(crate) group: GroupOptions,
    /// Which calls are measured, and by which plans.
    #[command(flatten)]
    pub(crate) sweep: SweepOptions,
    /// Calls of a CUDA graph that is launched again and again: besides calls one by one, unless it
    /// is 0.
    #[arg(short = 'G', long, alias = "cudagraph", default_value_t = 0)]
    pub(crate) graph: usize,

    /// Times calls with cold caches, too: before each, the ranks together fill so many bytes of
    /// the GPU's memory [without a number: 256M, which takes about 100 us].
    #[arg(long, value_name = "BYTES", num_args = 0..=1, require_equals = true, default_missing_value = "256M")]
    pub(crate) cold: Option<Size>,

    /// Leaves NCCL out.
    #[arg(long)]
    pub(crate) floor_only: bool,
    /// libnccl.so.2, of release 2.30 or newer.
    #[arg(long, value_name = "FILE", default_value = "libnccl.so.2")]
    pub(crate) nccl_lib: PathBuf,
    /// Thread blocks ("CTAs") of a rank that NCCL may use; each is a setting, and the best counts
    /// [default: as many as the GPU holds for all ranks at once].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = positive)]
    pub(crate) nccl_ctas: Vec<usize>,
    /// With which kinds of buffers NCCL is measured. One that it cannot be set up with is left out,
    /// and a row says so.
    #[arg(
        long,
        value_enum,
        value_name = "WAY",
        value_delimiter = ',',
        default_value = "default,symmetric"
    )]
    pub(crate) nccl_ways: Vec<NcclWay>,
    /// Seconds after which a step that does not end, of whatever library, ends the process, which
    /// says what it was doing [default: --timeout].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) patience: Option<Duration>,
    /// The GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gpu: usize,
    /// Kernels are those of this file instead of those built in, for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) image: Option<PathBuf>,
}

impl Options {
    /// What communicators on this GPU are set up with.
    ///
    /// # Errors
    /// An environment variable, or an image, that cannot be read.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let device = Device::Cuda(Some(self.gpu)).to_string();
        let mut config = Config::from_lookup(|name| match name {
            "OXCCL_DEVICE" => Some(device.clone().into()),
            _ => std::env::var_os(name),
        })?;
        config.advanced.image = image(self.image.as_deref())?;
        self.sweep.set(&mut config);
        Ok(config)
    }
}
