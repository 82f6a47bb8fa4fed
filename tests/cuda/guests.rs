//! User kernels, over `oxccl/device.h`: the example, one that does whatever the header has, and
//! what becomes of kernels that wait when the communicator ends. By the emulator; on hardware, as
//! PTX of `OXCCL_TEST_GUESTS`, a folder that the GPU bundle has.

use crate::calls::stream;
use crate::common::Rng;
use crate::processes::{die, is_local, line_up, on_hardware};
use clap::Parser;
use oxccl::cuda::{
    CaptureMode, DeviceCommunicator, DeviceParameter, DeviceShape, DoneWords, Graph, ReadyWord,
    Stream,
};
use oxccl::{Collectives, Communicator, DeviceBuffer, Error, ReduceOp, Unready};
use oxccl_cuda_stand_in::control::Control;
use oxccl_transports::cuda::{DeviceMemory, sys};
use oxccl_transports::cuda_call as call;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::time::{Duration, Instant};

const SHAPE: DeviceShape = DeviceShape { blocks: 3, lines: 4 };
const BLOCK_THREADS: u32 = 512;

/// A kernel of the emulator's guests.
struct Kernel {
    module: sys::CUmodule,
    function: sys::CUfunction,
    stream: Stream,
}

/// The image of the kernel that has its file's name.
fn image(name: &str) -> CString {
    image_of(name, name)
}

/// The image of a file's kernels: what the stand-in takes for one, by the name of one of them, or
/// PTX.
fn image_of(name: &str, kernel: &str) -> CString {
    let text = match std::env::var_os("OXCCL_TEST_GUESTS") {
        Some(folder) if on_hardware() => {
            std::fs::read_to_string(Path::new(&folder).join(format!("{name}.ptx"))).unwrap()
        }
        _ => format!(".version {kernel} "),
    };
    CString::new(text).unwrap()
}

/// Whether there are kernels to run.
fn has_kernels() -> bool {
    let has = !on_hardware() || std::env::var_os("OXCCL_TEST_GUESTS").is_some();
    if !has {
        eprintln!("skipped: there are no user kernels (OXCCL_TEST_GUESTS)");
    }
    has
}

impl Kernel {
    fn load(stream: Stream, name: &str) -> Kernel {
        let (text, entry) = (image(name), CString::new(name).unwrap());
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let loaded = stream.context().scope(|| {
            // SAFETY: the driver is loaded, the context current, and the texts end with zeros.
            unsafe {
                call!(cuModuleLoadData(&raw mut module, text.as_ptr().cast()))?;
                call!(cuModuleGetFunction(&raw mut function, module, entry.as_ptr()))
            }
        });
        loaded.unwrap();
        Kernel { module, function, stream }
    }

    fn launch<T: Copy>(&self, arguments: &T, blocks: u32) {
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        let (raw, none) = (self.stream.raw(), std::ptr::null_mut());
        let launched = self.stream.context().scope(|| {
            // SAFETY: the kernel has this one parameter, and what it leads to lives until the
            // stream has been waited for.
            unsafe {
                call!(cuLaunchKernel(
                    self.function,
                    blocks,
                    1,
                    1,
                    BLOCK_THREADS,
                    1,
                    1,
                    0,
                    raw,
                    parameters.as_mut_ptr(),
                    none,
                ))
            }
        });
        launched.unwrap();
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: loaded by this object, and nothing of it runs any more.
        let unloaded =
            self.stream.context().scope(|| unsafe { call!(cuModuleUnload(self.module)) });
        unloaded.unwrap();
    }
}

fn connect(comm: &Communicator) -> DeviceCommunicator {
    comm.device_communicator(SHAPE).unwrap()
}

/// `EverythingArguments` of `tests/cuda_stand_in/emulator/guests/everything.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Everything {
    comm: DeviceParameter,
    inbox: *mut u8,
    results: *mut u8,
    times: u32,
    seed: u32,
}

/// Memory of this GPU, of 64-bit words.
struct Words {
    memory: DeviceMemory,
    len: usize,
}

impl Words {
    fn new(comm: &Communicator, len: usize) -> Words {
        let memory = DeviceMemory::allocate(&comm.context().unwrap(), len * 8).unwrap();
        Words { memory, len }
    }

