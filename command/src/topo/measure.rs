//! `oxccl topo --measure`: what passes between every two ranks of this machine, alone and all at
//! once, beside what a topology says of their links.
//!
//! Ranks are threads, one pinned to each core while there are enough, or one for each GPU, and
//! messages are send/recv in `comm.alloc`'s memory; on GPUs calls follow one another in a stream.
//! Alone, one pair works and the others wait at a barrier. At once, all ranks work in pairs; after
//! so many rounds as a tournament has, every rank has met every other.

use std::path::Path;
use std::time::Instant;

use oxccl::cuda::Stream;
use oxccl::plans::topology::Network;
use oxccl::{Collectives, Communicator, Config, Device, DeviceBuffer, Error};
use oxccl_transports::cuda::Driver;
use serde::Serialize;

use super::{TopoOptions, load};
use crate::failure::Failure;
use crate::{bench, machine, speak};

/// Messages to and fro in a measurement of latency.
const TURNS: usize = 2000;
/// Messages in a measurement of bandwidth, and their bytes.
const MESSAGES: usize = 24;
const BYTES: usize = 4 << 20;
/// The best of so many counts.
const REPEATS: usize = 3;
/// The name of this machine's topology.
const THIS: &str = "this";
/// More ranks only if asked for.
const MOST: usize = 16;

/// One way from a rank to another.
#[derive(Clone, Copy, Debug, Default)]
struct Passage {
    latency_ns: f64,
    gbps: f64,
}

pub(super) fn main(options: &TopoOptions) -> Result<(), Failure> {
    let config = config(options)?;
    let theory = Theory::of(&options.topology)?;
    let cores = machine::usable_cores();
    let ranks = match (options.ranks, config.device) {
        (Some(ranks), _) => ranks,
        (None, Device::Host) => cores.len().clamp(2, MOST),
        (None, Device::Cuda(_)) => Driver::load()?.devices()?.len(),
    };
    if ranks < 2 {
        return Err(Failure::Usage(format!("--measure needs at least 2 ranks, this is {ranks}")));
    }
    let on_cores = config.device == Device::Host && ranks <= cores.len();
    let comms = Communicator::local_with(ranks, &config)?;
    let results: Vec<Result<Found, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = comms
            .into_iter()
            .map(|comm| {
                let core = on_cores.then(|| cores[comm.rank()]);
                scope.spawn(move || of_rank(&comm, core))
            })
            .collect();
        let join = |(rank, thread): (usize, std::thread::ScopedJoinHandle<_>)| {
            thread.join().unwrap_or(Err(Failure::Panicked(rank)))
        };
        threads.into_iter().enumerate().map(join).collect()
    });
    let found = results.into_iter().collect::<Result<Vec<Found>, Failure>>()?;
    let said = theory.between(&found);
    match options.json {
        true => println!("{}", speak::json(&Measured::new(&found, &said, cores.len()))),
        false => print_tables(&found, &said, cores.len()),
    }
    Ok(())
}

fn config(options: &TopoOptions) -> Result<Config, Failure> {
    let mut config = Config::from_lookup(|name| match (options.device, name) {
        (Some(device), "OXCCL_DEVICE") => Some(device.to_string().into()),
        _ => std::env::var_os(name),
    })?;
    bench::fit_gpu(&mut config, BYTES, options.image.as_deref())?;
    Ok(config)
}

/// The topology that measurements are compared with.
struct Theory {
    topology: String,
    /// Why not, where this machine's is not known so far.
    network: Result<Network, String>,
}

/// What it says of the links between ranks.
struct Said {
    topology: String,
    /// Why not, where it does not have a rank's device.
    ways: Result<Vec<Vec<Passage>>, String>,
}

impl Theory {
    /// Another topology than this machine's must be right.
    fn of(name: &str) -> Result<Theory, Failure> {
        let network = load(name)
            .and_then(|topology| Ok(Network::new(&topology, topology.devices_per_node(), None)?));
        let network = match network {
            Err(error) if name != THIS => return Err(error),
            network => network.map_err(|error| error.to_string()),
        };
        Ok(Theory { topology: name.to_owned(), network })
    }

