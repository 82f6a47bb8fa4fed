//! Ranks that stand for the others of their node.

use super::links::with_spine;
use super::*;
use crate::algorithms::{Inner, Outer};
use crate::schedule::{Instruction, Operand, Rail};
use crate::topology::{Connection, Part, Role};

const DIRECT_TREE: Algorithm = Algorithm::Hierarchical(Inner::Direct, Outer::Tree);
const RING_TREE: Algorithm = Algorithm::Hierarchical(Inner::Ring, Outer::Tree);

/// Ranks that store to all others of their node at once are served in the order of their numbers,
/// which gets them out of step. Those that are folded stay in step.
const NEAR: f64 = 0.06;

/// Nodes, ranks of a node, and how many of them stand for it.
fn topologies() -> [(Topology, usize, usize); 7] {
    let nodes = |name: &str, nodes| preset(name).unwrap().with_nodes(nodes);
    [
        (nodes("dgx-h100", 2), 8, 1),
        (nodes("dgx-h100", 5), 8, 1),
        (nodes("dgx-a100", 8), 4, 1),
        (nodes("mi300x", 3), 8, 1),
        // Its sockets turn into each other; four GPUs share an adapter.
        (nodes("pcie-box", 4), 8, 4),
        (with_spine(3, true), 8, 1),
        (nodes("gb200-nvl72", 3), 12, 1),
    ]
}

fn case_on(topology: &Topology, per_node: usize, kind: Kind, bytes: usize, fold: Fold) -> Case {
    let ranks = topology.nodes * per_node;
    let case = Case::on(topology, kind, ranks, bytes);
    let network = Network::new(topology, ranks, Some(per_node)).unwrap();
    Case { network, ..case }.with(|options| options.fold = fold)
}

fn ranks_of(prediction: &Prediction) -> Option<usize> {
    match prediction.statement {
        Statement::Folded { ranks, .. } => Some(ranks),
        _ => None,
    }
}

/// Trees are over nodes, so nodes are not alike.
#[test]
fn a_place_stands_for_all_of_its_node_in_trees() {
    for (topology, per_node, places) in topologies() {
        for bytes in [8 << 10, 3 << 20, 192 << 20] {
            for (algorithm, encoding) in [
                (DIRECT_TREE, Encoding::Ll),
                (DIRECT_TREE, Encoding::Slots),
                (DIRECT_TREE, Encoding::Windows),
                (RING_TREE, Encoding::Ll),
                (RING_TREE, Encoding::Slots),
            ] {
                // Large LL calls have very many rounds.
                if encoding == Encoding::Ll && bytes > 4 << 20 {
                    continue;
                }
                let case = |fold| case_on(&topology, per_node, Kind::AllReduce, bytes, fold);
                let folded = case(Fold::Inside).run(algorithm, encoding);
                let all = case(Fold::Never).run(algorithm, encoding);
                let simulated = topology.nodes * places;
                // Two nodes are the same seen from either.
                let expected = [simulated, if topology.nodes == 2 { places } else { simulated }];
                let name = format!("{} {algorithm} {encoding} {bytes}", topology.name);
                assert!(
                    ranks_of(&folded).is_some_and(|ranks| expected.contains(&ranks)),
                    "{name}: {:?}",
                    folded.statement
                );
                let ratio = folded.time_ns / all.time_ns;
                assert!((ratio - 1.0).abs() < NEAR, "{name}: {ratio}");
                assert!(folded.events < all.events, "{name}");
            }
        }
    }
}

