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
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::failure::Failure;
use crate::interrupt;
use crate::options::{Size, unless_closed};
pub(crate) use args::SimOptions;
use args::Study;
pub(crate) use call::{Call, Timed};
use sweep::{Sweep, Watch};

/// Predicts and prints.
///
/// # Errors
/// Options that do not fit together, a topology that is wrong, a file that cannot be written, or
/// nothing that can be simulated.
pub(crate) fn main(options: &SimOptions) -> Result<(), Failure> {
    let studies = options.studies()?;
    let form = options.form();
    let mut before: Vec<Sweep> = Vec::new();
    for study in &studies {
        let (mut sweep, subjects) = Sweep::new(study)?;
        print(&form.head(study, &sweep, before.is_empty()))?;
        if before.is_empty() {
            // Until here there is nothing to keep.
            interrupt::take()?;
        }
        let said = sweep.left_out.len();
        for size in 0..study.sizes.len() {
            let shown = std::io::stderr().is_terminal();
            let printed = AtomicUsize::new(0);
            let (studies, before) = (&studies, &before);
            let printing = Printing { options, studies, before, study, size, said, printed, shown };
            sweep.run(study, &subjects, size, &printing)?;
            printing.end(&sweep)?;
        }
        print(&form.tail(&sweep, said, false))?;
        before.push(sweep);
    }
    let worlds: Vec<World<'_>> = worlds(&studies, before.iter());
    if let (true, Some(world)) = (options.links, worlds.first()) {
        print(&report::links(world.study, world.sweep))?;
    }
    write_files(options, &worlds)?;
    if let Some(path) = &options.trace {
        write("trace", path, &small::trace(&studies[0])?)?;
    }
    Ok(())
}

/// A study, and what was predicted of it.
struct World<'a> {
    study: &'a Study,
    sweep: &'a Sweep,
}

fn worlds<'a>(studies: &'a [Study], sweeps: impl Iterator<Item = &'a Sweep>) -> Vec<World<'a>> {
    studies.iter().zip(sweeps).map(|(study, sweep)| World { study, sweep }).collect()
}

/// Writes what was asked for of what has been predicted.
fn write_files(options: &SimOptions, worlds: &[World<'_>]) -> Result<(), Failure> {
    if let Some(path) = options.csv_file() {
        let text = worlds
            .iter()
            .enumerate()
            .map(|(at, world)| report::csv(world.study, world.sweep, at == 0));
        write("values", path, &text.collect::<String>())?;
    }
    if let (Some(path), Some(world)) = (&options.svg, worlds.first()) {
        write("figure", path, &figure::svg(world.study, world.sweep, options.shown()))?;
    }
    if let Some(path) = &options.html {
        write("page", path, &page::page(worlds)?)?;
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

/// Prints what comes of a size, and what is being simulated on the last line of a terminal. Once
/// Ctrl-C asks for it, it writes what is there and ends the process.
struct Printing<'a> {
    options: &'a SimOptions,
    studies: &'a [Study],
    /// What was predicted of the studies before this one.
    before: &'a [Sweep],
    study: &'a Study,
    size: usize,
    /// How many of those that are left out have been named.
    said: usize,
    /// Rows of so many candidates have been printed: of the first ones.
    printed: AtomicUsize,
    shown: bool,
}

impl Printing<'_> {
    fn rows(&self, sweep: &Sweep, all: bool) -> Result<(), Failure> {
        let form = self.options.form();
        let mut at = self.printed.load(Ordering::Relaxed);
        while let Some(column) = sweep.columns.get(at) {
            let is_there = column.as_ref().is_none_or(|points| points.len() > self.size);
            if !is_there && !all {
                break;
            }
            if let Some(row) = form.row(self.study, sweep, (at, self.size)) {
                self.clear();
                print(&row)?;
            }
            at += 1;
        }
        self.printed.store(at, Ordering::Relaxed);
        Ok(())
    }

    fn end(&self, sweep: &Sweep) -> Result<(), Failure> {
        self.rows(sweep, true)?;
        self.clear();
        print(&self.options.form().end_of_size(self.study, sweep, self.size))
    }

    fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

impl Watch for Printing<'_> {
    fn begins(&self, at: usize) {
        if self.shown {
            let (bytes, candidates) = (Size(self.study.sizes[self.size]), &self.study.candidates);
            let (count, name) = (candidates.len(), candidates[at].name());
            let nodes = match self.studies.len() {
                1 => String::new(),
                _ => format!("{} nodes, ", self.study.network.nodes()),
            };
            eprint!("\r\x1b[K# {nodes}{bytes}: {} of {count}, {name}", at + 1);
        }
    }

    fn comes(&self, sweep: &Sweep) -> Result<(), Failure> {
        self.waits(sweep);
        self.rows(sweep, false)
    }

    fn waits(&self, sweep: &Sweep) {
        if !interrupt::asked() {
            return;
        }
        let written = self
            .end(sweep)
            .and_then(|()| print(&self.options.form().tail(sweep, self.said, true)))
            .and_then(|()| {
                let sweeps = self.before.iter().chain([sweep]);
                write_files(self.options, &worlds(self.studies, sweeps))
            });
        if let Err(error) = written {
            eprintln!("oxccl: {error}");
        }
        interrupt::end()
    }
}
