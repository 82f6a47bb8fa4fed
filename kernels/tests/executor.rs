//! The machine itself, by programs made by hand: what each instruction does, and how a channel
//! ends.
#![allow(clippy::unwrap_used)]

mod machine;

use machine::*;
use oxccl_kernels::format::*;
use oxccl_kernels::{HostExecutor, Isa, Outcome};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn executors() -> Vec<HostExecutor> {
    Isa::all().into_iter().filter_map(HostExecutor::for_isa).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Values that differ by rank, call and position.
fn pattern(rank: usize, call: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| (rank * 1000 + call * 10 + i % 7) as f32).collect()
}

#[test]
fn exchanges_of_every_length() {
    for lane in [Lane::Ll, Lane::Ll128] {
        exchange_of_every_length(lane);
    }
}

fn exchange_of_every_length(lane: Lane) {
    for executor in executors() {
        let mut world = World::new(Shape { ll_bytes: 20000, ..Shape::default() });
        for count in [0, 1, 2, 3, 5, 16, 29, 30, 31, 32, 34, 63, 65, 257, 1023, 1024, 1025, 5000] {
            let make = |rank| exchange(lane, &world, rank, DataType::F32, Fold::Sum, count * 4);
            let programs = [make(0), make(1)];
            let outputs = run_ranks(&mut world.ranks, |index, rank| {
                (0..9)
                    .map(|call| {
                        let input = bytes(&pattern(index, call, count));
                        let mut output = vec![0xee; count * 4 + 4];
                        let outcome =
                            rank.execute(&executor, &programs[index], 0, &input, &mut output);
                        assert_eq!(outcome, Outcome::Done);
                        output
                    })
                    .collect::<Vec<_>>()
            });
            for (call, output) in outputs.iter().flat_map(|calls| calls.iter().enumerate()) {
                let (a, b) = (pattern(0, call, count), pattern(1, call, count));
                let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
                assert_eq!(
                    f32s(&output[..count * 4]),
                    expected,
                    "{count} over {lane:?} on {}",
                    executor.isa().name()
                );
                assert_eq!(&output[count * 4..], [0xee; 4], "nothing behind the end is written");
            }
        }
    }
}

/// Copies of every instruction set, around the lengths from which on they go by rows, from and to
/// places within a row and a line. Nothing before or behind is written.
#[test]
fn copies_from_and_to_everywhere() {
    let (places, lengths) =
        ([0, 1, 15, 16, 17, 32, 47, 63], [2000, 2047, 2048, 2049, 2303, 4097, 9000]);
    let input: Vec<u8> = (0..lengths[6] + 64).map(|i| (i % 251) as u8).collect();
    let mut world = World::new(Shape { ranks: 1, ..Shape::default() });
    for executor in executors() {
        for len in lengths {
            let steps = vec![reduce_copy(
                0,
                len,
                &[operand(Space::Input, 0)],
                &[operand(Space::Output, 0)],
            )];
            let program = Program::once(DataType::U8, Fold::Sum, steps, vec![]);
            for (from, to) in places.iter().flat_map(|from| places.map(|to| (*from, to))) {
                let mut output = vec![0xee; len + 128];
                let outcome = world.ranks[0].execute(
                    &executor,
                    &program,
                    0,
                    &input[from..],
                    &mut output[to..],
                );
                assert_eq!(outcome, Outcome::Done);
                let case = format!("{len} from {from} to {to} on {}", executor.isa().name());
                assert!(output[to..to + len] == input[from..from + len], "{case}");
                let around = output[..to].iter().chain(&output[to + len..]);
                assert!(around.copied().all(|byte| byte == 0xee), "{case}: around");
            }
        }
    }
}

