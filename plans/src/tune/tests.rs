//! Tables and the picks that come out of them.

use super::*;
use crate::algorithms::{Inner, Outer};
use crate::custom::CustomSchedule;
use crate::lower::{NotCopies, copies};
use crate::schedule::{Chunking, Layout, ScheduleFile};
use crate::tune::table::{Curve, Links, MemoryKind, Point};

const TEXT: &str = r#"
machine = "a machine"
date = "2026-11-21"
ranks = 2
ranks_per_node = 2
type = "float"
op = "sum"

[links]
core_to_core_ns = 50.0
copy_gbps = 12.5

[[curve]]
kind = "all_reduce"
memory = "windows"
algorithm = "one_shot"
encoding = "slots"
points = [[8, 1.0], [1000, 2.0], [100000, 900.0]] # a comment

[[curve]]
kind = "all_reduce"
memory = "windows"
algorithm = "two_shot_push"
encoding = "windows"
points = [[8, 2.0], [1000, 2.5], [100000, 10], [1000000, 100.0]]
"#;

fn question(bytes: usize) -> Question {
    Question {
        collective: Collective::new(Kind::AllReduce, 2),
        total_bytes: bytes,
        placement: Placement::one_node(2),
        data_type: DataType::F32,
        op: OpKind::Sum,
        order: Order::Any,
        in_place: false,
        windows: true,
        cma: None,
        nodes: 1,
        ll128: false,
        multicast: None,
        fabric_reduces: false,
        limits: Limits::HOST,
        pin: Pin::default(),
        cache_bytes: 1 << 25,
    }
}

fn pick(question: &Question) -> (Algorithm, Encoding, String) {
    let table = Table::parse(TEXT).unwrap();
    let plan = plan_by(Some(&table), question).unwrap();
    (plan.algorithm, plan.encoding, plan.reason)
}

#[test]
fn what_fills_the_cache_is_written_around_it() {
    // With a cache of 32 MiB.
    let stream = |kind, ranks, mebibytes: usize| {
        let collective = Collective::new(kind, ranks);
        let placement = Placement::one_node(ranks);
        let question = Question { collective, placement, ..question(mebibytes << 20) };
        plan_by(None, &question).unwrap().stream
    };
    for (kind, ranks, most_cached) in [
        (Kind::AllReduce, 2, 15),
        (Kind::AllReduce, 4, 7),
        (Kind::AllToAll, 2, 7),
        (Kind::AllGather, 2, 21),
        (Kind::AllGather, 4, 12),
    ] {
        assert!(!stream(kind, ranks, most_cached), "{kind} over {ranks}");
        assert!(stream(kind, ranks, most_cached + 1), "{kind} over {ranks}");
    }
}

#[test]
fn a_switch_is_wanted_where_it_is_and_knows_the_reduction() {
    let of = |ranks: usize, bytes: usize| Question {
        collective: Collective::new(Kind::AllReduce, ranks),
        placement: Placement::one_node(ranks),
        multicast: Some(ranks),
        ..question(bytes)
    };
    let picks = |question: &Question| plan_on_gpu(None, question).unwrap().algorithm;
    let long = of(8, 64 << 20);
    assert_eq!(picks(&long), Algorithm::Nvls);
    for other in [
        of(2, 64 << 20),
        of(8, 8 << 10),
        Question { multicast: None, ..long },
        Question { windows: false, ..long },
        Question { nodes: 2, ..long },
        Question { order: Order::Rank, ..long },
        Question { op: OpKind::Avg, ..long },
        Question { op: OpKind::Max, ..long },
        Question { data_type: DataType::I8, ..long },
    ] {
        assert_ne!(picks(&other), Algorithm::Nvls, "{other:?}");
    }
    assert_eq!(
        picks(&Question { op: OpKind::Max, data_type: DataType::U64, ..long }),
        Algorithm::Nvls
    );
    assert_ne!(plan(&long).unwrap().algorithm, Algorithm::Nvls, "hosts never want it");
    let pin = Pin { algorithm: Some(Algorithm::Nvls), ..Pin::default() };
    let text = |question: Question| {
        plan_on_gpu(None, &Question { pin, ..question }).unwrap_err().to_string()
    };
    let without = text(Question { multicast: None, ..long });
    assert!(without.contains("without an NVSwitch that reduces"), "{without}");
    let averaged = text(Question { op: OpKind::Avg, ..long });
    assert!(averaged.contains("of which a switch knows"), "{averaged}");
    assert!(text(of(1, 8)).contains("it needs at least 2 ranks"));
}

