//! What an error means for what comes next: whether the communicator has ended, whose mistake it
//! is, and which ranks it names.

use super::Error;

/// What follows from an error. Every variant has one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// This rank alone has made a mistake, and nothing has been called.
    Misuse,
    /// Something could not be had, or ranks have found out together that they differ. The
    /// communicator is as before.
    Usable,
    /// The communicator has ended.
    Ended,
}

impl Error {
    /// Whether the communicator has ended: further calls return [`Error::Broken`]. A start that
    /// fails gives no communicator, whatever this says.
    pub fn is_fatal(&self) -> bool {
        self.nature() == Nature::Ended
    }

    /// Whether the caller is mistaken, as this rank alone can see: in arguments, in the
    /// configuration, or in where the call was made. Nothing has been called, and the communicator
    /// is as before. Otherwise peers or the system are at fault.
    pub fn is_misuse(&self) -> bool {
        self.nature() == Nature::Misuse
    }

    /// The ranks that the error names, first the one that is most likely at fault. None where it
    /// names none, or only in its text, such as what another rank gave as its reason.
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            Error::ConfigDiffers { rank, .. }
            | Error::NotRegistered { rank, .. }
            | Error::NotTraced { rank, .. }
            | Error::ReplayedBeside { rank, .. }
            | Error::Died { rank, .. }
            | Error::CutOff { rank, .. }
            | Error::Left { rank, .. } => vec![*rank],
            Error::Stopped { rank, ranks, .. } if ranks.is_empty() => vec![*rank],
            Error::Stopped { ranks, .. } => ranks.clone(),
            Error::Mismatch { rank, compared_with, .. } => vec![*rank, *compared_with],
            Error::Unreceived { sender, receiver, .. }
            | Error::CountsDiffer { sender, receiver, .. } => vec![*sender, *receiver],
            Error::LinkLost { rank, peer, .. }
            | Error::Corrupted { rank, peer, .. }
            | Error::Unreadable { rank, peer, .. } => {
                vec![*peer, *rank]
            }
            Error::TimedOut { ranks, .. } | Error::Broken { ranks, .. } => ranks.clone(),
            Error::Transport(error) => error.ranks(),
            Error::Length { .. }
            | Error::Overflow { .. }
            | Error::NotDivisible { .. }
            | Error::Unaligned { .. }
            | Error::Overlap { .. }
            | Error::Rank { .. }
            | Error::Op { .. }
            | Error::Counts { .. }
            | Error::Bucket { .. }
            | Error::Parameter { .. }
            | Error::NoAlgorithm { .. }
            | Error::Config { .. }
            | Error::OtherDevice { .. }
            | Error::OtherMemory { .. }
            | Error::MemoryOfGpu
            | Error::NotLent { .. }
            | Error::FactorInMemory { .. }
            | Error::Unsupported { .. }
            | Error::Suspended
            | Error::CapturedApart { .. }
            | Error::CopyLength { .. }
            | Error::OutOfMemory { .. }
            | Error::ServerLost { .. }
            | Error::ServerCutOff { .. }
            | Error::Unserved { .. }
            | Error::Forked
            | Error::DeviceLost { .. }
            | Error::Environment(_)
            | Error::System { .. } => Vec::new(),
        }
    }

    fn nature(&self) -> Nature {
        match self {
            Error::Length { .. }
            | Error::Overflow { .. }
            | Error::NotDivisible { .. }
            | Error::Unaligned { .. }
            | Error::Overlap { .. }
            | Error::Rank { .. }
            | Error::Op { .. }
            | Error::Counts { .. }
            | Error::Bucket { .. }
            | Error::Parameter { .. }
            | Error::NoAlgorithm { .. }
            | Error::Config { .. }
            | Error::OtherDevice { .. }
            | Error::OtherMemory { .. }
            | Error::MemoryOfGpu
            | Error::NotLent { .. }
            | Error::FactorInMemory { .. }
            | Error::Suspended
            | Error::Unsupported { .. }
            | Error::CopyLength { .. }
            | Error::Forked
            | Error::Environment(_) => Nature::Misuse,
            Error::NotRegistered { .. }
            | Error::NotTraced { .. }
            | Error::CountsDiffer { .. }
            | Error::OutOfMemory { .. }
            | Error::System { .. } => Nature::Usable,
            Error::ConfigDiffers { .. }
            | Error::Mismatch { .. }
            | Error::Unreceived { .. }
            | Error::CapturedApart { .. }
            | Error::ReplayedBeside { .. }
            | Error::TimedOut { .. }
            | Error::Died { .. }
            | Error::CutOff { .. }
            | Error::ServerLost { .. }
            | Error::ServerCutOff { .. }
            | Error::Unserved { .. }
            | Error::LinkLost { .. }
            | Error::Corrupted { .. }
            | Error::Unreadable { .. }
            | Error::Left { .. }
            | Error::Stopped { .. }
            | Error::DeviceLost { .. }
            | Error::Broken { .. } => Nature::Ended,
            Error::Transport(error) if error.is_misuse() => Nature::Misuse,
            // What a driver refuses before a call is made; afterwards it is `DeviceLost`.
            Error::Transport(oxccl_transports::Error::Cuda(_)) => Nature::Usable,
            Error::Transport(_) => Nature::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::First;
    use oxccl_plans::collective::{Kind, Order};
    use oxccl_plans::element::{DataType, OpKind};
    use oxccl_transports::{Cause, CudaError, Error as Transport};

    const MISUSE: (bool, bool) = (true, false);
    const USABLE: (bool, bool) = (false, false);
    const ENDED: (bool, bool) = (false, true);

    fn is(error: &Error, (misuse, fatal): (bool, bool), ranks: &[usize]) {
        let found = (error.is_misuse(), error.is_fatal(), error.ranks());
        assert_eq!(found, (misuse, fatal, ranks.to_vec()), "{error}");
    }

    #[test]
    fn misuse_leaves_the_communicator_usable_and_names_no_rank() {
        let (kind, device) = (Kind::AllReduce, crate::Device::Host);
        let (argument, op) = ("input", OpKind::BitAnd);
        let errors = [
            Error::Length { kind, argument, found: 1, expected: 2 },
            Error::Overflow { call: "alloc", argument },
            Error::NotDivisible { kind, argument, count: 3, ranks: 2 },
            Error::Unaligned { argument, address: 1, align: 4 },
            Error::Overlap { kind },
            Error::Rank { argument, rank: 4, last: 3, own: false },
            Error::Op { op, data_type: DataType::F32 },
            Error::Bucket { bucket: 2, buckets: 2 },
            Error::Parameter { parameter: 1, detail: String::new() },
            Error::NoAlgorithm { kind, order: Order::Any, detail: String::new() },
            Error::Config { variable: "timeout", detail: String::new() },
            Error::OtherDevice { device },
            Error::OtherMemory { device },
            Error::MemoryOfGpu,
            Error::NotLent { reason: String::new() },
            Error::Unsupported { what: "this", device },
            Error::CopyLength { found: 1, expected: 2 },
            Error::Forked,
            Error::Environment(oxccl_transports::EnvironmentError::NoLauncher),
            Error::Transport(Transport::Forked),
            Error::Transport(CudaError::OtherStream { found: 1, ordinal: 0 }.into()),
        ];
        errors.iter().for_each(|error| is(error, MISUSE, &[]));
    }

    #[test]
    fn what_could_not_be_had_leaves_the_communicator_usable() {
        let source = || std::io::Error::other("no");
        let text = String::new;
        is(&Error::NotRegistered { rank: 3, reason: text() }, USABLE, &[3]);
        is(&Error::NotTraced { rank: 2, reason: text() }, USABLE, &[2]);
        is(&Error::CountsDiffer { sender: 1, receiver: 2, sent: 3, received: 4 }, USABLE, &[1, 2]);
        is(&Error::OutOfMemory { bytes: 1, detail: text() }, USABLE, &[]);
        is(&Error::System { doing: "this", source: source() }, USABLE, &[]);
        let driver = CudaError::OutOfMemory { what: "memory", bytes: 1, free_bytes: None };
        is(&Error::Transport(driver.into()), USABLE, &[]);
    }

    #[test]
    fn what_ends_a_communicator_names_ranks() {
        let text = String::new;
        let mismatch = Error::Mismatch {
            call: 1,
            bucket: None,
            argument: "count",
            rank: 2,
            theirs: text(),
            compared_with: 0,
            ours: text(),
            what: text().into(),
        };
        is(&mismatch, ENDED, &[2, 0]);
        is(&Error::Unreceived { sender: 1, receiver: 0, sent: 2, received: 1 }, ENDED, &[1, 0]);
        let (setting, theirs, ours) = ("order", text(), text());
        is(&Error::ConfigDiffers { setting, rank: 1, theirs, ours }, ENDED, &[1]);
        is(&Error::CapturedApart { what: text() }, ENDED, &[]);
        is(&Error::ReplayedBeside { rank: 3, during: text() }, ENDED, &[3]);
        let (call, seconds, ranks) = (1, 1.0, vec![1, 3]);
        let late = Error::TimedOut { what: text(), call, seconds, ranks, detail: text() };
        is(&late, ENDED, &[1, 3]);
        is(&Error::Died { rank: 1, how: text(), during: text() }, ENDED, &[1]);
        is(&Error::CutOff { rank: 1, during: text() }, ENDED, &[1]);
        is(&Error::ServerLost { during: text() }, ENDED, &[]);
        is(&Error::ServerCutOff { during: text() }, ENDED, &[]);
        is(&Error::Unserved { rank: 1, during: text() }, ENDED, &[]);
        let link = Error::LinkLost { rank: 0, peer: 5, detail: text(), during: text() };
        is(&link, ENDED, &[5, 0]);
        is(&Error::Corrupted { rank: 0, peer: 5, during: text() }, ENDED, &[5, 0]);
        let source = std::io::Error::other("no");
        is(&Error::Unreadable { rank: 0, peer: 5, source, during: text() }, ENDED, &[5, 0]);
        is(&Error::Left { rank: 1, calls: 2, during: text() }, ENDED, &[1]);
        is(&Error::Stopped { rank: 1, reason: text(), ranks: Vec::new() }, ENDED, &[1]);
        is(&Error::DeviceLost { source: CudaError::NoDevice }, ENDED, &[]);
        is(&First::of(&link).broken(), ENDED, &[5, 0]);
        let died = Transport::Stopped(Cause::Died { rank: 4 });
        is(&Error::Transport(died), ENDED, &[4]);
        is(
            &Error::Transport(Transport::Timeout { doing: "joining", missing: vec![2, 3] }),
            ENDED,
            &[2, 3],
        );
    }
}
