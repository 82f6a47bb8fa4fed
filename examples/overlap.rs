//! One training step of data parallelism, three times: gradients reduced when all are computed,
//! bucket by bucket as they are computed, and by a group that was launched before and gets its
//! buckets marked ready.
//!
//! ```text
//! cargo run --release --example overlap                      # 2 ranks as threads
//! oxccl run --ranks 2 -- target/release/examples/overlap --launched
//! ```
//!
//! The parameters are GPT-2 small's (benches/data/gpt2_small.toml). The gradient of each matrix is
//! a matrix product, of the layer's inputs and the gradients of its outputs, as in
//! back-propagation; the optimizer is plain gradient descent. The three give the same parameters,
//! bit for bit, which is checked. Times are medians, of rank 0.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use oxccl::bucket::{DEFAULT_CAPACITY_BYTES, GradientBuckets};
use oxccl::{Collectives, Communicator, ReduceOp, Stream};
use serde::Deserialize;

const MODEL: &str = include_str!("../benches/data/gpt2_small.toml");
const LEARNING_RATE: f32 = 0.01;

#[derive(Parser)]
pub(crate) struct Options {
    /// Ranks, as threads of this process.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// A launcher has started the ranks.
    #[arg(long)]
    launched: bool,
    /// Samples of a rank's batch: how much there is to compute.
    #[arg(long, default_value_t = 8)]
    batch: usize,
    /// Divides the model's widths.
    #[arg(long, default_value_t = 1)]
    shrink: usize,
    /// Bytes of a bucket.
    #[arg(long, default_value_t = DEFAULT_CAPACITY_BYTES)]
    capacity: usize,
    /// Steps of each kind.
    #[arg(long, default_value_t = 3)]
    steps: usize,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overlap: {error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn run(options: &Options) -> Outcome<()> {
    if options.launched {
        return report(&Communicator::from_env()?, options);
    }
    let ranks = Communicator::local(options.ranks)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            ranks.into_iter().map(|comm| scope.spawn(move || report(&comm, options))).collect();
        for thread in threads {
            thread.join().map_err(|_| "a rank panicked")??;
        }
        Ok(())
    })
}

#[derive(Deserialize)]
struct Model {
    gradients: Vec<Parameter>,
}

/// A parameter: a matrix, or a vector that is one of a single row.
#[derive(Deserialize)]
struct Parameter {
    shape: Vec<usize>,
}

impl Parameter {
    /// Rows and columns.
    fn sides(&self, shrink: usize) -> (usize, usize) {
        let side = |at: usize| self.shape.get(at).map_or(1, |side| side.div_ceil(shrink));
        if self.shape.len() < 2 { (1, side(0)) } else { (side(0), side(1)) }
    }
}

/// Which of the three.
#[derive(Clone, Copy)]
enum Way {
    Afterwards,
    Buckets,
    Gates,
}

/// A rank's part of the training.
struct Trainer<'a> {
    comm: &'a Communicator,
    stream: Stream,
    sides: Vec<(usize, usize)>,
    batch: usize,
    buckets: GradientBuckets<f32>,
    /// By bucket, as the gradients lie there.
    parameters: Vec<Vec<f32>>,
}

