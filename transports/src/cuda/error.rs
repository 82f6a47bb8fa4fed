//! What can go wrong with GPUs.

use super::{Uuid, Version};

/// Why a GPU, or its memory, cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver.
    #[error(
        "there is no CUDA driver: libcuda.so cannot be loaded; install NVIDIA's driver, or pass it \
         into the container"
    )]
    NoDriver,
    /// What is loaded is the toolkit's stub.
    #[error(
        "libcuda.so is the CUDA toolkit's stub, which is for linking alone: take its folder off LD_LIBRARY_PATH, or put \
         the driver's in front of it"
    )]
    StubDriver,
    /// The driver is older than what this release was made for.
    #[error("the CUDA driver is of version {found}, {needed} is needed: install a newer driver")]
    DriverTooOld {
        /// The driver's version.
        found: Version,
        /// The oldest that serves.
        needed: Version,
    },
    /// The driver lacks a function.
    #[error("the CUDA driver has no {function}: install a newer driver")]
    MissingFunction {
        /// The function.
        function: &'static str,
    },
    /// There is a driver and no GPU.
    #[error("there is no GPU that this process may use: see nvidia-smi, and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// There are fewer GPUs.
    #[error("there is no GPU {ordinal}: this process sees {count}, from 0 on")]
    NoSuchDevice {
        /// What was asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The GPU cannot do something that is needed.
    #[error("GPU {ordinal} does not support {what}")]
    NotSupported {
        /// The GPU.
        ordinal: usize,
        /// What it cannot do.
        what: &'static str,
    },
    /// The GPU, or the machine's pinned memory, is full.
    #[error(
        "{bytes} bytes of {what} are not to be had{}: use smaller buffers, or free some",
        free_bytes.map(|free| format!(", {free} are free")).unwrap_or_default()
    )]
    OutOfMemory {
        /// Which memory.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
        /// How much is free, where that is known.
        free_bytes: Option<usize>,
    },
    /// The calling thread has no context to adopt.
    #[error("no CUDA context is current in this thread: set one, or name the GPU")]
    NoCurrentContext,
    /// The calling thread's context is not its GPU's primary one.
    #[error(
        "the current CUDA context is not the primary one of GPU {ordinal}: oxccl uses primary \
         contexts, as the CUDA runtime does"
    )]
    NotPrimary {
        /// The GPU.
        ordinal: usize,
    },
    /// One GPU cannot reach another's memory.
    #[error("GPU {ordinal} cannot reach the memory of GPU {peer}: they have no peer access")]
    NoPeerAccess {
        /// The GPU that wants to.
        ordinal: usize,
        /// The other one.
        peer: Uuid,
    },
    /// Device memory was needed.
    #[error(
        "{address:#x} is {found}, where memory of GPU {ordinal} is needed (freed memory looks like \
         host memory, too)"
    )]
    NotDeviceMemory {
        /// The address.
        address: u64,
        /// What is there.
        found: &'static str,
        /// The GPU.
        ordinal: usize,
    },
    /// Memory of another GPU was given.
    #[error("{address:#x} is memory of GPU {found}, where that of GPU {ordinal} is needed")]
    OtherDevice {
        /// The address.
        address: u64,
        /// Whose it is.
        found: i32,
        /// Whose it should be.
        ordinal: usize,
    },
    /// A stream of another GPU was given.
    #[error("the stream is one of GPU {found}, where one of GPU {ordinal} is needed")]
    OtherStream {
        /// Whose it is.
        found: usize,
        /// Whose it should be.
        ordinal: usize,
    },
    /// The legacy default stream, where several ranks of a process share a GPU.
    #[error(
        "{ranks} ranks of this process share the GPU and its legacy default stream, in which their kernels \
         would wait for each other for ever: make a stream for each rank"
    )]
    DefaultStream {
        /// How many ranks.
        ranks: usize,
    },
    /// A stream of several ranks, for calls that copy engines carry out.
    #[error(
        "the stream has calls of rank {rank}, too, and what it waits for of this rank would stand behind that: \
         make a stream for each rank"
    )]
    SharedStream {
        /// Whose stream it is, too.
        rank: usize,
    },
    /// The default stream that is another one on each thread.
    #[error(
        "the per-thread default stream is another stream on each thread, so that calls of several threads would not be \
         in order: make a stream"
    )]
    PerThreadStream,
    /// More streams whose kernels wait for each other than ways to the GPU.
    #[error(
        "{ranks} ranks of this process with {streams} streams each, one of them its own, share {connections} \
         connections to the GPU, so that one may keep back the kernel that another waits for: use fewer streams, or set \
         CUDA_DEVICE_MAX_CONNECTIONS (at most 32) before the process starts"
    )]
    TooManyStreams {
        /// Streams that a rank uses, its own among them.
        streams: usize,
        /// Ranks.
        ranks: usize,
        /// Connections.
        connections: usize,
    },
    /// A stream would wait for what may stand behind it.
    #[error(
        "{streams} streams share {connections} connections to the GPU, so that one that waits (for a group whose buckets are not all marked ready, or \
         for other ranks' copies) may keep back what it waits for: mark buckets first, wait on the host, use fewer streams, or set CUDA_DEVICE_MAX_CONNECTIONS (at most 32) to the number of \
         streams before the process starts"
    )]
    TooFewConnections {
        /// Streams of the GPU that this process knows of.
        streams: usize,
        /// Connections.
        connections: usize,
    },
    /// No traced kernel does what a call asks for.
    #[error(
        "no traced kernel computes {what}: traced are sums of {traced}, groups that reduce in several ways, and calls \
         that only copy"
    )]
    NotTraced {
        /// What the call reduces, and how.
        what: String,
        /// The types of traced sums.
        traced: String,
    },
    /// A call was to be captured by a communicator that traces.
    #[error(
        "a call that is traced cannot be captured, since nobody knows when its graph is replayed: end the trace \
         (set_trace(false)) before the capture"
    )]
    TracedCapture,
    /// The stream's capture has been spoiled.
    #[error(
        "the stream's capture has been spoiled by a call that it forbids: end it, and capture again, in \
         thread-local or relaxed mode if other threads use the GPU"
    )]
    InvalidCapture,
    /// A buffer is shorter than what is to be done with it.
    #[error(
        "{len_bytes} bytes from {address:#x} on reach beyond the allocation, by {beyond_bytes}"
    )]
    TooShort {
        /// The address.
        address: u64,
        /// How long the buffer should be.
        len_bytes: usize,
        /// How far it reaches over.
        beyond_bytes: usize,
    },
    /// Memory that other processes cannot be given.
    #[error("the memory at {address:#x} cannot be shared with other processes: {why}")]
    NotShareable {
        /// The address.
        address: u64,
        /// Why.
        why: &'static str,
    },
    /// Memory of a communicator that is suspended.
    #[error("the memory was given up: resume the communicator on all ranks")]
    GivenUp,
    /// A stream capture forbids what was asked for.
    #[error(
        "{function} is forbidden while a stream is captured: make communicators and first calls \
         before the capture, or capture in thread-local mode"
    )]
    Capturing {
        /// The driver's function.
        function: &'static str,
        /// The driver's code.
        code: u32,
    },
    /// There are no kernels for this GPU.
    #[error("there are no kernels for GPU {ordinal} of compute capability {capability}: {detail}")]
    NoImage {
        /// The GPU.
        ordinal: usize,
        /// Its compute capability, as `9.0`.
        capability: String,
        /// What there is, and what helps.
        detail: String,
    },
    /// More thread blocks than the GPU can hold at once: they would wait for each other for ever.
    #[error(
        "{ranks} ranks with {channels} channels each need {} thread blocks at once on {gpu}, which \
         holds {resident}: use fewer channels (max_channels), or fewer ranks",
        ranks * channels
    )]
    TooManyBlocks {
        /// The GPU.
        gpu: Uuid,
        /// Ranks that share it.
        ranks: usize,
        /// Channels of each.
        channels: usize,
        /// What it holds.
        resident: usize,
    },
    /// The driver refused a call.
    #[error("{function} failed: {name} ({code}), {text}")]
    Driver {
        /// The driver's function.
        function: &'static str,
        /// Its answer.
        code: u32,
        /// The answer's name.
        name: String,
        /// What the driver says of it.
        text: String,
    },
}