/// Rank 0 sends a long buffer over slots in many rounds; rank 1 adds its own and stores.
fn slot_programs(world: &World, len: usize, tile: usize, per_round: i64) -> [Program; 2] {
    let rounds = (len as u64).div_ceil((tile * per_round as usize) as u64).max(1);
    let credits = i64::from(world.shape.slots);
    let to = world.connection(0, 1, Lane::Slots);
    let from = world.connection(0, 0, Lane::Slots);
    let part = len / per_round as usize;
    let (mut send, mut receive) = (vec![], vec![]);
    for message in 0..per_round {
        let offset = part * message as usize;
        let peer_slot = slot(Space::PeerSlot, to, Lane::Slots, message as u32);
        send.push(wait_head(to, message + 1 - credits));
        send.push(reduce_copy(0, part, &[operand(Space::Input, offset)], &[peer_slot]));
        send.push(signal_tail(to, message + 1));
        let own_slot = slot(Space::Slot, from, Lane::Slots, message as u32);
        let sources = [own_slot, operand(Space::Input, offset)];
        receive.push(wait_tail(from, message + 1));
        receive.push(reduce_copy(0, part, &sources, &[operand(Space::Output, offset)]));
        receive.push(signal_head(from, message + 1));
    }
    let tile_bytes = tile as u64;
    let (sent, received) = (per_round as u32, per_round as u32);
    let make = |steps, advances| {
        let channel = Channel { steps, rounds, tile_bytes, advances };
        Program::new(DataType::F32, Fold::Sum, Scale::None, &[channel])
    };
    [make(send, vec![(to, sent, 0)]), make(receive, vec![(from, 0, received)])]
}

#[test]
fn slots_with_credits_over_several_rounds() {
    let executor = HostExecutor::detect();
    for (count, per_round) in [(0, 1), (1, 1), (16, 1), (1000, 1), (4096, 2), (4104, 2)] {
        let mut world = World::new(Shape::default());
        let programs = slot_programs(&world, count * 4, 256, per_round);
        let results = run_ranks(&mut world.ranks, |index, rank| {
            (0..5)
                .map(|call| {
                    let input = bytes(&pattern(index, call, count));
                    let mut output = vec![0; count * 4];
                    let outcome = rank.execute(&executor, &programs[index], 0, &input, &mut output);
                    assert_eq!(outcome, Outcome::Done);
                    output
                })
                .collect::<Vec<_>>()
        });
        for (call, output) in results[1].iter().enumerate() {
            let (a, b) = (pattern(0, call, count), pattern(1, call, count));
            let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            assert_eq!(f32s(output), expected, "{count} elements, call {call}");
        }
    }
}

/// A direct exchange: tokens over LL, then each reads the peer's input in place, then both say so.
/// Some inputs lie in an allocation with a number.
#[test]
fn windows_with_a_token_exchange() {
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape::default());
    let count = 3001;
    let arenas: Vec<Memory> = (0..2).map(|_| Memory::new(1 << 16)).collect();
    let make = |rank: usize| {
        let tokens = world.connection(0, 1 - rank, Lane::Ll);
        let sync = world.connection(0, 1 - rank, Lane::Sync);
        let theirs = 1 - rank as u32;
        let steps = vec![
            wait_head(tokens, 1 - i64::from(world.shape.ll_slots)),
            reduce_copy(
                0,
                16,
                &[operand(Space::Tokens, 0)],
                &[slot(Space::PeerSlot, tokens, Lane::Ll, 0)],
            ),
            reduce_copy(
                0,
                16,
                &[slot(Space::Slot, tokens, Lane::Ll, 0)],
                &[peer(Space::PeerTokens, theirs)],
            ),
            signal_head(tokens, 1),
            reduce_copy(
                0,
                count * 4,
                &[operand(Space::Input, 0), peer(Space::WindowInput, theirs)],
                &[operand(Space::Output, 0)],
            ),
            signal_tail(sync, 1),
            wait_tail(sync, 1),
        ];
        Program::once(DataType::F32, Fold::Sum, steps, vec![(tokens, 1, 1), (sync, 1, 1)])
    };
    let programs = [make(0), make(1)];
    // Number n begins at 64 n. There is none of number 0.
    let numbered = |rank: usize| [1000, 1, 2].map(|number: usize| arenas[rank].at(64 * number));
    let registered = [numbered(0), numbered(1)];
    for rank in 0..2 {
        let window = &mut world.ranks[rank].windows[1 - rank];
        window.base = arenas[1 - rank].at(0);
        window.registered = registered[1 - rank].as_ptr();
    }
    let outputs = run_ranks(&mut world.ranks, |index, rank| {
        let mut last = vec![];
        for call in 0..20 {
            let (input, output) = (call * 64, 1 << 15);
            let values = bytes(&pattern(index, call, count));
            // SAFETY: the arena is large enough, and the peer has left it (the sync of the last
            // call).
            unsafe {
                std::ptr::copy_nonoverlapping(
                    values.as_ptr(),
                    arenas[index].at(input),
                    values.len(),
                );
            }
            let number = (call % 3).min(call);
            let token = (number << TOKEN_NUMBER_SHIFT) + input - 64 * number;
            rank.tokens = Tokens { input: token as u64, output };
            rank.calls += 1;
            let launch =
                rank.launch(&programs[index], arenas[index].at(input), arenas[index].at(1 << 15));
            // SAFETY: buffers lie in the arenas.
            assert_eq!(unsafe { executor.execute(&launch, 0) }, Outcome::Done);
            // SAFETY: only this rank writes its output.
            let output =
                unsafe { std::slice::from_raw_parts(arenas[index].at(1 << 15), count * 4) };
            last.push(output.to_vec());
        }
        last
    });
    for (call, output) in outputs.iter().flat_map(|calls| calls.iter().enumerate()) {
        let (a, b) = (pattern(0, call, count), pattern(1, call, count));
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(f32s(output), expected, "call {call}");
    }
}