#[test]
fn switches_of_nodes_are_those_that_join_their_ranks() {
    let nodes = Question {
        collective: Collective::new(Kind::AllReduce, 64),
        placement: Placement::uniform(8),
        nodes: 8,
        multicast: Some(8),
        ..question(32 << 20)
    };
    let in_rings = Algorithm::Hierarchical(Inner::Nvls, Outer::Ring);
    let pin = Pin { algorithm: Some(in_rings), ..Pin::default() };
    let pinned = Question { pin, ..nodes };
    assert_eq!(plan_on_gpu(None, &pinned).unwrap().algorithm, in_rings);
    for multicast in [None, Some(4), Some(64)] {
        let why = plan_on_gpu(None, &Question { multicast, ..pinned }).unwrap_err().to_string();
        assert!(why.contains("without an NVSwitch that reduces"), "{multicast:?}: {why}");
    }
    let flat = Pin { algorithm: Some(Algorithm::Nvls), ..Pin::default() };
    assert!(plan_on_gpu(None, &Question { pin: flat, ..nodes }).is_err());
}

/// By whatever executor: a fabric's switches are for the verifier, the simulator and explanations.
#[test]
fn what_the_fabric_reduces_is_told_and_never_run() {
    let nodes = Question {
        collective: Collective::new(Kind::AllReduce, 64),
        placement: Placement::uniform(8),
        nodes: 8,
        multicast: Some(8),
        ..question(32 << 20)
    };
    assert!(offered(&nodes).iter().all(|entry| !entry.is_in_fabric()));
    let told = Question { fabric_reduces: true, ..nodes };
    assert_eq!(plan_on_gpu(None, &told), plan_on_gpu(None, &nodes));
    let in_fabric = algorithms::catalogue().filter(|entry| entry.is_in_fabric());
    for entry in in_fabric {
        let pin = Pin { algorithm: Some(entry.algorithm), ..Pin::default() };
        let why = |asked: Result<Plan, NoAlgorithm>| asked.unwrap_err().to_string();
        let pinned = Question { pin, ..nodes };
        for why in [why(plan(&pinned)), why(plan_on_gpu(None, &pinned))] {
            assert!(why.contains(entry.algorithm.name()) && why.contains("no executor"), "{why}");
        }
        let told = plan_on_gpu(None, &Question { pin, ..told }).unwrap();
        assert_eq!(told.algorithm, entry.algorithm);
        let collective = nodes.collective;
        let made =
            entry.schedule(collective, nodes.placement, Order::Any, Limits::HOST.slots).unwrap();
        let file = ScheduleFile::new(made, Order::Any, true);
        let custom = CustomSchedule::prove("collnet", file).unwrap();
        let refused = custom.plan(&nodes, Processor::Gpu).unwrap_err().to_string();
        assert!(refused.contains("no executor drives them"), "{refused}");
        assert!(custom.plan(&Question { fabric_reduces: true, ..nodes }, Processor::Gpu).is_ok());
        let layout = Layout::even(&collective, Chunking::Parts(16), Chunking::Parts(16), 4096, 1);
        let refused = copies(custom.verified(), 0, &layout.unwrap(), 4).unwrap_err();
        assert!(matches!(refused, NotCopies::Other { .. } | NotCopies::WritesPeers { .. }));
    }
}

