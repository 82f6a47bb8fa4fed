//! Every command line that README.md and docs/command.md show is run, or known to be run elsewhere.
//! What they show of its output is what it says.

mod command_line;

use command_line::{Said, command, finish, start};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What others run: the Makefile's targets exist (`tests/documentation.rs`), the example is run by
/// `data_parallel.rs`, and `status.rs` makes files to blame ranks by.
const ELSEWHERE: [&str; 3] =
    ["make ", "cargo run --release --example data_parallel -- ", "oxccl blame "];

/// Verbs whose output is the same on every machine: what is shown of it is compared.
const SAME: [&str; 3] = ["explain", "sim", "verify"];

/// A command line, and what is shown of its output, with `…` for what is left out.
#[derive(Debug)]
struct Shown {
    line: String,
    output: Vec<String>,
}

/// The command lines of a document: behind `$` in blocks, and in indented lines.
fn shown(document: &str) -> Vec<Shown> {
    let text = fs::read_to_string(Path::new(ROOT).join(document)).expect("the document is there");
    let (mut found, mut fenced, mut before) = (Vec::<Shown>::new(), false, "");
    // Whether what comes next is the output of the last command.
    let mut output = false;
    for line in text.lines() {
        let prompt = line.strip_prefix("$ ").filter(|_| fenced);
        let indented = line.trim_start();
        let code = line.starts_with("    ") && (before.is_empty() || before.starts_with("    "));
        if line.starts_with("```") {
            (fenced, output) = (!fenced, false);
        } else if let Some(line) = prompt.or((code && !fenced).then_some(indented)) {
            let line = line.split("   #").next().unwrap_or(line).trim().to_owned();
            found.push(Shown { line, output: Vec::new() });
            output = fenced;
        } else if output && let Some(last) = found.last_mut() {
            last.output.push(line.to_owned());
        }
        before = line;
    }
    found
}

/// A folder for what commands write, in which the repository's files are found by their paths.
fn workplace(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("readme-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder can be made");
    for part in ["examples", "benches"] {
        let from = fs::canonicalize(Path::new(ROOT).join(part)).expect("it is there");
        symlink(from, folder.join(part)).expect("a link can be made");
    }
    folder
}

/// Runs a line as a shell does, with the command that was built.
fn run(line: &str, folder: &Path) -> Said {
    let built = Path::new(env!("CARGO_BIN_EXE_oxccl")).parent().expect("it lies in a folder");
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap_or_default());
    // As `command`, without what the environment says to the tests.
    let mut shell = Command::new("sh");
    for (name, _) in command(&[]).get_envs() {
        shell.env_remove(name);
    }
    shell.args(["-c", line]).env("PATH", path).current_dir(folder);
    finish(start(&mut shell))
}

/// Whether the output has these lines in their order, as far as they are shown.
fn compare(Shown { line, output }: &Shown, said: &str) {
    let mut lines = said.lines();
    for wanted in output.iter().filter(|wanted| !wanted.trim().is_empty() && *wanted != "…") {
        let parts: Vec<&str> = wanted.split('…').collect();
        let fits = |found: &str| match parts[..] {
            [whole] => found.trim_end() == whole.trim_end(),
            [front, back] => found.starts_with(front) && found.ends_with(back),
            _ => panic!("{wanted:?} leaves out more than one part"),
        };
        assert!(lines.any(fits), "`{line}` does not say {wanted:?} there, but:\n{said}");
    }
}

fn run_all(document: &str, least: usize) {
    let folder = workplace(&document.replace(['/', '.'], "-"));
    let lines = shown(document);
    let ours: Vec<&Shown> =
        lines.iter().filter(|shown| !ELSEWHERE.iter().any(|e| shown.line.starts_with(e))).collect();
    assert!(ours.len() >= least, "{document} shows only {ours:?}");
    for shown in ours {
        // Settings of the environment may come first.
        let words = || shown.line.split(' ').skip_while(|word| word.contains('='));
        assert_eq!(words().next(), Some("oxccl"), "{document}: no test runs `{}`", shown.line);
        let said = run(&shown.line, &folder).ok();
        if words().nth(1).is_some_and(|verb| SAME.contains(&verb)) {
            compare(shown, &said.out);
        }
    }
}

#[test]
fn commands_of_readme_run() {
    run_all("README.md", 7);
}

#[test]
fn commands_of_the_command_page_run() {
    run_all("docs/command.md", 25);
}

#[test]
fn options_that_documents_name_exist() {
    let mut documents: Vec<PathBuf> = fs::read_dir(Path::new(ROOT).join("docs"))
        .expect("there are documents")
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    documents.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| Path::new(ROOT).join(name)),
    );
    let mut seen = 0;
    for document in documents {
        let text = fs::read_to_string(&document).expect("it is text");
        for quoted in text.split('`').skip(1).step_by(2) {
            let Some((_, after)) = quoted.split_once("oxccl ") else { continue };
            let own = after.split(" -- ").next().unwrap_or(after);
            let mut words = own.split_whitespace();
            let Some(verb) =
                words.next().filter(|verb| verb.chars().all(|c| c.is_ascii_lowercase()))
            else {
                continue;
            };
            let help = finish(start(&mut command(&[verb, "--help"])));
            for option in words.filter(|word| word.starts_with("--")) {
                let option = option.split('=').next().unwrap_or(option);
                let has = |word: &str| word.trim_end_matches(',') == option;
                assert!(
                    help.out.split_whitespace().any(has),
                    "{}: `{quoted}` has no {option}",
                    document.display()
                );
                seen += 1;
            }
        }
    }
    assert!(seen >= 10, "only {seen} options were found");
}