/// Where all ranks' buffers are as far into their heaps, a reduce-copy of all ranks' memory goes by
/// the multicast address; else by windows.
#[test]
fn all_ranks_memory_by_a_switch_or_by_windows() {
    const HEAP: u64 = 0x1000;
    let count = 3001;
    let len = count * 4;
    let (input, output) = (64, 1 << 15);
    let flags = INSTRUCTION_FINISH | INSTRUCTION_MULTICAST_READ | INSTRUCTION_MULTICAST_WRITE;
    let sources = [operand(Space::Input, 0), peer(Space::WindowInput, 1)];
    let destinations = [operand(Space::Output, 0), peer(Space::WindowOutput, 1)];
    let steps = vec![reduce_copy(flags, len, &sources, &destinations)];
    let program = Program::once(DataType::F32, Fold::Sum, steps, vec![]);
    for executor in executors() {
        for (peers_place, by_switch) in [(input, true), (input + 64, false)] {
            let mut world = World::new(Shape::default());
            // Two heaps as windows lead there, and two as the multicast address does.
            let heaps: Vec<Memory> = (0..4).map(|_| Memory::new(1 << 16)).collect();
            let fill = |heap: usize, place: usize| {
                let values = bytes(&pattern(heap, 0, count));
                // SAFETY: the heap is longer.
                unsafe { heaps[heap].at(place).copy_from(values.as_ptr(), values.len()) };
            };
            for (heap, place) in [(0, input), (1, peers_place), (2, input), (3, input)] {
                fill(heap, place);
            }
            let distance = |heap: usize| heaps[heap].at(0) as u64 - 1;
            let members = [distance(2), distance(3)];
            let window = &mut world.ranks[0].windows[1];
            window.base = heaps[1].at(0).wrapping_sub(HEAP as usize);
            window.heap = HEAP;
            window.tokens =
                Tokens { input: HEAP + peers_place as u64, output: HEAP + output as u64 };
            let multicast = Multicast {
                base: std::ptr::without_provenance_mut(1),
                input: input as u64,
                output: output as u64,
                members: members.as_ptr(),
            };
            let launch = world.ranks[0].launch(&program, heaps[0].at(input), heaps[0].at(output));
            let launch = Launch { multicast, ..launch };
            // SAFETY: all that the program touches lies in the heaps.
            assert_eq!(unsafe { executor.execute(&launch, 0) }, Outcome::Done);
            let (first, untouched) = if by_switch { (2, 0) } else { (0, 2) };
            let (a, b) = (pattern(first, 0, count), pattern(first + 1, 0, count));
            let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            let at = |heap: usize| {
                // SAFETY: within the heap, which nobody writes now.
                f32s(unsafe { std::slice::from_raw_parts(heaps[heap].at(output), len) })
            };
            assert_eq!([at(first), at(first + 1)], [expected.clone(), expected]);
            assert!(at(untouched).iter().chain(&at(untouched + 1)).all(|value| *value == 0.0));
        }
    }
}