#[test]
fn a_table_comes_back_from_its_text() {
    let table = Table::parse(TEXT).unwrap();
    let links = Links { core_to_core_ns: Some(50.0), copy_gbps: 12.5 };
    assert_eq!(table.links, Some(links));
    assert_eq!(table.curves[1].points[2], Point { bytes: 100_000, time_us: 10.0 });
    let again = Table::parse(&table.to_text()).unwrap();
    assert_eq!(again, table);
    assert_eq!(again.fingerprint(), table.fingerprint());
    let mut other = table.clone();
    other.curves[0].points[0].time_us += 1e-9;
    assert_ne!(other.fingerprint(), table.fingerprint());
}

#[test]
fn the_whole_catalogue_can_be_written_down() {
    let curve = |entry: &Entry| Curve {
        kind: entry.kind,
        memory: MemoryKind::Private,
        algorithm: entry.algorithm,
        encoding: entry.encoding,
        points: vec![Point { bytes: 8, time_us: 0.125 }],
    };
    let curves = algorithms::catalogue().map(curve).collect();
    let table = Table { curves, ..Table::parse(TEXT).unwrap() };
    assert_eq!(Table::parse(&table.to_text()).unwrap(), table);
}

#[test]
fn what_is_wrong_is_named() {
    for (from, to, says) in [
        ("ranks = 2\n", "ranks = 2\nrank = 2\n", "unknown field `rank`"),
        ("ranks = 2\n", "", "missing field `ranks`"),
        ("ranks = 2\n", "ranks = 0\n", "ranks and ranks_per_node must be above 0"),
        ("copy_gbps = 12.5", "copy_gbps = \"fast\"", "copy_gbps"),
        ("\"one_shot\"", "\"two_shots\"", "no algorithm; there are ring"),
        ("\"one_shot\"", "\"bruck\"", "curve 1 (all_reduce bruck/slots): algorithm"),
        ("\"all_reduce\"", "\"all_reduc\"", "no collective"),
        ("memory = \"windows\"", "memory = \"shared\"", "unknown variant `shared`"),
        ("[[8, 1.0], [1000,", "[[8, 1.0], [8,", "curve 1 (all_reduce one_shot/slots): points: b"),
        ("[[8, 1.0]", "[[8, 0.0]", "0 us for 8 bytes"),
        ("[[8, 1.0]", "[[8, nan]", "NaN us for 8 bytes"),
        ("two_shot_push\"\nencoding = \"windows", "one_shot\"\nencoding = \"slots", "twice"),
    ] {
        assert!(TEXT.contains(from), "{from}");
        let error = Table::parse(&TEXT.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(says), "{says:?} is not in {error}");
    }
    let error = Table::read("no/such/table.toml".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("no/such/table.toml: No such file"), "{error}");
    assert!(error.contains("`oxccl tune`"), "{error}");
}

#[test]
fn the_fastest_is_picked_and_the_next_one_named() {
    let (algorithm, _, reason) = pick(&question(8));
    assert_eq!(algorithm, Algorithm::OneShot);
    assert!(reason.contains("1.000 us predicted"), "{reason}");
    assert!(reason.contains("two_shot_push/windows 2.000"), "{reason}");
    let (algorithm, encoding, _) = pick(&question(50_000));
    assert_eq!((algorithm, encoding), (Algorithm::TwoShotPush, Encoding::Windows));
}

#[test]
fn one_that_was_given_up_is_not_picked_beyond() {
    let mut pinned = question(500_000);
    assert_eq!(pick(&pinned).0, Algorithm::TwoShotPush);
    pinned.pin.algorithm = Some(Algorithm::OneShot);
    let (algorithm, _, reason) = pick(&pinned);
    assert_eq!(algorithm, Algorithm::OneShot);
    assert!(reason.starts_with("the tuning table has no such all_reduce"), "{reason}");
}

#[test]
fn what_is_pinned_wins() {
    let mut pinned = question(8);
    pinned.pin.algorithm = Some(Algorithm::TwoShotPush);
    assert_eq!(pick(&pinned).0, Algorithm::TwoShotPush);
    pinned.pin = Pin { encoding: Some(Encoding::Ll), ..Pin::default() };
    let (_, encoding, reason) = pick(&pinned);
    assert_eq!(encoding, Encoding::Ll, "not in the table, yet pinned");
    assert!(reason.contains("the tuning table has no such all_reduce"), "{reason}");
}

