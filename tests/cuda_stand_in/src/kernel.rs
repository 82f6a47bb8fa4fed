//! Launches: the host executor, or the kernels' own source, a thread a block, on the block of
//! parameters that a GPU would get.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use cudarc::driver::sys::{
    CUdevice, CUfunction, CUlaunchAttributeID, CUlaunchConfig, CUlaunchMemSyncDomain, CUresult,
    CUstream,
};
use oxccl_kernels::HostExecutor;
use oxccl_kernels::format::{
    ChannelEntry, Connection, DataType, Doorbell, Fold, Header, Instruction, LANES, Launch,
    Multicast, Opcode, Progress, Segment, SlotTail, Status, StepRecord, StepRing, Window,
};
use oxccl_kernels::image::BLOCK_THREADS;

use crate::call::{Answer, driver_calls};
use crate::module::Function;
use crate::registry::lock;
use crate::settings::settings;
use crate::stream::{Operation, Stream};
use crate::{emulator, memory, module, multicast, order, profile};

/// A launch, as the call gave it.
pub(crate) struct Run {
    parameter: Parameter,
    function: Arc<Function>,
    blocks: u32,
    /// Dynamic shared memory of each.
    shared_bytes: u32,
    /// All blocks start together or none.
    cooperative: bool,
    device: CUdevice,
}

// SAFETY: the addresses in it are the device's; blocks use them as threads of a GPU would.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

impl Run {
    /// One of its blocks, for the emulator.
    fn block<'a>(
        &'a self,
        number: u32,
        parameter: *const c_void,
        launch: &order::Counted,
    ) -> emulator::Block<'a> {
        emulator::Block {
            kernel: &self.function.name,
            parameter,
            number,
            count: self.blocks,
            shared_bytes: self.shared_bytes,
            device: self.device as u32,
            launch: launch.0,
        }
    }
}

/// The one parameter of a kernel.
enum Parameter {
    /// Of our kernels.
    Launch(Box<Launch>),
    /// Of others, which only the emulator runs.
    Guest(Box<[u64]>),
}

/// Blocks that are on each device.
static RESIDENT: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static LEFT: Condvar = Condvar::new();

/// Launches of our kernels so far, captured ones once.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Those of them that were traced.
static TRACED: AtomicU64 = AtomicU64::new(0);

/// Those of them that were of hot kernels.
static HOT: AtomicU64 = AtomicU64::new(0);

/// Those of them that were in the memory-synchronisation domain for remote memory.
static REMOTE: AtomicU64 = AtomicU64::new(0);

/// Their blocks.
static BLOCKS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

pub(crate) fn traced() -> u64 {
    TRACED.load(Ordering::Relaxed)
}

pub(crate) fn hot() -> u64 {
    HOT.load(Ordering::Relaxed)
}

pub(crate) fn remote() -> u64 {
    REMOTE.load(Ordering::Relaxed)
}

pub(crate) fn blocks() -> u64 {
    BLOCKS.load(Ordering::Relaxed)
}

/// What a GPU does not have: a thread that waits lets others run.
const SPINS: u32 = 200;
const YIELDS: u32 = 50;

/// Runs all blocks to their ends, and tells when all are on the device.
pub(crate) fn run(run: &Run, mut started: impl FnMut()) -> Answer {
    let launch = match &run.parameter {
        Parameter::Launch(launch) => launch,
        Parameter::Guest(words) => {
            run_guest(run, words, started);
            return Ok(());
        }
    };
    check_all(launch, &run.function)?;
    let _listed = profile::list(&run.function.name, run.blocks);
    // What a switch would do.
    let members = multicast::members(launch)?;
    let table = members.as_ref().map_or(std::ptr::null(), |members| members.as_ptr());
    let multicast = Multicast { members: table, ..launch.multicast };
    let launch = Launch { spins: SPINS, yields: YIELDS, multicast, ..**launch };
    let executor = HostExecutor::detect();
    let shared = Shared(&launch);
    if run.cooperative {
        occupy(run.device, run.blocks);
    }
    let counted = order::launch();
    std::thread::scope(|scope| {
        for channel in 0..run.blocks {
            if !run.cooperative {
                occupy(run.device, 1);
            }
            let (shared, counted) = (&shared, &counted);
            scope.spawn(move || {
                // The host executor tells of its steps in another way.
                if settings().emulate || run.function.is_traced() {
                    let block = run.block(channel, std::ptr::from_ref(shared.0).cast(), counted);
                    // SAFETY: whoever launches vouches for the block; its tables are where a device
                    // reaches them.
                    unsafe { emulator::run(&block) };
                } else {
                    // SAFETY: as above.
                    unsafe { executor.execute(shared.0, channel) };
                }
                vacate(run.device);
            });
        }
        started();
    });
    Ok(())
}

