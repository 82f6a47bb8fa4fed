//! `libnccl.so.2`: programs that were written for NCCL run on oxccl unchanged.
//!
//! The library has the names of NCCL 2.32 and their `pnccl` twins. What oxccl does not have is
//! refused by `ncclInvalidUsage`, and `ncclGetLastError` says what and why; `docs/nccl.md` lists
//! it. Nothing unwinds across the border, and no thread-local has a destructor: programs destroy
//! communicators from static destructors.

mod abi;
mod address;
mod answer;
mod call;
mod comm;
mod config;
mod entries;
mod factor;
mod group;
mod memory;
mod names;
mod properties;
mod refused;
mod registry;
mod scale;
mod unique_id;
mod window;
