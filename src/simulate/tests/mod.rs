//! Bounds, conservation, folding, rounds, deadlocks, and figures that others have published.

use super::*;
use crate::algorithms::{Algorithm, Encoding, Entry, Inner, Outer, catalogue, find};
use crate::collective::{Collective, Kind, Order};
use crate::schedule::{
    Flag, Instruction, Lane, Link, Lowering, Operand, SLOTS, Schedule, Source, lower,
};
use crate::topology::{Placement, Spine, Topology, preset};
use crate::verify::{Violation, verify};
use oxccl_kernels::format as f;
use proptest::prelude::*;

/// A call on a topology.
struct Case {
    network: Network,
    collective: Collective,
    bytes: usize,
    options: Options,
}

impl Case {
    fn new(topology: &str, kind: Kind, ranks: usize, bytes: usize) -> Case {
        Case::on(&preset(topology).unwrap(), kind, ranks, bytes)
    }

    fn on(topology: &Topology, kind: Kind, ranks: usize, bytes: usize) -> Case {
        let network = Network::new(topology, ranks, None).unwrap();
        let device = network.device(0);
        let options = Options {
            channels: device.channels,
            tile_bytes: device.slot_bytes,
            ..Options::default()
        };
        let collective = match kind {
            Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
            kind => Collective::new(kind, ranks),
        };
        Case { network, collective, bytes, options }
    }

    fn with(mut self, change: impl FnOnce(&mut Options)) -> Case {
        change(&mut self.options);
        self
    }

    fn layout(
        &self,
        input: crate::schedule::Chunking,
        output: crate::schedule::Chunking,
    ) -> Layout {
        let whole = matches!(
            self.collective.kind,
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv
        );
        let count = self.bytes / 4 / if whole { 1 } else { self.collective.ranks };
        Layout::even(&self.collective, input, output, count, 16)
    }

    fn entry(&self, entry: &Entry) -> Result<Prediction, SimulationError> {
        let subject = Subject::entry(entry, self.collective, self.placement(), Order::Any, SLOTS)?;
        let (input, output) = subject.chunking();
        let mut options = self.options.clone();
        if entry.encoding.has_flags() {
            options.tile_bytes = options.tile_bytes.min(self.network.device(0).ll_slot_bytes);
        }
        simulate(&subject, &self.layout(input, output), &self.network, &options)
    }

    fn placement(&self) -> Placement {
        Placement::uniform(self.network.per_node().min(self.collective.ranks))
    }

    fn run(&self, algorithm: Algorithm, encoding: Encoding) -> Prediction {
        self.entry(find(self.collective.kind, algorithm, encoding).unwrap()).unwrap()
    }

    fn busbw(&self, prediction: &Prediction) -> f64 {
        let n = self.collective.ranks as f64;
        self.bytes as f64 / prediction.time_ns * 2.0 * (n - 1.0) / n
    }
}

/// A schedule of ranks on one node.
fn schedule_of(kind: Kind, algorithm: Algorithm, encoding: Encoding, ranks: usize) -> Schedule {
    let (collective, placement) = (Collective::new(kind, ranks), Placement::one_node(ranks));
    let entry = find(kind, algorithm, encoding).unwrap();
    entry.schedule(collective, placement, Order::Any, SLOTS).unwrap()
}

fn link_bytes(prediction: &Prediction, name: &str) -> u64 {
    prediction.links.iter().find(|link| link.name == name).map_or(0, |link| link.bytes)
}

/// Every entry that can be simulated, with what it predicts.
fn every_entry(case: &Case) -> Vec<(&'static Entry, Prediction)> {
    // LL128 differs from LL in bytes alone.
    let entries = catalogue()
        .filter(|entry| entry.kind == case.collective.kind && entry.encoding != Encoding::Ll128);
    entries
        .filter_map(|entry| match case.entry(entry) {
            Ok(prediction) => Some((entry, prediction)),
            Err(SimulationError::WindowAcross { .. } | SimulationError::Unavailable(_)) => None,
            Err(other) => panic!("{entry:?}: {other}"),
        })
        .collect()
}

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

