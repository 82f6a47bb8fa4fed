//! What README.md, ARCHITECTURE.md and CONTRIBUTING.md say of this repository is there: paths, links, commands, variables, code.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What a path in the repository starts with.
const FOLDERS: [&str; 11] = [
    "docs/",
    "src/",
    "plans/",
    "command/",
    "kernels/",
    "transports/",
    "tests/",
    "benches/",
    "examples/",
    "tools/",
    ".ci/",
];
/// What the name of a file in the repository ends with.
const ENDINGS: [&str; 8] = [".rs", ".md", ".toml", ".h", ".cpp", ".cu", ".py", ".csv"];
/// Where variables of the environment are explained.
const EXPLAIN: [&str; 2] = ["README.md", "docs/configuration.md"];
/// Where results go; not there before a run.
const MADE: [&str; 1] = ["benches/results/"];

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text without its fenced blocks, and those of this language.
fn split(text: &str, language: &str) -> (String, Vec<String>) {
    let (mut prose, mut blocks, mut fence) = (String::new(), Vec::new(), None::<String>);
    for line in text.lines() {
        match (&mut fence, line.strip_prefix("```")) {
            (None, Some(opened)) => {
                fence = Some(opened.to_string());
                if opened == language {
                    blocks.push(String::new());
                }
            }
            (Some(_), Some(_)) => fence = None,
            (Some(opened), None) => {
                if opened == language {
                    *blocks.last_mut().unwrap() += &format!("{line}\n");
                }
            }
            (None, None) => prose += &format!("{line}\n"),
        }
    }
    (prose, blocks)
}

/// What stands in backticks.
fn quoted(prose: &str) -> Vec<&str> {
    prose.split('`').skip(1).step_by(2).collect()
}

/// The paths in backticks.
fn paths(prose: &str) -> BTreeSet<&str> {
    let is_path = |word: &&str| {
        let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
        let known = FOLDERS.iter().any(|folder| word.starts_with(folder))
            || ENDINGS.iter().any(|end| word.ends_with(end));
        plain && known && !MADE.contains(word)
    };
    quoted(prose).into_iter().filter(is_path).collect()
}

/// The local targets of links.
fn links(prose: &str) -> BTreeSet<&str> {
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with('#')).collect()
}

/// The names that start so, with upper-case letters and underscores behind.
fn variables(text: &str) -> BTreeSet<&str> {
    let ends =
        |rest: &str| rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
    let starts = text.match_indices("OXCCL_").map(|(at, _)| &text[at..]);
    starts.map(|rest| &rest[..ends(rest)]).filter(|name| !name.ends_with('_')).collect()
}

#[test]
fn paths_and_links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (document, least) in [
        ("README.md", 6),
        ("ARCHITECTURE.md", 40),
        ("CONTRIBUTING.md", 3),
        ("docs/configuration.md", 1),
        ("docs/simulator.md", 4),
        ("docs/security.md", 1),
    ] {
        let (prose, _) = split(&text(document), "");
        let named = paths(&prose);
        assert!(named.len() >= least, "{document} names only {named:?}");
        let missing: Vec<_> =
            named.union(&links(&prose)).copied().filter(|path| !root.join(path).exists()).collect();
        assert!(missing.is_empty(), "{document} names what is not there: {missing:?}");
    }
}

#[test]
fn every_variable_is_explained() {
    let documents = EXPLAIN.map(text).concat();
    let explained = variables(&documents);
    for (source, least) in [("src/config/settings.rs", 10), ("transports/src/environment.rs", 7)] {
        let source_text = text(source);
        let read = variables(&source_text);
        assert!(read.len() >= least, "{source} reads only {read:?}");
        let missing: Vec<_> = read.difference(&explained).collect();
        assert!(missing.is_empty(), "{EXPLAIN:?} do not explain {missing:?} of {source}");
    }
}

#[test]
fn every_explained_variable_is_read() {
    let sources = [
        "src/config/settings.rs",
        "src/config/document.rs",
        "transports/src/environment.rs",
        "kernels/build.rs",
        "tools/setup-nvcc",
    ];
    let sources = sources.map(text).concat();
    let (read, documents) = (variables(&sources), EXPLAIN.map(text).concat());
    let unknown: Vec<_> =
        variables(&documents).into_iter().filter(|name| !read.contains(name)).collect();
    assert!(unknown.is_empty(), "nothing reads {unknown:?}, which {EXPLAIN:?} explain");
}

#[test]
fn commands_exist() {
    let makefile = text("Makefile");
    // Targets stand at the start of a line, several may share a rule.
    let rules = makefile.lines().filter(|line| !line.starts_with(['\t', '.', '#']));
    let targets: BTreeSet<&str> = rules
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(targets, _)| targets.split_whitespace())
        .collect();
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = text(document);
        let indented = text.lines().filter_map(|line| line.strip_prefix("    "));
        let commands: Vec<_> =
            indented.chain(quoted(&text)).filter_map(|line| line.strip_prefix("make ")).collect();
        for command in &commands {
            let target = command.split_whitespace().next().unwrap_or_default();
            assert!(
                targets.contains(target),
                "{document} says `make {target}`; the Makefile has {targets:?}"
            );
        }
        assert!(
            document != "README.md" || commands.len() >= 3,
            "{document} names only {commands:?}"
        );
    }
}

#[test]
fn code_is_that_of_doc_tests() {
    let sources = ["src/lib.rs", "src/stream.rs", "src/group.rs"].map(text).concat();
    let documented: BTreeSet<&str> = sources
        .lines()
        .filter_map(|line| {
            let line = line.trim();
            let line = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?.trim();
            Some(line.strip_prefix("# ").unwrap_or(line))
        })
        .collect();
    let (_, blocks) = split(&text("README.md"), "rust");
    assert_eq!(blocks.len(), 4);
    for line in blocks.iter().flat_map(|block| block.lines()) {
        assert!(documented.contains(line.trim()), "README.md has {line:?}, which no doc test runs");
    }
}

/// The part of README.md that results of a GPU make.
fn gpu_results(readme: &str) -> &str {
    let (_, rest) = readme.split_once("<!-- gpu:begin -->").expect("its begin is marked");
    rest.split_once("<!-- gpu:end -->").expect("its end is marked").0
}

#[test]
fn numbers_of_gpus_have_a_file() {
    let (readme, root) = (text("README.md"), Path::new(env!("CARGO_MANIFEST_DIR")));
    let found = gpu_results(&readme);
    let results: Vec<String> = fs::read_dir(root.join("benches/results"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("gpu-") && name.ends_with(".json"))
        .collect();
    let named =
        quoted(found).into_iter().find_map(|path| path.strip_prefix("benches/results/gpu-"));
    match named {
        Some(rest) => assert!(results.contains(&format!("gpu-{rest}")), "gpu-{rest} is not there"),
        None => {
            assert!(results.is_empty(), "README.md names none of {results:?}: run make gpu-report");
            assert!(
                !found.contains(|c: char| c.is_ascii_digit()),
                "numbers without a file: {found}"
            );
        }
    }
}

#[test]
fn what_is_not_there_is_found() {
    let prose =
        "`src/lib.rs`, `src/no_such_file.rs`, `Kind::Sum`, [here](nowhere.md) and `oxccl run`";
    assert_eq!(paths(prose), BTreeSet::from(["src/lib.rs", "src/no_such_file.rs"]));
    assert_eq!(links(prose), BTreeSet::from(["nowhere.md"]));
    assert_eq!(variables("`OXCCL_A_B`=1 OXCCL_"), BTreeSet::from(["OXCCL_A_B"]));
}
