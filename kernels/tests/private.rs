//! Peers' memory that is not mapped, which the system reads: here this process's own, by its
//! addresses.
#![allow(clippy::unwrap_used)]

mod machine;

use machine::{Program, Shape, World, operand, peer, reduce_copy};
use oxccl_kernels::format::*;
use oxccl_kernels::{HostExecutor, Isa, Outcome};

const RANKS: usize = 4;

fn executors() -> Vec<HostExecutor> {
    Isa::all().into_iter().filter_map(HostExecutor::for_isa).collect()
}

/// A world in which the other ranks' buffers are these, by rank.
fn world(inputs: &[Vec<f32>]) -> World {
    let mut world = World::new(Shape { ranks: inputs.len(), ..Shape::default() });
    for (rank, input) in inputs.iter().enumerate() {
        let window = &mut world.ranks[0].windows[rank];
        window.process = u64::from(std::process::id());
        window.tokens = Tokens { input: input.as_ptr() as u64, output: 0 };
    }
    world
}

fn numbers(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7 + rank * 131) % 1009) as f32 - 500.0).collect()
}

fn private(rank: u32, offset_bytes: usize) -> Operand {
    let window = peer(Space::WindowInput, rank);
    let flags = window.flags | OPERAND_CMA;
    Operand { flags, offset_bytes: offset_bytes as u64, ..window }
}

fn bounce() -> Vec<u64> {
    vec![0; BOUNCE_BYTES / 8]
}

fn run(world: &mut World, executor: &HostExecutor, program: &Program, launch: Launch) -> Outcome {
    let mut bounce = bounce();
    let launch = Launch { bounce: bounce.as_mut_ptr().cast(), ..launch };
    let program = program.words.as_ptr().cast();
    let launch = Launch { program, statuses: world.ranks[0].statuses.as_mut_ptr(), ..launch };
    // SAFETY: the programs stay within the buffers that the launch names.
    unsafe { executor.execute(&launch, 0) }
}

#[test]
fn lengths_beyond_the_bounce_are_reduced_in_the_listed_order() {
    for executor in executors() {
        for count in [1, 15, 1000, BOUNCE_BYTES / 4 / 3, 3 * BOUNCE_BYTES / 4 + 77] {
            let inputs: Vec<_> = (0..RANKS).map(|rank| numbers(rank, count)).collect();
            let mut world = world(&inputs);
            let sources: Vec<Operand> = (0..RANKS as u32)
                .map(|rank| if rank == 0 { operand(Space::Input, 0) } else { private(rank, 0) })
                .collect();
            let step = reduce_copy(
                INSTRUCTION_CMA | INSTRUCTION_FINISH,
                count * 4,
                &sources,
                &[operand(Space::Output, 0)],
            );
            let program = once(vec![step], count * 4);
            for in_place in [false, true] {
                let mut own = inputs[0].clone();
                let mut output = vec![f32::NAN; count];
                let to = if in_place { own.as_mut_ptr() } else { output.as_mut_ptr() };
                let launch = world.ranks[0].launch(&program, own.as_ptr().cast(), to.cast());
                assert_eq!(run(&mut world, &executor, &program, launch), Outcome::Done);
                let found = if in_place { &own } else { &output };
                for at in 0..count {
                    let expected = inputs[1..].iter().fold(inputs[0][at], |sum, of| sum + of[at]);
                    assert_eq!(found[at].to_bits(), expected.to_bits(), "{count} {at} {in_place}");
                }
            }
        }
    }
}

fn once(steps: Vec<machine::Step>, tile_bytes: usize) -> Program {
    let tile_bytes = tile_bytes.next_multiple_of(64) as u64;
    let channel = machine::Channel { steps, rounds: 1, tile_bytes, advances: vec![] };
    Program::new(DataType::F32, Fold::Sum, Scale::None, &[channel])
}

#[test]
fn copies_go_where_they_belong() {
    for executor in executors() {
        for (count, outputs) in
            [(1, 1), (100, 1), (100, 2), (BOUNCE_BYTES / 4 + 9, 1), (BOUNCE_BYTES / 2, 2)]
        {
            let inputs = [numbers(0, 1), numbers(1, count + 3)];
            let mut world = world(&inputs);
            let to: Vec<_> =
                (0..outputs).map(|at| operand(Space::Output, at * (count + 1) * 4)).collect();
            let step = reduce_copy(INSTRUCTION_CMA, count * 4, &[private(1, 12)], &to);
            let program = once(vec![step], count * 4);
            let mut output = vec![-1.0f32; outputs * (count + 1)];
            let launch =
                world.ranks[0].launch(&program, std::ptr::null(), output.as_mut_ptr().cast());
            assert_eq!(run(&mut world, &executor, &program, launch), Outcome::Done);
            for copy in output.chunks(count + 1) {
                assert_eq!(copy[..count], inputs[1][3..]);
                assert_eq!(copy[count], -1.0, "nothing is written behind the copy");
            }
        }
    }
}

