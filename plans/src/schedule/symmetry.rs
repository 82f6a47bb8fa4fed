//! Symmetric ranks: what each does is what one of the first ranks does, relative to its own rank.

use super::{Buffer, Chunking, Flag, Instruction, Link, Members, Operand, Source};

/// How the ranks are turned so that one comes to stand where another stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turning {
    /// A distance is added to every rank, modulo their number: rings.
    Add,
    /// Every rank is taken exclusive-or a distance, where there are a power of two of them:
    /// hypercubes.
    Xor,
}

/// The first ranks stand for all: any other is one of them, turned by some distance, and so are its
/// chunks where each rank has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symmetry {
    ranks: usize,
    firsts: usize,
    turning: Turning,
    input: Chunking,
    output: Chunking,
}

/// How far a rank is turned. Distances can be added up in any order.
pub type Distance = u32;

impl Symmetry {
    /// Every rank stands for itself.
    pub fn none(ranks: usize, input: Chunking, output: Chunking) -> Symmetry {
        Symmetry { ranks, firsts: ranks, turning: Turning::Add, input, output }
    }

    /// The first `firsts` ranks stand for all; nothing if the ranks cannot be divided so.
    pub fn new(
        ranks: usize,
        firsts: usize,
        turning: Turning,
        (input, output): (Chunking, Chunking),
    ) -> Option<Symmetry> {
        let divides = firsts > 0 && ranks.is_multiple_of(firsts);
        let of_two = ranks.is_power_of_two() && firsts.is_power_of_two();
        let fits = divides && (turning == Turning::Add || of_two);
        fits.then_some(Symmetry { ranks, firsts, turning, input, output })
    }

    /// How many ranks stand for all.
    pub fn firsts(&self) -> usize {
        self.firsts
    }

    /// All ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// How ranks are turned.
    pub fn turning(&self) -> Turning {
        self.turning
    }

    /// Whether any rank stands for another.
    pub fn is_proper(&self) -> bool {
        self.firsts < self.ranks
    }

    /// The rank that stands for this one, and how far it is turned to do so.
    pub fn home(&self, rank: usize) -> (usize, Distance) {
        if rank < self.firsts {
            return (rank, 0);
        }
        let first = rank % self.firsts;
        (first, (rank - first) as Distance)
    }

    /// All distances by which a first rank is turned to stand for others, itself among them.
    pub fn distances(&self) -> impl Iterator<Item = Distance> + use<> {
        (0..self.ranks).step_by(self.firsts.max(1)).map(|distance| distance as Distance)
    }

    /// Both distances, one after the other.
    pub fn sum(&self, a: Distance, b: Distance) -> Distance {
        if a == 0 || b == 0 { a | b } else { self.rank(a as usize, b) as Distance }
    }

    /// The way back.
    pub fn back(&self, by: Distance) -> Distance {
        match self.turning {
            Turning::Add if by > 0 => self.ranks as Distance - by,
            _ => by,
        }
    }

    /// Where a rank comes to stand.
    pub fn rank(&self, rank: usize, by: Distance) -> usize {
        match self.turning {
            _ if by == 0 => rank,
            Turning::Add => (rank + by as usize) % self.ranks,
            Turning::Xor => rank ^ by as usize,
        }
    }

    /// Which chunk a chunk becomes. Parts that are a multiple of the ranks are taken as so many for
    /// each rank, but for those of a buffer that is one rank's part.
    pub fn chunk(&self, buffer: Buffer, chunk: usize, by: Distance) -> usize {
        let (chunking, other) = match buffer {
            Buffer::Input => (self.input, self.output),
            Buffer::Output => (self.output, self.input),
        };
        match chunking {
            Chunking::PerRank(1) => self.rank(chunk, by),
            Chunking::PerRank(of_rank) => {
                self.rank(chunk / of_rank, by) * of_rank + chunk % of_rank
            }
            Chunking::Parts(_) if matches!(other, Chunking::PerRank(_)) => chunk,
            Chunking::Parts(parts) if parts.is_multiple_of(self.ranks) => {
                let of_rank = chunk % self.ranks;
                chunk - of_rank + self.rank(of_rank, by)
            }
            Chunking::Whole | Chunking::Parts(_) => chunk,
        }
    }

    /// Whether an operand becomes what [`Symmetry::operand`] says: nodes are not turned into nodes
    /// by a part of one.
    pub fn turns(&self, operand: Operand) -> bool {
        match operand {
            Operand::Multicast { of: Members::Node(local), .. } => {
                self.firsts.is_multiple_of(local)
            }
            _ => true,
        }
    }

    /// What a flag becomes.
    pub fn flag(&self, flag: Flag, by: Distance) -> Flag {
        match flag {
            Flag::Tail(link) => Flag::Tail(self.link(link, by)),
            Flag::Head(link) => Flag::Head(self.link(link, by)),
        }
    }

