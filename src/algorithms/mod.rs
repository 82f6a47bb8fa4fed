//! The algorithms: pure functions from a [`Request`] to a [`Schedule`], a page each, and the catalogue of them.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod gather;
mod reduce;
mod reduce_scatter;
mod scatter;
mod send_recv;
mod turn;

use crate::collective::{Collective, Kind, Order};
use crate::schedule::{
    Buffer, Chunking, Instruction, Lane, Link, Operand, RankBuilder, Read, Schedule, Slots, Tree,
};
use serde::Serialize;
use turn::Turn;

/// The names of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Chunks travel around the ring of ranks (Patarasuk and Yuan 2009; NCCL's ring).
    Ring,
    /// All-reduce in one exchange: every rank gets all inputs and reduces them all (MSCCL++'s one-shot).
    OneShot,
    /// All-reduce in two exchanges: rank r reduces chunk r, then all collect the results (Rabenseifner 2004, direct form).
    TwoShot,
    /// As two-shot, but rank r writes reduced chunk r into all outputs at once.
    TwoShotPush,
    /// Every rank exchanges with every other, or with the root, directly.
    Direct,
    /// One rank hands on to the next.
    Chain,
    /// Ranks exchange two by two (the pairwise exchange of all-to-all).
    Pairwise,
    /// In step k rank r tells rank r + 2^k (Hensgen, Finkel and Manber 1988).
    Dissemination,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::Ring,
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::TwoShotPush,
        Algorithm::Direct,
        Algorithm::Chain,
        Algorithm::Pairwise,
        Algorithm::Dissemination,
    ];

    /// The name in snake case, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::OneShot => "one_shot",
            Algorithm::TwoShot => "two_shot",
            Algorithm::TwoShotPush => "two_shot_push",
            Algorithm::Direct => "direct",
            Algorithm::Chain => "chain",
            Algorithm::Pairwise => "pairwise",
            Algorithm::Dissemination => "dissemination",
        }
    }
}

/// How data crosses from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Through slots in LL encoding: data and flag in one 8-byte word.
    Ll,
    /// Plain, through slots in staging memory.
    Slots,
    /// Plain, in the callers' buffers, which peers reach in place.
    Windows,
}

impl Encoding {
    /// All of them.
    pub const ALL: [Encoding; 3] = [Encoding::Ll, Encoding::Slots, Encoding::Windows];

    /// The name in snake case, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Ll => "ll",
            Encoding::Slots => "slots",
            Encoding::Windows => "windows",
        }
    }

    /// The lane that carries data.
    fn lane(self) -> Lane {
        match self {
            Encoding::Ll => Lane::Ll,
            Encoding::Slots | Encoding::Windows => Lane::Slots,
        }
    }
}

macro_rules! text_by_name {
    ($($type:ty, $what:literal;)*) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                let wanted = text.replace('-', "_");
                <$type>::ALL.into_iter().find(|one| one.name() == wanted).ok_or_else(|| {
                    let names: Vec<_> = <$type>::ALL.iter().map(|one| one.name()).collect();
                    format!("{text:?} is no {}; there are {}", $what, names.join(", "))
                })
            }
        }
    )*};
}

text_by_name! {
    Algorithm, "algorithm";
    Encoding, "encoding";
}

/// What a schedule is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The collective.
    pub collective: Collective,
    /// How data crosses.
    pub encoding: Encoding,
    /// The order of reduction that is promised.
    pub order: Order,
    /// Slots per connection.
    pub slots: Slots,
    /// Whose instructions are wanted.
    whose: Whose,
}

/// Whose instructions are wanted: simulating many thousands of ranks never holds all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose {
    All,
    /// This rank's alone.
    Rank(usize),
    /// Nobody's: only after how many ranks they repeat.
    Period,
}

/// One way of carrying out a kind of collective.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The kind.
    pub kind: Kind,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The encoding.
    pub encoding: Encoding,
    /// Whether input and output may be the same memory.
    pub in_place: bool,
    /// Whether [`Order::Rank`] and [`Order::Tree`] are kept, with one rounding. True where nothing is reduced.
    pub ordered: bool,
    build: fn(&Request) -> Schedule,
}

impl Entry {
    /// The schedule for this many ranks. `order` must be kept: see [`Entry::ordered`].
    pub fn schedule(&self, collective: Collective, order: Order, slots: Slots) -> Schedule {
        debug_assert_eq!(collective.kind, self.kind);
        self.built(collective, order, slots, Whose::All)
    }

    /// The schedule with one rank's instructions alone: its one list is that rank's.
    pub fn schedule_of_rank(
        &self,
        collective: Collective,
        order: Order,
        slots: Slots,
        rank: usize,
    ) -> Schedule {
        self.built(collective, order, slots, Whose::Rank(rank))
    }

    /// After how many ranks the instructions repeat, turned by as many ranks, where the algorithm is made so.
    pub fn period(&self, collective: Collective, order: Order, slots: Slots) -> Option<usize> {
        let period = self.built(collective, order, slots, Whose::Period).ranks.len();
        (period > 0).then_some(period)
    }

