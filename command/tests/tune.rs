//! `oxccl tune` writes a table that communicators pick by, and that all ranks must share.
#![allow(clippy::unwrap_used)]

mod command_line;

use command_line::{command, finish, oxccl, start};
use oxccl::plans::tune::{DeviceKind, Table};
use oxccl::{Communicator, Config, Error, UniqueId};
use oxccl_cuda_stand_in::control::{image_file, library_folder};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

/// A file of this test, gone when it ends.
struct TableFile(PathBuf);

impl TableFile {
    fn new(name: &str) -> TableFile {
        TableFile(std::env::temp_dir().join(format!("oxccl-{name}-{}.toml", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        // A test that has failed may not have written it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Two entries that the thresholds never choose, so that a table is seen to be used.
const CURVES: &str = r#"
[[curve]]
kind = "all_reduce"
memory = "windows"
algorithm = "reduce_scatter_all_gather"
encoding = "slots"
points = [[8, 1.0], [65536, 50.0]]

[[curve]]
kind = "all_reduce"
memory = "windows"
algorithm = "ring"
encoding = "slots"
points = [[8, 2.0], [65536, 40.0]]
"#;

fn text(date: &str) -> String {
    format!(
        "machine = \"none\"\ndate = \"{date}\"\nranks = 2\nranks_per_node = 2\ntype = \"float\"\n\
         op = \"sum\"\n{CURVES}"
    )
}

/// The rows of a benchmark under this table, out of place.
fn bench(table: &TableFile, flags: &str) -> Vec<Value> {
    let flags = format!("bench all_reduce --json -n 2 -w 1 --repeats 2 --no-probe {flags}");
    let flags: Vec<&str> = flags.split(' ').collect();
    let said = finish(start(command(&flags).env("OXCCL_TUNING", table.path()))).ok();
    let rows = said.out.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.filter(|row: &Value| row["in_place"] == false).collect()
}

fn algorithms(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["algorithm"].as_str().unwrap()).collect()
}

#[test]
fn a_measured_table_is_what_bench_picks_by() {
    let file = TableFile::new("measured");
    let flags = ["tune", "--quick", "--ranks", "2", "--ops", "all_reduce,broadcast", "-e", "64K"];
    let said = oxccl(&[&flags[..], &["--output", file.path()]].concat()).ok();
    for text in ["all_reduce over 2 ranks, memory of comm.alloc", "private memory", file.path()] {
        assert!(said.out.contains(text), "{text:?} is not in {}", said.out);
    }
    let table = Table::read(&file.0).unwrap();
    assert_eq!((table.ranks, table.ranks_per_node), (2, 2));
    let of_kind = |kind: &str| table.curves.iter().filter(|c| c.kind.name() == kind).count();
    assert!(of_kind("all_reduce") > 10 && of_kind("broadcast") > 4, "{}", table.to_text());
    assert_eq!(table.curves.len(), of_kind("all_reduce") + of_kind("broadcast"));

    // What bench says that it used is what the table says is fastest.
    let windows = oxccl::plans::tune::MemoryKind::Windows;
    for bytes in [8, 64, 256, 4096, 65536] {
        let time = |curve: &&oxccl::plans::tune::Curve| {
            curve.points.iter().find(|p| p.bytes == bytes).map_or(f64::INFINITY, |p| p.time_us)
        };
        let fastest = table
            .curves
            .iter()
            .filter(|c| c.kind.name() == "all_reduce" && c.memory == windows)
            .min_by(|one, other| time(one).total_cmp(&time(other)))
            .unwrap();
        let rows = bench(&file, &format!("--ranks 2 -b {bytes} -e {bytes}"));
        assert_eq!(rows[0]["wrong"], 0);
        assert_eq!(rows[0]["algorithm"], fastest.algorithm.name(), "{bytes} bytes");
        assert_eq!(rows[0]["encoding"], fastest.encoding.name(), "{bytes} bytes");
    }

    let verify = ["tune", "--quick", "-e", "64K", "--ops", "all_reduce", "--verify", file.path()];
    let said = oxccl(&verify).ok();
    // Between the coarse sizes, some of which are refined (and those of a few cache lines then have
    // nothing between them).
    let (_, points) = said.out.split_once("best at ").unwrap();
    let points: Vec<usize> =
        points.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(points[1] >= 8 && points[0] <= points[1], "{}", said.out);
}

/// On the stand-in for libcuda: the table is one of GPUs, and communicators on GPUs pick by it.
#[test]
fn a_table_of_gpus() {
    let file = TableFile::new("gpus");
    let image = image_file().unwrap();
    let on_gpus = |flags: &str| {
        let flags: Vec<&str> = flags.split(' ').collect();
        let mut command = command(&flags);
        command.args(["--device", "cuda", "--image"]).arg(&image);
        command.env("LD_LIBRARY_PATH", library_folder().unwrap());
        command
    };
    let flags = "tune --quick --ranks 2 --ops broadcast -e 256 --output";
    let said = finish(start(&mut on_gpus(&format!("{flags} {}", file.path())))).ok();
    for text in ["broadcast over 2 ranks, memory of comm.alloc", "private memory", file.path()] {
        assert!(said.out.contains(text), "{text:?} is not in {}", said.out);
    }
    let table = Table::read(&file.0).unwrap();
    assert_eq!(table.device, DeviceKind::Cuda);
    assert!(table.machine.contains("stand-in"), "{}", table.machine);
    assert!(table.curves.len() > 4, "{}", table.to_text());

    let written = text_of_gpus();
    std::fs::write(&file.0, written).unwrap();
    let flags = "bench all_reduce --json -n 1 -w 1 --repeats 1 --no-probe --ranks 2 -b 64 -e 64";
    let said = finish(start(on_gpus(flags).env("OXCCL_TUNING", file.path()))).ok();
    assert!(said.out.contains("reduce_scatter_all_gather"), "{}", said.out);
    let explain = command(&["explain", "all_reduce", "--bytes", "64", "--device", "cuda"])
        .env("OXCCL_TUNING", file.path())
        .output()
        .unwrap();
    let said = String::from_utf8(explain.stdout).unwrap();
    assert!(said.contains("reduce_scatter_all_gather / slots"), "{said}");
    let flags = ["bench", "all_reduce", "--threads"];
    let refused = finish(start(command(&flags).env("OXCCL_TUNING", file.path()))).failed(2);
    assert!(refused.err.contains("is a table for cuda"), "{}", refused.err);
    let _ = std::fs::remove_file(&image);
}

fn text_of_gpus() -> String {
    text("today").replace("date", "device = \"cuda\"\ndate")
}

#[test]
fn the_table_decides_and_pins_win() {
    let file = TableFile::new("written");
    std::fs::write(&file.0, text("today")).unwrap();
    let rows = bench(&file, "-b 8 -e 64K -f 8192 --threads");
    assert_eq!(algorithms(&rows), ["reduce_scatter_all_gather", "ring"]);
    let rows = bench(&file, "-b 8 -e 64K -f 8192 --threads --algorithm two_shot");
    assert_eq!(algorithms(&rows), ["two_shot", "two_shot"]);
    // For other numbers of ranks the thresholds decide.
    let rows = bench(&file, "-b 8 -e 8 --threads --ranks 3");
    assert_eq!(algorithms(&rows), ["one_shot"]);
}

#[test]
fn explain_prints_predictions_and_measurements() {
    let file = TableFile::new("explained");
    std::fs::write(&file.0, text("today")).unwrap();
    let explain = |flags: &str| {
        let flags: Vec<&str> = flags.split(' ').collect();
        finish(start(command(&flags).env("OXCCL_TUNING", file.path())))
    };
    let said = explain("explain all_reduce --bytes 8 --rank 0").ok();
    for text in [
        "choice   reduce_scatter_all_gather / slots",
        "why      measured on today: 1.000 us predicted, next is ring/slots 2.000",
        "predicted us",
        "  <- choice",
    ] {
        assert!(said.out.contains(text), "{text:?} is not in {}", said.out);
    }
    let said = explain("explain all_reduce --bytes 8 --measure --rank 0").ok();
    let ring = said.out.lines().find(|line| line.starts_with("ring / slots ")).unwrap();
    let numbers: Vec<f64> = ring.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    assert!(numbers.len() == 2 && numbers[0] == 2.0 && numbers[1] > 0.0, "{ring}");
    let said = explain("explain all_reduce --measure -d double").failed(2);
    assert!(said.err.contains("--measure times float and sum"), "{}", said.err);
}

#[test]
fn a_wrong_table_is_named_before_anything_starts() {
    let file = TableFile::new("wrong");
    std::fs::write(&file.0, text("today").replace("date", "day")).unwrap();
    let mut bench = command(&["bench", "all_reduce", "--threads"]);
    let said = finish(start(bench.env("OXCCL_TUNING", file.path()))).failed(2);
    for text in ["OXCCL_TUNING", file.path(), "unknown field `day`", "`oxccl tune`"] {
        assert!(said.err.contains(text), "{text:?} is not in {}", said.err);
    }
    let said = oxccl(&["tune", "--verify", file.path()]).failed(2);
    assert!(said.err.contains("unknown field `day`"), "{}", said.err);
    let said = oxccl(&["tune", "--ops", "barrier"]).failed(2);
    assert!(said.err.contains("nothing to choose"), "{}", said.err);
}

#[test]
fn ranks_with_different_tables_do_not_start() {
    let (id, _server) = UniqueId::create().unwrap();
    let tables = ["today", "yesterday"].map(|date| Arc::new(Table::parse(&text(date)).unwrap()));
    let start = |rank: usize, table: Option<&Arc<Table>>| {
        let config = Config { heap_bytes: 64 << 20, tuning: table.cloned(), ..Config::default() };
        Communicator::connect(&id, rank, 2, &config).map(drop)
    };
    let errors = std::thread::scope(|scope| {
        let first = scope.spawn(|| start(0, Some(&tables[0])));
        let second = scope.spawn(|| start(1, Some(&tables[1])));
        [first.join().unwrap().unwrap_err(), second.join().unwrap().unwrap_err()]
    });
    for (error, other) in errors.iter().zip(["rank 1", "rank 0"]) {
        assert!(matches!(error, Error::ConfigDiffers { setting: "tuning", .. }), "{error}");
        assert!(error.to_string().contains(&format!("on {other}")), "{error}");
    }
}
