//! The arithmetic: conversions, folds, scaling and order, against references written independently
//! and slowly, and every instruction set against the same.
#![allow(clippy::unwrap_used)]

mod reference;

use oxccl_kernels::{DataType, Fold, HostExecutor, Isa, Reduction, Scale};
use reference::{Random, Reference, small};

fn executors() -> Vec<HostExecutor> {
    let executors: Vec<_> = Isa::all().into_iter().filter_map(HostExecutor::for_isa).collect();
    assert!(executors.iter().any(|executor| executor.isa() == HostExecutor::detect().isa()));
    executors
}

const SMALL_FLOATS: [DataType; 4] =
    [DataType::F16, DataType::BF16, DataType::F8E4M3, DataType::F8E5M2];

#[test]
fn every_small_float_widens_exactly() {
    for data_type in SMALL_FLOATS {
        let size = data_type.len_bytes();
        let patterns: Vec<u32> = (0..1u32 << (8 * size)).collect();
        let bytes: Vec<u8> =
            patterns.iter().flat_map(|bits| bits.to_le_bytes()[..size].to_vec()).collect();
        for executor in executors() {
            let wide = executor.widen(data_type, &bytes);
            for (&bits, value) in patterns.iter().zip(wide) {
                let expected = small::widen(data_type, bits);
                let equal = expected.to_bits() == value.to_bits();
                assert!(
                    equal || (expected.is_nan() && value.is_nan()),
                    "{data_type:?} {bits:#x} is {expected}, not {value}, on {:?}",
                    executor.isa()
                );
            }
        }
    }
}

/// Patterns of f32 that show every rounding: all upper halves with the lower halves around a tie,
/// and random ones.
fn patterns() -> Vec<f32> {
    let lower = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff];
    let edges = (0..=0xffffu32).flat_map(|upper| lower.map(|lower| upper << 16 | lower));
    let mut random = Random::new(1);
    edges.chain((0..400_000).map(|_| random.next() as u32)).map(f32::from_bits).collect()
}

#[test]
fn every_rounding_is_to_nearest_even() {
    let values = patterns();
    for data_type in SMALL_FLOATS {
        let expected: Vec<u32> =
            values.iter().map(|&value| small::narrow(data_type, value)).collect();
        for executor in executors() {
            let narrow = executor.narrow(data_type, &values);
            let elements = narrow.chunks_exact(data_type.len_bytes()).map(small::bits);
            for ((value, expected), bits) in values.iter().zip(&expected).zip(elements) {
                assert_eq!(
                    bits,
                    *expected,
                    "{data_type:?} of {value:e} ({:#x}) on {:?}",
                    value.to_bits(),
                    executor.isa()
                );
            }
        }
    }
}

/// Buffers that start so many bytes behind a multiple of the alignment: at an odd element no vector
/// access is aligned.
struct Buffers {
    bytes: Vec<Vec<u8>>,
    align: usize,
    offset: usize,
    len_bytes: usize,
}

impl Buffers {
    fn new(number: usize, align: usize, offset: usize, len_bytes: usize) -> Buffers {
        let bytes = vec![vec![0xa5; 128 + len_bytes + 64]; number];
        Buffers { bytes, align, offset, len_bytes }
    }

    /// Wherever the allocator put it.
    fn start(&self, index: usize) -> usize {
        self.bytes[index].as_ptr().align_offset(self.align) + self.offset
    }

    fn part(&self, index: usize) -> &[u8] {
        &self.bytes[index][self.start(index)..][..self.len_bytes]
    }

    fn fill(&mut self, index: usize, contents: &[u8]) {
        let start = self.start(index);
        self.bytes[index][start..][..self.len_bytes].copy_from_slice(contents);
    }

    fn assert_untouched_around(&self, index: usize) {
        let (start, bytes) = (self.start(index), &self.bytes[index]);
        assert!(bytes[..start].iter().all(|&byte| byte == 0xa5), "bytes in front were written");
        assert!(bytes[start + self.len_bytes..].iter().all(|&byte| byte == 0xa5), "bytes behind");
    }
}

#[derive(Clone, Copy)]
struct Case {
    reduction: Reduction,
    sources: usize,
    destinations: usize,
    in_place: bool,
    count: usize,
    /// 64: all begin at the same place of a cache line.
    align: usize,
    offset: usize,
}

