//! Which adapters are near a device: what lies between them on the PCI bus, as the system's tree
//! has it.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

/// A device's place on the PCI bus: the bridges and switches that lead to it, root complex first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPlace(PathBuf);

impl PciPlace {
    /// That of the device at an address like `0000:17:00.0`, if the system knows one.
    pub fn of_address(address: &str) -> Option<PciPlace> {
        PciPlace::at(&Path::new("/sys/bus/pci/devices").join(address.to_lowercase()))
    }

    /// That of an RDMA device.
    pub(super) fn of_adapter(name: &str) -> Option<PciPlace> {
        PciPlace::at(&Path::new("/sys/class/infiniband").join(name).join("device"))
    }

    fn at(link: &Path) -> Option<PciPlace> {
        fs::canonicalize(link).ok().map(PciPlace)
    }

    /// How much of the way to both is the same: the more, the nearer they are.
    fn nearness(&self, other: &PciPlace) -> usize {
        self.0.components().zip(other.0.components()).take_while(|(a, b)| a == b).count()
    }
}

/// Which of so many adapters, all alike, one of so many ranks of a node uses: those nearest to it,
/// as many as there are for each rank, or one that it shares. Ranks that are as near to several
/// begin at different ones. `places` are the adapters', where they are known; `own` is that of the
/// rank's GPU. Where nothing is known, neighbouring adapters are neighbouring ranks'.
pub(super) fn nearest(
    places: &[Option<PciPlace>],
    own: Option<&PciPlace>,
    place: usize,
    ranks: usize,
) -> Vec<usize> {
    let count = places.len();
    let each = (count / ranks).max(1);
    let first = if count >= ranks { place * each } else { place * count / ranks };
    let nearness = |at: &usize| match (own, &places[*at]) {
        (Some(own), Some(other)) => own.nearness(other),
        _ => 0,
    };
    let mut order: Vec<usize> = (0..count).collect();
    // Stable, so that those as near keep their order.
    order.sort_by_key(|at| Reverse(nearness(at)));
    for alike in order.chunk_by_mut(|a, b| nearness(a) == nearness(b)) {
        alike.rotate_left(first % alike.len());
    }
    order.truncate(each);
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str) -> PciPlace {
        PciPlace(Path::new("/sys/devices").join(path))
    }

    /// Two root complexes with two switches each, and behind each switch two GPUs and two adapters.
    fn machine() -> (Vec<PciPlace>, Vec<Option<PciPlace>>) {
        let place = |switch: usize, device: usize| {
            let (root, port) = (switch / 2, switch % 2);
            at(&format!("pci{root:04}:00/{root:04}:00:0{port}.0/{root:04}:01:00.0/{device}"))
        };
        let gpus = (0..8).map(|gpu| place(gpu / 2, gpu % 2)).collect();
        // The system numbers them in another order than GPUs.
        let adapters = [3, 3, 1, 1, 0, 0, 2, 2].iter().enumerate();
        (gpus, adapters.map(|(at, switch)| Some(place(*switch, 2 + at % 2))).collect())
    }

    #[test]
    fn each_rank_has_its_own_behind_its_switch() {
        let (gpus, adapters) = machine();
        let of = |rank: usize| nearest(&adapters, Some(&gpus[rank]), rank, 8);
        let all: Vec<Vec<usize>> = (0..8).map(of).collect();
        assert_eq!(all.iter().map(Vec::len).max(), Some(1));
        let mut used: Vec<usize> = all.concat();
        for (rank, adapter) in used.iter().enumerate() {
            let near = gpus[rank].nearness(adapters[*adapter].as_ref().unwrap());
            assert_eq!(near, 6, "rank {rank} with {adapter}");
        }
        used.sort_unstable();
        assert_eq!(used, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn ranks_that_have_several_begin_with_the_near_ones() {
        let (gpus, adapters) = machine();
        assert_eq!(nearest(&adapters, Some(&gpus[0]), 0, 2), [2, 3, 4, 5], "its root complex");
        assert_eq!(nearest(&adapters[..2], Some(&gpus[7]), 7, 8), [1]);
        assert_eq!(nearest(&adapters[1..4], Some(&gpus[2]), 2, 8), [1]);
    }

    #[test]
    fn without_places_neighbours_share_by_order() {
        let (gpus, adapters) = machine();
        let unknown = vec![None; 8];
        for (ranks, expected) in
            [(8, vec![5]), (4, vec![2, 3]), (16, vec![2]), (1, (0..8).collect())]
        {
            let place = if ranks == 4 || ranks == 1 { ranks / 4 } else { 5 };
            assert_eq!(nearest(&unknown, Some(&gpus[0]), place, ranks), expected, "{ranks}");
            assert_eq!(nearest(&adapters, None, place, ranks), expected, "{ranks}");
        }
    }
}
