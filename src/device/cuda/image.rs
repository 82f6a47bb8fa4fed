//! The kernels' image: the one that was built in, unless somebody hands in another.

use oxccl_kernels::image;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::Device;

/// What kernels are loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    bytes: &'static [u8],
    /// Of the traced kernels.
    traced: &'static [u8],
    /// Of the hot kernels.
    hot: &'static [u8],
}

impl Image {
    /// The image that was built in.
    ///
    /// # Errors
    /// [`CudaError::NoImage`] if this was built without nvcc.
    pub fn embedded(device: Device) -> Result<Image, CudaError> {
        match (image::FATBIN, image::TRACED_FATBIN, image::HOT_FATBIN) {
            (Some(bytes), Some(traced), Some(hot)) => Ok(Image { bytes, traced, hot }),
            _ => Err(missing(
                device,
                "oxccl was built without GPU kernels: set NVCC or CUDA_HOME, and build again",
            )),
        }
    }

    /// Another image, as tests have. Whoever loads kernels says which; nothing falls back to this.
    ///
    /// # Safety
    /// The bytes are an image that the driver can read to its end, and its kernels, the traced and
    /// the hot ones among them, are this release's.
    #[doc(hidden)]
    pub unsafe fn from_bytes(bytes: &'static [u8]) -> Image {
        Image { bytes, traced: bytes, hot: bytes }
    }

    /// What traced kernels are loaded from.
    pub(super) fn traced(self) -> Image {
        Image { bytes: self.traced, ..self }
    }

    /// What hot kernels are loaded from.
    pub(super) fn hot(self) -> Image {
        Image { bytes: self.hot, ..self }
    }

    pub(super) fn as_ptr(self) -> *const u8 {
        self.bytes.as_ptr()
    }
}

/// The error of a GPU that has no kernels.
pub(super) fn missing(device: Device, detail: &str) -> CudaError {
    let (major, minor) = device.capability().unwrap_or_default();
    CudaError::NoImage {
        ordinal: device.ordinal(),
        capability: format!("{major}.{minor}"),
        detail: detail.to_owned(),
    }
}

/// What the image has code for, as text.
pub(super) fn targets() -> String {
    let targets: Vec<_> = image::TARGETS.iter().map(|target| format!("sm_{target}")).collect();
    format!("the image has {} and PTX for newer ones", targets.join(", "))
}
