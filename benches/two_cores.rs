//! What two cores can do with large buffers, by bare loops without any synchronisation but a
//! barrier around them: the bounds of an all-reduce and an all-to-all over 2 ranks, whose parts
//! each core has here. Of a copy, and of both, a core reads and writes as many bytes as the buffer
//! has; throughput counts these, once, of one core.
//!
//! "around" writes with streaming stores. Buffers are in huge pages where the machine has any, as
//! `comm.alloc`'s are.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memmap2::{Advice, MmapMut};
use oxccl_kernels::{DataType, Fold, HostExecutor, Reduction, Scale};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SIZES: [usize; 4] = [4 << 20, 8 << 20, 16 << 20, 32 << 20];

/// Two cores' inputs and outputs, of equal length.
struct Buffers {
    inputs: [MmapMut; 2],
    outputs: [MmapMut; 2],
}

/// The same as addresses: each core writes a part of its own.
#[derive(Clone, Copy)]
struct Addresses {
    inputs: [*const u8; 2],
    outputs: [*mut u8; 2],
    len_bytes: usize,
}

// SAFETY: what a core writes no other core reads or writes between two barriers.
unsafe impl Sync for Addresses {}

impl Buffers {
    fn new(len_bytes: usize) -> Buffers {
        let pages = |()| {
            let mut memory = MmapMut::map_anon(len_bytes).expect("memory");
            // Whether there are huge pages is up to the machine.
            drop(memory.advise(Advice::HugePage));
            // Ordinary numbers, so that every page exists.
            memory.fill(0x38);
            memory
        };
        Buffers { inputs: [(); 2].map(pages), outputs: [(); 2].map(pages) }
    }

    fn addresses(&mut self) -> Addresses {
        let len_bytes = self.inputs[0].len();
        let inputs = self.inputs.each_ref().map(|memory| memory.as_ptr());
        let outputs = self.outputs.each_mut().map(|memory| memory.as_mut_ptr());
        Addresses { inputs, outputs, len_bytes }
    }
}

/// One core's share of an operation, with streaming stores or not.
type Share = fn(&HostExecutor, usize, Addresses, bool);

/// The core's input into its output.
fn copy(executor: &HostExecutor, core: usize, at: Addresses, around: bool) {
    reduce(executor, &[at.inputs[core]], &[at.outputs[core]], at.len_bytes, around);
}

/// The core's half of both inputs, added, into both outputs.
fn all_reduce(executor: &HostExecutor, core: usize, at: Addresses, around: bool) {
    let half = at.len_bytes / 2;
    let inputs = at.inputs.map(|input| input.wrapping_add(core * half));
    let outputs = at.outputs.map(|output| output.wrapping_add(core * half));
    reduce(executor, &inputs, &outputs, half, around);
}

/// The core's half of both inputs into its output.
fn all_to_all(executor: &HostExecutor, core: usize, at: Addresses, around: bool) {
    let half = at.len_bytes / 2;
    for from in [core, 1 - core] {
        let input = at.inputs[from].wrapping_add(core * half);
        let output = at.outputs[core].wrapping_add(from * half);
        reduce(executor, &[input], &[output], half, around);
    }
}

/// Half of both inputs into the core's output.
fn all_gather(executor: &HostExecutor, core: usize, at: Addresses, around: bool) {
    let half = at.len_bytes / 2;
    for from in [core, 1 - core] {
        let output = at.outputs[core].wrapping_add(from * half);
        reduce(executor, &[at.inputs[from]], &[output], half, around);
    }
}

/// The same, of which each core writes what its own input is for.
fn all_gather_by_writing(executor: &HostExecutor, core: usize, at: Addresses, around: bool) {
    let half = at.len_bytes / 2;
    let outputs = at.outputs.map(|output| output.wrapping_add(core * half));
    reduce(executor, &[at.inputs[core]], &outputs, half, around);
}

fn reduce(
    executor: &HostExecutor,
    sources: &[*const u8],
    destinations: &[*mut u8],
    len_bytes: usize,
    stream: bool,
) {
    let reduction = Reduction {
        data_type: DataType::F32,
        fold: Fold::Sum,
        scale: Scale::None,
        scale_bits: 0,
        ranks: 2,
        tree: false,
        finish: true,
        stream,
    };
    // SAFETY: all lie in `Buffers`, and destinations overlap no other operand and nothing that the
    // other core uses.
    unsafe { executor.reduce(&reduction, sources, destinations, len_bytes) };
}

/// Both cores' shares, again and again, each time from a common beginning to the end of both.
fn time(
    executor: &HostExecutor,
    at: &Addresses,
    share: Share,
    around: bool,
    turns: u64,
) -> Duration {
    let reached = [const { AtomicU64::new(0) }; 2];
    let meet = |core: usize, point: u64| {
        reached[core].store(point, Ordering::Release);
        while reached[1 - core].load(Ordering::Acquire) < point {
            std::hint::spin_loop();
        }
    };
    let run = |core: usize| {
        meet(core, 1);
        let start = Instant::now();
        for turn in 0..turns {
            share(executor, core, *at, around);
            meet(core, turn + 2);
        }
        start.elapsed()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(1));
        run(0)
    })
}

fn two_cores(criterion: &mut Criterion) {
    let executor = HostExecutor::detect();
    println!("host executor {}", executor.isa().name());
    for len_bytes in SIZES {
        let mut buffers = Buffers::new(len_bytes);
        let at = buffers.addresses();
        let mut group = criterion.benchmark_group(format!("{} MiB", len_bytes >> 20));
        group.throughput(Throughput::Bytes(len_bytes as u64)).sample_size(20);
        let shares: [(&str, Share); 5] = [
            ("copy", copy),
            ("all-reduce", all_reduce),
            ("all-to-all", all_to_all),
            ("all-gather by reading", all_gather),
            ("all-gather by writing", all_gather_by_writing),
        ];
        for (name, share) in shares {
            for (way, around) in [("cached", false), ("around", true)] {
                group.bench_function(BenchmarkId::new(name, way), |bencher| {
                    bencher.iter_custom(|turns| time(&executor, &at, share, around, turns));
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, two_cores);
criterion_main!(benches);
