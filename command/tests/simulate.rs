//! `oxccl sim` and `oxccl topo` as a user calls them, and the page in a browser.
#![allow(clippy::unwrap_used)]

mod command_line;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use command_line::{command, oxccl};
use oxccl::plans::simulate::BANDS;
use serde_json::Value;

/// A folder of one test, removed when it goes.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("oxccl-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    let said = oxccl(&[&["sim"], arguments, &["--json"]].concat()).ok();
    said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn rows_have_all_fields_of_bench_and_say_that_they_are_predicted() {
    let bench = [
        "bench",
        "all_reduce",
        "--threads",
        "-b",
        "1K",
        "-e",
        "1K",
        "-n",
        "2",
        "--no-probe",
        "--json",
    ];
    let said = oxccl(&bench).ok();
    let measured: Value = serde_json::from_str(said.out.lines().next().unwrap()).unwrap();
    let predicted = rows(&["all_reduce", "-t", "host", "-g", "2", "--sizes", "1K,1M"]);
    assert!(predicted.len() >= 16, "all entries at both sizes: {}", predicted.len());
    for row in &predicted {
        assert_eq!(row["predicted"], true);
        for key in measured.as_object().unwrap().keys() {
            assert!(row.get(key).is_some(), "{key} is missing in {row}");
        }
        assert!(row["time_us"].as_f64().unwrap() > 0.0 && row["wrong"].is_null());
    }
}

#[test]
fn the_table_and_comma_separated_values_say_predicted() {
    let said = oxccl(&["sim", "all_reduce", "-t", "dgx-a100", "-b", "1M", "-e", "64M"]).ok();
    assert!(said.out.contains("PREDICTED times of all_reduce, nothing was run"), "{}", said.out);
    assert!(said.out.contains("two_shot_push/windows"), "{}", said.out);
    assert!(said.out.contains("# the best 3 of 33 at each size; --all"), "{}", said.out);
    let said = oxccl(&["sim", "broadcast", "--csv", "--sizes", "1M"]).ok();
    let mut lines = said.out.lines();
    let names: Vec<_> = lines.next().unwrap().split(',').collect();
    let predicted = names.iter().position(|name| *name == "predicted").unwrap();
    for line in lines {
        let values: Vec<_> = line.split(',').collect();
        assert_eq!((values.len(), values[predicted]), (names.len(), "true"), "{line}");
    }
}

/// Each size has one row of NCCL besides, in all forms; published figures are near them.
#[test]
fn nccl_is_predicted_beside_the_catalogue() {
    let call = ["all_reduce", "-t", "dgx-h100", "--nccl", "--sizes", "1K,1G"];
    let found = rows(&call);
    let of = |row: &&Value| row["algorithm"].as_str().unwrap().starts_with("nccl_");
    let found: Vec<&Value> = found.iter().filter(of).collect();
    // 8 H100 by NCCL: NVIDIA/dgxc-benchmarking, nccl/README.md.
    for (row, (way, class, published)) in
        found.iter().zip([("nccl_ring ll", "short", 16.94), ("nccl_nvls simple", "long", 4029.4)])
    {
        let [algorithm, protocol] = ["algorithm", "encoding"].map(|key| row[key].as_str().unwrap());
        assert_eq!(format!("{algorithm} {protocol}"), way, "{row}");
        assert_eq!((&row["error_class"], &row["chosen"]), (&class.into(), &false.into()), "{row}");
        let off = row["time_us"].as_f64().unwrap() / published - 1.0;
        let within = row["error_percent"].as_f64().unwrap() / 100.0;
        assert!(off.abs() <= within, "{row}");
    }
    assert_eq!(found.len(), 2);
    let table = oxccl(&[&["sim"], &call[..], &["--best", "1"]].concat()).ok().out;
    assert!(table.contains("  NCCL ring/ll ") && table.contains("  NCCL nvls/simple "), "{table}");
    assert!(table.contains("# ±: four fifths of published measurements"), "{table}");
    let values = oxccl(&[&["sim"], &call[..], &["--csv"]].concat()).ok().out;
    let lines: Vec<&str> = values.lines().collect();
    let columns = |line: &str| line.split(',').count();
    assert!(lines.iter().all(|line| columns(line) == columns(lines[0])), "{values}");
    assert_eq!(values.matches(",nccl_ring,ll,").count(), 1, "{values}");
    // Where nothing is known, that is said.
    let said = oxccl(&["sim", "all_reduce", "-t", "host", "-g", "2", "--nccl"]).failed(2);
    assert!(said.err.contains("is not known of the devices of host"), "{}", said.err);
    let host = oxccl(&["sim", "all_reduce", "-t", "host", "-g", "2", "--sizes", "1K"]).ok().out;
    assert!(host.contains("# ±: ? has not been measured"), "{host}");
}

