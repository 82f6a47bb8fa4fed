//! Communicators: ranks that are threads of one process, and what they do when they meet.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;

use crate::answer::{
    Answer, Code, INVALID_ARGUMENT, INVALID_USAGE, Refused, SYSTEM_ERROR, answer, lock,
};
use crate::calls::{Batch, Kind, Step};
use crate::meeting::Meeting;
use crate::{memory, reduce};

/// `ncclUniqueId`.
#[repr(C)]
pub(crate) struct Id([c_char; 128]);

/// What a configuration begins with.
#[repr(C)]
struct ConfigStart {
    len_bytes: usize,
    magic: u32,
    version: u32,
}

const MAGIC: u32 = 0xcafe_beef;
/// Length of `ncclConfig_t` in release 2.30.
const CONFIG_BYTES: usize = 96;

/// All ranks of a communicator.
#[derive(Default)]
pub(crate) struct World {
    ranks: usize,
    meeting: Meeting,
    /// What each rank has brought to the meeting.
    steps: Mutex<BTreeMap<usize, Step>>,
}

/// What a `ncclComm_t` points to.
pub(crate) struct Comm {
    pub(crate) world: Arc<World>,
    pub(crate) rank: usize,
    /// What streams and graphs may still carry out.
    pub(crate) batches: Mutex<Vec<Arc<Batch>>>,
}

static WORLDS: Mutex<BTreeMap<[u8; 8], Arc<World>>> = Mutex::new(BTreeMap::new());

impl World {
    /// One rank's part in a step that all ranks take together.
    pub(crate) fn together(&self, rank: usize, step: &Step) {
        lock(&self.steps).insert(rank, *step);
        self.meet();
        let steps: Vec<Step> = lock(&self.steps).values().copied().collect();
        if steps.iter().any(|other| !other.matches(step)) {
            fail("ranks make different calls");
        }
        let output = output(&steps, rank, self.ranks);
        // Nobody writes while somebody reads: input and output may be one buffer.
        self.meet();
        if let Some(output) = output {
            // SAFETY: the stand-in driver's memory, of the length that the caller vouched for.
            unsafe {
                std::ptr::copy_nonoverlapping(output.as_ptr(), step.output as *mut u8, output.len())
            };
        }
        self.meet();
    }

    fn meet(&self) {
        if !self.meeting.wait(self.ranks) {
            fail("a rank does not come");
        }
    }
}

/// In a stream's thread there is nobody to give an error to.
fn fail(why: &str) -> ! {
    eprintln!("NCCL stand-in: {why}");
    std::process::exit(70)
}

/// What a rank's output becomes; none if it has none.
fn output(steps: &[Step], rank: usize, ranks: usize) -> Option<Vec<u8>> {
    let step = &steps[rank];
    let (len, data_type, op) = (step.len_bytes, step.data_type, step.op);
    let part = |from: usize, at: usize, len: usize| steps[from].read(at, len);
    let all =
        |at: usize, len: usize| (0..ranks).map(|from| part(from, at, len)).collect::<Vec<_>>();
    Some(match step.kind {
        Kind::AllReduce => reduce::reduce(data_type, op, &all(0, len)),
        Kind::ReduceScatter => reduce::reduce(data_type, op, &all(rank * len, len)),
        Kind::AllGather => all(0, len).concat(),
        Kind::AllToAll => all(rank * len, len).concat(),
        Kind::Broadcast => part(step.root, 0, len),
        Kind::Scatter => part(step.root, rank * len, len),
        Kind::Reduce | Kind::Gather if rank != step.root => return None,
        Kind::Reduce => reduce::reduce(data_type, op, &all(0, len)),
        Kind::Gather => all(0, len).concat(),
    })
}

/// The rank behind a handle.
///
/// # Safety
/// Null, or made by `ncclCommInitRankConfig`.
pub(crate) unsafe fn find<'a>(comm: *mut c_void) -> Result<&'a Comm, Refused> {
    // SAFETY: by this function's contract.
    unsafe { comm.cast::<Comm>().as_ref() }
        .ok_or(Refused(INVALID_ARGUMENT, "there is no communicator"))
}

