//! What is not simulated one by one comes near to what it stands for: rounds, channels, ranks.

use super::links::with_spine;
use super::*;
use crate::algorithms::{Inner, Outer};

const HIERARCHICAL_RING: Algorithm = Algorithm::Hierarchical(Inner::Direct, Outer::Ring);
const RING_PER_RAIL: Algorithm = Algorithm::Hierarchical(Inner::Ring, Outer::Rails);
const HIERARCHICAL_DIRECT: Algorithm = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);

#[test]
fn rounds_that_are_left_out_are_as_long_and_as_full_as_they_would_have_been() {
    for (topology, ranks) in [("dgx-h100", 8), ("dgx-a100 x 2", 12), ("host", 4)] {
        for kind in [Kind::AllReduce, Kind::AllGather, Kind::Broadcast, Kind::AllToAll] {
            let case = Case::new(topology, kind, ranks, 192 << 20);
            let full = Case::new(topology, kind, ranks, 192 << 20).with(|o| o.extrapolate = false);
            for (entry, short) in every_entry(&case) {
                let long = full.entry(entry).unwrap();
                assert_eq!(long.simulated_rounds, long.rounds);
                let ratio = short.time_ns / long.time_ns;
                assert!((ratio - 1.0).abs() < 0.02, "{topology} {entry:?}: {ratio}");
                for link in &long.links {
                    let ratio = link_bytes(&short, &link.name) as f64 / link.bytes as f64;
                    assert!((ratio - 1.0).abs() < 0.02, "{topology} {entry:?} {link:?}: {ratio}");
                }
            }
        }
    }
}

#[test]
fn bundles_come_near_to_all_channels_one_by_one() {
    for (algorithm, encoding) in [
        (Algorithm::Ring, Encoding::Slots),
        (Algorithm::TwoShot, Encoding::Slots),
        (Algorithm::TwoShotPush, Encoding::Windows),
    ] {
        let case = || Case::new("dgx-h100", Kind::AllReduce, 8, 256 << 20);
        let bundled = case().run(algorithm, encoding).time_ns;
        let apart = case().with(|o| o.bundles = Some(usize::MAX)).run(algorithm, encoding).time_ns;
        assert!((bundled / apart - 1.0).abs() < 0.05, "{algorithm}: {bundled} {apart}");
    }
}

#[test]
fn one_node_stands_for_all_where_ranks_are_alike() {
    for nodes in [2, 3, 5] {
        let topology = preset("dgx-h100").unwrap().with_nodes(nodes);
        let ranks = 8 * nodes;
        for (kind, algorithm, encoding) in [
            (Kind::AllReduce, Algorithm::Ring, Encoding::Slots),
            (Kind::AllReduce, Algorithm::Ring, Encoding::Ll),
            (Kind::ReduceScatter, Algorithm::Ring, Encoding::Slots),
            (Kind::AllGather, Algorithm::Ring, Encoding::Slots),
            (Kind::AllGather, Algorithm::Direct, Encoding::Slots),
            (Kind::Barrier, Algorithm::Dissemination, Encoding::Ll),
            (Kind::AllReduce, HIERARCHICAL_RING, Encoding::Slots),
            (Kind::AllReduce, HIERARCHICAL_RING, Encoding::Windows),
            (Kind::AllGather, HIERARCHICAL_RING, Encoding::Slots),
            (Kind::AllToAll, HIERARCHICAL_DIRECT, Encoding::Slots),
        ] {
            let case = |fold| {
                let case = Case::on(&topology, kind, ranks, ranks << 20);
                case.with(|options| options.fold = fold).run(algorithm, encoding)
            };
            let (folded, all) = (case(Fold::Always), case(Fold::Never));
            assert!(
                matches!(folded.statement, Statement::Folded { ranks: 8, .. }),
                "{:?}",
                folded.statement
            );
            let ratio = folded.time_ns / all.time_ns;
            assert!((ratio - 1.0).abs() < 0.01, "{kind} {algorithm} {encoding} {nodes}: {ratio}");
            assert!(folded.events * nodes as u64 <= all.events + all.events / 8);
        }
    }
}

