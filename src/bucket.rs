//! Buckets of gradients: data-parallel and distributed-optimizer training, overlapped with compute.
//!
//! Back-propagation makes the gradients of the last layers first. [`GradientBuckets`] therefore
//! fills its buckets with the parameters in reverse order, and launches one group for all of them
//! before there is any gradient; each bucket is reduced as soon as its last gradient is marked
//! ready. [`ShardedBuckets`] does the same where each rank keeps the optimizer's state for its
//! share of each bucket alone: gradients are reduced and scattered, parameters gathered.
//!
//! ```
//! use oxccl::bucket::GradientBuckets;
//! use oxccl::{Communicator, ReduceOp, Stream};
//! # let ranks = Communicator::local(2)?;
//! # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
//! let stream = Stream::new()?;
//! let mut buckets = GradientBuckets::<f32>::new(&comm, &[3000, 10, 500])?;
//! let mut step = buckets.launch(&comm, &stream, ReduceOp::Avg)?;
//! for parameter in (0..3).rev() {
//!     step.gradient(parameter)?.fill(comm.rank() as f32); // Back-propagation.
//!     step.ready(parameter)?;
//! }
//! let work = step.finish();
//! work.wait()?;
//! assert_eq!(buckets.gradient(1)?, [0.5; 10]);
//! # Ok::<(), oxccl::Error>(()) }); });
//! # Ok::<(), oxccl::Error>(())
//! ```

mod convert;
mod gradients;
mod plan;
mod sharded;

pub use convert::{Float, narrow, widen};
pub use gradients::{GradientBuckets, GradientStep};
pub use plan::Place;
pub use sharded::{DeviceShard, ParameterStep, ShardedBuckets};

/// Bytes of a bucket, where nothing else is said: large enough for full bandwidth, small enough to
/// begin early.
pub const DEFAULT_CAPACITY_BYTES: usize = 25 << 20;
