//! `oxccl bench --suite`: contestants take turns, and all of it is written.
#![allow(clippy::unwrap_used)]

mod command_line;

use std::fs;
use std::path::{Path, PathBuf};

use command_line::oxccl;
use serde_json::Value;

/// A suite of this name, and where its results go.
fn suite(name: &str, text: &str) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("suite-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (file, output) = (folder.join("suite.toml"), folder.join("results"));
    fs::write(&file, format!("output = {output:?}\n{text}")).unwrap();
    (file, output)
}

fn results(output: &Path) -> (Value, String) {
    let read = |extension| fs::read_to_string(output.with_extension(extension)).unwrap();
    (serde_json::from_str(&read("json")).unwrap(), read("html"))
}

#[test]
fn contestants_take_turns_and_results_are_written() {
    let text = r#"
name = "all <together>"
rounds = 2
[[contestants]]
name = "chosen"
[[contestants]]
name = "ring"
flags = ["--algorithm", "ring"]
environment = { OXCCL_MAX_CHANNELS = "2" }
[[contestants]]
name = "table"
command = ["sh", "-c", "echo '# {program} {ranks}'; echo '1024 256 {type} sum -1 1e6 0 0 0 N/A'"]
[[runs]]
op = "all_reduce"
minbytes = "1K"
maxbytes = "2K"
flags = ["-n", "5", "--repeats", "2"]
"#;
    let (file, output) = suite("turns", text);
    let said = oxccl(&["bench", "--suite", file.to_str().unwrap()]).ok();
    let round = "round 2 of 2: all_reduce over 2 ranks: ring";
    assert!(said.err.contains(round), "{said:#?}");
    let (json, html) = results(&output);
    assert_eq!((&json["suite"], &json["rounds"]), (&"all <together>".into(), &2.into()));
    assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    let run = &json["runs"][0];
    assert_eq!(run["failures"].as_array().unwrap().len(), 0);
    let rows = run["rows"].as_array().unwrap();
    // Two sizes, each out of place and in place.
    assert_eq!(rows.len(), 4);
    for row in rows {
        let has_table = row["bytes"] == 1024 && row["in_place"] == false;
        let results = row["results"].as_array().unwrap();
        assert_eq!(results.len(), if has_table { 3 } else { 2 });
        for result in results {
            assert_eq!(result["times_us"].as_array().unwrap().len(), 2, "{result}");
            assert_eq!(result["wrong"], 0, "{result}");
        }
        assert_eq!(results[0]["ratio"], 1.0);
        if has_table {
            assert!(results[2]["ratio"].as_f64().unwrap() > 1.0);
        }
    }
    assert!(html.contains("all &lt;together&gt;") && !html.contains("<together>"));
    assert_eq!(html.matches("<svg").count(), 2);
    assert!(!html.contains("src=") && !html.contains("href="), "it needs nothing else");
}

#[test]
fn turns_that_fail_are_named_and_the_others_count() {
    let text = r#"
name = "failures"
rounds = 1
limit_s = 1
[[contestants]]
name = "right"
command = ["echo", "8 2 float sum -1 2.5 0 0 0"]
[[contestants]]
name = "stuck"
command = ["sleep", "60"]
[[contestants]]
name = "broken"
command = ["sh", "-c", "echo why >&2; exit 5"]
[[runs]]
op = "broadcast"
"#;
    let (file, output) = suite("failures", text);
    let said = oxccl(&["bench", "--suite", file.to_str().unwrap()]).failed(1);
    assert!(said.err.contains("2 of 3 turns failed"), "{said:#?}");
    let (json, html) = results(&output);
    let failures = json["runs"][0]["failures"].as_array().unwrap();
    let whys: Vec<&str> = failures.iter().map(|one| one["why"].as_str().unwrap()).collect();
    assert_eq!(whys[0], "sleep did not end within 1 s");
    assert!(whys[1].contains("exit status: 5: why"), "{whys:?}");
    assert_eq!(json["runs"][0]["rows"][0]["results"][0]["median_us"], 2.5);
    assert!(html.contains("sleep did not end within 1 s"));
}

#[test]
fn wrong_elements_fail_and_wrong_files_are_refused() {
    let text = "name = \"x\"\nrounds = 1\n[[contestants]]\nname = \"a\"\n\
                command = [\"echo\", \"8 2 float sum -1 2.5 0 0 7\"]\n[[runs]]\nop = \"broadcast\"\n";
    let (file, output) = suite("wrong", text);
    let said = oxccl(&["bench", "--suite", file.to_str().unwrap()]).failed(1);
    assert!(said.err.contains("7 elements are wrong"), "{said:#?}");
    assert!(results(&output).1.contains("7 wrong"));
    fs::write(&file, text.replace("broadcast", "broadcst")).unwrap();
    let said = oxccl(&["bench", "--suite", file.to_str().unwrap()]).failed(2);
    assert!(said.err.contains("runs[0].op: ") && said.err.contains("broadcast"), "{said:#?}");
    let said = oxccl(&["bench", "--suite", "missing.toml"]).failed(2);
    assert!(said.err.contains("missing.toml: "), "{said:#?}");
    let said = oxccl(&["bench", "all_reduce", "--suite", file.to_str().unwrap()]).failed(2);
    assert!(said.err.contains("cannot be used with"), "{said:#?}");
}
