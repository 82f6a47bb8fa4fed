//! `oxccl bench group`: the same buckets fused into one launch, one by one, copied together around one call, and as one contiguous
//! call of the same total, in turn.

use std::path::{Path, PathBuf};

use clap::Args;
use oxccl::{Communicator, DeviceBuffer, Error, ReduceOp};
use serde::{Deserialize, Serialize};

use super::args::BenchOptions;
use super::measure::{Effort, Timing, measure};
use super::output::Output;
use super::rank::Comms;
use super::report::rounded;
use crate::failure::Failure;
use crate::options::{self, Size};

/// How often all contestants take their turn.
const ROUNDS: usize = 3;

/// What `oxccl bench group` groups.
#[derive(Args, Clone, Debug)]
pub(crate) struct GroupOptions {
    /// bench group: how many buckets.
    #[arg(long, default_value = "20", value_parser = options::positive)]
    pub(crate) buckets: usize,
    /// bench group: bytes of each.
    #[arg(long, default_value = "64K")]
    pub(crate) bucket_size: Size,
    /// bench group: takes the buckets from a file such as benches/data/gpt2-small.toml, in the reverse of its order.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["buckets", "bucket_size"])]
    pub(crate) buckets_from: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Model {
    gradients: Vec<Gradient>,
}

#[derive(Deserialize)]
struct Gradient {
    count: usize,
}

impl GroupOptions {
    /// The buckets' lengths in elements.
    ///
    /// # Errors
    /// A file that holds none.
    pub(crate) fn counts(&self) -> Result<Vec<usize>, Failure> {
        match &self.buckets_from {
            Some(path) => from_file(path),
            None => Ok(vec![self.bucket_size.0.div_ceil(4); self.buckets]),
        }
    }
}

fn from_file(path: &Path) -> Result<Vec<usize>, Failure> {
    let usage = |error: String| Failure::Usage(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
    let model: Model = toml::from_str(&text).map_err(|error| usage(error.to_string()))?;
    let counts: Vec<usize> = model.gradients.iter().rev().map(|one| one.count).collect();
    if counts.is_empty() { Err(usage("it has no gradients".into())) } else { Ok(counts) }
}

/// A way of reducing all buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Fused,
    OneByOne,
    Flatten,
    Ideal,
}

const MODES: [Mode; 4] = [Mode::Fused, Mode::OneByOne, Mode::Flatten, Mode::Ideal];

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Fused => "fused",
            Mode::OneByOne => "one_by_one",
            Mode::Flatten => "flatten",
            Mode::Ideal => "ideal",
        }
    }
}

#[derive(Serialize)]
struct Row {
    op: &'static str,
    mode: Mode,
    #[serde(rename = "type")]
    data_type: &'static str,
    redop: &'static str,
    ranks: usize,
    buckets: usize,
    bytes: usize,
    time_us: f64,
    min_us: f64,
    algbw_gbps: f64,
    wrong: Option<u64>,
    /// Launches for all buckets.
    launches: u64,
}

/// A rank's buckets, and the same once more in one piece.
struct Buckets {
    inputs: Vec<DeviceBuffer<f32>>,
    outputs: Vec<DeviceBuffer<f32>>,
    flat_input: DeviceBuffer<f32>,
    flat_output: DeviceBuffer<f32>,
}

impl Buckets {
    fn allocate(comm: &Communicator, counts: &[usize]) -> Result<Buckets, Error> {
        let total = counts.iter().sum();
        let many = || counts.iter().map(|count| comm.alloc(*count)).collect::<Result<Vec<_>, _>>();
        Ok(Buckets {
            inputs: many()?,
            outputs: many()?,
            flat_input: comm.alloc(total)?,
            flat_output: comm.alloc(total)?,
        })
    }

    /// Small integers, of which every order has the same sum.
    fn fill(&mut self, rank: usize) {
        for (bucket, input) in self.inputs.iter_mut().enumerate() {
            for (at, value) in input.iter_mut().enumerate() {
                *value = ((at * 7 + bucket * 3 + rank * 5) % 31) as f32;
            }
        }
        let mut at = 0;
        for input in &self.inputs {
            self.flat_input[at..at + input.len()].copy_from_slice(input);
            at += input.len();
        }
    }

    fn call(&mut self, comm: &Communicator, mode: Mode) -> Result<(), Error> {
        match mode {
            Mode::Fused => comm.group(|group| {
                for (from, to) in self.inputs.iter().zip(&mut self.outputs) {
                    group.all_reduce(from, to, ReduceOp::Sum)?;
                }
                Ok(())
            }),
            Mode::OneByOne => {
                for (from, to) in self.inputs.iter().zip(&mut self.outputs) {
                    comm.all_reduce(from, to, ReduceOp::Sum)?;
                }
                Ok(())
            }
            Mode::Flatten => self.flatten(comm),
            Mode::Ideal => comm.all_reduce(&self.flat_input, &mut self.flat_output, ReduceOp::Sum),
        }
    }

