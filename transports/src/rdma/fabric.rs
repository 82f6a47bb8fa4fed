//! The adapters of a rank, and the wires that it makes over them.

use std::sync::Arc;

use super::gpu_memory::{self, GpuReach, GpuWay};
use super::memory::Domain;
use super::offer::{Offer, PathOffer, VERSION};
use super::path::{Gpu, Path};
use super::port::Port;
use super::queue_pair::{Class, Patience};
use super::wire::RdmaWire;
use super::{RdmaError, immediate};
use crate::Adapter;
use crate::cuda::{Context, CudaError, DeviceRegion};
use crate::proxy::{Fabric, Link, PortsMemory, Wire, WireError};

/// A rank's adapters: a port of each **rail**, joined with the peer's on the same rail.
#[derive(Debug)]
pub struct RdmaFabric {
    rails: Vec<Rail>,
    settings: Settings,
    /// The rank's GPU, if ports may lie in its memory, and how adapters may reach that.
    gpu: Option<(Context, Vec<GpuWay>)>,
}

/// How wires are made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Queue pairs to a peer on each rail: more than one where a network spreads its load by them.
    pub queue_pairs: usize,
    /// How long a peer may take to acknowledge.
    pub patience: Patience,
    /// How switches and routers treat the packets.
    pub class: Class,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { queue_pairs: 1, patience: Patience::default(), class: Class::default() }
    }
}

/// A port, and the domain in which its queue pairs and their memory are.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) port: Port,
    pub(super) domain: Arc<Domain>,
}

impl RdmaFabric {
    /// Wires over these ports, a rail each.
    ///
    /// # Errors
    /// [`RdmaError::NoDevice`] without any; [`RdmaError::Limit`] for more queue pairs to a peer
    /// than a message is cut into; [`RdmaError::Verbs`].
    pub fn new(ports: Vec<Port>, settings: Settings) -> Result<RdmaFabric, RdmaError> {
        let Some(first) = ports.first() else { return Err(RdmaError::NoDevice) };
        let paths = ports.len() * settings.queue_pairs;
        if !(1..=immediate::PARTS_LIMIT).contains(&paths) {
            let limit = format!(
                "and other ports would have {paths} queue pairs to a peer, 1 to {} are possible",
                immediate::PARTS_LIMIT
            );
            return Err(RdmaError::Limit { device: first.device().name().to_owned(), limit });
        }
        let rails = ports
            .into_iter()
            .map(|port| Ok(Rail { domain: Domain::new(port.device())?, port }))
            .collect::<Result<_, _>>()?;
        Ok(RdmaFabric { rails, settings, gpu: None })
    }

    /// The same for a rank whose ports may lie in memory of this GPU, which adapters are to reach
    /// by the first of these ways that works.
    pub fn with_gpu(self, context: Context, ways: &[GpuWay]) -> RdmaFabric {
        RdmaFabric { gpu: Some((context, ways.to_vec())), ..self }
    }

    /// Lets every adapter reach memory of the GPU, for ports that are to lie there, all of them by
    /// one way.
    ///
    /// # Errors
    /// [`RdmaError::NotDirect`] says why that is not possible: then ports have to lie in pinned
    /// memory of the host.
    ///
    /// # Panics
    /// Without a GPU.
    ///
    /// # Safety
    /// The range is memory of the GPU, and mapped until the result is dropped. No reference to it
    /// exists meanwhile.
    pub unsafe fn reach_gpu(&self, memory: PortsMemory) -> Result<GpuReach, RdmaError> {
        let (context, ways) = self.gpu.as_ref().expect("the fabric is for a rank with a GPU");
        let mut refused = Vec::new();
        for &way in ways {
            // SAFETY: as the caller promises.
            let register =
                |rail: &Rail| unsafe { rail.domain.register_device(context, memory, way) };
            match self.rails.iter().map(register).collect::<Result<_, _>>() {
                Ok(registrations) => return Ok(GpuReach { way, _registrations: registrations }),
                Err(why) => refused.push(why.to_string()),
            }
        }
        Err(RdmaError::NotDirect { why: refused.join("; ") })
    }

    /// By which way every adapter reaches memory of the GPU, tried on a little of it.
    ///
    /// # Errors
    /// As [`reach_gpu`](Self::reach_gpu).
    ///
    /// # Panics
    /// Without a GPU.
    pub fn try_gpu(&self) -> Result<GpuWay, RdmaError> {
        let (context, _) = self.gpu.as_ref().expect("the fabric is for a rank with a GPU");
        let region = DeviceRegion::create(context, 1)
            .map_err(|error| RdmaError::NotDirect { why: error.to_string() })?;
        let memory = PortsMemory { start: region.as_ptr(), len_bytes: region.len_bytes() };
        // SAFETY: memory of the GPU, which goes behind the registrations.
        unsafe { self.reach_gpu(memory) }.map(|reach| reach.way())
    }

    /// The GPU, if the ports of a wire lie in its memory.
    fn gpu_of(&self, memory: PortsMemory) -> Result<Option<Gpu>, CudaError> {
        let Some((context, _)) = &self.gpu else { return Ok(None) };
        if !gpu_memory::is_device(context, memory.start)? {
            return Ok(None);
        }
        Ok(Some(Gpu { needs_flush: gpu_memory::needs_flush(context)? }))
    }

    /// The ports, in the order of the rails.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.rails.iter().map(|rail| &rail.port)
    }
}

impl Fabric for RdmaFabric {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn sockets(&self) -> usize {
        1
    }

    fn adapter(&self) -> Option<Adapter> {
        let first = self.ports().next()?;
        Some(Adapter::Rdma(first.device().name().to_owned()))
    }

    fn open(&self, link: Link) -> Result<Box<dyn Wire>, WireError> {
        let memory = link.ports.memory();
        let gpu = self.gpu_of(memory).map_err(|error| WireError::Device(error.to_string()))?;
        let rails = self.rails.iter();
        // SAFETY: the ports keep their memory as long as they live, and the wire holds them; what
        // others write in it is reached by the executor alone, by the machine's own means.
        let paths = rails
            .flat_map(|rail| std::iter::repeat_n(rail, self.settings.queue_pairs))
            .map(|rail| unsafe { Path::new(rail, memory, gpu) });
        let (mut paths, offers): (Vec<Path>, Vec<PathOffer>) =
            paths.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();

        let Link { rank, peer, mut sockets, ports, deadline } = link;
        let mut socket = sockets.swap_remove(0);
        let offer = Offer { version: VERSION, ports_bytes: memory.len_bytes as u64, paths: offers };
        let theirs = offer.read(&socket.swap(&offer.encode(), deadline)?)?;
        for (path, offer) in paths.iter_mut().zip(theirs.paths) {
            let Settings { patience, class, .. } = self.settings;
            path.connect(offer, &format!("rank {peer}"), patience, class)?;
        }
        // Nothing is sent before the peer can receive.
        socket.swap(b"ready", deadline)?;
        let devices: Vec<_> = self.ports().map(|port| port.device().name()).collect();
        tracing::info!(rank, peer, ?devices, paths = paths.len(), "a link over RDMA is made");
        Ok(Box::new(RdmaWire::new(paths, ports, socket)?))
    }
}

impl From<RdmaError> for WireError {
    fn from(error: RdmaError) -> WireError {
        match error {
            RdmaError::KindDiffers { .. }
            | RdmaError::GidDiffers { .. }
            | RdmaError::MtuDiffers { .. } => WireError::Unfit(error.to_string()),
            RdmaError::BadAddress { detail } => WireError::Protocol(detail),
            error => WireError::Device(error.to_string()),
        }
    }
}
