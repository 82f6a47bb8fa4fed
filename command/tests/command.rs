//! The `oxccl` command as a user calls it: bench, explain, verify, doctor.

mod command_line;

use command_line::{command, finish, oxccl, skip, start};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const KEYS: [&str; 17] = [
    "op",
    "type",
    "redop",
    "ranks",
    "nodes",
    "bytes",
    "count",
    "algorithm",
    "encoding",
    "channels",
    "in_place",
    "time_us",
    "min_us",
    "algbw_gbps",
    "busbw_gbps",
    "wrong",
    "launches",
];

/// A benchmark's flags that keep it short.
const QUICK: [&str; 9] = ["-n", "2", "-w", "1", "--repeats", "2", "--no-probe", "-e", "100K"];

fn bench(arguments: &[&str]) -> Vec<Value> {
    let arguments = [&["bench"], arguments, &["--json"]].concat();
    let said = oxccl(&arguments).ok();
    said.out.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

fn quick(arguments: &[&str]) -> Vec<Value> {
    bench(&[arguments, &QUICK].concat())
}

#[track_caller]
fn assert_right(rows: &[Value]) {
    assert!(!rows.is_empty());
    for row in rows {
        for key in KEYS {
            assert!(row.get(key).is_some(), "{key} is missing in {row}");
        }
        assert_eq!(row["wrong"], 0, "{row}");
        assert_eq!(row["launches"], if row["op"] == "send_recv" { 2 } else { 1 }, "{row}");
        assert!(row["time_us"].as_f64() >= row["min_us"].as_f64(), "{row}");
    }
}

#[test]
fn every_collective_is_right_over_processes() {
    let rows = quick(&["all", "--ranks", "2", "-b", "8", "-f", "64"]);
    assert_right(&rows);
    let ops: std::collections::BTreeSet<_> = rows.iter().map(|row| row["op"].to_string()).collect();
    assert_eq!(ops.len(), 10, "{ops:?}");
    assert!(rows.iter().all(|row| row["ranks"] == 2));
}

#[test]
fn every_collective_is_right_over_threads_with_private_memory() {
    let rows = quick(&["all", "--ranks", "3", "-b", "96", "-f", "128", "--threads", "--private"]);
    assert_right(&rows);
    assert!(rows.iter().all(|row| row["encoding"] != "windows"));
}

#[test]
fn every_type_and_operation_is_right_in_every_order() {
    for order in ["any", "rank", "tree"] {
        let rows = quick(&[
            "all_reduce",
            "-d",
            "all",
            "-o",
            "all",
            "-b",
            "5001",
            "-f",
            "13",
            "-g",
            "4",
            "--threads",
            "--order",
            order,
        ]);
        assert_right(&rows);
        // 12 types, 6 operations for all of them and 3 for the 6 integers, 2 sizes, 2 placements.
        assert_eq!(rows.len(), (12 * 6 + 6 * 3) * 2 * 2, "order {order}");
    }
}

#[test]
fn every_root_is_right() {
    let rows = quick(&["broadcast", "-r", "-1", "-b", "1K", "-f", "99", "-g", "3", "--threads"]);
    assert_right(&rows);
    let roots: Vec<_> = rows.iter().map(|row| row["root"].as_i64()).collect();
    assert_eq!(roots, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2].map(Some));
}

#[test]
fn what_is_pinned_is_used() {
    let rows = quick(&[
        "all_reduce",
        "-b",
        "64K",
        "--threads",
        "--algorithm",
        "ring",
        "--encoding",
        "slots",
        "--channels",
        "2",
    ]);
    assert_right(&rows);
    for row in rows {
        assert_eq!((&row["algorithm"], &row["encoding"]), (&"ring".into(), &"slots".into()));
        assert_eq!(row["channels"], 2);
    }
}

/// Over as many buffers as fit, and operations where none is named.
#[test]
fn timed_calls_rotate() {
    let turns = |arguments: &[&str]| {
        let rows = bench(&[arguments, &["-n", "20", "--repeats", "2", "--no-probe"]].concat());
        assert_right(&rows);
        [&rows[0]["buffers"], &rows[0]["ops"]].map(|number| number.as_u64().unwrap())
    };
    let small = ["-b", "8", "-e", "8"];
    assert_eq!(turns(&[&["all_reduce"], &small[..]].concat()), [16, 4]);
    assert_eq!(turns(&[&["all_gather", "--private"], &small[..]].concat()), [16, 1]);
    assert_eq!(turns(&[&["all_reduce", "--op", "max"], &small[..]].concat()), [16, 1]);
    assert_eq!(turns(&[&["all_reduce", "--rotate", "1"], &small[..]].concat()), [1, 1]);
    assert_eq!(turns(&["all_to_all", "-b", "16M", "-e", "16M"]), [4, 1]);
}

