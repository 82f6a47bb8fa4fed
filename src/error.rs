//! The one error type: misuse, the other ranks' faults, and the system's.

mod nature;

use crate::target::Device;
use oxccl_plans::collective::{Kind, Order};
use oxccl_plans::element::{DataType, OpKind};
use oxccl_plans::length::TooLong;
use oxccl_plans::tune::NoAlgorithm;
use oxccl_transports::{Cause, CudaError};

/// Why a call did not do what was asked.
///
/// Misuse that this rank alone can see ([`is_misuse`](Error::is_misuse)) leaves the communicator
/// usable, and so does what says so. Everything else ends it on all ranks
/// ([`is_fatal`](Error::is_fatal)): inputs that were not in place are intact, outputs are
/// unspecified, and further calls return [`Error::Broken`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A buffer's length does not fit the call.
    #[error("{argument} has {found} elements, {kind} needs {expected}")]
    Length {
        /// The call.
        kind: Kind,
        /// The argument.
        argument: &'static str,
        /// What it has.
        found: usize,
        /// What is needed.
        expected: usize,
    },
    /// Counts or a length that come to more bytes than memory can have, alone or together. Nothing
    /// has been called.
    #[error("{argument} of {call} come to {}", TooLong)]
    Overflow {
        /// The call.
        call: &'static str,
        /// The argument.
        argument: &'static str,
    },
    /// A buffer's length is no multiple of the number of ranks.
    #[error(
        "{argument} of {kind} has {count} elements, which {ranks} ranks cannot share evenly; use the v-variant or pad it"
    )]
    NotDivisible {
        /// The call.
        kind: Kind,
        /// The argument.
        argument: &'static str,
        /// Its length.
        count: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A buffer does not start at a multiple of its element's size.
    #[error(
        "{argument} is at address {address:#x}, which is no multiple of the {align} bytes of its element type"
    )]
    Unaligned {
        /// The argument.
        argument: &'static str,
        /// Where it is.
        address: usize,
        /// The element's size.
        align: usize,
    },
    /// Input and output overlap without being in place.
    #[error(
        "input and output of {kind} overlap, but are not in place as it is defined for {kind}: see the call's documentation"
    )]
    Overlap {
        /// The call.
        kind: Kind,
    },
    /// A rank number that does not exist, or this rank itself where that makes no sense.
    #[error("{argument} is rank {rank}, there are ranks 0 to {last}{}", if *own { ", and it must be another than this one" } else { "" })]
    Rank {
        /// The argument.
        argument: &'static str,
        /// What it is.
        rank: usize,
        /// The last rank.
        last: usize,
        /// Whether this rank itself is excluded.
        own: bool,
    },
    /// The type has no such operation.
    #[error("op {op} does not exist for {}: bitwise operations need an integer type", data_type.name())]
    Op {
        /// The operation.
        op: OpKind,
        /// The type.
        data_type: DataType,
    },
    /// A bucket of a training step that does not exist or has been updated before.
    #[error("bucket {bucket} of {buckets} {}", if bucket < buckets { "has been updated in this step before" } else { "does not exist" })]
    Bucket {
        /// Its number.
        bucket: usize,
        /// How many there are.
        buckets: usize,
    },
    /// A parameter that does not exist, or has been marked ready before.
    #[error("parameter {parameter}: {detail}")]
    Parameter {
        /// Its number.
        parameter: usize,
        /// What is wrong.
        detail: String,
    },
    /// No algorithm does what was asked with what was pinned.
    #[error("no algorithm for {kind} (order {order}) fits what is pinned: {detail}")]
    NoAlgorithm {
        /// The call.
        kind: Kind,
        /// The promised order.
        order: Order,
        /// What was asked for, and what there is.
        detail: String,
    },
    /// A configuration value that cannot be.
    #[error("{variable}: {detail}")]
    Config {
        /// The field or environment variable.
        variable: &'static str,
        /// What is wrong and what would be right.
        detail: String,
    },
    /// Ranks are configured differently: none of them starts.
    #[error(
        "{setting}: is {ours} on this rank and {theirs} on rank {rank}; all ranks need the same"
    )]
    ConfigDiffers {
        /// The field of the configuration, or `version`.
        setting: &'static str,
        /// The first rank that has another value.
        rank: usize,
        /// Its value.
        theirs: String,
        /// This rank's.
        ours: String,
    },
    /// A stream, or a call, of another kind of device than the communicator's.
    #[error("this communicator's device is {device}: {}", device.remedy())]
    OtherDevice {
        /// The communicator's device.
        device: Device,
    },
    /// A buffer of another kind of device than the communicator's.
    #[error(
        "this communicator's device is {device}, and the buffer is a GPU's memory: take it from this communicator's alloc"
    )]
    OtherMemory {
        /// The communicator's device.
        device: Device,
    },
    /// The host was to look at memory of a GPU.
    #[error(
        "this is memory of a GPU, which the host cannot look at: give its address to kernels, or copy it"
    )]
    MemoryOfGpu,
    /// A factor in memory ([`Call::factor_at`](crate::Call::factor_at)) of a call of several ranks.
    #[error(
        "a factor in memory is for a communicator of one rank, and not of {ranks}: ranks cannot compare what it is"
    )]
    FactorInMemory {
        /// So many.
        ranks: usize,
    },
    /// What this release cannot do.
    #[error("{what} is not there yet on {device}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// The communicator's device.
        device: Device,
    },
    /// A call of a communicator that is [suspended](crate::Communicator::suspend), or a suspension
    /// of one.
    #[error("the communicator is suspended: resume it, on all ranks, before calls")]
    Suspended,
    /// Memory that one rank cannot register, or another cannot open. No rank has registered
    /// anything, and the communicator stays usable.
    #[error(
        "memory cannot be registered, on any rank, because of rank {rank}: {reason}; calls over it go through slots"
    )]
    NotRegistered {
        /// The rank that cannot.
        rank: usize,
        /// What it says.
        reason: String,
    },
    /// Memory of the host that this rank cannot register. Nothing has been done.
    #[error(
        "this memory cannot be registered: {reason}; it is used as it is, if no other rank registers its own for the same calls"
    )]
    NotLent {
        /// What memory it is.
        reason: String,
    },
    /// Steps that one rank cannot trace. No rank traces, and the communicator stays usable.
    #[error("steps cannot be traced, on any rank, because of rank {rank}: {reason}")]
    NotTraced {
        /// The rank that cannot.
        rank: usize,
        /// What it says.
        reason: String,
    },
    /// Ranks that share a launch were not captured together.
    #[error(
        "{what} is captured on some ranks, and not, or into another graph, on others: ranks that share a launch \
         (single_launch) capture their streams as one graph"
    )]
    CapturedApart {
        /// The call.
        what: String,
    },
    /// Two launches of a rank were under way on its GPU at once, which would use the same counters.
    #[error(
        "{during} began on the GPU of rank {rank} beside another call of the communicator: a graph that was captured \
         with calls is replayed in the order of the other calls, so let events or one stream see to that"
    )]
    ReplayedBeside {
        /// The rank.
        rank: usize,
        /// The call that began then, as far as is known: of a graph, the last that was captured.
        during: String,
    },
    /// A copy between buffers of different lengths.
    #[error("a copy of {found} elements from or to a buffer of {expected}")]
    CopyLength {
        /// The other side's length.
        found: usize,
        /// The buffer's length.
        expected: usize,
    },
    /// The communicator's own memory is used up.
    #[error("comm.alloc of {bytes} bytes: {detail}")]
    OutOfMemory {
        /// How much was asked for.
        bytes: usize,
        /// What there is, and the remedy.
        detail: String,
    },
    /// Another rank made a different call.
    #[error(
        "call #{call}{}: {argument} differs: rank {rank} has {theirs}, rank {compared_with} {ours} ({what})",
        bucket.map_or(String::new(), |bucket| format!(", bucket {bucket}"))
    )]
    Mismatch {
        /// Number of the call, counted from 1.
        call: u64,
        /// In groups: the first bucket that differs, from 0.
        bucket: Option<usize>,
        /// What differs.
        argument: &'static str,
        /// The rank that differs: from most ranks, where more than two made the call; otherwise
        /// from this one.
        rank: usize,
        /// What it has.
        theirs: String,
        /// A rank that it differs from: this one, unless this one is the odd one.
        compared_with: usize,
        /// What that one has.
        ours: String,
        /// The call.
        what: Box<str>,
    },
    /// When the communicator was closed, messages were still on their way.
    #[error(
        "rank {sender} has sent {sent} messages to rank {receiver}, which has received {received}, and the communicator is being closed"
    )]
    Unreceived {
        /// The sender.
        sender: usize,
        /// The receiver.
        receiver: usize,
        /// Messages that were sent.
        sent: u64,
        /// Messages that were received.
        received: u64,
    },
    /// What one rank sends another in an all-to-all of uneven parts is not what that rank expects.
    /// All ranks get this error, and the communicator stays usable.
    #[error(
        "rank {sender} sends {sent} elements to rank {receiver}, which expects {received}: send_counts and recv_counts differ"
    )]
    CountsDiffer {
        /// The sender.
        sender: usize,
        /// The receiver.
        receiver: usize,
        /// The sender's count.
        sent: usize,
        /// The receiver's count.
        received: usize,
    },
    /// A call of a kind whose parts are equal was given counts.
    #[error("the parts of {kind} are equal on all ranks: it takes no such counts")]
    Counts {
        /// The kind.
        kind: Kind,
    },
    /// The time-out passed without progress.
    #[error("{what} #{call} timed out after {seconds:.1} s: {detail}")]
    TimedOut {
        /// The call.
        what: String,
        /// Its number.
        call: u64,
        /// The time-out.
        seconds: f64,
        /// The ranks that did not come, or did not mark a bucket ready, as far as they are known.
        ranks: Vec<usize>,
        /// Which ranks did not come, and what they did last.
        detail: String,
    },
    /// A rank's process or thread ended without closing its communicator.
    #[error("rank {rank} {how} (noticed in {during})")]
    Died {
        /// The rank.
        rank: usize,
        /// What is known of its end, to be read behind its name.
        how: String,
        /// What this rank was doing.
        during: String,
    },
    /// The machine of a rank does not answer any more.
    #[error("the machine of rank {rank} is down or cut off from the network (noticed in {during})")]
    CutOff {
        /// The rank.
        rank: usize,
        /// What this rank was doing.
        during: String,
    },
    /// The process that served the rendezvous and held no rank, such as the launcher, ended.
    #[error("the process that serves the rendezvous (the launcher) ended (noticed in {during})")]
    ServerLost {
        /// What this rank was doing.
        during: String,
    },
    /// The machine of that process does not answer any more.
    #[error(
        "the machine that serves the rendezvous is down, or this one is cut off from the network (noticed in {during})"
    )]
    ServerCutOff {
        /// What this rank was doing.
        during: String,
    },
    /// The rendezvous has lost its server, and the rank whose turn it is does not answer.
    #[error(
        "the rendezvous has lost its server, and rank {rank} of those that started together, whose turn it is to serve, does not answer (noticed in {during})"
    )]
    Unserved {
        /// The rank, by its number at the start.
        rank: usize,
        /// What this rank was doing.
        during: String,
    },
    /// The link between two ranks of different nodes broke.
    #[error(
        "rank {rank} lost its link to rank {peer}, which may have been cut off (noticed in {during}): {detail}"
    )]
    LinkLost {
        /// The rank that noticed.
        rank: usize,
        /// The rank at the other end.
        peer: usize,
        /// What happened to it.
        detail: String,
        /// What this rank was doing.
        during: String,
    },
    /// A message between ranks of different nodes did not come as it was sent. Nothing of it was
    /// delivered.
    #[error(
        "what rank {peer} sent to rank {rank} was changed on its way (integrity; noticed in {during}): something between them is \
         faulty, or somebody is there"
    )]
    Corrupted {
        /// The rank that noticed.
        rank: usize,
        /// The rank that had sent it.
        peer: usize,
        /// What this rank was doing.
        during: String,
    },
    /// The system did not read a rank's private memory for another, as it had done when they
    /// started.
    #[error(
        "rank {rank} could not read a buffer of rank {peer} ({source}; in {during}): it has been unmapped, or is memory that only its \
         process reaches. OXCCL_CMA=0 sends private memory through slots"
    )]
    Unreadable {
        /// The rank that was to read.
        rank: usize,
        /// The rank whose memory it is.
        peer: usize,
        /// What the system says.
        source: std::io::Error,
        /// What this rank was doing.
        during: String,
    },
    /// A rank closed its communicator before it made this call.
    #[error("rank {rank} closed its communicator after {calls} calls; {during} needs it")]
    Left {
        /// The rank.
        rank: usize,
        /// Calls it had made.
        calls: u64,
        /// What this rank was doing.
        during: String,
    },
    /// Another rank ended the communicator.
    #[error("stopped by rank {rank}: {reason}")]
    Stopped {
        /// The rank.
        rank: usize,
        /// Its reason.
        reason: String,
        /// The ranks that the reason names: those that were waited for, or differ.
        ranks: Vec<usize>,
    },
    /// A process that was forked from the one that made the communicator uses it, or what belongs
    /// to it. Nothing has been done, and the communicator stays as it is in the process that made
    /// it.
    #[error(
        "a communicator belongs to the process that made it, and this process was forked from that one: start ranks of their \
         own in new processes (exec, or the start method \"spawn\"), and make calls in the process that made the communicator"
    )]
    Forked,
    /// The communicator ended earlier.
    #[error("this communicator ended in an earlier call: {first}")]
    Broken {
        /// The first error.
        first: String,
        /// The ranks that it names ([`Error::ranks`]).
        ranks: Vec<usize>,
    },
    /// This rank's GPU, or its driver, failed in a call.
    #[error("this rank's GPU failed in a call: {source}")]
    DeviceLost {
        /// The driver's answer.
        source: CudaError,
    },
    /// The transport's error, at the start, or where memory is registered; and what a GPU's driver
    /// refused before a call was made.
    #[error(transparent)]
    Transport(#[from] oxccl_transports::Error),
    /// The launcher's environment is not complete.
    #[error(transparent)]
    Environment(#[from] oxccl_transports::EnvironmentError),
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    System {
        /// What was done.
        doing: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl From<NoAlgorithm> for Error {
    fn from(NoAlgorithm { kind, order, detail }: NoAlgorithm) -> Error {
        Error::NoAlgorithm { kind, order, detail }
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        Error::Transport(error.into())
    }
}

/// What is kept of the error that ended a communicator or a call, for those who ask later.
#[derive(Clone, Debug)]
pub(crate) struct First {
    text: String,
    ranks: Vec<usize>,
}

impl First {
    pub(crate) fn of(error: &Error) -> First {
        First { text: error.to_string(), ranks: error.ranks() }
    }

    pub(crate) fn broken(&self) -> Error {
        Error::Broken { first: self.text.clone(), ranks: self.ranks.clone() }
    }
}

impl Error {
    /// Adds to what an error says that has come from a call.
    pub(crate) fn add(&mut self, more: &str) {
        match self {
            Error::TimedOut { detail: text, .. }
            | Error::LinkLost { detail: text, .. }
            | Error::Stopped { reason: text, .. }
            | Error::Died { during: text, .. }
            | Error::CutOff { during: text, .. }
            | Error::ServerLost { during: text }
            | Error::ServerCutOff { during: text }
            | Error::Unserved { during: text, .. }
            | Error::Left { during: text, .. }
            | Error::Broken { first: text, .. } => text.push_str(more),
            Error::Mismatch { what, .. } => *what = format!("{what}{more}").into(),
            _ => {}
        }
    }

    /// Says of which call's argument a length cannot be.
    pub(crate) fn too_long(
        call: &'static str,
        argument: &'static str,
    ) -> impl Fn(TooLong) -> Error + Copy {
        move |TooLong| Error::Overflow { call, argument }
    }

    /// What another rank, or the transport, has told.
    pub(crate) fn from_cause(cause: Cause, during: String) -> Error {
        match cause {
            Cause::Died { rank } => Error::Died { rank, how: "died".to_owned(), during },
            Cause::Ended { rank, how, .. } => Error::Died { rank, how, during },
            Cause::CutOff { rank } => Error::CutOff { rank, during },
            Cause::ServerLost => Error::ServerLost { during },
            Cause::ServerCutOff => Error::ServerCutOff { during },
            Cause::Unserved { rank } => Error::Unserved { rank, during },
            Cause::Corrupted { rank, peer } => Error::Corrupted { rank, peer, during },
            Cause::LinkLost { rank, peer, detail } => {
                Error::LinkLost { rank, peer, detail, during }
            }
            Cause::Aborted { rank, reason } => Error::Stopped { rank, reason, ranks: Vec::new() },
            Cause::Mismatch { rank, detail, ranks } | Cause::TimedOut { rank, detail, ranks } => {
                Error::Stopped { rank, reason: detail, ranks }
            }
            other => Error::Transport(oxccl_transports::Error::Stopped(other)),
        }
    }
}
