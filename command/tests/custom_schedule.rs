//! Custom schedules: the example's file is what the example builds, is proven and run; wrong
//! files are named with their place and told as a story.
#![allow(clippy::unwrap_used)]

mod command_line;

#[allow(dead_code)]
#[path = "../../examples/custom_schedule.rs"]
mod example;

#[path = "../../tests/common/msccl_xml.rs"]
mod msccl_xml;
#[path = "../../tests/common/mscclpp_plan.rs"]
mod mscclpp_plan;

use command_line::{command, finish, oxccl, start};
use oxccl::plans::algorithms::{Algorithm, Encoding, find};
use oxccl::plans::lower::LowerError;
use oxccl::plans::schedule::{
    Buffer, Flag, Instruction, Lane, Link, Operand, SLOTS, ScheduleFile, Slots,
};
use oxccl::plans::topology::Placement;
use oxccl::{Collectives, Communicator, Config, CustomSchedule, Error, Order, ReduceOp, bf16};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/custom_schedule.json");

fn file() -> ScheduleFile {
    ScheduleFile::read(Path::new(FILE)).unwrap()
}

/// The example's file, changed.
fn changed(name: &str, change: impl FnOnce(&mut ScheduleFile)) -> PathBuf {
    let mut file = file();
    change(&mut file);
    written(name, &file.to_json())
}