#[test]
fn without_points_the_thresholds_decide() {
    let table = Table::parse(TEXT).unwrap();
    let private = Question { windows: false, ..question(50_000) };
    let others = Question {
        collective: Collective::new(Kind::AllReduce, 4),
        placement: Placement::one_node(4),
        ..question(50_000)
    };
    for (question, says) in [(private, "no such all_reduce"), (others, "is for 2 ranks")] {
        let (with, without) = (plan_by(Some(&table), &question).unwrap(), plan(&question).unwrap());
        assert_eq!((with.algorithm, with.encoding), (without.algorithm, without.encoding));
        assert!(with.reason.contains(says), "{}", with.reason);
        assert!(with.reason.ends_with(&without.reason), "{}", with.reason);
        assert!(predictions(&table, &question).unwrap_err().contains(says));
    }
}

#[test]
fn equal_tables_give_equal_picks() {
    let table = Table::parse(TEXT).unwrap();
    let again = Table::parse(&table.to_text()).unwrap();
    for bytes in (0..2_000_000).step_by(997) {
        let question = question(bytes);
        let (one, other) = (plan_by(Some(&table), &question), plan_by(Some(&again), &question));
        assert_eq!(one.unwrap(), other.unwrap());
    }
}

#[test]
fn gpus_whose_links_carry_lines_whole_use_them() {
    let of = |ll128, total_bytes| {
        let collective = Collective::new(Kind::AllReduce, 8);
        plan_on_gpu(None, &Question { collective, ll128, ..question(total_bytes) })
            .unwrap()
            .encoding
    };
    assert_eq!(
        [8, 1 << 10, 64 << 10, 1 << 20].map(|bytes| of(true, bytes)),
        [Encoding::Ll, Encoding::Ll, Encoding::Ll128, Encoding::Windows,]
    );
    assert_eq!(
        [16 << 10, 256 << 10].map(|bytes| of(false, bytes)),
        [Encoding::Ll, Encoding::Windows,]
    );
    let pin = Pin { encoding: Some(Encoding::Ll128), ..Pin::default() };
    let pinned = |ll128| plan_on_gpu(None, &Question { pin, ll128, ..question(8) });
    assert_eq!(pinned(true).unwrap().encoding, Encoding::Ll128);
    let refused = pinned(false).unwrap_err().to_string();
    assert!(refused.contains("without ll128, which needs"), "{refused}");
}

#[test]
fn nodes_of_different_numbers_of_ranks_are_hierarchies() {
    let choice = |sizes: &[usize], bytes: usize, on_gpus: bool| {
        let ranks = sizes.iter().sum();
        let question = Question {
            collective: Collective::new(Kind::AllReduce, ranks),
            placement: Placement::of_sizes(sizes),
            nodes: sizes.len(),
            limits: if on_gpus { Limits::GPU } else { Limits::HOST },
            ..question(bytes)
        };
        let plan = if on_gpus { plan_on_gpu(None, &question) } else { plan_by(None, &question) };
        plan.map(|plan| (plan.algorithm, plan.encoding)).unwrap()
    };
    let by = |outer| (Algorithm::Hierarchical(Inner::Direct, outer), Encoding::Windows);
    for on_gpus in [true, false] {
        assert_eq!(choice(&[8, 7], 1 << 10, on_gpus), by(Outer::Doubling));
        assert_eq!(choice(&[8, 7], 1 << 28, on_gpus), by(Outer::Doubling));
        assert_eq!(choice(&[8, 8, 8, 8, 7], 64 << 10, on_gpus), by(Outer::Doubling));
        assert_eq!(choice(&[8, 8, 8, 8, 7], 1 << 28, on_gpus), by(Outer::Tree));
    }
}

