//! Presets, files, routes.

use super::*;
use proptest::prelude::*;

fn all() -> impl Iterator<Item = Topology> {
    PRESETS.iter().map(|(name, _)| preset(name).unwrap())
}

#[test]
fn every_preset_is_well_formed_and_survives_its_own_text() {
    for topology in all() {
        topology.check().unwrap();
        let text = topology.to_text().unwrap();
        assert_eq!(Topology::parse(&text, "x.toml").unwrap(), topology, "{text}");
    }
}

#[test]
fn every_example_is_well_formed_and_joins_all_of_its_devices() {
    let mut examples = 0;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let topology = Topology::parse(&text, path.to_str().unwrap()).unwrap();
            let ranks = topology.nodes * topology.devices_per_node();
            assert_eq!(Network::new(&topology, ranks, None).unwrap().nodes(), topology.nodes);
            examples += 1;
        }
    }
    assert!(examples >= 3, "{examples}");
}

#[test]
fn presets_have_several_nodes_and_wrong_ones_name_the_right_ones() {
    assert_eq!(preset("dgx-h100 x 3").unwrap().nodes, 3);
    assert_eq!(preset("dgx-h100").unwrap().nodes, 1);
    let error = preset("dgx-h1000").unwrap_err().to_string();
    assert!(error.contains("dgx-h1000") && error.contains("dgx-a100, dgx-h100"), "{error}");
}

#[test]
fn published_bandwidths_are_those_of_the_links() {
    let bandwidth = |name: &str, to: usize| {
        let network = Network::new(&preset(name).unwrap(), to + 1, None).unwrap();
        let route = network.route(0, to);
        let gbps = |link: &LinkId| network.link(*link).gbps;
        route.links.iter().map(gbps).fold(f64::INFINITY, f64::min)
    };
    assert_eq!(bandwidth("dgx-a100", 7), 240.0);
    assert_eq!(bandwidth("dgx-h100", 7), 360.0);
    assert_eq!(bandwidth("gb200-nvl72", 71), 720.0);
    assert!((bandwidth("dgx-h100 x 2", 8) - 49.2).abs() < 0.1);
    assert!((bandwidth("pcie-box", 7) - 28.6).abs() < 0.1);
    assert_eq!(bandwidth("mi300x", 7), 46.2);
}

/// PCIe has more than an Infinity Fabric link, and is not taken.
#[test]
fn devices_with_a_link_of_their_own_use_it() {
    let network = Network::new(&preset("mi300x").unwrap(), 8, None).unwrap();
    for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
        let links = &network.route(from, to).links;
        assert_eq!(links.len(), usize::from(from != to));
        assert!(links.iter().all(|link| network.link(*link).name.contains("infinity-fabric")));
    }
}

#[test]
fn ways_between_nodes_use_the_nearest_adapter() {
    let network = Network::new(&preset("dgx-h100 x 2").unwrap(), 16, None).unwrap();
    let names = |from, to| {
        let route = network.route(from, to);
        route.links.iter().map(|link| network.link(*link).name.clone()).collect::<Vec<_>>()
    };
    let expected = [
        "gpu3>plx1 pcie",
        "plx1>nic3 pcie",
        "nic3>fabric ib",
        "fabric>nic4 ib",
        "nic4>plx2 pcie",
        "plx2>gpu4 pcie",
    ];
    let sorted = |mut names: Vec<String>| {
        names.iter_mut().for_each(|name| *name = name.replace(" pcie", "").replace(" ib", ""));
        names
    };
    let found = sorted(names(3, 12));
    assert_eq!(found, sorted(expected.map(String::from).to_vec()));
    assert!(network.route(3, 12).posted && !network.route(3, 4).posted);
}

/// How many places of a node stand for all of it.
#[test]
fn places_turn_where_devices_and_all_of_their_ways_are_equal() {
    let places = |topology: &Topology, per_node: usize| {
        let ranks = topology.nodes * per_node;
        let network = Network::new(topology, ranks, Some(per_node)).unwrap();
        network.turn().map(|turn| turn.places)
    };
    for (name, per_node, expected) in [
        ("dgx-h100", 8, Some(1)),
        ("dgx-h100 x 2", 8, Some(1)),
        ("dgx-h100 x 2", 3, Some(1)),
        ("gb200-nvl72 x 2", 72, Some(1)),
        ("mi300x x 2", 8, Some(1)),
        ("host", 64, Some(1)),
        // Its sockets turn into each other. Two GPUs share a switch, and four an adapter.
        ("pcie-box", 8, Some(4)),
        ("pcie-box x 2", 8, Some(4)),
        ("mi300x x 2", 6, Some(1)),
        // Half of it has two switches, and an adapter behind one of them.
        ("pcie-box", 4, Some(2)),
        ("pcie-box x 2", 4, None),
        ("ethernet-pair", 1, None),
    ] {
        assert_eq!(places(&preset(name).unwrap(), per_node), expected, "{name} {per_node}");
    }
    let mut uneven = preset("dgx-h100").unwrap();
    let gpu = uneven.parts.iter_mut().find(|part| part.name == "gpu5").unwrap();
    gpu.kind = Some("other".into());
    let other = DeviceKind { launch_ns: 1.0, ..uneven.devices["gpu"].clone() };
    uneven.devices.insert("other".into(), other);
    assert_eq!(places(&uneven, 8), None);
    // A node that is not full has no turn.
    assert_eq!(Network::new(&preset("dgx-h100 x 2").unwrap(), 12, None).unwrap().turn(), None);
}

