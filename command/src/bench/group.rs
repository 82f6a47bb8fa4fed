//! `oxccl bench group`: the same buckets fused into one launch, one by one, copied together around
//! one call, and as one contiguous call of the same total, in turn.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use oxccl::cuda::{Stream, copy};
use oxccl::{Collectives, Communicator, DeviceBuffer, Error, Kind, OnStream, ReduceOp, Work};
use serde::{Deserialize, Serialize};

use super::args::BenchOptions;
use super::measure::{Effort, median, repeat, warm_up};
use super::output::Output;
use super::rank::Comms;
use super::report::rounded;
use crate::failure::Failure;
use crate::options::{self, Size};

/// How often all contestants take their turn, for each repeat that is asked for: what the machine
/// does meanwhile hits all of them alike.
const TURNS: usize = 3;
/// Calls behind another contestant's turn, before time is taken.
const WARM_CALLS: usize = 1;

/// What `oxccl bench group` groups.
#[derive(Args, Clone, Debug)]
pub struct GroupOptions {
    /// group: how many buckets.
    #[arg(long, default_value = "20", value_parser = options::positive)]
    pub buckets: usize,
    /// group: bytes of each.
    #[arg(long, default_value = "64K")]
    pub bucket_size: Size,
    /// group: what is done with each: all_reduce, reduce_scatter, all_gather or all_to_all.
    #[arg(long, default_value = "all_reduce", value_parser = bucket_op)]
    pub bucket_op: Kind,
    /// group: takes the buckets from a file such as benches/data/gpt2_small.toml, in the reverse of
    /// its order.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["buckets", "bucket_size"])]
    pub buckets_from: Option<PathBuf>,
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
    /// The buckets' lengths in elements, of a rank's larger buffer, each a multiple of the number
    /// of ranks where it has parts.
    ///
    /// # Errors
    /// A file that holds none.
    pub fn counts(&self, ranks: usize) -> Result<Vec<usize>, Failure> {
        let counts = match &self.buckets_from {
            Some(path) => from_file(path)?,
            None => vec![self.bucket_size.0.div_ceil(4); self.buckets],
        };
        let unit = if self.bucket_op == Kind::AllReduce { 1 } else { ranks };
        Ok(counts.into_iter().map(|count| count.next_multiple_of(unit)).collect())
    }
}

/// What a rank's buckets, and the same once more in one piece, take of a heap.
pub(crate) fn heap_bytes(counts: &[usize]) -> usize {
    let room = |count: usize| {
        let len = count * size_of::<f32>();
        len.next_multiple_of(4096) + if len >= 2 << 20 { 4 << 20 } else { 4096 }
    };
    2 * (counts.iter().map(|count| room(*count)).sum::<usize>() + room(counts.iter().sum()))
}

fn bucket_op(text: &str) -> Result<Kind, String> {
    let kind: Kind = text.parse()?;
    match kind {
        Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather | Kind::AllToAll => Ok(kind),
        _ => {
            Err("groups of all_reduce, reduce_scatter, all_gather and all_to_all are measured"
                .into())
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

/// A way of carrying out all buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Form {
    /// One launch of a group.
    Fused,
    /// A call for each bucket.
    OneByOne,
    /// One call, with all buckets copied together before and apart behind it.
    Flatten,
    /// One call of buffers that lie in one piece.
    Ideal,
}

impl Form {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Form::Fused => "fused",
            Form::OneByOne => "one_by_one",
            Form::Flatten => "flatten",
            Form::Ideal => "ideal",
        }
    }
}

/// What one of them has come to.
struct Measured {
    mode: Form,
    wrong: u64,
    launches: u64,
    /// Calls in a timed loop.
    calls: usize,
    times: Vec<f64>,
}

#[derive(Serialize)]
struct Row {
    op: &'static str,
    mode: Form,
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
    kind: Kind,
    rank: usize,
    ranks: usize,
    /// On a GPU, where calls go.
    stream: Option<Stream>,
    inputs: Vec<DeviceBuffer<f32>>,
    outputs: Vec<DeviceBuffer<f32>>,
    flat_input: DeviceBuffer<f32>,
    flat_output: DeviceBuffer<f32>,
}