/// What is said of them without looking is what comparing all ranks finds.
#[test]
fn ranks_that_are_said_to_turn_inside_of_nodes_do() {
    let mut said = 0;
    for (mut topology, per_node, places) in topologies() {
        topology.fabric.as_mut().unwrap().reduces =
            topology.fabric.as_ref().unwrap().spine.is_none();
        let case = case_on(&topology, per_node, Kind::AllReduce, 1 << 20, Fold::Inside);
        for (entry, prediction) in every_entry(&case) {
            if entry.inside(case.placement()).is_none() {
                continue;
            }
            said += 1;
            let order = Order::Any;
            let schedule = entry.schedule(case.collective, case.placement(), order, SLOTS);
            let schedule = schedule.unwrap();
            let layout = case.layout(schedule.input, schedule.output);
            let subject = Subject::schedule(&schedule).unwrap();
            let mut options = case.options.clone();
            if entry.encoding.has_flags() {
                options.tile_bytes = options.tile_bytes.min(LL_TILE_BYTES);
            }
            let compared = simulate(&subject, &layout, &case.network, &options).unwrap();
            let name = format!("{} {entry:?}", topology.name);
            let ranks = ranks_of(&prediction);
            assert_eq!(ranks, ranks_of(&compared), "{name} {:?}", compared.statement);
            assert!(ranks.is_some_and(|ranks| ranks <= topology.nodes * places), "{name}");
            assert_eq!(prediction.time_ns, compared.time_ns, "{name}");
            let all = case_on(&topology, per_node, Kind::AllReduce, 1 << 20, Fold::Never);
            let ratio = prediction.time_ns / all.entry(entry).unwrap().time_ns;
            assert!((ratio - 1.0).abs() < NEAR, "{name}: {ratio}");
        }
    }
    assert!(said >= 7 * 8, "{said}");
}

#[test]
fn places_that_are_not_alike_stand_for_themselves() {
    let plain = preset("dgx-h100").unwrap().with_nodes(4);
    let case = |topology: &Topology| case_on(topology, 8, Kind::AllReduce, 1 << 20, Fold::Inside);
    let refused = |case: Case, algorithm| {
        let statement = case.run(algorithm, Encoding::Slots).statement;
        assert!(matches!(statement, Statement::NotFolded { .. }), "{statement:?}");
    };
    assert_eq!(ranks_of(&case(&plain).run(DIRECT_TREE, Encoding::Slots)), Some(4));
    // All adapters of a leaf switch share its links to the spine.
    refused(case(&with_spine(3, false)), DIRECT_TREE);
    // One GPU's links are slower than the others'.
    let mut uneven = plain.clone();
    let of_gpu = |one: &&mut Connection| one.between[0] == "gpu5";
    let link = uneven.connections.iter_mut().find(of_gpu).unwrap();
    link.link = "pcie".into();
    refused(case(&uneven), DIRECT_TREE);
    // A tree over all ranks has each of them at another place.
    refused(case(&plain), Algorithm::Tree);
    // A ring per rail takes a node's rings in one order on all of its ranks.
    let rails = Algorithm::Hierarchical(Inner::Ring, Outer::Rails);
    assert_eq!(ranks_of(&case(&plain).run(rails, Encoding::Slots)), Some(16));
}

/// One rank of a node does something else than the others.
#[test]
fn a_schedule_that_is_not_alike_inside_of_nodes_is_not_folded_so() {
    let topology = preset("dgx-h100").unwrap().with_nodes(4);
    let case = case_on(&topology, 8, Kind::AllReduce, 1 << 20, Fold::Inside);
    let entry = find(Kind::AllReduce, DIRECT_TREE, Encoding::Slots).unwrap();
    let mut schedule =
        entry.schedule(case.collective, case.placement(), Order::Any, SLOTS).unwrap();
    let layout = case.layout(schedule.input, schedule.output);
    let statement = |schedule: &Schedule| {
        let subject = Subject::schedule(schedule).unwrap();
        simulate(&subject, &layout, &case.network, &case.options).unwrap().statement
    };
    let folded = statement(&schedule);
    assert!(matches!(folded, Statement::Folded { ranks: 4, .. }), "{folded:?}");
    let copies = |one: &Instruction| matches!(one, Instruction::ReduceCopy { .. });
    let again = schedule.lists[13].iter().find(|one| copies(one)).unwrap().clone();
    let Instruction::ReduceCopy { sources, tree, finish, .. } = again else { unreachable!() };
    let destinations = vec![Operand::Output(0)];
    let more = Instruction::ReduceCopy { sources, destinations, tree, finish };
    schedule.lists[13].push(more);
    let folded = statement(&schedule);
    assert!(matches!(folded, Statement::NotFolded { .. }), "{folded:?}");
}