fn written(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn the_example_is_proven_and_runs() {
    example::main().unwrap();
    let star = ScheduleFile::new(example::star(4), Order::Rank, true);
    assert_eq!(file(), star, "cargo run --example custom_schedule -- --json writes the file anew");
    let said = oxccl(&["verify", FILE]).ok();
    assert!(said.out.contains("all_reduce over 4 ranks, order rank"), "{}", said.out);
    assert!(said.out.contains("is the left fold by rank, rounded once"), "{}", said.out);
}

#[test]
fn bench_runs_it_checked() {
    let said = oxccl(&[
        "bench",
        "--threads",
        "--schedule",
        FILE,
        "--maxbytes",
        "64K",
        "--minbytes",
        "64",
        "--stepfactor",
        "32",
        "--repeats",
        "2",
        "--json",
        "--no-probe",
    ])
    .ok();
    assert!(said.out.contains("\"algorithm\":\"custom\""), "{}", said.out);
    assert!(said.out.contains("\"wrong\":0"), "{}", said.out);
    let said =
        oxccl(&["bench", "all_reduce", "--ranks", "2", "--threads", "--schedule", FILE]).failed(2);
    assert!(said.err.contains("is for 4 ranks, not for 2"), "{said:?}");
    let said = oxccl(&["bench", "broadcast", "--threads", "--schedule", FILE]).failed(2);
    assert!(said.err.contains("carries out all_reduce and nothing else"), "{said:?}");
}

/// Of one list a rank, and of two.
#[test]
fn bench_runs_it_in_groups() {
    const LISTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/two_lists.json");
    let rest = ["--threads", "--buckets", "3", "--repeats", "1", "--json", "--no-probe"];
    for file in [FILE, LISTS] {
        let said = oxccl(&[&["bench", "group", "--schedule", file][..], &rest].concat()).ok();
        let rows: Vec<&str> = said.out.lines().filter(|row| row.contains("\"mode\"")).collect();
        let fused = rows.iter().filter(|row| row.contains("\"mode\":\"fused\"")).count();
        assert!(fused == 1 && rows.iter().all(|row| row.contains("\"wrong\":0")), "{}", said.out);
    }
    let other = ["bench", "group", "--bucket-op", "all_gather", "--schedule", LISTS];
    let said = oxccl(&other).failed(2);
    assert!(said.err.contains("carries out all_reduce and nothing else"), "{said:?}");
}

#[test]
fn a_deadlock_is_told_from_rank_to_rank() {
    // Ranks 1 to 3 wait for the result before they send.
    let path = changed("deadlock.json", |file| {
        for list in &mut file.schedule.lists[1..] {
            list.rotate_left(3);
        }
    });
    let said = oxccl(&["verify", path.to_str().unwrap()]).failed(1);
    for text in [
        "deadlock.json: deadlock: rank 0, step 0 waits for rank 1",
        "Rank 0 waits at step 0 for rank 1: one message is to have come, and none has.",
        "Rank 1 waits at step 0 for rank 0: one message is to have come, and none has.",
        "wait    0.slots.tail >= +1",
        "So rank 0 waits for itself, and nobody goes on.",
    ] {
        assert!(said.out.contains(text), "{text:?} is not in\n{}", said.out);
    }
}

#[test]
fn a_rank_that_is_waited_for_in_vain_is_named() {
    let path = changed("silent.json", |file| file.schedule.lists[2].clear());
    let said = oxccl(&["verify", path.to_str().unwrap()]);
    assert!(said.out.contains("Rank 2 has come to the end of its steps."), "{}", said.out);
}

#[test]
fn a_wrong_result_is_shown() {
    let path = changed("twice.json", |file| {
        for instruction in &mut file.schedule.lists[0] {
            if let Instruction::ReduceCopy { sources, .. } = instruction {
                sources[0] = sources[1];
                sources.remove(1);
            }
        }
    });
    let said = oxccl(&["verify", path.to_str().unwrap()]);
    let text = "should be final (((x0[0] + x1[0]) + x2[0]) + x3[0]) and is final ((x1[0] + x2[0]) + x3[0])";
    assert!(said.out.contains(text), "{}", said.out);
}

#[test]
fn a_fault_has_its_step_and_those_around_it() {
    let path = changed("unseen.json", |file| {
        let link = Link::new(1, Lane::Slots);
        let list = &mut file.schedule.lists[0];
        list.retain(|one| !matches!(one, Instruction::Wait { flag: Flag::Tail(other), .. } if *other == link));
    });
    let said = oxccl(&["verify", path.to_str().unwrap()]);
    assert!(said.out.contains("from 1.slots#0 may not have come"), "{}", said.out);
    assert!(
        said.out.contains("Rank 0 does:") && said.out.contains("reduce  raw in[0] + raw from"),
        "{}",
        said.out
    );
}

#[test]
fn unreadable_files_are_named_with_the_place() {
    for (name, text, fault) in [
        ("text.json", "{", "text.json: EOF while parsing"),
        (
            "kind.json",
            r#"{"collective": "all_redduce", "ranks": 1, "input": "whole", "output": "whole", "steps": [[]]}"#,
            "\"all_redduce\" is no collective; there are all_reduce",
        ),
        (
            "step.json",
            r#"{"collective": "all_gather", "ranks": 1, "input": "whole", "output": "per_rank",
                "steps": [[{"reduce_copy": ["in[0]"], "to": ["oot[0]"]}]]}"#,
            "step.json: rank 0, step 0: \"oot[0]\" is no operand; there are in[CHUNK]",
        ),
    ] {
        let path = written(name, text);
        let said = oxccl(&["verify", path.to_str().unwrap()]).failed(2);
        assert!(said.err.contains(fault), "{said:?}");
    }
    let said = oxccl(&["verify", "no/such/file.json"]);
    assert!(said.err.contains("no/such/file.json: No such file"), "{said:?}");
}

/// Runs calls on four ranks with this schedule.
fn on_ranks(file: ScheduleFile, order: Order, calls: impl Fn(&mut Communicator) + Sync) {
    let custom = Arc::new(CustomSchedule::prove("it", file).unwrap());
    let config = Config { schedule: Some(custom), order, ..Config::default() };
    let ranks = Communicator::local_with(4, &config).unwrap();
    std::thread::scope(|scope| {
        for mut comm in ranks {
            let calls = &calls;
            scope.spawn(move || calls(&mut comm));
        }
    });
}

