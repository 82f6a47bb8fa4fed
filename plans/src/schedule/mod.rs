//! Schedules: what each rank does, as data.
//!
//! A [`Schedule`] is, for each rank, a short list of [`Instruction`]s over symbolic chunks, or
//! several that run side by side. It knows neither sizes nor types: a [`Layout`] gives chunks their
//! extents, and [`lower`](crate::lower::lower) turns one rank's part into the program that the
//! machine runs, once per round, on every channel.

mod builder;
mod file;
mod instruction;
mod layout;
mod notes;
mod symmetry;
mod text;

pub use builder::{Incoming, Outgoing, RankBuilder, Read, Slots, Write};
pub use file::{FileError, FileFault, ScheduleFile};
pub use instruction::{Buffer, Flag, Instruction, Link, Members, Operand, Rail, Source, Tree};
pub use layout::{Extent, Layout, Parts, RankLayout};
pub use notes::Notes;
pub use oxccl_format::Lane;
pub use symmetry::{Distance, Symmetry, Turning};

use crate::collective::Collective;

/// Slots per connection that every communicator has: more of the small ones, so that a sender can
/// run ahead. [`Limits::slots`](crate::tune::Limits::slots) says how many a device's have.
pub const SLOTS: Slots = Slots { ll: 8, ll128: 8, slots: 4 };

/// Most channels that a communicator can be configured for.
pub const MAX_CHANNELS: usize = 64;

/// Most segments of a message.
pub const SEGMENTS: u32 = 16;

/// The most segments that a message has, on each lane that has messages.
pub type MostSegments = [(Lane, usize); 3];

/// No messages.
pub const NO_SEGMENTS: MostSegments = [(Lane::Ll, 0), (Lane::Slots, 0), (Lane::Ll128, 0)];

/// Into how many chunks a buffer is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chunking {
    /// One chunk: the whole buffer.
    Whole,
    /// So many chunks for each rank: chunks `r * k` to `r * k + k - 1` are rank r's.
    PerRank(usize),
    /// So many nearly equal chunks. Of a buffer that is one rank's part itself, such as what
    /// all-gather reads, as many as the other buffer has for each rank.
    Parts(usize),
}

impl Chunking {
    /// The number of chunks with this many ranks.
    pub fn chunks(self, ranks: usize) -> usize {
        match self {
            Chunking::Whole => 1,
            Chunking::PerRank(chunks) => ranks.saturating_mul(chunks),
            Chunking::Parts(parts) => parts,
        }
    }
}

/// Whether windows are all that payloads cross by, of a schedule with these messages. LL's alone
/// are tokens there.
pub fn one_round(windows: bool, most_segments: &MostSegments) -> bool {
    let [_, (_, on_slots), (_, in_lines)] = most_segments;
    windows && *on_slots == 0 && *in_lines == 0
}

/// A collective's plan for all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What it carries out.
    pub collective: Collective,
    /// How input buffers are divided.
    pub input: Chunking,
    /// How output buffers are divided.
    pub output: Chunking,
    /// Chunks of each rank's scratch.
    pub scratch: usize,
    /// Slots per connection that the credits are made for.
    pub slots: Slots,
    /// Lists of each rank, which run side by side. Where there are several, they pass messages and
    /// signals alone, and reach into no peer's buffer.
    pub lists_per_rank: usize,
    /// Each list's instructions for one round, rank by rank.
    pub lists: Vec<Vec<Instruction>>,
}

impl Schedule {
    /// The numbers of a rank's lists among all.
    pub fn lists_of(&self, rank: usize) -> std::ops::Range<usize> {
        rank * self.lists_per_rank..(rank + 1) * self.lists_per_rank
    }

    /// The number of a list's first step: those of a rank are numbered through all its lists.
    pub fn first_step(&self, list: usize) -> usize {
        let before = list / self.lists_per_rank * self.lists_per_rank..list;
        self.lists[before].iter().map(Vec::len).sum()
    }

    /// The list of a rank's step, and the number of the step in it.
    pub fn place(&self, rank: usize, step: usize) -> (usize, usize) {
        let (mut list, mut step) = (rank * self.lists_per_rank, step);
        for _ in 1..self.lists_per_rank {
            let len = self.lists[list].len();
            if step < len {
                break;
            }
            (list, step) = (list + 1, step - len);
        }
        (list, step)
    }

    /// A rank's step, if it has so many.
    pub fn step(&self, rank: usize, step: usize) -> Option<&Instruction> {
        if rank >= self.collective.ranks {
            return None;
        }
        let (list, step) = self.place(rank, step);
        self.lists.get(list)?.get(step)
    }

    /// A rank's instructions with their numbers, list by list.
    pub fn steps(&self, rank: usize) -> impl Iterator<Item = (usize, &Instruction)> {
        self.lists[self.lists_of(rank)].iter().flatten().enumerate()
    }

    /// How one rank's part is divided, with chunks that start at multiples of `align` elements.
    pub fn parts(&self, align: usize) -> Parts {
        match (self.input, self.output) {
            (Chunking::PerRank(chunks), _) | (_, Chunking::PerRank(chunks)) => {
                Parts { chunks, align }
            }
            _ => Parts::WHOLE,
        }
    }

    /// Whether all of a chunk is moved in one round: buffers are used in place, and no slot bounds
    /// what is moved at a time.
    pub fn has_one_round(&self) -> bool {
        one_round(self.uses_windows(), &self.most_segments())
    }

    /// Whether any rank reaches into another's buffer.
    pub fn uses_windows(&self) -> bool {
        self.lists.iter().any(|list| list.iter().any(Instruction::uses_window))
    }

    /// Whether any rank writes to another's buffer.
    pub fn writes_windows(&self) -> bool {
        self.lists.iter().any(|list| list.iter().any(Instruction::writes_window))
    }

    /// Whether any rank reads or writes several ranks' buffers at once.
    pub fn uses_multicast(&self) -> bool {
        self.switched().next().is_some()
    }

    /// Whether any rank has the fabric's switches reduce.
    pub fn uses_rails(&self) -> bool {
        self.lists.iter().flatten().any(Instruction::uses_rail)
    }

    /// How many ranks a switch must join, for each operand that it reaches.
    pub fn switched(&self) -> impl Iterator<Item = usize> + '_ {
        let operands = self.lists.iter().flatten().flat_map(Instruction::operands);
        operands.filter_map(|operand| match operand {
            Operand::Multicast { of, .. } => Some(of.count(self.collective.ranks)),
            _ => None,
        })
    }

    /// The most segments that a message on each lane has, on any rank. What goes to a rail's
    /// switches lies in slots on its way, too.
    pub fn most_segments(&self) -> MostSegments {
        let mut most = NO_SEGMENTS;
        for instruction in self.lists.iter().flatten() {
            let Instruction::ReduceCopy { destinations, .. } = instruction else { continue };
            for operand in destinations {
                let Some((of, segment)) = operand.sent() else { continue };
                for (_, segments) in most.iter_mut().filter(|(lane, _)| *lane == of) {
                    *segments = (*segments).max(segment as usize + 1);
                }
            }
        }
        most
    }
}