/// Every second node is passed backwards, so that two stand for all.
#[test]
fn two_nodes_stand_for_all_of_rings_per_rail() {
    let topology = preset("dgx-h100").unwrap().with_nodes(6);
    for kind in [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter] {
        let case = |fold| {
            let case = Case::on(&topology, kind, 48, 48 << 20);
            case.with(|options| options.fold = fold).run(RING_PER_RAIL, Encoding::Slots)
        };
        let (folded, all) = (case(Fold::Always), case(Fold::Never));
        let is_folded = matches!(folded.statement, Statement::Folded { ranks: 16, .. });
        assert!(is_folded, "{kind}: {:?}", folded.statement);
        let ratio = folded.time_ns / all.time_ns;
        assert!((ratio - 1.0).abs() < 0.01, "{kind}: {ratio}");
        assert_eq!(3 * folded.events, all.events, "{kind}");
    }
}

/// Nodes that are not alike when a distance is added are where their bits are turned over.
#[test]
fn one_node_stands_for_all_of_a_hypercube() {
    let topology = preset("dgx-h100").unwrap().with_nodes(4);
    for algorithm in [
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::Hierarchical(Inner::Direct, Outer::Doubling),
        Algorithm::Hierarchical(Inner::Ring, Outer::Doubling),
    ] {
        let case = |fold| {
            let case = Case::on(&topology, Kind::AllReduce, 32, 32 << 20);
            case.with(|options| options.fold = fold).run(algorithm, Encoding::Slots)
        };
        let (folded, all) = (case(Fold::Always), case(Fold::Never));
        let is_folded = matches!(folded.statement, Statement::Folded { ranks: 8, .. });
        assert!(is_folded, "{algorithm}: {:?}", folded.statement);
        let ratio = folded.time_ns / all.time_ns;
        assert!((ratio - 1.0).abs() < 0.01, "{algorithm}: {ratio}");
    }
}

