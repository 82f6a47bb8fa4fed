//! What a configuration of a GPU needs besides what the user says.

use std::path::Path;

use oxccl::cuda::Image;
use oxccl::{Config, Device};

use crate::failure::Failure;

/// Fits a configuration to calls of up to so many bytes on a GPU, if it is one of a GPU's.
pub(crate) fn fit(
    config: &mut Config,
    largest_bytes: usize,
    image: Option<&Path>,
) -> Result<(), Failure> {
    if let Device::Cuda(_) = config.device {
        // Memory of a GPU is taken at the start: room for input and output, each in pages of 2 MiB.
        let each = largest_bytes.next_multiple_of(2 << 20) + (2 << 20);
        config.heap_bytes = config.heap_bytes.max(2 * each);
        config.advanced.image = self::image(image)?;
    }
    Ok(())
}

/// The kernels of a file, where one is named instead of those that were built in.
pub fn image(path: Option<&Path>) -> Result<Option<Image>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let reading = || format!("reading {}", path.display());
    let mut bytes = std::fs::read(path).map_err(Failure::system(reading()))?;
    // A text has to end with a zero.
    bytes.push(0);
    // SAFETY: whoever names the file vouches for it; it lives to the end of the process.
    Ok(Some(unsafe { Image::from_bytes(Box::leak(bytes.into_boxed_slice())) }))
}
