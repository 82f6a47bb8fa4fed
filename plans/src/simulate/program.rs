//! What the event loop runs: every rank's steps, with counters, ways and lengths by number.

use super::Statement;
use super::bundle::{Bundle, Rounds};
use super::servers::Time;
use super::turns::Turns;
use crate::schedule::{Lane, Rail, SEGMENTS};
use crate::topology::LinkId;
use oxccl_format::{LL_HEADER_BYTES, LL128_DATA_BYTES, LL128_LINE_BYTES};

/// The length of what is moved from slot to slot, until it is known.
pub(super) const AS_IT_CAME: u32 = u32::MAX;

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait {
        counter: u32,
        value: i32,
    },
    Signal {
        counter: u32,
        value: i32,
    },
    /// `first` counts within the rank's accesses.
    Move {
        first: u32,
        sources: u16,
        destinations: u16,
        length: u32,
        /// It is a copy behind copies, and can be made beside them.
        beside: bool,
    },
}

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) kind: AccessKind,
    /// Its way is shared with another message to the same reduce-copy, by a switch that reduces.
    pub(super) merged: bool,
    /// It is part of one access of a switch to the memory of several.
    pub(super) switched: bool,
    /// The way, where it leads to a peer; the rail, where it leads to its switches or from there.
    pub(super) way: u32,
    /// Messages with flags, and what comes from a rail: their counter. Others: the connection.
    pub(super) counter: u32,
    /// Which message of the round, and which segment of it: see [`Access::number`].
    pub(super) message: u32,
}

impl Access {
    /// The message of the round.
    pub(super) fn message(&self) -> u32 {
        self.message / SEGMENTS
    }

    /// The segment of the message.
    pub(super) fn segment(&self) -> u32 {
        self.message % SEGMENTS
    }

    /// What the counter of messages that announce themselves reaches with this one, from the start
    /// of the round. Every message counts as [`SEGMENTS`]: those that it has not are passed over.
    pub(super) fn number(&self) -> i64 {
        i64::from(self.message) + 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum AccessKind {
    /// This rank's memory.
    Local,
    /// A message, received.
    Slot(Flags),
    /// A peer's buffer, read.
    Pull,
    /// A peer's buffer, written.
    Push,
    /// This rank's memory, read or written by a switch with that of peers. Its way leads to one of
    /// them, or from there.
    Own,
    /// A message, sent.
    Send(Flags),
    /// A contribution to what a rail's switches reduce.
    Contribution,
    /// What they have reduced.
    Reduced,
}

/// What of a message are flags, by which it announces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Flags {
    /// Nothing: it is announced.
    None,
    /// 8 of 16 bytes.
    Ll,
    /// 8 of 128 bytes.
    Ll128,
}

impl Flags {
    /// Of the messages on a lane.
    pub(super) fn of(lane: Lane) -> Flags {
        match lane {
            Lane::Ll => Flags::Ll,
            Lane::Ll128 => Flags::Ll128,
            Lane::Slots | Lane::Sync => Flags::None,
        }
    }

    /// Bytes of a message with its flags, and with the header in front of them.
    pub(super) fn len_bytes(self, payload_bytes: u64) -> u64 {
        match self {
            Flags::None => payload_bytes,
            Flags::Ll => payload_bytes.div_ceil(8) * 16 + LL_HEADER_BYTES as u64,
            Flags::Ll128 => {
                let lines = payload_bytes.div_ceil(LL128_DATA_BYTES as u64);
                lines * LL128_LINE_BYTES as u64 + LL_HEADER_BYTES as u64
            }
        }
    }
}

impl AccessKind {
    /// Whether it is a message that announces itself, received.
    pub(super) fn is_awaited(self) -> bool {
        match self {
            AccessKind::Slot(flags) => flags != Flags::None,
            kind => kind == AccessKind::Reduced,
        }
    }

    /// Whether it goes to a rail's switches, or comes from there.
    pub(super) fn is_of_rail(self) -> bool {
        matches!(self, AccessKind::Contribution | AccessKind::Reduced)
    }

    /// Whether it is a message that announces itself, sent.
    pub(super) fn sends_flags(self) -> bool {
        matches!(self, AccessKind::Send(flags) if flags != Flags::None)
    }
}

/// From one rank to another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Way {
    pub(super) links: Vec<LinkId>,
    pub(super) latency: Time,
    pub(super) posted: bool,
    pub(super) switch: Option<(usize, usize)>,
    pub(super) switch_efficiency: f64,
    pub(super) from_memory: LinkId,
    pub(super) to_memory: LinkId,
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    Tail,
    Head,
    /// Messages that announce themselves.
    Messages,
}

/// A counter, with one rank that raises it and one that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) connection: u32,
    pub(super) counts: Counts,
    /// How much higher it is behind each round, as who awaits it counts, and as who raises it.
    pub(super) a_round: [u32; 2],
    /// How long a signal is under way.
    pub(super) latency: Time,
}

/// One direction between two lists on one lane, of ranks that are simulated. Where ranks have one,
/// its number is the rank's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) lane: Lane,
    /// Messages of a round, as the sender counts them, and as the receiver does.
    pub(super) sent: u32,
    pub(super) received: u32,
    /// The way of its data, and of what comes back.
    pub(super) way: u32,
    pub(super) back: u32,
    pub(super) counters: [u32; 3],
}

/// The simulated ranks of a rail.
#[derive(Clone, Debug)]
pub(super) struct OnRail {
    pub(super) rail: Rail,
    /// The first of them, and how far they are apart.
    pub(super) place: usize,
    pub(super) apart: usize,
    pub(super) members: usize,
    /// Those that use it, as connections of each with itself: `way` leads from the switches, `back`
    /// to them.
    pub(super) connections: Vec<u32>,
    /// Links between switches.
    pub(super) between: Vec<LinkId>,
}

impl Compiled {
    /// The rank that has a list.
    pub(super) fn rank(&self, list: usize) -> usize {
        self.turns.rank(list / self.lists_per_rank)
    }

    /// The number of a list's first step among those of its rank.
    pub(super) fn first_step(&self, list: usize) -> usize {
        let before = list / self.lists_per_rank * self.lists_per_rank..list;
        self.programs[before].iter().map(|(steps, _)| steps.len()).sum()
    }
}

/// Each simulated list's steps, and their accesses.
pub(super) type Programs = Vec<(Vec<Step>, Vec<Access>)>;

/// All that the event loop needs.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) lists_per_rank: usize,
    /// Which ranks are simulated.
    pub(super) turns: Turns,
    pub(super) programs: Programs,
    pub(super) connections: Vec<Connection>,
    pub(super) counters: Vec<Counter>,
    pub(super) ways: Vec<Way>,
    pub(super) rails: Vec<OnRail>,
    pub(super) bundles: Vec<Bundle>,
    pub(super) rounds: Rounds,
    /// Pods whose links are simulated.
    pub(super) pods: usize,
    /// Whether switches that can reduce do.
    pub(super) merges: bool,
    pub(super) statement: Statement,
}