fn check(executors: &[HostExecutor], case: &Case, random: &mut Random) {
    let Case { reduction, sources, destinations, in_place, count, align, offset } = *case;
    let size = reduction.data_type.len_bytes();
    let inputs: Vec<Vec<u8>> =
        (0..sources).map(|_| random.elements(reduction.data_type, reduction.fold, count)).collect();
    let expected = Reference::new(&reduction).reduce(&inputs);
    for executor in executors {
        let mut from = Buffers::new(sources, align, offset * size, count * size);
        let mut to = Buffers::new(destinations, align, offset * size, count * size);
        inputs.iter().enumerate().for_each(|(index, input)| from.fill(index, input));
        let mut from_pointers: Vec<*const u8> = vec![];
        let mut to_pointers: Vec<*mut u8> = vec![];
        for index in 0..sources {
            let start = from.start(index);
            from_pointers.push(from.bytes[index].as_mut_ptr().wrapping_add(start));
        }
        for index in 0..destinations {
            let start = to.start(index);
            to_pointers.push(to.bytes[index].as_mut_ptr().wrapping_add(start));
        }
        if in_place {
            to_pointers[0] = from_pointers[sources - 1].cast_mut();
        }
        // SAFETY: the pointers lead to `count` elements each, aligned for the element.
        unsafe { executor.reduce(&reduction, &from_pointers, &to_pointers, count * size) };
        for index in 0..destinations {
            let moved = in_place && index == 0;
            let (buffers, index) = if moved { (&from, sources - 1) } else { (&to, index) };
            let context = || format!("{reduction:?}, {sources} sources, {:?}", executor.isa());
            Reference::assert_equal(reduction.data_type, buffers.part(index), &expected, context);
            buffers.assert_untouched_around(index);
        }
    }
}

fn check_all(data_type: DataType) {
    let executors = executors();
    let mut random = Random::new(data_type as u64 + 7);
    for fold in Fold::ALL.into_iter().filter(|&fold| data_type.has(fold)) {
        for scale in [Scale::None, Scale::Premultiply, Scale::Average] {
            for (sources, tree) in
                [(1, false), (2, false), (3, false), (3, true), (5, false), (5, true)]
                    .into_iter()
                    .chain([(8, false), (8, true), (13, true)])
            {
                for count in [1, 3, 17, 130, 1100] {
                    let turn = random.next() as usize;
                    let case = Case {
                        reduction: Reduction {
                            data_type,
                            fold,
                            scale,
                            scale_bits: random.factor(data_type),
                            ranks: [1, 2, 3, 7, 300][turn % 5],
                            tree,
                            finish: true,
                            stream: turn.is_multiple_of(3),
                        },
                        sources,
                        destinations: 1 + turn / 7 % 3,
                        in_place: (turn / 11).is_multiple_of(2),
                        count,
                        align: if (turn / 115).is_multiple_of(2) { 8 } else { 64 },
                        offset: turn / 23 % 5,
                    };
                    check(&executors, &case, &mut random);
                }
            }
        }
    }
}

macro_rules! reductions {
    ($($name:ident $data_type:ident),+) => {
        $(#[test]
        fn $name() {
            check_all(DataType::$data_type);
        })+
    };
}

reductions!(
    i8_reductions I8,
    u8_reductions U8,
    i32_reductions I32,
    u32_reductions U32,
    i64_reductions I64,
    u64_reductions U64,
    f16_reductions F16,
    bf16_reductions BF16,
    f32_reductions F32,
    f64_reductions F64,
    f8e4m3_reductions F8E4M3,
    f8e5m2_reductions F8E5M2
);