/// The same of a kernel that is not ours.
fn run_guest(run: &Run, words: &[u64], mut started: impl FnMut()) {
    if run.cooperative {
        occupy(run.device, run.blocks);
    }
    let counted = order::launch();
    std::thread::scope(|scope| {
        for block in 0..run.blocks {
            if !run.cooperative {
                occupy(run.device, 1);
            }
            let counted = &counted;
            scope.spawn(move || {
                let block = run.block(block, words.as_ptr().cast(), counted);
                // SAFETY: whoever launches vouches for what the parameter leads to.
                unsafe { emulator::run(&block) };
                vacate(run.device);
            });
        }
        started();
    });
}

struct Shared<'a>(&'a Launch);
// SAFETY: the blocks only read it.
unsafe impl Sync for Shared<'_> {}

/// Fails unless a device reaches these bytes.
fn reach<T>(what: &str, at: *const T, len: usize) -> Answer {
    if memory::is_reachable(at as usize, len.max(1)) {
        return Ok(());
    }
    eprintln!("stand-in: {what} of a launch at {at:p}, {len} bytes, is not the device's");
    Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
}

/// Every launch block that the first leads to.
fn check_all(launch: &Launch, function: &Function) -> Answer {
    if launch.joined_channels == 0 {
        return check(launch, function);
    }
    let ranks = launch.ranks as usize;
    reach("the ranks' launch blocks", launch.next, ranks * size_of::<Launch>())?;
    // SAFETY: within the table just checked.
    (0..ranks).try_for_each(|rank| check(unsafe { &*launch.next.add(rank) }, function))
}

/// The tables and buffers must be where a device reaches them; for an address that is not, a GPU
/// stops. So must those of all parts behind the first, which this kernel must be able to run.
fn check(first: &Launch, function: &Function) -> Answer {
    let mut part = *first;
    check_program(first, function)?;
    if function.is_traced() {
        check_ring(first)?;
    }
    loop {
        check_program(&part, function)?;
        check_tables(&part)?;
        check_buffers(&part)?;
        if part.next.is_null() {
            return Ok(());
        }
        reach("a part", part.next, size_of::<Launch>())?;
        // SAFETY: reachable memory is mapped.
        let next = unsafe { part.next.read() };
        let Launch { statuses, call, ready, done, ended, arrived, launched, .. } = *first;
        part = Launch { statuses, call, ready, done, ended, arrived, launched, ..next };
    }
}

fn check_program(launch: &Launch, function: &Function) -> Answer {
    reach("the program", launch.program, size_of::<Header>())?;
    // SAFETY: reachable memory is mapped.
    let program = unsafe { &*launch.program };
    reach("the program", launch.program, program.len_bytes as usize)?;
    let found = |types: &[DataType], folds: &[Fold]| {
        let data_type = types.iter().find(|data_type| **data_type as u8 == program.data_type)?;
        Some((*data_type, *folds.iter().find(|fold| **fold as u8 == program.fold)?))
    };
    let runs = found(&DataType::ALL, &Fold::ALL)
        .is_some_and(|(data_type, fold)| !reduces(program) || function.reduces(data_type, fold));
    if runs {
        return Ok(());
    }
    let (data_type, fold) = (program.data_type, program.fold);
    eprintln!("stand-in: {} does not reduce type {data_type} by {fold}", function.name);
    Err(CUresult::CUDA_ERROR_LAUNCH_FAILED)
}