    /// This machine's devices are those that the ranks are on; of another topology it is taken that
    /// ranks are on its devices in order.
    fn between(self, found: &[Found]) -> Said {
        let Theory { topology, network } = self;
        let ways = network.and_then(|network| {
            let places = found.iter().map(|found| place(&network, &topology, found));
            let places = places.collect::<Result<Vec<usize>, String>>()?;
            let row = |from: &usize| places.iter().map(|to| way(&network, *from, *to)).collect();
            Ok(places.iter().map(row).collect())
        });
        Said { topology, ways }
    }
}

/// The device of a rank.
fn place(network: &Network, topology: &str, found: &Found) -> Result<usize, String> {
    let devices = network.ranks();
    if topology != THIS {
        let is_there = found.rank < devices;
        return is_there.then_some(found.rank).ok_or_else(|| format!("it has {devices} devices"));
    }
    let wanted = found.device.as_ref().ok_or("its ranks are not on cores of their own")?;
    let at = (0..devices).position(|device| network.device_name(device) == *wanted);
    at.ok_or_else(|| format!("it has no {wanted}"))
}

fn way(network: &Network, from: usize, to: usize) -> Passage {
    let route = network.route(from, to);
    let gbps = route.links.iter().map(|link| network.link(*link).gbps);
    Passage { latency_ns: route.latency_ns, gbps: gbps.fold(f64::INFINITY, f64::min) }
}

/// The name that the topology of this machine has for the device of a rank.
fn device(comm: &Communicator, core: Option<usize>) -> Result<Option<String>, Failure> {
    let Some(context) = comm.context() else {
        return Ok(core.map(|core| format!("core{core}")));
    };
    let address = context.device().pci_address()?;
    let gpus = super::machine::gpu_addresses(Path::new("/sys"));
    let at = gpus.iter().position(|gpu| *gpu == address);
    Ok(Some(at.map_or(format!("GPU {address}"), |at| format!("gpu{at}"))))
}

/// What was measured as `--json` prints it: from the rank of the row to that of the column, and
/// none to itself.
#[derive(Serialize)]
struct Measured {
    processor: String,
    cores: usize,
    ranks: usize,
    /// The device of each, by the name that it has in the topology of this machine.
    devices: Vec<Option<String>>,
    alone: Matrices,
    at_once: Matrices,
    /// The topology that the next is of.
    topology: String,
    /// None where that does not have the devices.
    theory: Option<Matrices>,
    /// Why there is none.
    no_theory: Option<String>,
}

#[derive(Serialize)]
struct Matrices {
    /// Of 8 bytes, one way.
    latency_ns: Vec<Vec<Option<f64>>>,
    gbps: Vec<Vec<Option<f64>>>,
}

impl Measured {
    fn new(found: &[Found], said: &Said, cores: usize) -> Measured {
        Measured {
            processor: machine::cpu_model(),
            cores,
            ranks: found.len(),
            devices: found.iter().map(|found| found.device.clone()).collect(),
            alone: Matrices::new(found, |from, to| from.passages[0][to]),
            at_once: Matrices::new(found, |from, to| from.passages[1][to]),
            topology: said.topology.clone(),
            theory: said
                .ways
                .as_ref()
                .ok()
                .map(|ways| Matrices::new(found, |from, to| ways[from.rank][to])),
            no_theory: said.ways.as_ref().err().cloned(),
        }
    }
}

impl Matrices {
    fn new(found: &[Found], passage: impl Fn(&Found, usize) -> Passage) -> Matrices {
        let matrix = |cell: fn(Passage) -> f64| {
            let row = |from: &Found| {
                let to = 0..found.len();
                to.map(|to| (to != from.rank).then(|| cell(passage(from, to)))).collect()
            };
            found.iter().map(row).collect()
        };
        Matrices {
            latency_ns: matrix(|passage| passage.latency_ns),
            gbps: matrix(|passage| passage.gbps),
        }
    }
}

