//! One rank on a GPU: all that its calls need, set up together with the other ranks.

use super::cells::Cells;
use super::multicast;
use super::warm::warm;
use super::{
    Arguments, DeviceProgram, Ended, Image, Kernel, Kernels, PinnedPool, PinnedWords, Programs,
    Registered, Seat, Stream, Tables, Traced,
};
use crate::device::{CONTROL, ControlShape, LinkPorts, StagingShape};
use oxccl_kernels::format::{self as f, DataType, Fold};
use oxccl_plans::lower::Program;
use oxccl_transports::cuda::{Context, DeviceRegion, MulticastMemory, Uuid, beside_captures};
use oxccl_transports::{Bootstrap, Cause, CudaError, Error, Offer, Reach, Region, Shared};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Words that the driver is tried with.
const WARM_WORDS: usize = 512;

/// What a rank is set up with. All ranks use the same shape and length.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The GPU.
    pub context: Context,
    /// Where kernels come from.
    pub image: Image,
    /// How staging is laid out.
    pub shape: StagingShape,
    /// Length of the memory that peers reach in place.
    pub heap_bytes: usize,
    /// What there is of that memory already.
    pub heaps: Reached,
    /// Where what the ranks have registered is found, if that is so already.
    pub registered: Option<Registered>,
    /// Where windows on peers begin in this process, if not at their heaps.
    pub windows: Option<Vec<*mut u8>>,
    /// Kernels leave long copies to the GPU's engine for bulk asynchronous copies: see
    /// [`Kernels::with_bulk_copies`].
    pub bulk_copies: bool,
    /// Copy engines carry out what they can. All ranks are on one node then.
    pub zero_sm: bool,
    /// Ranks of this process on one GPU launch by themselves: one may prepare a call while
    /// another's kernel waits for that. So what most need is allocated at the start.
    pub separate: bool,
}

/// Memory that peers reach in place, before a rank is set up. Where there is some already, no
/// switch reduces what lies in it.
#[derive(Clone, Debug, Default)]
pub enum Reached {
    /// None yet.
    #[default]
    New,
    /// This rank's own; others may have theirs, or none.
    Own(Arc<DeviceRegion>),
    /// All ranks', by rank.
    All(Vec<Option<Arc<DeviceRegion>>>),
}

impl Reached {
    fn is_new(&self) -> bool {
        matches!(self, Reached::New)
    }
}

/// A rank on its GPU.
#[derive(Debug)]
pub struct Gpu {
    kernels: Arc<Kernels>,
    tables: Arc<Tables>,
    /// Where copy engines carry out what they can.
    cells: Option<Arc<Cells>>,
    programs: Programs,
    pinned: PinnedPool,
    ended: Arc<Ended>,
    /// Its own: for set-up, and for calls that wait. Nobody captures it.
    stream: Arc<Stream>,
    /// Those of this node's ranks, by rank, kept mapped: windows lead there.
    heaps: Vec<Option<Arc<DeviceRegion>>>,
    heap: Arc<DeviceRegion>,
    /// The heaps of this node's ranks behind one address, where a switch joins their GPUs.
    multicast: Option<MulticastMemory>,
    /// Control regions of this node's ranks, by rank.
    control: Vec<Option<Arc<Region>>>,
    /// Memory of the links to ranks of other nodes, which kernels use.
    links: Vec<Arc<LinkPorts>>,
    neighbours: Neighbours,
    seat: Option<Arc<Seat>>,
    bulk_copies: bool,
    /// Once a trace was asked for.
    traced: Option<Traced>,
    /// What its staging held, while that is given back.
    pub(super) suspended: Option<Vec<u8>>,
}

/// The other ranks, as far as they concern a GPU.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    /// Blocks that this GPU holds.
    resident: usize,
    /// Ranks on this GPU, this one among them.
    sharing: usize,
    /// Those of them that are threads of this process.
    in_process: usize,
    /// Whether ranks of this node are on others.
    elsewhere: bool,
    /// All ranks' GPUs store lines of LL128 messages whole at all others.
    ll128: bool,
    /// So many ranks of each node can be behind one address: each has a GPU of its own.
    switched: Option<usize>,
}

/// A program that is ready to be launched.
#[derive(Clone, Debug)]
pub struct Prepared {
    program: DeviceProgram,
    kernel: Kernel,
}

impl Prepared {
    /// Its channels: blocks of a launch.
    pub fn channels(&self) -> usize {
        self.program.channels()
    }

    /// Where the GPU finds the program.
    pub(crate) fn program(&self) -> &DeviceProgram {
        &self.program
    }

