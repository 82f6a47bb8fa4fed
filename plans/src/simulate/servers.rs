//! Links while they serve.

use crate::topology::{LinkId, Network};

/// Picoseconds.
pub(super) type Time = u64;

/// Nanoseconds as picoseconds.
pub(super) fn from_ns(ns: f64) -> Time {
    (ns * 1e3).round() as Time
}

/// How long so many bytes take at so many bytes a nanosecond.
pub(super) fn transfer(bytes: u64, gbps: f64) -> Time {
    (bytes as f64 * 1e3 / gbps).ceil() as Time
}

/// All links: each serves in the order in which it is asked, one at a time, and is never idle while
/// it has been asked.
#[derive(Clone, Debug)]
pub(super) struct Servers {
    pub(super) all: Vec<Server>,
    pub(super) in_second_round: bool,
}

/// A link.
#[derive(Clone, Debug)]
pub(super) struct Server {
    ps_per_byte: f64,
    free: Time,
    pub(super) bytes: u64,
    /// What was asked in a second round.
    pub(super) a_round: u64,
    /// The event that it serves last, while events are recorded.
    pub(super) last: u32,
}

/// When a link serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) start: Time,
    pub(super) end: Time,
}

impl Servers {
    /// The links of the first pods.
    pub(super) fn new(network: &Network, pods: usize) -> Servers {
        let count = network.links_per_pod() as usize * pods;
        let server = |link: LinkId| Server {
            ps_per_byte: 1e3 / network.link(link).gbps,
            free: 0,
            bytes: 0,
            a_round: 0,
            last: u32::MAX,
        };
        Servers { all: (0..count as LinkId).map(server).collect(), in_second_round: false }
    }

    /// Serves so many bytes at this part of its rate, from `ready` on or as soon as what was asked
    /// before is done.
    pub(super) fn serve(
        &mut self,
        link: LinkId,
        bytes: u64,
        efficiency: f64,
        ready: Time,
    ) -> Service {
        let server = &mut self.all[link as usize];
        let start = server.free.max(ready);
        let end = start + (bytes as f64 * server.ps_per_byte / efficiency).ceil() as Time;
        server.free = end;
        server.bytes += bytes;
        if self.in_second_round {
            server.a_round += bytes;
        }
        Service { start, end }
    }
}
