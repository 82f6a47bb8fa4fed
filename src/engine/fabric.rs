//! Which way links between nodes are carried, and where their ends lie.

use crate::config::{Config, FabricKind, GpuDirect};
use crate::device::{LinkPorts, NotOpen, Reaching, StagingShape};
use crate::error::Error;
use oxccl_transports::Nodes;
use oxccl_transports::cuda::Context;
use oxccl_transports::proxy::Fabric;
use oxccl_transports::rdma::{
    Class, GpuWay, Patience, PciPlace, RdmaError, RdmaFabric, Settings, share, usable_ports,
};
use oxccl_transports::tcp::Tcp;
use std::sync::Arc;

/// What this rank could use, before all have said so.
pub(super) struct Candidates {
    wanted: Option<FabricKind>,
    tcp: Tcp,
    /// The reason why not is told to the other ranks.
    rdma: Result<RdmaFabric, String>,
}

impl Candidates {
    /// Looks for adapters, unless TCP is wanted: for those near the rank's GPU, if it has one.
    pub(super) fn find(
        config: &Config,
        nodes: &Nodes,
        rank: usize,
        gpu: Option<&Context>,
    ) -> Candidates {
        let tcp = Tcp::new(config.advanced.link_sockets).with_silence(config.granted_silence());
        let tcp = match config.advanced.link.write_limit_bytes() {
            Some(limit) => tcp.with_short_writes(limit),
            None => tcp,
        };
        let tcp = if config.integrity { tcp.with_integrity() } else { tcp };
        let rdma = match config.fabric {
            Some(FabricKind::Tcp) => Err("TCP is wanted".to_owned()),
            _ if config.integrity => Err("integrity is for TCP".to_owned()),
            _ => rdma(config, nodes, rank, gpu).map_err(|error| error.to_string()),
        };
        Candidates { wanted: config.fabric, tcp, rdma }
    }

    /// What the other ranks are told: nothing where RDMA can be used, otherwise why not.
    pub(super) fn objection(&self) -> &str {
        self.rdma.as_ref().err().map_or("", String::as_str)
    }

    /// The choice, the same on every rank, by what each objects to; fit for the rank's GPU, if it
    /// has one, into whose memory adapters may be let.
    ///
    /// # Errors
    /// [`Error::Config`] names the first rank that cannot use what is wanted.
    pub(super) fn choose(
        self,
        objections: &[&str],
        gpu: Option<&Context>,
        wanted: Option<GpuDirect>,
    ) -> Result<Choice, Error> {
        let first = objections.iter().enumerate().find(|(_, objection)| !objection.is_empty());
        match (self.rdma, first, self.wanted) {
            (Ok(rdma), None, _) => Ok(Choice::Rdma(Arc::new(match gpu {
                None => rdma,
                Some(context) => rdma.with_gpu(context.clone(), ways(wanted)),
            }))),
            (_, Some((rank, why)), Some(FabricKind::Rdma)) => Err(Error::Config {
                variable: "fabric",
                detail: format!("is rdma, which rank {rank} cannot use: {why}"),
            }),
            (_, first, _) => {
                if let (None, Some((objector, why))) = (self.wanted, first) {
                    tracing::info!(objector, why, "links between nodes go over TCP");
                }
                Ok(Choice::Tcp(self.tcp))
            }
        }
    }
}

/// What was chosen.
pub(super) enum Choice {
    Tcp(Tcp),
    Rdma(Arc<RdmaFabric>),
}

/// The ways that are wanted, the best first.
fn ways(wanted: Option<GpuDirect>) -> &'static [GpuWay] {
    match wanted {
        None => &GpuWay::ALL,
        Some(GpuDirect::Dmabuf) => &[GpuWay::Dmabuf],
        Some(GpuDirect::Peer) => &[GpuWay::PeerMemory],
        Some(GpuDirect::Off) => &[],
    }
}