    /// The kernel that runs it.
    pub(crate) fn kernel(&self) -> Kernel {
        self.kernel
    }
}

impl Gpu {
    /// Sets a rank up; all are on one node. All ranks do so together; one that fails tells the
    /// others. What other threads capture meanwhile does not matter.
    ///
    /// # Errors
    /// [`Error::Cuda`], of which [`CudaError::TooManyBlocks`] on all ranks alike; as
    /// [`Bootstrap::exchange`]; [`Error::NotOneNode`].
    pub fn start(
        bootstrap: &mut dyn Bootstrap,
        setup: &Setup,
        deadline: Instant,
    ) -> Result<Gpu, Error> {
        bootstrap.nodes().require_one()?;
        Gpu::start_linked(bootstrap, setup, deadline, Vec::new())
    }

    /// The same with ranks of other nodes, one of `links` for each.
    pub(crate) fn start_linked(
        bootstrap: &mut dyn Bootstrap,
        setup: &Setup,
        deadline: Instant,
        links: Vec<Arc<LinkPorts>>,
    ) -> Result<Gpu, Error> {
        let driver = setup.context.device().driver();
        let started = beside_captures(driver, || Gpu::try_start(bootstrap, setup, deadline, links));
        started.inspect_err(|error| {
            let cause = Cause::Aborted { rank: bootstrap.rank(), reason: error.to_string() };
            bootstrap.liveness().abort(cause);
        })
    }

    fn try_start(
        bootstrap: &mut dyn Bootstrap,
        setup: &Setup,
        deadline: Instant,
        links: Vec<Arc<LinkPorts>>,
    ) -> Result<Gpu, Error> {
        let (context, rank) = (&setup.context, bootstrap.rank());
        // First, and before any rank of the process goes on: streams that are made together have
        // connections of their own where there are enough, whatever other libraries make later.
        let stream = Arc::new(Stream::new(context)?);
        let kernels = Kernels::load(context, setup.image)?;
        let neighbours = share_gpus(bootstrap, setup, &kernels, deadline)?;
        let seat = match setup.separate || neighbours.sharing < setup.shape.ranks {
            true => Some(Arc::new(Seat::take(
                context.device().uuid()?,
                setup.shape.channels,
                neighbours.resident,
                neighbours.in_process == 1,
            )?)),
            false => None,
        };
        let ll128_slots = if neighbours.ll128 { setup.shape.ll128_slots } else { 0 };
        let shape = StagingShape { ll128_slots, ..setup.shape };
        let has_all = matches!(setup.heaps, Reached::All(_));
        let switched = neighbours.switched.filter(|_| !has_all);
        let neighbours = Neighbours { switched, ..neighbours };
        let heap_bytes = switched
            .filter(|_| setup.heaps.is_new())
            .and_then(|ranks| multicast::heap_bytes(context, ranks, setup.heap_bytes));
        let create = |len_bytes| {
            // SAFETY: the stream is this context's, and lives as long as this rank.
            unsafe { DeviceRegion::create_by(context, len_bytes, stream.raw()) }.map(Arc::new)
        };
        let mut own = vec![create(shape.len_bytes())?];
        match &setup.heaps {
            Reached::New => own.push(create(heap_bytes.unwrap_or(setup.heap_bytes))?),
            Reached::Own(heap) => own.push(heap.clone()),
            Reached::All(_) => {}
        }
        let control = ControlShape { channels: shape.channels };
        let control = Arc::new(Region::create(CONTROL, control.len_bytes())?);
        let mut host = vec![control.clone()];
        if setup.zero_sm {
            host.push(Cells::region(shape.ranks)?);
        }
        let offer = Offer { host: &host, device: &own, team: None, context: Some(context) };
        let all = bootstrap.exchange(&offer, deadline)?;
        let multicast = match switched {
            Some(_) => {
                let heap = heap_bytes.and(own.get(1));
                multicast::bind(bootstrap, context, heap, deadline)?
            }
            None => None,
        };
        let device = |k: usize| {
            let region = |shared: &Option<Shared>| shared.as_ref().map(|of| of.device[k].clone());
            all.iter().map(region).collect::<Vec<_>>()
        };
        let staging = device(0);
        let heaps = match &setup.heaps {
            Reached::New | Reached::Own(_) => device(1),
            Reached::All(heaps) => heaps.clone(),
        };
        let host = |k: usize| {
            let region = move |shared: &Option<Shared>| Some(shared.as_ref()?.host.get(k)?.clone());
            all.iter().map(region).collect::<Vec<_>>()
        };
        let control_regions = host(0);
        let cell_regions: Vec<_> = host(1).into_iter().flatten().collect();
        let heap_bases = bases(&heaps);
        let bases = setup.windows.clone().unwrap_or_else(|| heap_bases.clone());
        let mut connections = shape.connections(rank, &self::bases(&staging));
        // Kernels ring nobody: the doorbell only has to be one that they reach.
        links.iter().for_each(|link| link.connect(&mut connections, own[0].as_ptr().cast()));
        let (own_staging, heap) = (own.swap_remove(0), heaps[rank].clone());
        let Some(heap) = heap else { unreachable!("a rank reaches its own memory") };
        let registered = match &setup.registered {
            Some(registered) => registered.clone(),
            None => Registered::new(&stream, shape.ranks)?,
        };
        let windows = (&bases[..], &heap_bases[..], registered);
        let tables =
            Tables::new(&stream, shape, own_staging, staging, control, &connections, windows)?;
        let tables = Arc::new(tables);
        let cells = match setup.zero_sm {
            true => {
                let progress = tables.blank().progress;
                Some(Arc::new(Cells::new(context, rank, cell_regions, progress)?))
            }
            false => None,
        };
        let separate = setup.separate && neighbours.in_process > 1;
        let programs = Programs::new(&stream, separate)?;
        let mut pinned = PinnedPool::new(context, separate)?;
        // SAFETY: no program has been placed.
        unsafe { warm(&stream, programs.room(), &pinned.take(WARM_WORDS)?) }?;
        let ended = Arc::new(Ended::new(pinned.take(1)?, tables.arrived()));
        let stopped = Arc::downgrade(&tables);
        bootstrap.liveness().on_stop(move || {
            if let Some(tables) = stopped.upgrade() {
                tables.abort();
            }
        });
        // Until all have allocated, none launches: the driver may let an allocation wait for the
        // context's kernels.
        bootstrap.all_gather(&[], deadline)?;
        Ok(Gpu {
            kernels,
            tables,
            cells,
            programs,
            pinned,
            ended,
            stream,
            heaps,
            heap,
            multicast,
            control: control_regions,
            links,
            neighbours,
            seat,
            bulk_copies: setup.bulk_copies,
            traced: None,
            suspended: None,
        })
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        self.stream.context()
    }

