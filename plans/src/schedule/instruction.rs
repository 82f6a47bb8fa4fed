//! The three instructions and their operands.

use oxccl_format::Lane;
use std::ops::Range;

/// One of the connections to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// The rank at the other end.
    pub peer: usize,
    /// Which of that rank's lists. Its own rank's others are reached on [`Lane::Sync`] alone.
    pub list: u16,
    /// Which connection.
    pub lane: Lane,
}

impl Link {
    /// To a rank's first list: the only one, mostly.
    pub fn new(peer: usize, lane: Lane) -> Link {
        Link { peer, list: 0, lane }
    }
}

/// A monotonic counter of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flag {
    /// Messages that the sender has announced. Awaited by the receiver.
    Tail(Link),
    /// Messages that the receiver has consumed. Awaited by the sender.
    Head(Link),
}

/// Which of a rank's two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's input.
    Input,
    /// The caller's output.
    Output,
}

/// Where data is read or written. `message` counts within the round, from 0. A message may have
/// several segments, of chunks of their own, that are announced and given back together; they are
/// written and read in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A chunk of this rank's input.
    Input(usize),
    /// A chunk of this rank's output.
    Output(usize),
    /// A chunk of this rank's scratch: memory of the call that no peer reaches, and that holds
    /// nothing when a round begins. It has room for any chunk.
    Scratch(usize),
    /// A message that has come over a link. A source only. Reading one that has flags waits for it.
    Slot {
        /// The link.
        link: Link,
        /// Which message of the round.
        message: u32,
        /// Which segment of the message.
        segment: u32,
    },
    /// A message to be sent over a link. A destination only. Writing one that has flags sends it.
    PeerSlot {
        /// The link.
        link: Link,
        /// Which message of the round.
        message: u32,
        /// Which segment of the message.
        segment: u32,
    },
    /// A chunk of a peer's buffer, in place. Only after that peer's tokens have come.
    Window {
        /// The peer.
        peer: usize,
        /// Which of its buffers.
        buffer: Buffer,
        /// Which chunk of it.
        chunk: usize,
    },
    /// A chunk of several ranks' buffers, this rank's among them: what it holds on each, combined
    /// in any order, as a source; written to each, as a destination. Only after these peers' tokens
    /// have come, and with nothing beside it but one operand that is memory of this rank's or
    /// another of its kind. Where there is an NVSwitch between the ranks, it reduces and multicasts
    /// (NVLink SHARP).
    Multicast {
        /// Whose buffers.
        of: Members,
        /// Which of the buffers.
        buffer: Buffer,
        /// Which chunk of them.
        chunk: usize,
    },
    /// What this rank gives to the switches of the fabric that joins the ranks of a rail. A
    /// destination only. Writing it sends it. Where it is written, and where its result arrives, is
    /// free again once this rank has read the result.
    Contribution {
        /// Whose contributions are reduced together.
        rail: Rail,
        /// Which message of the round.
        message: u32,
    },
    /// What these switches have made of all ranks' contributions to a message, combined in any
    /// order (InfiniBand SHARP; NCCL's CollNet). The only source of its instruction. Reading it
    /// waits for it.
    Reduced {
        /// Whose contributions.
        rail: Rail,
        /// Which message of the round.
        message: u32,
    },
    /// Where peers find this rank's buffers in this call. A source only.
    Tokens,
    /// Where this rank keeps what a peer's [`Operand::Tokens`] say. A destination only.
    PeerTokens(usize),
}

impl Operand {
    /// Whether it is a message, or a segment of one.
    pub fn is_slot(&self) -> bool {
        matches!(self, Operand::Slot { .. } | Operand::PeerSlot { .. })
    }

    /// Whether it goes to the switches of a rail, or comes from there.
    pub fn is_of_rail(&self) -> bool {
        matches!(self, Operand::Contribution { .. } | Operand::Reduced { .. })
    }

    /// Of what is sent: on which lane's slots it lies, and which segment of a message it is.
    pub fn sent(&self) -> Option<(Lane, u32)> {
        match self {
            Operand::PeerSlot { link, segment, .. } => Some((link.lane, *segment)),
            Operand::Contribution { .. } => Some((Lane::Slots, 0)),
            _ => None,
        }
    }

