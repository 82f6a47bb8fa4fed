//! Calls with hostile counts over guarded memory: what `tests/hostile.rs` and the fuzz target
//! `hostile_counts` run.
//!
//! Bytes become a world of ranks and a list of steps. In a step all ranks make one call, with
//! counts that are small, huge, or have sums that wrap to something small, over buffers as long as
//! the wrapped sums say. Borrowed slices lie between pages that nobody may touch, and buffers of
//! `comm.alloc` between others that must keep their content: a call that leaves its buffers ends
//! the process, or fails.

#![allow(unreachable_pub)]

mod guarded;
mod step;

pub use guarded::Guarded;
use oxccl::plans::algorithms::{Algorithm, Encoding, find};
use oxccl::plans::schedule::{SLOTS, ScheduleFile};
use oxccl::plans::topology::Placement;
use oxccl::{Collective, Communicator, Config, CustomSchedule, Error, Kind, Order, Pin, UniqueId};
use oxccl_transports::Server;
use std::sync::Arc;
use std::time::Duration;
use step::Step;

/// Steps of one list of bytes.
const MOST_STEPS: usize = 12;

/// What has come of steps, so that a campaign can tell that it did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that were carried out.
    pub done: usize,
    /// Calls that were refused since counts come to more than memory.
    pub overflows: usize,
    /// Calls that were refused for other reasons.
    pub refused: usize,
}

/// Bytes, taken one by one; zeros when there are no more.
pub struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `most`.
    fn below(&mut self, most: usize) -> usize {
        self.next() as usize % most
    }
}

/// Runs the steps that the bytes say, on all ranks.
///
/// # Panics
/// If ranks do not agree about a call, or a call is carried out over other counts than those that
/// it was given.
pub fn run(data: &[u8]) -> Tally {
    let mut bytes = Bytes(data);
    let ranks = 2 + bytes.below(2);
    let shared = bytes.below(2) == 1;
    let config = config(&mut bytes, ranks);
    // The rendezvous outlives the ranks.
    let (comms, _server) =
        if shared { connected(ranks, &config) } else { (threads(ranks, &config), None) };
    let mut steps = Vec::new();
    while !bytes.0.is_empty() && steps.len() < MOST_STEPS {
        steps.push(Step::read(&mut bytes, ranks));
    }
    let of_rank = |mut comm: Communicator| {
        let steps = &steps;
        move || steps.iter().map(|step| step.run(&mut comm)).collect::<Vec<_>>()
    };
    let results: Vec<Vec<Result<(), Error>>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms.into_iter().map(|comm| scope.spawn(of_rank(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no call panics")).collect()
    });
    let mut tally = Tally::default();
    for (rank, results) in results.iter().enumerate() {
        for (step, result) in steps.iter().zip(results) {
            match result {
                Ok(()) => tally.done += 1,
                Err(Error::Overflow { .. }) => tally.overflows += 1,
                Err(error) if step::is_own(error) => tally.refused += 1,
                Err(error) => panic!("rank {rank}, {step:?}: {error}"),
            }
        }
    }
    tally
}

/// A configuration with a small heap, and perhaps a custom schedule on as many channels as the
/// bytes say.
fn config(bytes: &mut Bytes<'_>, ranks: usize) -> Config {
    let channels = 1 + bytes.below(4);
    let kind =
        [None, Some(Kind::SendRecv), Some(Kind::AllGather), Some(Kind::AllToAll)][bytes.below(4)];
    let encoding = [Encoding::Ll, Encoding::Ll128, Encoding::Slots][bytes.below(3)];
    let schedule = kind.and_then(|kind| custom(kind, encoding, ranks)).map(Arc::new);
    let pinned = schedule.is_some() || bytes.below(2) == 0;
    Config {
        heap_bytes: 8 << 20,
        max_channels: channels,
        pin: Pin { channels: pinned.then_some(channels), ..Pin::default() },
        schedule,
        // No step waits in vain, so this is never reached.
        timeout: Duration::from_secs(60),
        ..Config::default()
    }
}

/// The first schedule of the catalogue that there is for this.
fn custom(kind: Kind, encoding: Encoding, ranks: usize) -> Option<CustomSchedule> {
    let collective = match kind {
        Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
        kind => Collective::new(kind, ranks),
    };
    let entry = Algorithm::ALL.iter().find_map(|algorithm| find(kind, *algorithm, encoding))?;
    let placement = Placement::one_node(ranks);
    let schedule = entry.schedule(collective, placement, Order::Any, SLOTS).ok()?;
    let file = ScheduleFile::new(schedule, Order::Any, entry.in_place);
    Some(CustomSchedule::prove("custom", file).expect("the catalogue's are right"))
}

/// Ranks that reach all of each other's memory.
fn threads(ranks: usize, config: &Config) -> Vec<Communicator> {
    Communicator::local_with(ranks, config).expect("ranks start")
}

/// Ranks that meet as processes do, over shared memory.
fn connected(ranks: usize, config: &Config) -> (Vec<Communicator>, Option<Server>) {
    let (id, server) = UniqueId::create().expect("a rendezvous");
    let ranks = std::thread::scope(|scope| {
        let connect = |rank| {
            let id = &id;
            scope.spawn(move || Communicator::connect(id, rank, ranks, config))
        };
        let starting: Vec<_> = (0..ranks).map(connect).collect();
        let joined = |rank: std::thread::ScopedJoinHandle<'_, _>| rank.join().expect("no panic");
        starting.into_iter().map(|rank| joined(rank).expect("ranks meet")).collect()
    });
    (ranks, Some(server))
}
