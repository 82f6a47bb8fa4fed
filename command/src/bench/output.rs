//! Where rows go: to standard output, with a progress bar on the terminal beside it. Only rank 0
//! has one.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oxccl::plans::tune::Plan;
use oxccl_kernels::HostExecutor;

use super::against::{self, Log};
use super::args::BenchOptions;
use super::buffers::Whose;
use super::case::Case;
use super::predict::{self, Model};
use super::report::{Format, Row};
use crate::machine::{self, Probe};
use crate::options::Target;
use crate::speak;

/// Prints what rank 0 finds, and nothing on other ranks.
pub(super) struct Output {
    format: Option<Format>,
    header: String,
    bar: ProgressBar,
    bandwidth_sum: f64,
    bandwidths: usize,
    kind: Option<oxccl::Kind>,
    against: Option<Log>,
    model: Option<Model>,
}

impl Output {
    /// The output of a rank that prints nothing.
    pub(super) fn silent() -> Output {
        Output {
            format: None,
            header: String::new(),
            bar: ProgressBar::hidden(),
            bandwidth_sum: 0.0,
            bandwidths: 0,
            kind: None,
            against: None,
            model: None,
        }
    }

    /// The output of rank 0, which knows the lines that name the machine and the run.
    pub(super) fn of(
        options: &BenchOptions,
        ranks: usize,
        probe: Option<Probe>,
        (against, model): (Option<Log>, Option<Model>),
    ) -> Output {
        let format = match (options.csv, options.sweep.json) {
            (true, _) => Format::Csv,
            (_, true) => Format::Json,
            _ => Format::Table,
        };
        let header = header(options, ranks, probe);
        Output { format: Some(format), header, against, model, ..Output::silent() }
    }

    /// Prints what comes before the rows. The ranks have met: if this fails, they hear of it.
    pub(super) fn start(&self, target: Target) {
        let Some(format) = self.format else { return };
        if format == Format::Table {
            self.print(&self.header);
        } else {
            // Standard output is data there.
            speak::note(&self.header);
        }
        let log = self.against.as_ref().map(|_| "the log's");
        let predicted = self.model.as_ref().map(|_| "predicted");
        let besides: Vec<&str> = log.into_iter().chain(predicted).collect();
        if let Some(heading) = format.heading(&besides).filter(|_| target != Target::Group) {
            self.print(&heading);
        }
    }

    /// From here on so many sizes are measured.
    pub(super) fn begin(&mut self, sizes: usize) {
        if self.format.is_some() && std::io::stderr().is_terminal() {
            let target = ProgressDrawTarget::stderr();
            self.bar = ProgressBar::with_draw_target(Some(sizes as u64), target);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
            self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
    }

    /// The next rows are of this case.
    pub(super) fn case(&mut self, case: &Case) {
        self.bar.set_message(case.kind.name());
        if self.format == Some(Format::Table) && self.kind != Some(case.kind) {
            self.print(&format!("# {}", case.kind));
        }
        self.kind = Some(case.kind);
    }

    /// A row of a call by this plan, with what it is held against.
    pub(super) fn held(&mut self, row: Row, case: &Case, plan: &Plan) -> Row {
        let row = self.against.as_mut().map_or(row.clone(), |log| log.hold(&row));
        self.model.as_mut().map_or(row.clone(), |model| model.hold(&row, case, plan))
    }

    /// One size is done.
    pub(super) fn rows(&mut self, out_of_place: &Row, in_place: Option<&Row>) {
        for row in std::iter::once(out_of_place).chain(in_place) {
            self.bandwidth_sum += row.busbw_gbps;
            self.bandwidths += 1;
        }
        if let Some(format) = self.format {
            let mut text = format.rows(out_of_place, in_place);
            if format == Format::Table && self.against.is_some() {
                text += &against::columns(out_of_place, in_place);
            }
            if format == Format::Table && self.model.is_some() {
                text += &predict::columns(out_of_place, in_place);
            }
            self.print(&text);
        }
        self.bar.inc(1);
    }

    /// A group's rows: as a table's lines, or to be serialized.
    pub(super) fn group<T: serde::Serialize>(&mut self, lines: &[String], rows: &[T]) {
        match self.format {
            None => {}
            Some(Format::Json) => {
                for row in rows {
                    self.print(&speak::json(row));
                }
            }
            Some(_) => {
                self.print(
                    "#       mode    buckets        bytes     time (us)     min (us)     GB/s  #wrong  launches",
                );
                for line in lines {
                    self.print(line);
                }
            }
        }
    }

    /// All is done.
    pub(super) fn end(&mut self, wrong: u64) {
        self.bar.finish_and_clear();
        if self.format == Some(Format::Table) {
            let verdict = if wrong == 0 { "OK" } else { "FAILED" };
            let average = self.bandwidth_sum / self.bandwidths.max(1) as f64;
            let against = self.against.as_mut().map(Log::summary);
            let predicted = self.model.as_mut().map(Model::summary);
            let besides = against.into_iter().chain(predicted).map(|text| format!("\n{text}"));
            self.print(&format!(
                "# Out of bounds values : {wrong} {verdict}\n\
                 # Avg bus bandwidth    : {average:.6}{}\n#",
                besides.collect::<String>()
            ));
        }
    }

    fn print(&self, text: &str) {
        self.bar.suspend(|| speak::result(text));
    }
}

/// What timed calls rotate over.
fn rotation(options: &BenchOptions) -> String {
    match (options.target(), options.rotate) {
        (Target::Group, _) => String::new(),
        (_, 1) => ", one call repeated".to_owned(),
        (_, buffers) if options.sweep.op.is_some() => format!(", over {buffers} buffers by turns"),
        (_, buffers) => format!(", over {buffers} buffers and 4 operations by turns"),
    }
}

fn header(options: &BenchOptions, ranks: usize, probe: Option<Probe>) -> String {
    let step = match options.sweep.stepbytes {
        Some(bytes) => format!("{bytes}(bytes)"),
        None => format!("{}(factor)", options.sweep.stepfactor),
    };
    let iterations = options.iters.map_or("auto".to_owned(), |iters| iters.to_string());
    let config = options.config().unwrap_or_default();
    let pinned = [
        config.pin.algorithm.map(|algorithm| format!(", algorithm {algorithm}")),
        config.pin.encoding.map(|encoding| format!(", encoding {encoding}")),
        config.pin.channels.map(|channels| format!(", channels {channels}")),
    ];
    let probe = probe.map(|probe| format!("# {probe}\n")).unwrap_or_default();
    format!(
        "# oxccl {} on {} ({} cores), host executor {}\n{probe}\
         # {ranks} ranks as {}, memory {}, order {}{}{}\n\
         # minBytes {} maxBytes {} step: {step} warmup iters: {} iters: {iterations} agg iters: {} \
         validation: {} graph: {} repeats: {}",
        env!("CARGO_PKG_VERSION"),
        machine::cpu_model(),
        std::thread::available_parallelism().map_or(1, usize::from),
        HostExecutor::detect().isa().name(),
        if options.threads { "threads" } else { "processes" },
        match Whose::of(options) {
            Whose::Private => "private to each rank",
            Whose::Registered => "registered",
            Whose::Heap => "of comm.alloc",
        },
        config.order,
        pinned.into_iter().flatten().collect::<String>(),
        rotation(options),
        options.sweep.minbytes.0,
        options.sweep.maxbytes.0,
        options.warmup_iters,
        options.agg_iters,
        options.sweep.check,
        options.graph,
        options.sweep.repeats,
    )
}
