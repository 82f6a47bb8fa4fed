//! What holds for every call.

use super::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_call_is_faster_than_its_links_and_its_latency(
        which in 0usize..256, ranks in 2usize..17, log in 6u32..28, nodes in 1usize..3,
    ) {
        let entries: Vec<&Entry> =
            catalogue().filter(|entry| entry.kind != Kind::SendRecv).collect();
        let entry = entries[which % entries.len()];
        let ranks = ranks.min(8 * nodes);
        let topology = preset("dgx-a100").unwrap().with_nodes(nodes);
        let case = Case::on(&topology, entry.kind, ranks, 1 << log);
        let Ok(prediction) = case.entry(entry) else { return Ok(()) };
        let device = case.network.device(0);
        for link in &prediction.links {
            prop_assert!(link.utilisation <= 1.0 + 1e-9);
        }
        // Every kind needs one message at least, and a launch.
        let latency = case.network.route(0, 1).latency_ns;
        prop_assert!(prediction.time_ns >= device.with_hot_costs().launch_ns + latency, "{}", prediction.time_ns);
        // Whoever gets a result out of other ranks' data needs a chunk of it over one link.
        if matches!(entry.kind, Kind::AllReduce | Kind::AllGather) {
            let part = (case.bytes / 4 / ranks * 4 * (ranks - 1)) as f64;
            prop_assert!(prediction.time_ns >= part / 240.0, "{}", prediction.time_ns);
        }
    }

    #[test]
    fn more_bytes_take_no_less_time(
        which in 0usize..256, ranks in 2usize..9, log in 4u32..26, topology in 0usize..3,
    ) {
        let entries: Vec<&Entry> =
            catalogue().filter(|entry| entry.kind != Kind::SendRecv).collect();
        let entry = entries[which % entries.len()];
        let topology = preset(["dgx-h100", "pcie-box", "host"][topology]).unwrap();
        let time = |bytes: usize| {
            let case = Case::on(&topology, entry.kind, ranks, bytes);
            case.entry(entry).map(|prediction| prediction.time_ns)
        };
        let (one, two) = match (time(1 << log), time(2 << log)) {
            (Ok(one), Ok(two)) => (one, two),
            (Err(SimulationError::Unavailable(_)), _) => return Ok(()),
            (one, two) => panic!("{entry:?}: {one:?} {two:?}"),
        };
        prop_assert!(two >= one * 0.999, "{entry:?} {ranks} {log}: {one} {two}");
    }
}
