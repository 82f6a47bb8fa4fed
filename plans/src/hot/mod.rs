//! Schedules that are alike on all ranks of any number, for kernels that know theirs when they are
//! compiled (hot kernels).
//!
//! A [`Shape`] is such a schedule: what a rank does for each of its peers, whoever they are and
//! however many. Where there is a root, it has one shape and the others another ([`Role`]). The
//! build of oxccl-kernels makes a kernel of each of [`hot`]; the runtime launches it where the
//! proven schedule at hand is what its shape says ([`find`]), instruction by instruction, and
//! buffers are divided as it takes them to be ([`extents`]). Everything else is interpreted.

mod extents;
mod generalise;

pub use extents::extents;
use generalise::generalise;

use crate::algorithms::{self, Algorithm, Encoding};
use crate::collective::{Collective, Kind, Order};
use crate::schedule::{
    Buffer, Chunking, Flag, Instruction, Lane, Layout, Link, Members, Operand, SLOTS, Schedule,
    Source, Tree,
};
use crate::topology::Placement;
use crate::verify::verify;
use oxccl_format::{DataType, Extents, Fold, Scale};
use std::sync::OnceLock;

/// Ranks that a hot kernel serves at most.
pub const MOST_RANKS: usize = 16;

/// Buckets of a group that one serves at most, and all ranks' of them.
pub const MOST_BUCKETS: usize = 256;
/// See [`MOST_BUCKETS`].
pub const MOST_PLACES: usize = 1024;

/// Up to so many bytes of a chunk a channel moves between buffers. By the kernels' instructions the
/// interpreter is as fast from about twice as many on (`tools/gpu-model`).
const WINDOW_PART_BYTES: u64 = 64 << 10;

/// Where in a buffer a chunk is, kernels count in 32 bits.
const LONGEST_BYTES: u64 = 1 << 31;

/// Element types whose sums, and averages, have hot kernels.
pub const SUMS: [DataType; 3] = [DataType::F32, DataType::F16, DataType::BF16];

/// What a call does with its elements, and how it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Their type.
    pub data_type: DataType,
    /// How two become one.
    pub fold: Fold,
    /// What else happens to them.
    pub scale: Scale,
    /// Channels that share the call.
    pub channels: usize,
    /// Rounds of each.
    pub rounds: u64,
    /// Of a group's buffer: how many buckets it is of.
    pub buckets: Option<usize>,
}

/// Which chunk of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// The only one.
    Only,
    /// Of as many as there are ranks, this rank's.
    Own,
    /// Of as many as there are ranks, the peer's.
    Peers,
}

/// Where data is read or written. What is of a peer is of each in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// This rank's input.
    Input(Chunk),
    /// This rank's output.
    Output(Chunk),
    /// A message of the round, from a peer or to it.
    Message(Lane, u32),
    /// A peer's buffer, in place.
    Window(Buffer, Chunk),
    /// All ranks' buffers at once, in place.
    All(Buffer, Chunk),
    /// Where buffers are: this rank's, or what is kept of a peer's.
    Tokens,
}

/// The order in which peers come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// From the next rank on.
    Rotated,
    /// From rank 0 on.
    Ranked,
}

/// How many instructions a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// One for all peers.
    Once,
    /// One for each of them.
    Each(Turn),
}

/// A counter of each peer's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// What has been consumed, instead of what has been announced.
    pub is_head: bool,
    /// Of which connection.
    pub lane: Lane,
    /// Relative to the start of the round.
    pub value: i64,
    /// Whose comes first.
    pub turn: Turn,
}

/// A reduce-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// How many instructions it is.
    pub times: Times,
    /// What is read of this rank's.
    pub own: Option<Place>,
    /// What is read of each peer's. With this rank's, by the order of ranks.
    pub peers: Option<Place>,
    /// What is written of this rank's.
    pub to_own: Option<Place>,
    /// What is written of each peer's, behind this rank's.
    pub to_peers: Option<Place>,
    /// What is read are contributions, as ranks gave them.
    pub raw: bool,
    /// The result is final.
    pub finish: bool,
}

