//! What is compared.

use oxccl::cuda::Stream;
use oxccl_command::shared::{Case, Failure, Form, Shape};

/// Somebody who carries out collectives among ranks on one GPU; one rank's part of it.
pub(crate) trait Contestant {
    /// Who it is.
    fn name(&self) -> &'static str;

    /// Whether the ranks' streams are captured as one graph, which one rank launches for all;
    /// otherwise each captures its own.
    fn captures_together(&self) -> bool;

    /// The ways in which it can carry out this task, made ready. The same on all ranks, which do so
    /// together.
    ///
    /// # Errors
    /// Whatever making ready fails with.
    fn settings(&mut self, task: &Task) -> Result<Vec<Setting>, Failure>;

    /// Puts the calls of the task that was made ready last into a stream.
    ///
    /// # Errors
    /// Whatever launching fails with.
    fn put(&mut self, setting: usize, task: &Task, stream: &Stream) -> Result<(), Failure>;

    /// Looks how the calls have ended, once the stream is done.
    ///
    /// # Errors
    /// A call that did not end well.
    fn ended(&mut self) -> Result<(), Failure>;
}

/// What is timed: one call, or the calls of a group.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// How the buckets of a group are carried out.
    pub(crate) form: Option<Form>,
    /// What is called.
    pub(crate) calls: Vec<Placed>,
    /// What is copied into the calls' buffers before, and out of them behind.
    pub(crate) copies: Option<Copies>,
    /// Whose inputs are filled, and whose outputs are looked at.
    pub(crate) checked: Vec<Placed>,
}

/// Copies inside a GPU: from, to, bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    pub(crate) before: Vec<(*const u8, *mut u8, usize)>,
    pub(crate) behind: Vec<(*const u8, *mut u8, usize)>,
}

impl Task {
    /// One call.
    pub(crate) fn single(call: Placed) -> Task {
        Task { form: None, calls: vec![call], copies: None, checked: vec![call] }
    }

    /// The collective, type and operation, which all calls share.
    pub(crate) fn case(&self) -> Case {
        self.calls[0].case
    }

    /// The bytes of all calls.
    pub(crate) fn bytes(&self) -> usize {
        self.calls.iter().map(|call| call.shape.bytes(call.case.data_type)).sum()
    }
}

/// A call with its buffers in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) case: Case,
    pub(crate) shape: Shape,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
}

/// One way to carry out a call.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// What kind of way it is: an encoding, or whether windows are used.
    pub(crate) family: &'static str,
    /// All that distinguishes it from others.
    pub(crate) name: String,
    /// Thread blocks of all ranks together, where they are known.
    pub(crate) blocks: Option<usize>,
}
