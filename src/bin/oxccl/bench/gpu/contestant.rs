//! What is compared.

use oxccl::cuda::Stream;

use crate::bench::case::{Case, Shape};
use crate::failure::Failure;

/// Somebody who carries out collectives among ranks on one GPU; one rank's part of it.
pub(super) trait Contestant {
    /// Who it is.
    fn name(&self) -> &'static str;

    /// The ways in which it can carry out this call, made ready. The same on all ranks, which do so together.
    ///
    /// # Errors
    /// Whatever making ready fails with.
    fn settings(&mut self, call: &Placed) -> Result<Vec<Setting>, Failure>;

    /// Puts the call that was made ready last into a stream.
    ///
    /// # Errors
    /// Whatever launching fails with.
    fn put(&mut self, setting: usize, call: &Placed, stream: &Stream) -> Result<(), Failure>;

    /// Looks how the calls of a setting have ended, once the stream is done.
    ///
    /// # Errors
    /// A call that did not.
    fn ended(&self, setting: usize) -> Result<(), Failure>;
}

/// A call with its buffers in device memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) case: Case,
    pub(super) shape: Shape,
    pub(super) input: *const u8,
    pub(super) output: *mut u8,
}

/// One way to carry out a call.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// What kind of way it is: an encoding, or whether windows are used.
    pub(super) family: &'static str,
    /// All that distinguishes it from others.
    pub(super) name: String,
    /// Thread blocks of all ranks together, where they are known.
    pub(super) blocks: Option<usize>,
}