impl<'a> Trainer<'a> {
    fn new(comm: &'a Communicator, options: &Options) -> Outcome<Trainer<'a>> {
        let model: Model = toml::from_str(MODEL)?;
        let sides: Vec<_> = model.gradients.iter().map(|one| one.sides(options.shrink)).collect();
        let counts: Vec<usize> = sides.iter().map(|(rows, columns)| rows * columns).collect();
        let mut buckets = GradientBuckets::with_capacity(comm, &counts, options.capacity)?;
        let lengths = (0..buckets.buckets()).filter_map(|at| Some(buckets.bucket_mut(at)?.len()));
        let parameters = lengths.map(|count| vec![0.5; count]).collect();
        let (stream, batch) = (Stream::new()?, options.batch);
        Ok(Trainer { comm, stream, sides, batch, buckets, parameters })
    }

    fn step(&mut self, way: Way) -> Result<(), oxccl::Error> {
        match way {
            Way::Afterwards => self.afterwards(),
            Way::Buckets => self.with_buckets(),
            Way::Gates => self.with_gates(),
        }
    }

    /// Computes all gradients, then reduces all.
    fn afterwards(&mut self) -> Result<(), oxccl::Error> {
        for parameter in (0..self.sides.len()).rev() {
            let work = self.work(parameter);
            work.compute(self.buckets.gradient_mut(parameter)?);
        }
        for bucket in 0..self.parameters.len() {
            if let Some(gradients) = self.buckets.bucket_mut(bucket) {
                self.comm.all_reduce_in_place(gradients, ReduceOp::Avg)?;
            }
        }
        (0..self.parameters.len()).for_each(|bucket| self.update(bucket));
        Ok(())
    }

    /// Launches a bucket's reduction when its last gradient has been computed.
    fn with_buckets(&mut self) -> Result<(), oxccl::Error> {
        let mut works = Vec::new();
        for parameter in (0..self.sides.len()).rev() {
            let work = self.work(parameter);
            work.compute(self.buckets.gradient_mut(parameter)?);
            let bucket = self.buckets.place(parameter)?.bucket;
            let ends = parameter == 0 || self.buckets.place(parameter - 1)?.bucket != bucket;
            if let Some(gradients) = self.buckets.bucket_mut(bucket).filter(|_| ends) {
                works.push(
                    self.comm.on(&self.stream).all_reduce_in_place(gradients, ReduceOp::Avg)?,
                );
            }
        }
        for (bucket, work) in works.into_iter().enumerate() {
            work.wait()?;
            self.update(bucket);
        }
        Ok(())
    }

    /// Launches everything first.
    fn with_gates(&mut self) -> Result<(), oxccl::Error> {
        let works: Vec<Work> = (0..self.sides.len()).map(|at| self.work(at)).collect();
        let mut step = self.buckets.launch(self.comm, &self.stream, ReduceOp::Avg)?;
        for (parameter, work) in works.iter().enumerate().rev() {
            work.compute(step.gradient(parameter)?);
            step.ready(parameter)?;
        }
        let group = step.finish();
        for bucket in 0..self.parameters.len() {
            if let Some(work) = group.bucket(bucket) {
                work.wait()?;
            }
            self.update(bucket);
        }
        group.wait()
    }

    fn work(&self, parameter: usize) -> Work {
        let (rows, columns) = self.sides[parameter];
        Work { rows, columns, batch: self.batch, seed: parameter * 31 + self.comm.rank() * 7 }
    }

    fn update(&mut self, bucket: usize) {
        if let Some(gradients) = self.buckets.bucket_mut(bucket) {
            // They are in memory of the host.
            let gradients = gradients.host().into_iter().flatten();
            let pairs = self.parameters[bucket].iter_mut().zip(gradients);
            pairs.for_each(|(parameter, gradient)| *parameter -= LEARNING_RATE * gradient);
        }
    }
}

/// A layer's part in back-propagation: the gradient of its matrix is a product of its inputs and of
/// the gradients of its outputs.
#[derive(Clone, Copy)]
struct Work {
    rows: usize,
    columns: usize,
    batch: usize,
    seed: usize,
}

impl Work {
    /// Some value of this rank's batch.
    fn value(&self, sample: usize, at: usize) -> f32 {
        ((at * 37 + sample * 11 + self.seed) % 251) as f32 / 251.0 - 0.5
    }

    /// The product of `rows` inputs and `columns` gradients, summed over the batch.
    fn compute(&self, gradient: &mut [f32]) {
        let sample_rows = |sample| (0..self.columns).map(move |at| self.value(sample, at));
        let outputs: Vec<Vec<f32>> =
            (0..self.batch).map(|sample| sample_rows(sample).collect()).collect();
        for (row, sums) in gradient.chunks_exact_mut(self.columns).enumerate() {
            sums.fill(0.0);
            for (sample, output) in outputs.iter().enumerate() {
                let input = self.value(sample, row + self.rows);
                sums.iter_mut().zip(output).for_each(|(sum, value)| *sum += input * value);
            }
        }
    }
}

/// Trains in three ways, checks that the results are the same, and lets rank 0 print the times.
fn report(comm: &Communicator, options: &Options) -> Outcome<()> {
    let ways = [
        ("without overlap", Way::Afterwards),
        ("with buckets", Way::Buckets),
        ("with gates", Way::Gates),
    ];
    let mut first: Option<Vec<Vec<f32>>> = None;
    for (name, way) in ways {
        let mut trainer = Trainer::new(comm, options)?;
        let mut times_ms = Vec::new();
        for _ in 0..options.steps.max(1) {
            comm.barrier()?;
            let start = Instant::now();
            trainer.step(way)?;
            comm.barrier()?;
            times_ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times_ms.sort_by(f64::total_cmp);
        if comm.rank() == 0 {
            let (median_ms, buckets) = (times_ms[times_ms.len() / 2], trainer.parameters.len());
            println!("{name:>16}: {median_ms:10.2} ms a step, {buckets} buckets");
        }
        match &first {
            None => first = Some(trainer.parameters),
            Some(first) if is_same(first, &trainer.parameters) => {}
            Some(_) => return Err(format!("{name}: other parameters than without overlap").into()),
        }
    }
    if comm.rank() == 0 {
        println!("{} ranks: the same parameters in all three ways, bit for bit", comm.world_size());
    }
    Ok(())
}

fn is_same(first: &[Vec<f32>], second: &[Vec<f32>]) -> bool {
    let bits = |one: &f32| one.to_bits();
    first.iter().flatten().map(bits).eq(second.iter().flatten().map(bits))
}
