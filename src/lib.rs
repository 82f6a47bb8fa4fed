//! Collective communication whose collectives are data.
//!
//! A collective is a [schedule](plans::schedule): for each rank a short list of three instructions
//! (wait, reduce-copy, signal). It is [proven](plans::verify), lowered to a program, and
//! interpreted by one machine whose source serves GPUs and CPUs alike. Ranks are threads or
//! processes of one machine or several; buffers lie in host memory or, on one machine, in that of
//! GPUs ([`Device`]).
//!
//! ```
//! use oxccl::{Collectives, Communicator, ReduceOp};
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

pub mod bucket;
mod call;
mod collectives;
mod communicator;
mod config;
mod device;
mod engine;
mod error;
mod gate;
mod group;
mod log;
pub mod memory;
pub mod status;
mod stream;
mod target;
mod waiters;
mod work;

pub use call::{Call, CallOptions, Memory};
pub use collectives::Collectives;
pub use communicator::{Communicator, Registration, Starting};
pub use config::{Advanced, Config, FabricKind, GpuDirect, LogLevel};
/// The device layer, for the tests of it.
#[doc(hidden)]
pub use device::StagingShape;
pub use device::cuda;
pub use device::{DeviceBuffer, HostBuffer};
pub use engine::Handle;
pub use error::Error;
pub use group::{Group, StreamGroup, Unready};
pub use memory::{DeviceSlice, HeapAllocator, HeapAllocatorUse, HostRegistration, MemoryUse};
pub use oxccl_kernels::{StepTrace, TracedStep};
pub use oxccl_plans as plans;
pub use oxccl_plans::collective::{Collective, Kind, Order};
pub use oxccl_plans::custom::{CustomError, CustomSchedule};
pub use oxccl_plans::element::{DataType, Element, F8E4M3, F8E5M2, OpKind, ReduceOp, bf16, f16};
pub use oxccl_plans::length::TooLong;
pub use oxccl_plans::schedule::MAX_CHANNELS;
pub use oxccl_plans::tune::Pin;
pub use oxccl_transports::{Cause, UniqueId};
pub use stream::{AnyStream, OnStream, Stream};
pub use target::Device;
pub use work::Work;
