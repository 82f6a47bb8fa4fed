//! How a rank starts: agree on the configuration, share memory, set up the tables.

use super::Engine;
use super::backend::Backend;
use super::close::Ending;
use super::cma::{self, Readers};
use super::diagnosis::{Ranks, poll, words_of_groups};
use super::fabric::Choice;
use super::gpu::{GpuBackend, Joint, Registrations};
use super::host::HostBackend;
use super::links::{Links, Starting};
use super::prepared::{Launches, Plans, Ways};
use super::recent::Recent;
use super::tally::Tally;
use crate::config::{Config, patience};
use crate::device::cuda::{Gpu, Image, Reached, Setup};
use crate::device::{
    ByRank, CONTROL, CONTROLS, Control, ControlShape, Facts, Heap, Heaps, Host, Label, LinkPorts,
    Rooms, StagingShape, Waiting, allow_fences, have_addresses, have_own_cores, usable_cores,
};
use crate::error::Error;
use crate::log;
use crate::status::own_start;
use crate::target::Device;
use oxccl_kernels::format as f;
use oxccl_plans::topology::Placement;
use oxccl_transports::cuda::{Context, Driver, beside_captures};
use oxccl_transports::proxy::Egress;
use oxccl_transports::{
    Bootstrap, Cause, Claims, CudaError, HUGE_PAGE, Reach, Region, Server, deadline_in,
};
use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

/// Polls before a wait yields, where every rank has a core of its own.
const SPINS: u32 = 20_000;

impl Engine {
    /// Sets a rank up. All ranks do so together.
    pub(crate) fn start(beginning: Beginning) -> Result<Engine, Error> {
        let Beginning { mut bootstrap, server, config: given, joint, inherited, heap } = beginning;
        let mut config = given.clone();
        config.check()?;
        let changed = log::listed(&config.changed());
        config.advanced.cache_bytes = Some(config.last_level_cache_bytes());
        let (rank, world) = (bootstrap.rank(), bootstrap.world());
        // A part's ranks are all here.
        let deadline = deadline_in(match &inherited {
            Some(_) => patience(config.timeout),
            None => config.timeout,
        });
        // The ranks of a part have done so.
        if inherited.is_none() {
            let told = bootstrap.all_gather(&agreed(&config), deadline)?;
            agree(&told, &config)?;
        }
        config.place(bootstrap.nodes())?;
        let (spins, label) = match &inherited {
            Some(inherited) => (inherited.spins, inherited.label),
            None => Spins::gather(&mut *bootstrap, &config, deadline)?,
        };
        let of = joint.clone();
        let start = Start {
            bootstrap: &mut *bootstrap,
            config: &config,
            deadline,
            joint: of,
            inherited,
            heap,
            label,
        };
        let started = match config.device {
            Device::Host => start.on_host(&spins),
            Device::Cuda(ordinal) => start.on_gpu(ordinal, &spins),
        };
        let Started { backend, heap, rooms, ranks, links, egress, ways, readers, device } = started
            .inspect_err(|error| {
                let reason = error.to_string();
                bootstrap.liveness().abort(Cause::Aborted { rank, reason });
            })?;
        config.device = device;
        let nodes = bootstrap.nodes();
        let uneven = given.ranks_per_node.is_none().then(|| nodes.sizes_of_runs()).flatten();
        let uneven = uneven.map(|sizes| Placement::of_sizes(&sizes));
        let ways = Ways { uneven: uneven.filter(|placement| !placement.are_alike()), ..ways };
        tracing::info!(
            rank,
            version = env!("CARGO_PKG_VERSION"),
            world,
            nodes = nodes.count(),
            node = nodes.node(rank),
            %device,
            // Where all are on one node, they reach each other's memory.
            fabric = links.as_ref().map_or("memory", |links| links.fabric()),
            cores = usable_cores().len(),
            settings = changed,
            "a communicator has started"
        );
        let beside = nodes.beside(rank).count();
        let staging_bytes = config.staging(world, beside).len_bytes();
        let ending = Ending::at_exit(&ranks, links.as_ref());
        Ok(Engine {
            config,
            given,
            spins,
            label,
            egress,
            staging_bytes,
            joint,
            plans: Plans::new(links.clone(), ways),
            readers,
            rooms,
            launches: Launches::new(&heap),
            backend,
            links,
            heap,
            ranks,
            tally: Tally::new(rank, world),
            recent: Recent::default(),
            _ending: ending,
            bootstrap,
            invited: None,
            server,
        })
    }
}

