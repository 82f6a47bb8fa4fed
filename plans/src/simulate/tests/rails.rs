//! Reductions in the fabric's switches.

use super::links::with_spine;
use super::*;
use crate::algorithms::{Inner, Outer};
use crate::schedule::{Instruction, Operand};
use crate::verify::Violation;

const COLLNET: Algorithm = Algorithm::Hierarchical(Inner::Direct, Outer::CollNet);
const BYTES: usize = 256 << 20;

/// The same, with switches between nodes that reduce.
fn reducing(mut topology: Topology) -> Topology {
    topology.fabric.as_mut().unwrap().reduces = true;
    topology
}

fn nodes(nodes: usize) -> Topology {
    reducing(preset("dgx-h100").unwrap().with_nodes(nodes))
}

#[test]
fn each_byte_crosses_each_adapter_once_in_each_direction() {
    let case = Case::on(&nodes(4), Kind::AllReduce, 32, BYTES).with(|o| o.extrapolate = false);
    for (algorithm, encoding) in [
        (COLLNET, Encoding::Slots),
        (COLLNET, Encoding::Windows),
        (Algorithm::Hierarchical(Inner::Ring, Outer::CollNet), Encoding::Slots),
        (Algorithm::Hierarchical(Inner::Chain, Outer::CollNet), Encoding::Slots),
        (Algorithm::Hierarchical(Inner::Nvls, Outer::CollNet), Encoding::Windows),
    ] {
        let prediction = case.run(algorithm, encoding);
        for (node, nic) in [(0, 0), (1, 3), (3, 7)] {
            for way in [format!("nic{nic}>fabric ib"), format!("fabric>nic{nic} ib")] {
                let carried = link_bytes(&prediction, &format!("node{node}/{way}"));
                assert_eq!(carried, BYTES as u64 / 8, "{algorithm} {encoding} {way}");
            }
        }
        // 400 Gb/s less headers.
        let least = BYTES as f64 / 8.0 / 50.0;
        assert!(prediction.time_ns > least, "{algorithm} {encoding} {}", prediction.time_ns);
    }
    // Each chunk is sent to all other nodes where they exchange directly, and received.
    let direct = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);
    let carried = link_bytes(&case.run(direct, Encoding::Slots), "node0/nic0>fabric ib");
    assert_eq!(carried, BYTES as u64 / 8 * 2 * 3 / 4);
}

/// Chains end at other ranks: each rank adds to seven of eight and passes them on, and as much goes
/// back the other way. Around a ring all of it goes to the next rank.
#[test]
fn chains_lead_to_each_rank_and_back() {
    let ring = Algorithm::Hierarchical(Inner::Ring, Outer::CollNet);
    let chain = Algorithm::Hierarchical(Inner::Chain, Outer::CollNet);
    for (algorithm, next, previous) in [(ring, 14, 0), (chain, 7, 7)] {
        let entry = find(Kind::AllReduce, algorithm, Encoding::Slots).unwrap();
        let collective = Collective::new(Kind::AllReduce, 16);
        let placement = Placement::uniform(8);
        let schedule = entry.schedule(collective, placement, Order::Any, SLOTS).unwrap();
        for (rank, list) in schedule.lists.iter().enumerate() {
            let sent = |to: usize| {
                let peer = rank / 8 * 8 + to % 8;
                let is_sent = |operand: &Operand| matches!(operand, Operand::PeerSlot { link, .. } if link.peer == peer);
                list.iter().flat_map(Instruction::operands).filter(is_sent).count()
            };
            // In two slices.
            assert_eq!(sent(rank + 1), 2 * next, "{algorithm} {rank}");
            assert_eq!(sent(rank + 7), 2 * previous, "{algorithm} {rank}");
        }
    }
}

/// Between a leaf switch and the spine goes what the leaf's nodes have together.
#[test]
fn leaf_switches_send_on_what_they_have_reduced() {
    for (rails, leaves) in [(false, 1), (true, 8)] {
        let topology = reducing(with_spine(8, rails));
        let case = Case::on(&topology, Kind::AllReduce, 32, BYTES);
        let prediction = case.with(|o| o.extrapolate = false).run(COLLNET, Encoding::Slots);
        for (pod, leaf) in [(0, 0), (1, leaves - 1)] {
            for way in [format!("leaf{leaf}>spine ib"), format!("spine>leaf{leaf} ib")] {
                let carried = link_bytes(&prediction, &format!("pod{pod}/{way}"));
                assert_eq!(carried, BYTES as u64 / leaves as u64, "{way}");
            }
        }
    }
}