/// Inside each GPU moves 2 * 7/8 of the size, of which the bus bandwidth counts 2 * 15/16; across, an adapter moves an eighth, which takes half
/// as long. So only whoever lets adapters wait, or waits for them, stays below.
#[test]
fn hierarchical_all_reduces_over_two_nodes_come_near_their_ceiling() {
    let ceiling = 360.0 * 15.0 / 14.0;
    for (inner, outer, least) in [
        (Inner::Ring, Outer::Ring, 0.98),
        (Inner::Ring, Outer::Direct, 0.98),
        (Inner::Ring, Outer::Doubling, 0.98),
        (Inner::Direct, Outer::Ring, 0.89),
        (Inner::Direct, Outer::Direct, 0.89),
        (Inner::Direct, Outer::Doubling, 0.89),
    ] {
        let case = Case::new("dgx-h100 x 2", Kind::AllReduce, 16, 4 << 30);
        let algorithm = Algorithm::Hierarchical(inner, outer);
        let busbw = case.busbw(&case.run(algorithm, Encoding::Slots));
        let part = busbw / ceiling;
        assert!((least..=1.0).contains(&part), "{algorithm}: {busbw} of {ceiling}");
    }
}

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
        assert!((bundled / apart - 1.0).abs() < 0.03, "{algorithm}: {bundled} {apart}");
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

/// Four nodes, two of them on a leaf switch, or on one for each adapter.
fn with_spine(uplinks: usize, rails: bool) -> Topology {
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
    // Of 16 ranks each sends half of its data to the other pod; flat, also 7 of 8 parts of a quarter to the other node of its own.
    assert_eq!((flat, along), (crossing + 16 * (64 << 20) / 32 * 7, crossing));
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
    // Two ranks that exchange are alike, whatever the algorithm; a one-shot folds by rank, so the second sees another order.
    let statement = case.run(Algorithm::OneShot, Encoding::Slots).statement;
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

#[test]
fn a_switch_that_reduces_carries_each_byte_once() {
    let bytes = 512 << 20;
    let case = || Case::new("dgx-h100", Kind::AllReduce, 8, bytes);
    let (push, windows) = (Algorithm::TwoShotPush, Encoding::Windows);
    let (plain, switched) =
        (case().run(push, windows), case().with(|o| o.in_network = true).run(push, windows));
    let relative =
        |prediction: &Prediction, name| link_bytes(prediction, name) as f64 / bytes as f64;
    // 7/8 are read by others and 7/8 written to others. The switch reads all of it once, the own part among it, and an eighth is written
    // to it.
    assert!((relative(&plain, "gpu0>nvswitch nvlink") - 14.0 / 8.0).abs() < 1e-3);
    assert!((relative(&switched, "gpu0>nvswitch nvlink") - 9.0 / 8.0).abs() < 1e-3);
    assert!((relative(&switched, "nvswitch>gpu0 nvlink") - 9.0 / 8.0).abs() < 1e-3);
    assert!(switched.time_ns < 0.77 * plain.time_ns, "{} {}", switched.time_ns, plain.time_ns);
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
            for (entry, prediction) in every_entry(&case) {
                let known = prediction.links.iter().all(|link| link.name == "gpu0>memory");
                assert!(known && prediction.time_ns >= 3000.0, "{entry:?} {:?}", prediction.links);
            }
        }
    }
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    let link = |peer| Link { peer, lane: Lane::Slots };
    let wait = |peer| Instruction::Wait { flag: Flag::Tail(link(peer)), value: 1 };
    let mut schedule = schedule_of(Kind::AllReduce, Algorithm::Ring, Encoding::Slots, 3);
    // Everybody waits for what nobody has sent yet.
    for (rank, list) in schedule.ranks.iter_mut().enumerate() {
        list.insert(0, wait((rank + 2) % 3));
    }
    let case = Case::new("dgx-h100", Kind::AllReduce, 3, 1 << 20);
    let subject = Subject::schedule(&schedule).unwrap();
    let layout = case.layout(schedule.input, schedule.output);
    let error = simulate(&subject, &layout, &case.network, &case.options).unwrap_err();
    let SimulationError::Schedule(Violation::Deadlock(stuck)) = &error else { panic!("{error}") };
    assert!(stuck.len() == 3 && stuck[0].step == 0, "{stuck:?}");
    let text = error.to_string();
    assert!(text.contains("rank 0, step 0 waits for rank 2: 2.slots.tail is +0, not +1"), "{text}");
}