/// What two elements become: all pairs of 8 bits, and each of 16 bits with some that begin alike or
/// are edges.
#[test]
fn every_pair_folds_as_by_the_reference() {
    let executors = executors();
    let mut random = Random::new(5);
    let folds = [Fold::Sum, Fold::Prod, Fold::Min, Fold::Max];
    let edges = [0x0000u16, 0x8000, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0x7f80, 0xff80, 0x7fc0];
    let cases = SMALL_FLOATS.into_iter().flat_map(|t| folds.map(|fold| (t, fold)));
    for (data_type, fold) in cases {
        let pairs: Vec<(u16, u16)> = if data_type.len_bytes() == 1 {
            (0..=0xffff).map(|pair: u16| (pair >> 8, pair & 0xff)).collect()
        } else {
            let near = (0..8).map(|_| random.next() as u16 & 0x80ff).collect::<Vec<u16>>();
            (0..=0xffffu16)
                .flat_map(|a| near.iter().map(move |b| (a, a ^ b)))
                .chain((0..=0xffffu16).flat_map(|a| edges.map(|b| (a, b))))
                .collect()
        };
        let side = |of: fn(&(u16, u16)) -> u16| -> Vec<u8> {
            let bytes = |pair| of(pair).to_le_bytes()[..data_type.len_bytes()].to_vec();
            pairs.iter().flat_map(bytes).collect()
        };
        let inputs = [side(|pair| pair.0), side(|pair| pair.1)];
        let reduction = Reduction {
            data_type,
            fold,
            scale: Scale::None,
            scale_bits: 0,
            ranks: 2,
            tree: false,
            finish: true,
            stream: false,
        };
        let expected = Reference::new(&reduction).reduce(&inputs);
        for executor in &executors {
            let mut result = vec![0xa5u8; expected.len()];
            let (from, to) = (inputs.each_ref().map(|input| input.as_ptr()), result.as_mut_ptr());
            // SAFETY: all have as many bytes; allocations of this size are aligned for the element.
            unsafe { executor.reduce(&reduction, &from, &[to], expected.len()) };
            let context = || format!("{reduction:?}, {:?}", executor.isa());
            Reference::assert_equal(data_type, &result, &expected, context);
        }
    }
}

#[test]
fn many_sources() {
    let mut random = Random::new(3);
    for (sources, tree) in [(255, true), (256, true), (128, true), (257, false)] {
        for data_type in [DataType::F32, DataType::BF16, DataType::I8] {
            let reduction = Reduction {
                data_type,
                fold: Fold::Sum,
                scale: Scale::None,
                scale_bits: 0,
                ranks: 1,
                tree,
                finish: true,
                stream: false,
            };
            let case = Case {
                reduction,
                sources,
                destinations: 2,
                in_place: false,
                count: 700,
                align: 8,
                offset: 1,
            };
            check(&executors(), &case, &mut random);
        }
    }
}

/// What lets GPU kernels fold these from the left, whatever the order that is asked for
/// (machine/cuda/bulk.h).
#[test]
fn only_sums_and_products_of_floats_depend_on_brackets() {
    let executor = HostExecutor::detect();
    let mut random = Random::new(4);
    let folds = |t: DataType| Fold::ALL.into_iter().filter(move |&fold| t.has(fold));
    for (data_type, fold) in DataType::ALL.into_iter().flat_map(|t| folds(t).map(move |f| (t, f))) {
        if !data_type.has(Fold::BitXor) && matches!(fold, Fold::Sum | Fold::Prod) {
            continue;
        }
        let len_bytes = 512;
        // Few different bytes, so that equal values, zeros of both signs and NaNs meet.
        let palette = [0x00u8, 0x80, 0x7f, 0xff, 0x01];
        let mut word = || u64::from_ne_bytes([(); 8].map(|()| palette[random.next() as usize % 5]));
        let sources: Vec<Vec<u64>> =
            (0..7).map(|_| (0..len_bytes / 8).map(|_| word()).collect()).collect();
        let pointers: Vec<*const u8> = sources.iter().map(|words| words.as_ptr().cast()).collect();
        let reduced = |tree| {
            let (scale, scale_bits, ranks) = (Scale::None, 0, 1);
            let (finish, stream) = (true, false);
            let reduction =
                Reduction { data_type, fold, scale, scale_bits, ranks, tree, finish, stream };
            let mut output = vec![0u64; len_bytes / 8];
            // SAFETY: all are aligned and of this length.
            unsafe {
                let to = [output.as_mut_ptr().cast()];
                executor.reduce(&reduction, &pointers, &to, len_bytes);
            }
            output
        };
        assert_eq!(reduced(true), reduced(false), "{data_type:?} {fold:?}");
    }
}

#[test]
fn average_divides_only_at_the_finish() {
    let reduction = |finish| Reduction {
        data_type: DataType::F32,
        fold: Fold::Sum,
        scale: Scale::Average,
        scale_bits: 0,
        ranks: 4,
        tree: false,
        finish,
        stream: false,
    };
    let sources = [[2.0f32, 6.0], [4.0, 8.0]];
    let pointers = [sources[0].as_ptr().cast(), sources[1].as_ptr().cast()];
    for (finish, expected) in [(false, [6.0, 14.0]), (true, [1.5, 3.5])] {
        let mut output = [0f32; 2];
        let to = [output.as_mut_ptr().cast()];
        // SAFETY: two elements on every side.
        unsafe { HostExecutor::detect().reduce(&reduction(finish), &pointers, &to, 8) };
        assert_eq!(output, expected);
    }
}