/// Where a GPU's ends of links lie.
pub(super) enum Ends {
    /// In the GPU's memory, which adapters reach so.
    Direct(Reaching),
    /// In pinned memory of the host.
    Staged,
}

impl Ends {
    /// The end of the connections to a rank of another node, with all its memory at once or when
    /// they are used.
    pub(super) fn ports(
        &self,
        shape: StagingShape,
        (peer, at_once): (usize, bool),
        context: &Context,
    ) -> Result<LinkPorts, Error> {
        let ports = match self {
            Ends::Direct(reaching) => LinkPorts::direct(shape, peer, context, reaching.clone()),
            Ends::Staged => LinkPorts::staged(shape, peer, context),
        }?;
        if at_once {
            ports.back().map_err(|why| not_open(peer, why))?;
        }
        Ok(ports)
    }
}

impl Choice {
    /// In the GPU's memory where adapters reach that, which a little of it shows; otherwise, unless
    /// it is insisted on, in pinned memory of the host.
    pub(super) fn ends_of_gpu(
        &self,
        rank: usize,
        wanted: Option<GpuDirect>,
    ) -> Result<Ends, Error> {
        let why = match (self, wanted) {
            (_, Some(GpuDirect::Off)) => "gpu_direct is off".to_owned(),
            (Choice::Tcp(_), _) => "links go over TCP".to_owned(),
            (Choice::Rdma(rdma), _) => match rdma.try_gpu() {
                Ok(way) => {
                    tracing::info!(rank, %way, "adapters reach messages in the GPU's memory");
                    let rdma = rdma.clone();
                    // SAFETY: ports give memory of the GPU, which goes behind what is made here.
                    return Ok(Ends::Direct(Arc::new(move |memory| unsafe {
                        rdma.reach_gpu(memory)
                    })));
                }
                Err(why) => why.to_string(),
            },
        };
        if let Some(way @ (GpuDirect::Dmabuf | GpuDirect::Peer)) = wanted {
            let detail = format!("is {way}, which rank {rank} cannot do: {why}");
            return Err(Error::Config { variable: "gpu_direct", detail });
        }
        tracing::info!(rank, why, "messages go through pinned memory of the host");
        Ok(Ends::Staged)
    }

    /// What makes wires.
    pub(super) fn fabric(self) -> Arc<dyn Fabric> {
        match self {
            Choice::Tcp(tcp) => Arc::new(tcp),
            Choice::Rdma(rdma) => rdma,
        }
    }
}

/// There is no memory for the links to a rank.
pub(super) fn not_open(peer: usize, why: NotOpen) -> Error {
    match why {
        NotOpen::Failed(error) => error.into(),
        // They reached a little of it at the start.
        NotOpen::Unreached(why) => {
            let detail =
                format!("adapters do not reach the GPU's memory for links to rank {peer}: {why}");
            Error::Config { variable: "gpu_direct", detail }
        }
    }
}

/// Over this rank's share of the adapters. Where parts of a machine stand for nodes, all of its
/// ranks share them.
fn rdma(
    config: &Config,
    nodes: &Nodes,
    rank: usize,
    gpu: Option<&Context>,
) -> Result<RdmaFabric, RdmaError> {
    let beside = nodes.beside(rank);
    let (place, ranks) = match config.nodes {
        Some(_) => (rank, nodes.world()),
        None => (beside.clone().filter(|other| *other < rank).count(), beside.count()),
    };
    let advanced = &config.advanced;
    let ports = usable_ports(advanced.rdma_devices.as_deref(), advanced.rdma_gid_index)?;
    let near = gpu.and_then(|context| context.device().pci_address().ok());
    let near = near.and_then(|address| PciPlace::of_address(&address));
    let ports = share(ports, place, ranks, near.as_ref());
    let patience = Patience::lasting(config.granted_silence());
    let class =
        Class { traffic: advanced.rdma_traffic_class, service_level: advanced.rdma_service_level };
    RdmaFabric::new(ports, Settings { queue_pairs: advanced.rdma_queue_pairs, patience, class })
}