    fn read(&self) -> Vec<u64> {
        let mut bytes = vec![0; self.len * 8];
        let at = self.memory.as_ptr();
        // SAFETY: as long, and no kernel runs.
        unsafe { oxccl_transports::cuda::copy_out(self.memory.context(), &mut bytes, at) }.unwrap();
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

/// An inbox, and room for the results of so many times.
fn room(comm: &Communicator, times: usize) -> (DeviceBuffer<u32>, Words) {
    let inbox = comm.alloc::<u32>(SHAPE.blocks * comm.world_size() * 512).unwrap();
    (inbox, Words::new(comm, SHAPE.blocks * times * 3))
}

/// All of it once.
fn once(device: &DeviceCommunicator, inbox: &DeviceBuffer<u32>, results: &Words) -> Everything {
    let (inbox, results) = (inbox.as_ptr().cast(), results.memory.as_ptr());
    Everything { comm: device.parameter(), inbox, results, times: 1, seed: 5 }
}

/// Peers' memory, barriers, notices and lines, in several launches, beside calls of the host's.
pub(crate) fn everything(comm: Communicator) {
    if !has_kernels() {
        return;
    }
    const TIMES: usize = 5;
    let (rank, n) = (comm.rank(), comm.world_size());
    let (device, kernel) = (connect(&comm), Kernel::load(stream(&comm), "everything"));
    let (inbox, results) = room(&comm, TIMES);
    // Peers write there: it has been cleared before.
    comm.barrier().unwrap();
    for seed in [3u32, 17, 2_000_000_011] {
        let arguments = Everything {
            comm: device.parameter(),
            inbox: inbox.as_ptr().cast(),
            results: results.memory.as_ptr(),
            times: TIMES as u32,
            seed,
        };
        kernel.launch(&arguments, SHAPE.blocks as u32);
        kernel.stream.synchronize().unwrap();
        let found = results.read();
        for (block, of_block) in found.chunks_exact(TIMES * 3).enumerate() {
            for (time, found) in of_block.chunks_exact(3).enumerate() {
                let own = |rank: usize| {
                    let own = (rank * 1009 + time * 31 + block) as u32;
                    own.wrapping_add(seed.wrapping_mul(7919))
                };
                let all = || (0..n).map(own);
                let words =
                    |of: u32| (0..512u32).map(|at| u64::from(of.wrapping_add(at))).sum::<u64>();
                assert_eq!(found[0], all().map(words).sum::<u64>());
                // What has come to this rank: of the first one, all the way around.
                let until = if rank == 0 { n } else { rank };
                let passed = (1..until).fold(u64::from(own(0)), |sum, of| {
                    sum.wrapping_mul(3).wrapping_add(u64::from(own(of)))
                });
                assert_eq!(found[1], passed, "rank {rank}, block {block}, time {time}");
                let line = |of: u32| (u64::from(of) << 33) | u64::from(of);
                assert_eq!(found[2], all().map(line).fold(0, u64::wrapping_add));
            }
        }
        // Calls of the host's have connections of their own.
        let mut sum = comm.alloc::<f32>(1_000).unwrap();
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
    }
    assert!(!device.has_stopped());
    comm.barrier().unwrap();
}

/// `MatmulArguments` of `examples/device/matmul_reduce_scatter.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Matmul {
    comm: DeviceParameter,
    a: *mut f32,
    b: *mut f32,
    inbox: *mut f32,
    output: *mut f32,
    m: u32,
    n: u32,
    k: u32,
    blocks: u32,
}

fn filled(comm: &Communicator, values: &[f32]) -> DeviceBuffer<f32> {
    let mut buffer = comm.alloc(values.len()).unwrap();
    buffer.write(values).unwrap();
    buffer
}

/// The example: products beside sums in 64 bits, of odd shapes too, one behind the other, and the
/// same bits as a product and a reduce-scatter that keeps the order of the ranks.
pub(crate) fn matmul(comm: Communicator) {
    if !has_kernels() {
        return;
    }
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let (device, kernel) = (connect(&comm), Kernel::load(stream(&comm), "matmul_reduce_scatter"));
    let mut rng = Rng(9);
    for (rows, n, k) in [(16, 32, 16), (33, 70, 19), (1, 1, 1), (20, 100, 40)] {
        let m = rows * ranks;
        // All ranks draw all parts.
        let mut part = |len: usize| -> Vec<Vec<f32>> {
            let mut value = || (rng.next() % 2001) as f32 / 1000.0 - 1.0;
            (0..ranks).map(|_| (0..len).map(|_| value()).collect()).collect()
        };
        let (a, b) = (part(m * k), part(k * n));
        let (own_a, own_b) = (filled(&comm, &a[rank]), filled(&comm, &b[rank]));
        let inbox = comm.alloc::<f32>(m * n).unwrap();
        let output = filled(&comm, &vec![f32::NAN; rows * n]);
        comm.barrier().unwrap();
        let arguments = Matmul {
            comm: device.parameter(),
            a: own_a.as_ptr(),
            b: own_b.as_ptr(),
            inbox: inbox.as_ptr(),
            output: output.as_ptr(),
            m: m as u32,
            n: n as u32,
            k: k as u32,
            blocks: SHAPE.blocks as u32,
        };
        let launches = if rows == 20 { 3 } else { 1 };
        (0..launches).for_each(|_| kernel.launch(&arguments, SHAPE.blocks as u32));
        kernel.stream.synchronize().unwrap();
        let mut found = vec![0.0; rows * n];
        output.read(&mut found).unwrap();
        for (at, found) in found.iter().enumerate() {
            let (row, column) = (rank * rows + at / n, at % n);
            let term = |of: usize, i: usize| {
                f64::from(a[of][row * k + i]) * f64::from(b[of][i * n + column])
            };
            let exact: f64 = (0..ranks)
                .flat_map(|of| (0..k).map(move |i| (of, i)))
                .map(|(of, i)| term(of, i))
                .sum();
            assert!((f64::from(*found) - exact).abs() < 1e-4, "{found} {exact}");
            let product = |of: usize| {
                (0..k).fold(0.0f32, |sum, i| sum + a[of][row * k + i] * b[of][i * n + column])
            };
            let in_order = (1..ranks).fold(product(0), |sum, of| sum + product(of));
            assert_eq!(found.to_bits(), in_order.to_bits());
        }
        comm.barrier().unwrap();
    }
}

/// A kernel can be replayed: its connections go on where they were.
pub(crate) fn captured(comm: Communicator) {
    if !has_kernels() {
        return;
    }
    let (device, kernel) = (connect(&comm), Kernel::load(stream(&comm), "everything"));
    let (inbox, results) = room(&comm, 1);
    let arguments = once(&device, &inbox, &results);
    let graph = Graph::capture(&kernel.stream, CaptureMode::ThreadLocal, || {
        kernel.launch(&arguments, SHAPE.blocks as u32);
        Ok::<(), Error>(())
    });
    let graph = graph.unwrap();
    // Of all ranks, what peers write has been cleared.
    comm.barrier().unwrap();
    if is_local() {
        line_up();
    }
    let mut before = None;
    for _ in 0..3 {
        // SAFETY: all that it uses lives.
        unsafe { graph.launch(&kernel.stream) }.unwrap();
        kernel.stream.synchronize().unwrap();
        let found = results.read();
        assert_eq!(*before.get_or_insert(found.clone()), found);
    }
    comm.barrier().unwrap();
}

/// `GradientsArguments` of `tests/cuda_stand_in/emulator/guests/gradients.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Gradients {
    comm: DeviceParameter,
    buckets: [OfBucket; 2],
    len: u32,
    base: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct OfBucket {
    values: *mut u32,
    doubled: *mut u32,
    ready: ReadyWord,
    done: DoneWords,
}

/// A kernel computes buckets of a group that is under way, marks them ready, and goes on with what
/// was reduced. With `comes`: rank 1 marks its own, too.
pub(crate) fn gradients_with(comm: &Communicator, comes: bool) -> Result<(), Error> {
    const LEN: usize = 3_000;
    let (rank, n) = (comm.rank() as u32, comm.world_size() as u32);
    let (device, kernel) = (connect(comm), Kernel::load(stream(comm), "gradients"));
    let of_group = stream(comm);
    let mut values = [(); 2].map(|()| comm.alloc::<u32>(LEN).unwrap());
    let doubled = [(); 2].map(|()| comm.alloc::<u32>(LEN).unwrap());
    for round in 0..3 {
        let [one, two] = &mut values;
        let addresses = [one.as_ptr(), two.as_ptr()];
        let [mut one, mut two] = [one, two].map(Unready::new);
        let (work, _) = comm.on(&of_group).group(|group| {
            group.all_reduce_in_place(&mut one, ReduceOp::Sum)?;
            group.all_reduce_in_place(&mut two, ReduceOp::Max)
        })?;
        let ready = [one, two].map(|bucket| bucket.ready_in_kernel().unwrap());
        if !comes && rank == 1 {
            return work.wait();
        }
        let of_bucket = |at: usize| OfBucket {
            values: addresses[at],
            doubled: doubled[at].as_ptr(),
            ready: ready[at][0],
            done: work.bucket(at).unwrap().done_words().unwrap(),
        };
        let base = 1_000 * round;
        let buckets = [of_bucket(0), of_bucket(1)];
        let len = LEN as u32;
        kernel.launch(&Gradients { comm: device.parameter(), buckets, len, base }, 2);
        kernel.stream.synchronize().unwrap();
        assert_eq!(device.has_stopped(), !comes);
        work.wait()?;
        for at in 0..LEN as u32 {
            let own = |of: u32, bucket: u32| base + of + at * (1 + bucket);
            let sum: u32 = (0..n).map(|of| own(of, 0)).sum();
            let found = |of: &DeviceBuffer<u32>| {
                let mut all = vec![0; LEN];
                of.read(&mut all).unwrap();
                all[at as usize]
            };
            if at % 997 == 0 {
                assert_eq!(found(&doubled[0]), 2 * sum);
                assert_eq!(found(&doubled[1]), 2 * own(n - 1, 1));
            }
        }
    }
    Ok(())
}

pub(crate) fn gradients(comm: Communicator) {
    if !has_kernels() {
        return;
    }
    gradients_with(&comm, true).unwrap();
    assert!(comm.on(&stream(&comm)).barrier().unwrap().done_words().is_err(), "no bucket");
    comm.barrier().unwrap();
}

/// The example of a training step: three ways to the same bits, fails unless they are.
pub(crate) fn overlap(comm: Communicator) {
    if !has_kernels() {
        return;
    }
    let path = std::env::temp_dir().join(format!(
        "oxccl-overlap-{}-{}.ptx",
        std::process::id(),
        comm.rank()
    ));
    std::fs::write(&path, image_of("overlap", "overlap_gradient").as_bytes()).unwrap();
    let small = ["overlap", "--shrink", "96", "--capacity", "8000", "--steps", "2", "--batch", "3"];
    let kernels = ["--kernels", path.to_str().unwrap()];
    let options = crate::overlap::Options::parse_from(small.into_iter().chain(kernels));
    crate::overlap::report(&comm, &options).unwrap();
    std::fs::remove_file(&path).unwrap();
    comm.barrier().unwrap();
}

/// One whose buckets nobody marks: the kernels that wait for them end with the group.
pub(crate) fn never_ready(mut comm: Communicator) {
    if !has_kernels() {
        return;
    }
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_millis(500)).unwrap();
    let error = gradients_with(&comm, false).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. } | Error::Stopped { .. }), "{error:?}");
}