#[test]
fn what_disturbs_calls_is_said_and_follows_its_seed() {
    let folder = Folder::new("disturbed");
    let file = folder.path("spine.toml");
    let preset = oxccl(&["topo", "dgx-h100 x 4", "--toml"]).ok().out;
    let spine = "[fabric.spine]\nlink = \"ib\"\nnodes_per_leaf = 2\nuplinks = 4\n\n[[parts]]";
    fs::write(&file, preset.replacen("[[parts]]", spine, 1)).unwrap();
    let call = ["all_to_all", "-t", &file, "--sizes", "64M", "--algorithm", "direct"];
    let time = |more: &[&str]| {
        rows(&[&call[..], &["--encoding", "slots"], more].concat())[0]["time_us"].as_f64().unwrap()
    };
    let plain = time(&[]);
    assert!(time(&["--ecmp"]) > 1.05 * plain && time(&["--load", "50"]) > 1.5 * plain);
    assert_eq!(time(&["--ecmp", "--seed", "7"]), time(&["--ecmp", "--seed", "7"]));
    let noisy = ["--noise", "20", "--seed", "2"];
    assert!(time(&noisy) > plain && time(&noisy) == time(&noisy));
    let said = oxccl(&[&["sim"], &call[..], &["--ecmp", "--load", "30"], &noisy].concat()).ok();
    let told = "others take 30 % of the fabric, flows collide (ECMP), steps take 20 % longer on \
                average, seed 2";
    assert!(said.out.contains(told), "{}", said.out);
    for (more, told) in [
        (&["-t", "dgx-h100 x 2", "--ecmp"][..], "has no spine, so that flows cannot collide"),
        (&["--load", "20"], "all ranks are on one node of dgx-h100"),
        (&["--load", "100"], "100 is not in 0..100"),
        (&["--noise", "much"], "is no number from 0 to 1000"),
    ] {
        let said = oxccl(&[&["sim", "all_reduce"], more].concat()).failed(2);
        assert!(said.err.contains(told), "{more:?}: {}", said.err);
    }
}

