//! The one error type of this crate.

mod nature;

use std::io;

use crate::liveness::Cause;

/// Why memory could not be reached, or the ranks could not meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A process that was forked from the one that this belongs to uses it.
    #[error(
        "this belongs to the process that made it, and this process was forked from that one: join with a rank of its own"
    )]
    Forked,
    /// The two sides do not hold the same secret.
    #[error(
        "the rendezvous at {address} holds another secret: give every rank the same unique id \
         (or the same OXCCL_SECRET), or choose another port if a different job uses this one"
    )]
    WrongSecret {
        /// Where the server listens.
        address: String,
    },
    /// A message is longer than is accepted.
    #[error(
        "rank {rank} gave a message of {len_bytes} bytes, the limit is {limit_bytes}: send less \
         at a time"
    )]
    MessageTooLong {
        /// The rank that gave it.
        rank: usize,
        /// Its length.
        len_bytes: u64,
        /// The longest that is accepted.
        limit_bytes: u64,
    },
    /// The other side speaks another version of the protocol.
    #[error(
        "the rendezvous speaks protocol version {theirs}, this rank {ours}: run the same release \
         of oxccl on every rank"
    )]
    Version {
        /// The version of the other side.
        theirs: u16,
        /// The version of this rank.
        ours: u16,
    },
    /// Another process has this rank already.
    #[error("rank {rank} has joined already: give every process a rank of its own")]
    RankTwice {
        /// The rank.
        rank: usize,
    },
    /// Ranks do not agree on how many they are.
    #[error(
        "rank {rank} was told of a world of {theirs} ranks, the ranks before it of {ours}: start \
         all ranks with the same world size"
    )]
    WorldMismatch {
        /// The rank that disagrees with those that joined before it.
        rank: usize,
        /// Its world.
        theirs: usize,
        /// The others' world.
        ours: usize,
    },
    /// A rank must be smaller than the world, and a world has at least one rank.
    #[error("rank {rank} does not exist in a world of {world}: {}", match world.checked_sub(1) {
        None => "a world has at least one rank".to_owned(),
        Some(last) => format!("ranks go from 0 to {last}"),
    })]
    RankOutOfRange {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        world: usize,
    },
    /// A world of more ranks than are possible.
    #[error("a world of {world} ranks is too large: {limit} are the most")]
    WorldTooLarge {
        /// The number of ranks.
        world: usize,
        /// The most that there can be.
        limit: usize,
    },
    /// Some ranks did not come, or did not give their part, before the deadline.
    #[error(
        "timed out {doing}: nothing came from rank{} {}; see whether they were started, and what \
         they wait for", if missing.len() == 1 { "" } else { "s" }, list(missing)
    )]
    Timeout {
        /// What was waited for.
        doing: &'static str,
        /// The ranks that are missing.
        missing: Vec<usize>,
    },
    /// No rendezvous answered before the deadline.
    #[error(
        "no rendezvous answered at {address} in time ({source}): see that rank 0 runs, that every \
         rank has its address, and that no firewall is between"
    )]
    Unreachable {
        /// Where the server should be.
        address: String,
        /// What the last attempt ended with.
        source: io::Error,
    },
    /// The other side sent what the protocol does not allow.
    #[error("what answers at {address} does not speak oxccl's protocol: {detail}")]
    Protocol {
        /// Who sent it.
        address: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The server was stopped while ranks still needed it.
    #[error("the rendezvous was closed: rank 0 must keep its server until all ranks are done")]
    ServerClosed,
    /// A rank failed or raised an abort.
    #[error("stopped: {0}")]
    Stopped(Cause),
    /// A rank closed its communicator while this one still expected it.
    #[error("rank {rank} has closed its communicator, after {calls} calls, and is still needed")]
    Left {
        /// The rank.
        rank: usize,
        /// How many calls it had issued.
        calls: u64,
    },
    /// What was asked for needs memory that all ranks reach.
    #[error(
        "rank {rank} does not share memory with rank 0: it runs on another machine, in another \
         network namespace, or on another of the nodes that OXCCL_NODES asks for"
    )]
    NotOneNode {
        /// The rank.
        rank: usize,
    },
    /// A rank hands out more regions at a time than one message carries.
    #[error("rank {rank} shares {count} regions in one call, the limit is {limit}: share fewer")]
    TooManyRegions {
        /// The rank.
        rank: usize,
        /// How many it shares.
        count: usize,
        /// How many one call may share.
        limit: usize,
    },
    /// A region arrived that cannot be used safely.
    #[error("rank {rank} sent a region that is refused: {detail}")]
    BadRegion {
        /// The rank.
        rank: usize,
        /// What is wrong.
        detail: String,
    },
    /// Memory of a GPU was handed out to a rank that has none.
    #[error(
        "rank {owner} shares memory of its GPU, and rank {rank} has named no GPU that could reach \
         it: run all ranks on GPUs, or none"
    )]
    NoGpu {
        /// The rank without a GPU.
        rank: usize,
        /// The rank that shares GPU memory.
        owner: usize,
    },
    /// A GPU, its driver or its memory.
    #[error(transparent)]
    Cuda(#[from] crate::CudaError),
    /// The machine (or its memory limit) does not have that much memory.
    #[error(
        "{bytes} bytes of memory are not to be had{}: use smaller buffers or raise the memory \
         limit", available_bytes.map(|a| format!(", {a} are available")).unwrap_or_default()
    )]
    OutOfMemory {
        /// How much was asked for.
        bytes: u64,
        /// How much there is, where that is known.
        available_bytes: Option<u64>,
    },
    /// A range lies outside its region, or a region of no bytes was asked for.
    #[error("{len_bytes} bytes at offset {offset} are outside a region of {region_bytes} bytes")]
    OutOfRange {
        /// Where the range starts.
        offset: usize,
        /// How long it is.
        len_bytes: usize,
        /// How long the region is.
        region_bytes: usize,
    },
    /// Only the rank that created a region may reserve and release its pages.
    #[error("this region belongs to another rank: its pages are reserved and released there")]
    NotOwner,
    /// Memory cannot be made a range of a region.
    #[error("{detail}")]
    NotPrivate {
        /// What memory it is.
        detail: String,
    },
    /// No interface of this machine is meant.
    #[error("this machine has no interface with the name or address {name}: it has {known}")]
    NoInterface {
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// Somebody else has the port at which the rendezvous was to be.
    #[error("the rendezvous cannot be at {address}: its port is taken")]
    PortTaken {
        /// Host and port.
        address: String,
    },
    /// A host name or address cannot be used.
    #[error("{address} cannot be used as the rendezvous' address: {detail}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        detail: String,
    },
    /// This process has as many files open as it may, or its user as many on their way from process
    /// to process.
    #[error(
        "{doing} failed: no file descriptor is left; a rank needs several for each rank of its machine: raise the limit of open files \
         (ulimit -n), or start fewer ranks"
    )]
    NoDescriptor {
        /// What was done.
        doing: &'static str,
    },
    /// The operating system refused something.
    #[error("{doing} failed: {source}")]
    Io {
        /// What was done.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// The same of a whole of which this was a part.
    pub(crate) fn of_bytes(self, bytes: u64) -> Error {
        match self {
            Error::OutOfMemory { available_bytes, .. } => {
                Error::OutOfMemory { bytes, available_bytes }
            }
            other => other,
        }
    }

    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| match lacks_descriptor(&source) {
            true => Error::NoDescriptor { doing },
            false => Error::Io { doing, source },
        }
    }

    pub(crate) fn os(doing: &'static str) -> impl FnOnce(nix::Error) -> Error {
        move |errno| Error::io(doing)(errno.into())
    }
}

/// Whether this process, or its user, has as many files open as it may.
pub(crate) fn lacks_descriptor(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    matches!(number, Some(libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS))
}

fn list(ranks: &[usize]) -> String {
    const SHOWN: usize = 16;
    let mut text = ranks.iter().take(SHOWN).map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() > SHOWN {
        text.push_str(&format!(" and {} more", ranks.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_ranks() {
        let one = Error::Timeout { doing: "joining", missing: vec![3] };
        assert!(one.to_string().starts_with("timed out joining: nothing came from rank 3;"));
        let absurd = Error::RankOutOfRange { rank: 0, world: 0 }.to_string();
        assert_eq!(absurd, "rank 0 does not exist in a world of 0: a world has at least one rank");
        let beyond = Error::RankOutOfRange { rank: 3, world: 3 }.to_string();
        assert!(beyond.ends_with("ranks go from 0 to 2"), "{beyond}");
        let many = Error::Timeout { doing: "joining", missing: (0..20).collect() };
        assert!(many.to_string().contains("ranks 0, 1, 2"));
        assert!(many.to_string().contains("and 4 more"));
    }
}