/// A kernel that waits for one that does not come ends when somebody aborts.
pub(crate) fn aborted(comm: Communicator) {
    if !has_kernels() {
        return;
    }
    let (device, kernel) = (connect(&comm), Kernel::load(stream(&comm), "everything"));
    let (inbox, results) = room(&comm, 1);
    comm.barrier().unwrap();
    let handle = comm.handle();
    if comm.rank() == 0 {
        let arguments = once(&device, &inbox, &results);
        kernel.launch(&arguments, SHAPE.blocks as u32);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!kernel.stream.is_done().unwrap() && !device.has_stopped());
        handle.abort("it is enough").unwrap();
        kernel.stream.synchronize().unwrap();
        assert!(device.has_stopped());
    } else {
        while handle.error().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!device.has_stopped());
    }
    assert!(comm.barrier().unwrap_err().to_string().contains("it is enough"));
}

/// A rank dies while another one's kernel waits for it.
pub(crate) fn death(comm: Communicator) {
    if !has_kernels() {
        return;
    }
    let (device, kernel) = (connect(&comm), Kernel::load(stream(&comm), "everything"));
    let (inbox, results) = room(&comm, 1);
    let met = comm.barrier();
    if comm.rank() == 1 {
        met.unwrap();
        die();
    }
    let arguments = once(&device, &inbox, &results);
    let begin = Instant::now();
    kernel.launch(&arguments, SHAPE.blocks as u32);
    kernel.stream.synchronize().unwrap();
    assert!(device.has_stopped() && begin.elapsed() < Duration::from_secs(60));
    let error = comm.barrier().unwrap_err();
    assert_eq!(error.ranks(), [1], "{error:?}");
}

