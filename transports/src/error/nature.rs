//! Which errors are the caller's, and which ranks they name.

use super::Error;
use crate::liveness::Cause;

impl Error {
    /// Whether the caller is mistaken, as this rank alone can see: nothing has been done.
    pub fn is_misuse(&self) -> bool {
        match self {
            Error::Cuda(error) => error.is_misuse(),
            Error::Forked
            | Error::RankOutOfRange { .. }
            | Error::WorldTooLarge { .. }
            | Error::TooManyRegions { .. }
            | Error::OutOfRange { .. }
            | Error::NotOwner
            | Error::NotPrivate { .. }
            | Error::NoInterface { .. }
            | Error::PortTaken { .. }
            | Error::Address { .. } => true,
            Error::WrongSecret { .. }
            | Error::MessageTooLong { .. }
            | Error::Version { .. }
            | Error::RankTwice { .. }
            | Error::WorldMismatch { .. }
            | Error::Timeout { .. }
            | Error::Unreachable { .. }
            | Error::Protocol { .. }
            | Error::ServerClosed
            | Error::Stopped(_)
            | Error::Left { .. }
            | Error::NotOneNode { .. }
            | Error::BadRegion { .. }
            | Error::NoGpu { .. }
            | Error::OutOfMemory { .. }
            | Error::NoDescriptor { .. }
            | Error::Io { .. } => false,
        }
    }

    /// The ranks at fault that it names.
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            Error::MessageTooLong { rank, .. }
            | Error::RankTwice { rank }
            | Error::WorldMismatch { rank, .. }
            | Error::Left { rank, .. }
            | Error::NotOneNode { rank }
            | Error::BadRegion { rank, .. } => vec![*rank],
            Error::Timeout { missing, .. } => missing.clone(),
            Error::Stopped(cause) => cause.ranks(),
            Error::NoGpu { rank, owner } => vec![*rank, *owner],
            Error::Forked
            | Error::WrongSecret { .. }
            | Error::Version { .. }
            | Error::RankOutOfRange { .. }
            | Error::WorldTooLarge { .. }
            | Error::Unreachable { .. }
            | Error::Protocol { .. }
            | Error::ServerClosed
            | Error::TooManyRegions { .. }
            | Error::Cuda(_)
            | Error::OutOfMemory { .. }
            | Error::OutOfRange { .. }
            | Error::NotOwner
            | Error::NotPrivate { .. }
            | Error::NoInterface { .. }
            | Error::PortTaken { .. }
            | Error::Address { .. }
            | Error::NoDescriptor { .. }
            | Error::Io { .. } => Vec::new(),
        }
    }
}

impl Cause {
    /// The ranks that it names, first the one that is most likely at fault.
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            Cause::Died { rank }
            | Cause::CutOff { rank }
            | Cause::Aborted { rank, .. }
            | Cause::Ended { rank, .. } => vec![*rank],
            Cause::Mismatch { rank, ranks, .. } | Cause::TimedOut { rank, ranks, .. } => {
                if ranks.is_empty() { vec![*rank] } else { ranks.clone() }
            }
            Cause::LinkLost { rank, peer, .. } | Cause::Corrupted { rank, peer } => {
                vec![*peer, *rank]
            }
            // Ranks may have other numbers since.
            Cause::ServerLost | Cause::ServerCutOff | Cause::Unserved { .. } => Vec::new(),
        }
    }
}