/// What was data of a message is no flag and no header of the next in its slot, whatever it looks
/// like.
#[test]
fn data_that_looks_like_flags_is_no_message() {
    let executor = HostExecutor::detect();
    let shape = Shape { ll_slots: 1, ll_bytes: 4096, ..Shape::default() };
    for lane in [Lane::Ll, Lane::Ll128] {
        let mut world = World::new(shape);
        // Each message has the flag of the next in all its words; the lengths put other lines at
        // each place.
        let lens = [4096, 8, 2048, 120, 1000, 248, 4000];
        let programs: Vec<Vec<Program>> = (0..2)
            .map(|rank| {
                let make =
                    |len: usize| exchange(lane, &world, rank, DataType::U64, Fold::BitOr, len);
                lens.map(make).into()
            })
            .collect();
        let outputs = run_ranks(&mut world.ranks, |index, rank| {
            (0..4 * lens.len())
                .map(|call| {
                    let len = lens[call % lens.len()];
                    let input: Vec<u8> =
                        (call as u64 + 2).to_ne_bytes().iter().copied().cycle().take(len).collect();
                    let mut output = vec![0; len];
                    let program = &programs[index][call % lens.len()];
                    let outcome = rank.execute(&executor, program, 0, &input, &mut output);
                    assert_eq!(outcome, Outcome::Done);
                    (input, output)
                })
                .collect::<Vec<_>>()
        });
        for (input, output) in outputs.iter().flatten() {
            assert_eq!(input, output, "{lane:?}");
        }
    }
}

#[test]
fn a_message_of_another_call_is_found() {
    for lane in [Lane::Ll, Lane::Ll128] {
        mismatch_is_found(lane);
    }
}

fn mismatch_is_found(lane: Lane) {
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape::default());
    let programs: Vec<_> =
        (0..2).map(|rank| exchange(lane, &world, rank, DataType::F32, Fold::Sum, 8)).collect();
    world.ranks[1].signature = 0xbad;
    let ends = run_ranks(&mut world.ranks, |index, rank| {
        let outcome = rank.execute(&executor, &programs[index], 0, &[0; 8], &mut [0; 8]);
        (outcome, rank.statuses[0])
    });
    assert_eq!(ends[0].0, Outcome::Mismatch);
    assert_eq!((ends[0].1.found, ends[0].1.peer, ends[0].1.step), (0xbad, 1, 2));
    assert_eq!((ends[1].0, ends[1].1.found), (Outcome::Mismatch, 0x5eed));
}

#[test]
fn a_mismatch_on_plain_slots_is_found() {
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape::default());
    let programs = slot_programs(&world, 64, 256, 1);
    world.ranks[0].signature = 7;
    let ends = run_ranks(&mut world.ranks, |index, rank| {
        let outcome = rank.execute(&executor, &programs[index], 0, &[0; 64], &mut [0; 64]);
        (outcome, rank.statuses[0])
    });
    assert_eq!(ends[0].0, Outcome::Done, "the sender's message fits in a slot");
    assert_eq!((ends[1].0, ends[1].1.found, ends[1].1.peer), (Outcome::Mismatch, 7, 0));
}

#[test]
fn lengths_that_differ_are_a_bad_program() {
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape::default());
    let programs: Vec<_> = (0..2)
        .map(|rank| ll_exchange(&world, rank, DataType::F32, Fold::Sum, 8 + 8 * rank))
        .collect();
    let ends = run_ranks(&mut world.ranks, |index, rank| {
        rank.execute(&executor, &programs[index], 0, &[0; 16], &mut [0; 16])
    });
    assert_eq!(ends, [Outcome::BadProgram, Outcome::BadProgram]);
}

