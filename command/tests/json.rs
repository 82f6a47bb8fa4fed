//! What `--json` prints can be read, has its version, and is what docs/json.md says.

mod command_line;

use std::collections::BTreeSet;
use std::fs;

use command_line::{Said, oxccl};
use serde_json::Value;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.md");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/custom_schedule.json");
const NDV2: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/ndv2.toml");

/// What a section of the page has in backticks, and all that applies to every verb.
fn documented(verb: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(PAGE).expect("the page is there");
    let mut sections = page.split("\n## ");
    let begin = sections.next().expect("there is a beginning");
    let section = sections.find(|section| section.lines().next() == Some(verb));
    let section = section.unwrap_or_else(|| panic!("{PAGE} has no section {verb}"));
    // The rows of sim are those of bench, and more.
    let bench = if verb == "sim" { documented("bench") } else { BTreeSet::new() };
    let quoted = |text: &str| -> Vec<String> {
        text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    quoted(begin).into_iter().chain(quoted(section)).chain(bench).collect()
}

/// All fields, of objects inside of objects, too. Those of `links` are names of links.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            match (name.as_str(), value) {
                ("links", Value::Object(links)) => links.values().for_each(|v| fields(v, found)),
                _ => fields(value, found),
            }
        }),
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

/// The objects that a command prints, with their versions, and no fields that are not documented.
#[track_caller]
fn objects(said: &Said, verb: &str) -> Vec<Value> {
    let all: Vec<Value> = said
        .out
        .lines()
        .map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in line {line}"))
        })
        .collect();
    assert!(!all.is_empty(), "{}", said.err);
    let mut found = BTreeSet::new();
    for one in &all {
        assert_eq!((&one["format"], &one["oxccl"]), (&1.into(), &env!("CARGO_PKG_VERSION").into()));
        fields(one, &mut found);
    }
    let documented = documented(verb);
    let unknown: Vec<_> = found.difference(&documented).collect();
    assert!(unknown.is_empty(), "{PAGE} does not say what {unknown:?} of {verb} are");
    all
}

fn one(arguments: &[&str]) -> Value {
    let objects = objects(&oxccl(arguments).ok(), arguments[0]);
    let [one] = &objects[..] else { panic!("one object: {objects:?}") };
    one.clone()
}

#[test]
fn rows_of_bench_and_sim() {
    let bench = ["bench", "all_reduce", "--threads", "-b", "64", "-e", "64", "-n", "2", "--json"];
    assert_eq!(objects(&oxccl(&bench).ok(), "bench").len(), 2);
    let sim = ["sim", "all_reduce", "-t", "host", "-g", "2", "--sizes", "64", "--json"];
    let rows = objects(&oxccl(&sim).ok(), "sim").len();
    assert!(rows > 10, "{rows}");
}

#[test]
fn what_synth_finds() {
    let call = ["synth", "all_gather", "-t", NDV2, "-b", "64M"];
    let found = one(&[&call[..], &["--candidates", "20", "--json"]].concat());
    assert_eq!((&found["predicted"], &found["faster"]), (&true.into(), &true.into()));
    assert_eq!((&found["file"], &found["candidates"]), (&Value::Null, &20.into()));
    let time = |which: &str| found[which]["time_us"].as_f64().expect("a time");
    let ratio = found["ratio"].as_f64().expect("a ratio");
    assert!((time("found") / time("catalogue") - ratio).abs() < 1e-3, "{found}");
}

#[test]
fn schedules_of_verify() {
    let said = oxccl(&["verify", "all_reduce", "--ranks", "3", "--json"]).ok();
    let all = objects(&said, "verify");
    let of = |verdict: &str| all.iter().filter(|one| one["verdict"] == verdict).count();
    assert_eq!(of("proven") + of("unavailable"), all.len());
    assert!(of("proven") > 20 && of("unavailable") > 0, "{}", said.out);
    let ring = |ranks: &str| {
        let ring = ["--algorithm", "ring", "--encoding", "slots", "--order", "any", "--json"];
        one(&[&["verify", "all_reduce", "--ranks", ranks][..], &ring].concat())
    };
    let (few, many) = (ring("8"), ring("1024"));
    assert_eq!((&few["instructions"], &few["firsts"]), (&568.into(), &Value::Null));
    assert_eq!((&many["firsts"], &many["proof"]), (&1.into(), &few["proof"]));
    let file = one(&["verify", FILE, "--json"]);
    assert_eq!((&file["algorithm"], &file["ranks"]), (&"custom".into(), &4.into()));
    let none = oxccl(&["verify", "all_reduce", "--algorithm", "pairwise", "--json"]).failed(2);
    assert!(none.out.is_empty() && none.err.contains("no algorithm has this name"), "{}", none.err);
}

#[test]
fn a_file_that_is_refused_has_its_story() {
    let text = fs::read_to_string(FILE).expect("the example is there");
    let wrong = text.replacen("1.slots.tail", "1.slots.head", 1);
    assert_ne!(text, wrong);
    let path = std::env::temp_dir().join(format!("oxccl-refused-{}.json", std::process::id()));
    fs::write(&path, wrong).expect("a file can be written");
    let said = oxccl(&["verify", path.to_str().expect("it is text"), "--json"]).failed(1);
    let all = objects(&said, "verify");
    assert_eq!(all[0]["verdict"], "refused");
    assert!(all[0]["story"].as_str().is_some_and(|story| !story.is_empty()), "{}", said.out);
    let diff = oxccl(&["diff", FILE, path.to_str().expect("it is text"), "--json"]).failed(1);
    let difference = &objects(&diff, "diff")[0];
    assert_eq!(difference["differ"], true);
    let change = &difference["ranks"][0]["changes"][0];
    assert_ne!((&change["old"], &change["old"][0]), (&change["new"], &Value::Null));
    assert_eq!(one(&["diff", FILE, FILE, "--json"])["differ"], false);
    let _ = fs::remove_file(path);
}