    fn flatten(&mut self, comm: &Communicator) -> Result<(), Error> {
        let mut at = 0;
        for input in &self.inputs {
            self.flat_input[at..at + input.len()].copy_from_slice(input);
            at += input.len();
        }
        comm.all_reduce(&self.flat_input, &mut self.flat_output, ReduceOp::Sum)?;
        at = 0;
        for output in &mut self.outputs {
            let len = output.len();
            output.copy_from_slice(&self.flat_output[at..at + len]);
            at += len;
        }
        Ok(())
    }

    /// Elements that are wrong after one call over poisoned outputs.
    fn wrong(&mut self, comm: &Communicator, mode: Mode) -> Result<u64, Error> {
        for output in &mut self.outputs {
            output.fill(f32::NAN);
        }
        self.flat_output.fill(f32::NAN);
        self.call(comm, mode)?;
        let ranks = comm.world();
        let expected = |bucket: usize, at: usize| -> f32 {
            (0..ranks).map(|rank| ((at * 7 + bucket * 3 + rank * 5) % 31) as f32).sum()
        };
        let (mut wrong, mut first) = (0, 0);
        for (bucket, output) in self.outputs.iter().enumerate() {
            let found: &[f32] = match mode {
                Mode::Ideal => &self.flat_output[first..first + output.len()],
                _ => output,
            };
            let differs = |(at, value): (usize, &f32)| *value != expected(bucket, at);
            wrong += found.iter().enumerate().filter(|one| differs(*one)).count() as u64;
            first += output.len();
        }
        Ok(wrong)
    }
}

/// Measures all modes in turn; rank 0 prints.
pub(super) fn run(
    options: &BenchOptions,
    comms: &Comms,
    output: &mut Output,
    effort: &Effort,
) -> Result<(), Failure> {
    let counts = options.group.counts()?;
    let comm = &comms.measured;
    let mut buckets = Buckets::allocate(comm, &counts)?;
    buckets.fill(comm.rank());
    let mut wrong = [0; MODES.len()];
    let mut launches = [0; MODES.len()];
    for (at, mode) in MODES.into_iter().enumerate() {
        let before = comm.launches();
        let mut found = [buckets.wrong(comm, mode)?];
        launches[at] = comm.launches() - before;
        comms.control.all_reduce_in_place(&mut found, ReduceOp::Sum)?;
        wrong[at] = found[0];
    }
    let mut timings: Vec<Vec<Timing>> = vec![Vec::new(); MODES.len()];
    for _ in 0..ROUNDS {
        for (at, mode) in MODES.into_iter().enumerate() {
            let call = || buckets.call(comm, mode);
            timings[at].push(measure(&comms.control, effort, call)?);
        }
    }
    let bytes = counts.iter().sum::<usize>() * 4;
    let row = |at: usize| {
        let mut medians: Vec<f64> = timings[at].iter().map(|timing| timing.median_us).collect();
        medians.sort_by(f64::total_cmp);
        let minima = timings[at].iter().map(|timing| timing.min_us);
        let time_us = medians[ROUNDS / 2];
        Row {
            op: "all_reduce",
            mode: MODES[at],
            data_type: "float",
            redop: "sum",
            ranks: comm.world(),
            buckets: counts.len(),
            bytes,
            time_us: rounded(time_us),
            min_us: rounded(minima.fold(f64::INFINITY, f64::min)),
            algbw_gbps: rounded(bytes as f64 / time_us / 1e3),
            wrong: Some(wrong[at]),
            launches: launches[at],
        }
    };
    let rows: Vec<Row> = (0..MODES.len()).map(row).collect();
    output.group(&rows.iter().map(line).collect::<Vec<_>>(), &rows);
    let count = wrong.iter().sum();
    if count > 0 { Err(Failure::Wrong { count }) } else { Ok(()) }
}

fn line(row: &Row) -> String {
    format!(
        "{:>12} {:>10} {:>12}  {:>12.3} {:>12.3} {:>8.2} {:>7} {:>9}",
        row.mode.name(),
        row.buckets,
        row.bytes,
        row.time_us,
        row.min_us,
        row.algbw_gbps,
        row.wrong.map_or("N/A".into(), |wrong| wrong.to_string()),
        row.launches
    )
}
