//! Collectives as data: everything about a collective that needs no machine.
//!
//! A collective is a [`schedule`]: for each rank a short list of three instructions (wait,
//! reduce-copy, signal). [`algorithms`] make schedules, [`verify`] proves them, [`lower`] turns one
//! rank's part of a proven one into the program that oxccl's machine runs, [`simulate`] says how
//! long a schedule takes on a [`topology`], and [`tune`] chooses between them. Nothing here needs
//! C++, CUDA, a socket, a clock, a thread or the environment; files are read in two functions,
//! [`schedule::ScheduleFile::read`] and [`tune::Table::read`], beside others that take their text.
//!
//! ```
//! use oxccl_plans::algorithms::{Algorithm, Encoding, find};
//! use oxccl_plans::collective::{Collective, Kind, Order};
//! use oxccl_plans::schedule::SLOTS;
//! use oxccl_plans::topology::Placement;
//! use oxccl_plans::verify::verify;
//!
//! let ring = find(Kind::AllReduce, Algorithm::Ring, Encoding::Slots).expect("in the catalogue");
//! let collective = Collective::new(Kind::AllReduce, 8);
//! let schedule = ring.schedule(collective, Placement::one_node(8), Order::Any, SLOTS)?;
//! let verified = verify(schedule, Order::Any, true)?;
//! assert_eq!(verified.schedule().lists.len(), 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod algorithms;
pub mod collective;
pub mod custom;
pub mod element;
mod hash;
pub mod hot;
pub mod length;
pub mod lower;
pub mod msccl;
mod random;
pub mod schedule;
pub mod simulate;
pub mod synth;
pub mod topology;
pub mod tune;
pub mod verify;
mod xml;