#[test]
fn sizes_mean_what_they_mean_in_nccl_tests() {
    let bytes_and_counts = |op: &str| -> Vec<(u64, u64)> {
        let rows = quick(&[op, "-b", "1K", "-f", "10", "-g", "4", "--threads"]);
        let out_of_place = rows.iter().filter(|row| row["in_place"] == false);
        let number = |row: &Value, key: &str| row[key].as_u64().expect("a number");
        out_of_place.map(|row| (number(row, "bytes"), number(row, "count"))).collect()
    };
    assert_eq!(bytes_and_counts("all_reduce"), [(1024, 256), (10240, 2560), (102400, 25600)]);
    assert_eq!(bytes_and_counts("all_gather"), [(1024, 64), (10240, 640), (102400, 6400)]);
}

#[test]
fn a_table_has_its_verdict_and_one_rank_is_enough() {
    let said = oxccl(&[&["bench", "all_reduce", "--ranks", "1"][..], &QUICK].concat()).ok();
    assert!(said.out.contains("out-of-place") && said.out.contains("in-place"), "{}", said.out);
    assert!(said.out.contains("# Out of bounds values : 0 OK"), "{}", said.out);
    assert!(said.out.contains("# Avg bus bandwidth    : 0.000000"), "{}", said.out);
    let rows = said.out.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(rows, 14, "8 B to 64 KiB, doubling: {}", said.out);
}

/// Rows are held against those of a log with the same size, type and operation.
#[test]
fn rows_are_held_against_a_log_of_nccl_tests() {
    let log = std::env::temp_dir().join(format!("oxccl-against-{}.log", std::process::id()));
    let rows = "8 2 float sum -1 1e9 0 0 0 1e9 0 0 0\n16 4 half sum -1 1e9 0 0 0 1e9 0 0 0\n";
    std::fs::write(&log, format!("# Collective test starting: all_reduce_perf\n{rows}")).unwrap();
    let log = log.to_str().unwrap();
    let sizes = ["-b", "8", "-e", "16", "--against", log];
    let arguments = [&["all_reduce", "--ranks", "2"], &sizes[..], &QUICK[..7]].concat();
    let held: Vec<_> = bench(&arguments).iter().map(|row| row["against_us"].as_f64()).collect();
    assert_eq!(held, [Some(1e9), Some(1e9), None, None]);
    let said = oxccl(&[&["bench"], &arguments[..]].concat()).ok();
    assert!(said.out.contains(&format!("# Against {log} : ahead in 2 of 2 rows")), "{said:#?}");
    std::fs::write(log, "nothing").unwrap();
    let said = oxccl(&[&["bench"], &arguments[..]].concat());
    assert!(said.err.contains("has no row of nccl-tests' table"), "{said:#?}");
    std::fs::remove_file(log).unwrap();
}

/// Rows have what `oxccl sim` says of the same call by the same plan.
#[test]
fn rows_are_held_against_predictions() {
    let pins = ["--algorithm", "two_shot_push", "--encoding", "windows", "--channels", "1"];
    let sizes = ["-b", "64K", "-e", "64K"];
    let both = [&["all_reduce", "--ranks", "2"], &sizes[..], &pins].concat();
    let arguments = [&both[..], &["--expect", "host"], &QUICK[..4]].concat();
    let rows = bench(&arguments);
    assert_eq!(rows.len(), 2);
    let said = oxccl(&[&["sim"], &both[..], &["-t", "host", "--json"]].concat()).ok();
    let row = said.out.lines().find(|line| line.contains("\"bytes\":65536")).unwrap();
    let row: Value = serde_json::from_str(row).unwrap();
    for measured in &rows {
        assert_eq!(measured["predicted_us"], row["time_us"], "{measured}");
    }
    let said = oxccl(&[&["bench"], &arguments[..]].concat()).ok();
    assert!(said.out.contains("# Predicted on host : 2 rows, measured times are "), "{said:#?}");
    // Two cores do not move 64 MiB as fast as two GPUs do; how far predictions of these are off is
    // known.
    let long = [&["all_reduce", "--ranks", "2", "-b", "64M", "-e", "64M"], &pins[..]].concat();
    let arguments = [&["bench"], &long[..], &["--expect", "dgx-h100"], &QUICK[..4]].concat();
    let said = oxccl(&arguments).ok();
    let told = "# Off by more than four fifths of their class : all_reduce 67108864 B";
    assert!(said.out.contains(told), "{said:#?}");
    let said = oxccl(&["bench", "all_reduce", "--expect", "dgx-h10"]).failed(2);
    assert!(said.err.contains("dgx-h100"), "{said:#?}");
    let said = oxccl(&["bench", "group", "--expect", "host"]).failed(2);
    assert!(said.err.contains("groups are not simulated"), "{said:#?}");
}