/// What a rank does, for each of its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for counters.
    Wait(Counter),
    /// It moves data.
    Move(Move),
    /// It raises counters.
    Signal(Counter),
}

/// Which ranks do it, and who their peers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// All ranks; all others.
    Any,
    /// The root; all others.
    Root,
    /// All but the root; the root alone.
    Leaf,
}

/// A schedule of any number of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Whose it is.
    pub role: Role,
    /// In order.
    pub steps: Vec<Step>,
}

/// One of the schedules that there are kernels of.
#[derive(Clone, Debug)]
pub struct Hot {
    /// As in the kernel's name.
    pub name: String,
    /// As in the name of its kernel for a group's buckets, if there is one.
    pub in_buckets: Option<String>,
    /// Which collective it carries out.
    pub kind: Kind,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// How data cross.
    pub encoding: Encoding,
    /// What it does.
    pub shape: Shape,
}

/// What there are hot kernels of.
const HOT: [(Kind, Algorithm, Encoding); 19] = [
    (Kind::AllReduce, Algorithm::OneShot, Encoding::Ll),
    (Kind::AllReduce, Algorithm::OneShot, Encoding::Ll128),
    (Kind::AllReduce, Algorithm::TwoShot, Encoding::Ll),
    (Kind::AllReduce, Algorithm::TwoShot, Encoding::Ll128),
    (Kind::AllReduce, Algorithm::TwoShot, Encoding::Windows),
    (Kind::AllReduce, Algorithm::TwoShotPush, Encoding::Windows),
    (Kind::AllReduce, Algorithm::Nvls, Encoding::Windows),
    (Kind::ReduceScatter, Algorithm::Direct, Encoding::Ll),
    (Kind::ReduceScatter, Algorithm::Direct, Encoding::Ll128),
    (Kind::ReduceScatter, Algorithm::Direct, Encoding::Windows),
    (Kind::AllGather, Algorithm::Direct, Encoding::Ll),
    (Kind::AllGather, Algorithm::Direct, Encoding::Ll128),
    (Kind::AllGather, Algorithm::DirectPush, Encoding::Windows),
    (Kind::AllToAll, Algorithm::Direct, Encoding::Ll),
    (Kind::AllToAll, Algorithm::Direct, Encoding::Ll128),
    (Kind::AllToAll, Algorithm::Pairwise, Encoding::Windows),
    (Kind::Broadcast, Algorithm::Direct, Encoding::Ll),
    (Kind::Broadcast, Algorithm::Direct, Encoding::Ll128),
    (Kind::Broadcast, Algorithm::DirectPull, Encoding::Windows),
];

/// Whether there is a kernel of it for groups, too. Buckets begin in the middle of LL128 lines,
/// switches do not reduce them, and of their windows a channel knows those of its own chunk.
fn is_in_buckets(algorithm: Algorithm, encoding: Encoding) -> bool {
    match encoding {
        Encoding::Windows => !matches!(algorithm, Algorithm::TwoShot | Algorithm::Nvls),
        _ => encoding == Encoding::Ll,
    }
}

/// All of them: their shapes, as schedules of a few ranks have them.
pub fn hot() -> &'static [Hot] {
    static ALL: OnceLock<Vec<Hot>> = OnceLock::new();
    ALL.get_or_init(|| {
        let of = |one: (Kind, _, _)| roles(one.0).iter().filter_map(move |role| shaped(one, *role));
        HOT.into_iter().flat_map(of).collect()
    })
}

fn roles(kind: Kind) -> &'static [Role] {
    if kind.is_rooted() { &[Role::Root, Role::Leaf] } else { &[Role::Any] }
}