#[test]
fn the_abort_word_ends_a_wait_and_progress_says_which() {
    let executor = HostExecutor::detect();
    for (spins, yields) in [(100, 1_000_000_000), (10, 10), (u32::MAX, 0)] {
        let mut world = World::new(Shape::default());
        let program = ll_exchange(&world, 0, DataType::F32, Fold::Sum, 8);
        (world.ranks[0].spins, world.ranks[0].yields) = (spins, yields);
        let abort = &world.abort;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                abort.store(1, Ordering::Release);
            });
            let rank = &mut world.ranks[0];
            let outcome = rank.execute(&executor, &program, 0, &[0; 8], &mut [0; 8]);
            assert_eq!(outcome, Outcome::Aborted);
            assert_eq!((rank.statuses[0].step, rank.statuses[0].peer), (2, 1));
            let progress = rank.progress[0];
            assert_eq!((progress.call, progress.step, progress.peer), (1, 2, 1));
            assert_eq!((progress.lane, progress.head, progress.awaited), (0, 0, 0));
        });
    }
}

static POLLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn stop_at_ten(_context: *mut core::ffi::c_void, channel: u32) -> u32 {
    assert_eq!(channel, 0);
    u32::from(POLLS.fetch_add(1, Ordering::Relaxed) >= 10)
}

#[test]
fn the_poll_function_ends_a_wait() {
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape::default());
    let programs = slot_programs(&world, 64, 256, 1);
    let rank = &mut world.ranks[1];
    rank.poll = Some(stop_at_ten);
    let outcome = rank.execute(&executor, &programs[1], 0, &[0; 64], &mut [0; 64]);
    assert_eq!(outcome, Outcome::Aborted);
    assert_eq!(POLLS.load(Ordering::Relaxed), 11);
    assert_eq!((rank.progress[0].lane, rank.progress[0].awaited), (Lane::Slots as u32, 1));
}

#[test]
fn epochs_wrap_and_stale_flags_are_cleared() {
    for lane in [Lane::Ll, Lane::Ll128] {
        epochs_wrap(lane);
    }
}

fn epochs_wrap(lane: Lane) {
    let executor = HostExecutor::detect();
    // The second period ends where epochs start again from 1.
    for period in 1..=2 {
        let mut world = World::new(Shape::default());
        let programs: Vec<_> = (0..2)
            .map(|rank| exchange(lane, &world, rank, DataType::F32, Fold::Sum, 200))
            .collect();
        let start = period * LL_EPOCHS - 3;
        for rank in 0..2 {
            let index = world.connection(0, 1 - rank, lane) as usize;
            let connection = &mut world.ranks[rank].connections[index];
            (connection.sent, connection.received) = (start, start);
            connection.cleared = (period - 1) * LL_EPOCHS;
            // SAFETY: the counters are the world's; nothing runs yet.
            unsafe { connection.recv_head.write(start) };
            // What the peer would take for messages of after the wrap, if nobody cleared it.
            let stale: Vec<u32> = (0..LL_EPOCHS as u32 % 7 + 4).collect();
            for (slot, _) in stale.iter().enumerate().take(world.shape.ll_slots as usize) {
                let message = period * LL_EPOCHS + 4 + slot as u64;
                let epoch = (message % (2 * LL_EPOCHS)) as u32 + 1;
                let at = (message % u64::from(connection.slots)) as usize
                    * connection.slot_stride_bytes as usize;
                // The last line of the message.
                let (line, stale) = match lane {
                    Lane::Ll => (416, [9, epoch, 9, epoch]),
                    _ => (2 * LL128_LINE_BYTES + 112, [9, 9, epoch, 0]),
                };
                // SAFETY: within the slot.
                unsafe { connection.send_slots.add(at + line).cast::<[u32; 4]>().write(stale) };
            }
        }
        let outputs = run_ranks(&mut world.ranks, |index, rank| {
            (0..12)
                .map(|call| {
                    let input = bytes(&pattern(index, call, 50));
                    let mut output = vec![0; 200];
                    let outcome = rank.execute(&executor, &programs[index], 0, &input, &mut output);
                    assert_eq!(outcome, Outcome::Done);
                    output
                })
                .collect::<Vec<_>>()
        });
        for (call, output) in outputs.iter().flat_map(|calls| calls.iter().enumerate()) {
            let (a, b) = (pattern(0, call, 50), pattern(1, call, 50));
            let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            assert_eq!(f32s(output), expected, "call {call}");
        }
        for rank in 0..2 {
            let index = world.connection(0, 1 - rank, lane) as usize;
            assert_eq!(world.ranks[rank].connections[index].cleared, period * LL_EPOCHS);
        }
    }
}

