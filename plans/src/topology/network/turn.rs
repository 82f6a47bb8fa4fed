//! Whether the places of a node are alike: a turn of its devices takes every way to another.

use super::{LinkId, Network, Path};

/// How the places of a node turn into each other, in all nodes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// So many first places stand for the others.
    pub places: usize,
    /// For each link of a pod, the one that stands for it.
    pub links: Vec<LinkId>,
}

/// No way leads there.
const UNUSED: u32 = u32::MAX;

impl Network {
    /// The smallest turn of a node's devices that takes all ways to ways over equal links, with
    /// equal devices at their ends. No link stays where it is before the turns are through: each is
    /// used as much as those that it becomes.
    pub fn turn(&self) -> Option<Turn> {
        // Switches that reduce are told apart by their numbers, which do not turn.
        let tells_leaves_apart = self.fabric_reduces && self.pod.leaves() > 1;
        if !self.ranks.is_multiple_of(self.per_node) || self.pod.width > 1 || tells_leaves_apart {
            return None;
        }
        let divisors = (1..self.per_node).filter(|by| self.per_node.is_multiple_of(*by));
        divisors.into_iter().find_map(|by| {
            let of_node = self.orbits(&self.turned(by)?, self.per_node / by)?;
            Some(Turn { places: by, links: self.of_pod(&of_node) })
        })
    }

    /// What each link of a node becomes if the devices turn by so many places, and behind those
    /// each link between leaf switches and the spine.
    fn turned(&self, by: usize) -> Option<Vec<u32>> {
        let links = self.links.len() as u32;
        let gbps = |link: u32| match link.checked_sub(links) {
            Some(uplink) => self.pod.uplinks[uplink as usize].gbps,
            None => self.links[link as usize].gbps,
        };
        let mut turned = vec![UNUSED; self.links.len() + self.pod.uplinks.len()];
        let mut becomes = |from: &[u32], to: &[u32]| {
            let one = |(&from, &to): (&u32, &u32)| {
                let known = &mut turned[from as usize];
                if *known == UNUSED {
                    *known = to;
                }
                *known == to && gbps(from) == gbps(to)
            };
            from.len() == to.len() && from.iter().zip(to).all(one)
        };
        let next = |place: usize| (place + by) % self.per_node;
        let leaf = |nic: usize| links + 2 * self.pod.leaf(nic) as u32;
        let has_spine = self.nodes() > 1 && self.pod.leaves() > 0;
        for from in 0..self.per_node {
            let memory = |place: usize| self.first_memory + place as u32;
            if self.devices[from] != self.devices[next(from)]
                || !becomes(&[memory(from)], &[memory(next(from))])
            {
                return None;
            }
            let [a, b] = [from, next(from)].map(|place| &self.outside[place]);
            if !a.out.costs_as_much_as(&b.out)
                || !a.back.costs_as_much_as(&b.back)
                || !becomes(&a.out.links, &b.out.links)
                || !becomes(&a.back.links, &b.back.links)
                || has_spine && !becomes(&both(leaf(a.nic)), &both(leaf(b.nic)))
            {
                return None;
            }
            for to in 0..self.per_node {
                let a = &self.inside[from * self.per_node + to];
                let b = &self.inside[next(from) * self.per_node + next(to)];
                if !a.costs_as_much_as(b) || !becomes(&a.links, &b.links) {
                    return None;
                }
            }
        }
        Some(turned)
    }

    /// For each link, the first of those that it becomes, if there are as many of these as turns.
    fn orbits(&self, turned: &[u32], turns: usize) -> Option<Vec<u32>> {
        let mut standing: Vec<u32> = (0..turned.len() as u32).collect();
        for link in (0..turned.len() as u32).filter(|link| turned[*link as usize] != UNUSED) {
            if standing[link as usize] != link {
                continue;
            }
            let mut at = link;
            for left in (0..turns).rev() {
                at = turned[at as usize];
                if (at == link) != (left == 0) {
                    return None;
                }
                standing[at as usize] = link;
            }
        }
        Some(standing)
    }

    /// The same for all nodes of a pod.
    fn of_pod(&self, of_node: &[u32]) -> Vec<LinkId> {
        let links = self.links.len();
        let (of_node, uplinks) = of_node.split_at(links);
        let first = |node: usize| (node * links) as u32;
        let nodes =
            (0..self.pod.nodes).flat_map(|node| of_node.iter().map(move |link| first(node) + link));
        // Those behind one node's links are behind those of all.
        let behind = first(self.pod.nodes - 1);
        nodes.chain(uplinks.iter().map(|link| behind + link)).collect()
    }
}

impl Path {
    /// Whether everything but the links is equal.
    fn costs_as_much_as(&self, other: &Path) -> bool {
        let costs = |path: &Path| (path.latency_ns, path.switch, path.switch_efficiency);
        costs(self) == costs(other)
    }
}

/// Up and down.
fn both(up: u32) -> [u32; 2] {
    [up, up + 1]
}