    /// Whether a chunk of any length fits there, so that it does not say how long what is moved is.
    pub fn takes_any_length(&self) -> bool {
        self.is_slot() || self.is_of_rail() || matches!(self, Operand::Scratch(_))
    }

    /// Whether it reaches into a peer's buffer.
    pub fn is_window(&self) -> bool {
        matches!(self, Operand::Window { .. } | Operand::Multicast { .. })
    }

    /// Whether, as a source, it is several values that a switch has reduced.
    pub fn is_reduced(&self) -> bool {
        matches!(self, Operand::Multicast { .. } | Operand::Reduced { .. })
    }

    /// What it is on each rank, by rank, seen from this one: several where it is a multicast, else
    /// itself.
    pub fn members(self, rank: usize, ranks: usize) -> impl Iterator<Item = Operand> {
        let peers = match self {
            Operand::Multicast { of, .. } => of.beside(rank, ranks),
            _ => rank..rank + 1,
        };
        peers.map(move |peer| match self {
            Operand::Multicast { buffer, chunk, .. } if peer != rank => {
                Operand::Window { peer, buffer, chunk }
            }
            Operand::Multicast { buffer: Buffer::Input, chunk, .. } => Operand::Input(chunk),
            Operand::Multicast { buffer: Buffer::Output, chunk, .. } => Operand::Output(chunk),
            one => one,
        })
    }
}

/// Whose buffers a multicast reaches: a switch joins these ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Members {
    /// All ranks.
    All,
    /// The ranks of this rank's node, where so many consecutive ranks make up each.
    Node(usize),
}

impl Members {
    /// These ranks, of this many, seen from one of them.
    pub fn beside(self, rank: usize, ranks: usize) -> Range<usize> {
        match self {
            Members::All => 0..ranks,
            Members::Node(local) => {
                let first = rank - rank % local.max(1);
                first..first.saturating_add(local)
            }
        }
    }

    /// How many, of this many ranks.
    pub fn count(self, ranks: usize) -> usize {
        match self {
            Members::All => ranks,
            Members::Node(local) => local.min(ranks),
        }
    }
}

/// The ranks with the same place in their nodes, where so many consecutive ranks make up each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rail(pub usize);

impl Rail {
    /// These ranks, of this many, seen from one of them.
    pub fn members(self, rank: usize, ranks: usize) -> impl Iterator<Item = usize> {
        let local = self.0.max(1);
        (rank % local..ranks).step_by(local)
    }
}

/// A source of a reduce-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Where it is read.
    pub operand: Operand,
    /// Whether it is a rank's own contribution that has not been premultiplied yet, so that
    /// premul-sum multiplies it now.
    pub raw: bool,
}

impl Source {
    /// A value that is used as it is.
    pub fn plain(operand: Operand) -> Source {
        Source { operand, raw: false }
    }

    /// A rank's contribution as the rank gave it.
    pub fn raw(operand: Operand) -> Source {
        Source { operand, raw: true }
    }
}

/// How several sources are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tree {
    /// A left fold in the listed order.
    #[default]
    Left,
    /// The aligned binary tree over the listed order.
    Aligned,
}

/// One instruction. Values of counters are relative to the start of the round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Blocks until the counter reaches the value (acquire). Tail: so many messages of this round
    /// have come. Head: so many have been consumed, counted from the start of the round; it is
    /// below 1 while slots suffice.
    Wait {
        /// The counter.
        flag: Flag,
        /// The value, relative to the start of the round.
        value: i64,
    },
    /// Reads the sources, reduces them in the listed order, writes the result to all destinations.
    ReduceCopy {
        /// What is read, in order.
        sources: Vec<Source>,
        /// What is written.
        destinations: Vec<Operand>,
        /// How sources are combined.
        tree: Tree,
        /// Whether the result is final (avg divides).
        finish: bool,
    },
    /// Makes all earlier writes visible, then stores the counter (release).
    Signal {
        /// The counter.
        flag: Flag,
        /// The value, relative to the start of the round.
        value: i64,
    },
}

impl Instruction {
    /// Whether it reaches into a peer's buffer.
    pub fn uses_window(&self) -> bool {
        self.has_operand(|operand| operand.is_window())
    }

