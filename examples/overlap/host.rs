//! The training on the host's processors: ranks compute between their calls, and a host stream
//! makes these.

use super::{LEARNING_RATE, Options, Outcome, Trainer, Way, sides};
use oxccl::bucket::GradientBuckets;
use oxccl::{Collectives, Communicator, ReduceOp, Stream};

/// A rank's part of the training, on the host's processors.
pub(crate) struct Host<'a> {
    comm: &'a Communicator,
    stream: Stream,
    sides: Vec<(usize, usize)>,
    batch: usize,
    buckets: GradientBuckets<f32>,
    /// By bucket, as the gradients lie there.
    parameters: Vec<Vec<f32>>,
}

impl<'a> Host<'a> {
    pub(crate) fn new(comm: &'a Communicator, options: &Options) -> Outcome<Host<'a>> {
        let sides = sides(options)?;
        let counts: Vec<usize> = sides.iter().map(|(rows, columns)| rows * columns).collect();
        let mut buckets = GradientBuckets::with_capacity(comm, &counts, options.capacity)?;
        let lengths = (0..buckets.buckets()).filter_map(|at| Some(buckets.bucket_mut(at)?.len()));
        let parameters = lengths.map(|count| vec![0.5; count]).collect();
        let (stream, batch) = (Stream::new()?, options.batch);
        Ok(Host { comm, stream, sides, batch, buckets, parameters })
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

impl Trainer for Host<'_> {
    fn step(&mut self, way: Way) -> Outcome<()> {
        Ok(match way {
            Way::Afterwards => self.afterwards(),
            Way::Buckets => self.with_buckets(),
            Way::Gates => self.with_gates(),
        }?)
    }

    fn parameters(&self) -> Outcome<Vec<Vec<f32>>> {
        Ok(self.parameters.clone())
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