#[test]
fn comma_separated_values_have_names_and_unchecked_results_no_number() {
    let flags = ["bench", "all_gather", "--csv", "-c", "0", "--threads", "-b", "64K"];
    let said = oxccl(&[&flags[..], &QUICK].concat()).ok();
    let mut lines = said.out.lines();
    let names: Vec<_> = lines.next().expect("a line of names").split(',').collect();
    assert!(KEYS.iter().all(|key| names.contains(key)), "{names:?}");
    let wrong = names.iter().position(|name| *name == "wrong").expect("a name");
    for line in lines {
        let values: Vec<_> = line.split(',').collect();
        assert_eq!((values.len(), values[wrong]), (names.len(), "N/A"), "{line}");
    }
}

#[test]
fn ranks_of_an_outer_launcher_are_used() {
    let own = env!("CARGO_BIN_EXE_oxccl");
    let launched = |flags: &[&str]| {
        let run = ["run", "-n", "3", "--", own, "bench", "all_reduce", "-b", "1K"];
        oxccl(&[&run[..], &QUICK, flags].concat())
    };
    let said = launched(&["--json"]).ok();
    assert!(said.out.lines().all(|line| line.contains("\"ranks\":3")), "{}", said.out);
    assert_eq!(said.out.lines().count(), 14);
    let said = launched(&["--ranks", "2"]).failed(2);
    assert!(said.err.contains("--ranks differs from the 3 of oxccl run"), "{}", said.err);
    let said = launched(&["--threads"]).failed(2);
    assert!(said.err.contains("has started one a rank"), "{}", said.err);
}

#[test]
fn a_full_dev_shm_does_not_matter() {
    let unshared = Command::new("unshare").args(["-m", "true"]).output();
    if !unshared.is_ok_and(|output| output.status.success()) {
        return skip("a_full_dev_shm_does_not_matter", "needs unshare -m, as root");
    }
    let script = "mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 90; \
                  cat /dev/zero >/dev/shm/full 2>&-; \
                  [ \"$(stat -f -c %a /dev/shm)\" = 0 ] || exit 91; exec \"$@\"";
    let bench =
        command(&[&["bench", "all_reduce", "-b", "1K", "--ranks", "2"], &QUICK[..]].concat());
    let mut full = Command::new("unshare");
    full.args(["-m", "sh", "-c", script, "sh"]).arg(bench.get_program()).args(bench.get_args());
    let said = finish(start(&mut full)).ok();
    assert!(said.out.contains("# Out of bounds values : 0 OK"), "{}", said.out);
}

#[test]
fn too_few_descriptors_are_told_with_the_remedy() {
    let bench =
        command(&[&["bench", "all_reduce", "-b", "1K", "--ranks", "12"], &QUICK[..]].concat());
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 32; exec \"$@\"", "sh"]);
    limited.arg(bench.get_program()).args(bench.get_args());
    let said = finish(start(&mut limited)).failed(1);
    assert!(said.err.contains("no file descriptor is left"), "{}", said.err);
    assert!(said.err.contains("ulimit -n"), "{}", said.err);
}