/// Rails of half of a node are not those that places turn into each other.
#[test]
fn rails_that_are_not_those_of_nodes_do_not_turn() {
    let mut topology = preset("dgx-h100").unwrap().with_nodes(2);
    topology.fabric.as_mut().unwrap().reduces = true;
    let case = case_on(&topology, 8, Kind::AllReduce, 1 << 20, Fold::Inside);
    let collnet = Algorithm::Hierarchical(Inner::Direct, Outer::CollNet);
    let entry = find(Kind::AllReduce, collnet, Encoding::Slots).unwrap();
    for (local, ranks) in [(8, Some(1)), (4, Some(8))] {
        let placement = Placement::uniform(local);
        let schedule = entry.schedule(case.collective, placement, Order::Any, SLOTS).unwrap();
        let uses = |one: &Instruction| {
            one.operands()
                .any(|of| matches!(of, Operand::Reduced { rail: Rail(by), .. } if by == local))
        };
        assert!(schedule.lists[0].iter().any(uses));
        let subject = Subject::schedule(&schedule).unwrap();
        let layout = case.layout(schedule.input, schedule.output);
        let prediction = simulate(&subject, &layout, &case.network, &case.options).unwrap();
        assert_eq!(ranks_of(&prediction), ranks, "{:?}", prediction.statement);
    }
}

/// Nodes of so many GPUs at a switch, with an adapter each.
fn wide(nodes: usize, gpus: usize) -> Topology {
    let mut topology = preset("dgx-h100").unwrap().with_nodes(nodes);
    let of_one = |part: &Part| part.role == Role::Switch;
    topology.parts.retain(of_one);
    topology.connections.clear();
    for gpu in 0..gpus {
        let part = |name: &str, role, kind: Option<&str>| Part {
            name: format!("{name}{gpu}"),
            role,
            kind: kind.map(str::to_owned),
            reduces: false,
            reduce_efficiency: 1.0,
        };
        topology.parts.push(part("gpu", Role::Device, Some("gpu")));
        topology.parts.push(part("nic", Role::Nic, None));
        for (to, link) in [("nvswitch".to_owned(), "nvlink"), (format!("nic{gpu}"), "pcie")] {
            let (between, link) = ([format!("gpu{gpu}"), to], link.to_owned());
            topology.connections.push(Connection { between, link, count: 1 });
        }
    }
    topology
}

/// Nodes of many ranks: hierarchies are simulated by a few of them, and what is too much is known
/// before anything is simulated.
#[test]
fn nodes_of_very_many_ranks_are_simulated_by_few() {
    for (nodes, gpus) in [(256, 256), (64, 1024)] {
        let topology = wide(nodes, gpus);
        let case = case_on(&topology, gpus, Kind::AllReduce, 64 << 20, Fold::Auto);
        let checked = |algorithm| {
            let entry = find(Kind::AllReduce, algorithm, Encoding::Slots).unwrap();
            let (collective, placement) = (case.collective, case.placement());
            let subject = Subject::entry(entry, collective, placement, Order::Any, SLOTS).unwrap();
            subject.check_size(&case.network, Fold::Auto)
        };
        for outer in [Outer::Ring, Outer::Tree, Outer::Doubling] {
            let algorithm = Algorithm::Hierarchical(Inner::Ring, outer);
            assert_eq!(checked(algorithm), Ok(()), "{algorithm}");
            if outer == Outer::Tree {
                let prediction = case.run(algorithm, Encoding::Slots);
                assert_eq!(ranks_of(&prediction), Some(nodes), "{:?}", prediction.statement);
            }
        }
        // All ranks of a node pass on what all ranks of the world have.
        for algorithm in [Algorithm::Ring, Algorithm::MultiRing] {
            let refused = checked(algorithm).unwrap_err();
            assert!(matches!(refused, SimulationError::TooLarge { .. }), "{refused}");
        }
    }
}
