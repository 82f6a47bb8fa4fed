//! The machine's reduce-copy loop, by element type, against memcpy: two sources and one
//! destination, in one core's caches and in memory. Throughput counts the bytes of one operand.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use oxccl_kernels::{DataType, Fold, HostExecutor, Reduction, Scale};

/// In the second-level cache, in the last-level cache, in memory.
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 64 << 20];

/// Bytes whose elements are ordinary numbers in every type: no NaN, no infinity, no subnormal.
fn operand(len_bytes: usize) -> Vec<u64> {
    vec![0x3838_3838_3838_3838; len_bytes / 8]
}

fn reduce_copy(criterion: &mut Criterion) {
    let executor = HostExecutor::detect();
    println!("host executor {}", executor.isa().name());
    for len_bytes in SIZES {
        let (first, second) = (operand(len_bytes), operand(len_bytes));
        let mut result = operand(len_bytes);
        let mut group = criterion.benchmark_group(format!("{} KiB", len_bytes >> 10));
        group.throughput(Throughput::Bytes(len_bytes as u64)).sample_size(20);
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| result.copy_from_slice(std::hint::black_box(&first)));
        });
        group.bench_function("copy", |bencher| {
            let sources = [first.as_ptr().cast()];
            bencher.iter(|| run(&executor, DataType::U8, &sources, &mut result));
        });
        for data_type in DataType::ALL {
            let sources = [first.as_ptr().cast(), second.as_ptr().cast()];
            group.bench_function(BenchmarkId::new("sum", data_type.name()), |bencher| {
                bencher.iter(|| run(&executor, data_type, &sources, &mut result));
            });
        }
        group.finish();
    }
}

/// One pass over whole operands of equal length.
fn run(executor: &HostExecutor, data_type: DataType, sources: &[*const u8], result: &mut [u64]) {
    let reduction = Reduction {
        data_type,
        fold: Fold::Sum,
        scale: Scale::None,
        scale_bits: 0,
        ranks: sources.len() as u32,
        tree: false,
        finish: true,
        stream: false,
    };
    let len_bytes = std::mem::size_of_val(result);
    let destinations = [result.as_mut_ptr().cast()];
    // SAFETY: all operands are vectors of u64 with this many bytes, and the destination is none of
    // the sources.
    unsafe { executor.reduce(&reduction, sources, &destinations, len_bytes) };
}

criterion_group!(benches, reduce_copy);
criterion_main!(benches);
