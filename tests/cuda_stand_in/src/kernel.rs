//! Launches: the host executor, a thread a block, on the block of parameters that a GPU would get.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use cudarc::driver::sys::{CUdevice, CUfunction, CUlaunchConfig, CUresult, CUstream};
use oxccl_kernels::HostExecutor;
use oxccl_kernels::format::{Connection, Doorbell, LANES, Launch, Progress, Status, Window};
use oxccl_kernels::image::BLOCK_THREADS;

use crate::call::{Answer, driver_calls};
use crate::registry::lock;
use crate::settings::settings;
use crate::stream::{Operation, Stream};
use crate::{memory, module};

/// A launch, as the call gave it.
pub(crate) struct Run {
    launch: Launch,
    blocks: u32,
    /// All blocks start together or none.
    cooperative: bool,
    device: CUdevice,
}

// SAFETY: the addresses in it are the device's; blocks use them as threads of a GPU would.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

/// Blocks that are on each device.
static RESIDENT: Mutex<Vec<u32>> = Mutex::new(Vec::new());
static LEFT: Condvar = Condvar::new();

/// Launches of our kernels so far, captured ones once.
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// What a GPU does not have: a thread that waits lets others run.
const SPINS: u32 = 200;
const YIELDS: u32 = 50;

/// Runs all blocks to their ends, and tells when all are on the device.
pub(crate) fn run(run: &Run, mut started: impl FnMut()) -> Answer {
    check_all(&run.launch)?;
    let launch = Launch { spins: SPINS, yields: YIELDS, ..run.launch };
    let executor = HostExecutor::detect();
    let shared = Shared(&launch);
    if run.cooperative {
        occupy(run.device, run.blocks);
    }
    std::thread::scope(|scope| {
        for channel in 0..run.blocks {
            if !run.cooperative {
                occupy(run.device, 1);
            }
            let shared = &shared;
            scope.spawn(move || {
                // SAFETY: whoever launches vouches for the block; its tables are where a device reaches them.
                unsafe { executor.execute(shared.0, channel) };
                vacate(run.device);
            });
        }
        started();
    });
    Ok(())
}

struct Shared<'a>(&'a Launch);
// SAFETY: the blocks only read it.
unsafe impl Sync for Shared<'_> {}

/// The tables and buffers must be where a device reaches them; for an address that is not, a GPU stops.
fn reach(what: &str, at: *const c_void, len: usize) -> Answer {
    if memory::is_reachable(at as usize, len.max(1)) {
        return Ok(());
    }
    eprintln!("stand-in: {what} of a launch at {at:p}, {len} bytes, is not the device's");
    Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
}

/// Every launch block that the first leads to.
fn check_all(launch: &Launch) -> Answer {
    if launch.joined_channels == 0 {
        return check(launch);
    }
    let ranks = launch.ranks as usize;
    reach("the ranks' launch blocks", launch.next.cast(), ranks * size_of::<Launch>())?;
    // SAFETY: within the table just checked.
    (0..ranks).try_for_each(|rank| check(unsafe { &*launch.next.add(rank) }))
}

fn check(launch: &Launch) -> Answer {
    let header = size_of::<oxccl_kernels::format::Header>();
    reach("the program", launch.program.cast(), header)?;
    // SAFETY: reachable memory is mapped.
    let program = unsafe { &*launch.program };
    reach("the program", launch.program.cast(), program.len_bytes as usize)?;
    let (channels, ranks) = (program.channels as usize, launch.ranks as usize);
    let connections = channels * ranks * LANES;
    reach("connections", launch.connections.cast(), connections * size_of::<Connection>())?;
    reach("windows", launch.windows.cast(), channels * ranks * size_of::<Window>())?;
    reach("progress", launch.progress.cast(), channels * size_of::<Progress>())?;
    reach("statuses", launch.statuses.cast(), channels * size_of::<Status>())?;
    reach("doorbells", launch.doorbells.cast(), channels * size_of::<Doorbell>())?;
    reach("the abort word", launch.abort.cast(), 4)?;
    for buffer in [launch.input, launch.output.cast_const()] {
        if !buffer.is_null() {
            reach("a buffer", buffer.cast(), 1)?;
        }
    }
    for at in 0..connections {
        // SAFETY: within the table just checked.
        let connection = unsafe { launch.connections.add(at).read() };
        let slots = connection.slots as usize * connection.slot_stride_bytes as usize;
        if slots > 0 {
            reach("slots", connection.send_slots.cast(), slots)?;
            reach("slots", connection.recv_slots.cast(), slots)?;
        }
        for counter in [connection.send_head, connection.recv_head, connection.doorbell.cast()] {
            reach("a counter", counter.cast(), 8)?;
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
/// As for `cuLaunchKernel`: one parameter, a launch block.
unsafe fn launch(
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    stream: CUstream,
    parameters: *mut *mut c_void,
    cooperative: bool,
) -> Answer {
    let function = module::find(function)?;
    let stream = Stream::find(stream)?;
    if function.context != stream.context_handle {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    if function.is_empty {
        return stream.push(Operation::Nothing);
    }
    let shaped = grid[1..] == [1, 1] && grid[0] > 0 && block == [BLOCK_THREADS, 1, 1];
    if !shaped || parameters.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if cooperative && grid[0] as usize > settings().multiprocessors {
        return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    // SAFETY: by this function's contract.
    let launch = unsafe { (*parameters).cast::<Launch>().read() };
    let (blocks, device) = (grid[0], stream.context.device);
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    stream.push(Operation::Kernel(Arc::new(Run { launch, blocks, cooperative, device })))
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
        _shared_bytes: u32,
        stream: CUstream,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, grid, block, stream, parameters, false)
    }

    fn cuLaunchCooperativeKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        _shared_bytes: u32,
        stream: CUstream,
        parameters: *mut *mut c_void,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, grid, block, stream, parameters, true)
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
        let cooperative = (0..config.numAttrs as usize).any(|at| {
            let attribute = &*config.attrs.add(at);
            attribute.id == cudarc::driver::sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE
                && attribute.value.cooperative != 0
        });
        launch(function, grid, block, config.hStream, parameters, cooperative)
    }
}
