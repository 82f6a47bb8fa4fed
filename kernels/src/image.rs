//! The GPU kernels, as the compiler left them.

use crate::format::{DataType, Fold};

/// The fat binary for all [`TARGETS`] and PTX for newer devices, or `None` if this crate was built
/// without nvcc. Loading a module of it takes the piece that fits the device.
#[cfg(oxccl_nvcc)]
pub const FATBIN: Option<&'static [u8]> =
    Some(&Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/oxccl.fatbin"))).0);

/// As [`FATBIN`], the kernels of [`traced_kernels`], for [`TRACED_TARGETS`].
#[cfg(oxccl_nvcc)]
pub const TRACED_FATBIN: Option<&'static [u8]> =
    Some(&Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/oxccl-traced.fatbin"))).0);

/// As [`FATBIN`], the kernels of [`HOT`].
#[cfg(oxccl_nvcc)]
pub const HOT_FATBIN: Option<&'static [u8]> =
    Some(&Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/oxccl-hot.fatbin"))).0);

/// The driver reads the image as words.
#[cfg(oxccl_nvcc)]
#[repr(align(64))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

/// The fat binary for all [`TARGETS`] and PTX for newer devices, or `None` if this crate was built
/// without nvcc. Loading a module of it takes the piece that fits the device.
#[cfg(not(oxccl_nvcc))]
pub const FATBIN: Option<&'static [u8]> = None;

/// As [`FATBIN`], the kernels of [`traced_kernels`], for [`TRACED_TARGETS`].
#[cfg(not(oxccl_nvcc))]
pub const TRACED_FATBIN: Option<&'static [u8]> = None;

/// As [`FATBIN`], the kernels of [`HOT`].
#[cfg(not(oxccl_nvcc))]
pub const HOT_FATBIN: Option<&'static [u8]> = None;

/// ptxas' report of registers, spills and stack per kernel and target, or `None` without nvcc.
#[cfg(oxccl_nvcc)]
pub const RESOURCES: Option<&str> = Some(include_str!(concat!(env!("OUT_DIR"), "/resources.txt")));
/// ptxas' report of registers, spills and stack per kernel and target, or `None` without nvcc.
#[cfg(not(oxccl_nvcc))]
pub const RESOURCES: Option<&str> = None;

/// The compiler that built [`FATBIN`].
pub const NVCC: Option<&str> = option_env!("OXCCL_NVCC");

/// Compute capabilities (times ten) with machine code in [`FATBIN`]: 80, 90, 100 and 120, or those
/// of them that `OXCCL_GPU_TARGETS` named for the build.
pub const TARGETS: &[u32] = &include!(concat!(env!("OUT_DIR"), "/targets.rs"));

/// The same of [`TRACED_FATBIN`]: 80 and 90, or those of them. Newer devices use its PTX.
pub const TRACED_TARGETS: &[u32] = &include!(concat!(env!("OUT_DIR"), "/traced_targets.rs"));

/// Threads per block of every kernel. A block is a channel.
pub const BLOCK_THREADS: u32 = 512;

/// Dynamic shared memory of a block with which kernels leave long copies to the engine for bulk
/// asynchronous copies, on GPUs from [`BULK_COPY_CAPABILITY`] on. With none their threads copy.
pub const BULK_COPY_BYTES: u32 = 128 << 10;

/// The lowest compute capability, major and minor, that has that engine.
pub const BULK_COPY_CAPABILITY: (u32, u32) = (9, 0);

/// The kernels for one type each: of its sums, and of its other folds. Of those, one that it is
/// called for.
pub fn kernels() -> impl Iterator<Item = (DataType, Fold)> {
    let both = |data_type| [Fold::Sum, Fold::Min].map(|fold| (data_type, fold));
    DataType::ALL.into_iter().flat_map(both)
}

/// The name of the kernel in [`FATBIN`] for a type and a fold.
pub fn kernel_name(data_type: DataType, fold: Fold) -> String {
    let folds = if fold == Fold::Sum { "sum" } else { "other" };
    format!("oxccl_{}_{folds}", data_type.symbol())
}

/// The kernel in [`FATBIN`] for all types and folds: for groups that reduce in several ways.
pub const ANY_KERNEL: &str = "oxccl_any";

/// The kernels of one schedule each: its name, as in `oxccl_plans::hot`, and the type of whose sums
/// it is; none of those that only copy.
pub const HOT: &[(&str, Option<DataType>)] = include!(concat!(env!("OUT_DIR"), "/hot.rs"));

/// The name of a kernel of [`HOT`] in [`HOT_FATBIN`].
pub fn hot_name(schedule: &str, sums: Option<DataType>) -> String {
    let sums = sums.map_or_else(String::new, |data_type| format!("_{}_sum", data_type.symbol()));
    format!("oxccl_hot_{schedule}{sums}")
}

/// The kernels of [`TRACED_FATBIN`], by what they reduce; none: all types and folds.
pub fn traced_kernels() -> impl Iterator<Item = (Option<(DataType, Fold)>, String)> {
    let sums = TRACED_SUMS.map(|data_type| Some((data_type, Fold::Sum)));
    sums.into_iter().chain([None]).map(|of| (of, traced_name(of)))
}

/// Element types whose sums there are traced kernels for.
pub const TRACED_SUMS: [DataType; 4] =
    [DataType::F32, DataType::F16, DataType::BF16, DataType::F8E4M3];

fn traced_name(of: Option<(DataType, Fold)>) -> String {
    let name = of.map_or_else(|| ANY_KERNEL.to_owned(), |(data, fold)| kernel_name(data, fold));
    name.replace("oxccl_", "oxccl_traced_")
}