fn shaped((kind, algorithm, encoding): (Kind, Algorithm, Encoding), role: Role) -> Option<Hot> {
    // The least for which peers are several, and their orders differ.
    let schedule = scheduled(kind, algorithm, encoding, 3)?;
    let (rank, ending) = match role {
        Role::Any => (1, ""),
        Role::Root => (schedule.collective.root, "_root"),
        Role::Leaf => (schedule.collective.root + 1, "_leaf"),
    };
    let shape = generalise(&schedule, rank, role)?;
    let name = format!("{}_{algorithm}_{encoding}{ending}", kind.name());
    let in_buckets = is_in_buckets(algorithm, encoding).then(|| format!("{name}_in_buckets"));
    Some(Hot { name, in_buckets, kind, algorithm, encoding, shape })
}

fn scheduled(
    kind: Kind,
    algorithm: Algorithm,
    encoding: Encoding,
    ranks: usize,
) -> Option<Schedule> {
    let entry = algorithms::find(kind, algorithm, encoding)?;
    let collective = Collective::new(kind, ranks);
    entry.schedule(collective, Placement::one_node(ranks), Order::Any, SLOTS).ok()
}

/// Proves the schedules of these numbers of ranks, and that each rank's is what the shape says.
///
/// # Errors
/// What does not hold.
pub fn check(ranks: &[usize]) -> Result<(), String> {
    for (kind, algorithm, encoding) in HOT {
        let name = format!("{}, {algorithm}/{encoding}", kind.name());
        let shaped = |role: &Role| shaped((kind, algorithm, encoding), *role);
        let shapes: Option<Vec<Hot>> = roles(kind).iter().map(shaped).collect();
        let shapes = shapes.ok_or_else(|| format!("{name}: it is not alike on all ranks"))?;
        for &ranks in ranks {
            let schedule = scheduled(kind, algorithm, encoding, ranks)
                .ok_or_else(|| format!("{name}: not for {ranks} ranks"))?;
            let in_place =
                algorithms::find(kind, algorithm, encoding).is_some_and(|one| one.in_place);
            let verified = verify(schedule, Order::Any, in_place)
                .map_err(|violation| format!("{name}, {ranks} ranks: {violation}"))?;
            let is_shaped =
                |rank| shapes.iter().any(|one| one.shape.is_of(verified.schedule(), rank));
            if let Some(rank) = (0..ranks).find(|rank| !is_shaped(*rank)) {
                return Err(format!("{name}, {ranks} ranks: rank {rank}'s is of another shape"));
            }
        }
    }
    Ok(())
}

/// The hot one that a rank's part of a schedule is, if any.
pub fn find(schedule: &Schedule, rank: usize) -> Option<&'static Hot> {
    let kind = schedule.collective.kind;
    hot().iter().find(|one| one.kind == kind && one.shape.is_of(schedule, rank))
}

/// The hot kernel that would carry out a rank's part of a call, or of a group, on a GPU beside
/// ranks of its own node alone, and how its buffers are divided.
pub fn kernel(
    schedule: &Schedule,
    rank: usize,
    layout: &Layout,
    work: &Work,
) -> Option<(&'static str, Extents)> {
    let kind = schedule.collective.kind;
    let sums = SUMS.contains(&work.data_type)
        && work.fold == Fold::Sum
        && work.scale != Scale::Premultiply;
    if work.rounds != 1 || (kind.reduces() && !sums) {
        return None;
    }
    let one = find(schedule, rank)?;
    let name = match work.buckets {
        None => &one.name,
        Some(buckets) => {
            let serves =
                buckets <= MOST_BUCKETS && buckets * schedule.collective.ranks <= MOST_PLACES;
            one.in_buckets.as_ref().filter(|_| serves)?
        }
    };
    let parts = (work.data_type.len_bytes(), work.channels);
    let extents = extents(layout, schedule, rank, parts)?;
    one.serves(&extents).then_some((name, extents))
}

impl Hot {
    /// Whether it does more than copy.
    pub fn reduces(&self) -> bool {
        self.kind.reduces()
    }

    /// Whether a kernel of it is for buffers of this length. The interpreter's loops move what is
    /// long as fast or faster.
    pub fn serves(&self, extents: &Extents) -> bool {
        let most = if self.encoding == Encoding::Windows { WINDOW_PART_BYTES } else { u64::MAX };
        extents.total_bytes <= LONGEST_BYTES && extents.part_bytes <= most
    }
}

