//! One rank's instructions, as another rank has them that stands elsewhere in the ring of ranks.

use crate::schedule::{Buffer, Chunking, Flag, Instruction, Link, Operand, Source};

/// Adds a distance to every rank, and to every chunk where each rank has one.
pub(super) struct Turn {
    pub(super) by: usize,
    pub(super) ranks: usize,
    pub(super) input: Chunking,
    pub(super) output: Chunking,
}

impl Turn {
    pub(super) fn instruction(&self, instruction: &Instruction) -> Instruction {
        match instruction {
            Instruction::Wait { flag, value } => {
                Instruction::Wait { flag: self.flag(*flag), value: *value }
            }
            Instruction::Signal { flag, value } => {
                Instruction::Signal { flag: self.flag(*flag), value: *value }
            }
            Instruction::ReduceCopy { sources, destinations, tree, finish } => {
                let source =
                    |source: &Source| Source { operand: self.operand(source.operand), ..*source };
                Instruction::ReduceCopy {
                    sources: sources.iter().map(source).collect(),
                    destinations: destinations.iter().map(|one| self.operand(*one)).collect(),
                    tree: *tree,
                    finish: *finish,
                }
            }
        }
    }

    fn rank(&self, rank: usize) -> usize {
        (rank + self.by) % self.ranks
    }

    fn chunk(&self, buffer: Buffer, chunk: usize) -> usize {
        let chunking = if buffer == Buffer::Input { self.input } else { self.output };
        if chunking == Chunking::PerRank { self.rank(chunk) } else { chunk }
    }

    fn link(&self, link: Link) -> Link {
        Link { peer: self.rank(link.peer), lane: link.lane }
    }

    fn flag(&self, flag: Flag) -> Flag {
        match flag {
            Flag::Tail(link) => Flag::Tail(self.link(link)),
            Flag::Head(link) => Flag::Head(self.link(link)),
        }
    }

    fn operand(&self, operand: Operand) -> Operand {
        match operand {
            Operand::Input(chunk) => Operand::Input(self.chunk(Buffer::Input, chunk)),
            Operand::Output(chunk) => Operand::Output(self.chunk(Buffer::Output, chunk)),
            Operand::Slot { link, message, segment } => {
                Operand::Slot { link: self.link(link), message, segment }
            }
            Operand::PeerSlot { link, message, segment } => {
                Operand::PeerSlot { link: self.link(link), message, segment }
            }
            Operand::Window { peer, buffer, chunk } => {
                Operand::Window { peer: self.rank(peer), buffer, chunk: self.chunk(buffer, chunk) }
            }
            Operand::Multicast { buffer, chunk } => {
                Operand::Multicast { buffer, chunk: self.chunk(buffer, chunk) }
            }
            Operand::Tokens => Operand::Tokens,
            Operand::PeerTokens(peer) => Operand::PeerTokens(self.rank(peer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithms::catalogue;
    use crate::collective::{Collective, Order};
    use crate::schedule::SLOTS;
    use crate::topology::Placement;

    #[test]
    fn one_rank_alone_has_the_instructions_that_it_has_among_all() {
        let mut rotational = 0;
        for entry in catalogue() {
            for ranks in 2..9 {
                let collective = match entry.kind {
                    crate::Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
                    kind => Collective::new(kind, ranks),
                };
                let (placement, order) = (Placement::uniform(2), Order::Any);
                let Ok(all) = entry.schedule(collective, placement, order, SLOTS) else { continue };
                for rank in 0..ranks {
                    let one = entry.schedule_of_rank(collective, placement, order, SLOTS, rank);
                    let lists = one.unwrap().ranks;
                    assert_eq!(lists, [all.ranks[rank].clone()], "{entry:?} {ranks} {rank}");
                }
                let period = entry.period(collective, placement, order, SLOTS).unwrap();
                rotational += usize::from(period.is_some());
            }
        }
        assert!(rotational >= 7 * 7, "{rotational}");
    }
}
