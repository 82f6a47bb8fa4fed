//! The ways between ranks as the search sees them: links by number, and how long a byte takes.

use crate::topology::Network;

/// Picoseconds.
pub(super) type Time = u64;

/// Every rank's way to every other.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    ranks: usize,
    per_node: usize,
    /// How many links there are.
    pub(super) links: usize,
    pairs: Vec<Way>,
    /// What a rank takes for a reduce-copy besides moving data.
    pub(super) step: Time,
}

/// The way from one rank to another.
#[derive(Clone, Debug, Default)]
pub(super) struct Way {
    /// Its links, and the picoseconds that each takes for a byte.
    pub(super) links: Vec<(usize, f64)>,
    /// From the last byte's leaving to its being seen.
    pub(super) latency: Time,
    /// Whether an adapter moves what crosses it.
    pub(super) posted: bool,
    /// Its slowest link.
    gbps: f64,
}

impl Ways {
    pub(super) fn new(network: &Network) -> Ways {
        let ranks = network.ranks();
        let way = |from: usize, to: usize| {
            let route = network.route(from, to);
            let gbps = |link: &u32| network.link(*link).gbps;
            Way {
                links: route.links.iter().map(|at| (*at as usize, 1e3 / gbps(at))).collect(),
                latency: (route.latency_ns * 1e3) as Time,
                posted: route.posted,
                gbps: route.links.iter().map(gbps).fold(f64::INFINITY, f64::min),
            }
        };
        let pairs: Vec<Way> =
            (0..ranks * ranks).map(|pair| way(pair / ranks, pair % ranks)).collect();
        let last = pairs.iter().flat_map(|way| &way.links).map(|(link, _)| link + 1).max();
        let device = network.device(0);
        let step_ns = device.move_ns + 2.0 * (device.instruction_ns + device.operand_ns);
        Ways {
            ranks,
            per_node: network.per_node(),
            links: last.unwrap_or(0),
            pairs,
            step: (step_ns * 1e3) as Time,
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) fn nodes(&self) -> usize {
        self.ranks.div_ceil(self.per_node)
    }

    pub(super) fn node(&self, rank: usize) -> usize {
        rank / self.per_node
    }

    /// The ranks of a node.
    pub(super) fn members(&self, node: usize) -> std::ops::Range<usize> {
        node * self.per_node..self.ranks.min((node + 1) * self.per_node)
    }

    pub(super) fn way(&self, from: usize, to: usize) -> &Way {
        &self.pairs[from * self.ranks + to]
    }

    /// The bandwidths from which on ways inside of nodes may be asked for, so that ranks still
    /// reach each other: the least, and others that leave slower ways out.
    pub(super) fn floors(&self) -> Vec<f64> {
        let inside = self.members(0).flat_map(|from| self.members(0).map(move |to| (from, to)));
        let mut all: Vec<f64> =
            inside.filter(|(from, to)| from != to).map(|(a, b)| self.way(a, b).gbps).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        if let Some(least) = all.first_mut() {
            *least = 0.0;
        }
        all.retain(|floor| (0..self.nodes()).all(|node| self.is_joined(node, *floor)));
        all
    }

    /// Whether a way may be used: between nodes there is no choice.
    pub(super) fn is_allowed(&self, from: usize, to: usize, floor: f64) -> bool {
        let way = self.way(from, to);
        from != to && (way.posted || way.gbps >= floor)
    }

    /// Whether the ranks of a node reach each other by ways of at least this bandwidth, in each
    /// direction.
    fn is_joined(&self, node: usize, floor: f64) -> bool {
        let members = self.members(node);
        let reached = |ahead: bool| {
            let mut seen = vec![false; members.len()];
            let mut open = vec![members.start];
            seen[0] = true;
            while let Some(at) = open.pop() {
                for to in members.clone() {
                    let (a, b) = if ahead { (at, to) } else { (to, at) };
                    if !seen[to - members.start] && self.is_allowed(a, b, floor) {
                        seen[to - members.start] = true;
                        open.push(to);
                    }
                }
            }
            seen.into_iter().all(|seen| seen)
        };
        reached(true) && reached(false)
    }
}

/// Links while they are asked, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Load {
    free: Vec<Time>,
}

impl Load {
    pub(super) fn new(ways: &Ways) -> Load {
        Load { free: vec![0; ways.links] }
    }

    /// Whether all links of a way are idle.
    pub(super) fn is_idle(&self, way: &Way, now: Time) -> bool {
        way.links.iter().all(|(link, _)| self.free[*link] <= now)
    }

    /// Sends bytes along a way; when the last has left its slowest link.
    pub(super) fn carry(&mut self, way: &Way, bytes: usize, ready: Time) -> Time {
        let mut end = ready;
        for (link, ps_per_byte) in &way.links {
            let free = &mut self.free[*link];
            *free = ready.max(*free) + (bytes as f64 * ps_per_byte).ceil() as Time;
            end = end.max(*free);
        }
        end
    }

    /// When the links of a way are idle again, each.
    pub(super) fn ends<'a>(&'a self, way: &'a Way) -> impl Iterator<Item = Time> + 'a {
        way.links.iter().map(|(link, _)| self.free[*link])
    }
}
