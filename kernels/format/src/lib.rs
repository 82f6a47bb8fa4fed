//! The binary layout that the machine reads: programs, connections and the launch block.
//!
//! This crate is the definition, and the only one: [`header()`] is the same for C++, which the
//! build of oxccl-kernels writes and every compiler, for hosts and for GPUs, checks against the
//! sizes and offsets that Rust has.
//!
//! A [`Header`] starts the program; behind it, at the byte offsets it names, lie the tables of
//! [`ChannelEntry`], [`Instruction`], [`Operand`] and [`Advance`]. All integers are native-endian,
//! all tables are 8-byte aligned. Lengths and offsets are in bytes: element types matter only to
//! `ReduceCopy` with several sources, a premultiplication or a finish.

mod connection;
mod cpp;
mod element;
mod header;
mod launch;
mod program;
mod table;

pub use connection::*;
pub use element::*;
pub use header::header;
pub use launch::*;
pub use program::*;
use table::{table, table_rows};