#[test]
fn one_node_stands_for_all_and_few_rounds_for_many() {
    for (topology, ranks) in
        [(nodes(2), 8), (nodes(3), 8), (nodes(8), 8), (reducing(with_spine(4, true)), 16)]
    {
        for encoding in [Encoding::Slots, Encoding::Windows] {
            let all = topology.nodes * 8;
            let case = |fold| {
                let case = Case::on(&topology, Kind::AllReduce, all, BYTES);
                case.with(|options| options.fold = fold)
            };
            let each = case(Fold::Never).run(COLLNET, encoding);
            let folded = case(Fold::Always).run(COLLNET, encoding);
            let is_folded =
                matches!(folded.statement, Statement::Folded { ranks: some, .. } if some == ranks);
            assert!(is_folded, "{:?}", folded.statement);
            let long = case(Fold::Always).with(|o| o.extrapolate = false).run(COLLNET, encoding);
            for other in [&folded, &long] {
                let ratio = other.time_ns / each.time_ns;
                assert!((ratio - 1.0).abs() < 0.02, "{} {encoding}: {ratio}", topology.name);
            }
        }
    }
}

/// What switches take to reduce is left out.
#[test]
fn more_nodes_take_no_longer() {
    let time = |count: usize| {
        let case = Case::on(&nodes(count), Kind::AllReduce, 8 * count, BYTES);
        case.run(COLLNET, Encoding::Slots).time_ns
    };
    assert_eq!(time(2), time(16));
}

#[test]
fn a_fabric_that_does_not_reduce_is_refused() {
    for topology in ["dgx-h100 x 2", "dgx-h100"] {
        let ranks = preset(topology).unwrap().nodes * 8;
        let mut case = Case::new(topology, Kind::AllReduce, ranks, 1 << 20);
        // On one node there is no fabric.
        if ranks == 8 {
            case.network = Network::new(&nodes(1), 8, Some(8)).unwrap();
        }
        let entry = find(Kind::AllReduce, COLLNET, Encoding::Slots).unwrap();
        let placement = Placement::uniform(4);
        let schedule = entry.schedule(case.collective, placement, Order::Any, SLOTS).unwrap();
        let subject = Subject::schedule(&schedule).unwrap();
        let layout = case.layout(schedule.input, schedule.output);
        let error = simulate(&subject, &layout, &case.network, &case.options).unwrap_err();
        assert!(matches!(error, SimulationError::FabricDoesNotReduce { rank: 0, .. }), "{error}");
    }
}

#[test]
fn who_has_not_contributed_is_named() {
    let case = Case::on(&nodes(3), Kind::AllReduce, 24, 1 << 20);
    let entry = find(Kind::AllReduce, COLLNET, Encoding::Slots).unwrap();
    let mut schedule =
        entry.schedule(case.collective, case.placement(), Order::Any, SLOTS).unwrap();
    // Rank 19 keeps to itself what it has reduced; nobody waits for its second contribution.
    for instruction in &mut schedule.lists[19] {
        let Instruction::ReduceCopy { destinations, .. } = instruction else { continue };
        if let Operand::Contribution { .. } = destinations[0] {
            destinations[0] = Operand::Output(3);
        }
    }
    schedule.lists[19].retain(|one| !one.operands().any(|o| matches!(o, Operand::Reduced { .. })));
    let subject = Subject::schedule(&schedule).unwrap();
    let layout = case.layout(schedule.input, schedule.output);
    let error = simulate(&subject, &layout, &case.network, &case.options).unwrap_err();
    let SimulationError::Schedule(Violation::Deadlock(stuck)) = &error else { panic!("{error}") };
    let of_rail: Vec<usize> =
        stuck.iter().filter(|one| one.peer == 19).map(|one| one.rank).collect();
    assert!(of_rail.contains(&3) && of_rail.contains(&11), "{error}");
    let waits = stuck.iter().find(|one| one.rank == 3).unwrap().to_string();
    assert!(waits.ends_with("waits for rank 19: from rail of 8#0"), "{waits}");
}