/// A way turned is the way of those who are turned, link by link.
#[test]
fn links_stand_for_those_that_they_become() {
    let spine = |uplinks| Spine { link: "ib".into(), nodes_per_leaf: 2, uplinks, rails: true };
    let mut with_spine = preset("dgx-h100 x 4").unwrap();
    with_spine.fabric.as_mut().unwrap().spine = Some(spine(3));
    for topology in [with_spine, preset("pcie-box x 2").unwrap(), preset("mi300x x 3").unwrap()] {
        let ranks = topology.nodes * 8;
        let network = Network::new(&topology, ranks, None).unwrap();
        let turn = network.turn().unwrap();
        let per_pod = network.links_per_pod();
        let stands = |links: &[LinkId]| -> Vec<LinkId> {
            let one = |link: &LinkId| link - link % per_pod + turn.links[(link % per_pod) as usize];
            links.iter().map(one).collect()
        };
        let turned = |rank: usize| rank / 8 * 8 + (rank % 8 + turn.places) % 8;
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            let [a, b] = [[from, to], [turned(from), turned(to)]].map(|[a, b]| network.route(a, b));
            assert_eq!(stands(&a.links), stands(&b.links), "{from} {to}");
            assert_eq!((a.latency_ns, a.posted), (b.latency_ns, b.posted));
            let [a, b] = [from, turned(from)].map(|rank| stands(&[network.memory(rank)]));
            assert_eq!(a, b);
        }
    }
}