/// As in NCCL.
///
/// # Safety
/// `id` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut Id) -> Code {
    static IDS: AtomicU64 = AtomicU64::new(1);
    answer("ncclGetUniqueId", || {
        let number = IDS.fetch_add(1, Ordering::Relaxed).to_ne_bytes();
        let mut new = [0; 128];
        new[..8].copy_from_slice(&number.map(|byte| byte as c_char));
        // SAFETY: by this function's contract.
        unsafe { id.write(Id(new)) };
        Ok(())
    })
}

/// As in NCCL.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    out: *mut *mut c_void,
    ranks: c_int,
    id: Id,
    rank: c_int,
    config: *const c_void,
) -> Code {
    answer("ncclCommInitRankConfig", || {
        // SAFETY: by this function's contract.
        check_config(unsafe { config.cast::<ConfigStart>().as_ref() })?;
        let several = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1");
        if ranks > 1 && !several {
            return Err(Refused(INVALID_USAGE, "Duplicate GPU detected: several ranks are on one"));
        }
        if !(0..ranks).contains(&rank) {
            return Err(Refused(INVALID_ARGUMENT, "there is no such rank"));
        }
        let mut key = [0; 8];
        key.copy_from_slice(&id.0[..8].iter().map(|byte| *byte as u8).collect::<Vec<_>>());
        let ranks = ranks as usize;
        let made = || Arc::new(World { ranks, ..World::default() });
        let world = lock(&WORLDS).entry(key).or_insert_with(made).clone();
        if !world.meeting.wait(ranks) {
            return Err(Refused(SYSTEM_ERROR, "a rank does not come"));
        }
        make_streams()?;
        let comm = Comm { world, rank: rank as usize, batches: Mutex::default() };
        // SAFETY: by this function's contract.
        unsafe { out.write(Box::into_raw(Box::new(comm)).cast()) };
        Ok(())
    })
}

/// Streams of a rank's communicator.
const STREAMS: usize = 2;

/// As NCCL's, a communicator has streams of its own. With `OXCCL_STAND_IN_STREAMS` a file gets a
/// line before the driver's lines of these.
fn make_streams() -> Answer {
    use std::io::Write;
    if let Ok(path) = std::env::var("OXCCL_STAND_IN_STREAMS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(b"nccl\n"));
        written.map_err(|_| Refused(SYSTEM_ERROR, "the list of streams cannot be written"))?;
    }
    for _ in 0..STREAMS {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the caller has a context, so the driver is loaded; the pointer is valid. As the
        // communicator, it stays.
        memory::driver(unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
    }
    Ok(())
}

fn check_config(config: Option<&ConfigStart>) -> Answer {
    match config {
        Some(config)
            if config.magic == MAGIC
                && config.len_bytes >= CONFIG_BYTES
                && config.version >= 23_000 =>
        {
            Ok(())
        }
        _ => Err(Refused(INVALID_ARGUMENT, "the configuration was not initialised")),
    }
}

/// As in NCCL; there is nothing to set up.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommWindowRegister(
    comm: *mut c_void,
    at: *mut c_void,
    len: usize,
    window: *mut *mut c_void,
    flags: c_int,
) -> Code {
    answer("ncclCommWindowRegister", || {
        // SAFETY: by this function's contract.
        let comm = unsafe { find(comm) }?;
        if flags != 1 || !len.is_multiple_of(4096) || !memory::holds(at as usize, len) {
            return Err(Refused(
                INVALID_ARGUMENT,
                "a symmetric window is on memory of ncclMemAlloc",
            ));
        }
        if !comm.world.meeting.wait(comm.world.ranks) {
            return Err(Refused(SYSTEM_ERROR, "a rank does not come"));
        }
        let none = std::env::var("OXCCL_NCCL_STAND_IN_NO_WINDOWS").is_ok_and(|value| value == "1");
        // SAFETY: by this function's contract.
        unsafe { window.write(if none { std::ptr::null_mut() } else { at }) };
        Ok(())
    })
}