/// One channel sends what has flags, some what goes through slots, and all read in place.
#[test]
fn messages_have_the_channels_that_their_way_has() {
    let message = |bytes: usize, windows: bool, nodes: usize| Question {
        collective: Collective::send_recv(2, 0, 1),
        windows,
        nodes,
        placement: if nodes > 1 { Placement::uniform(1) } else { Placement::one_node(2) },
        limits: Limits::GPU,
        ..question(bytes)
    };
    let plan = |question: &Question| {
        let plan = plan_on_gpu(None, question).unwrap();
        (plan.encoding, plan.channels, plan.reason)
    };
    let (encoding, channels, _) = plan(&message(4 << 10, true, 1));
    assert_eq!((encoding, channels), (Encoding::Ll, 1));
    let (encoding, channels, _) = plan(&message(1 << 20, true, 1));
    assert_eq!((encoding, channels), (Encoding::Windows, Limits::GPU.max_channels));
    for nodes in [1, 2] {
        let mut private = message(1 << 20, false, nodes);
        let (encoding, channels, reason) = plan(&private);
        assert_eq!((encoding, channels), (Encoding::Slots, Limits::GPU.message_channels));
        assert!(reason.contains("by few channels"), "{reason}");
        // As many as there are channels, if those are fewer, and those that are pinned.
        private.limits.max_channels = 2;
        assert_eq!(plan(&private).1, 2);
        private.pin.channels = Some(1);
        assert_eq!(plan(&private).1, 1);
        private.limits.message_channels = 1;
        let (_, channels, reason) = plan(&private);
        assert_eq!(channels, 1);
        assert!(reason.contains("by one channel"), "{reason}");
    }
    let host = plan_by(None, &Question { limits: Limits::HOST, ..message(1 << 20, false, 1) });
    assert_eq!(host.unwrap().channels, 1);
}

#[test]
fn between_nodes_go_slots_and_few_bytes() {
    let asked = |kind, ranks, per_node, total_bytes, windows| {
        let question = Question {
            collective: Collective::new(kind, ranks),
            placement: Placement::uniform(per_node),
            nodes: 2,
            windows,
            ..question(total_bytes)
        };
        plan(&question).unwrap()
    };
    let of = |kind, ranks, per_node, total_bytes| {
        let plan = asked(kind, ranks, per_node, total_bytes, false);
        assert_eq!(plan.encoding, Encoding::Slots);
        plan.algorithm
    };
    let direct = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);
    assert_eq!(of(Kind::AllReduce, 4, 2, 1 << 26), direct);
    let ring = Algorithm::Hierarchical(Inner::Direct, Outer::Ring);
    assert_eq!(of(Kind::AllReduce, 32, 4, 1 << 26), ring);
    let doubling = Algorithm::Hierarchical(Inner::Direct, Outer::Doubling);
    assert_eq!(of(Kind::AllReduce, 8, 2, 8), doubling);
    assert_eq!(of(Kind::AllReduce, 5, 1, 1 << 26), Algorithm::Ring);
    assert_eq!(of(Kind::AllToAll, 8, 2, 1 << 10), direct);
    assert_eq!(of(Kind::AllToAll, 8, 2, 1 << 24), Algorithm::Direct);
    assert_eq!(of(Kind::Barrier, 4, 2, 0), Algorithm::Dissemination);
    let in_place = asked(Kind::AllReduce, 4, 2, 1 << 26, true);
    assert_eq!((in_place.algorithm, in_place.encoding), (direct, Encoding::Windows));
    let channels = |bytes| asked(Kind::AllReduce, 4, 2, bytes, true).channels;
    assert_eq!((channels(8), channels(1 << 18), channels(1 << 26)), (1, 1, 2));
}