    /// What an operand becomes.
    pub fn operand(&self, operand: Operand, by: Distance) -> Operand {
        match operand {
            Operand::Input(chunk) => Operand::Input(self.chunk(Buffer::Input, chunk, by)),
            Operand::Output(chunk) => Operand::Output(self.chunk(Buffer::Output, chunk, by)),
            Operand::Slot { link, message, segment } => {
                Operand::Slot { link: self.link(link, by), message, segment }
            }
            Operand::PeerSlot { link, message, segment } => {
                Operand::PeerSlot { link: self.link(link, by), message, segment }
            }
            Operand::Window { peer, buffer, chunk } => {
                let chunk = self.chunk(buffer, chunk, by);
                Operand::Window { peer: self.rank(peer, by), buffer, chunk }
            }
            Operand::Multicast { of, buffer, chunk } => {
                Operand::Multicast { of, buffer, chunk: self.chunk(buffer, chunk, by) }
            }
            // Ranks of a rail are turned into ranks of one.
            Operand::Scratch(_) | Operand::Contribution { .. } | Operand::Reduced { .. } => operand,
            Operand::Tokens => Operand::Tokens,
            Operand::PeerTokens(peer) => Operand::PeerTokens(self.rank(peer, by)),
        }
    }

    /// What a source becomes.
    pub fn source(&self, source: Source, by: Distance) -> Source {
        Source { operand: self.operand(source.operand, by), ..source }
    }

    /// What an instruction becomes.
    pub fn instruction(&self, instruction: &Instruction, by: Distance) -> Instruction {
        match instruction {
            Instruction::Wait { flag, value } => {
                Instruction::Wait { flag: self.flag(*flag, by), value: *value }
            }
            Instruction::Signal { flag, value } => {
                Instruction::Signal { flag: self.flag(*flag, by), value: *value }
            }
            Instruction::ReduceCopy { sources, destinations, tree, finish } => {
                Instruction::ReduceCopy {
                    sources: sources.iter().map(|source| self.source(*source, by)).collect(),
                    destinations: destinations.iter().map(|one| self.operand(*one, by)).collect(),
                    tree: *tree,
                    finish: *finish,
                }
            }
        }
    }

    fn link(&self, link: Link, by: Distance) -> Link {
        Link { peer: self.rank(link.peer, by), ..link }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_lead_from_the_first_ranks_to_all_others_and_back() {
        let (parts, whole) = (Chunking::Parts(24), Chunking::Whole);
        for (turning, ranks, firsts) in [
            (Turning::Add, 12, 1),
            (Turning::Add, 12, 4),
            (Turning::Xor, 8, 1),
            (Turning::Xor, 8, 2),
        ] {
            let symmetry = Symmetry::new(ranks, firsts, turning, (parts, whole)).unwrap();
            for rank in 0..ranks {
                let (first, by) = symmetry.home(rank);
                assert!(first < firsts && symmetry.rank(first, by) == rank);
                assert_eq!(symmetry.rank(rank, symmetry.back(by)), first);
                for other in symmetry.distances() {
                    let sum = symmetry.sum(by, other);
                    assert_eq!(symmetry.rank(first, sum), symmetry.rank(rank, other));
                }
            }
        }
        assert_eq!(Symmetry::new(12, 5, Turning::Add, (whole, whole)), None);
        assert_eq!(Symmetry::new(12, 4, Turning::Xor, (whole, whole)), None);
    }

    #[test]
    fn nodes_are_turned_as_a_whole() {
        let whole = (Chunking::Whole, Chunking::Whole);
        let of = Members::Node(4);
        let node = Operand::Multicast { of, buffer: Buffer::Input, chunk: 0 };
        for (turning, firsts, turns) in
            [(Turning::Add, 4, true), (Turning::Add, 2, false), (Turning::Xor, 8, true)]
        {
            let symmetry = Symmetry::new(16, firsts, turning, whole).unwrap();
            assert_eq!(symmetry.turns(node), turns);
            let turned = |rank: usize, by| {
                let mut all: Vec<_> =
                    of.beside(rank, 16).map(|member| symmetry.rank(member, by)).collect();
                all.sort_unstable();
                all
            };
            let kept = symmetry
                .distances()
                .all(|by| turned(1, by) == of.beside(symmetry.rank(1, by), 16).collect::<Vec<_>>());
            assert_eq!(kept, turns);
        }
    }

    #[test]
    fn chunks_turn_where_each_rank_has_one() {
        use Buffer::{Input, Output};
        let chunkings = (Chunking::Parts(12), Chunking::Parts(6));
        let symmetry = Symmetry::new(4, 1, Turning::Add, chunkings).unwrap();
        assert_eq!([3, 6, 8].map(|chunk| symmetry.chunk(Input, chunk, 1)), [0, 7, 9]);
        assert_eq!(symmetry.chunk(Output, 3, 1), 3);
        let chunkings = (Chunking::Parts(4), Chunking::PerRank(4));
        let symmetry = Symmetry::new(4, 1, Turning::Add, chunkings).unwrap();
        assert_eq!([0, 3].map(|chunk| symmetry.chunk(Input, chunk, 1)), [0, 3]);
        assert_eq!([1, 7, 14].map(|chunk| symmetry.chunk(Output, chunk, 1)), [5, 11, 2]);
    }
}
