//! Why RDMA does not work here, or works no more.

use std::io;

use super::address::{Gid, LinkKind};

/// What went wrong with a network adapter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// There is no libibverbs, or it cannot be used.
    #[error(
        "libibverbs could not be loaded ({detail}): install it (on Debian libibverbs1 and ibverbs-providers)"
    )]
    NoLibrary {
        /// What the loader says.
        detail: String,
    },
    /// The library is older than a function that is asked for.
    #[error("this libibverbs has no {function}: install rdma-core {since} or newer")]
    MissingFunction {
        /// The function.
        function: &'static str,
        /// The release that brought it.
        since: &'static str,
    },
    /// The machine has no RDMA device.
    #[error(
        "no RDMA device is to be seen: see that the adapter's driver is loaded, that the kernel has ib_uverbs, and in a \
         container that /dev/infiniband is passed in"
    )]
    NoDevice,
    /// A device of that name does not exist.
    #[error("there is no RDMA device {name}, there is {}", found.join(", "))]
    NoSuchDevice {
        /// The name that was asked for.
        name: String,
        /// Those that exist.
        found: Vec<String>,
    },
    /// Devices exist, but none can be used.
    #[error("no RDMA device can be used: {}", why.join("; "))]
    NoUsablePort {
        /// For each port of each device, why not.
        why: Vec<String>,
    },
    /// A port carries nothing at the moment.
    #[error(
        "port {port} of {device} is {state}: see to its cable, its switch or its subnet manager"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port's number, from 1 on.
        port: u8,
        /// Its state.
        state: &'static str,
    },
    /// A RoCE port has no address that packets could be routed by.
    #[error("port {port} of {device} has no RoCE v2 GID: give its net device an IP address")]
    NoGid {
        /// The device.
        device: String,
        /// The port's number, from 1 on.
        port: u8,
    },
    /// The port has no GID there that packets could be routed by.
    #[error(
        "port {port} of {device} has no GID for RoCE v2 or InfiniBand at index {index}: `oxccl doctor` lists those that it has"
    )]
    NoSuchGid {
        /// The device.
        device: String,
        /// The port's number, from 1 on.
        port: u8,
        /// The index that was asked for.
        index: u8,
    },
    /// The net device behind the port's address is in another network namespace.
    #[error(
        "port {port} of {device} belongs to the net device {net_device}, which is not in this process's network namespace"
    )]
    OtherNamespace {
        /// The device.
        device: String,
        /// The port's number, from 1 on.
        port: u8,
        /// The net device.
        net_device: String,
    },
    /// The two ends speak different protocols.
    #[error(
        "{device} is a port for {ours}, the peer's {peer_device} one for {theirs}: choose devices of one kind on both \
         nodes"
    )]
    KindDiffers {
        /// The device on this side.
        device: String,
        /// Its kind.
        ours: LinkKind,
        /// The device of the peer.
        peer_device: String,
        /// Its kind.
        theirs: LinkKind,
    },
    /// The two ends have addresses of different kinds.
    #[error(
        "{device} sends from {ours}, the peer's {peer_device} from {theirs}: RoCE v2 needs IPv4 addresses on both, or IPv6 ones on \
         both; give the net devices of both an address of the same kind"
    )]
    GidDiffers {
        /// The device on this side.
        device: String,
        /// Its address.
        ours: Gid,
        /// The device of the peer.
        peer_device: String,
        /// Its address.
        theirs: Gid,
    },
    /// The two ends accept packets of different sizes.
    #[error(
        "{device} has an MTU of {ours_bytes} bytes, the peer's {peer_device} one of {theirs_bytes}: set the same on both \
         (for RoCE it follows the net device's)"
    )]
    MtuDiffers {
        /// The device on this side.
        device: String,
        /// Its MTU.
        ours_bytes: usize,
        /// The device of the peer.
        peer_device: String,
        /// Its MTU.
        theirs_bytes: usize,
    },
    /// What the peer sent to connect by makes no sense.
    #[error("the peer's RDMA address cannot be read: {detail}")]
    BadAddress {
        /// What is wrong.
        detail: String,
    },
    /// The process may not pin that much memory.
    #[error(
        "{wanted_bytes} bytes of memory cannot be registered with {device}: the limit of locked memory (RLIMIT_MEMLOCK) is \
         {limit_bytes} bytes. Raise it: `ulimit -l unlimited` in the shell, LimitMEMLOCK=infinity in a systemd unit, \
         --ulimit memlock=-1 for a container"
    )]
    LockedMemory {
        /// The device.
        device: String,
        /// How much was to be registered.
        wanted_bytes: usize,
        /// The limit.
        limit_bytes: u64,
    },
    /// A range lies outside the memory that is registered.
    #[error(
        "{len_bytes} bytes at offset {offset} are outside of {registered_bytes} registered bytes"
    )]
    OutOfRange {
        /// Where the range starts.
        offset: usize,
        /// How long it is.
        len_bytes: usize,
        /// How long the registered memory is.
        registered_bytes: usize,
    },
    /// The device cannot do what is asked for.
    #[error("{device} {limit}")]
    Limit {
        /// The device.
        device: String,
        /// What it cannot do.
        limit: String,
    },
    /// A call of libibverbs failed.
    #[error("{function} failed on {device}: {source}")]
    Verbs {
        /// The function.
        function: &'static str,
        /// The device.
        device: String,
        /// What the system says.
        source: io::Error,
    },
    /// A transfer failed.
    #[error("{operation} over {device} to {peer} failed: {status} (vendor's code {vendor_code:#x}){}", hint(*status_code))]
    Transfer {
        /// What was done.
        operation: &'static str,
        /// The device.
        device: String,
        /// Who is at the other end.
        peer: String,
        /// The library's text for the status.
        status: String,
        /// The status.
        status_code: u32,
        /// What the adapter says besides.
        vendor_code: u32,
    },
    /// The device reported a failure of its own.
    #[error("{device}: {what}")]
    Device {
        /// The device.
        device: String,
        /// What happened.
        what: String,
    },
    /// A device takes no memory of a GPU by a way.
    #[error("{device} does not take memory of the GPU {why}")]
    GpuMemory {
        /// The device.
        device: String,
        /// The way that was tried, and why it failed.
        why: String,
    },
    /// Adapters do not reach memory of a GPU.
    #[error("adapters do not reach the GPU's memory: {why}")]
    NotDirect {
        /// Each way that was tried, and why it failed.
        why: String,
    },
}

/// What a status means for whoever reads the error.
fn hint(status_code: u32) -> &'static str {
    match status_code {
        4 => ": the memory on this side is not registered for it",
        10 => ": the peer has not registered that memory, or not for this",
        12 => ": the peer has stopped answering, or the network between is broken",
        13 => ": the peer has not made room for the message",
        _ => "",
    }
}
