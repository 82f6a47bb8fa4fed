//! Data-parallel training: every rank holds the same network, takes its share of each batch, and
//! the gradients are summed by one all-reduce.
//!
//! ```text
//! cargo run --release --example data_parallel -- --ranks 4           # ranks are threads
//! oxccl run --ranks 4 -- target/release/examples/data_parallel      # ranks are processes
//! torchrun --nproc-per-node 4 --no-python target/release/examples/data_parallel
//! ```
//!
//! The data are the UCI handwritten digits (examples/data/LICENCE.md). The gradients of a batch are
//! computed in eight shards of equal size. A rank sums its own shards as an aligned binary tree,
//! and the all-reduce under `Order::Tree` goes on with the same tree; so 1, 2, 4 and 8 ranks end
//! with the same bits. The last line says which.

use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;

use clap::Parser;
use oxccl::{Collectives, Communicator, Config, Order, ReduceOp};

const PIXELS: usize = 64;
const HIDDEN: usize = 64;
const CLASSES: usize = 10;
const PARAMETERS: usize = HIDDEN * (PIXELS + 1) + CLASSES * (HIDDEN + 1);

/// Shards of a batch. The number of ranks must divide it.
const SHARDS: usize = 8;
const SHARD_IMAGES: usize = 4;
const TEST_IMAGES: usize = 357;
const LEARNING_RATE: f32 = 0.2;
const MOMENTUM: f32 = 0.9;

#[derive(Parser)]
struct Options {
    /// Runs this many ranks as threads of this process; without it a launcher has started the
    /// ranks.
    #[arg(long)]
    ranks: Option<usize>,
    /// Passes over the training images.
    #[arg(long, default_value_t = 20)]
    epochs: usize,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("data_parallel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let config = Config { order: Order::Tree, ..Config::from_env()? };
    match options.ranks {
        None => report(&Communicator::from_env_with(&config)?, options.epochs),
        Some(ranks) => {
            let comms = Communicator::local_with(ranks, &config)?;
            let rank =
                |comm: Communicator| report(&comm, options.epochs).map_err(|e| e.to_string());
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    comms.into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
                for thread in threads {
                    thread.join().map_err(|_| "a rank panicked")??;
                }
                Ok(())
            })
        }
    }
}

/// Trains, and lets rank 0 say how well and to which bits.
pub(crate) fn report(comm: &Communicator, epochs: usize) -> Result<(), Box<dyn Error>> {
    let digits = Digits::load()?;
    let network = train(comm, &digits, epochs)?;
    let accuracy = network.accuracy(&digits, digits.test());
    if comm.rank() == 0 {
        println!("{} ranks, {epochs} epochs: test accuracy {accuracy:.4}", comm.world_size());
        println!("weights {:016x}", network.fingerprint());
    }
    Ok(())
}

/// Trains a fresh network on this rank's share of every batch.
fn train(comm: &Communicator, digits: &Digits, epochs: usize) -> Result<Network, Box<dyn Error>> {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    if !SHARDS.is_multiple_of(ranks) {
        return Err(
            format!("{ranks} ranks cannot share {SHARDS} shards evenly: use 1, 2, 4 or 8").into()
        );
    }
    let own = rank * SHARDS / ranks..(rank + 1) * SHARDS / ranks;
    let mut network = Network::new();
    let mut gradient = comm.alloc_host::<f32>(PARAMETERS)?;
    let mut order: Vec<usize> = digits.training().collect();
    let mut random = Random(2);
    for _ in 0..epochs {
        random.shuffle(&mut order);
        for batch in order.chunks_exact(SHARDS * SHARD_IMAGES) {
            let sum = tree_sum(own.clone(), &|shard| {
                network.gradient(digits, &batch[shard * SHARD_IMAGES..][..SHARD_IMAGES])
            });
            gradient.copy_from_slice(&sum);
            comm.all_reduce_in_place(&mut gradient, ReduceOp::Sum)?;
            network.step(&gradient, LEARNING_RATE / batch.len() as f32);
        }
    }
    agree(comm, &network)?;
    Ok(network)
}

/// The sum of shards' gradients as an aligned binary tree: `(g0 + g1) + (g2 + g3)`.
fn tree_sum(shards: Range<usize>, gradient: &impl Fn(usize) -> Vec<f32>) -> Vec<f32> {
    if shards.len() == 1 {
        return gradient(shards.start);
    }
    let middle = shards.start + shards.len() / 2;
    let mut left = tree_sum(shards.start..middle, gradient);
    let right = tree_sum(middle..shards.end, gradient);
    for (a, b) in left.iter_mut().zip(right) {
        *a += b;
    }
    left
}

/// Fails on every rank if the ranks' networks are not the same to the bit.
fn agree(comm: &Communicator, network: &Network) -> Result<(), Box<dyn Error>> {
    let mut all = vec![0; comm.world_size()];
    comm.all_gather(&[network.fingerprint()], &mut all)?;
    match all.iter().position(|theirs| *theirs != all[0]) {
        Some(rank) => Err(format!("rank {rank} ends with other weights than rank 0").into()),
        None => Ok(()),
    }
}

/// Images with their labels, in a fixed random order.
struct Digits {
    images: Vec<([f32; PIXELS], usize)>,
}

