//! A CUDA driver over host memory, in libcuda's place, so that everything above the driver API is
//! exercised by processes on machines without a GPU.
//!
//! - Allocations are memory files: what one process exports (a descriptor, or a legacy IPC handle)
//!   another really maps. A device address is an address of this process.
//! - A stream is a queue with a thread, and shares a connection with others, as streams of a GPU
//!   do. Events, waits for values and writes of values are entries in it. Capture records entries
//!   as a graph; a graph is replayed with its dependencies.
//! - A launch of one of our kernels runs the host executor on the parameter block that the GPU
//!   would get, a thread a block, and no more blocks at a time than the device would hold; on
//!   request the kernel's own source, thread by thread. A few kernels of others, over
//!   `oxccl/device.h`, run so always (`emulator/guests.cpp`). Fields of the block that are the host's
//!   only (`spins`, `yields`) are filled in.
//! - A multicast address stands for memory files of several devices, which a launch reads and
//!   writes one by one.
//! - What may wait for all kernels of a context waits: giving memory back, and looking up a kernel.
//!   Questions about events wait with it.
//! - What the driver refuses is refused: handles that are not (or no longer) valid, memory that was
//!   freed, a missing or wrong context, what a capture forbids, sizes off the granularity, host
//!   memory that no device can reach in a launch block or in a connection (which ends the context,
//!   as an illegal address does on a GPU).
//! - Any call can be made to fail, and what is alive can be counted: see [`control`].
//!
//! It is no model of time or of caches, of the memory order of a GPU on request only, and of no
//! kernel but these.
//!
//! # Environment
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `OXCCL_STAND_IN_DEVICES` | devices | 1 |
//! | `OXCCL_STAND_IN_MEMORY` | bytes of memory of each, per process | 1 GiB |
//! | `OXCCL_STAND_IN_MULTIPROCESSORS` | multiprocessors of each | 132 |
//! | `OXCCL_STAND_IN_CAPABILITY` | compute capability times ten | 90 |
//! | `OXCCL_STAND_IN_DRIVER` | what `cuDriverGetVersion` says | 13000 |
//! | `OXCCL_STAND_IN_COMPUTE_MODE` | the devices' compute mode: 3 is for one process alone | 0 |
//! | `OXCCL_STAND_IN_PEERS` | 0: no device reaches another's memory | 1 |
//! | `OXCCL_STAND_IN_NVLINK` | 0: devices reach each other over PCIe | 1 |
//! | `OXCCL_STAND_IN_MULTICAST` | how many devices, from the first on, an NVSwitch joins that reduces and multicasts | 0 |
//! | `OXCCL_STAND_IN_EMULATE` | 1: blocks run from the kernels' own source, thread by thread | 0 |
//! | `OXCCL_STAND_IN_MEMORY_ORDER` | as `OXCCL_STAND_IN_EMULATE`, and accesses that nothing orders end the process (`emulator/order.cpp`) | 0 |
//! | `OXCCL_STAND_IN_MEMORY_ORDER_LIBRARY` | another library for that | the one that is built |
//! | `CUDA_DEVICE_MAX_CONNECTIONS` | connections that a device's streams share, as on a GPU | 8 |
//! | `OXCCL_STAND_IN_DRAINS` | 1: what some driver may let wait for all kernels of the context does: allocations, graphs made ready, and the first fill and copy unless `CUDA_MODULE_LOADING` is EAGER | 0 |
//! | `OXCCL_STAND_IN_VIRTUAL_MEMORY` | 0: no virtual-memory API | 1 |
//! | `OXCCL_PROFILE` | lists the kernels of process N in this file with `.N` behind it, as `benches/gpu/profile.c` does on a GPU | none |
//! | `OXCCL_STAND_IN_FAIL` | `FUNCTION:N` or `FUNCTION:N:CODE`: the Nth call of it fails; `*` counts all calls but those that give something back | none |

pub mod control;
mod settings;

mod call;
mod capture;
mod connection;
mod context;
mod copy;
mod device;
mod emulator;
mod event;
mod graph;
mod host;
mod ipc;
mod kernel;
mod memory;
mod module;
mod multicast;
mod order;
mod pages;
mod pointer;
mod profile;
mod registry;
mod stream;
mod virtual_memory;
