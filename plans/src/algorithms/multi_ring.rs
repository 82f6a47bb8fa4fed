//! Several rings at once, each for its part of the data, in each of which other ranks are
//! neighbours: more links are used than by one ring, and each in both directions (NCCL's rings;
//! Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
//! interconnects", 2010).

use super::team::Team;
use super::{Algorithm, Entries, IN_SLOTS, Need, Orders, Request, entries};
use crate::collective::Kind::AllReduce;
use crate::schedule::{Chunking, Operand, Schedule, Write};

pub(super) const ENTRIES: &[Entries] =
    &[entries(AllReduce, Algorithm::MultiRing, IN_SLOTS, true, Orders::None, rings)
        .needs(&[Need::AtLeast(3)])];

/// Most rings.
const RINGS: usize = 4;

/// All rings take each step together. A ring has a chunk for each rank.
fn rings(request: &Request) -> Schedule {
    let n = request.ranks();
    let strides = strides(n);
    let chunking = Chunking::Parts(strides.len() * n);
    request.rotational(chunking, chunking, |b| {
        let teams = strides.iter().map(|stride| team(request, b.rank(), *stride));
        let teams: Vec<(usize, Team)> = teams.enumerate().collect();
        for step in 0..n {
            for (ring, team) in &teams {
                let part = |place| ring * n + team.member(place);
                let writes = [Write::To(Operand::Output(part(team.me))), Write::Send(team.next())];
                team.reduce_scatter_step(b, step, part, &[], &writes, true);
            }
        }
        for step in 1..n {
            for (ring, team) in &teams {
                team.all_gather_step(b, step, |place| ring * n + team.member(place));
            }
        }
    })
}

/// The ring in which the next rank is `stride` ranks further.
fn team(request: &Request, rank: usize, stride: usize) -> Team {
    let ranks = request.ranks();
    let member = move |place: usize| place * stride % ranks;
    let me = (0..ranks).find(|place| member(*place) == rank).unwrap_or(0);
    Team::new(ranks, me, request.encoding, member)
}

/// Strides that lead through all ranks, each with its opposite: 1, -1, and others as far as there
/// are.
fn strides(n: usize) -> Vec<usize> {
    let coprime = |stride: &usize| {
        let (mut a, mut b) = (n, *stride);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a == 1
    };
    let half = (1..n.div_ceil(2)).filter(coprime);
    half.flat_map(|stride| [stride, n - stride]).take(RINGS).collect()
}
