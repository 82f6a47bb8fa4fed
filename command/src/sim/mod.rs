//! `oxccl sim`: predicts how long every algorithm takes on a topology. Nothing is run; every figure
//! is predicted.

mod args;
mod call;
mod candidate;
mod chance;
mod figure;
mod page;
mod plays;
mod report;
mod small;
mod sweep;

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;

use crate::failure::Failure;
use crate::options::{Size, unless_closed};
pub(crate) use args::SimOptions;
use args::Study;
pub(crate) use call::{Call, Timed};
use sweep::Sweep;

/// Predicts and prints.
///
/// # Errors
/// Options that do not fit together, a topology that is wrong, a file that cannot be written, or
/// nothing that can be simulated.
pub(crate) fn main(options: &SimOptions) -> Result<(), Failure> {
    let study = options.study()?;
    let (mut sweep, subjects) = Sweep::new(&study)?;
    let form = options.form();
    print(&form.head(&study, &sweep))?;
    let said = sweep.left_out.len();
    for size in 0..study.sizes.len() {
        let progress = Progress::of(&study, size);
        sweep.run(&study, &subjects, size, |at| progress.say(&study, at))?;
        progress.end();
        print(&form.rows(&study, &sweep, size))?;
    }
    print(&form.tail(&sweep, said))?;
    if options.links {
        print(&report::links(&study, &sweep))?;
    }
    if let Some(path) = options.csv_file() {
        write("values", path, &report::csv(&study, &sweep))?;
    }
    if let Some(path) = &options.svg {
        write("figure", path, &figure::svg(&study, &sweep, options.shown()))?;
    }
    if let Some(path) = &options.trace {
        write("trace", path, &small::trace(&study)?)?;
    }
    if let Some(path) = &options.html {
        write("page", path, &page::page(&study, &sweep)?)?;
    }
    Ok(())
}

fn write(what: &str, path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(Failure::system(format!("writing the {what} {}", path.display())))
}

/// Prints at once, so that what is there stays if the rest is interrupted.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.or_else(unless_closed("writing the table"))
}

/// What is being simulated, on the last line of a terminal.
struct Progress {
    bytes: Size,
    shown: bool,
}

impl Progress {
    fn of(study: &Study, size: usize) -> Progress {
        Progress { bytes: Size(study.sizes[size]), shown: std::io::stderr().is_terminal() }
    }

    fn say(&self, study: &Study, at: usize) {
        if self.shown {
            let (count, name) = (study.candidates.len(), study.candidates[at].name());
            eprint!("\r\x1b[K# {}: {} of {count}, {name}", self.bytes, at + 1);
        }
    }

    fn end(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
