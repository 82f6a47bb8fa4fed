//! Collective communication whose collectives are data.
//!
//! A collective is a [`schedule`]: for each rank a short list of three instructions (wait, reduce-copy, signal). It is proven by
//! [`verify`], lowered to a program, and interpreted by one machine whose source serves GPUs and CPUs alike. Ranks are threads or
//! processes of one machine or several; buffers lie in host memory or, on one machine, in that of GPUs ([`Device`]).
//!
//! ```
//! use oxccl::{Communicator, ReduceOp};
//!
//! let ranks = Communicator::local(2)?;
//! std::thread::scope(|scope| {
//!     for comm in ranks {
//!         scope.spawn(move || {
//!             let mut gradient = vec![comm.rank() as f32 + 1.0; 1000];
//!             comm.all_reduce_in_place(&mut gradient, ReduceOp::Sum)?;
//!             assert_eq!(gradient, vec![3.0; 1000]);
//!             Ok::<(), oxccl::Error>(())
//!         });
//!     }
//! });
//! # Ok::<(), oxccl::Error>(())
//! ```

pub mod algorithms;
pub mod bucket;
mod call;
pub mod collective;
mod communicator;
mod config;
mod custom;
mod device;
mod element;
mod engine;
mod error;
mod gate;
mod group;
mod length;
pub mod schedule;
pub mod simulate;
mod stream;
pub mod topology;
pub mod tune;
pub mod verify;
mod work;

pub use call::{Call, Memory};
pub use collective::{Collective, Kind, Order};
pub use communicator::{Communicator, Registration};
pub use config::{Config, Device, FabricKind, GpuDirect, MAX_CHANNELS, Pin};
pub use custom::{CustomError, CustomSchedule};
pub use device::DeviceBuffer;
/// The device layer, for the tests of it.
#[doc(hidden)]
pub use device::StagingShape;
pub use device::cuda;
pub use element::{
    DATA_TYPES, DataType, Element, F8E4M3, F8E5M2, OpKind, ReduceOp, bf16, data_type_name, f16,
    is_integer,
};
pub use error::Error;
pub use group::{BucketWork, Group, GroupWork, StreamGroup, Unready, UnreadyCalls};
pub use length::TooLong;
pub use oxccl_kernels::TracedStep;
pub use oxccl_transports::{Cause, UniqueId};
pub use stream::{AnyStream, OnStream, Stream};
pub use work::Work;
