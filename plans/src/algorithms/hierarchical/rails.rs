//! A ring per rail: as many rings of all ranks as a node has ranks. Each goes through all ranks of
//! a node and leaves it on a rail of its own, so that all adapters are used at once, each once in
//! each direction (NCCL's rings on nodes with several adapters; Jain and Sabharwal, "Optimal bucket
//! algorithms for large MPI collectives on torus interconnects", 2010).
//!
//! A ring passes every second node backwards, so it enters a node at the place at which it has left
//! the one before, and stays on one rail. With an odd number of nodes it changes rails once. All
//! rings take each step together, and each has a chunk of every rank's part.

use super::super::team::Team;
use super::Request;
use crate::schedule::{Chunking, Operand, RankBuilder, Read, Schedule, Write};

/// Most rings. With more ranks on a node, rails are left out evenly.
const RINGS: usize = 8;

pub(super) fn all_reduce(request: &Request) -> Schedule {
    let (n, rings) = (request.ranks(), rings(request));
    let chunking = Chunking::Parts(rings * n);
    request.rotational_by(period(request), chunking, chunking, |b| {
        let teams = teams(request, b.rank());
        for step in 0..n {
            for (ring, team) in teams.iter().enumerate() {
                let part = |place| ring * n + team.member(place);
                let writes = [Write::To(Operand::Output(part(team.me))), Write::Send(team.next())];
                team.reduce_scatter_step(b, step, part, &[], &writes, true);
            }
        }
        gather(b, &teams, |ring, member| ring * n + member);
    })
}

pub(super) fn reduce_scatter(request: &Request) -> Schedule {
    let (n, rings) = (request.ranks(), rings(request));
    let (input, output) = (Chunking::PerRank(rings), Chunking::Parts(rings));
    request.rotational_by(period(request), input, output, |b| {
        let teams = teams(request, b.rank());
        for step in 0..n {
            for (ring, team) in teams.iter().enumerate() {
                let part = |place| team.member(place) * rings + ring;
                let writes = [Write::To(Operand::Output(ring))];
                team.reduce_scatter_step(b, step, part, &[], &writes, true);
            }
        }
    })
}

pub(super) fn all_gather(request: &Request) -> Schedule {
    let rings = rings(request);
    let (input, output) = (Chunking::Parts(rings), Chunking::PerRank(rings));
    request.rotational_by(period(request), input, output, |b| {
        let teams = teams(request, b.rank());
        for (ring, team) in teams.iter().enumerate() {
            let own = Operand::Output(b.rank() * rings + ring);
            let writes = [Write::To(own), Write::Send(team.next())];
            b.transfer(&[Read::Plain(Operand::Input(ring))], &writes, false);
        }
        gather(b, &teams, |ring, member| member * rings + ring);
    })
}

/// Every rank's chunks, which it has sent to the next, become everybody's.
fn gather(b: &mut RankBuilder, teams: &[Team], chunk: impl Fn(usize, usize) -> usize) {
    for step in 1..teams.first().map_or(0, Team::len) {
        for (ring, team) in teams.iter().enumerate() {
            team.all_gather_step(b, step, |place| chunk(ring, team.member(place)));
        }
    }
}

/// Rings of an odd number of ranks on a node would share links.
pub(in super::super) fn rings(request: &Request) -> usize {
    let local = request.placement.ranks_per_node();
    if local.is_multiple_of(2) { local.min(RINGS) } else { 1 }
}

/// The place of a step through a node: 0, 1, -1, 2, -2 and so on. Of an even number of places no
/// two neighbours are equally far apart, so that no two rings, which begin at different places,
/// have a link in common (Williams, "Experimental designs balanced for the estimation of residual
/// effects of treatments", 1949). A link with two rings would need twice the slots.
fn zigzag(step: usize, places: usize) -> usize {
    match step.is_multiple_of(2) {
        true => (places - step / 2) % places,
        false => step.div_ceil(2),
    }
}

/// After how many ranks rings look the same: every second node is passed backwards.
fn period(request: &Request) -> usize {
    let local = request.placement.ranks_per_node();
    let nodes = request.ranks() / local;
    if nodes.is_multiple_of(2) { 2 * local } else { request.ranks() }
}