impl Digits {
    fn load() -> Result<Digits, Box<dyn Error>> {
        let rows = include_str!("data/digits.csv").lines().map(|line| {
            let fields: Vec<u8> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
            let (label, pixels) = fields.split_last().ok_or("an empty row")?;
            let pixels: Vec<f32> = pixels.iter().map(|p| f32::from(*p) / 16.0).collect();
            let pixels = pixels.try_into().map_err(|_| "a row without 64 pixels")?;
            Ok((pixels, usize::from(*label)))
        });
        let mut images = rows.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        Random(1).shuffle(&mut images);
        Ok(Digits { images })
    }

    fn test(&self) -> Range<usize> {
        0..TEST_IMAGES
    }

    fn training(&self) -> Range<usize> {
        TEST_IMAGES..self.images.len()
    }
}

/// Two layers with a rectifier between them, and softmax cross-entropy behind.
struct Network {
    /// Weights of layer 1 by hidden unit, each row with its bias last; then layer 2, likewise.
    parameters: Vec<f32>,
    velocity: Vec<f32>,
}

impl Network {
    fn new() -> Network {
        let mut random = Random(3);
        let mut layer = |inputs: usize, outputs: usize| {
            let scale = (6.0 / inputs as f32).sqrt();
            let mut weights: Vec<f32> =
                (0..outputs * (inputs + 1)).map(|_| random.symmetric() * scale).collect();
            weights.chunks_exact_mut(inputs + 1).for_each(|row| row[inputs] = 0.0);
            weights
        };
        let parameters = [layer(PIXELS, HIDDEN), layer(HIDDEN, CLASSES)].concat();
        Network { velocity: vec![0.0; parameters.len()], parameters }
    }

    /// The summed gradient of these images' losses.
    fn gradient(&self, digits: &Digits, images: &[usize]) -> Vec<f32> {
        let mut gradient = vec![0.0; PARAMETERS];
        let (first, second) = gradient.split_at_mut(HIDDEN * (PIXELS + 1));
        for &image in images {
            let (pixels, label) = &digits.images[image];
            let (hidden, mut error) = self.forward(pixels);
            error[*label] -= 1.0;
            let mut hidden_error = [0.0; HIDDEN];
            for (class, row) in self.layers().1.chunks_exact(HIDDEN + 1).enumerate() {
                let sums = &mut second[class * (HIDDEN + 1)..][..HIDDEN + 1];
                for unit in 0..HIDDEN {
                    hidden_error[unit] += error[class] * row[unit];
                    sums[unit] += error[class] * hidden[unit];
                }
                sums[HIDDEN] += error[class];
            }
            for unit in (0..HIDDEN).filter(|unit| hidden[*unit] > 0.0) {
                let sums = &mut first[unit * (PIXELS + 1)..][..PIXELS + 1];
                for pixel in 0..PIXELS {
                    sums[pixel] += hidden_error[unit] * pixels[pixel];
                }
                sums[PIXELS] += hidden_error[unit];
            }
        }
        gradient
    }

    /// One step down the gradient.
    fn step(&mut self, gradient: &[f32], rate: f32) {
        for ((weight, velocity), slope) in
            self.parameters.iter_mut().zip(&mut self.velocity).zip(gradient)
        {
            *velocity = MOMENTUM * *velocity - (1.0 - MOMENTUM) * rate * slope;
            *weight += *velocity;
        }
    }

    /// The hidden layer's values and the classes' probabilities.
    fn forward(&self, pixels: &[f32; PIXELS]) -> ([f32; HIDDEN], [f32; CLASSES]) {
        let (first, second) = self.layers();
        let mut hidden = [0.0; HIDDEN];
        for (value, row) in hidden.iter_mut().zip(first.chunks_exact(PIXELS + 1)) {
            *value = dot(row, pixels).max(0.0);
        }
        let mut scores = [0.0; CLASSES];
        for (score, row) in scores.iter_mut().zip(second.chunks_exact(HIDDEN + 1)) {
            *score = dot(row, &hidden);
        }
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
        let total: f32 = scores.iter().sum();
        scores.iter_mut().for_each(|score| *score /= total);
        (hidden, scores)
    }

    fn layers(&self) -> (&[f32], &[f32]) {
        self.parameters.split_at(HIDDEN * (PIXELS + 1))
    }

    /// The share of images whose most probable class is theirs.
    fn accuracy(&self, digits: &Digits, images: Range<usize>) -> f64 {
        let right = |image: &usize| {
            let (pixels, label) = &digits.images[*image];
            let (_, probabilities) = self.forward(pixels);
            (0..CLASSES).all(|class| probabilities[class] <= probabilities[*label])
        };
        let count = images.len();
        images.filter(right).count() as f64 / count as f64
    }

    /// A hash of every parameter's bits (FNV-1a).
    fn fingerprint(&self) -> u64 {
        let bytes = self.parameters.iter().flat_map(|weight| weight.to_bits().to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// A row's weights times the values, plus its bias.
fn dot(row: &[f32], values: &[f32]) -> f32 {
    // Eight partial sums: a fixed order that the compiler can vectorise.
    let mut sums = [0.0f32; 8];
    for (weights, values) in row.chunks_exact(8).zip(values.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += weights[lane] * values[lane];
        }
    }
    sums.iter().sum::<f32>() + row[values.len()]
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between -1 and 1.
    fn symmetric(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
    }
}
