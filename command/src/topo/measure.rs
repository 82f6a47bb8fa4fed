//! `oxccl topo --measure`: what passes between every two ranks of this machine, alone and all at
//! once.
//!
//! Ranks are threads, one pinned to each core while there are enough, and messages are send/recv in
//! `comm.alloc`'s memory. Alone, one pair works and the others wait at a barrier. At once, all
//! ranks work in pairs; after so many rounds as a tournament has, every rank has met every other.

use std::time::Instant;

use oxccl::{Collectives, Communicator, Config, Error};
use serde::Serialize;

use crate::failure::Failure;
use crate::{machine, speak};

/// Messages to and fro in a measurement of latency.
const TURNS: usize = 2000;
/// Messages in a measurement of bandwidth, and their bytes.
const MESSAGES: usize = 24;
const BYTES: usize = 4 << 20;
/// The best of so many counts.
const REPEATS: usize = 3;
/// More ranks only if asked for.
const MOST: usize = 16;

/// One way from a rank to another.
#[derive(Clone, Copy, Debug, Default)]
struct Passage {
    latency_ns: f64,
    gbps: f64,
}

pub(super) fn main(ranks: Option<usize>, json: bool) -> Result<(), Failure> {
    let cores = machine::usable_cores();
    let ranks = ranks.unwrap_or(cores.len().clamp(2, MOST));
    if ranks < 2 {
        return Err(Failure::Usage("--measure needs at least 2 ranks".to_owned()));
    }
    let comms = Communicator::local_with(ranks, &Config::from_env()?)?;
    let results: Vec<Result<Found, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                let core = (ranks <= cores.len()).then(|| cores[comm.rank()]);
                scope.spawn(move || of_rank(&comm, core))
            })
            .collect();
        let join = |(rank, thread): (usize, std::thread::ScopedJoinHandle<_>)| {
            thread.join().unwrap_or(Err(Failure::Panicked(rank)))
        };
        threads.into_iter().enumerate().map(join).collect()
    });
    let found = results.into_iter().collect::<Result<Vec<Found>, Failure>>()?;
    match json {
        true => println!("{}", speak::json(&Measured::new(&found, cores.len()))),
        false => print_tables(&found, cores.len()),
    }
    Ok(())
}

/// What was measured as `--json` prints it: from the rank of the row to that of the column, and
/// none to itself.
#[derive(Serialize)]
struct Measured {
    processor: String,
    cores: usize,
    ranks: usize,
    alone: Matrices,
    at_once: Matrices,
}

#[derive(Serialize)]
struct Matrices {
    /// Of 8 bytes, one way.
    latency_ns: Vec<Vec<Option<f64>>>,
    gbps: Vec<Vec<Option<f64>>>,
}

impl Measured {
    fn new(found: &[Found], cores: usize) -> Measured {
        Measured {
            processor: machine::cpu_model(),
            cores,
            ranks: found.len(),
            alone: Matrices::new(found, 0),
            at_once: Matrices::new(found, 1),
        }
    }
}

impl Matrices {
    fn new(found: &[Found], of: usize) -> Matrices {
        let matrix = |cell: fn(&Passage) -> f64| {
            let row = |from: &Found| {
                let passages = from.passages[of].iter().enumerate();
                passages.map(|(to, passage)| (to != from.rank).then(|| cell(passage))).collect()
            };
            found.iter().map(row).collect()
        };
        Matrices {
            latency_ns: matrix(|passage| passage.latency_ns),
            gbps: matrix(|passage| passage.gbps),
        }
    }
}

fn print_tables(found: &[Found], cores: usize) {
    let ranks = found.len();
    println!("# {}, {cores} usable cores", machine::cpu_model());
    if ranks > cores {
        println!("# {ranks} ranks share {cores} cores: latencies are those of the scheduler");
    }
    println!("# from the rank at the left to the rank on top; best of {REPEATS}, send/recv");
    for (what, of) in [("alone", 0), ("all pairs at once", 1)] {
        print_matrix(&format!("latency of 8 bytes, one way, {what} (ns)"), found, |found, to| {
            format!("{:.0}", found.passages[of][to].latency_ns)
        });
        print_matrix(
            &format!("bandwidth of {} MiB, {what} (GB/s)", BYTES >> 20),
            found,
            |found, to| format!("{:.2}", found.passages[of][to].gbps),
        );
    }
}

/// What one rank has sent to each: alone, and at once.
struct Found {
    rank: usize,
    passages: [Vec<Passage>; 2],
}