    fn built(&self, collective: Collective, order: Order, slots: Slots, whose: Whose) -> Schedule {
        debug_assert!(self.ordered || order == Order::Any);
        (self.build)(&Request { collective, encoding: self.encoding, order, slots, whose })
    }
}

/// All there are.
pub fn catalogue() -> impl Iterator<Item = &'static Entry> {
    let pages: [&'static [Entry]; 10] = [
        all_reduce::ENTRIES,
        reduce_scatter::ENTRIES,
        all_gather::ENTRIES,
        all_to_all::ENTRIES,
        broadcast::ENTRIES,
        reduce::ENTRIES,
        gather::ENTRIES,
        scatter::ENTRIES,
        send_recv::ENTRIES,
        barrier::ENTRIES,
    ];
    pages.into_iter().flatten()
}

/// The entry of this name, if the kind has it.
pub fn find(kind: Kind, algorithm: Algorithm, encoding: Encoding) -> Option<&'static Entry> {
    catalogue().find(|e| e.kind == kind && e.algorithm == algorithm && e.encoding == encoding)
}

/// A table row without the words.
const fn entry(
    kind: Kind,
    algorithm: Algorithm,
    encoding: Encoding,
    in_place: bool,
    ordered: bool,
    build: fn(&Request) -> Schedule,
) -> Entry {
    Entry { kind, algorithm, encoding, in_place, ordered, build }
}

impl Request {
    fn ranks(&self) -> usize {
        self.collective.ranks
    }

    /// The data connection to a peer.
    fn link(&self, peer: usize) -> Link {
        Link { peer, lane: self.encoding.lane() }
    }

    /// All other ranks, starting behind `rank`, so that ranks don't all turn to the same peer first.
    fn peers(&self, rank: usize) -> Vec<usize> {
        (1..self.ranks()).map(|step| (rank + step) % self.ranks()).collect()
    }

    /// Makes the schedule from each rank's part.
    fn schedule(
        &self,
        input: Chunking,
        output: Chunking,
        part: impl Fn(&mut RankBuilder),
    ) -> Schedule {
        let ranks = match self.whose {
            Whose::All => (0..self.ranks()).map(|rank| self.list(rank, &part)).collect(),
            Whose::Rank(rank) => vec![self.list(rank, &part)],
            Whose::Period => Vec::new(),
        };
        Schedule { collective: self.collective, input, output, slots: self.slots, ranks }
    }

    /// As [`Request::schedule`], for algorithms in which all ranks do the same seen from where they stand: `part` is asked for rank 0 alone,
    /// and rank r's instructions are those with r added to every rank and to every rank's chunk. That they are alike need not be
    /// proven then: `part` cannot know another rank.
    fn rotational(
        &self,
        input: Chunking,
        output: Chunking,
        part: impl Fn(&mut RankBuilder),
    ) -> Schedule {
        let turned = |list: &[Instruction], rank: usize| {
            let turn = Turn { by: rank, ranks: self.ranks(), input, output };
            list.iter().map(|instruction| turn.instruction(instruction)).collect()
        };
        let ranks = match self.whose {
            Whose::Period => vec![Vec::new()],
            Whose::Rank(rank) => vec![turned(&self.list(0, &part), rank)],
            Whose::All => {
                let first = self.list(0, &part);
                (0..self.ranks()).map(|rank| turned(&first, rank)).collect()
            }
        };
        Schedule { collective: self.collective, input, output, slots: self.slots, ranks }
    }

    fn list(&self, rank: usize, part: &impl Fn(&mut RankBuilder)) -> Vec<Instruction> {
        let tree = if self.order == Order::Tree { Tree::Aligned } else { Tree::Left };
        let mut builder = RankBuilder::new(rank, self.slots, tree);
        part(&mut builder);
        builder.finish()
    }

    /// Every rank's contribution to a chunk, by rank: the own one from memory, the others by their next message.
    fn contributions(&self, rank: usize, chunk: usize) -> Vec<Read> {
        self.by_rank(rank, chunk, |peer| Read::RecvRaw(self.link(peer)))
    }

    /// Every rank's contribution to a chunk, by rank, all in place.
    fn windows(&self, rank: usize, chunk: usize) -> Vec<Read> {
        self.by_rank(rank, chunk, |peer| {
            Read::Raw(Operand::Window { peer, buffer: Buffer::Input, chunk })
        })
    }

    fn by_rank(&self, rank: usize, chunk: usize, other: impl Fn(usize) -> Read) -> Vec<Read> {
        let own = Read::Raw(Operand::Input(chunk));
        (0..self.ranks()).map(|peer| if peer == rank { own } else { other(peer) }).collect()
    }
}

/// A chunk of a peer's output, in place.
fn output_of(peer: usize, chunk: usize) -> Operand {
    Operand::Window { peer, buffer: Buffer::Output, chunk }
}

/// A chunk of a peer's input, in place.
fn input_of(peer: usize, chunk: usize) -> Operand {
    Operand::Window { peer, buffer: Buffer::Input, chunk }
}