/// What an engine is made of.
pub(crate) struct Beginning {
    pub(crate) bootstrap: Box<dyn Bootstrap>,
    /// Where this rank serves the rendezvous.
    pub(crate) server: Option<Arc<Server>>,
    pub(crate) config: Config,
    /// Where ranks meet that share their launches.
    pub(crate) joint: Option<Arc<Joint>>,
    /// Of a part of other ranks: what it has from them.
    pub(crate) inherited: Option<Inherited>,
    /// Of a rank that has been in another communicator, with other ranks: its heap.
    pub(crate) heap: Option<Arc<Heap>>,
}

/// What the ranks of a part keep.
pub(crate) struct Inherited {
    pub(super) heap: Arc<Heap>,
    /// Those of this node's ranks.
    pub(super) heaps: Heaps,
    /// Memory of other libraries that its ranks reach.
    pub(super) registrations: Option<Registrations>,
    pub(super) egress: Option<Egress>,
    /// Those of its ranks.
    pub(super) rooms: Option<Rooms>,
    /// Which of them it is to have, by rank.
    pub(super) told_rooms: Option<Vec<u32>>,
    /// Where the system reads private memory.
    pub(super) readers: Option<Readers>,
    pub(super) spins: Spins,
    /// Of the part.
    pub(super) label: Label,
}

/// What a start begins with.
struct Start<'a> {
    bootstrap: &'a mut dyn Bootstrap,
    config: &'a Config,
    deadline: Instant,
    /// Where ranks meet that share their launches.
    joint: Option<Arc<Joint>>,
    inherited: Option<Inherited>,
    /// The heap that this rank has.
    heap: Option<Arc<Heap>>,
    label: Label,
}

/// Memory of hosts, by rank.
struct Memory {
    control: ByRank<Region>,
    heaps: ByRank<Region>,
    rooms: Option<Rooms>,
}

/// What comes of it.
struct Started {
    backend: Box<dyn Backend>,
    heap: Arc<Heap>,
    rooms: Option<Rooms>,
    ranks: Arc<Ranks>,
    links: Option<Arc<Links>>,
    /// What the node's ranks share where links are shaped.
    egress: Option<Egress>,
    ways: Ways,
    /// Where the system reads private memory.
    readers: Option<Readers>,
    device: Device,
}