/// What is said of hypercubes without looking is what comparing all ranks finds.
#[test]
fn ranks_that_are_said_to_be_a_hypercube_are() {
    let mut said = 0;
    for nodes in [2, 4, 8] {
        let topology = preset("dgx-h100").unwrap().with_nodes(nodes);
        for kind in [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter] {
            let case = Case::on(&topology, kind, 8 * nodes, 1 << 20);
            let case = case.with(|options| options.fold = Fold::Always);
            for (entry, prediction) in every_entry(&case) {
                if entry.cube(8 * nodes, case.placement()).is_none() {
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
                let is_folded = |found: &Prediction| {
                    matches!(found.statement, Statement::Folded { ranks: 8, .. })
                };
                assert!(is_folded(&prediction), "{entry:?} {:?}", prediction.statement);
                assert!(is_folded(&compared), "{entry:?} {:?}", compared.statement);
                assert_eq!(prediction.time_ns, compared.time_ns, "{entry:?}");
            }
        }
    }
    assert!(said >= 3 * 8, "{said}");
}

#[test]
fn one_pod_stands_for_all() {
    for rails in [false, true] {
        let topology = with_spine(3, rails);
        let case = |fold| {
            let case = Case::on(&topology, Kind::AllGather, 32, 32 << 20);
            case.with(|o| o.fold = fold).run(Algorithm::Ring, Encoding::Slots)
        };
        let (folded, all) = (case(Fold::Always), case(Fold::Never));
        assert!(matches!(folded.statement, Statement::Folded { ranks: 16, .. }), "{folded:?}");
        assert!((folded.time_ns / all.time_ns - 1.0).abs() < 0.01, "{rails}");
    }
}

#[test]
fn programs_that_are_not_made_alike_are_compared() {
    let case = Case::new("ethernet-pair", Kind::AllReduce, 2, 1 << 20);
    let case = case.with(|options| options.fold = Fold::Always);
    // A one-shot folds by rank, so that the second sees another order, which costs nothing.
    let statement = case.run(Algorithm::OneShot, Encoding::Slots).statement;
    assert!(matches!(statement, Statement::Folded { ranks: 1, .. }), "{statement:?}");
    let statement = case.run(Algorithm::Chain, Encoding::Slots).statement;
    let Statement::NotFolded { why } = &statement else { panic!("{statement:?}") };
    assert!(why.contains("rank 1 does not do what rank 0 does"), "{why}");
    let case = Case::new("dgx-h100 x 2", Kind::AllReduce, 16, 1 << 20);
    let entry =
        find(Kind::AllReduce, Algorithm::Hierarchical(Inner::Ring, Outer::Ring), Encoding::Slots);
    let schedule = entry.unwrap().schedule(case.collective, case.placement(), Order::Any, SLOTS);
    let schedule = schedule.unwrap();
    let options = Options { fold: Fold::Always, ..case.options.clone() };
    let layout = case.layout(schedule.input, schedule.output);
    let subject = Subject::schedule(&schedule).unwrap();
    let statement = simulate(&subject, &layout, &case.network, &options).unwrap().statement;
    let Statement::Folded { why, .. } = &statement else { panic!("{statement:?}") };
    assert!(why.contains("all 16 ranks were compared"), "{why}");
}

#[test]
fn a_thousand_ranks_are_simulated_one_by_one() {
    let topology = preset("dgx-h100").unwrap().with_nodes(128);
    let case = Case::on(&topology, Kind::AllReduce, 1024, 64 << 20);
    let case = case.with(|options| options.bundles = Some(1));
    let prediction = case.run(Algorithm::Ring, Encoding::Slots);
    assert_eq!(prediction.statement, Statement::RankByRank);
    assert!(prediction.events >= 1024 * 2 * 1023, "{}", prediction.events);
    let folded = case.with(|options| options.fold = Fold::Always);
    let ratio = folded.run(Algorithm::Ring, Encoding::Slots).time_ns / prediction.time_ns;
    assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
}

#[test]
fn sixty_five_thousand_ranks_are_simulated_where_they_are_alike() {
    let topology = preset("dgx-h100").unwrap().with_nodes(8192);
    let case = Case::on(&topology, Kind::AllReduce, 65_536, 1 << 30);
    let prediction = case.run(Algorithm::Ring, Encoding::Slots);
    assert!(matches!(prediction.statement, Statement::Folded { ranks: 8, .. }));
    assert!(prediction.events >= 8 * 2 * 65_535, "{}", prediction.events);
    let exchange = Case::on(&topology, Kind::AllToAll, 65_536, 1 << 30);
    let prediction = exchange.run(Algorithm::Pairwise, Encoding::Slots);
    assert!(matches!(prediction.statement, Statement::Folded { ranks: 8, .. }));
    // Nodes of a hypercube turn into each other by their bits.
    let reduce = Case::on(&topology, Kind::AllReduce, 65_536, 1 << 20);
    let doubling = Algorithm::Hierarchical(Inner::Direct, Outer::Doubling);
    for algorithm in [Algorithm::RecursiveDoubling, doubling] {
        let prediction = reduce.run(algorithm, Encoding::Slots);
        assert!(matches!(prediction.statement, Statement::Folded { ranks: 8, .. }));
    }
    let gather = Case::on(&topology, Kind::AllGather, 65_536, 1 << 30);
    let entry = find(Kind::AllGather, Algorithm::HalvingDoubling, Encoding::Slots).unwrap();
    let error = gather.with(|options| options.fold = Fold::Never).entry(entry).unwrap_err();
    assert!(matches!(error, SimulationError::TooLarge { .. }), "{error}");
}

/// What is too much is known before anything is simulated.
#[test]
fn sixty_five_thousand_ranks_are_refused_where_they_are_too_much() {
    let topology = preset("dgx-h100").unwrap().with_nodes(8192);
    let case = Case::on(&topology, Kind::AllReduce, 65_536, 1 << 20);
    let checked = |algorithm, fold| {
        let entry = find(Kind::AllReduce, algorithm, Encoding::Slots).unwrap();
        let (collective, placement) = (case.collective, case.placement());
        let subject = Subject::entry(entry, collective, placement, Order::Any, SLOTS).unwrap();
        subject.check_size(&case.network, fold)
    };
    let trees = Algorithm::Hierarchical(Inner::Direct, Outer::Tree);
    let grid = Algorithm::Hierarchical(Inner::Direct, Outer::Grid);
    for algorithm in [Algorithm::Tree, trees, grid, Algorithm::MultiRing, RING_PER_RAIL] {
        assert_eq!(checked(algorithm, Fold::Auto), Ok(()), "{algorithm}");
    }
    let refused = checked(grid, Fold::Never).unwrap_err();
    assert!(matches!(refused, SimulationError::TooLarge { .. }), "{refused}");
}
