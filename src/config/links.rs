//! What links between nodes are made of.

use std::fmt;
use std::str::FromStr;

/// What carries links between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricKind {
    /// TCP sockets.
    Tcp,
    /// Network adapters that write into the other node's memory.
    Rdma,
}

impl FromStr for FabricKind {
    type Err = ();

    fn from_str(text: &str) -> Result<FabricKind, ()> {
        match text {
            "tcp" => Ok(FabricKind::Tcp),
            "rdma" => Ok(FabricKind::Rdma),
            _ => Err(()),
        }
    }
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FabricKind::Tcp => "tcp",
            FabricKind::Rdma => "rdma",
        })
    }
}

/// How adapters reach messages of a GPU's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuDirect {
    /// In the GPU's memory, exported as a dmabuf.
    Dmabuf,
    /// In the GPU's memory, registered by its address.
    Peer,
    /// In pinned memory of the host, to which kernels write and from which they read.
    Off,
}

impl FromStr for GpuDirect {
    type Err = ();

    fn from_str(text: &str) -> Result<GpuDirect, ()> {
        match text {
            "dmabuf" => Ok(GpuDirect::Dmabuf),
            "peer" => Ok(GpuDirect::Peer),
            "off" => Ok(GpuDirect::Off),
            _ => Err(()),
        }
    }
}

impl fmt::Display for GpuDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuDirect::Dmabuf => "dmabuf",
            GpuDirect::Peer => "peer",
            GpuDirect::Off => "off",
        })
    }
}