fn print_tables(found: &[Found], said: &Said, cores: usize) {
    let ranks = found.len();
    println!("# {}, {cores} usable cores", machine::cpu_model());
    let devices: Vec<&str> = found.iter().filter_map(|found| found.device.as_deref()).collect();
    match devices.is_empty() {
        true => {
            println!("# {ranks} ranks share {cores} cores: latencies are those of the scheduler")
        }
        false => println!("# ranks are on {}", devices.join(", ")),
    }
    println!("# from the rank at the left to the rank on top; best of {REPEATS}, send/recv");
    let size = BYTES >> 20;
    for (what, of) in [("alone", 0), ("all pairs at once", 1)] {
        print_matrix(&format!("latency of 8 bytes, one way, {what} (ns)"), found, |from, to| {
            format!("{:.0}", from.passages[of][to].latency_ns)
        });
        print_matrix(&format!("bandwidth of {size} MiB, {what} (GB/s)"), found, |from, to| {
            format!("{:.2}", from.passages[of][to].gbps)
        });
    }
    match &said.ways {
        Ok(ways) => {
            let by = format!("by the links of {}", said.topology);
            print_matrix(&format!("latency {by} (ns)"), found, |from, to| {
                format!("{:.0}", ways[from.rank][to].latency_ns)
            });
            print_matrix(&format!("bandwidth {by} (GB/s)"), found, |from, to| {
                format!("{:.2}", ways[from.rank][to].gbps)
            });
            print_matrix("bandwidth alone, of that (%)", found, |from, to| {
                format!("{:.0}", 100.0 * from.passages[0][to].gbps / ways[from.rank][to].gbps)
            });
        }
        Err(why) => println!("\nnothing to compare with in {}: {why}", said.topology),
    }
}

/// What one rank has sent to each: alone, and at once.
struct Found {
    rank: usize,
    device: Option<String>,
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
    let stream = comm.context().map(|context| Stream::new(&context)).transpose()?;
    let mut meter = Meter { comm, stream, small: comm.alloc(8)?, large: comm.alloc(BYTES)? };
    meter.large.write(&[1; BYTES])?;
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
    Ok(Found { rank, device: device(comm, core)?, passages: [alone, together] })
}

struct Meter<'a> {
    comm: &'a Communicator,
    /// On a GPU: what calls follow one another in.
    stream: Option<Stream>,
    small: DeviceBuffer<u8>,
    large: DeviceBuffer<u8>,
}

/// Which of a meter's buffers.
#[derive(Clone, Copy)]
enum Message {
    Small,
    Large,
}

impl Meter<'_> {
    /// What passes to a peer, if this rank is the one that sends.
    fn passage(&mut self, peer: usize, sends: bool) -> Result<Passage, Error> {
        let mut best = Passage { latency_ns: f64::INFINITY, gbps: 0.0 };
        for _ in 0..REPEATS {
            let start = Instant::now();
            for _ in 0..TURNS {
                self.cross(Message::Small, peer, sends)?;
                self.cross(Message::Small, peer, !sends)?;
            }
            self.finish()?;
            let one_way = start.elapsed().as_nanos() as f64 / (2 * TURNS) as f64;
            best.latency_ns = best.latency_ns.min(one_way);
            let start = Instant::now();
            for _ in 0..MESSAGES {
                self.cross(Message::Large, peer, sends)?;
            }
            // The last message has come when its answer comes.
            self.cross(Message::Small, peer, !sends)?;
            self.finish()?;
            let ns = start.elapsed().as_nanos() as f64;
            best.gbps = best.gbps.max((MESSAGES * BYTES) as f64 / ns);
        }
        Ok(best)
    }

    /// Sends a message, or takes one.
    fn cross(&mut self, which: Message, peer: usize, sends: bool) -> Result<(), Error> {
        let buffer = match which {
            Message::Small => &mut self.small,
            Message::Large => &mut self.large,
        };
        match (&self.stream, sends) {
            (None, true) => self.comm.send(buffer, peer),
            (None, false) => self.comm.recv(buffer, peer),
            (Some(stream), true) => self.comm.on(stream).send(buffer, peer).map(drop),
            (Some(stream), false) => self.comm.on(stream).recv(buffer, peer).map(drop),
        }
    }

    /// Waits for the calls in the stream.
    fn finish(&self) -> Result<(), Error> {
        self.stream.as_ref().map_or(Ok(()), |stream| Ok(stream.synchronize()?))
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