#[test]
fn a_sleeping_waiter_is_woken() {
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape::default());
    let programs = slot_programs(&world, 64, 256, 1);
    for rank in &mut world.ranks {
        (rank.spins, rank.yields) = (0, 0);
    }
    let start = Instant::now();
    let rings = run_ranks(&mut world.ranks, |index, rank| {
        for _ in 0..50 {
            if index == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            let outcome = rank.execute(&executor, &programs[index], 0, &[1; 64], &mut [0; 64]);
            assert_eq!(outcome, Outcome::Done);
        }
        assert_eq!(rank.progress[0].call, 0, "nothing is waited for at the end");
        // SAFETY: all calls of this rank are over, and the peer rings for this rank only while it
        // waits.
        unsafe { std::ptr::addr_of!((*rank.doorbells).rings).read_volatile() }
    });
    assert!(rings[1] > 0, "the sender rang for a receiver that sleeps most of the time");
    assert!(start.elapsed() < Duration::from_secs(60));
}

/// Each wait goes to sleep at once, often just as the message comes.
#[test]
fn no_wake_is_missed() {
    // SAFETY: it takes no memory.
    let registered = unsafe {
        libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0)
    };
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape::default());
    let programs: Vec<_> =
        (0..2).map(|rank| exchange(Lane::Ll, &world, rank, DataType::F32, Fold::Sum, 8)).collect();
    for rank in &mut world.ranks {
        (rank.spins, rank.yields) = (0, 0);
    }
    let missed = run_ranks(&mut world.ranks, |index, rank| {
        for _ in 0..20_000 {
            let outcome = rank.execute(&executor, &programs[index], 0, &[1; 8], &mut [0; 8]);
            assert_eq!(outcome, Outcome::Done);
        }
        // SAFETY: all calls of this rank are over, and nobody else writes it.
        unsafe { std::ptr::addr_of!((*rank.doorbells).missed).read_volatile() }
    });
    if registered == 0 {
        assert_eq!(missed, [0, 0]);
    }
}

#[test]
fn programs_that_cannot_run_are_refused() {
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape::default());
    let copy = |sources: usize, flags| {
        let sources = vec![operand(Space::Input, 0); sources];
        vec![reduce_copy(flags, 8, &sources, &[operand(Space::Output, 0)])]
    };
    let mut refused = vec![
        Program::once(DataType::F32, Fold::BitAnd, copy(1, 0), vec![]),
        Program::once(DataType::F32, Fold::Sum, copy(0, 0), vec![]),
        Program::once(DataType::F32, Fold::Sum, copy(MAX_OPERANDS, 0), vec![]),
        Program::once(
            DataType::F32,
            Fold::Sum,
            copy(MAX_TREE_SOURCES + 1, INSTRUCTION_TREE),
            vec![],
        ),
    ];
    let broken: [fn(&mut Header); 4] = [
        |header| header.magic = 0,
        |header| header.version += 1,
        |header| header.data_type = 12,
        |header| header.channels = 0,
    ];
    for change in broken {
        let mut program = Program::once(DataType::F32, Fold::Sum, copy(1, 0), vec![]);
        change(program.header_mut());
        refused.push(program);
    }
    for program in &refused {
        let outcome = world.ranks[0].execute(&executor, program, 0, &[0; 8], &mut [0; 8]);
        assert_eq!(outcome, Outcome::BadProgram);
        assert_eq!(world.ranks[0].statuses[0].outcome, Outcome::BadProgram as u32);
    }
    let whole = Program::once(DataType::F32, Fold::Sum, copy(MAX_OPERANDS - 1, 0), vec![]);
    let mut output = [0; 8];
    let input = bytes(&[1.0, 2.0]);
    assert_eq!(world.ranks[0].execute(&executor, &whole, 0, &input, &mut output), Outcome::Done);
    assert_eq!(f32s(&output), [259.0, 518.0]);
}