#[test]
fn wrong_usage_is_told_in_a_sentence() {
    for (arguments, says) in [
        ("bench", "<OP|FILE>"),
        ("bench all_reduc", "there are all_reduce, reduce_scatter"),
        ("bench all_reduce -b 8Q", "is no size"),
        ("bench all_reduce -b 16 -e 8", "--minbytes is 16"),
        ("bench all_reduce -f 1", "--stepfactor must be at least 2"),
        ("bench all_reduce -i 0 -e 9", "--stepbytes must be above 0"),
        ("bench all_reduce -G 1", "oxccl-against-nccl measures CUDA graphs"),
        ("bench all_reduce -c 2", "0..=1"),
        ("bench all_reduce -d f33", "is no element type; there are int8"),
        ("bench all_reduce -o plus", "is no operation; there are sum"),
        ("bench all_reduce -o bxor", "bitwise operations need an integer type"),
        ("bench broadcast -r 2 -g 2", "there are ranks 0 to 1"),
        ("bench send_recv -g 1", "needs at least 2 ranks"),
        ("bench all_reduce --ranks 0", "is no number above 0"),
        ("bench all_reduce --ranks 100000", "65536 ranks at most"),
        ("bench all_reduce --algorithm pairwise", "there are one_shot/ll"),
        ("bench all_reduce --order tree --algorithm ring", "order tree; there are"),
        ("bench all_reduce --timeout 0", "is no number of seconds above 0"),
        ("bench all_reduce --channels 65", "64"),
        ("explain all_reduce --algorithm magic", "is no algorithm; there are ring"),
        ("explain scatter --root 3", "--root is 3, there are ranks 0 to 1"),
        ("explain all_reduce --device gpu", "is not host, cuda or cuda:N"),
        ("explain all_reduce -o band", "bitwise operations need an integer type"),
        ("verify broadcast --root 2", "there are ranks 0 to 1"),
        ("run -n 0 -- true", "is no number above 0"),
        ("run -n 2", "<PROGRAM>"),
    ] {
        let said = oxccl(&arguments.split(' ').collect::<Vec<_>>()).failed(2);
        assert!(said.err.contains(says), "{arguments}: {}", said.err);
    }
}

#[test]
fn explain_prints_choice_reason_and_schedule() {
    let flags =
        "explain all_reduce --ranks 4 --bytes 1M --algorithm ring --encoding slots --rank 2";
    let said = oxccl(&flags.split(' ').collect::<Vec<_>>()).ok();
    for text in [
        "all_reduce over 4 ranks: 1048576 bytes",
        "choice   ring / slots, 1 channel",
        "why      ",
        "chunks   4 in, 4 out, at most 262144 bytes each",
        // 2 (n - 1) / n of the bytes, in 2 (n - 1) messages.
        "6 messages a round, 1572864 bytes sent in messages",
        "from 1.slots#0",
    ] {
        assert!(said.out.contains(text), "{text:?} is not in\n{}", said.out);
    }
    assert!(said.out.contains("\nrank 2:") && !said.out.contains("\nrank 1:"), "{}", said.out);
    let private = oxccl(&["explain", "all_reduce", "--bytes", "16M", "--private"]).ok();
    assert!(private.out.contains("two_shot / windows") && private.out.contains("private memory"));
    assert!(private.out.contains("\nrank 0:") && private.out.contains("\nrank 1:"));
}

#[test]
fn explain_ends_with_its_reader() {
    let mut child =
        start(&mut command(&["explain", "all_reduce", "--ranks", "64", "--bytes", "1M"]));
    // Far more than a pipe takes, which nobody reads.
    drop(child.stdout.take());
    let said = child.wait_with_output().unwrap();
    assert_eq!(said.status.signal(), Some(Signal::SIGPIPE as i32), "{said:?}");
    assert!(said.stderr.is_empty(), "{said:?}");
}

#[test]
fn explain_tells_what_gpus_would_do() {
    for (flags, choice) in [
        ("--ranks 4 --bytes 64", "choice   one_shot / ll, 1 channel"),
        ("--ranks 4 --bytes 16M", "/ windows, 16 channels"),
        ("--ranks 4 --bytes 16M --private", "choice   two_shot / slots, 16 channels"),
    ] {
        let flags = format!("explain all_reduce --device cuda --rank 0 {flags}");
        let said = oxccl(&flags.split(' ').collect::<Vec<_>>()).ok();
        assert!(said.out.contains("over 4 ranks on GPUs: "), "{}", said.out);
        assert!(said.out.contains(choice), "{choice:?} is not in\n{}", said.out);
    }
}

#[test]
fn verify_proves_the_catalogue() {
    let said = oxccl(&["verify", "all_reduce", "--ranks", "5"]).ok();
    assert!(said.out.contains("all_reduce ring slots order any"), "{}", said.out);
    assert!(said.out.contains("all_reduce one_shot ll order tree"), "{}", said.out);
    assert!(said.out.contains(" 0 refused, 5 ranks"), "{}", said.out);
}

#[test]
fn verify_says_what_was_proven() {
    let hierarchical =
        ["verify", "all_reduce", "--ranks", "8", "--per-node", "4", "--order", "tree"];
    let said = oxccl(&[&hierarchical[..], &["--algorithm", "hierarchical_direct_direct"]].concat());
    let said = said.ok();
    for text in [
        "proven   all_reduce hierarchical_direct_direct slots order tree",
        "every output chunk is the aligned tree over ranks, of partial results that are rounded",
        "no deadlock",
        "2 schedules proven, 0 refused, 8 ranks",
    ] {
        assert!(said.out.contains(text), "{text:?} is not in\n{}", said.out);
    }
    let absent = ["verify", "all_reduce", "--ranks", "6", "--algorithm", "halving_doubling"];
    let said = oxccl(&absent).failed(2);
    assert!(said.err.contains("it needs a number of ranks that is a power of two"), "{}", said.err);
}