impl Shape {
    /// Whether a rank's part of a schedule is this.
    pub fn is_of(&self, schedule: &Schedule, rank: usize) -> bool {
        let ranks = schedule.collective.ranks;
        (2..=MOST_RANKS).contains(&ranks)
            && schedule.lists_per_rank == 1
            && schedule.scratch == 0
            && self.role.is_of(schedule, rank)
            && self.list(schedule, rank).is_some_and(|list| list == schedule.lists[rank])
    }

    /// What a rank does by it, where buffers are divided as the schedule has them; none where it
    /// names chunks that these do not have.
    pub fn list(&self, schedule: &Schedule, rank: usize) -> Option<Vec<Instruction>> {
        let one = Expanded { schedule, rank, ranks: schedule.collective.ranks, role: self.role };
        let steps: Option<Vec<_>> = self.steps.iter().map(|step| one.step(step)).collect();
        Some(steps?.concat())
    }
}

impl Role {
    fn is_of(self, schedule: &Schedule, rank: usize) -> bool {
        let is_root = rank == schedule.collective.root;
        match self {
            Role::Any => true,
            Role::Root => is_root,
            Role::Leaf => !is_root,
        }
    }

    /// Peers of a rank, in order.
    fn peers(self, schedule: &Schedule, rank: usize, turn: Turn) -> Vec<usize> {
        let Collective { ranks, root, .. } = schedule.collective;
        match (self, turn) {
            (Role::Leaf, _) => vec![root],
            (_, Turn::Rotated) => (1..ranks).map(|distance| (rank + distance) % ranks).collect(),
            (_, Turn::Ranked) => (0..ranks).filter(|peer| *peer != rank).collect(),
        }
    }
}

struct Expanded<'a> {
    schedule: &'a Schedule,
    rank: usize,
    ranks: usize,
    role: Role,
}

impl Expanded<'_> {
    fn peers(&self, turn: Turn) -> impl Iterator<Item = usize> + use<> {
        self.role.peers(self.schedule, self.rank, turn).into_iter()
    }

    fn step(&self, step: &Step) -> Option<Vec<Instruction>> {
        let all = |counter: &Counter, one: fn(Flag, i64) -> Instruction| {
            let peers = self.peers(counter.turn);
            let flag = |peer| match (Link::new(peer, counter.lane), counter.is_head) {
                (link, true) => Flag::Head(link),
                (link, false) => Flag::Tail(link),
            };
            peers.map(|peer| one(flag(peer), counter.value)).collect()
        };
        match step {
            Step::Wait(counter) => {
                Some(all(counter, |flag, value| Instruction::Wait { flag, value }))
            }
            Step::Signal(counter) => {
                Some(all(counter, |flag, value| Instruction::Signal { flag, value }))
            }
            Step::Move(of) => match of.times {
                Times::Once => Some(vec![self.once(of)?]),
                Times::Each(turn) => self.peers(turn).map(|peer| self.each(of, peer)).collect(),
            },
        }
    }

    /// The instruction for all peers.
    fn once(&self, of: &Move) -> Option<Instruction> {
        let by_rank = |rank: usize| match (of.own, of.peers) {
            (own, _) if rank == self.rank => own.map(|own| self.operand(own, self.rank, true)),
            (_, peers) => peers.map(|place| self.operand(place, rank, true)),
        };
        let sources: Option<Vec<_>> = (0..self.ranks).filter_map(by_rank).collect();
        let own = of.to_own.map(|place| self.operand(place, self.rank, false));
        let others = of.to_peers.into_iter().flat_map(|place| {
            self.peers(Turn::Rotated).map(move |peer| self.operand(place, peer, false))
        });
        let destinations: Option<Vec<_>> = own.into_iter().chain(others).collect();
        Some(reduce_copy(of, sources?, destinations?))
    }

    /// The one for this peer.
    fn each(&self, of: &Move, peer: usize) -> Option<Instruction> {
        let one = |own: Option<Place>, peers: Option<Place>, is_source| match (own, peers) {
            (Some(place), None) | (None, Some(place)) => self.operand(place, peer, is_source),
            _ => None,
        };
        let source = one(of.own, of.peers, true)?;
        let destination = one(of.to_own, of.to_peers, false)?;
        Some(reduce_copy(of, vec![source], vec![destination]))
    }

    fn operand(&self, place: Place, peer: usize, is_source: bool) -> Option<Operand> {
        let is_own = peer == self.rank;
        Some(match place {
            Place::Input(chunk) => Operand::Input(self.chunk(Buffer::Input, chunk, peer)?),
            Place::Output(chunk) => Operand::Output(self.chunk(Buffer::Output, chunk, peer)?),
            Place::Message(..) | Place::Window(..) if is_own => return None,
            Place::Message(lane, message) => {
                let (link, segment) = (Link::new(peer, lane), 0);
                match is_source {
                    true => Operand::Slot { link, message, segment },
                    false => Operand::PeerSlot { link, message, segment },
                }
            }
            Place::Window(buffer, chunk) => {
                Operand::Window { peer, buffer, chunk: self.chunk(buffer, chunk, peer)? }
            }
            Place::All(buffer, chunk) => {
                let (of, chunk) = (Members::All, self.chunk(buffer, chunk, peer)?);
                Operand::Multicast { of, buffer, chunk }
            }
            Place::Tokens if is_source => Operand::Tokens,
            Place::Tokens => Operand::PeerTokens(peer),
        })
    }

    fn chunk(&self, buffer: Buffer, chunk: Chunk, peer: usize) -> Option<usize> {
        let count = chunks(self.schedule, buffer);
        match chunk {
            Chunk::Only => (count == 1).then_some(0),
            Chunk::Own => (count == self.ranks).then_some(self.rank),
            Chunk::Peers => (count == self.ranks).then_some(peer),
        }
    }
}