#[test]
fn channels_are_independent() {
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape { channels: 3, ..Shape::default() });
    let program = |rank: usize| {
        let channels: Vec<_> = (0..3)
            .map(|channel| {
                let to = world.connection(channel, 1 - rank, Lane::Ll);
                let from_slot = slot(Space::Slot, to, Lane::Ll, 0);
                let to_slot = slot(Space::PeerSlot, to, Lane::Ll, 0);
                let steps = vec![
                    reduce_copy(0, 8, &[operand(Space::Input, channel * 8)], &[to_slot]),
                    reduce_copy(0, 8, &[from_slot], &[operand(Space::Output, channel * 8)]),
                    signal_head(to, 1),
                ];
                Channel { steps, rounds: 1, tile_bytes: 64, advances: vec![(to, 1, 1)] }
            })
            .collect();
        Program::new(DataType::U8, Fold::Sum, Scale::None, &channels)
    };
    let programs = [program(0), program(1)];
    let outputs = run_ranks(&mut world.ranks, |index, rank| {
        let input: Vec<u8> = (0..24).map(|i| i + 100 * index as u8).collect();
        let mut output = vec![0; 24];
        for channel in [2, 0, 1] {
            let outcome = rank.execute(&executor, &programs[index], channel, &input, &mut output);
            assert_eq!(outcome, Outcome::Done);
        }
        output
    });
    assert_eq!(outputs[0], (100..124).collect::<Vec<u8>>());
    assert_eq!(outputs[1], (0..24).collect::<Vec<u8>>());
}

/// Two buckets of a group, which lie anywhere and are marked ready from elsewhere, in the wrong
/// order.
#[test]
fn a_part_awaits_its_buckets_and_tells_when_they_are_done() {
    const CALL: u64 = 7;
    let executor = HostExecutor::detect();
    let mut world = World::new(Shape { ranks: 1, ..Shape::default() });
    let copy = reduce_copy(0, 128, &[operand(Space::Input, 0)], &[operand(Space::Output, 0)]);
    let program = Program::once(DataType::F32, Fold::Sum, vec![copy], vec![]);
    let inputs = [bytes(&[1.0, 2.0, 3.0, 4.0, 5.0]), bytes(&[9.0; 16])];
    let mut outputs = [vec![0xee_u8; 24], vec![0xee_u8; 68]];
    let segments: Vec<Segment> = (0..2)
        .map(|bucket| Segment {
            start: 64 * bucket as u64,
            len_bytes: inputs[bucket].len() as u64,
            input: inputs[bucket].as_ptr(),
            output: outputs[bucket].as_mut_ptr(),
            followers: 0,
            bucket: bucket as u32,
            reserved: 0,
        })
        .collect();
    let [ready, done] = [(); 2].map(|()| [const { AtomicU64::new(0) }; 2]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(done.each_ref().map(|word| word.load(Ordering::Acquire)), [0, 0]);
            ready[1].store(CALL, Ordering::Release);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(done[1].load(Ordering::Acquire), 0, "a part begins when all of it is ready");
            ready[0].store(CALL, Ordering::Release);
        });
        let mut launch = world.ranks[0].launch(&program, std::ptr::null(), std::ptr::null_mut());
        launch.call = CALL;
        launch.segments = segments.as_ptr();
        launch.segments_count = 2;
        launch.ready = ready.as_ptr().cast();
        launch.done = done.as_ptr().cast_mut().cast();
        launch.done_stride = 1;
        launch.flags = LAUNCH_AWAITS | LAUNCH_COMPLETES;
        // SAFETY: as in `Rank::execute`; the tables and words outlive the call.
        assert_eq!(unsafe { executor.execute(&launch, 0) }, Outcome::Done);
    });
    assert_eq!(done.map(AtomicU64::into_inner), [CALL, CALL]);
    for (input, output) in inputs.iter().zip(&outputs) {
        assert_eq!(output[..input.len()], input[..]);
        assert_eq!(output[input.len()..], [0xee; 4], "nothing behind a bucket is touched");
    }
}