#[test]
fn a_bench_in_which_nothing_goes_on_says_what_it_was_doing() {
    let arguments = ["bench", "all_reduce", "--threads", "-g", "2", "-b", "1M", "-e", "1M", "-c"];
    // Hours of calls are one step.
    let long = ["0", "-n", "100000000", "--no-probe", "--patience", "1"];
    let said = oxccl(&[&arguments[..], &long].concat()).failed(124);
    assert!(said.err.contains("while all_reduce of 1048576 bytes is timed"), "{said:?}");
}

#[test]
fn bench_runs_a_hierarchy() {
    let hierarchy = ["bench", "all_to_all", "--ranks", "4", "--threads", "--minbytes", "4K"];
    let pin = ["--algorithm", "hierarchical_direct_direct", "--encoding", "slots"];
    let rest = ["--maxbytes", "4K", "--repeats", "1", "--json", "--no-probe"];
    let said = oxccl(&[&hierarchy[..], &pin, &rest, &["--per-node", "2"]].concat()).ok();
    assert!(said.out.contains("\"wrong\":0"), "{}", said.out);
    let said = oxccl(&[&hierarchy[..], &pin, &rest].concat()).failed(2);
    assert!(
        said.err.contains("4 ranks with 4 on a node: it needs at least two nodes"),
        "{}",
        said.err
    );
}

#[test]
fn doctor_looks_at_everything() {
    let said = oxccl(&["doctor"]).ok();
    for line in [
        "processor",
        "host executor",
        "shared memory",
        "private memory",
        "memory",
        "local (threads)",
        "shm (processes)",
        "rdma",
        "kernels",
        "driver",
    ] {
        assert!(said.out.contains(line), "{line:?} is not in\n{}", said.out);
    }
    assert!(!said.out.contains("BROKEN"), "{}", said.out);
}

/// The stand-in driver in libcuda's place.
#[test]
fn doctor_looks_at_gpus() {
    let folder =
        oxccl_cuda_stand_in::control::library_folder().expect("it is built with the tests");
    let doctor = |settings: &[(&str, &str)]| {
        let mut command = command(&["doctor"]);
        command.env("LD_LIBRARY_PATH", &folder).envs(settings.iter().copied());
        finish(start(&mut command)).ok().out
    };
    let two = doctor(&[("OXCCL_STAND_IN_DEVICES", "2"), ("OXCCL_STAND_IN_PEERS", "0")]);
    assert!(two.contains("it serves CUDA 13.0"), "{two}");
    for device in ["GPU 0: oxccl stand-in, compute capability 9.0", "cannot reach GPU 0", "GPU 1:"]
    {
        assert!(two.contains(device), "{two}");
    }
    assert!(two.contains("take turns") && two.contains("nvidia-cuda-mps-control -d"), "{two}");
    let exclusive = [("OXCCL_STAND_IN_COMPUTE_MODE", "3")];
    let alone = doctor(&exclusive);
    assert!(alone.contains("EXCLUSIVE_PROCESS") && !alone.contains("take turns"), "{alone}");
    // A daemon says where it is by a file with its number; here it is this process.
    let pipes = std::env::temp_dir().join(format!("oxccl-mps-{}", std::process::id()));
    std::fs::create_dir_all(&pipes).unwrap();
    let pid = pipes.join("nvidia-cuda-mps-control.pid");
    for (number, found) in [(std::process::id(), true), (4_194_305, false)] {
        std::fs::write(&pid, format!("{number}\n")).unwrap();
        let there = ("CUDA_MPS_PIPE_DIRECTORY", pipes.to_str().unwrap());
        let said = doctor(&[there, exclusive[0]]);
        assert_eq!(said.contains("MPS is started"), found, "{said}");
    }
    std::fs::remove_dir_all(&pipes).unwrap();
    let old = doctor(&[("OXCCL_STAND_IN_DRIVER", "11080")]);
    assert!(old.contains("version 11.8, 12.1 is needed"), "{old}");
    let none = doctor(&[("OXCCL_STAND_IN_DEVICES", "0")]);
    assert!(none.contains("CUDA_VISIBLE_DEVICES"), "{none}");
}