    /// The memory of this rank that peers reach in place, all zeros at first.
    pub fn heap(&self) -> &Arc<DeviceRegion> {
        &self.heap
    }

    /// The same of this node's ranks, by rank.
    pub(crate) fn heaps(&self) -> &[Option<Arc<DeviceRegion>>] {
        &self.heaps
    }

    /// Its own stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Control regions of this node's ranks, by rank.
    pub(crate) fn control(&self) -> &[Option<Arc<Region>>] {
        &self.control
    }

    /// Where communicators take turns, unless all its ranks share their launches.
    pub(crate) fn seat(&self) -> Option<&Arc<Seat>> {
        self.seat.as_ref()
    }

    /// Ranks on this GPU.
    pub(crate) fn sharing(&self) -> usize {
        self.neighbours.sharing
    }

    /// Those of them that are threads of this process.
    pub(crate) fn in_process(&self) -> usize {
        self.neighbours.in_process
    }

    /// Whether there is an LL128 lane: if it was asked for, and all GPUs of the ranks store its
    /// lines whole.
    pub fn has_ll128(&self) -> bool {
        self.tables.shape().ll128_slots > 0
    }

    /// How many ranks, all or those of each node, a switch joins that can reduce what lies in
    /// their heaps.
    pub fn switched(&self) -> Option<usize> {
        self.neighbours.switched.filter(|_| self.multicast.is_some())
    }

    /// Where a switch finds a call's buffers that begin so far into the heap; nowhere if one of
    /// them lies elsewhere.
    pub fn multicast(&self, input: Option<u64>, output: Option<u64>) -> f::Multicast {
        match (&self.multicast, input, output) {
            (Some(memory), Some(input), Some(output)) => {
                f::Multicast { base: memory.as_ptr(), input, output, members: std::ptr::null() }
            }
            _ => f::Launch::EMPTY.multicast,
        }
    }

    /// Whether other ranks of this node are on other GPUs.
    pub(crate) fn has_peers(&self) -> bool {
        self.neighbours.elsewhere
    }

    /// How its kernels say that they have ended.
    pub(crate) fn ended(&self) -> &Arc<Ended> {
        &self.ended
    }