/// The instructions of all channels of a program that has been checked.
fn instructions(program: &Header) -> impl Iterator<Item = Instruction> {
    let base = std::ptr::from_ref(program).cast::<u8>();
    let table = move |offset: u32| base.wrapping_add(offset as usize);
    let (channels, list) = (table(program.channels_offset), table(program.instructions_offset));
    let of_channel = move |channel: usize| {
        // SAFETY: within the program, as its header says.
        unsafe { channels.cast::<ChannelEntry>().add(channel).read() }
    };
    let entries = (0..program.channels as usize).map(of_channel);
    entries
        .flat_map(|entry| entry.first_instruction..entry.first_instruction + entry.instructions)
        .map(move |at| {
            // SAFETY: as above.
            unsafe { list.cast::<Instruction>().add(at as usize).read() }
        })
}

/// Whether a program does more than copy.
fn reduces(program: &Header) -> bool {
    let is_sum = |instruction: Instruction| {
        instruction.opcode == Opcode::ReduceCopy as u8 && instruction.sources > 1
    };
    program.scale != 0 || instructions(program).any(is_sum)
}

fn check_tables(launch: &Launch) -> Answer {
    // SAFETY: the program has been checked.
    let channels = launch.first_channel as usize + unsafe { (*launch.program).channels } as usize;
    let ranks = launch.ranks as usize;
    let connections = channels * ranks * LANES;
    reach("connections", launch.connections, connections * size_of::<Connection>())?;
    reach("windows", launch.windows, channels * ranks * size_of::<Window>())?;
    reach("progress", launch.progress, channels * size_of::<Progress>())?;
    reach("statuses", launch.statuses, channels * size_of::<Status>())?;
    reach("doorbells", launch.doorbells, channels * size_of::<Doorbell>())?;
    reach("the abort word", launch.abort, 4)?;
    if !launch.ended.is_null() {
        reach("the word of calls that have ended", launch.ended, 8)?;
        reach("the count of channels", launch.arrived, 4)?;
    }
    // There need be nothing behind those that the program does not use.
    // SAFETY: the program has been checked.
    let waits = instructions(unsafe { &*launch.program })
        .filter(|instruction| instruction.opcode != Opcode::ReduceCopy as u8);
    let used: BTreeSet<u32> = waits.map(|instruction| instruction.index).collect();
    for at in used {
        let connection = launch.connections.wrapping_add(at as usize);
        reach("a connection", connection, size_of::<Connection>())?;
        // SAFETY: reachable memory is mapped.
        let connection = unsafe { connection.read() };
        let slots = connection.slots as usize * connection.slot_stride_bytes as usize;
        if slots > 0 {
            reach("slots", connection.send_slots, slots)?;
            reach("slots", connection.recv_slots, slots)?;
        }
        for tails in [connection.send_tails, connection.recv_tails] {
            if !tails.is_null() {
                let tails_bytes = connection.slots as usize * size_of::<SlotTail>();
                reach("tails", tails, tails_bytes)?;
            }
        }
        for counter in [connection.send_head, connection.recv_head, connection.doorbell.cast()] {
            reach("a counter", counter, 8)?;
        }
    }
    Ok(())
}

fn check_ring(launch: &Launch) -> Answer {
    let at = launch.poll_context.cast::<StepRing>();
    reach("the ring of steps", at, size_of::<StepRing>())?;
    // SAFETY: reachable memory is mapped.
    let (ring, channels) = unsafe { (at.read(), (*launch.program).channels as usize) };
    let records_bytes = channels * ring.capacity as usize * size_of::<StepRecord>();
    reach("records of steps", ring.records, records_bytes)?;
    reach("counts of steps", ring.counts, channels * size_of::<u64>())
}

fn check_buffers(launch: &Launch) -> Answer {
    // One of no bytes may lie where an allocation ends: nobody follows its address.
    let buffer = |at: *const u8, len: usize| match at.is_null() || len == 0 {
        true => Ok(()),
        false => reach("a buffer", at, len),
    };
    // How long these are is not said here.
    for at in [launch.input, launch.output.cast_const()] {
        let is_end = memory::is_reachable((at as usize).wrapping_sub(1), 1);
        buffer(at, usize::from(!is_end))?;
    }
    let count = launch.segments_count as usize;
    let mut buckets = vec![launch.bucket];
    if !launch.segments.is_null() {
        reach("segments", launch.segments, count * size_of::<Segment>())?;
        // SAFETY: reachable memory is mapped.
        let segments = unsafe { std::slice::from_raw_parts(launch.segments, count) };
        for segment in segments {
            buffer(segment.input, segment.len_bytes as usize)?;
            buffer(segment.output, segment.len_bytes as usize)?;
        }
        buckets = segments.iter().map(|segment| segment.bucket).collect();
    }
    for bucket in buckets.into_iter().map(|bucket| bucket as usize) {
        if !launch.ready.is_null() {
            reach("a ready word", launch.ready.wrapping_add(bucket), 8)?;
        }
        if !launch.done.is_null() {
            let stride = launch.done_stride as usize;
            reach("done words", launch.done.wrapping_add(bucket * stride), stride * 8)?;
        }
    }
    Ok(())
}