/// A small integer: every order has the same sum.
fn value(rank: usize, bucket: usize, at: usize) -> f32 {
    ((at * 7 + bucket * 3 + rank * 5) % 31) as f32
}

impl Buckets {
    fn allocate(comm: &Communicator, kind: Kind, counts: &[usize]) -> Result<Buckets, Error> {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        let share = |divides: bool| if divides { ranks } else { 1 };
        let input = |count: &usize| count / share(kind == Kind::AllGather);
        let output = |count: &usize| count / share(kind == Kind::ReduceScatter);
        Ok(Buckets {
            kind,
            rank,
            ranks,
            stream: comm.context().as_ref().map(Stream::new).transpose()?,
            inputs: counts.iter().map(|c| comm.alloc(input(c))).collect::<Result<_, _>>()?,
            outputs: counts.iter().map(|c| comm.alloc(output(c))).collect::<Result<_, _>>()?,
            flat_input: comm.alloc(counts.iter().map(input).sum())?,
            flat_output: comm.alloc(counts.iter().map(output).sum())?,
        })
    }

    fn fill(&mut self) -> Result<(), Error> {
        for (bucket, input) in self.inputs.iter_mut().enumerate() {
            let values = (0..input.len()).map(|at| value(self.rank, bucket, at));
            input.write(&values.collect::<Vec<f32>>())?;
        }
        self.flatten()
    }

    /// What an output must hold.
    fn expected(&self, bucket: usize, at: usize) -> f32 {
        let sum = |at: usize| (0..self.ranks).map(|rank| value(rank, bucket, at)).sum();
        let len = self.outputs[bucket].len();
        match self.kind {
            Kind::ReduceScatter => sum(self.rank * len + at),
            Kind::AllGather => value(at / (len / self.ranks), bucket, at % (len / self.ranks)),
            Kind::AllToAll => {
                let part = len / self.ranks;
                value(at / part, bucket, self.rank * part + at % part)
            }
            _ => sum(at),
        }
    }

    fn call(&mut self, comm: &Communicator, mode: Form) -> Result<(), Error> {
        match self.stream.take() {
            None => self.call_on_host(comm, mode),
            Some(stream) => {
                let called = self.call_on_gpu(comm, &stream, mode);
                self.stream = Some(stream);
                called
            }
        }
    }

    fn call_on_gpu(
        &mut self,
        comm: &Communicator,
        stream: &Stream,
        mode: Form,
    ) -> Result<(), Error> {
        let (on, kind) = (comm.on(stream), self.kind);
        match mode {
            Form::Fused => {
                let (work, ()) = on.group(|group| {
                    for (from, to) in self.inputs.iter().zip(&mut self.outputs) {
                        match kind {
                            Kind::ReduceScatter => group.reduce_scatter(from, to, ReduceOp::Sum),
                            Kind::AllGather => group.all_gather(from, to),
                            Kind::AllToAll => group.all_to_all(from, to),
                            _ => group.all_reduce(from, to, ReduceOp::Sum),
                        }?;
                    }
                    Ok(())
                })?;
                work.wait()
            }
            Form::OneByOne => {
                let pairs = self.inputs.iter().zip(&mut self.outputs);
                let works: Vec<Work> =
                    pairs.map(|(from, to)| one_on(on, kind, from, to)).collect::<Result<_, _>>()?;
                works.iter().try_for_each(Work::wait)
            }
            Form::Flatten => {
                self.copy_parts(Some(stream), true)?;
                let _call = one_on(on, kind, &self.flat_input, &mut self.flat_output)?;
                self.copy_parts(Some(stream), false)?;
                Ok(stream.synchronize()?)
            }
            Form::Ideal => one_on(on, kind, &self.flat_input, &mut self.flat_output)?.wait(),
        }
    }