impl Start<'_> {
    fn shape(&self) -> StagingShape {
        let (world, nodes) = (self.bootstrap.world(), self.bootstrap.nodes());
        let shape = self.config.staging(world, nodes.beside(self.bootstrap.rank()).count());
        // No schedule over several nodes uses them.
        let ll128_slots = if nodes.count() == 1 { shape.ll128_slots } else { 0 };
        StagingShape { ll128_slots, ..shape }
    }

    fn ranks(
        &self,
        control: Vec<Option<Arc<Region>>>,
        heap: &Arc<Heap>,
    ) -> Result<Arc<Ranks>, Error> {
        let (rank, liveness) = (self.bootstrap.rank(), self.bootstrap.liveness());
        let shape = ControlShape { channels: self.config.max_channels };
        let control = Arc::new(Control::new(shape, rank, control)?);
        let (telling, hearing) = (control.clone(), control.clone());
        liveness.on_ask(
            move || telling.report(&words_of_groups(&telling, rank)),
            move |rank, report| hearing.take_report(rank, report),
        );
        control.own_badge().fill(Facts {
            label: self.label,
            rank,
            world: self.bootstrap.world(),
            channels: shape.channels,
            process: std::process::id(),
            process_started: own_start(),
            has_times: self.config.call_times,
        });
        let setting = (self.bootstrap.reach(), self.config);
        let ranks = Arc::new(Ranks::new(rank, control, liveness, heap.clone(), setting)?);
        if self.config.flight_signal {
            ranks.record_on_signal()?;
        }
        Ok(ranks)
    }

    fn on_host(mut self, spins: &Spins) -> Result<Started, Error> {
        allow_fences();
        let (shape, rank) = (self.shape(), self.bootstrap.rank());
        // Staging lies behind control memory: a file less to hand out and to map.
        let control = ControlShape { channels: shape.channels };
        let staging_at = control.len_bytes().next_multiple_of(HUGE_PAGE);
        let Memory { control, heaps, rooms } = self.host_memory(shape, staging_at)?;
        let staging = |region: &Option<Arc<Region>>| match region {
            Some(region) => Ok(Some(Arc::new(region.part(staging_at, shape.len_bytes())?))),
            None => Ok::<_, Error>(None),
        };
        let staging: Vec<_> = control.iter().map(staging).collect::<Result<_, _>>()?;
        let bases: Vec<*mut u8> = match self.bootstrap.reach() {
            Reach::SameProcess => vec![std::ptr::null_mut(); shape.ranks],
            Reach::SharedMemory => {
                let base = |heap: &Option<Arc<Region>>| heap.as_ref().map(|heap| heap.as_ptr());
                heaps.iter().map(|heap| base(heap).unwrap_or(std::ptr::null_mut())).collect()
            }
        };
        let own_staging = || staging[rank].clone().unwrap_or_else(|| unreachable!("it is its own"));
        let end = |peer| Ok(LinkPorts::on_host(shape, peer, own_staging())?);
        let ends = |_: &Choice| Ok(end);
        let links = Starting::gather(self.bootstrap, self.config, None, ends, self.deadline)?;
        let egress = self.egress(shape, &control);
        let heap = match (&self.inherited, &self.heap) {
            (Some(inherited), _) => inherited.heap.clone(),
            (None, Some(heap)) => heap.clone(),
            (None, None) => {
                let claims = self.first_of_node(&control);
                let at = ControlShape { channels: shape.channels }.claims();
                let claims = claims.map(|region| Claims::new(region, at));
                let own = heaps[rank].clone();
                let own = own.unwrap_or_else(|| unreachable!("it is its own"));
                Arc::new(Heap::new(own, claims))
            }
        };
        let ranks = self.ranks(control, &heap)?;
        let waiting = Waiting {
            abort: std::ptr::from_ref(ranks.liveness.abort_word()).cast(),
            poll,
            context: std::ptr::from_ref(&ranks.poll).cast_mut().cast(),
            spins: self.config.advanced.spins.unwrap_or(spins.executors),
        };
        let connect = |connections: &mut [f::Connection]| {
            links.iter().for_each(|links| links.connect(connections))
        };
        let readers = self.readers(&staging)?;
        let processes = readers.as_ref().map(|readers| &*readers.processes);
        let host = Host::new(
            shape,
            rank,
            (staging, heaps),
            connect,
            (&bases, processes),
            &ranks.control,
            waiting,
        );
        let links = self.start_links(links, egress.clone(), spins)?;
        let cache_bytes = self.config.last_level_cache_bytes();
        let kept = (self.bootstrap.reach(), self.config.call_times, cache_bytes);
        let backend =
            Box::new(HostBackend::new(host, ranks.clone(), heap.clone(), links.clone(), kept));
        let (ll128, cma) = (shape.ll128_slots > 0, readers.as_ref().map(|readers| readers.reads));
        let ways = Ways { ll128, cma, ..Ways::default() };
        let device = Device::Host;
        Ok(Started { backend, heap, rooms, ranks, links, egress, ways, readers, device })
    }

    /// Control memory, with room for staging memory of this shape behind it, and heaps. A part has
    /// them of the whole, as far as there are rooms.
    fn host_memory(&mut self, shape: StagingShape, staging_at: usize) -> Result<Memory, Error> {
        let len_bytes = staging_at + shape.len_bytes();
        let Some(inherited) = &self.inherited else {
            let has_rooms = have_addresses();
            let file = match has_rooms {
                true => Region::create(CONTROLS, self.rooms_bytes(staging_at))?,
                false => Region::create(CONTROL, len_bytes)?,
            };
            let heap = match self.heap.as_ref().and_then(|heap| heap.region()) {
                Some(region) => region.clone(),
                None => {
                    let heap = Region::create("oxccl-heap", self.config.heap_bytes);
                    Arc::new(heap.map_err(|error| self.no_heap(error))?)
                }
            };
            let [control, heaps] = self.share([Arc::new(file), heap])?;
            let own = control[self.bootstrap.rank()].clone().filter(|_| has_rooms);
            let rooms = own.map(|own| Rooms::new(own, control.clone()));
            return Ok(Memory { control, heaps, rooms });
        };
        let Heaps::Host(heaps) = inherited.heaps.clone() else {
            unreachable!("a part computes on what the whole does")
        };
        let rooms = inherited.rooms.clone();
        let control = match (&rooms, &inherited.told_rooms) {
            (Some(rooms), Some(told)) if rooms.hold(len_bytes) => {
                rooms.enter(self.bootstrap.rank(), told, len_bytes)?
            }
            (rooms, told) => {
                if let (Some(rooms), Some(told)) = (rooms, told) {
                    rooms.give_back(told[self.bootstrap.rank()]);
                }
                let [control] = self.share([Arc::new(Region::create(CONTROL, len_bytes)?)])?;
                control
            }
        };
        Ok(Memory { control, heaps, rooms })
    }

    /// How long a file is whose rooms have the memory of any part: parts on one node have LL128's
    /// slots and any channel's messages, and those over several longer slots.
    fn rooms_bytes(&self, staging_at: usize) -> usize {
        let (world, nodes) = (self.bootstrap.world(), self.bootstrap.nodes());
        let shape = self.config.staging(world, nodes.beside(self.bootstrap.rank()).count());
        let shape = StagingShape { message_sets: self.config.max_channels, ..shape };
        Rooms::len_bytes(staging_at + shape.len_bytes())
    }

    /// Hands regions to this node's ranks: theirs, by rank.
    fn share<const N: usize>(
        &mut self,
        own: [Arc<Region>; N],
    ) -> Result<[ByRank<Region>; N], Error> {
        let all = self.bootstrap.share(&own, self.deadline);
        let all = all.map_err(|error| self.no_heap(error))?;
        Ok(std::array::from_fn(|at| {
            all.iter().map(|of| of.as_ref().map(|regions| regions[at].clone())).collect()
        }))
    }

    /// The processes of all ranks, if they are on one machine and each may read the others' memory.
    /// `staging` is not used yet.
    fn readers(&mut self, staging: &[Option<Arc<Region>>]) -> Result<Option<Readers>, Error> {
        if let Some(inherited) = &self.inherited {
            return Ok(inherited.readers.clone());
        }
        let is_possible =
            self.bootstrap.reach() == Reach::SharedMemory && self.bootstrap.nodes().count() == 1;
        if !is_possible || self.config.advanced.cma == Some(false) {
            return Ok(None);
        }
        // Whoever asks for it gets it, whatever takes longer.
        let slots = self.config.advanced.cma.is_none().then_some(staging);
        let found = cma::readers(self.bootstrap, slots, self.deadline)?;
        match (found, self.config.advanced.cma) {
            (Ok(readers), _) => Ok(Some(readers)),
            (Err(detail), Some(true)) => Err(Error::Config { variable: "cma", detail }),
            (Err(detail), _) => {
                tracing::info!(detail, "private memory goes through slots");
                Ok(None)
            }
        }
    }

    /// The word that this node's ranks share where links are shaped: in the control memory of the
    /// first of them.
    fn egress(&self, shape: StagingShape, control: &[Option<Arc<Region>>]) -> Option<Egress> {
        if let Some(Inherited { egress: Some(egress), .. }) = &self.inherited {
            return Some(egress.clone());
        }
        let first = self.first_of_node(control);
        let at = ControlShape { channels: shape.channels }.egress();
        first.map(|region| Egress::new(region, at))
    }

    /// The control memory of this node's first rank.
    fn first_of_node(&self, control: &[Option<Arc<Region>>]) -> Option<Arc<Region>> {
        let mut beside = self.bootstrap.nodes().beside(self.bootstrap.rank());
        beside.find_map(|first| control[first].clone())
    }

    /// What there are no addresses for is a heap, of which every rank of the node maps each.
    fn no_heap(&self, error: oxccl_transports::Error) -> Error {
        if !matches!(error, oxccl_transports::Error::OutOfMemory { .. }) {
            return error.into();
        }
        let detail = format!(
            "there are no addresses for a heap of {} bytes for each of this node's ranks: set OXCCL_HEAP_BYTES to less (its default \
             is 64 GiB, of which memory is taken only as it is allocated) or raise the limit (`ulimit -v`)",
            self.config.heap_bytes
        );
        Error::Config { variable: "heap_bytes", detail }
    }

    fn start_links(
        &self,
        links: Option<Starting>,
        egress: Option<Egress>,
        spins: &Spins,
    ) -> Result<Option<Arc<Links>>, Error> {
        let (Some(links), Some(egress)) = (links, egress) else { return Ok(None) };
        let links = links.start(&*self.bootstrap, self.config, egress, spins.proxies)?;
        Ok(Some(Arc::new(links)))
    }

    fn on_gpu(mut self, ordinal: Option<usize>, spins: &Spins) -> Result<Started, Error> {
        let (shape, rank, reach) = (self.shape(), self.bootstrap.rank(), self.bootstrap.reach());
        let nodes = self.bootstrap.nodes();
        let place = match self.config.nodes {
            // Nodes that are parts of this machine share its GPUs.
            Some(_) => rank,
            None => nodes.beside(rank).filter(|beside| *beside < rank).count(),
        };
        let context = context(ordinal, place)?;
        let device = context.device();
        let image = self.config.advanced.image.map_or_else(|| Image::embedded(device), Ok)?;
        let windows =
            (reach == Reach::SameProcess).then(|| vec![std::ptr::null_mut(); shape.ranks]);
        let heap_bytes = self.config.heap_bytes;
        let bulk_copies = self.config.advanced.bulk_copies;
        let separate = self.joint.is_none();
        let heaps = match &self.inherited {
            None => match self.heap.as_ref().and_then(|heap| heap.device_region()) {
                Some(region) => Reached::Own(region.clone()),
                None => Reached::New,
            },
            Some(Inherited { heaps: Heaps::Device(heaps), .. }) => Reached::All(heaps.clone()),
            Some(_) => unreachable!("a part computes on what the whole does"),
        };
        let registrations = self.inherited.as_mut().and_then(|of| of.registrations.take());
        let registered = registrations.as_ref().map(|all| all.table().clone());
        let context_of = context.clone();
        let setup = Setup {
            context: context_of,
            image,
            shape,
            heap_bytes,
            heaps,
            registered,
            windows,
            bulk_copies,
            zero_sm: self.config.advanced.zero_sm && nodes.count() == 1 && shape.ranks > 1,
            separate,
        };
        let (config, driver) = (self.config, device.driver());
        // Threads of a process: an allocation may wait for another rank's kernel, which waits for
        // this rank.
        let at_once = reach == Reach::SameProcess;
        let ends = |choice: &Choice| {
            let wanted = config.advanced.gpu_direct;
            let ends = beside_captures(driver, || choice.ends_of_gpu(rank, wanted))?;
            let context = context.clone();
            Ok(move |peer| beside_captures(driver, || ends.ports(shape, (peer, at_once), &context)))
        };
        let links = Starting::gather(self.bootstrap, config, Some(&context), ends, self.deadline)?;
        let ends = links.iter().flat_map(Starting::ports).cloned().collect();
        let gpu = Gpu::start_linked(self.bootstrap, &setup, self.deadline, ends)?;
        if self.config.advanced.single_launch == Some(true) && gpu.sharing() < shape.ranks {
            let detail = "needs all ranks on one GPU: name it (OXCCL_DEVICE=cuda:0)".into();
            return Err(Error::Config { variable: "single_launch", detail });
        }
        // All ranks see alike whether they share a GPU.
        let joint = self.joint.clone().filter(|_| gpu.sharing() == shape.ranks);
        let egress = self.egress(shape, gpu.control());
        let heap = match (&self.inherited, &self.heap) {
            (Some(inherited), _) => inherited.heap.clone(),
            (None, Some(heap)) => heap.clone(),
            (None, None) => Arc::new(Heap::on_gpu(gpu.heap().clone(), gpu.stream().clone())),
        };
        let ranks = self.ranks(gpu.control().to_vec(), &heap)?;
        let links = self.start_links(links, egress.clone(), spins)?;
        let connections = self.config.advanced.cuda_connections;
        let (ll128, multicast) = (gpu.has_ll128(), gpu.switched());
        let ways = Ways { ll128, multicast, ..Ways::default() };
        let shared = (ranks.clone(), heap.clone(), links.clone());
        let registrations = (reach != Reach::SameProcess).then(|| {
            registrations.unwrap_or_else(|| Registrations::new(gpu.tables().registered()))
        });
        let backend = Box::new(GpuBackend::new(gpu, shared, joint, registrations, connections)?);
        let device = Device::Cuda(Some(device.ordinal()));
        let (readers, rooms) = (None, None);
        Ok(Started { backend, heap, rooms, ranks, links, egress, ways, readers, device })
    }
}