fn occupy(device: CUdevice, blocks: u32) {
    let most = settings().multiprocessors as u32;
    let mut resident = lock(&RESIDENT);
    resident.resize(settings().devices, 0);
    while resident[device as usize] + blocks > most {
        resident = LEFT.wait(resident).unwrap_or_else(|broken| broken.into_inner());
    }
    resident[device as usize] += blocks;
}

fn vacate(device: CUdevice) {
    lock(&RESIDENT)[device as usize] -= 1;
    LEFT.notify_all();
}

/// # Safety
/// So many bytes are there, whole words.
unsafe fn words(at: *const c_void, len_bytes: usize) -> Box<[u64]> {
    let mut words = vec![0; len_bytes.div_ceil(size_of::<u64>())].into_boxed_slice();
    // SAFETY: by this function's contract; the words are as long.
    unsafe { words.as_mut_ptr().cast::<u8>().copy_from(at.cast(), len_bytes) };
    words
}

/// # Safety
/// As for `cuLaunchKernel`: one parameter, a launch block, or that of a guest's kernel.
unsafe fn launch(
    function: CUfunction,
    [grid, block]: [[u32; 3]; 2],
    shared_bytes: u32,
    stream: CUstream,
    parameters: *mut *mut c_void,
    cooperative: bool,
) -> Answer {
    let function = module::find(function)?;
    let stream = Stream::find(stream)?;
    if function.context != stream.context_handle {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    if function.is_empty() {
        return stream.push(Operation::Nothing);
    }
    let shaped = grid[1..] == [1, 1] && grid[0] > 0 && block == [BLOCK_THREADS, 1, 1];
    if !shaped || parameters.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if cooperative && grid[0] as usize > settings().multiprocessors {
        return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    let parameter = match emulator::guest(&function.name) {
        // SAFETY: by this function's contract, of a guest's parameter.
        Some(len_bytes) => Parameter::Guest(unsafe { words(*parameters, len_bytes) }),
        // SAFETY: by this function's contract.
        None => Parameter::Launch(Box::new(unsafe { (*parameters).cast::<Launch>().read() })),
    };
    let (blocks, device) = (grid[0], stream.context.device);
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    TRACED.fetch_add(u64::from(function.is_traced()), Ordering::Relaxed);
    HOT.fetch_add(u64::from(function.is_hot()), Ordering::Relaxed);
    BLOCKS.fetch_add(u64::from(blocks), Ordering::Relaxed);
    stream.push(Operation::Kernel(Arc::new(Run {
        parameter,
        function,
        blocks,
        shared_bytes,
        cooperative,
        device,
    })))
}

driver_calls! {
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: CUstream,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, [grid, block], shared_bytes, stream, parameters, false)
    }

    fn cuLaunchCooperativeKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: CUstream,
        parameters: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, [grid, block], shared_bytes, stream, parameters, true)
    }

    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) {
        let config = &*config;
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
        let attributes = std::slice::from_raw_parts(config.attrs, config.numAttrs as usize);
        let (mut cooperative, mut remote) = (false, false);
        for attribute in attributes {
            match attribute.id {
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                    cooperative = attribute.value.cooperative != 0;
                }
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
                    if settings().capability >= 90 =>
                {
                    let domain = CUlaunchMemSyncDomain::CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
                    remote = attribute.value.memSyncDomain == domain;
                }
                _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            }
        }
        REMOTE.fetch_add(u64::from(remote), Ordering::Relaxed);
        launch(function, [grid, block], config.sharedMemBytes, config.hStream, parameters, cooperative)
    }
}