fn print_matrix(title: &str, found: &[Found], cell: impl Fn(&Found, usize) -> String) {
    println!("\n{title}");
    print!("{:8}", "");
    (0..found.len()).for_each(|to| print!("{:>9}", format!("rank {to}")));
    println!();
    for from in found {
        print!("{:8}", format!("rank {}", from.rank));
        for to in 0..found.len() {
            print!("{:>9}", if to == from.rank { "-".to_owned() } else { cell(from, to) });
        }
        println!();
    }
}

fn of_rank(comm: &Communicator, core: Option<usize>) -> Result<Found, Failure> {
    if let Some(core) = core {
        machine::pin_to(core).map_err(Failure::system("pinning a rank to a core"))?;
    }
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let mut meter =
        Meter { comm, small: comm.alloc_host::<u8>(8)?, large: comm.alloc_host::<u8>(BYTES)? };
    meter.large.fill(1);
    let mut alone = vec![Passage::default(); ranks];
    for from in 0..ranks {
        for to in (0..ranks).filter(|to| *to != from) {
            comm.barrier()?;
            if rank == from || rank == to {
                let peer = if rank == from { to } else { from };
                let passage = meter.passage(peer, rank == from)?;
                if rank == from {
                    alone[to] = passage;
                }
            }
        }
    }
    let mut together = vec![Passage::default(); ranks];
    for peer in tournament(rank, ranks) {
        for first in [true, false] {
            comm.barrier()?;
            let Some(peer) = peer else { continue };
            let sends = (rank < peer) == first;
            let passage = meter.passage(peer, sends)?;
            if sends {
                together[peer] = passage;
            }
        }
    }
    Ok(Found { rank, passages: [alone, together] })
}

struct Meter<'a> {
    comm: &'a Communicator,
    small: oxccl::HostBuffer<u8>,
    large: oxccl::HostBuffer<u8>,
}

impl Meter<'_> {
    /// What passes to a peer, if this rank is the one that sends.
    fn passage(&mut self, peer: usize, sends: bool) -> Result<Passage, Error> {
        let mut best = Passage { latency_ns: f64::INFINITY, gbps: 0.0 };
        for _ in 0..REPEATS {
            let start = Instant::now();
            for _ in 0..TURNS {
                if sends {
                    self.comm.send(&self.small, peer)?;
                    self.comm.recv(&mut self.small, peer)?;
                } else {
                    self.comm.recv(&mut self.small, peer)?;
                    self.comm.send(&self.small, peer)?;
                }
            }
            let one_way = start.elapsed().as_nanos() as f64 / (2 * TURNS) as f64;
            best.latency_ns = best.latency_ns.min(one_way);
            let start = Instant::now();
            for _ in 0..MESSAGES {
                if sends {
                    self.comm.send(&self.large, peer)?;
                } else {
                    self.comm.recv(&mut self.large, peer)?;
                }
            }
            // The last message has come when its answer comes.
            if sends {
                self.comm.recv(&mut self.small, peer)?;
            } else {
                self.comm.send(&self.small, peer)?;
            }
            let ns = start.elapsed().as_nanos() as f64;
            best.gbps = best.gbps.max((MESSAGES * BYTES) as f64 / ns);
        }
        Ok(best)
    }
}

/// Whom a rank meets in each round of a tournament in which everybody meets everybody; nobody where
/// ranks are odd and it has a rest. The circle method: one stands still, the others turn.
fn tournament(rank: usize, ranks: usize) -> Vec<Option<usize>> {
    let seats = ranks + ranks % 2;
    let turning = seats - 1;
    (0..turning)
        .map(|round| {
            let peer = if rank == turning {
                // 2 * peer = round (modulo turning), and turning is odd.
                round * (turning + 1) / 2 % turning
            } else {
                let peer = (round + turning - rank) % turning;
                if peer == rank { turning } else { peer }
            };
            (peer < ranks).then_some(peer)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_tournament_everybody_meets_everybody_once() {
        for ranks in 2..10 {
            let plans: Vec<_> = (0..ranks).map(|rank| tournament(rank, ranks)).collect();
            for (rank, plan) in plans.iter().enumerate() {
                let mut met: Vec<usize> = plan.iter().flatten().copied().collect();
                for (round, peer) in plan.iter().enumerate() {
                    let Some(peer) = peer else { continue };
                    assert_eq!(plans[*peer][round], Some(rank), "{ranks} ranks, round {round}");
                }
                met.sort_unstable();
                let others: Vec<usize> = (0..ranks).filter(|other| *other != rank).collect();
                assert_eq!(met, others, "{ranks} ranks");
            }
        }
    }
}
