//! What the documents say of this repository is there: paths, links, commands, variables, code.
//! They are short, and so are their sentences.
//!
//! Command lines of `oxccl` that README.md and docs/command.md show are run by
//! `command/tests/readme.rs`.
#![allow(clippy::unwrap_used)]

mod guide;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What a path in the repository starts with.
const FOLDERS: [&str; 12] = [
    "bindings/",
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
const EXPLAIN: [&str; 3] = ["README.md", "docs/launching.md", "docs/configuration.md"];
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
    for document in documents() {
        let (prose, _) = split(&text(&document), "");
        // Paths begin at the root; links at the document.
        let beside = root.join(&document).parent().unwrap().to_path_buf();
        let links = links(&prose).into_iter().filter(|link| !leads_somewhere(&beside, link));
        let paths = paths(&prose).into_iter().filter(|path| !root.join(path).exists());
        let missing: Vec<_> = links.chain(paths).collect();
        assert!(missing.is_empty(), "{document} names what is not there: {missing:?}");
    }
    for (document, least) in [("README.md", 2), ("ARCHITECTURE.md", 40), ("docs/internals.md", 40)]
    {
        let (prose, _) = split(&text(document), "");
        assert!(paths(&prose).len() >= least, "{document} names only {:?}", paths(&prose));
    }
}

/// All documents but those of results that tools write.
fn documents() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<String> = ["", "docs/"]
        .into_iter()
        .flat_map(|folder| {
            let entries = fs::read_dir(root.join(folder)).unwrap();
            entries.map(move |entry| format!("{folder}{}", entry.unwrap().file_name().display()))
        })
        .filter(|name| name.ends_with(".md"))
        .collect();
    found.sort();
    assert!(found.len() >= 14, "there are only {found:?}");
    found
}