/// The GPU of this number, or the one at this rank's place among the ranks of its node, which take
/// turns.
fn context(ordinal: Option<usize>, place: usize) -> Result<Context, CudaError> {
    let driver = Driver::load()?;
    let ordinal = match ordinal {
        Some(ordinal) => ordinal,
        None => place % driver.count()?.max(1),
    };
    Context::primary(driver.device(ordinal)?)
}

/// What all ranks must lay out staging memory and choose plans by.
fn compared(config: &Config) -> Vec<(&'static str, String)> {
    let mut fields = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    fields.extend(config.compared());
    fields
}

/// The same, as it is told to the others.
pub(super) fn agreed(config: &Config) -> Vec<u8> {
    let values: Vec<String> = compared(config).into_iter().map(|(_, value)| value).collect();
    values.join("\n").into_bytes()
}

/// Fails if a rank's differs, by what all have told.
pub(super) fn agree<T: AsRef<[u8]>>(all: &[T], config: &Config) -> Result<(), Error> {
    let fields = compared(config);
    for (rank, text) in all.iter().enumerate() {
        let text = String::from_utf8_lossy(text.as_ref());
        let mut values = text.split('\n');
        for &(setting, ref ours) in &fields {
            let theirs = values.next().unwrap_or("missing").to_owned();
            if theirs != *ours {
                return Err(Error::ConfigDiffers { setting, rank, theirs, ours: ours.clone() });
            }
        }
    }
    Ok(())
}