#[test]
fn an_ll_message_that_never_comes_is_a_deadlock_too() {
    let mut schedule = schedule_of(Kind::AllGather, Algorithm::Direct, Encoding::Ll, 2);
    schedule.ranks[1].clear();
    let case = Case::new("dgx-h100", Kind::AllGather, 2, 1 << 10);
    let subject = Subject::schedule(&schedule).unwrap();
    let layout = case.layout(schedule.input, schedule.output);
    let error = simulate(&subject, &layout, &case.network, &case.options).unwrap_err().to_string();
    assert!(error.contains("deadlock: rank 0, step 3 waits for rank 1: from 1.ll#0"), "{error}");
}

#[test]
fn what_no_executor_takes_is_refused_before() {
    let ranks = 2;
    let bad = Instruction::ReduceCopy {
        sources: vec![Source::plain(Operand::Input(7))],
        destinations: vec![Operand::Output(0)],
        tree: Default::default(),
        finish: false,
    };
    let schedule = Schedule {
        collective: Collective::new(Kind::AllReduce, ranks),
        input: crate::schedule::Chunking::Whole,
        output: crate::schedule::Chunking::Whole,
        slots: SLOTS,
        ranks: vec![vec![bad]; ranks],
    };
    assert!(matches!(Subject::schedule(&schedule), Err(SimulationError::Schedule(_))));
    let case = Case::new("dgx-h100 x 2", Kind::AllReduce, 16, 1 << 20);
    let push = find(Kind::AllReduce, Algorithm::TwoShotPush, Encoding::Windows).unwrap();
    let error = case.entry(push).unwrap_err();
    assert!(matches!(error, SimulationError::WindowAcross { .. }), "{error}");
}

#[test]
fn lengths_channels_and_rounds_are_those_of_the_lowered_program() {
    for (ranks, count, channels, tile) in
        [(3, 1000, 1, 64), (4, 100_000, 3, 4096), (5, 77, 2, 128), (2, 40_000, 4, 1024)]
    {
        let kinds = [Kind::AllReduce, Kind::AllToAll];
        for entry in catalogue().filter(|entry| kinds.contains(&entry.kind)) {
            let (collective, placement) =
                (Collective::new(entry.kind, ranks), Placement::uniform(2));
            let Ok(schedule) = entry.schedule(collective, placement, Order::Any, SLOTS) else {
                continue;
            };
            let layout = Layout::even(&collective, schedule.input, schedule.output, count, 16);
            let verified = verify(schedule.clone(), Order::Any, entry.in_place).unwrap();
            let lowering = Lowering {
                data_type: f::DataType::F32,
                fold: f::Fold::Sum,
                scale: f::Scale::None,
                channels,
                first_connections: 0,
                tile_bytes: tile,
                stream: false,
                virtual_bytes: None,
            };
            let options = Options {
                channels,
                tile_bytes: tile,
                trace: true,
                bundles: Some(64),
                ..Options::default()
            };
            let network = Network::new(&preset("dgx-h100").unwrap(), ranks, None).unwrap();
            let subject = Subject::schedule(&schedule).unwrap();
            let prediction = match simulate(&subject, &layout, &network, &options) {
                Ok(prediction) => prediction,
                Err(SimulationError::SlotTooSmall(too_small)) => {
                    let refused = lower(&verified, 0, &layout, &lowering).unwrap_err();
                    assert_eq!(refused, too_small, "{entry:?}");
                    continue;
                }
                Err(other) => panic!("{entry:?}: {other}"),
            };
            let trace = prediction.trace.unwrap();
            for rank in 0..ranks {
                let program = lower(&verified, rank, &layout, &lowering).unwrap();
                assert_eq!(program.rounds(), prediction.rounds, "{entry:?}");
                compare(&program, &trace, rank);
            }
        }
    }
}