#[test]
fn the_table_fits_a_terminal_and_has_the_fastest_first() {
    let table = |arguments: &[&str]| {
        let two = ["sim", "all_reduce", "-t", "dgx-h100 x 2", "--sizes", "64K"];
        oxccl(&[&two[..], arguments].concat()).ok().out
    };
    let (few, one, all) = (table(&[]), table(&["--best", "1"]), table(&["--all"]));
    let rows = |text: &str| {
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        rows.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let [few_rows, one_row, all_rows]: [Vec<Vec<String>>; 3] = [&few, &one, &all].map(|t| rows(t));
    assert_eq!((few_rows.len(), one_row.len()), (3, 1), "{few}\n{one}");
    assert_eq!(one_row[0], few_rows[0]);
    assert_eq!(all_rows[..3], few_rows[..]);
    // Behind the name come channels and tile, and then the time.
    let times = all_rows.iter().map(|row| {
        let name = row.iter().position(|word| word.contains('/')).unwrap();
        assert!(row[name + 1].ends_with("x256K"), "{row:?}");
        row[name + 2].parse().unwrap()
    });
    let times: Vec<f64> = times.collect();
    assert!(times.len() > 12 && times.is_sorted(), "{all}");
    assert!(all.contains("up to 16 channels, tiles of up to 256K, in LL and LL128 4K"), "{all}");
    assert_eq!(all_rows.iter().filter(|row| row.contains(&"*".to_owned())).count(), 1, "{all}");
    // As the runtime has it, nothing but slots goes between nodes.
    assert!(!all.contains("/ll") && !all.contains("two_shot/windows"), "{all}");
    for line in all.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn a_schedule_of_ones_own_is_simulated_beside_the_catalogue() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/custom_schedule.json");
    let folder = Folder::new("custom");
    let found = rows(&["--schedule", FILE, "--sizes", "64K"]);
    assert_eq!(found[0]["algorithm"], "custom");
    assert_eq!((&found[0]["op"], &found[0]["ranks"]), (&"all_reduce".into(), &4.into()));
    assert!(found.len() > 20 && found[1..].iter().all(|row| row["algorithm"] != "custom"));
    let (trace, page) = (folder.path("trace.json"), folder.path("page.html"));
    let said = oxccl(&[
        "sim",
        "--schedule",
        FILE,
        "--sizes",
        "1K,64K",
        "--channels",
        "1",
        "--links",
        "--trace",
        &trace,
        "--html",
        &page,
    ])
    .ok();
    assert_eq!(said.out.matches("custom_schedule.json").count(), 2, "{}", said.out);
    let trace: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of_rank_1 = events.iter().filter(|event| event["ph"] == "X" && event["pid"] == 1);
    let steps = oxccl::plans::schedule::ScheduleFile::read(Path::new(FILE)).unwrap().schedule.lists;
    assert_eq!(of_rank_1.count(), steps[1].len());
    assert!(fs::read_to_string(&page).unwrap().contains("\"name\":\"custom_schedule.json\""));
    for (arguments, expected) in [
        (&["broadcast"][..], "OP is broadcast, but the schedule"),
        (&["-g", "8"], "is made for 4"),
        (&["--order", "tree"], "promises order rank"),
        (&["-t", "dgx-h100", "--nodes", "1", "--per-node", "2"], "4 ranks do not fit"),
    ] {
        let said = oxccl(&[&["sim", "--schedule", FILE][..], arguments].concat());
        assert!(said.err.contains(expected) && !said.status.success(), "{}", said.err);
    }
    let said = oxccl(&["sim"]).failed(2);
    assert!(said.err.contains("OP"), "{}", said.err);
}

/// Settings that change calls change what is predicted of them.
#[test]
fn channels_and_tiles_are_the_settings() {
    let sim = |variables: &[(&str, &str)]| {
        let flags = ["sim", "all_reduce", "--algorithm", "ring", "--encoding", "slots"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
        command.args(flags).args(["--sizes", "64M", "--json"]).envs(variables.iter().copied());
        let out = command.output().unwrap();
        let row: Value = serde_json::from_slice(&out.stdout).unwrap();
        (row["channels"].as_u64().unwrap(), row["tile_bytes"].as_u64().unwrap())
    };
    assert_eq!(sim(&[]), (16, 64 << 10));
    let changed = [("OXCCL_MAX_CHANNELS", "3"), ("OXCCL_SLOT_BYTES", "4096")];
    assert_eq!(sim(&changed), (3, 4096));
    let explained = |bytes: &str| {
        let flags = ["explain", "all_reduce", "-g", "8", "--device", "cuda", "--rank", "0", "-b"];
        oxccl(&[&flags[..], &[bytes]].concat()).ok().out
    };
    for bytes in ["1K", "64K", "1M", "64M"] {
        let rows = rows(&["all_reduce", "--sizes", bytes]);
        let chosen: Vec<&Value> = rows.iter().filter(|row| row["chosen"] == true).collect();
        let [row] = chosen[..] else { panic!("{chosen:?}") };
        let text = |field: &str| row[field].as_str().unwrap();
        let choice = format!(
            "choice   {} / {}, {} channel",
            text("algorithm"),
            text("encoding"),
            row["channels"]
        );
        let said = explained(bytes);
        assert!(said.contains(&choice), "{choice} is not in {said}");
    }
}

/// One rank of a world whose proof would take minutes.
#[test]
fn one_rank_of_a_large_world_is_explained_alone() {
    let flags = ["explain", "all_reduce", "-g", "4096", "--algorithm", "ring", "--rank", "7"];
    let said = oxccl(&flags).ok().out;
    assert!(said.contains("proof    none: rank 7's instructions alone were made"), "{said}");
    assert!(said.contains("rank 7: ") && !said.contains("rank 8: "), "{said}");
}

#[test]
fn every_link_has_its_bytes_and_its_utilisation() {
    let flags = ["--algorithm", "ring", "--encoding", "slots", "--sizes", "64M", "--links"];
    let said = oxccl(&[&["sim", "all_gather", "-t", "dgx-a100"][..], &flags].concat()).ok();
    let links: Vec<&str> = said.out.lines().filter(|line| line.ends_with(" nvlink")).collect();
    assert_eq!(links.len(), 16, "{}", said.out);
    // 7/8 of 64 MiB in each direction.
    assert!(links.iter().all(|line| line.trim_start().starts_with("58720256 ")), "{}", said.out);
}

#[test]
fn every_collective_can_be_predicted_on_every_preset() {
    let list = oxccl(&["topo", "--list"]).ok();
    let presets: Vec<&str> =
        list.out.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(presets.contains(&"dgx-h100") && presets.contains(&"this"), "{presets:?}");
    for op in [
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "send_recv",
        "barrier",
    ] {
        for preset in &presets {
            let found = rows(&[op, "-t", preset, "-g", "2", "--sizes", "64K"]);
            assert!(!found.is_empty(), "{op} on {preset}");
        }
    }
}

#[test]
fn what_cannot_be_is_said_with_a_remedy() {
    let refuses = |arguments: &[&str], expected: &str| {
        let said = oxccl(&[&["sim"], arguments].concat());
        assert!(said.err.contains(expected), "{arguments:?}: {}", said.err);
        assert!(!said.status.success(), "{arguments:?}");
    };
    refuses(&["all_reduce", "-t", "dgx-x"], "there are dgx-a100, dgx-h100");
    refuses(&["all_reduce", "-t", "dgx-h10 x 2"], "Did you mean dgx-h100?");
    refuses(&["all_reduce", "--algorithm", "one_shoot"], "Did you mean one_shot?");
    refuses(&["allreduce"], "Did you mean all_reduce?");
    refuses(&["all_reduce", "-t", "dgx-h100 x many"], "is no topology");
    refuses(&["all_reduce", "-t", "missing.toml"], "missing.toml: cannot be read");
    refuses(&["all_reduce", "-t", "host", "--nodes", "2"], "fabric is missing");
    refuses(&["all_reduce", "-t", "dgx-h100", "--nodes", "1", "-g", "9"], "9 ranks do not fit");
    refuses(&["all_reduce", "--json", "--csv"], "both say what is printed");
    refuses(&["all_reduce", "-g", "65537"], "65537 ranks: up to 65536 are predicted");
    refuses(&["all_reduce", "--algorithm", "pairwise"], "there are one_shot/ll");
    refuses(
        &["all_reduce", "--order", "rank", "--algorithm", "ring"],
        "no such algorithm keeps order rank",
    );
    refuses(
        &["all_reduce", "--algorithm", "hierarchical_ring_tree"],
        "it needs at least two nodes, with the same number of ranks each",
    );
    refuses(&["broadcast", "-r", "8"], "--root is 8, there are ranks 0 to 7");
    refuses(&["all_reduce", "--trace", "x.json"], "name it with --algorithm and --encoding");
    refuses(
        &["all_reduce", "--nodes", "2", "--algorithm", "two_shot", "--encoding", "windows"],
        "reaches into a buffer of rank 8, which is on another node",
    );
}

#[test]
fn a_topology_can_be_written_changed_and_used() {
    let folder = Folder::new("topology");
    let path = folder.path("half.toml");
    let text = oxccl(&["topo", "dgx-h100", "--toml"]).ok().out;
    let time = |topology: &str| {
        let arguments = [
            "all_reduce",
            "-t",
            topology,
            "--algorithm",
            "ring",
            "--encoding",
            "slots",
            "--sizes",
            "1G",
            "--channels",
            "32",
            "--tile",
            "512K",
        ];
        rows(&arguments)[0]["time_us"].as_f64().unwrap()
    };
    fs::write(&path, text.replace("gbps = 450.0", "gbps = 225.0")).unwrap();
    let ratio = time(&path) / time("dgx-h100");
    assert!((ratio - 2.0).abs() < 0.02, "half the bandwidth: {ratio}");
    fs::write(&path, text.replacen("link = \"nvlink\"", "link = \"nvlink9\"", 1)).unwrap();
    let said = oxccl(&["sim", "all_reduce", "-t", &path]);
    assert!(said.err.contains("half.toml: connections["), "{}", said.err);
    assert!(said.err.contains("names the link \"nvlink9\", which is not defined"), "{}", said.err);
    assert!(said.err.contains("use one of: ib, nvlink, pcie, upi"), "{}", said.err);
}

#[test]
fn the_matrix_of_a_preset_has_a_legend() {
    let said = oxccl(&["topo", "dgx-a100"]).ok();
    for expected in
        ["gpu0", "nvlink", "PIX", "SYS", "numa1", "300.00 GB/s, 240.00 of them for data"]
    {
        assert!(said.out.contains(expected), "{expected}: {}", said.out);
    }
    let said = oxccl(&["topo"]).ok();
    assert!(said.out.starts_with("this: 1 node(s)"), "{}", said.out);
}

#[test]
fn every_pair_of_local_ranks_is_measured_alone_and_at_once() {
    let said = oxccl(&["topo", "--measure", "-g", "3"]).ok();
    let titles = said.out.lines().filter(|line| line.contains("alone") || line.contains("at once"));
    assert_eq!(titles.count(), 4, "{}", said.out);
    let rows: Vec<Vec<&str>> = said
        .out
        .lines()
        .filter(|line| line.starts_with("rank "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 4 * 3, "{}", said.out);
    for row in rows {
        let cells = &row[2..];
        assert_eq!(cells.iter().filter(|cell| **cell == "-").count(), 1, "{row:?}");
        let figures = cells.iter().filter(|cell| **cell != "-");
        assert!(figures.clone().count() == 2, "{row:?}");
        figures.for_each(|cell| assert!(cell.parse::<f64>().unwrap() > 0.0, "{row:?}"));
    }
}

#[test]
fn a_trace_has_every_step_of_every_rank() {
    let folder = Folder::new("trace");
    let path = folder.path("trace.json");
    let arguments = [
        "sim",
        "all_reduce",
        "-t",
        "dgx-h100",
        "-g",
        "4",
        "--sizes",
        "64K",
        "--algorithm",
        "ring",
        "--encoding",
        "slots",
        "--channels",
        "1",
        "--trace",
        &path,
    ];
    let said = oxccl(&arguments).ok();
    assert!(said.err.contains("critical path, predicted"), "{}", said.err);
    let trace: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let steps = oxccl(&[
        "explain",
        "all_reduce",
        "-g",
        "4",
        "--algorithm",
        "ring",
        "--encoding",
        "slots",
        "--rank",
        "2",
        "-b",
        "64K",
    ])
    .ok()
    .out
    .lines()
    .filter(|line| {
        line.starts_with("  ") && line.trim_start().starts_with(|c: char| c.is_ascii_digit())
    })
    .count();
    let events = trace["traceEvents"].as_array().unwrap();
    let of_rank = events.iter().filter(|event| event["ph"] == "X" && event["pid"] == 2);
    assert_eq!(of_rank.count(), steps);
}

#[test]
fn the_documented_predictions_are_those_of_the_simulator() {
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/simulator.md")).unwrap();
    let predicted = |op: &str, topology: &str, size: &str, more: &[&str]| {
        let pins = ["--channels", "24", "--tile", "512K"];
        let found = rows(&[&[op, "-t", topology, "--sizes", size], more, &pins].concat());
        assert_eq!(found.len(), 1);
        found[0]["busbw_gbps"].as_f64().unwrap()
    };
    let ring = ["--algorithm", "ring", "--encoding", "slots"];
    for (machine, topology, size, text_size) in [
        ("8 H100", "dgx-h100", "1G", "1 GiB"),
        ("8 H100", "dgx-h100", "8G", "8 GiB"),
        ("8 A100", "dgx-a100", "1G", "1 GiB"),
        ("8 A100", "dgx-a100", "8G", "8 GiB"),
    ] {
        let found = predicted("all_reduce", topology, size, &ring);
        let row = format!("| {machine}, ring all-reduce, {text_size} | {found:.1} |");
        assert!(text.contains(&row), "{row}");
    }
    for (op, algorithm, name, published) in [
        ("all_reduce", "hierarchical_ring_ring", "all-reduce", 378.0),
        ("all_gather", "hierarchical_ring_ring", "all-gather", 404.0),
        ("all_to_all", "hierarchical_direct_direct", "all-to-all", 91.0),
    ] {
        let pin = ["--algorithm", algorithm, "--encoding", "slots"];
        let found = predicted(op, "dgx-h100 x 2", "4G", &pin);
        let row = format!(", {name}, 4 GiB | {found:.1} | {published:.0} |");
        assert!(text.contains(&row), "{row}");
        assert!((found / published - 1.0).abs() < 0.1, "{found} {published}");
    }
    for band in BANDS {
        let row = format!("| {} | within {} % |", band.rows, band.percent);
        let class = format!("| {} | ", band.class.in_words());
        let found = text.lines().find(|line| line.starts_with(&class));
        assert!(found.is_some_and(|line| line.contains(&row)), "{class} … {row}");
    }
    let switch = ["--algorithm", "two_shot_push", "--in-network"];
    let switched = predicted("all_reduce", "dgx-h100", "8G", &switch);
    let row = format!("| 8 | {:.0} | 273 | {switched:.0} | 470-480", switched / 1.75);
    assert!(text.contains(&row), "{row}");
}

#[test]
fn the_page_renders_and_plays_without_network() {
    let folder = Folder::new("page");
    let path = folder.path("page.html");
    oxccl(&[
        "sim",
        "all_reduce",
        "-t",
        "dgx-h100",
        "-b",
        "1K",
        "-e",
        "64M",
        "-f",
        "16",
        "--html",
        &path,
    ])
    .ok();
    let text = fs::read_to_string(&path).unwrap();
    // It asks for nothing: it has no address, and its policy forbids to load any.
    for address in ["http:", "https:", "//www", "src=", "@import", "url(h"] {
        assert!(!text.contains(address), "{address}");
    }
    assert!(text.contains("default-src 'none'"));
    for encoding in ["ll", "ll128", "slots", "windows"] {
        assert!(text.contains(&format!(" {encoding}: \"")), "{encoding} has no line");
    }
    let Some(chromium) = chromium() else {
        return skipped("the_page_renders_and_plays_without_network", "no chromium on PATH");
    };
    let shown = dom(&chromium, &folder, &format!("file://{path}"));
    assert!(!shown.contains("data-error"), "{}", head(&shown));
    assert!(shown.contains("data-ready=\"34 series, 34 schedules, "), "{}", head(&shown));
    for expected in ["<polyline", "<circle", "one_shot/ll", "is fastest", "PREDICTED"] {
        assert!(shown.contains(expected), "{expected} is missing");
    }
    assert!(shown.contains("data-time=\"0.0\""), "it waits for a click: {}", head(&shown));
    assert!(shown.contains("data-axes=\"log log\""), "{}", head(&shown));
    let wishes = "#which=10&size=0&axes=linear&play";
    let played = dom(&chromium, &folder, &format!("file://{path}{wishes}"));
    assert!(!played.contains("data-error"), "{}", head(&played));
    assert!(played.contains("data-played=\"ring/slots\""), "{}", head(&played));
    assert!(played.contains("data-axes=\"linear linear\""), "{}", head(&played));
    assert!(played.contains("<td>done</td>"), "{}", head(&played));
    assert!(played.contains("ring/slots on 8 ranks and one channel, 1 KiB"), "{}", head(&played));
}

/// Lists of a rank that run side by side are played side by side.
#[test]
fn the_page_plays_lists_side_by_side() {
    let folder = Folder::new("lists");
    let path = folder.path("page.html");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/two_lists.json");
    oxccl(&["sim", file, "--sizes", "64K,1M", "--nccl", "--html", &path]).ok();
    let text = fs::read_to_string(&path).unwrap();
    let data = text.lines().find_map(|line| line.strip_prefix("const DATA = ")).unwrap();
    let data: Value = serde_json::from_str(data.trim_end_matches(';')).unwrap();
    let schedule = &data["played"]["schedules"][0];
    let lists = schedule["steps"].as_array().unwrap().len();
    assert_eq!((&schedule["lists"], lists), (&2.into(), 4), "{schedule}");
    assert_eq!(schedule["devices"].as_array().unwrap().len(), 2);
    let series = data["worlds"][0]["series"].as_array().unwrap();
    assert_eq!(series.last().unwrap()["name"], "NCCL");
    let Some(chromium) = chromium() else {
        return skipped("the_page_plays_lists_side_by_side", "no chromium on PATH");
    };
    let shown = dom(&chromium, &folder, &format!("file://{path}#which=0&size=0&at=0.4"));
    assert!(!shown.contains("data-error"), "{}", head(&shown));
    assert!(shown.contains("on 2 ranks and 2 channels, one a list"), "{}", head(&shown));
    for list in ["0/0", "0/1", "1/0", "1/1"] {
        assert!(shown.contains(&format!("<td>{list}</td>")), "{list}");
    }
}

#[test]
fn figures_have_the_data_of_the_table() {
    let folder = Folder::new("figures");
    let (csv, svg) = (folder.path("values.csv"), folder.path("figure.svg"));
    let sim = ["sim", "all_reduce", "-t", "dgx-h100", "-b", "1K", "-e", "64M"];
    let printed = oxccl(&[&sim[..], &["--csv"]].concat()).ok().out;
    let files = [format!("--csv={csv}"), format!("--svg={svg}")];
    let table = oxccl(&[&sim[..], &[&files[0], &files[1]]].concat()).ok().out;
    assert!(table.starts_with("# oxccl"), "{table}");
    assert_eq!(fs::read_to_string(&csv).unwrap(), printed);
    let figure = fs::read_to_string(&svg).unwrap();
    assert!(figure.starts_with("<svg xmlns=") && figure.trim_end().ends_with("</svg>"));
    assert_eq!(figure.matches("http").count(), 1, "the name of the format alone");
    // Those that the table names, each with a point a size and the time that the values have.
    let mut names: Vec<&str> = table
        .split_whitespace()
        .filter(|word| word.contains('/') && !word.starts_with('('))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| printed.contains(&name.replace('/', ",")));
    assert_eq!(figure.matches("<polyline").count(), names.len(), "{names:?}");
    assert_eq!(figure.matches("<circle").count(), 9 * names.len());
    for name in names {
        assert!(figure.contains(&format!("<title>{name}, 64M: ")), "{name}");
    }
    let heads: Vec<&str> = printed.lines().next().unwrap().split(',').collect();
    let column = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    for line in printed.lines().skip(1) {
        let values: Vec<&str> = line.split(',').collect();
        let name =
            format!("<title>{}/{}, ", values[column("algorithm")], values[column("encoding")]);
        let time = format!(": {} us, predicted", values[column("time_us")]);
        assert!(!figure.contains(&name) || figure.contains(&time), "{name} {time}");
    }
    let said = oxccl(&[&sim[..], &["--svg", "/dev/null/x.svg"]].concat()).failed(1);
    assert!(said.err.contains("writing the figure /dev/null/x.svg"), "{}", said.err);
}

#[test]
fn pages_are_below_a_megabyte_and_play_every_size() {
    let folder = Folder::new("pages");
    let path = folder.path("page.html");
    for topology in ["dgx-h100", "dgx-h100 x 2"] {
        oxccl(&["sim", "all_reduce", "-t", topology, "-f", "2", "--html", &path]).ok();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.len() < 1_000_000, "{topology}: {} bytes", text.len());
        let data = text.lines().find_map(|line| line.strip_prefix("const DATA = ")).unwrap();
        let data: Value = serde_json::from_str(data.trim_end_matches(';')).unwrap();
        let played = &data["played"];
        let sizes = played["sizes"].as_array().unwrap().len();
        let calls = played["calls"].as_array().unwrap().len() as u64;
        let names = |list: &str| {
            let series = &data["worlds"][0]["series"];
            let all = if list == "series" { series } else { &played["schedules"] };
            all.as_array().unwrap().iter().map(|one| one["name"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(names("series"), names("schedules"), "{topology}");
        for schedule in played["schedules"].as_array().unwrap() {
            let own = schedule["calls"].as_array().unwrap();
            assert_eq!(own.len(), sizes);
            assert!(own.iter().all(|call| call.as_u64().is_some_and(|at| at < calls)), "{own:?}");
        }
    }
}

/// Rows come while other algorithms of the size are still being simulated, and Ctrl-C leaves what
/// is there, in files too.
#[test]
fn an_interrupted_sweep_keeps_what_it_has() {
    let folder = Folder::new("interrupted");
    let (csv, svg, page) =
        (folder.path("values.csv"), folder.path("figure.svg"), folder.path("page.html"));
    let mut sim = command(&["sim", "all_reduce", "-t", "dgx-h100", "-g", "4096", "--json"]);
    sim.args(["--sizes", "1G,2G,4G,8G"]);
    sim.args([format!("--csv={csv}"), format!("--svg={svg}"), format!("--html={page}")]);
    let mut child = sim.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    out.read_line(&mut printed).unwrap();
    let first: Value = serde_json::from_str(&printed).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    out.read_to_string(&mut printed).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(2), "as Ctrl-C ends other commands");
    let rows: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_of_first_size = |row: &Value| row["bytes"] == first["bytes"];
    assert!(rows.iter().all(is_of_first_size), "{} rows", rows.len());
    let written = fs::read_to_string(&csv).unwrap();
    assert_eq!(written.lines().count(), rows.len() + 1);
    assert!(written.contains(first["algorithm"].as_str().unwrap()), "{written}");
    assert!(fs::read_to_string(&svg).unwrap().trim_end().ends_with("</svg>"));
    assert!(fs::read_to_string(&page).unwrap().contains(first["algorithm"].as_str().unwrap()));
}

/// Worlds of several numbers of nodes, in one table, one file and one page.
#[test]
fn worlds_of_several_numbers_of_nodes_are_on_one_page() {
    let folder = Folder::new("nodes");
    let (csv, page) = (folder.path("values.csv"), folder.path("page.html"));
    let files = [format!("--csv={csv}"), format!("--html={page}")];
    let sim = ["sim", "all_reduce", "-t", "dgx-h100", "--nodes", "8,2,4", "--sizes", "1M,64M"];
    let table = oxccl(&[&sim[..], &[&files[0], &files[1]]].concat()).ok().out;
    let heads: Vec<&str> = table.lines().filter(|line| line.contains("# topology")).collect();
    assert_eq!(heads.len(), 3, "{table}");
    for (head, ranks) in heads.iter().zip(["16 ranks on 2 node(s)", "32 ranks", "64 ranks"]) {
        assert!(head.contains(ranks), "{head}");
    }
    let values = fs::read_to_string(&csv).unwrap();
    assert_eq!(values.matches("algorithm").count(), 1, "one line of names: {values}");
    let one = ["sim", "all_reduce", "-t", "dgx-h100", "--nodes", "4", "--sizes", "1M,64M"];
    let one = oxccl(&[&one[..], &["--csv"]].concat()).ok().out;
    assert!(one.lines().skip(1).all(|line| values.contains(line)), "the same as by itself");
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.len() < 1_000_000, "{} bytes", text.len());
    for flags in [["--svg", "x.svg"], ["--ranks", "8"], ["--trace", "x.json"]] {
        let said = oxccl(&[&sim[..], &flags].concat()).failed(2);
        assert!(said.err.contains("--nodes names several"), "{}", said.err);
    }
    let Some(chromium) = chromium() else {
        return skipped("worlds_of_several_numbers_of_nodes_are_on_one_page", "no chromium");
    };
    for (wish, nodes) in [("", 2), ("#nodes=8", 8)] {
        let shown = dom(&chromium, &folder, &format!("file://{page}{wish}"));
        assert!(!shown.contains("data-error"), "{}", head(&shown));
        assert!(head(&shown).contains(&format!("data-nodes=\"{nodes}\"")), "{}", head(&shown));
    }
    let shown = dom(&chromium, &folder, &format!("file://{page}"));
    for text in [">4</button>", ", 8 nodes: "] {
        assert!(shown.contains(text), "{text}");
    }
}

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|file| file.is_file())
}

