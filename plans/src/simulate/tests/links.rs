//! What links carry: by schedules, through a spine, through switches that reduce.

use super::*;
use crate::algorithms::{Inner, Outer};
use crate::topology::Spine;

#[test]
fn links_carry_what_the_schedule_says() {
    let (n, bytes) = (8u64, 64 << 20);
    let case = Case::new("dgx-h100", Kind::AllReduce, 8, bytes).with(|o| o.extrapolate = false);
    let carried = |algorithm, encoding, name: &str| {
        link_bytes(&case.run(algorithm, encoding), name) as f64 / bytes as f64
    };
    let (ring, slots) = (Algorithm::Ring, Encoding::Slots);
    let expected = 2.0 * (n - 1) as f64 / n as f64;
    for gpu in 0..8 {
        for name in [format!("gpu{gpu}>nvswitch nvlink"), format!("nvswitch>gpu{gpu} nvlink")] {
            assert_eq!(carried(ring, slots, &name), expected, "{name}");
            assert_eq!(carried(Algorithm::OneShot, slots, &name), 7.0, "{name}");
            assert_eq!(carried(Algorithm::TwoShot, slots, &name), expected, "{name}");
            // Tokens come on top.
            let pull = carried(Algorithm::TwoShot, Encoding::Windows, &name);
            assert!((pull - expected).abs() < 1e-3, "{name} {pull}");
            // LL doubles, and has a header a message.
            let ll = carried(ring, Encoding::Ll, &name);
            assert!(ll > 2.0 * expected && ll < 2.02 * expected, "{name} {ll}");
            // LL128 adds a flag to 120 bytes; the last line of a message may have fewer.
            let ll128 = carried(ring, Encoding::Ll128, &name) / expected;
            assert!(ll128 > 128.0 / 120.0 && ll128 < 1.02 * 128.0 / 120.0, "{name} {ll128}");
        }
    }
    assert_eq!(carried(ring, slots, "plx0>numa0 pcie"), 0.0);
}

/// Four nodes, two of them on a leaf switch, or on one for each adapter.
pub(super) fn with_spine(uplinks: usize, rails: bool) -> Topology {
    let mut topology = preset("dgx-h100").unwrap().with_nodes(4);
    let spine = Spine { link: "ib".into(), nodes_per_leaf: 2, uplinks, rails };
    topology.fabric.as_mut().unwrap().spine = Some(spine);
    topology
}

#[test]
fn an_oversubscribed_spine_is_what_an_all_to_all_waits_for() {
    let run = |topology: &Topology, algorithm| {
        let case = Case::on(topology, Kind::AllToAll, 32, 64 << 20);
        case.run(algorithm, Encoding::Slots)
    };
    let direct = |topology: &Topology| run(topology, Algorithm::Direct);
    let plain = direct(&preset("dgx-h100 x 4").unwrap());
    // As many links up as there are adapters: nothing but the spine's latency is added.
    let full = direct(&with_spine(16, false));
    assert!((full.time_ns / plain.time_ns - 1.0).abs() < 0.05, "{}", full.time_ns / plain.time_ns);
    // A quarter of them: half of what 16 ranks send crosses four links.
    let scarce = direct(&with_spine(4, false));
    let crossing = 16 * (64 << 20) / 2;
    assert_eq!(link_bytes(&scarce, "pod0/leaf0>spine ib"), crossing);
    let least = crossing as f64 / (4.0 * 50.0 * 4096.0 / 4162.0);
    assert!((1.0..1.25).contains(&(scarce.time_ns / least)), "{}", scarce.time_ns / least);
    assert!(scarce.time_ns > 2.0 * full.time_ns);
    // On rails the hierarchical one goes from pod to pod only, along its own rail.
    let inner = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);
    let spine = |prediction: &Prediction| -> u64 {
        (0..8).map(|leaf| link_bytes(prediction, &format!("pod0/leaf{leaf}>spine ib"))).sum()
    };
    let rails = with_spine(2, true);
    let (flat, along) = (spine(&direct(&rails)), spine(&run(&rails, inner)));
    // Of 16 ranks each sends half of its data to the other pod; flat, also 7 of 8 parts of a
    // quarter to the other node of its own.
    assert_eq!((flat, along), (crossing + 16 * (64 << 20) / 32 * 7, crossing));
}

#[test]
fn a_switch_that_reduces_carries_each_byte_once() {
    let bytes = 512 << 20;
    let case = || Case::new("dgx-h100", Kind::AllReduce, 8, bytes);
    let (push, windows) = (Algorithm::TwoShotPush, Encoding::Windows);
    let (plain, switched) =
        (case().run(push, windows), case().with(|o| o.in_network = true).run(push, windows));
    let relative =
        |prediction: &Prediction, name| link_bytes(prediction, name) as f64 / bytes as f64;
    // 7/8 are read by others and 7/8 written to others. The switch reads all of it once, the own
    // part among it, and an eighth is written to it.
    assert!((relative(&plain, "gpu0>nvswitch nvlink") - 14.0 / 8.0).abs() < 1e-3);
    assert!((relative(&switched, "gpu0>nvswitch nvlink") - 9.0 / 8.0).abs() < 1e-3);
    assert!((relative(&switched, "nvswitch>gpu0 nvlink") - 9.0 / 8.0).abs() < 1e-3);
    assert!(switched.time_ns < 0.77 * plain.time_ns, "{} {}", switched.time_ns, plain.time_ns);
    // What a schedule asks of a switch it does in any case.
    for in_network in [false, true] {
        let asked =
            case().with(|o| o.in_network = in_network).run(Algorithm::Nvls, Encoding::Windows);
        assert_eq!(asked.time_ns, switched.time_ns);
    }
    // Through slots as well: what one instruction reads of several peers comes as one.
    let two_shot = |in_network| {
        case().with(|o| o.in_network = in_network).run(Algorithm::TwoShot, Encoding::Slots)
    };
    assert!((relative(&two_shot(true), "nvswitch>gpu0 nvlink") - 1.0).abs() < 1e-3);
    assert!((relative(&two_shot(false), "nvswitch>gpu0 nvlink") - 14.0 / 8.0).abs() < 1e-3);
    // A ring has nothing that a switch could reduce.
    let ring = |in_network| {
        case().with(|o| o.in_network = in_network).run(Algorithm::Ring, Encoding::Slots).time_ns
    };
    assert_eq!(ring(true), ring(false));
}

#[test]
fn one_rank_alone_copies_to_itself() {
    for in_network in [false, true] {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::SendRecv) {
            let case = Case::new("dgx-h100", kind, 1, 1 << 20).with(|o| o.in_network = in_network);
            let least = case.network.device(0).launch_ns;
            for (entry, prediction) in every_entry(&case) {
                let known = prediction.links.iter().all(|link| link.name == "gpu0>memory");
                assert!(known && prediction.time_ns >= least, "{entry:?} {:?}", prediction.links);
            }
        }
    }
}