    fn call_on_host(&mut self, comm: &Communicator, mode: Form) -> Result<(), Error> {
        let kind = self.kind;
        match mode {
            Form::Fused => comm.group(|group| {
                for (from, to) in self.inputs.iter().zip(&mut self.outputs) {
                    match kind {
                        Kind::ReduceScatter => group.reduce_scatter(from, to, ReduceOp::Sum),
                        Kind::AllGather => group.all_gather(from, to),
                        Kind::AllToAll => group.all_to_all(from, to),
                        _ => group.all_reduce(from, to, ReduceOp::Sum),
                    }?;
                }
                Ok(())
            }),
            Form::OneByOne => {
                let mut pairs = self.inputs.iter().zip(&mut self.outputs);
                pairs.try_for_each(|(from, to)| one(comm, kind, from, to))
            }
            Form::Flatten => {
                self.copy_parts(None, true)?;
                one(comm, kind, &self.flat_input, &mut self.flat_output)?;
                self.copy_parts(None, false)
            }
            Form::Ideal => one(comm, kind, &self.flat_input, &mut self.flat_output),
        }
    }

    /// Copies all inputs together.
    fn flatten(&mut self) -> Result<(), Error> {
        let stream = self.stream.take();
        let copied = self.copy_parts(stream.as_ref(), true);
        let copied = copied.and_then(|()| Ok(stream.iter().try_for_each(Stream::synchronize)?));
        self.stream = stream;
        copied
    }

    /// Copies all inputs together, or the result to all outputs: each rank's parts of them, where
    /// they have parts.
    fn copy_parts(&mut self, stream: Option<&Stream>, inputs: bool) -> Result<(), Error> {
        let with_parts = match inputs {
            true => matches!(self.kind, Kind::ReduceScatter | Kind::AllToAll),
            false => matches!(self.kind, Kind::AllGather | Kind::AllToAll),
        };
        let parts = if with_parts { self.ranks } else { 1 };
        let mut at = 0;
        for part in 0..parts {
            for bucket in 0..self.inputs.len() {
                let (input, output) = (&self.inputs[bucket], &mut self.outputs[bucket]);
                let len = if inputs { input.len() } else { output.len() } / parts;
                match inputs {
                    true => copy_part(stream, (&mut self.flat_input, at), (input, part * len), len),
                    false => copy_part(stream, (output, part * len), (&self.flat_output, at), len),
                }?;
                at += len;
            }
        }
        Ok(())
    }

    /// Elements that are wrong after one call over poisoned outputs.
    fn wrong(&mut self, comm: &Communicator, mode: Form) -> Result<u64, Error> {
        for output in self.outputs.iter_mut().chain([&mut self.flat_output]) {
            output.write(&vec![f32::NAN; output.len()])?;
        }
        self.call(comm, mode)?;
        if mode == Form::Ideal {
            let stream = self.stream.take();
            self.copy_parts(stream.as_ref(), false)?;
            stream.iter().try_for_each(Stream::synchronize)?;
            self.stream = stream;
        }
        let mut wrong = 0;
        for (bucket, output) in self.outputs.iter().enumerate() {
            let mut found = vec![0.0; output.len()];
            output.read(&mut found)?;
            let differs = |(at, one): (usize, &f32)| *one != self.expected(bucket, at);
            wrong += found.iter().enumerate().filter(|one| differs(*one)).count() as u64;
        }
        Ok(wrong)
    }
}

/// Copies a part of one buffer into another: on a GPU in a stream.
fn copy_part(
    stream: Option<&Stream>,
    (to, to_at): (&mut DeviceBuffer<f32>, usize),
    (from, from_at): (&DeviceBuffer<f32>, usize),
    len: usize,
) -> Result<(), Error> {
    match stream {
        Some(stream) => {
            assert!(to_at + len <= to.len() && from_at + len <= from.len());
            let (to, from) = (to.as_ptr().wrapping_add(to_at), from.as_ptr().wrapping_add(from_at));
            // SAFETY: both are as long. The stream is waited for before the buffers go, and calls
            // are in that stream.
            let copied = unsafe {
                copy(stream, to.cast(), from.cast_const().cast(), len * size_of::<f32>())
            };
            Ok(copied?)
        }
        None => {
            to.host_mut()?[to_at..][..len].copy_from_slice(&from.host()?[from_at..][..len]);
            Ok(())
        }
    }
}