#[test]
fn ranks_that_do_not_fit_are_an_error() {
    let error = Network::new(&preset("dgx-h100").unwrap(), 9, None).unwrap_err().to_string();
    assert!(error.contains("9 ranks do not fit on dgx-h100"), "{error}");
    Network::new(&preset("dgx-h100 x 2").unwrap(), 9, None).unwrap();
    Network::new(&preset("dgx-h100 x 2").unwrap(), 9, Some(4)).unwrap_err();
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_key_and_remedy() {
    let text = preset("dgx-h100").unwrap().to_text().unwrap();
    let error = |from: &str, to: &str| {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        Topology::parse(&changed, "my.toml").unwrap_err().to_string()
    };
    let unknown = error("link = \"upi\"", "link = \"upx\"");
    assert!(
        unknown.starts_with("my.toml: connections[0].link names the link \"upx\""),
        "{unknown}"
    );
    assert!(unknown.contains("use one of: ib, nvlink, pcie, upi"), "{unknown}");
    let key = error("latency_ns", "latency");
    assert!(key.starts_with("my.toml") && key.contains("unknown field `latency`"), "{key}");
    let part = error("between = [\"numa0\"", "between = [\"numa9\"");
    assert!(part.contains("connections[0].between names the part \"numa9\""), "{part}");
    let figure = error("gbps = 450.0", "gbps = -1.0");
    assert!(figure.contains("links.nvlink.gbps is -1; choose a number above 0"), "{figure}");
    assert!(error("nodes = 1", "nodes = 0").contains("nodes is 0"));
    let figure = error("move_ns = ", "move_ns = -");
    assert!(figure.contains(".move_ns is -"), "{figure}");
    let elsewhere = error("processor = \"gpu\"", "processor = \"gpu\"\nchannels = 24");
    assert!(elsewhere.contains("unknown field `channels`"), "{elsewhere}");
}

#[test]
fn several_nodes_need_a_fabric() {
    let mut topology = preset("host").unwrap();
    topology.nodes = 2;
    let error = topology.check().unwrap_err().to_string();
    assert!(error.contains("fabric is missing, but there are 2 nodes"), "{error}");
}

#[test]
fn devices_that_nothing_joins_are_an_error() {
    let mut topology = preset("host").unwrap();
    topology.connections.pop();
    let error = Network::new(&topology, 64, None).unwrap_err().to_string();
    assert!(error.contains("nothing joins core0 and core63 in host"), "{error}");
}

#[test]
fn the_matrix_says_how_parts_are_joined() {
    let matrix = preset("dgx-h100").unwrap().matrix();
    let relation = |from: &str, to: &str| {
        let at = |name: &str| matrix.names.iter().position(|other| other == name).unwrap();
        matrix.relations[at(from)][at(to)].to_string()
    };
    assert_eq!(relation("gpu0", "gpu7"), "nvlink");
    assert_eq!(relation("gpu0", "gpu0"), "X");
    assert_eq!(relation("gpu0", "nic0"), "PIX");
    assert_eq!(relation("gpu0", "nic2"), "NODE");
    assert_eq!(relation("gpu0", "nic7"), "SYS");
    assert_eq!(matrix.numa[7].as_deref(), Some("numa1"));
}

fn with_spine(nodes: usize, nodes_per_leaf: usize, uplinks: usize, rails: bool) -> Topology {
    let mut topology = preset("dgx-h100").unwrap().with_nodes(nodes);
    let spine = Spine { link: "ib".into(), nodes_per_leaf, uplinks, rails };
    topology.fabric.as_mut().unwrap().spine = Some(spine);
    topology
}

#[test]
fn what_leaves_a_leaf_crosses_its_links_to_the_spine() {
    let over = |rails: bool, from, to| {
        let network = Network::new(&with_spine(4, 2, 4, rails), 32, None).unwrap();
        let route = network.route(from, to);
        let names = route.links.iter().map(|link| network.link_name(*link));
        let names: Vec<String> = names.filter(|name| name.contains("spine")).collect();
        let gbps = route.links.iter().map(|link| network.link(*link).gbps);
        (names, gbps.fold(0.0, f64::max), route.latency_ns)
    };
    let (near, _, near_ns) = over(false, 0, 9);
    assert!(near.is_empty());
    let (far, most, far_ns) = over(false, 0, 17);
    assert_eq!(far, ["pod0/leaf0>spine ib", "pod1/spine>leaf0 ib"]);
    assert!((most - 4.0 * 50.0 * 4096.0 / 4162.0).abs() < 1e-9, "{most}");
    assert_eq!(far_ns - near_ns, 1000.0);
    // By rails only what changes the rail does, though the nodes are neighbours.
    assert!(over(true, 0, 8).0.is_empty());
    assert_eq!(over(true, 0, 9).0, ["pod0/leaf0>spine ib", "pod0/spine>leaf1 ib"]);
    assert_eq!(over(true, 3, 30).0, ["pod0/leaf3>spine ib", "pod1/spine>leaf6 ib"]);
    assert_eq!(over(true, 3, 27).0.len(), 2, "there are no links from pod to pod but the spine's");
}

#[test]
fn a_spine_is_read_from_a_file_and_checked() {
    let topology = with_spine(4, 2, 4, true);
    let text = topology.to_text().unwrap();
    assert!(text.contains("[fabric.spine]"), "{text}");
    assert_eq!(Topology::parse(&text, "x.toml").unwrap(), topology);
    for (from, to, expected) in [
        ("uplinks = 4", "uplinks = 0", "fabric.spine.uplinks is 0; have at least 1"),
        ("nodes_per_leaf = 2", "nodes_per_leaf = 0", "fabric.spine.nodes_per_leaf is 0"),
        ("uplinks = 4", "uplinks = 4\ncolour = 1", "unknown field `colour`"),
    ] {
        let error = Topology::parse(&text.replace(from, to), "x.toml").unwrap_err().to_string();
        assert!(error.contains(expected) && error.starts_with("x.toml: "), "{error}");
    }
    let mut unknown = topology;
    unknown.fabric.as_mut().unwrap().spine.as_mut().unwrap().link = "wire".into();
    let error = unknown.check().unwrap_err().to_string();
    assert!(error.contains("fabric.spine.link names the link \"wire\""), "{error}");
}

proptest! {
    #[test]
    fn links_of_a_route_are_distinct_and_turn_with_the_pods(
        pods in 1usize..4, nodes_per_leaf in 1usize..4, uplinks in 0usize..3, rails: bool,
        per_node in 1usize..9, from in 0usize..64, to in 0usize..64,
    ) {
        let mut topology = preset("dgx-a100").unwrap().with_nodes(pods * nodes_per_leaf);
        // Without uplinks: without a spine, so that every node is alone.
        let per_pod = if uplinks == 0 { per_node } else { per_node * nodes_per_leaf };
        if let (Some(fabric), 1..) = (&mut topology.fabric, uplinks) {
            fabric.spine = Some(Spine { link: "ib".into(), nodes_per_leaf, uplinks, rails });
        }
        let ranks = topology.nodes * per_node;
        let network = Network::new(&topology, ranks, Some(per_node)).unwrap();
        prop_assert_eq!(network.nodes_per_pod() * per_node, per_pod);
        let (from, to) = (from % ranks, to % ranks);
        let route = network.route(from, to);
        let mut links = route.links.clone();
        links.sort_unstable();
        links.dedup();
        prop_assert_eq!(links.len(), route.links.len());
        let turned = network.route((from + per_pod) % ranks, (to + per_pod) % ranks);
        let a_pod = network.links_per_pod();
        let all = a_pod * (ranks / per_pod) as u32;
        let expected: Vec<LinkId> = route.links.iter().map(|link| (link + a_pod) % all).collect();
        prop_assert_eq!(turned.links, expected);
        prop_assert_eq!(turned.latency_ns, route.latency_ns);
    }
}

/// The costs of a GPU's instructions give what was counted for whole calls whose messages are
/// there, interpreted and by kernels of one schedule.
#[test]
fn calls_cost_what_their_instructions_were_counted_to() {
    use crate::algorithms::{Algorithm, Encoding};
    let gpu = preset("dgx-h100").unwrap().devices["gpu"].clone();
    let interpreted = [
        (Algorithm::OneShot, Encoding::Ll, [5.1, 5.2, 5.4], 0),
        (Algorithm::TwoShot, Encoding::Ll, [7.0, 7.6, 8.4], 0),
        // Of 64 KiB, on one channel.
        (Algorithm::TwoShotPush, Encoding::Windows, [8.4, 9.3, 9.2], 64 << 10),
    ];
    let hot = [
        (Algorithm::OneShot, Encoding::Ll, [1.42, 1.44, 1.62], 0),
        (Algorithm::TwoShot, Encoding::Ll, [2.33, 2.38, 2.47], 0),
        (Algorithm::TwoShotPush, Encoding::Windows, [f64::NAN, 3.96, 3.73], 64 << 10),
    ];
    for (gpu, counted, within) in
        [(gpu.clone(), interpreted, 0.08), (gpu.with_hot_costs(), hot, 0.18)]
    {
        for (algorithm, encoding, figures, total_bytes) in counted {
            let counted = [2, 4, 8].into_iter().zip(figures);
            for (ranks, counted_us) in counted.filter(|(_, counted)| !counted.is_nan()) {
                let us = cost_us(&gpu, (algorithm, encoding, ranks), total_bytes);
                let ratio = us / counted_us;
                println!("{algorithm} {ranks}: {us} of {counted_us}");
                let off = (ratio - 1.0).abs();
                assert!(off < within, "{algorithm} {ranks}: {us} of {counted_us}");
            }
        }
    }
}

/// What an all-reduce's instructions cost by a device's figures.
fn cost_us(
    gpu: &DeviceKind,
    (algorithm, encoding, ranks): (
        crate::algorithms::Algorithm,
        crate::algorithms::Encoding,
        usize,
    ),
    total_bytes: usize,
) -> f64 {
    use crate::algorithms::find;
    use crate::collective::{Collective, Kind, Order};
    use crate::schedule::{Instruction, SLOTS};
    let entry = find(Kind::AllReduce, algorithm, encoding).unwrap();
    let (collective, placement) =
        (Collective::new(Kind::AllReduce, ranks), Placement::one_node(ranks));
    let schedule = entry.schedule(collective, placement, Order::Any, SLOTS).unwrap();
    let copies = |one: &Instruction| {
        matches!(one, Instruction::ReduceCopy { sources, destinations, .. }
                    if sources.len() == 1 && destinations.len() == 1)
    };
    let alike = |a: &Instruction, b: &Instruction| {
        let moves = matches!(a, Instruction::ReduceCopy { .. });
        std::mem::discriminant(a) == std::mem::discriminant(b)
            && (!moves || (copies(a) && copies(b)))
    };
    let mut ns = gpu.launch_ns - super::preset::HOPPER_LAUNCH_NS;
    for run in schedule.lists[0].chunk_by(alike) {
        ns += match &run[0] {
            Instruction::ReduceCopy { sources, destinations, .. } => {
                let operands = sources.len() + destinations.len();
                let moved = (operands * total_bytes / ranks) as f64;
                let moves = sources.iter().all(|source| source.raw);
                let data_ns = if moves { moved / gpu.channel_gbps } else { 0.0 };
                gpu.move_ns + gpu.operand_ns * operands as f64 + data_ns
            }
            _ => gpu.instruction_ns,
        };
    }
    ns / 1e3
}