impl CudaError {
    /// Whether the caller is mistaken, in what it gives or where it calls; otherwise the machine
    /// cannot do it, or has failed.
    pub fn is_misuse(&self) -> bool {
        match self {
            CudaError::NoSuchDevice { .. }
            | CudaError::NoCurrentContext
            | CudaError::NotPrimary { .. }
            | CudaError::NotDeviceMemory { .. }
            | CudaError::OtherDevice { .. }
            | CudaError::OtherStream { .. }
            | CudaError::DefaultStream { .. }
            | CudaError::SharedStream { .. }
            | CudaError::PerThreadStream
            | CudaError::TooManyStreams { .. }
            | CudaError::TooFewConnections { .. }
            | CudaError::InvalidCapture
            | CudaError::NotTraced { .. }
            | CudaError::TracedCapture
            | CudaError::TooShort { .. }
            | CudaError::NotShareable { .. }
            | CudaError::GivenUp
            | CudaError::Capturing { .. } => true,
            CudaError::NoDriver
            | CudaError::StubDriver
            | CudaError::DriverTooOld { .. }
            | CudaError::MissingFunction { .. }
            | CudaError::NoDevice
            | CudaError::NotSupported { .. }
            | CudaError::OutOfMemory { .. }
            | CudaError::NoPeerAccess { .. }
            | CudaError::NoImage { .. }
            | CudaError::TooManyBlocks { .. }
            | CudaError::Driver { .. } => false,
        }
    }

    /// The driver's answer, where this is one.
    pub fn code(&self) -> Option<u32> {
        match self {
            CudaError::Driver { code, .. } | CudaError::Capturing { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Says how much was asked for, where memory is what is missing.
    pub(super) fn allocating(
        self,
        what: &'static str,
        bytes: usize,
        free_bytes: Option<usize>,
    ) -> CudaError {
        const OUT_OF_MEMORY: u32 = super::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;
        match self.code() {
            Some(OUT_OF_MEMORY) => CudaError::OutOfMemory { what, bytes, free_bytes },
            _ => self,
        }
    }
}