/// Who may poll before it yields. That pays only while the one waited for can run: where each rank
/// of a machine can have a core of its own, of those that it is bound to. Whoever shares one all
/// the same, since it was bound later or by other load, notices by itself
/// (kernels/machine/host/target.h).
#[derive(Clone, Copy)]
pub(super) struct Spins {
    executors: u32,
    /// They need cores besides.
    proxies: bool,
}

impl Spins {
    fn gather(
        bootstrap: &mut dyn Bootstrap,
        config: &Config,
        deadline: Instant,
    ) -> Result<(Spins, Label), Error> {
        let number = RandomState::new().build_hasher().finish() as u32;
        let cores = usable_cores();
        let own = std::iter::once(&number).chain(&cores).flat_map(|word| word.to_le_bytes());
        let all = bootstrap.all_gather(&own.collect::<Vec<u8>>(), deadline)?;
        let all: Vec<(&[u8; 4], &[u8])> =
            all.iter().map(|told| told.split_first_chunk().unwrap_or((&[0; 4], &[]))).collect();
        let (rank, nodes) = (bootstrap.rank(), bootstrap.nodes());
        // Nodes that are parts of this machine share its cores.
        let here = |other: &usize| config.nodes.is_some() || nodes.share(rank, *other);
        let ranks: Vec<usize> = (0..all.len()).filter(here).collect();
        let cores_of = |rank: &usize| -> HashSet<u32> {
            let words = all[*rank].1.chunks_exact(4);
            words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
        };
        let executors: Vec<HashSet<u32>> = ranks.iter().map(cores_of).collect();
        let cores: HashSet<&u32> = executors.iter().flatten().collect();
        let proxies = nodes.count() > 1 && 2 * ranks.len() <= cores.len();
        let threads = if nodes.count() > 1 { 2 * ranks.len() } else { ranks.len() };
        let spin = threads <= cores.len() && have_own_cores(&executors);
        let executors = if spin { SPINS } else { 0 };
        // Rank 0's number is that of the job.
        let job = all.first().map_or(0, |(number, _)| u32::from_le_bytes(**number));
        Ok((Spins { executors, proxies }, Label { job, communicator: job }))
    }
}