#[test]
fn it_keeps_its_promises_and_no_others() {
    on_ranks(file(), Order::Rank, |comm| {
        let mut values = [bf16::from_f32(comm.rank() as f32 + 0.5); 33];
        comm.all_reduce_in_place(&mut values, ReduceOp::Avg).unwrap();
        assert_eq!(values, [bf16::from_f32(2.0); 33]);
        // Other kinds are the catalogue's.
        comm.broadcast_in_place(&mut values, 3).unwrap();
        comm.set_order(Order::Tree).unwrap();
        let error = comm.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap_err();
        let Error::NoAlgorithm { detail, .. } = &error else { panic!("{error}") };
        assert!(detail.contains("the schedule it does not promise order tree"), "{error}");
    });
    let apart = ScheduleFile { in_place: false, ..file() };
    on_ranks(apart, Order::Any, |comm| {
        let error = comm.all_reduce_in_place(&mut [1.0f32], ReduceOp::Sum).unwrap_err();
        assert!(error.to_string().contains("does not promise to work in place"), "{error}");
    });
}

/// The catalogue's message from rank 0 to rank 1 of three.
fn message(encoding: oxccl::plans::algorithms::Encoding) -> ScheduleFile {
    let collective = oxccl::Collective::send_recv(3, 0, 1);
    let found = |algorithm| find(oxccl::Kind::SendRecv, algorithm, encoding);
    let entry = Algorithm::ALL.into_iter().find_map(found).unwrap();
    let placement = oxccl::plans::topology::Placement::one_node(3);
    let schedule =
        entry.schedule(collective, placement, Order::Any, oxccl::plans::schedule::SLOTS).unwrap();
    ScheduleFile::new(schedule, Order::Any, false)
}

/// Messages have connections of their own, on a host for one channel, whatever is pinned for other
/// calls.
#[test]
fn a_message_runs_whatever_channels_are_pinned() {
    for encoding in [Encoding::Ll, Encoding::Ll128, Encoding::Slots] {
        let custom = CustomSchedule::prove("message", message(encoding)).unwrap();
        let pin = oxccl::Pin { channels: Some(2), ..Default::default() };
        let config = Config { schedule: Some(Arc::new(custom)), pin, ..Config::default() };
        let ranks = Communicator::local_with(3, &config).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || {
                    let sent: Vec<u32> = (0..5000).collect();
                    let mut received = vec![0; 5000];
                    match comm.rank() {
                        0 => comm.send(&sent, 1).unwrap(),
                        1 => comm.recv(&mut received, 0).unwrap(),
                        _ => received.copy_from_slice(&sent),
                    }
                    assert!(comm.rank() == 0 || received == sent, "{encoding}");
                    comm.barrier().unwrap();
                });
            }
        });
    }
    let path = written("message.json", &message(Encoding::Slots).to_json());
    let said = oxccl(&["bench", "--threads", "--schedule", path.to_str().unwrap()]).failed(2);
    assert!(said.err.contains("is a message from rank 0 to rank 1 alone"), "{said:?}");
}

/// A schedule for more slots than there are by default says what to set, and runs with that.
#[test]
fn more_slots_are_a_setting() {
    let path = changed("eight_slots.json", |file| {
        let collective = file.schedule.collective;
        let entry = find(collective.kind, Algorithm::Ring, Encoding::Slots).unwrap();
        let slots = Slots { slots: 8, ..SLOTS };
        let placement = Placement::one_node(collective.ranks);
        file.schedule = entry.schedule(collective, placement, Order::Any, slots).unwrap();
        file.order = Order::Any;
    });
    let call = ["bench", path.to_str().unwrap(), "--threads", "-b", "1M", "-e", "1M", "-n", "3"];
    let said = oxccl(&call).failed(2);
    assert!(said.err.contains("OXCCL_SLOTS=8 has so many"), "{}", said.err);
    let said = finish(start(command(&call).env("OXCCL_SLOTS", "8"))).ok();
    assert!(said.out.contains("Out of bounds values : 0 OK"), "{}", said.out);
    let said = finish(start(command(&call).env("OXCCL_SLOTS", "3"))).failed(2);
    assert!(said.err.contains("slots: 3 is not in 4 to 64"), "{}", said.err);
}

