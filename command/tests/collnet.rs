//! What a fabric's switches reduce, as a user meets it: proven, explained and predicted, and
//! refused where it would run.
#![allow(clippy::unwrap_used)]

mod command_line;

use std::fs;
use std::path::PathBuf;

use command_line::oxccl;
use serde_json::Value;

const NAME: &str = "hierarchical_direct_collnet";

/// A folder of one test, removed when it goes.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("oxccl-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// A file of this name and text.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two nodes whose fabric reduces.
fn reducing(folder: &Folder) -> String {
    let text = oxccl(&["topo", "dgx-h100 x 2", "--toml"]).ok().out;
    let (before, fabric) = text.split_once("[fabric]").unwrap();
    let fabric = fabric.replacen("reduces = false", "reduces = true", 1);
    folder.file("reducing.toml", &format!("{before}[fabric]{fabric}"))
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    let said = oxccl(&[&["sim", "all_reduce", "--json"], arguments].concat()).ok();
    said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn it_is_proven_and_explained() {
    let said = oxccl(&["verify", "all_reduce", "--ranks", "16", "--per-node", "8"]).ok();
    for inner in ["direct", "ring", "chain", "nvls"] {
        let proven = format!("proven   all_reduce hierarchical_{inner}_collnet ");
        assert!(said.out.contains(&proven), "{}", said.out);
    }
    let ranks = ["all_reduce", "--ranks", "4", "--per-node", "2", "--algorithm", NAME];
    let said = oxccl(&[&["explain", "--encoding", "slots"], &ranks[..]].concat()).ok();
    for step in ["-> to rail of 2#0", "reduce  from rail of 2#1 -> out[2], to 1.slots#3 (final)"] {
        assert!(said.out.contains(step), "{step}: {}", said.out);
    }
    let goal = ["--encoding", "slots", "--goal", "/dev/null"];
    let said = oxccl(&[&["explain"], &goal[..], &ranks].concat());
    assert!(said.err.contains("has the fabric's switches reduce"), "{}", said.err);
}

#[test]
fn it_is_predicted_where_the_fabric_reduces_and_not_chosen() {
    let folder = Folder::new("collnet");
    let topology = reducing(&folder);
    let all = rows(&["-t", &topology, "--sizes", "64K,16M"]);
    let (of_fabric, others): (Vec<&Value>, Vec<&Value>) =
        all.iter().partition(|row| row["algorithm"].as_str().unwrap().ends_with("_collnet"));
    assert_eq!(of_fabric.len(), 2 * 5);
    for row in of_fabric {
        assert_eq!((&row["chosen"], &row["error_percent"]), (&false.into(), &Value::Null), "{row}");
    }
    assert_eq!(others.iter().filter(|row| row["chosen"] == true).count(), 2);
    // Elsewhere it is not among those that are compared, and it is said why if it is asked for.
    let elsewhere = rows(&["-t", "dgx-h100 x 2", "--sizes", "64K"]);
    assert!(elsewhere.iter().all(|row| !row["algorithm"].as_str().unwrap().contains("collnet")));
    let asked = ["sim", "all_reduce", "-t", "dgx-h100 x 2", "--sizes", "64K", "--algorithm", NAME];
    let said = oxccl(&asked);
    assert!(said.err.contains("a [fabric] says so by reduces = true"), "{}", said.err);
    // The page plays it.
    let page = folder.0.join("page.html");
    let page = page.to_str().unwrap();
    let pinned = ["--sizes", "1M", "--algorithm", NAME, "--html", page];
    oxccl(&[&["sim", "all_reduce", "-t", &topology], &pinned[..]].concat()).ok();
    let text = fs::read_to_string(page).unwrap();
    assert!(text.contains("from rail of 4#0 -> out["), "{page}");
}

#[test]
fn what_would_run_it_is_told_that_nothing_does() {
    let world = ["--ranks", "4", "--per-node", "2", "--threads", "-b", "1K", "-e", "1K"];
    let said = oxccl(&[&["bench", "all_reduce", "--algorithm", NAME], &world[..]].concat());
    let expected = "without switches between nodes that reduce, which no executor drives";
    assert!(said.err.contains(NAME) && said.err.contains(expected), "{}", said.err);
}

/// An all-reduce of two nodes of one rank, all of it by switches.
#[test]
fn a_file_may_name_rails() {
    let folder = Folder::new("rails");
    let steps = r#"[
        {"reduce_copy": ["in[0]"], "to": ["to rail of 1#0"]},
        {"reduce_copy": ["from rail of 1#0"], "to": ["out[0]"], "final": true}
    ]"#;
    let made = |steps: &[&str]| {
        format!(
            r#"{{"collective": "all_reduce", "ranks": 2, "order": "any", "in_place": true,
                "input": "whole", "output": "whole", "steps": [{}]}}"#,
            steps.join(", ")
        )
    };
    let file = folder.file("rails.json", &made(&[steps, steps]));
    let said = oxccl(&["verify", &file]).ok();
    assert!(said.out.contains("proven"), "{}", said.out);
    let said = oxccl(&["explain", &file]).ok();
    assert!(said.out.contains("from rail of 1#0 -> out[0] (final)"), "{}", said.out);
    let topology = reducing(&folder);
    let predicted = ["sim", &file, "-t", &topology, "--per-node", "1", "--sizes", "64K"];
    oxccl(&predicted).ok();
    let said = oxccl(&["bench", &file, "--threads", "-b", "1K", "-e", "1K"]);
    assert!(said.err.contains("no executor drives them"), "{}", said.err);
    let alone = folder.file("alone.json", &made(&[steps, "[]"]));
    let said = oxccl(&["verify", &alone]);
    let expected = "Rank 0 waits at step 1 for rank 1: for its contribution to rail of 1#0.";
    assert!(said.err.contains(expected) || said.out.contains(expected), "{}{}", said.out, said.err);
}
