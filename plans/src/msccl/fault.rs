//! Why a file of MSCCL's is refused.

use crate::collective::Kind;
use thiserror::Error;

/// Why a file of MSCCL's is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MscclFault {
    /// It is not XML.
    #[error("line {line}: {fault}")]
    Xml {
        /// The line.
        line: usize,
        /// What is wrong there.
        fault: String,
    },
    /// Something in it cannot be represented.
    #[error("line {line}: {unfit}")]
    Line {
        /// The line.
        line: usize,
        /// What it is.
        unfit: Unfit,
    },
    /// Its thread blocks wait for ever.
    #[error("deadlock: {}", first(.0))]
    Deadlock(Vec<Waits>),
    /// Two thread blocks touch the same chunk, one of them writes, and nothing orders them.
    #[error("nothing orders {one} and {other}, which both touch {buffer}[{chunk}]")]
    Race {
        /// The step that came first.
        one: Place,
        /// The other one.
        other: Place,
        /// The buffer, as the file calls it.
        buffer: char,
        /// The chunk.
        chunk: usize,
    },
}

impl MscclFault {
    /// Whether the file can be represented, and is wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, MscclFault::Deadlock(_) | MscclFault::Race { .. })
    }

    /// What went wrong, step by step, behind what the fault itself says.
    pub fn story(&self) -> String {
        match self {
            MscclFault::Deadlock(waits) => waits.iter().map(|one| format!("{one}.\n")).collect(),
            _ => String::new(),
        }
    }
}

/// What cannot be represented.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unfit {
    /// Another element than the format has there.
    #[error("<{0}> where <{1}> belongs")]
    Element(String, &'static str),
    /// An attribute is missing.
    #[error("<{element}> has no {attribute}")]
    Missing {
        /// The element.
        element: &'static str,
        /// The attribute.
        attribute: &'static str,
    },
    /// An attribute's value is not what it can be.
    #[error("{attribute}=\"{value}\": {wanted}")]
    Value {
        /// The attribute.
        attribute: &'static str,
        /// Its value.
        value: String,
        /// What it can be.
        wanted: String,
    },
    /// The ranks cannot share the chunks.
    #[error("{kind} over {ranks} ranks cannot have {chunks} chunks: not so many for each rank")]
    Parts {
        /// The collective.
        kind: Kind,
        /// The number of ranks.
        ranks: usize,
        /// The number of chunks.
        chunks: usize,
    },
    /// A chunk that the buffer does not have.
    #[error("{buffer}[{chunk}]: this buffer has {chunks} chunks")]
    Chunk {
        /// The buffer, as the file calls it.
        buffer: char,
        /// The chunk.
        chunk: usize,
        /// How many there are.
        chunks: usize,
    },
    /// A step that sends or receives, in a thread block that has nobody for that.
    #[error("it {0}s, and its thread block has no rank to {0} {1}")]
    NoPeer(&'static str, &'static str),
    /// Two thread blocks share a connection.
    #[error(
        "thread block {other} of the rank {verb}s on channel {channel} too, {preposition} rank {peer}"
    )]
    Connection {
        /// The other thread block.
        other: usize,
        /// Whether they send or receive.
        verb: &'static str,
        /// To whom or from whom.
        preposition: &'static str,
        /// The rank at the other end.
        peer: usize,
        /// The channel.
        channel: usize,
    },
    /// A step depends on one that is not there.
    #[error("it depends on step {step} of thread block {block}, which is not there")]
    NoStep {
        /// The thread block.
        block: usize,
        /// The step.
        step: usize,
    },
    /// A step depends on one that tells nobody.
    #[error("it depends on line {0}, which has hasdep=\"0\" and tells nobody that it is done")]
    Silent(usize),
    /// A message is not received as it is sent.
    #[error("it receives {received} chunks, and line {line} sends {sent}")]
    Length {
        /// Chunks that are received.
        received: usize,
        /// Where they are sent.
        line: usize,
        /// Chunks that are sent.
        sent: usize,
    },
}

/// A step of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("line {line} (gpu {rank}, tb {block}, step {step})")]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The rank.
    pub rank: usize,
    /// The thread block.
    pub block: usize,
    /// The step.
    pub step: usize,
}

/// A step that waits for ever, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{place} waits for {awaited}")]
pub struct Waits {
    /// The step.
    pub place: Place,
    /// For what.
    pub awaited: Awaited,
}

/// What a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Awaited {
    /// A message.
    #[error("a message of rank {0} on channel {1}, who sends no more")]
    Unsent(usize, usize),
    /// A message that a step would send.
    #[error("a message of {0}")]
    Message(Place),
    /// Another step of the rank.
    #[error("{0} to be done")]
    Step(Place),
}

fn first(waits: &[Waits]) -> String {
    let others = waits.len().saturating_sub(1);
    match waits.first() {
        Some(one) if others > 0 => format!("{one}, and {others} more wait"),
        Some(one) => one.to_string(),
        None => "nothing goes on".to_owned(),
    }
}