/// Ranks that ask for different shapes learn it.
pub(crate) fn differ(comm: Communicator) {
    let blocks = 1 + comm.rank();
    let error = comm.device_communicator(DeviceShape { blocks, ..SHAPE }).unwrap_err();
    match error {
        Error::Mismatch { argument: "blocks", rank, .. } => assert_eq!(rank, 1 - comm.rank()),
        Error::Stopped { .. } => {}
        other => panic!("{other:?}"),
    }
}

/// What cannot be is said before anything is asked of others.
pub(crate) fn refused(comm: Communicator) {
    if comm.nodes() > 1 {
        let error = comm.device_communicator(SHAPE).unwrap_err();
        assert!(error.to_string().contains("other nodes inside user kernels"), "{error}");
    } else {
        let error = comm.device_communicator(DeviceShape { blocks: 0, lines: 1 }).unwrap_err();
        assert!(matches!(error, Error::Config { variable: "blocks", .. }), "{error:?}");
        let host = Communicator::local(1).unwrap().pop().unwrap();
        let error = host.device_communicator(SHAPE).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        // Each time anew, and given back.
        let live = Control::attach().unwrap().live();
        for _ in 0..3 {
            drop(connect(&comm));
        }
        line_up();
        assert_eq!(Control::attach().unwrap().live(), live);
        line_up();
    }
    comm.barrier().unwrap();
}