/// Buckets of a group lie anywhere, in each rank's memory; some follow one another.
#[test]
fn buckets_are_found_by_their_addresses() {
    let lens = [5usize, 16, 16, 1, 700, 40_000, 3, 64, 64, 64];
    let lens: Vec<usize> = lens.iter().copied().cycle().take(150).collect();
    let mut starts = Vec::new();
    let mut end = 0usize;
    for len in &lens {
        starts.push(end);
        end = (end + len * 4).next_multiple_of(SEGMENT_ALIGN);
    }
    for executor in executors() {
        for reduces in [false, true] {
            // Of each rank one array for all buckets, in which they lie with gaps of their own.
            let places = |rank: usize| -> Vec<usize> {
                let mut at = rank;
                lens.iter()
                    .enumerate()
                    .map(|(bucket, len)| {
                        let place = at;
                        at += len + if bucket % 3 == rank % 3 { 0 } else { 1 + rank };
                        place
                    })
                    .collect()
            };
            let all: Vec<Vec<usize>> = (0..3).map(places).collect();
            let inputs: Vec<_> = (0..3).map(|rank| numbers(rank, 1_000_000)).collect();
            let tables: Vec<Vec<SegmentTokens>> = (0..3)
                .map(|rank| {
                    let token = |at: &usize| inputs[rank].as_ptr().wrapping_add(*at) as u64;
                    let one = |at| SegmentTokens { input: token(at), output: 0, followers: 0 };
                    all[rank].iter().map(one).collect()
                })
                .collect();
            let mut world = world(&inputs);
            for (window, table) in world.ranks[0].windows.iter_mut().zip(&tables) {
                window.tokens.input = table.as_ptr() as u64;
            }
            let mut output = vec![-1.0f32; 1_000_000];
            let segments: Vec<Segment> = (0..lens.len())
                .map(|bucket| Segment {
                    start: starts[bucket] as u64,
                    len_bytes: lens[bucket] as u64 * 4,
                    input: inputs[0].as_ptr().wrapping_add(all[0][bucket]).cast(),
                    output: output.as_mut_ptr().wrapping_add(all[0][bucket]).cast(),
                    followers: 0,
                    bucket: bucket as u32,
                    reserved: 0,
                })
                .collect();
            let sources = match reduces {
                true => vec![operand(Space::Input, 0), private(1, 0), private(2, 0)],
                false => vec![private(2, 0)],
            };
            let to = [operand(Space::Output, 0)];
            let step = reduce_copy(INSTRUCTION_CMA | INSTRUCTION_FINISH, end, &sources, &to);
            // Tiles that end inside of buckets.
            let channel = machine::Channel {
                steps: vec![step],
                rounds: end.div_ceil(50_048) as u64,
                tile_bytes: 50_048,
                advances: vec![],
            };
            let program = Program::new(DataType::F32, Fold::Sum, Scale::None, &[channel]);
            let launch = Launch {
                segments: segments.as_ptr(),
                segments_count: segments.len() as u32,
                ..world.ranks[0].launch(&program, std::ptr::null(), std::ptr::null_mut())
            };
            assert_eq!(run(&mut world, &executor, &program, launch), Outcome::Done);
            let mut expected = vec![-1.0f32; 1_000_000];
            for (bucket, len) in lens.iter().enumerate() {
                for at in 0..*len {
                    let of = |rank: usize| inputs[rank][all[rank][bucket] + at];
                    expected[all[0][bucket] + at] =
                        if reduces { of(0) + of(1) + of(2) } else { of(2) };
                }
            }
            assert_eq!(output, expected);
        }
    }
}

#[test]
fn what_cannot_be_read_is_said() {
    let executor = HostExecutor::detect();
    let inputs = [numbers(0, 64), numbers(1, 64)];
    let step = reduce_copy(INSTRUCTION_CMA, 256, &[private(1, 0)], &[operand(Space::Output, 0)]);
    let program = once(vec![step], 256);
    let ended = std::process::Command::new("true").spawn().unwrap();
    let gone = u64::from(ended.id());
    ended.wait_with_output().unwrap();
    let own = u64::from(std::process::id());
    for (process, address, error) in [(own, 4096, libc::EFAULT), (gone, 4096, libc::ESRCH)] {
        let mut world = world(&inputs);
        let window = &mut world.ranks[0].windows[1];
        (window.process, window.tokens.input) = (process, address);
        let mut output = [0.0f32; 64];
        let launch = world.ranks[0].launch(&program, std::ptr::null(), output.as_mut_ptr().cast());
        assert_eq!(run(&mut world, &executor, &program, launch), Outcome::Unreadable);
        let status = world.ranks[0].statuses[0];
        assert_eq!((status.peer, status.found), (1, error as u32));
    }
}