    /// The words of calls that copy engines carry out, if they carry out any.
    pub(crate) fn cells(&self) -> Option<&Arc<Cells>> {
        self.cells.as_ref()
    }

    /// Its tables.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// Makes a program ready, for the kernel of the hot schedule that it is, if it is one.
    /// Nothing of it is given back before the end: see [`Programs`].
    ///
    /// # Errors
    /// [`CudaError::TooManyBlocks`] if the kernel fits fewer times than the one that the start was
    /// checked with; the driver's.
    pub fn prepare(
        &mut self,
        mut program: Program,
        data_type: DataType,
        fold: Fold,
        hot: Option<&str>,
    ) -> Result<Prepared, CudaError> {
        let hot = hot.and_then(|schedule| self.kernels.hot(schedule, data_type, fold));
        let kernel = match hot {
            Some(kernel) => kernel,
            None => pick(&self.kernels, data_type, fold, self.bulk_copies)?,
        };
        self.check_residency(kernel, program.channels())?;
        let program = self.programs.upload(&self.stream, &mut program)?;
        Ok(Prepared { program, kernel })
    }

    /// Fails if a kernel cannot run with so many channels, on all ranks at once that share this
    /// GPU.
    ///
    /// # Errors
    /// [`CudaError::TooManyBlocks`], and the driver's.
    pub(crate) fn check_residency(&self, kernel: Kernel, channels: usize) -> Result<(), CudaError> {
        self.kernels.check_residency(kernel, self.neighbours.sharing, channels)
    }

    /// The kernel for groups that reduce in several ways.
    ///
    /// # Errors
    /// As [`prepare`](Gpu::prepare).
    pub(crate) fn any_kernel(&self, channels: usize) -> Result<Kernel, CudaError> {
        let mut kernel = self.kernels.any();
        if self.bulk_copies {
            kernel = self.kernels.with_bulk_copies(kernel)?;
        }
        self.check_residency(kernel, channels)?;
        Ok(kernel)
    }

    /// Gets ready to trace, with room for so many steps of each channel; those that were written
    /// before are forgotten. It loads and allocates: until all ranks have, none launches.
    ///
    /// # Errors
    /// As [`Kernels::load`]; as [`prepare`](Gpu::prepare); [`CudaError::OutOfMemory`].
    pub(crate) fn prepare_trace(&mut self, steps: usize) -> Result<(), CudaError> {
        if let Some(traced) = &mut self.traced
            && traced.keeps(steps)
        {
            return traced.take().map(drop);
        }
        let Gpu { kernels, stream, bulk_copies, neighbours, .. } = self;
        let channels = self.tables.shape().channels;
        let check = |mut kernel| {
            if *bulk_copies {
                kernel = kernels.with_bulk_copies(kernel)?;
            }
            kernels.check_residency(kernel, neighbours.sharing, channels)
        };
        self.traced = Some(Traced::new(kernels, stream, (channels, steps), check)?);
        Ok(())
    }

    /// What traces, once [`prepare_trace`](Gpu::prepare_trace) has made it ready.
    pub(crate) fn traced(&mut self) -> Option<&mut Traced> {
        self.traced.as_mut()
    }

    /// Takes so many words of pinned memory, which is not given back before the end.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub(crate) fn words(&mut self, len: usize) -> Result<PinnedWords, CudaError> {
        self.pinned.take(len)
    }

    /// Puts a call into a stream.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The program was prepared by this rank, for this shape; the buffers are device memory of the
    /// lengths it was lowered for, found by peers by the tokens, until the stream has come that
    /// far. Calls of one rank do not overlap, whatever their streams.
    #[inline]
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        prepared: &Prepared,
        arguments: &Arguments,
    ) -> Result<(), CudaError> {
        let (launch, kernel) = self.part(prepared, arguments);
        // SAFETY: the tables and the program are this rank's, and live as long as it; the rest is
        // the caller's promise.
        unsafe { kernel.launch(stream, &launch, prepared.channels()) }
    }

    /// What a call is launched with, and by.
    #[inline]
    pub(crate) fn part(&self, prepared: &Prepared, arguments: &Arguments) -> (f::Launch, Kernel) {
        (self.tables.launch(&prepared.program, arguments), prepared.kernel)
    }
}

impl Drop for Gpu {
    /// Leaves what only this rank has with its staging, which goes with the last rank of the
    /// process: see [`DeviceRegion::keep`].
    fn drop(&mut self) {
        let (kernels, stream) = (self.kernels.clone(), self.stream.clone());
        let links = (std::mem::take(&mut self.links), self.multicast.take(), self.traced.take());
        let memory = (self.tables.memory(), self.programs.memory(), self.pinned.memory(), links);
        self.tables.own_staging().keep(Box::new((memory, kernels, stream)));
    }
}

