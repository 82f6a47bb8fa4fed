//! Ranks of other nodes: the proxy that carries what their connections hold, and what schedules may
//! do across nodes.

use super::fabric::{Candidates, Choice, not_open};
use crate::config::{Config, patience};
use crate::device::LinkPorts;
use crate::error::Error;
use crate::target::Device;
use oxccl_kernels::format as f;
use oxccl_plans::lower::Lowering;
use oxccl_plans::schedule::{Instruction, Operand, Schedule};
use oxccl_transports::cuda::Context;
use oxccl_transports::proxy::{
    Bell, Egress, Emulation, Fabric, Listening, Ports, Proxy, ProxySetup,
};
use oxccl_transports::{Bootstrap, Nodes};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// This rank's way to other nodes.
#[derive(Debug)]
pub(crate) struct Links {
    rank: usize,
    nodes: Nodes,
    fabric: &'static str,
    proxy: Proxy,
    /// By rank; none to those of this node.
    ports: Vec<Option<Arc<LinkPorts>>>,
}

/// The same before the proxy runs: connections can be made.
pub(super) struct Starting {
    listening: Listening,
    fabric: Arc<dyn Fabric>,
    addresses: Vec<SocketAddr>,
    /// By rank; none to those of this node.
    ports: Vec<Option<Arc<LinkPorts>>>,
}

impl Starting {
    /// Tells all ranks where this one's proxy is found, and agrees with them on what carries links,
    /// made fit for this rank's GPU, if it has one; makes the end of the connections to each rank
    /// of another node by what `ends` gives. `None` where all are on one node.
    pub(super) fn gather<End: Fn(usize) -> Result<LinkPorts, Error>>(
        bootstrap: &mut dyn Bootstrap,
        config: &Config,
        gpu: Option<&Context>,
        ends: impl FnOnce(&Choice) -> Result<End, Error>,
        deadline: Instant,
    ) -> Result<Option<Starting>, Error> {
        let nodes = bootstrap.nodes().clone();
        if nodes.count() == 1 {
            return Ok(None);
        }
        let rank = bootstrap.rank();
        let address = bootstrap.address(config.interface.as_deref())?;
        let listening = Listening::open(address)?;
        let candidates = Candidates::find(config, &nodes, rank, gpu);
        let told = format!("{} {}", listening.address(), candidates.objection());
        let all = bootstrap.all_gather(told.as_bytes(), deadline)?;
        let all: Vec<_> = all.iter().map(|text| String::from_utf8_lossy(text)).collect();
        let (texts, objections): (Vec<&str>, Vec<&str>) =
            all.iter().map(|text| text.split_once(' ').unwrap_or((text, ""))).unzip();
        let read = |(rank, text): (usize, &str)| {
            text.parse().map_err(|_| Error::Config {
                variable: "interface",
                detail: format!("rank {rank} says that it listens at {text:?}"),
            })
        };
        let addresses: Vec<SocketAddr> =
            texts.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
        let choice = candidates.choose(&objections, gpu, config.advanced.gpu_direct)?;
        reachable(&nodes, config, &addresses)?;
        let end = ends(&choice)?;
        let ports = |peer| match nodes.share(rank, peer) {
            true => Ok(None),
            false => end(peer).map(|ports| Some(Arc::new(ports))),
        };
        let ports = (0..nodes.world()).map(ports).collect::<Result<_, _>>()?;
        let fabric = choice.fabric();
        let (address, adapter) = (listening.address(), fabric.adapter().map(tracing::field::debug));
        tracing::info!(rank, fabric = fabric.name(), %address, adapter, "links are accepted");
        Ok(Some(Starting { listening, fabric, addresses, ports }))
    }

    /// Points connections to ranks of other nodes into this rank's memory; executors ring its
    /// proxy.
    pub(super) fn connect(&self, connections: &mut [f::Connection]) {
        let bell: *const Bell = self.listening.bell();
        self.ports().for_each(|ports| ports.connect(connections, bell.cast_mut().cast()));
    }

    /// This rank's end of the connections to ranks of other nodes.
    pub(super) fn ports(&self) -> impl Iterator<Item = &Arc<LinkPorts>> {
        self.ports.iter().flatten()
    }

    /// Starts the proxy. `egress` is the word that the node's ranks share.
    pub(super) fn start(
        self,
        bootstrap: &dyn Bootstrap,
        config: &Config,
        egress: Egress,
        spins: bool,
    ) -> Result<Links, Error> {
        let rings = config.device == Device::Host;
        let (rank, nodes) = (bootstrap.rank(), bootstrap.nodes().clone());
        let fabric = self.fabric.name();
        let ports = |ports: Option<Arc<LinkPorts>>| ports.map(|ports| ports as Arc<dyn Ports>);
        let proxy = self.listening.start(ProxySetup {
            rank,
            secret: bootstrap.secret().clone(),
            fabric: self.fabric,
            ports: self.ports.iter().cloned().map(ports).collect(),
            addresses: self.addresses,
            timeout: patience(config.timeout),
            liveness: bootstrap.liveness(),
            spins,
            rings,
            emulation: Emulation { conditions: config.advanced.link, egress: Some(egress) },
        })?;
        Ok(Links { rank, nodes, fabric, proxy, ports: self.ports })
    }
}

