//! Collectives: put into streams as host functions, alone or as a group's.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUstream};

use crate::answer::{Answer, Code, INVALID_ARGUMENT, INVALID_USAGE, Refused, answer, lock};
use crate::memory::driver;
use crate::reduce;
use crate::world::{Comm, World, find};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
}

/// One call of one rank. `len_bytes` is that of what NCCL counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    input: usize,
    pub(crate) output: usize,
    pub(crate) len_bytes: usize,
    pub(crate) data_type: i32,
    pub(crate) op: i32,
    pub(crate) root: usize,
}

impl Step {
    /// Whether another rank makes the same call.
    pub(crate) fn matches(&self, other: &Step) -> bool {
        let told = |step: &Step| (step.kind, step.len_bytes, step.data_type, step.op, step.root);
        told(self) == told(other)
    }

    /// A part of the input.
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        // SAFETY: the stand-in driver's memory, of the length that the caller vouched for; nobody
        // writes it meanwhile.
        unsafe { std::slice::from_raw_parts((self.input + at) as *const u8, len) }.to_vec()
    }
}

/// What is carried out at one point of a stream.
pub(crate) struct Batch {
    world: Arc<World>,
    rank: usize,
    steps: Vec<Step>,
}

impl Batch {
    fn run(&self) {
        for step in &self.steps {
            self.world.together(self.rank, step);
        }
    }
}

/// A group that a thread has started: its depth, and what it has collected.
#[derive(Default)]
struct Group {
    depth: usize,
    steps: Vec<(*mut c_void, CUstream, Step)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

fn put(comm: *mut c_void, stream: CUstream, step: Step) -> Answer {
    // SAFETY: the caller of NCCL vouches for the handle.
    let found = unsafe { find(comm) }?;
    if GROUP.with_borrow_mut(|group| {
        let grouped = group.depth > 0;
        if grouped {
            group.steps.push((comm, stream, step));
        }
        grouped
    }) {
        return Ok(());
    }
    launch(found, stream, vec![step])
}

fn launch(comm: &Comm, stream: CUstream, steps: Vec<Step>) -> Answer {
    let batch = Arc::new(Batch { world: comm.world.clone(), rank: comm.rank, steps });
    let data = Arc::as_ptr(&batch).cast_mut().cast();
    // Graphs may carry it out again, as long as the communicator lives.
    lock(&comm.batches).push(batch);
    // SAFETY: the batch lives as long as the communicator.
    driver(unsafe { sys::cuLaunchHostFunc(stream, Some(run), data) })
}

/// # Safety
/// `data` is a batch.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: by this function's contract.
    unsafe { &*data.cast::<Batch>() }.run();
}

/// As in NCCL.
#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Code {
    answer("ncclGroupStart", || {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    })
}

/// As in NCCL.
#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Code {
    answer("ncclGroupEnd", || {
        let steps = GROUP.with_borrow_mut(|group| {
            group.depth =
                group.depth.checked_sub(1).ok_or(Refused(INVALID_USAGE, "no group has begun"))?;
            Ok(if group.depth == 0 { std::mem::take(&mut group.steps) } else { Vec::new() })
        })?;
        let Some((comm, stream, _)) = steps.first().copied() else { return Ok(()) };
        if steps.iter().any(|(other, on, _)| (*other, *on) != (comm, stream)) {
            return Err(Refused(INVALID_USAGE, "the stand-in groups calls of one stream"));
        }
        // SAFETY: the caller of NCCL vouches for the handle.
        launch(unsafe { find(comm) }?, stream, steps.into_iter().map(|(_, _, step)| step).collect())
    })
}

struct Arguments {
    kind: Kind,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    op: c_int,
    root: c_int,
}

fn call(function: &str, arguments: Arguments, comm: *mut c_void, stream: CUstream) -> Code {
    let Arguments { kind, input, output, count, data_type, op, root } = arguments;
    answer(function, || {
        let len_bytes = count * reduce::len_bytes(data_type)?;
        if matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce) {
            reduce::check(data_type, op)?;
        }
        let root = usize::try_from(root)
            .map_err(|_| Refused(INVALID_ARGUMENT, "there is no such rank"))?;
        let (input, output) = (input as usize, output as usize);
        put(comm, stream, Step { kind, input, output, len_bytes, data_type, op, root })
    })
}

/// Defines a collective: which of op and root it takes.
macro_rules! collectives {
    ($($name:ident = $kind:ident($($argument:ident),*);)*) => {$(
        /// As in NCCL.
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            input: *const c_void,
            output: *mut c_void,
            count: usize,
            data_type: c_int,
            $($argument: c_int,)*
            comm: *mut c_void,
            stream: CUstream,
        ) -> Code {
            let kind = Kind::$kind;
            #[allow(clippy::needless_update)]
            let arguments = Arguments {
                $($argument,)*
                ..Arguments { kind, input, output, count, data_type, op: 0, root: 0 }
            };
            call(stringify!($name), arguments, comm, stream)
        }
    )*};
}

collectives! {
    ncclAllReduce = AllReduce(op);
    ncclReduceScatter = ReduceScatter(op);
    ncclReduce = Reduce(op, root);
    ncclAllGather = AllGather();
    ncclAlltoAll = AllToAll();
    ncclBroadcast = Broadcast(root);
    ncclGather = Gather(root);
    ncclScatter = Scatter(root);
}