#[test]
fn the_call_of_explain() {
    let call = ["explain", "all_reduce", "--ranks", "4", "-b", "64K", "--device", "cuda"];
    let json = one(&[&call[..], &["--json"]].concat());
    let text = oxccl(&call).ok().out;
    let choice = format!("choice   {} / {}", word(&json["algorithm"]), word(&json["encoding"]));
    assert!(text.contains(&choice), "{choice}: {text}");
    let ranks = json["schedule"].as_array().expect("a list");
    assert_eq!(ranks.len(), 4);
    for step in ranks.iter().flat_map(|rank| rank["steps"].as_array().expect("a list")) {
        assert!(text.contains(word(&step["instruction"])), "{step}");
    }
    let one_rank = one(&["explain", FILE, "-b", "64K", "--rank", "1", "--json"]);
    assert_eq!(one_rank["schedule"][0]["rank"], 1);
}

fn word(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[test]
fn topologies_and_measurements() {
    let presets = one(&["topo", "--list", "--json"])["presets"].clone();
    for preset in presets.as_array().expect("a list") {
        let topology = one(&["topo", word(&preset["name"]), "--json"]);
        let parts = topology["parts"].as_array().expect("a list").len();
        let rows = topology["relations"].as_array().expect("rows");
        assert_eq!(rows.len(), parts);
        assert!((0..parts).all(|at| rows[at][at] == "X"), "{topology}");
    }
    let measured = one(&["topo", "--measure", "-g", "2", "--json"]);
    for how in ["alone", "at_once"] {
        assert!(measured[how]["latency_ns"][0][0].is_null());
        assert!(measured[how]["gbps"][1][0].as_f64().is_some_and(|gbps| gbps > 0.0), "{measured}");
    }
    // Each rank has a core of its own, of which the topology of this machine knows, or none has.
    let on_cores = measured["devices"].as_array().expect("a list").iter().all(Value::is_string);
    assert_eq!(measured["theory"].is_object(), on_cores, "{measured}");
    assert_eq!(measured["no_theory"].is_string(), !on_cores, "{measured}");
}

#[test]
fn what_doctor_finds() {
    let report = one(&["doctor", "--json"]);
    assert_eq!(report["broken"], 0);
    let sections = report["sections"].as_array().expect("a list");
    assert!(sections.len() == 6 && sections[0]["findings"][0]["state"] == "ok", "{report}");
    let own = std::process::id().to_string();
    assert_eq!(one(&["doctor", "--pid", &own, "--json"])["pid"], std::process::id());
}

#[test]
fn sizes_that_tune_measures() {
    let table = std::env::temp_dir().join(format!("oxccl-json-{}.toml", std::process::id()));
    let table = table.to_str().expect("it is text");
    let quick = ["tune", "--ops", "broadcast", "--quick", "-e", "1K", "--json"];
    let said = oxccl(&[&quick[..], &["--output", table]].concat()).ok();
    let all = objects(&said, "tune");
    assert!(said.err.contains("OXCCL_TUNING="), "{}", said.err);
    for memory in ["windows", "private"] {
        assert!(all.iter().filter(|one| one["memory"] == memory).count() >= 6, "{}", said.out);
    }
    for one in &all {
        let times = one["times"].as_array().expect("a list");
        let times: Vec<_> = times.iter().filter_map(|time| time["time_us"].as_f64()).collect();
        assert!(!times.is_empty() && times.is_sorted(), "{one}");
    }
    let said = oxccl(&["tune", "--verify", table, "--ops", "broadcast", "--quick", "--json"]).ok();
    let all = objects(&said, "tune");
    assert!(all.iter().all(|one| one["ratio"].as_f64() >= Some(1.0)), "{}", said.out);
    let _ = fs::remove_file(table);
}

#[test]
fn what_a_suite_writes() {
    let folder = std::env::temp_dir().join(format!("oxccl-suite-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (file, output) = (folder.join("suite.toml"), folder.join("results"));
    let text = format!(
        "name = \"x\"\noutput = {output:?}\nrounds = 1\n\
         [[contestants]]\nname = \"echo\"\ncommand = [\"echo\", \"8 2 float sum -1 1 0 0 0\"]\n\
         [[contestants]]\nname = \"false\"\ncommand = [\"false\"]\n[[runs]]\nop = \"all_reduce\"\n"
    );
    fs::write(&file, text).expect("a file");
    oxccl(&["bench", "--suite", file.to_str().expect("text")]).failed(1);
    let text = fs::read_to_string(output.with_extension("json")).expect("it is written");
    fs::remove_dir_all(&folder).expect("it is there");
    let report: Value = serde_json::from_str(&text).expect("it is JSON");
    let mut found = BTreeSet::new();
    fields(&report, &mut found);
    let missing: Vec<_> = found.difference(&documented("suite")).cloned().collect();
    assert!(missing.is_empty(), "{PAGE} says nothing of {missing:?}");
}
