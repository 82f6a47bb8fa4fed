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
    ps_per_byte: Vec<f64>,
    free: Vec<Time>,
    pub(super) bytes: Vec<u64>,
    /// What was asked in a second round.
    pub(super) a_round: Vec<u64>,
    pub(super) in_second_round: bool,
    /// The event that it serves last, while events are recorded.
    pub(super) last: Vec<u32>,
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
        let ps_per_byte =
            (0..count as LinkId).map(|link| 1e3 / network.link(link).gbps).collect::<Vec<_>>();
        Servers {
            ps_per_byte,
            free: vec![0; count],
            bytes: vec![0; count],
            a_round: vec![0; count],
            in_second_round: false,
            last: vec![u32::MAX; count],
        }
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
        let at = link as usize;
        let start = self.free[at].max(ready);
        let end = start + (bytes as f64 * self.ps_per_byte[at] / efficiency).ceil() as Time;
        self.free[at] = end;
        self.bytes[at] += bytes;
        if self.in_second_round {
            self.a_round[at] += bytes;
        }
        Service { start, end }
    }
}