impl Links {
    /// How many nodes there are.
    pub(in crate::engine) fn nodes(&self) -> usize {
        self.nodes.count()
    }

    /// What carries messages to other nodes.
    pub(super) fn fabric(&self) -> &'static str {
        self.fabric
    }

    /// Ends the proxy, after what the last calls have written has left.
    pub(super) fn finish(&self) {
        self.proxy.finish();
    }

    /// Whether two ranks reach each other's memory.
    pub(super) fn share(&self, a: usize, b: usize) -> bool {
        self.nodes.share(a, b)
    }

    /// Whether a schedule does across nodes only what messages in slots can do.
    pub(super) fn check(&self, schedule: &Schedule) -> Result<(), String> {
        for rank in 0..schedule.collective.ranks {
            let crossing = |(step, instruction): (usize, &Instruction)| {
                let place = (rank, schedule.collective.ranks);
                let is_remote = |peer| !self.nodes.share(rank, peer);
                let (what, peer) = unproxied(instruction, place, is_remote)?;
                Some(format!(
                    "step {step} of rank {rank} uses {what} of rank {peer}, which is on another node"
                ))
            };
            if let Some(text) = schedule.steps(rank).find_map(crossing) {
                return Err(text);
            }
        }
        Ok(())
    }

    /// Bytes of memory behind links.
    pub(super) fn memory_bytes(&self) -> usize {
        self.ports.iter().flatten().map(|ports| ports.memory_bytes()).sum()
    }

    /// Opens what this rank's part of a schedule uses. Memory is there before anything is launched
    /// that uses it: a driver may let an allocation wait for kernels.
    pub(super) fn open(&self, schedule: &Schedule, lowering: &Lowering) -> Result<(), Error> {
        let mut used = BTreeSet::new();
        for (_, instruction) in schedule.steps(self.rank) {
            match instruction {
                Instruction::Wait { flag, .. } | Instruction::Signal { flag, .. } => {
                    let (oxccl_plans::schedule::Flag::Tail(link)
                    | oxccl_plans::schedule::Flag::Head(link)) = flag;
                    used.insert((link.peer, link.lane));
                }
                Instruction::ReduceCopy { .. } => {}
            }
        }
        used.retain(|(peer, _)| !self.nodes.share(self.rank, *peer));
        let peers: BTreeSet<usize> = used.iter().map(|(peer, _)| *peer).collect();
        let first = lowering.first_connections;
        for &peer in &peers {
            if let Some(ports) = &self.ports[peer] {
                ports.back().map_err(|why| not_open(peer, why))?;
            }
        }
        for peer in peers {
            let lanes = used.iter().filter(|(to, _)| *to == peer).map(|(_, lane)| *lane);
            let sets = first..first + lowering.channels;
            let ports = lanes.flat_map(|lane| sets.clone().map(move |s| LinkPorts::port(s, lane)));
            self.proxy.want(peer, ports.collect());
        }
        Ok(())
    }

    /// A call begins.
    #[inline]
    pub(super) fn begin(&self) {
        self.proxy.begin();
    }

    /// It has ended.
    #[inline]
    pub(super) fn end(&self) {
        self.proxy.end();
    }
}

/// What an instruction needs of a rank on another node that only mapped memory gives.
fn unproxied(
    instruction: &Instruction,
    (rank, ranks): (usize, usize),
    is_remote: impl Fn(usize) -> bool,
) -> Option<(&'static str, usize)> {
    let Instruction::ReduceCopy { sources, destinations, .. } = instruction else { return None };
    let operands = sources.iter().map(|source| source.operand).chain(destinations.iter().copied());
    operands.flat_map(|operand| operand.members(rank, ranks)).find_map(|operand| {
        let (what, peer) = match operand {
            Operand::Slot { link, .. } | Operand::PeerSlot { link, .. }
                if link.lane.has_flags() =>
            {
                ("a slot with flags", link.peer)
            }
            Operand::Window { peer, .. } => ("a window", peer),
            _ => return None,
        };
        is_remote(peer).then_some((what, peer))
    })
}

/// A loopback address leads nowhere from another machine.
fn reachable(nodes: &Nodes, config: &Config, addresses: &[SocketAddr]) -> Result<(), Error> {
    let lost = addresses.iter().position(|address| address.ip().is_loopback());
    match lost {
        Some(rank) if config.nodes.is_none() && nodes.count() > 1 => Err(Error::Config {
            variable: "interface",
            detail: format!(
                "rank {rank} is found at {} by itself alone, and ranks of other machines need it: name the interface that joins \
                 the nodes, or its address, with OXCCL_INTERFACE",
                addresses[rank].ip()
            ),
        }),
        _ => Ok(()),
    }
}