#[test]
fn what_slots_do_not_hold_is_an_error() {
    // Sixteen segments a message, and slots of two cache lines.
    let collective = oxccl::Collective::new(oxccl::Kind::AllGather, 64);
    let entry = oxccl::plans::algorithms::find(
        oxccl::Kind::AllGather,
        oxccl::plans::algorithms::Algorithm::HalvingDoubling,
        oxccl::plans::algorithms::Encoding::Slots,
    );
    let placement = oxccl::plans::topology::Placement::one_node(64);
    let slots = oxccl::plans::schedule::SLOTS;
    let schedule = entry.unwrap().schedule(collective, placement, Order::Any, slots).unwrap();
    let verified = oxccl::plans::verify::verify(schedule, Order::Any, true).unwrap();
    assert_eq!(verified.schedule().most_segments()[1], (Lane::Slots, 16));
    let layout = oxccl::plans::schedule::Layout::even(
        &collective,
        verified.schedule().input,
        verified.schedule().output,
        100,
        16,
    )
    .unwrap();
    assert_eq!(layout.extent(0, Buffer::Output, 63).count, 100);
    let lowering = |channels, tile_bytes| oxccl::plans::lower::Lowering {
        data_type: oxccl::DataType::F32,
        fold: oxccl_kernels::format::Fold::Sum,
        scale: oxccl_kernels::format::Scale::None,
        channels,
        first_connections: 0,
        most_channels: 1,
        tile_bytes,
        stream: false,
        cma: false,
        virtual_bytes: None,
    };
    let program =
        oxccl::plans::lower::lower(&verified, 5, &layout, &lowering(1, 16 * 128 - 64)).unwrap();
    // 400 bytes in tiles of a cache line.
    assert_eq!(program.rounds(), 7);
    let error = oxccl::plans::lower::lower(&verified, 5, &layout, &lowering(1, 512)).unwrap_err();
    assert!(error.to_string().contains("up to 16 segments"), "{error}");
    for channels in [0, 2, usize::MAX] {
        let refused = oxccl::plans::lower::lower(&verified, 5, &layout, &lowering(channels, 2048));
        let expected = LowerError::NoConnections { channels, most: 1 };
        assert_eq!(refused.unwrap_err(), expected);
    }
    assert!(
        matches!(verified.schedule().lists[0][0], Instruction::ReduceCopy { ref destinations, .. } if destinations == &[Operand::Output(0)])
    );
}

#[test]
fn raw_need_not_be_said_and_comments_are_quoted() {
    let unsaid = std::fs::read_to_string(FILE).unwrap().replace("raw ", "");
    let path = written("unsaid.json", &unsaid);
    assert_eq!(
        CustomSchedule::read(&path).unwrap(),
        CustomSchedule::read(Path::new(FILE)).unwrap()
    );
    let path = changed("commented.json", |file| {
        file.notes.name = Some("a star".to_owned());
        file.notes.comment = Some("what rank 0 gets is what all get".to_owned());
    });
    let said = oxccl(&["verify", path.to_str().unwrap()]).ok();
    assert!(said.out.contains("name     a star"), "{}", said.out);
    assert!(said.out.contains("comment  what rank 0 gets is what all get"), "{}", said.out);
    let path = changed("commented_wrong.json", |file| {
        file.notes.steps.insert((2, 3), "here the result comes".to_owned());
        file.schedule.lists[2].remove(4);
        file.schedule.lists[2].remove(4);
    });
    let said = oxccl(&["verify", path.to_str().unwrap()]).failed(1);
    assert!(said.out.contains("REFUSED"), "{}", said.out);
    let path = changed("commented_fault.json", |file| {
        file.notes.steps.insert((2, 2), "here the result comes".to_owned());
        file.schedule.lists[2].remove(3);
    });
    let said = oxccl(&["verify", path.to_str().unwrap()]).failed(1);
    assert!(said.out.contains("# here the result comes"), "{}", said.out);
}