/// The kernel for a type and fold, as the rank is set up.
fn pick(
    kernels: &Kernels,
    data_type: DataType,
    fold: Fold,
    bulk_copies: bool,
) -> Result<Kernel, CudaError> {
    let kernel = kernels.pick(data_type, fold)?;
    if bulk_copies { kernels.with_bulk_copies(kernel) } else { Ok(kernel) }
}

/// Where regions begin; null of ranks of other nodes.
fn bases(regions: &[Option<Arc<DeviceRegion>>]) -> Vec<*mut u8> {
    let base = |region: &Option<Arc<DeviceRegion>>| {
        region.as_ref().map_or(std::ptr::null_mut(), |region| region.as_ptr())
    };
    regions.iter().map(base).collect()
}

/// Finds out which ranks are on this rank's GPU. Fails on all ranks if any GPU cannot hold the
/// blocks of all of its.
fn share_gpus(
    bootstrap: &mut dyn Bootstrap,
    setup: &Setup,
    kernels: &Kernels,
    deadline: Instant,
) -> Result<Neighbours, Error> {
    let (context, channels) = (&setup.context, setup.shape.channels);
    // All kernels have the same bounds.
    let resident = pick(kernels, DataType::F32, Fold::Sum, setup.bulk_copies)?.resident();
    let own = context.device().uuid()?;
    let process = own_process();
    let words = [resident as u64, process].map(u64::to_le_bytes);
    let all = bootstrap.all_gather(&[&own.0[..], &words[0], &words[1]].concat(), deadline)?;
    let (mut gpus, mut in_process) = (Vec::with_capacity(all.len()), 0);
    for (rank, told) in all.iter().enumerate() {
        let uuid = told.split_first_chunk::<16>();
        let told = uuid.and_then(|(uuid, words)| Some((uuid, words.split_first_chunk::<8>()?)));
        let Some((uuid, (resident, theirs))) = told.filter(|(_, (_, rest))| rest.len() == 8) else {
            let detail = "it told something else than its GPU".to_owned();
            return Err(Error::Stopped(Cause::Mismatch { rank, detail, ranks: Vec::new() }));
        };
        let uuid = Uuid(*uuid);
        in_process += usize::from(uuid == own && theirs == words[1].as_slice());
        gpus.push((uuid, u64::from_le_bytes(*resident) as usize));
    }
    let ranks_on = |gpu: Uuid| gpus.iter().filter(|(other, _)| *other == gpu).count();
    for &(gpu, resident) in &gpus {
        let ranks = ranks_on(gpu);
        if ranks.saturating_mul(channels) > resident {
            return Err(CudaError::TooManyBlocks { gpu, ranks, channels, resident }.into());
        }
    }
    if bootstrap.reach() == Reach::SameProcess {
        // Memory that other libraries allocated is used under its own address.
        let others = gpus.iter().filter(|(other, _)| *other != own);
        others.map(|(other, _)| *other).try_for_each(|other| context.reach_plain_memory(other))?;
    }
    let whole = gpus.iter().map(|(gpu, _)| context.device().stores_lines_at_peer(*gpu));
    let whole = whole.collect::<Result<Vec<bool>, _>>()?.into_iter().all(|whole| whole);
    let told = [u8::from(whole), u8::from(multicast::is_supported(context.device())?)];
    let all = bootstrap.all_gather(&told, deadline)?;
    let all_say = |at: usize| all.iter().all(|told| told.get(at) == Some(&1));
    let ll128 = all_say(0);
    let alone = gpus.iter().all(|(gpu, _)| ranks_on(*gpu) == 1);
    // Nodes are alike, of consecutive ranks.
    let nodes = bootstrap.nodes();
    let local = nodes.ranks_per_block();
    let alike = local > 1 && local * nodes.count() == nodes.world();
    let switched = (all_say(1) && alone && alike).then_some(local);
    let mut beside = nodes.beside(bootstrap.rank());
    let elsewhere = beside.any(|rank| gpus[rank].0 != own);
    Ok(Neighbours { resident, sharing: ranks_on(own), in_process, elsewhere, ll128, switched })
}

/// What tells this process from others that have ranks.
fn own_process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    let number = NUMBER.get_or_init(|| RandomState::new().build_hasher().finish());
    // A forked one has the same number.
    number ^ u64::from(std::process::id())
}