fn one_on(
    on: OnStream<'_>,
    kind: Kind,
    from: &DeviceBuffer<f32>,
    to: &mut DeviceBuffer<f32>,
) -> Result<Work, Error> {
    match kind {
        Kind::ReduceScatter => on.reduce_scatter(from, to, ReduceOp::Sum),
        Kind::AllGather => on.all_gather(from, to),
        Kind::AllToAll => on.all_to_all(from, to),
        _ => on.all_reduce(from, to, ReduceOp::Sum),
    }
}

fn one(
    comm: &Communicator,
    kind: Kind,
    from: &DeviceBuffer<f32>,
    to: &mut DeviceBuffer<f32>,
) -> Result<(), Error> {
    match kind {
        Kind::ReduceScatter => comm.reduce_scatter(from, to, ReduceOp::Sum),
        Kind::AllGather => comm.all_gather(from, to),
        Kind::AllToAll => comm.all_to_all(from, to),
        _ => comm.all_reduce(from, to, ReduceOp::Sum),
    }
}

/// Measures the modes in turn; rank 0 prints.
pub(super) fn run(
    options: &BenchOptions,
    comms: &Comms,
    output: &mut Output,
    effort: &Effort,
) -> Result<(), Failure> {
    let (comm, kind) = (&comms.measured, options.group.bucket_op);
    let counts = options.group.counts(comm.world_size())?;
    let mut buckets = Buckets::allocate(comm, kind, &counts)?;
    buckets.fill()?;
    let modes = match &options.modes[..] {
        [] => Form::value_variants(),
        some => some,
    };
    let mut measured = Vec::with_capacity(modes.len());
    for &mode in modes {
        comms.step(|| format!("buckets are checked, {}", mode.name()));
        let before = comm.launches();
        let mut wrong = [buckets.wrong(comm, mode)?];
        let launches = comm.launches() - before;
        comms.control.all_reduce_in_place(&mut wrong, ReduceOp::Sum)?;
        measured.push(Measured { mode, wrong: wrong[0], launches, calls: 0, times: Vec::new() });
    }
    for one in &mut measured {
        comms.step(|| format!("buckets are timed first, {}", one.mode.name()));
        one.calls = warm_up(&comms.control, effort, &mut || buckets.call(comm, one.mode))?;
    }
    for _ in 0..TURNS * effort.repeats {
        for one in &mut measured {
            comms.step(|| format!("buckets are timed, {}", one.mode.name()));
            (0..WARM_CALLS).try_for_each(|_| buckets.call(comm, one.mode))?;
            let mut call = || buckets.call(comm, one.mode);
            one.times.push(repeat(&comms.control, one.calls, &mut call)?);
        }
    }
    measured.iter_mut().for_each(|one| one.times.sort_by(f64::total_cmp));
    let bytes = counts.iter().sum::<usize>() * 4;
    let row = |one: &Measured| {
        let time_us = median(&one.times);
        Row {
            op: kind.name(),
            mode: one.mode,
            data_type: "float",
            redop: "sum",
            ranks: comm.world_size(),
            buckets: counts.len(),
            bytes,
            time_us: rounded(time_us),
            min_us: rounded(one.times[0]),
            algbw_gbps: rounded(bytes as f64 / time_us / 1e3),
            wrong: Some(one.wrong),
            launches: one.launches,
        }
    };
    let rows: Vec<Row> = measured.iter().map(row).collect();
    output.group(&rows.iter().map(line).collect::<Vec<_>>(), &rows);
    let count = measured.iter().map(|one| one.wrong).sum();
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