/// The rings, as a rank finds itself in them.
fn teams(request: &Request, rank: usize) -> Vec<Team> {
    (0..rings(request)).map(|ring| team(request, rank, ring)).collect()
}

/// One of them.
pub(in super::super) fn team(request: &Request, rank: usize, ring: usize) -> Team {
    let local = request.placement.ranks_per_node();
    let first = ring * local / rings(request);
    let member = move |at: usize| {
        let (node, step) = (at / local, at % local);
        let step = if node.is_multiple_of(2) { step } else { local - 1 - step };
        node * local + (first + zigzag(step, local)) % local
    };
    let node = rank / local * local;
    let me = (node..node + local).find(|at| member(*at) == rank).unwrap_or(node);
    Team::new(request.ranks(), me, request.encoding, member)
}

/// What one ring does of an all-reduce, without the others.
pub(in super::super) fn all_reduce_around(b: &mut RankBuilder, team: &Team, ring: usize) {
    let n = team.len();
    let part = |place| ring * n + team.member(place);
    let writes = [Write::To(Operand::Output(part(team.me))), Write::Send(team.next())];
    team.reduce_scatter_ring(b, part, &[], &writes, true);
    for step in 1..n {
        team.all_gather_step(b, step, part);
    }
}

/// The same of a reduce-scatter of so many rings.
pub(in super::super) fn reduce_scatter_around(
    b: &mut RankBuilder,
    team: &Team,
    ring: usize,
    rings: usize,
) {
    let part = |place| team.member(place) * rings + ring;
    team.reduce_scatter_ring(b, part, &[], &[Write::To(Operand::Output(ring))], true);
}

/// The same of an all-gather.
pub(in super::super) fn all_gather_around(
    b: &mut RankBuilder,
    team: &Team,
    ring: usize,
    rings: usize,
) {
    let own = Operand::Output(b.rank() * rings + ring);
    let writes = [Write::To(own), Write::Send(team.next())];
    b.transfer(&[Read::Plain(Operand::Input(ring))], &writes, false);
    for step in 1..team.len() {
        team.all_gather_step(b, step, |place| team.member(place) * rings + ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Encoding, Inner, Outer, find};
    use crate::collective::{Collective, Kind, Order};
    use crate::schedule::{Instruction, SLOTS};
    use crate::topology::Placement;
    use std::collections::HashSet;

    #[test]
    fn steps_through_a_node_pass_every_place_and_no_two_are_alike() {
        for places in (2..=64).step_by(2) {
            let path: Vec<usize> = (0..places).map(|step| zigzag(step, places)).collect();
            let all: HashSet<usize> = path.iter().copied().collect();
            let far = path.windows(2).map(|pair| (pair[1] + places - pair[0]) % places);
            let far: HashSet<usize> = far.collect();
            assert_eq!((all.len(), far.len()), (places, places - 1));
        }
    }

    /// With an even number of nodes, what leaves a node stays on its rail.
    #[test]
    fn every_rank_sends_to_the_next_node_on_its_rail_alone() {
        let (collective, placement) = (Collective::new(Kind::AllReduce, 32), Placement::uniform(8));
        let rails = Algorithm::Hierarchical(Inner::Ring, Outer::Rails);
        let entry = find(Kind::AllReduce, rails, Encoding::Slots).unwrap();
        let schedule = entry.schedule(collective, placement, Order::Any, SLOTS).unwrap();
        for (rank, list) in schedule.lists.iter().enumerate() {
            let writes = list.iter().flat_map(|instruction| match instruction {
                Instruction::ReduceCopy { destinations, .. } => destinations.clone(),
                _ => Vec::new(),
            });
            let peers: HashSet<usize> = writes
                .filter_map(|operand| match operand {
                    Operand::PeerSlot { link, .. } => Some(link.peer),
                    _ => None,
                })
                .collect();
            let across: Vec<usize> =
                peers.iter().copied().filter(|peer| peer / 8 != rank / 8).collect();
            assert_eq!(across.len(), 1, "{rank}: {across:?}");
            assert_eq!(across[0] % 8, rank % 8);
            assert_eq!(peers.len(), 8, "{rank} sends to all of its node, too");
        }
    }
}