    /// Whether it writes to another rank's buffer.
    pub fn writes_window(&self) -> bool {
        match self {
            Instruction::ReduceCopy { destinations, .. } => {
                destinations.iter().any(|operand| operand.is_window())
            }
            _ => false,
        }
    }

    /// Whether it reads or writes several ranks' memory at once.
    pub fn uses_multicast(&self) -> bool {
        self.has_operand(|operand| matches!(operand, Operand::Multicast { .. }))
    }

    /// Whether it has the switches of a rail reduce.
    pub fn uses_rail(&self) -> bool {
        self.has_operand(|operand| operand.is_of_rail())
    }

    fn has_operand(&self, is_it: impl Fn(Operand) -> bool) -> bool {
        self.operands().any(is_it)
    }

    /// What it reads and writes.
    pub fn operands(&self) -> impl Iterator<Item = Operand> + '_ {
        let (sources, destinations): (&[Source], &[Operand]) = match self {
            Instruction::ReduceCopy { sources, destinations, .. } => (sources, destinations),
            _ => (&[], &[]),
        };
        sources.iter().map(|source| source.operand).chain(destinations.iter().copied())
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.list {
            0 => write!(f, "{}.{}", self.peer, self.lane.name()),
            list => write!(f, "{}/{list}.{}", self.peer, self.lane.name()),
        }
    }
}

/// The first segment goes without saying.
struct Segment(u32);

impl std::fmt::Display for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ".{}", self.0) }
    }
}

impl std::fmt::Display for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Members::All => write!(f, "all"),
            Members::Node(local) => write!(f, "node of {local}"),
        }
    }
}

impl std::fmt::Display for Rail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rail of {}", self.0)
    }
}

impl std::fmt::Display for Operand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Operand::Input(chunk) => write!(f, "in[{chunk}]"),
            Operand::Output(chunk) => write!(f, "out[{chunk}]"),
            Operand::Scratch(chunk) => write!(f, "scratch[{chunk}]"),
            Operand::Slot { link, message, segment } => {
                write!(f, "from {link}#{message}{}", Segment(*segment))
            }
            Operand::PeerSlot { link, message, segment } => {
                write!(f, "to {link}#{message}{}", Segment(*segment))
            }
            Operand::Window { peer, buffer: Buffer::Input, chunk } => {
                write!(f, "{peer}:in[{chunk}]")
            }
            Operand::Window { peer, buffer: Buffer::Output, chunk } => {
                write!(f, "{peer}:out[{chunk}]")
            }
            Operand::Multicast { of, buffer: Buffer::Input, chunk } => {
                write!(f, "{of}:in[{chunk}]")
            }
            Operand::Multicast { of, buffer: Buffer::Output, chunk } => {
                write!(f, "{of}:out[{chunk}]")
            }
            Operand::Contribution { rail, message } => write!(f, "to {rail}#{message}"),
            Operand::Reduced { rail, message } => write!(f, "from {rail}#{message}"),
            Operand::Tokens => write!(f, "tokens"),
            Operand::PeerTokens(peer) => write!(f, "tokens of {peer}"),
        }
    }
}

impl std::fmt::Display for Instruction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flag = |flag: &Flag| match flag {
            Flag::Tail(link) => format!("{link}.tail"),
            Flag::Head(link) => format!("{link}.head"),
        };
        match self {
            Instruction::Wait { flag: of, value } => write!(f, "wait    {} >= {value:+}", flag(of)),
            Instruction::Signal { flag: of, value } => {
                write!(f, "signal  {} = {value:+}", flag(of))
            }
            Instruction::ReduceCopy { sources, destinations, tree, finish } => {
                let reduces =
                    sources.len() > 1 || sources.iter().any(|source| source.operand.is_reduced());
                let sources: Vec<_> = sources.iter().map(Source::to_string).collect();
                let destinations: Vec<_> = destinations.iter().map(Operand::to_string).collect();
                let verb = if reduces { "reduce " } else { "copy   " };
                let glue = if *tree == Tree::Aligned { " ⊕ " } else { " + " };
                write!(f, "{verb} {} -> {}", sources.join(glue), destinations.join(", "))?;
                if *finish { write!(f, " (final)") } else { Ok(()) }
            }
        }
    }
}
