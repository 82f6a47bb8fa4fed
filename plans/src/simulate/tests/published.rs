//! What others have published, and ceilings that follow from links alone.

use super::*;
use crate::algorithms::{Inner, Outer};

#[test]
fn published_bandwidths_of_rings_are_met_within_ten_percent() {
    for (topology, low, high) in
        [("dgx-h100", 365.0, 370.0), ("dgx-h200", 365.0, 370.0), ("dgx-a100", 230.0, 250.0)]
    {
        for bytes in [1 << 30, 8 << 30] {
            let case = Case::new(topology, Kind::AllReduce, 8, bytes);
            let busbw = case.busbw(&case.run(Algorithm::Ring, Encoding::Slots));
            assert!(busbw > low * 0.9 && busbw < high * 1.1, "{topology} {bytes}: {busbw}");
        }
    }
}

/// Inside each GPU moves 2 * 7/8 of the size, of which the bus bandwidth counts 2 * 15/16; across,
/// an adapter moves an eighth, which takes half as long. So only whoever lets adapters wait, or
/// waits for them, stays below.
#[test]
fn hierarchical_all_reduces_over_two_nodes_come_near_their_ceiling() {
    let ceiling = 360.0 * 15.0 / 14.0;
    for (inner, outer, least) in [
        (Inner::Ring, Outer::Ring, 0.97),
        (Inner::Ring, Outer::Direct, 0.97),
        (Inner::Ring, Outer::Doubling, 0.97),
        (Inner::Direct, Outer::Ring, 0.85),
        (Inner::Direct, Outer::Direct, 0.85),
        (Inner::Direct, Outer::Doubling, 0.85),
    ] {
        let case = Case::new("dgx-h100 x 2", Kind::AllReduce, 16, 4 << 30);
        let algorithm = Algorithm::Hierarchical(inner, outer);
        let busbw = case.busbw(&case.run(algorithm, Encoding::Slots));
        let part = busbw / ceiling;
        assert!((least..=1.0).contains(&part), "{algorithm}: {busbw} of {ceiling}");
    }
}

/// NVIDIA/nccl #1455, algorithm bandwidth of NVLink SHARP; nccl-tests #212 and #272 for 8.
#[test]
fn published_bandwidths_of_a_switch_that_reduces_are_met_within_three_percent() {
    let bytes = 4u64 << 30;
    for (ranks, published) in [(5, 258.0), (6, 265.0), (7, 270.0), (8, 273.0)] {
        let case = Case::new("dgx-h100", Kind::AllReduce, ranks, bytes as usize);
        let case = case.with(|options| options.in_network = true);
        let time_ns = case.run(Algorithm::TwoShotPush, Encoding::Windows).time_ns;
        let ratio = bytes as f64 / time_ns / published;
        assert!((ratio - 1.0).abs() < 0.03, "{ranks} GPUs: {ratio}");
    }
}