/// Of GPUs; hosts, whose nodes have one adapter, go directly.
#[test]
fn what_a_root_has_for_each_rank_crosses_over_all_adapters() {
    let asked = |kind, ranks, per_node, part_bytes| Question {
        collective: Collective::rooted(kind, ranks, ranks / 2),
        placement: Placement::uniform(per_node),
        nodes: ranks / per_node,
        limits: Limits::GPU,
        ..question(part_bytes * ranks)
    };
    let of = |question: &Question| {
        let plan = plan_on_gpu(None, question).unwrap();
        (plan.algorithm, plan.encoding)
    };
    let long = Algorithm::Hierarchical(Inner::Direct, Outer::Direct);
    let short = Algorithm::Hierarchical(Inner::Direct, Outer::Doubling);
    let (slots, windows) = (Encoding::Slots, Encoding::Windows);
    for kind in [Kind::Gather, Kind::Scatter] {
        let private = |question| Question { windows: false, ..question };
        let (middle, large) = (asked(kind, 32, 8, 16 << 10), asked(kind, 32, 8, 1 << 20));
        assert_eq!([&middle, &large].map(of), [(short, windows), (long, windows)]);
        let both = [private(middle), private(large)];
        assert_eq!(both.map(|one| of(&one)), [(short, slots), (long, slots)]);
        let fits_a_line = if kind == Kind::Scatter { slots } else { windows };
        assert_eq!(of(&asked(kind, 32, 8, 8)), (short, fits_a_line));
        // One rank a node, or nodes that are not full.
        assert_eq!(of(&asked(kind, 4, 1, 8)), (Algorithm::Direct, slots));
        assert_eq!(of(&asked(kind, 16, 1, 8)), (short, slots));
        assert_eq!(of(&asked(kind, 16, 1, 1 << 20)), (Algorithm::Direct, slots));
        assert_eq!(of(&asked(kind, 30, 8, 8)), (Algorithm::Direct, slots));
        assert_eq!(plan(&large).unwrap().algorithm, Algorithm::Direct);
    }
}

#[test]
fn two_names_of_one_program_are_measured_once() {
    let names = |ranks| {
        let collective = Collective::new(Kind::AllReduce, ranks);
        let placement = Placement::one_node(ranks);
        let question = Question { collective, placement, ..question(64) };
        let of_slots = |entry: &&&Entry| entry.encoding == Encoding::Slots;
        let name = |entry: &&Entry| entry.algorithm.name();
        let all: Vec<&str> = offered(&question).iter().filter(of_slots).map(name).collect();
        let once: Vec<&str> = distinct(&question).iter().filter(of_slots).map(name).collect();
        (all, once)
    };
    let (all, once) = names(2);
    assert!(all.contains(&"recursive_doubling") && !once.contains(&"recursive_doubling"));
    assert!(once.contains(&"one_shot") && once.len() < all.len(), "{once:?}");
    // With more ranks they differ.
    let (all, once) = names(5);
    assert_eq!(all, once);
}

/// The system reads peers' memory from a size on, at which it pays; below, private memory goes
/// through slots as it does where the system reads none.
#[test]
fn private_memory_is_read_by_the_system_from_a_size_on() {
    for (kind, ranks) in Kind::ALL.into_iter().flat_map(|kind| [2, 4].map(|ranks| (kind, ranks))) {
        if matches!(kind, Kind::Barrier | Kind::SendRecv) {
            continue;
        }
        let encoding = |bytes, cma: Option<Option<usize>>| {
            let cma = cma.map(|pays_from| SystemReads { pays_from });
            let (collective, placement) =
                (Collective::new(kind, ranks), Placement::one_node(ranks));
            let private =
                Question { collective, placement, windows: false, cma, ..question(bytes) };
            plan_by(None, &private).unwrap().encoding
        };
        let always = SystemReads::default().pays_from;
        for bytes in [8, 512, 2 << 10, 4 << 10, 8 << 10, 16 << 10] {
            assert_eq!(encoding(bytes, Some(always)), encoding(bytes, None), "{kind} of {bytes}");
            assert_ne!(encoding(bytes, Some(always)), Encoding::Windows, "{kind} of {bytes}");
        }
        assert_eq!(encoding(64 << 10, Some(always)), Encoding::Windows, "{kind} over {ranks}");
        // By what was measured at the start.
        for bytes in [64 << 10, 1 << 20] {
            assert_eq!(encoding(bytes, Some(None)), encoding(bytes, None), "{kind} of {bytes}");
        }
        let measured = Some(Some(256 << 10));
        assert_ne!(encoding(128 << 10, measured), Encoding::Windows, "{kind} over {ranks}");
        assert_eq!(encoding(1 << 20, measured), Encoding::Windows, "{kind} over {ranks}");
    }
}