/// Every reduce-copy of a lowered program is in the trace, as long and in the same order.
fn compare(program: &crate::schedule::Program, trace: &Trace, rank: usize) {
    let base = program.header().cast::<u8>();
    // SAFETY: the lowering has just written these tables at these offsets, aligned and within the program.
    let (header, channels, instructions) = unsafe {
        let header = &*program.header();
        let table = |offset: u32| base.add(offset as usize);
        (
            header,
            std::slice::from_raw_parts(
                table(header.channels_offset).cast::<f::ChannelEntry>(),
                header.channels as usize,
            ),
            table(header.instructions_offset).cast::<f::Instruction>(),
        )
    };
    assert_eq!(header.channels as usize, program.channels());
    for (channel, entry) in channels.iter().enumerate() {
        let mut expected = Vec::new();
        for round in 0..entry.rounds {
            for at in 0..entry.instructions {
                // SAFETY: within the channel's instructions.
                let instruction =
                    unsafe { *instructions.add((entry.first_instruction + at) as usize) };
                let moves = instruction.opcode == f::Opcode::ReduceCopy as u8;
                let len_bytes = if moves { instruction.len_bytes } else { 0 };
                let left = len_bytes.saturating_sub(round * entry.tile_bytes);
                expected.push((round, instruction.step as usize, left.min(entry.tile_bytes)));
            }
        }
        let events = trace.events.iter().filter(|e| e.rank == rank && e.channel == channel);
        let mut found: Vec<_> = events.map(|e| (e.round, e.step, e.bytes)).collect();
        // Channels without data are left out.
        if found.is_empty() {
            assert!(expected.iter().all(|(_, _, bytes)| *bytes <= 16), "{expected:?}");
            continue;
        }
        found.sort_unstable();
        assert_eq!(found, expected, "rank {rank} channel {channel}");
    }
}

#[test]
fn the_critical_path_is_as_long_as_the_call() {
    for (topology, ranks) in [("dgx-h100", 8), ("dgx-a100 x 2", 10), ("host", 4)] {
        for bytes in [64, 1 << 20] {
            let case = Case::new(topology, Kind::AllReduce, ranks, bytes).with(|o| o.trace = true);
            for (entry, prediction) in every_entry(&case) {
                let path = prediction.trace.unwrap().critical_path;
                let sum = path.launch_ns + path.steps_ns + path.latency_ns;
                let ratio = sum / prediction.time_ns;
                assert!((ratio - 1.0).abs() < 1e-6, "{topology} {entry:?}: {path:?}");
                let starts: Vec<f64> =
                    path.segments.iter().map(|segment| segment.start_ns).collect();
                assert!(starts.is_sorted(), "{starts:?}");
            }
        }
    }
}

#[test]
fn traces_have_all_steps_and_no_link_carries_two_things_at_once() {
    let case = Case::new("dgx-h100", Kind::AllReduce, 4, 1 << 20).with(|o| o.trace = true);
    let trace = case.run(Algorithm::Ring, Encoding::Slots).trace.unwrap();
    let chrome = trace.to_chrome(|rank, step| format!("{rank}/{step}"));
    let all = chrome["traceEvents"].as_array().unwrap();
    let complete = all.iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(complete, trace.events.len() + trace.occupations.len());
    for link in 0..trace.links.len() {
        let mut of: Vec<_> = trace.occupations.iter().filter(|one| one.link == link).collect();
        of.sort_by(|a, b| a.start_ns.total_cmp(&b.start_ns));
        assert!(of.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns), "{link}");
    }
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
    let pairwise = Case::on(&topology, Kind::AllToAll, 65_536, 1 << 30);
    let entry = find(Kind::AllToAll, Algorithm::Pairwise, Encoding::Slots).unwrap();
    let error = pairwise.entry(entry).unwrap_err();
    assert!(matches!(error, SimulationError::TooLarge { .. }), "{error}");
}

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
        prop_assert!(prediction.time_ns >= device.launch_ns + latency, "{}", prediction.time_ns);
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