/// The page as a browser has it after half a minute of its own time, with every name unresolvable.
fn dom(chromium: &Path, folder: &Folder, address: &str) -> String {
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args([
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=30000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", folder.path("profile")))
        .arg(address)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn head(dom: &str) -> String {
    let at = dom.find("<body").unwrap_or(0);
    dom[at..].chars().take(300).collect()
}

fn skipped(name: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

#[test]
fn traces_of_a_real_run_and_of_a_prediction_have_the_same_steps() {
    let folder = Folder::new("both");
    let (real, predicted) = (folder.path("real.json"), folder.path("predicted.json"));
    let pinned = ["--algorithm", "ring", "--encoding", "slots", "--channels", "1", "-g", "3"];
    let bench = [
        "bench",
        "all_reduce",
        "-b",
        "1M",
        "-e",
        "1M",
        "-n",
        "2",
        "--repeats",
        "1",
        "--no-probe",
        "--trace",
        &real,
    ];
    oxccl(&[&bench[..], &pinned].concat()).ok();
    let sim = ["sim", "all_reduce", "-t", "host", "--sizes", "1M", "--trace", &predicted];
    oxccl(&[&sim[..], &pinned].concat()).ok();
    let steps = |path: &str| {
        let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().clone();
        let mut steps: Vec<String> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["pid"].as_u64() < Some(3))
            .map(|event| {
                let args = &event["args"];
                format!(
                    "{} {} {} {} {}",
                    event["pid"], event["tid"], args["round"], args["step"], event["name"]
                )
            })
            .collect();
        steps.sort();
        steps
    };
    let real = steps(&real);
    assert!(real.len() > 100, "{}", real.len());
    assert_eq!(real, steps(&predicted));
    let many = ["bench", "all_reduce", "-o", "all", "--trace", "x.json"];
    assert!(oxccl(&many).err.contains("--trace shows one call"));
}