/// Files of MSCCL's in the place of JSON: proven, predicted, explained and run, checked.
#[test]
fn files_of_msccls_are_proven_predicted_explained_and_run() {
    for (name, file, kind) in [
        ("rings.xml", msccl_xml::rings("Simple", 4, 2, 3), "all_reduce"),
        ("all_pairs.xml", msccl_xml::all_pairs("LL", 8, false), "all_reduce"),
        ("gather.xml", msccl_xml::gather("LL128", 3, 2, true), "all_gather"),
        ("scatter.xml", msccl_xml::scatter("Simple", 4), "reduce_scatter"),
        ("overtaking.xml", msccl_xml::overtaking("LL", 3), "all_to_all"),
        ("running_ahead.xml", msccl_xml::running_ahead("Simple", 3), "all_to_all"),
    ] {
        let path = written(name, &file.to_xml());
        let path = path.to_str().unwrap();
        for blocks in ["merged", "lists"] {
            let said = oxccl(&["verify", path, "--blocks", blocks]).ok();
            assert!(said.out.contains(&format!(": {kind} over")), "{}", said.out);
            let said = oxccl(&["sim", path, "--blocks", blocks, "--sizes", "1M", "--json"]).ok();
            assert!(said.out.contains("\"algorithm\":\"custom\""), "{}", said.out);
            let said =
                oxccl(&["explain", path, "--blocks", blocks, "--rank", "0", "--bytes", "64K"]).ok();
            assert!(
                said.out.contains("# line ") && said.out.contains("(gpu 0, tb 0, step 0)"),
                "{}",
                said.out
            );
            let sizes = ["--minbytes", "8", "--maxbytes", "64K", "--stepfactor", "64"];
            let rest = ["--repeats", "1", "-n", "2", "--json", "--no-probe", "--threads"];
            let said =
                oxccl(&[&["bench", path, "--blocks", blocks][..], &sizes, &rest].concat()).ok();
            let rows: Vec<&str> =
                said.out.lines().filter(|row| row.contains("\"custom\"")).collect();
            let right = rows.iter().all(|row| row.contains("\"wrong\":0"));
            assert!(rows.len() >= 2 && right, "{}", said.out);
        }
    }
}

/// Plans of MSCCL++'s likewise.
#[test]
fn plans_of_mscclpps_are_proven_predicted_explained_and_run() {
    for (name, plan, kind) in [
        ("in_memory.json", mscclpp_plan::in_memory(4), "all_reduce"),
        ("by_packets.json", mscclpp_plan::by_packets(8, false), "all_reduce"),
        ("by_switch.json", mscclpp_plan::by_switch(2), "all_reduce"),
        ("puts.json", mscclpp_plan::gather(3, false), "all_gather"),
        ("scatter.json", mscclpp_plan::scatter(4), "reduce_scatter"),
        ("pipeline.json", mscclpp_plan::all_to_all(3), "all_to_all"),
    ] {
        let path = written(name, &plan.to_string());
        let path = path.to_str().unwrap();
        let said = oxccl(&["verify", path]).ok();
        assert!(said.out.contains(&format!(": {kind} over")), "{}", said.out);
        let said = oxccl(&["sim", path, "--sizes", "1M", "--json"]).ok();
        assert!(said.out.contains("\"algorithm\":\"custom\""), "{}", said.out);
        let said = oxccl(&["explain", path, "--rank", "0", "--bytes", "64K"]).ok();
        assert!(said.out.contains("# gpu 0, threadblock 0, op "), "{}", said.out);
        let sizes = ["--minbytes", "8", "--maxbytes", "64K", "--stepfactor", "64"];
        let rest = ["--repeats", "1", "-n", "2", "--json", "--no-probe", "--threads"];
        let said = oxccl(&[&["bench", path][..], &sizes, &rest].concat()).ok();
        let rows: Vec<&str> = said.out.lines().filter(|row| row.contains("\"custom\"")).collect();
        let right = rows.iter().all(|row| row.contains("\"wrong\":0"));
        assert!(rows.len() >= 2 && right, "{}", said.out);
    }
    let mut plan = mscclpp_plan::scatter(3);
    plan["gpus"][1]["threadblocks"][2]["ops"][1] = serde_json::json!({"name": "nop"});
    let path = written("race.json", &plan.to_string());
    let said = oxccl(&["verify", path.to_str().unwrap()]).failed(1);
    assert!(said.out.contains("REFUSED") && said.out.contains("nothing orders gpu 0"), "{said:?}");
    plan["protocol"] = "LL128".into();
    let path = written("unfit.json", &plan.to_string());
    let said = oxccl(&["verify", path.to_str().unwrap()]).failed(2);
    assert!(said.err.contains("unfit.json: protocol \"LL128\""), "{said:?}");
}