/// The sources of all crates.
fn sources() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut found) = (FOLDERS.map(|folder| root.join(folder)).to_vec(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let is_source = [".rs", ".h", ".cpp", ".cu"]
                .iter()
                .any(|ending| entry.to_string_lossy().ends_with(ending));
            if entry.is_dir() {
                folders.push(entry);
            } else if is_source {
                found.push(entry.strip_prefix(root).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    assert!(found.len() > 300, "there are only {found:?}");
    found
}

/// Whether the file is there, and the heading that a link names in it.
fn leads_somewhere(beside: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let Ok(target) = fs::read_to_string(beside.join(file)) else {
        return false;
    };
    let anchor = |title: &str| -> String {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    let headings = target.lines().filter(|line| line.starts_with('#'));
    heading.is_empty()
        || headings.map(|line| anchor(line.trim_start_matches('#').trim())).any(|a| a == heading)
}

/// Words outside of fenced code.
fn count_words(text: &str) -> usize {
    let (prose, _) = split(text, "");
    prose.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// The paragraphs and the points of lists, a line each: without code, tables and headings. Code in
/// a line and a link are a word.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in split(text, "").0.lines() {
        let trimmed = line.trim_start();
        let point = trimmed.strip_prefix("- ").or_else(|| {
            let (number, rest) = trimmed.split_once(". ")?;
            number.chars().all(|c| c.is_ascii_digit()).then_some(rest)
        });
        let apart = line.starts_with(['#', '|', '<']) || trimmed.is_empty();
        // Indented code stands after an empty line.
        let code = line.starts_with("    ") && found.last().is_some_and(String::is_empty);
        if apart || point.is_some() {
            found.push(String::new());
        }
        if !(apart || code && point.is_none()) {
            *found.last_mut().unwrap() += &format!("{} ", point.unwrap_or(trimmed));
        }
    }
    let without_code = |text: String| -> String {
        let parts = text.split('`').enumerate();
        parts.map(|(number, part)| if number % 2 == 0 { part } else { "code" }).collect()
    };
    found.into_iter().map(without_code).filter(|text| !text.is_empty()).collect()
}

/// The sentences of a paragraph.
fn sentences(paragraph: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for word in paragraph.split_whitespace() {
        *found.last_mut().unwrap() += &format!("{word} ");
        if word.trim_end_matches(['*', ')', '"']).ends_with(['.', '!', '?']) {
            found.push(String::new());
        }
    }
    found
}

#[test]
fn documents_are_short() {
    for (document, most) in [("README.md", 1300), ("ARCHITECTURE.md", 2800)] {
        let words = count_words(&text(document));
        assert!((most / 2..=most).contains(&words), "{document} has {words} words");
    }
}

#[test]
fn sentences_are_short() {
    let mut long = Vec::new();
    for document in documents() {
        let text = text(&document);
        for sentence in paragraphs(&text).iter().flat_map(|paragraph| sentences(paragraph)) {
            let words = count_words(&sentence);
            if words > 30 {
                long.push(format!("{document}: {words} words: {sentence}"));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn words_are_those_of_the_field() {
    // What to say instead: streaming stores; contiguous or concatenated; custom; symmetric.
    const NOT: [&str; 5] = [
        "around the cache",
        "behind one another",
        "of one's own",
        "one's own",
        "from where they stand",
    ];
    // In this file they are said.
    let sources = sources().into_iter().filter(|path| path != file!());
    for document in documents().into_iter().chain(sources) {
        let text = text(&document);
        let words = text.split_whitespace().filter(|word| !["//", "///", "//!"].contains(word));
        let said = words.collect::<Vec<_>>().join(" ");
        let found: Vec<_> = NOT.into_iter().filter(|words| said.contains(words)).collect();
        assert!(found.is_empty(), "{document} says {found:?}");
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
        "tools/setup-python",
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
    for document in documents() {
        let text = text(&document);
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
    let sources = ["src/lib.rs", "src/stream.rs"].map(text).concat();
    let documented: BTreeSet<&str> = sources
        .lines()
        .filter_map(|line| {
            let line = line.trim();
            let line = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?.trim();
            Some(line.strip_prefix("# ").unwrap_or(line))
        })
        .collect();
    for (document, count) in [("README.md", 1), ("docs/gpu.md", 1)] {
        let (_, blocks) = split(&text(document), "rust");
        assert_eq!(blocks.len(), count, "{document}");
        for line in blocks.iter().flat_map(|block| block.lines()) {
            assert!(documented.contains(line.trim()), "{document}: no doc test runs {line:?}");
        }
    }
}

#[test]
fn code_of_the_guide_is_run() {
    let run = text("tests/guide/mod.rs");
    let run: BTreeSet<&str> = run.lines().map(str::trim).collect();
    let (_, blocks) = split(&text("docs/guide.md"), "rust");
    assert!(blocks.len() >= 10, "there are only {}", blocks.len());
    for line in blocks.iter().flat_map(|block| block.lines()) {
        assert!(run.contains(line.trim()), "tests/guide/mod.rs does not run {line:?}");
    }
}

#[test]
fn promises_have_their_tests() {
    let page = text("docs/failures.md");
    let mut cited = 0;
    let mut source = String::new();
    for quoted in quoted(&page) {
        if quoted.ends_with(".rs") {
            source = text(quoted);
        } else if quoted.contains('_')
            && quoted.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c))
        {
            assert!(source.contains(&format!("fn {quoted}()")), "no test is called {quoted}");
            cited += 1;
        }
    }
    assert!(cited >= 15, "only {cited} tests are named");
}

/// The part of docs/results.md that results of a GPU make.
fn gpu_results(page: &str) -> &str {
    let (_, rest) = page.split_once("<!-- gpu:begin -->").expect("its begin is marked");
    rest.split_once("<!-- gpu:end -->").expect("its end is marked").0
}

#[test]
fn numbers_of_gpus_have_a_file() {
    let (page, root) = (text("docs/results.md"), Path::new(env!("CARGO_MANIFEST_DIR")));
    let found = gpu_results(&page);
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
            assert!(
                results.is_empty(),
                "docs/results.md names none of {results:?}: run make gpu-report"
            );
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

#[test]
fn sentences_are_told_apart() {
    let text = "# Head\n\nOne `a. b` two\nthree. **Four.** Five\n\n    code here\n\n- six\n  seven.\n1. eight\n\n| nine |\n";
    let found: Vec<_> = paragraphs(text).iter().flat_map(|p| sentences(p)).collect();
    let found: Vec<_> = found.iter().map(|s| s.trim()).filter(|s| !s.is_empty()).collect();
    assert_eq!(found, ["One code two three.", "**Four.**", "Five", "six seven.", "eight"]);
}
