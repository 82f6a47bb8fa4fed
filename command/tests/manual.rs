//! Shells accept the completions, and `man` the pages.
#![allow(clippy::unwrap_used)]

mod command_line;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use command_line::{oxccl, skip};

/// All verbs, as the help lists them.
fn verbs() -> Vec<String> {
    let help = oxccl(&["--help"]).ok().out;
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| !line.is_empty());
    let verbs: Vec<String> =
        lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(verbs.len() > 13, "{help}");
    verbs.into_iter().filter(|verb| verb != "help").collect()
}

/// What a program says of a file; none where the program is missing.
fn ran(program: &str, arguments: &[&str]) -> Option<Output> {
    Command::new(program).args(arguments).env("MANWIDTH", "100").output().ok()
}

#[test]
fn shells_accept_their_completions() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for shell in ["bash", "zsh", "fish"] {
        let text = oxccl(&["completions", shell]).ok().out;
        for verb in verbs() {
            assert!(text.contains(&verb), "{shell} does not know {verb}");
        }
        let file = folder.join(format!("oxccl.{shell}"));
        fs::write(&file, &text).unwrap();
        match ran(shell, &["-n", file.to_str().unwrap()]) {
            Some(said) => assert!(said.status.success() && said.stderr.is_empty(), "{said:?}"),
            None => skip("shells_accept_their_completions", &format!("no {shell} here")),
        }
    }
    let said = oxccl(&["completions", "bahs"]).failed(2);
    assert!(said.err.contains("bash"), "{}", said.err);
}

#[test]
fn bash_completes_verbs_and_flags() {
    let script = "eval \"$(\"$0\" completions bash)\"; COMP_WORDS=(oxccl sim --topol); COMP_CWORD=2; \
                  _oxccl oxccl --topol sim; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let said = ran("bash", &["-c", script, env!("CARGO_BIN_EXE_oxccl")]).unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "--topology", "{said:?}");
}

#[test]
fn every_verb_has_a_manual_page() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man/man1");
    let _ = fs::remove_dir_all(&folder);
    oxccl(&["man", folder.to_str().unwrap()]).ok();
    let names = verbs().into_iter().map(|verb| format!("oxccl-{verb}"));
    for name in names.chain(["oxccl".to_owned()]) {
        let page = folder.join(format!("{name}.1"));
        let text = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{name}: {text}");
        let Some(said) = ran("groff", &["-man", "-Tutf8", "-ww", page.to_str().unwrap()]) else {
            return skip("every_verb_has_a_manual_page", "no groff here");
        };
        assert!(said.status.success() && said.stderr.is_empty(), "{name}: {said:?}");
        let shown = String::from_utf8_lossy(&said.stdout);
        assert!(shown.contains(&format!("{name}(1)")) && shown.lines().count() > 10, "{shown}");
    }
    assert!(oxccl(&["man"]).ok().out.contains(".SH NAME"));
    let said = oxccl(&["man", "/dev/null/pages"]).failed(1);
    assert!(said.err.contains("writing manual pages into /dev/null/pages"), "{}", said.err);
}