fn reduce_copy(of: &Move, sources: Vec<Operand>, destinations: Vec<Operand>) -> Instruction {
    let source = |operand| Source { operand, raw: of.raw };
    let sources = sources.into_iter().map(source).collect();
    Instruction::ReduceCopy { sources, destinations, tree: Tree::Left, finish: of.finish }
}

/// How many chunks a rank's buffer has.
fn chunks(schedule: &Schedule, buffer: Buffer) -> usize {
    let chunking: Chunking = match buffer {
        Buffer::Input => schedule.input,
        Buffer::Output => schedule.output,
    };
    chunking.chunks(schedule.collective.ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_alike_on_all_ranks() {
        check(&[2, 3, 4, 5, 7, 8, 16]).unwrap();
        let shapes: usize = HOT.iter().map(|one| roles(one.0).len()).sum();
        assert_eq!(hot().len(), shapes);
    }

    #[test]
    fn a_schedule_is_found_by_what_it_does() {
        for ranks in [2, 3, 8] {
            for (kind, algorithm, encoding) in HOT {
                let mut schedule = scheduled(kind, algorithm, encoding, ranks).unwrap();
                let name = format!("{}_{algorithm}_{encoding}", kind.name());
                for rank in 0..ranks {
                    let found = find(&schedule, rank).unwrap_or_else(|| panic!("{name}, {rank}"));
                    assert!(found.name.starts_with(&name), "{}", found.name);
                    let is_root = found.shape.role == Role::Root;
                    assert_eq!(is_root, kind.is_rooted() && rank == 0, "{}", found.name);
                }
                // Anything else is not.
                let list = &mut schedule.lists[1];
                let at = list.len() / 2;
                list.remove(at);
                assert!(find(&schedule, 1).is_none(), "{name}");
                assert!(find(&schedule, 0).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn more_ranks_than_a_kernel_serves_are_not_found() {
        let schedule =
            |ranks| scheduled(Kind::AllReduce, Algorithm::OneShot, Encoding::Ll, ranks).unwrap();
        assert!(find(&schedule(MOST_RANKS), 3).is_some());
        assert!(find(&schedule(MOST_RANKS + 1), 3).is_none());
    }
}
