//! One training step of data parallelism, three times: gradients reduced when all are computed,
//! bucket by bucket as they are computed, and by a group that was launched before and gets its
//! buckets marked ready.
//!
//! ```text
//! cargo run --release --example overlap                      # 2 ranks as threads
//! oxccl run --ranks 2 -- target/release/examples/overlap --launched
//!
//! nvcc -std=c++17 -arch=sm_90 -I kernels/include -ptx examples/device/overlap.cu
//! OXCCL_DEVICE=cuda CUDA_DEVICE_MAX_CONNECTIONS=32 \\
//!     oxccl run --ranks 2 -- target/release/examples/overlap --launched --kernels overlap.ptx
//! ```
//!
//! The parameters are GPT-2 small's (benches/data/gpt2_small.toml). The gradient of each matrix is
//! a matrix product, of the layer's inputs and the gradients of its outputs, as in
//! back-propagation; the optimizer is plain gradient descent. The three give the same parameters,
//! bit for bit, which is checked. Times are medians, of rank 0.

mod gpu;
mod host;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use gpu::Gpu;
use host::Host;
use oxccl::bucket::DEFAULT_CAPACITY_BYTES;
use oxccl::{Collectives, Communicator, Device};
use serde::Deserialize;

const MODEL: &str = include_str!("../../benches/data/gpt2_small.toml");
const LEARNING_RATE: f32 = 0.01;

#[derive(Parser)]
pub(crate) struct Options {
    /// On GPUs (`OXCCL_DEVICE=cuda`): the PTX of `examples/device/overlap.cu`.
    #[arg(long)]
    kernels: Option<PathBuf>,
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

/// Rows and columns of each parameter.
fn sides(options: &Options) -> Outcome<Vec<(usize, usize)>> {
    let model: Model = toml::from_str(MODEL)?;
    Ok(model.gradients.iter().map(|one| one.sides(options.shrink)).collect())
}

/// Which of the three.
#[derive(Clone, Copy)]
enum Way {
    Afterwards,
    Buckets,
    Gates,
}

/// A rank's part of the training.
trait Trainer {
    /// Computes gradients, reduces them over the ranks, and makes a step of the descent.
    fn step(&mut self, way: Way) -> Outcome<()>;

    /// By bucket, as the gradients lie there.
    fn parameters(&self) -> Outcome<Vec<Vec<f32>>>;
}

fn trainer<'a>(comm: &'a Communicator, options: &Options) -> Outcome<Box<dyn Trainer + 'a>> {
    match (comm.device(), &options.kernels) {
        (Device::Host, _) => Ok(Box::new(Host::new(comm, options)?)),
        (Device::Cuda(_), Some(kernels)) => Ok(Box::new(Gpu::new(comm, options, kernels)?)),
        (Device::Cuda(_), None) => {
            Err("on GPUs the products need kernels: examples/device/overlap.cu, by --kernels"
                .into())
        }
    }
}

/// Trains in three ways, checks that the results are the same, and lets rank 0 print the times.
pub(crate) fn report(comm: &Communicator, options: &Options) -> Outcome<()> {
    let ways = [
        ("without overlap", Way::Afterwards),
        ("with buckets", Way::Buckets),
        ("with gates", Way::Gates),
    ];
    let mut first: Option<Vec<Vec<f32>>> = None;
    for (name, way) in ways {
        let mut trainer = trainer(comm, options)?;
        let mut times_ms = Vec::new();
        for _ in 0..options.steps.max(1) {
            comm.barrier()?;
            let start = Instant::now();
            trainer.step(way)?;
            comm.barrier()?;
            times_ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times_ms.sort_by(f64::total_cmp);
        let parameters = trainer.parameters()?;
        if comm.rank() == 0 {
            let (median_ms, buckets) = (times_ms[times_ms.len() / 2], parameters.len());
            println!("{name:>16}: {median_ms:10.2} ms a step, {buckets} buckets");
        }
        match &first {
            None => first = Some(parameters),
            Some(first) if is_same(first, &parameters) => {}
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