#[test]
fn wrong_files_of_msccls_are_refused_with_their_lines() {
    let mut file = msccl_xml::all_pairs("Simple", 3, true);
    file.ranks[0][1].steps[2].depends = None;
    let path = written("race.xml", &file.to_xml());
    let said = oxccl(&["verify", path.to_str().unwrap()]).failed(1);
    assert!(said.out.contains("REFUSED") && said.out.contains("nothing orders line"), "{said:?}");
    let mut file = msccl_xml::gather("Simple", 2, 1, true);
    file.ranks.iter_mut().for_each(|blocks| blocks[0].steps.reverse());
    let path = written("deadlock.xml", &file.to_xml());
    let said = oxccl(&["verify", path.to_str().unwrap()]).failed(1);
    let story =
        "line 4 (gpu 0, tb 0, step 0) waits for a message of line 11 (gpu 1, tb 0, step 1).";
    assert!(said.out.contains(story), "{said:?}");
    file.proto = "Fast";
    let path = written("fast.xml", &file.to_xml());
    let said = oxccl(&["bench", path.to_str().unwrap(), "--threads"]).failed(2);
    assert!(said.err.contains("fast.xml: line 1: proto=\"Fast\": Simple, LL or LL128"), "{said:?}");
    let said = oxccl(&["sim", path.to_str().unwrap(), "--schedule", FILE]).failed(2);
    assert!(said.err.contains("there are two schedules"), "{said:?}");
}

#[test]
fn two_schedules_are_compared_step_by_step() {
    let same = changed("same.json", |file| {
        file.notes.name = Some("another name".to_owned());
        file.notes.steps.insert((0, 0), "for the first".to_owned());
    });
    let said = oxccl(&["diff", FILE, same.to_str().unwrap()]).ok();
    assert_eq!(said.out, "");
    let other = changed("other.json", |file| {
        file.order = Order::Any;
        let first = file.schedule.lists[2].remove(0);
        file.schedule.lists[2].insert(3, first);
        file.notes.steps.insert((2, 3), "too late".to_owned());
    });
    let said = oxccl(&["diff", FILE, other.to_str().unwrap()]).failed(1);
    assert_eq!(
        said.out,
        "order        rank -> any\n\n\
         rank 2: 6 steps -> 6 steps\n\
         -      0  wait    0.slots.head >= -3\n  \
         \x20    0  copy    in[0] -> to 0.slots#0\n  \
         \x20    1  signal  0.slots.tail = +1\n  \
         \x20    2  wait    0.slots.tail >= +1\n\
         +      3  wait    0.slots.head >= -3    # too late\n  \
         \x20    4  copy    from 0.slots#0 -> out[0]\n  \
         \x20    5  signal  0.slots.head = +1\n"
    );
    let said = oxccl(&["diff", FILE, other.to_str().unwrap(), "--rank", "1"]).failed(1);
    assert_eq!(said.out, "order        rank -> any\n");
    let missing = oxccl(&["diff", FILE, "no/such.json"]).failed(2);
    assert!(missing.err.contains("no/such.json: No such file"), "{missing:?}");
}
