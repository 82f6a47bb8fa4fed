//! The calls that the matrix does not make: send/recv, barrier, uneven parts, streams, and what a
//! call costs.
#![allow(clippy::unwrap_used)]

#[allow(unreachable_pub)]
#[path = "common/on_streams.rs"]
mod on_streams;
#[allow(unreachable_pub)]
#[path = "common/typed.rs"]
mod typed;

use oxccl::{Advanced, Collectives, Communicator, Config, Error, Order, ReduceOp, Stream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn config() -> Config {
    Config {
        timeout: Duration::from_secs(30),
        heap_bytes: 64 << 20,
        advanced: Advanced { slot_bytes: Some(1024), ..Advanced::default() },
        ..Config::default()
    }
}

/// Runs `rank` on a thread for every rank.
fn on_ranks(n: usize, rank: impl Fn(Communicator) + Sync) {
    let ranks = Communicator::local_with(n, &config()).unwrap();
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(|| rank(comm));
        }
    });
}

#[test]
fn send_and_recv_go_around() {
    for n in [2, 3, 5] {
        on_ranks(n, |comm| {
            let (rank, n) = (comm.rank(), comm.world_size());
            for count in [0, 1, 7, 5000, 100_000] {
                let value =
                    |of: usize| (0..count).map(|i| (of * 1000 + i) as i32).collect::<Vec<_>>();
                let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
                let mut got = vec![-1; count];
                // Rank 0 sends first, the others receive first, so large messages don't wait in a
                // circle.
                if rank == 0 {
                    comm.send(&value(rank), next).unwrap();
                    comm.recv(&mut got, previous).unwrap();
                } else {
                    comm.recv(&mut got, previous).unwrap();
                    comm.send(&value(rank), next).unwrap();
                }
                assert_eq!(got, value(previous));
            }
        });
    }
}

#[test]
fn small_sends_need_no_receiver() {
    on_ranks(2, |comm| {
        if comm.rank() == 0 {
            for i in 0..8u64 {
                comm.send(&[i], 1).unwrap();
            }
        }
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            for i in 0..8u64 {
                let mut got = [0];
                comm.recv(&mut got, 0).unwrap();
                assert_eq!(got, [i]);
            }
        }
    });
}

#[test]
fn nobody_leaves_a_barrier_early() {
    for n in [1, 2, 3, 7, 8] {
        let entered = AtomicUsize::new(0);
        on_ranks(n, |comm| {
            for round in 1..=200 {
                entered.fetch_add(1, Ordering::SeqCst);
                comm.barrier().unwrap();
                assert!(entered.load(Ordering::SeqCst) >= round * n);
                comm.barrier().unwrap();
            }
        });
    }
}

#[test]
fn parts_may_be_uneven() {
    for n in [1, 2, 3, 4, 7] {
        on_ranks(n, |comm| {
            let (rank, n) = (comm.rank(), comm.world_size());
            for scale in [1, 700] {
                let counts: Vec<usize> = (0..n).map(|r| (r % 3) * scale + r).collect();
                let total: usize = counts.iter().sum();
                let own = vec![rank as i64; counts[rank]];
                let mut all = vec![-1; total];
                comm.all_gather_v(&own, &mut all, &counts).unwrap();
                let expected: Vec<i64> = (0..n).flat_map(|r| vec![r as i64; counts[r]]).collect();
                assert_eq!(all, expected);

                let input: Vec<i64> = (0..total as i64).map(|i| i * (rank as i64 + 1)).collect();
                let mut part = vec![-1; counts[rank]];
                comm.reduce_scatter_v(&input, &mut part, &counts, ReduceOp::Sum).unwrap();
                let start: usize = counts[..rank].iter().sum();
                let factor = (n * (n + 1) / 2) as i64;
                assert_eq!(
                    part,
                    (0..counts[rank]).map(|i| (start + i) as i64 * factor).collect::<Vec<_>>()
                );

                let count = |from: usize, to: usize| (from * 2 + to) % 4 * scale;
                let send: Vec<usize> = (0..n).map(|to| count(rank, to)).collect();
                let recv: Vec<usize> = (0..n).map(|from| count(from, rank)).collect();
                let input: Vec<i64> =
                    (0..n).flat_map(|to| vec![(rank * 10 + to) as i64; send[to]]).collect();
                let mut output = vec![-1; recv.iter().sum()];
                comm.all_to_all_v(&input, &send, &mut output, &recv).unwrap();
                let expected: Vec<i64> =
                    (0..n).flat_map(|from| vec![(from * 10 + rank) as i64; recv[from]]).collect();
                assert_eq!(output, expected);
            }
        });
    }
}

#[test]
fn every_typed_call_takes_every_memory_on_every_surface() {
    for n in [1, 2, 3] {
        on_ranks(n, |comm| typed::check(&comm, &Stream::new().unwrap()));
    }
}

#[test]
fn streams_have_uneven_and_rooted_calls() {
    for n in [1, 2, 3] {
        on_ranks(n, |comm| on_streams::check(&comm, &Stream::new().unwrap()));
    }
}

#[test]
fn gathers_scatters_and_uneven_parts_may_be_in_place() {
    on_ranks(3, |comm| {
        let (n, rank) = (comm.world_size(), comm.rank());
        let counts = [5, 0, 300];
        let before: usize = counts[..rank].iter().sum();
        let mut parts = vec![0u32; 305];
        parts[before..][..counts[rank]].fill(rank as u32 + 1);
        comm.all_gather_v_in_place(&mut parts, &counts).unwrap();
        let one = |at: usize| if at < 5 { 1 } else { 3 };
        assert_eq!(parts, (0..305).map(one).collect::<Vec<_>>());
        comm.reduce_scatter_v_in_place(&mut parts, &counts, ReduceOp::Sum).unwrap();
        let is_own = |at: usize| (before..before + counts[rank]).contains(&at);
        let sum = |at: usize| if is_own(at) { n as u32 * one(at) } else { one(at) };
        assert_eq!(parts, (0..305).map(sum).collect::<Vec<_>>());
        let mut gathered = vec![rank as u32; if rank == 1 { 6 } else { 2 }];
        comm.gather_in_place(&mut gathered, 1).unwrap();
        let expected = if rank == 1 { vec![0, 0, 1, 1, 2, 2] } else { vec![rank as u32; 2] };
        assert_eq!(gathered, expected);
        comm.scatter_in_place(&mut gathered, 1).unwrap();
        assert_eq!(gathered, expected, "each has what it gave");
    });
}

#[test]
fn counts_that_differ_are_told_to_all_and_end_nothing() {
    on_ranks(3, |comm| {
        let rank = comm.rank();
        let recv = if rank == 2 { [1, 2, 1] } else { [1, 1, 1] };
        let mut output = vec![0u8; recv.iter().sum()];
        let error = comm.all_to_all_v(&[1u8, 2, 3], &[1, 1, 1], &mut output, &recv).unwrap_err();
        assert!(
            matches!(error, Error::CountsDiffer { sender: 1, receiver: 2, sent: 1, received: 2 }),
            "{error}"
        );
        comm.barrier().unwrap();
        let error = comm.all_gather_v(&[1u8], &mut output, &[1]).unwrap_err();
        assert!(
            matches!(error, Error::Length { argument: "counts", found: 1, expected: 3, .. }),
            "{error}"
        );
        comm.barrier().unwrap();
    });
}

#[test]
fn streams_run_in_order_and_hold_their_buffers() {
    on_ranks(3, |comm| {
        let (first, second) = (Stream::new().unwrap(), Stream::new().unwrap());
        let mut a = comm.alloc_host::<f32>(10_000).unwrap();
        let mut b = comm.alloc_host::<f32>(10_000).unwrap();
        a.fill(1.0);
        let works = [
            comm.on(&first).all_reduce(&a, &mut b, ReduceOp::Sum).unwrap(),
            comm.on(&second).all_reduce_in_place(&mut b, ReduceOp::Sum).unwrap(),
            comm.on(&first).all_reduce_in_place(&mut b, ReduceOp::Sum).unwrap(),
        ];
        // The host's access waits for the three calls; so does the blocking one.
        assert_eq!(b[9_999], 27.0);
        let mut c = [1.0f32];
        comm.all_reduce_in_place(&mut c, ReduceOp::Sum).unwrap();
        assert_eq!(c, [3.0]);
        for work in works {
            assert!(work.is_done());
            work.wait().unwrap();
        }
        assert_eq!(comm.launches(), 4);
    });
}

#[test]
fn a_work_can_be_waited_for_a_while() {
    on_ranks(2, |comm| {
        let stream = Stream::new().unwrap();
        let mut buffer = comm.alloc_host::<i32>(4).unwrap();
        if comm.rank() == 0 {
            buffer.fill(7);
            let work = comm.on(&stream).broadcast_in_place(&mut buffer, 1).unwrap();
            let waited = work.wait_timeout(Duration::from_millis(20));
            assert!(waited.is_none(), "rank 1 has not called yet");
            assert!(!work.is_done());
            comm.on(&stream).send(&buffer, 1).unwrap().wait().unwrap();
            work.wait().unwrap();
            assert_eq!(*buffer, [5, 5, 5, 5]);
        } else {
            std::thread::sleep(Duration::from_millis(100));
            buffer.fill(5);
            comm.on(&stream).broadcast_in_place(&mut buffer, 1).unwrap().wait().unwrap();
            comm.on(&stream).recv(&mut buffer, 0).unwrap().wait().unwrap();
            assert_eq!(*buffer, [5, 5, 5, 5]);
        }
    });
}

#[test]
fn memory_comes_zeroed_and_goes_back() {
    on_ranks(2, |comm| {
        for _ in 0..20 {
            // All of them together would not fit the heap.
            let mut buffer = comm.alloc_host::<u64>(1 << 20).unwrap();
            assert!(buffer.iter().all(|value| *value == 0));
            buffer.fill(u64::MAX);
        }
        assert!(matches!(comm.alloc_host::<u8>(1 << 40), Err(Error::OutOfMemory { .. })));
        assert!(matches!(comm.alloc_host::<u64>(usize::MAX), Err(Error::Overflow { .. })));
        comm.barrier().unwrap();
    });
}

#[test]
fn bits_are_the_same_for_any_algorithm_under_an_order() {
    use oxccl::plans::algorithms::{Entry, Orders, catalogue};
    use oxccl::{Kind, Pin, bf16};
    for order in [Order::Rank, Order::Tree] {
        on_ranks(4, |mut comm| {
            comm.set_order(order).unwrap();
            let input: Vec<bf16> = (0..3001)
                .map(|i| bf16::from_f32(((i * 37 + comm.rank() * 91) % 1013) as f32 * 0.37))
                .collect();
            let mut results = Vec::new();
            let ordered = |entry: &&Entry| entry.orders == Orders::All;
            for entry in catalogue().filter(|entry| entry.kind == Kind::AllReduce).filter(ordered) {
                for channels in [1, 3] {
                    let (algorithm, encoding) = (Some(entry.algorithm), Some(entry.encoding));
                    comm.set_pin(Pin { algorithm, encoding, channels: Some(channels) }).unwrap();
                    let mut output = input.clone();
                    comm.all_reduce_in_place(&mut output, ReduceOp::Avg).unwrap();
                    results.push(output);
                }
            }
            assert!(results.len() > 6);
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        });
    }
}

#[test]
fn single_calls_have_options() {
    use oxccl::CallOptions;
    use oxccl::plans::algorithms::{Algorithm, Encoding};
    const RANKS: usize = 4;
    // Sums whose last bits depend on the order.
    let of = |rank: usize| -> Vec<f32> {
        (0..999).map(|i| ((i * 37 + rank * 911) % 1013) as f32 * 0.37 + rank as f32).collect()
    };
    let all: Vec<_> = (0..RANKS).map(of).collect();
    let sum = |add: &dyn Fn([f32; RANKS]) -> f32| -> Vec<f32> {
        (0..999).map(|i| add(std::array::from_fn(|rank| all[rank][i]))).collect()
    };
    let by_rank = sum(&|[a, b, c, d]| ((a + b) + c) + d);
    let by_tree = sum(&|[a, b, c, d]| (a + b) + (c + d));
    assert_ne!(by_rank, by_tree);
    on_ranks(RANKS, |comm| {
        let (own, stream) = (&all[comm.rank()], Stream::new().unwrap());
        let mut plans = 0;
        for round in 0..3 {
            for (order, expected) in [(Order::Rank, &by_rank), (Order::Tree, &by_tree)] {
                for algorithm in [None, Some(Algorithm::OneShot), Some(Algorithm::TwoShot)] {
                    let encoding = algorithm.map(|_| Encoding::Slots);
                    let options = CallOptions {
                        order: Some(order),
                        algorithm,
                        encoding,
                        channels: Some(1),
                        timeout: None,
                    };
                    let mut blocking = vec![f32::NAN; own.len()];
                    let call = || comm.all_reduce(own, &mut blocking, ReduceOp::Sum);
                    comm.with_options(options, call).unwrap().unwrap();
                    assert_eq!(&blocking, expected, "{options:?}");

                    let mut grouped = [own.clone(), own.clone()];
                    let [first, second] = &mut grouped;
                    comm.with_options(options, || {
                        comm.group(|group| {
                            group.all_reduce_in_place(first, ReduceOp::Sum)?;
                            group.all_reduce_in_place(second, ReduceOp::Sum)
                        })
                    })
                    .unwrap()
                    .unwrap();
                    assert_eq!(&grouped, &[expected.clone(), expected.clone()], "{options:?}");

                    let mut later = comm.alloc_host::<f32>(own.len()).unwrap();
                    later.copy_from_slice(own);
                    let on = comm.on(&stream).with_options(options).unwrap();
                    on.all_reduce_in_place(&mut later, ReduceOp::Sum).unwrap().wait().unwrap();
                    assert_eq!(&later[..], &expected[..], "{options:?}");
                }
            }
            // Calls with options are prepared once, as others are.
            match round {
                0 => {}
                1 => plans = comm.plans(),
                _ => assert_eq!(comm.plans(), plans),
            }
        }
        // Counts of its own are exchanged by a call that has no options.
        let pairwise = CallOptions { algorithm: Some(Algorithm::Pairwise), ..Default::default() };
        let counts = [1; RANKS];
        let (input, mut output) = ([comm.rank() as u32; RANKS], [u32::MAX; RANKS]);
        comm.with_options(pairwise, || comm.all_to_all_v(&input, &counts, &mut output, &counts))
            .unwrap()
            .unwrap();
        assert_eq!(output, [0, 1, 2, 3]);
        // What does not fit is refused, and the communicator goes on.
        let ring = CallOptions {
            order: Some(Order::Tree),
            algorithm: Some(Algorithm::Ring),
            ..Default::default()
        };
        let refused = comm
            .with_options(ring, || comm.all_reduce_in_place(&mut [1.0f32; 9], ReduceOp::Sum))
            .unwrap();
        assert!(matches!(refused, Err(Error::NoAlgorithm { order: Order::Tree, .. })));
        comm.barrier().unwrap();
    });
}

/// Buffers larger than the caches, which these say are tiny: outputs are written around them.
#[test]
fn outputs_may_be_written_around_the_cache() {
    const MOST: usize = 40_000;
    for n in [2, 3] {
        let config = Config {
            order: Order::Rank,
            advanced: Advanced { cache_bytes: Some(1), ..config().advanced },
            ..config()
        };
        let ranks = Communicator::local_with(n, &config).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || around(&comm, MOST));
            }
        });
    }
}

/// Long outputs that calls write by turns have left the cache when they are written again.
#[test]
fn outputs_by_turns_may_be_written_around_the_cache() {
    for n in [2, 3] {
        let advanced = Advanced { cache_bytes: Some(8 << 20), ..config().advanced };
        let ranks = Communicator::local_with(n, &Config { advanced, ..config() }).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || by_turns(&comm));
            }
        });
    }
}

fn by_turns(comm: &Communicator) {
    let (rank, n) = (comm.rank(), comm.world_size());
    let part = (2 << 20) / 4 / n + 5;
    let value = |of: usize, turn: usize, at: usize| ((of * 31 + turn * 13 + at * 7) % 113) as f32;
    let pair = || (vec![0f32; part * n], vec![0f32; part * n + 3]);
    let mut pairs = [pair(), pair(), pair()];
    for turn in 0..12 {
        let (input, output) = &mut pairs[turn % 3];
        input.iter_mut().enumerate().for_each(|(at, one)| *one = value(rank, turn, at));
        output.fill(f32::NAN);
        let got = &mut output[3..];
        let expected = |at: usize| match turn / 3 {
            0 | 1 => (0..n).map(|of| value(of, turn, at)).sum::<f32>(),
            2 => value(at / part, turn, at % part),
            _ => value(at / part, turn, rank * part + at % part),
        };
        match turn / 3 {
            0 | 1 => comm.all_reduce(&input[..], got, ReduceOp::Sum).unwrap(),
            2 => comm.all_gather(&input[..part], got).unwrap(),
            _ => comm.all_to_all(&input[..], got).unwrap(),
        }
        assert!((0..part * n).all(|at| got[at] == expected(at)), "turn {turn} over {n} ranks");
        assert!(output[..3].iter().all(|one| one.is_nan()), "beside");
    }
    comm.barrier().unwrap();
}

fn around(comm: &Communicator, most: usize) {
    let (rank, n) = (comm.rank(), comm.world_size());
    let value = |rank: usize, at: usize| ((rank * 31 + at * 7) % 113) as f32;
    let mut input = comm.alloc_host::<f32>(most).unwrap();
    let mut output = comm.alloc_host::<f32>(most).unwrap();
    let values: Vec<f32> = (0..most).map(|at| value(rank, at)).collect();
    input.copy_from_slice(&values);
    // Somewhere in a line, alike on all ranks and not.
    for (from, to) in [(0, 0), (3, 3), (5, 2 + rank)] {
        for part in [1, 15, 64, 129, 4000, 10_003] {
            let poisoned = vec![f32::NAN; most];
            let sum = |at: usize| (0..n).map(|of| value(of, from + at)).sum::<f32>();
            output.copy_from_slice(&poisoned);
            let (sent, got) = (&input[from..from + part * n], &mut output[to..to + part * n]);
            comm.all_reduce(sent, got, ReduceOp::Sum).unwrap();
            assert!((0..part * n).all(|at| got[at] == sum(at)), "all_reduce {from} {to} {part}");
            comm.reduce_scatter(sent, &mut got[..part], ReduceOp::Sum).unwrap();
            assert!((0..part).all(|at| got[at] == sum(rank * part + at)), "{from} {to} {part}");
            comm.all_gather(&sent[..part], got).unwrap();
            let gathered = |at: usize| value(at / part, from + at % part);
            assert!((0..part * n).all(|at| got[at] == gathered(at)), "{from} {to} {part}");
            comm.all_to_all(sent, got).unwrap();
            let exchanged = |at: usize| value(at / part, from + rank * part + at % part);
            assert!((0..part * n).all(|at| got[at] == exchanged(at)), "{from} {to} {part}");
            let is_poison = |at: usize| output[at].is_nan();
            assert!((0..to).all(is_poison) && (to + part * n..most).all(is_poison), "beside");
        }
    }
    let mut both: Vec<f32> = input[7..most - 1].to_vec();
    comm.all_reduce(&input[7..most - 1], &mut both, ReduceOp::Max).unwrap();
    comm.all_reduce_in_place(&mut input[7..most - 1], ReduceOp::Max).unwrap();
    assert_eq!(both, input[7..most - 1], "in place");
    comm.barrier().unwrap();
}

#[test]
fn groups_have_no_ll128() {
    on_ranks(2, |mut comm| {
        use oxccl::{Pin, plans::algorithms::Encoding};
        comm.set_pin(Pin { encoding: Some(Encoding::Ll128), ..Pin::default() }).unwrap();
        let mut buckets = [vec![1.0f32; 3], vec![2.0; 50]];
        let error = comm.group(|group| {
            for bucket in &mut buckets {
                group.all_reduce_in_place(bucket, ReduceOp::Sum)?;
            }
            Ok(())
        });
        let error = error.unwrap_err();
        assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
        assert!(error.to_string().contains("a call that is in no group"), "{error}");
        let (kind, op) = (oxccl::Kind::AllReduce, oxccl::OpKind::Sum);
        let plan = comm.plan::<f32>(kind, op, 53, 0, true, true).unwrap();
        assert_eq!(plan.encoding, Encoding::Ll128);
        let error = comm.plan_in_group::<f32>(kind, op, 53, 0, true, true).unwrap_err();
        assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
        comm.all_reduce_in_place(&mut [1.0f32], ReduceOp::Sum).unwrap();
    });
}

#[test]
fn an_order_excludes_algorithms() {
    on_ranks(2, |mut comm| {
        use oxccl::{Pin, plans::algorithms::Algorithm};
        comm.set_order(Order::Rank).unwrap();
        comm.set_pin(Pin { algorithm: Some(Algorithm::Ring), ..Pin::default() }).unwrap();
        let error = comm.all_reduce_in_place(&mut [1.0f32], ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
        assert!(error.to_string().contains("two_shot/windows"), "{error}");
        comm.set_pin(Pin::default()).unwrap();
        comm.all_reduce_in_place(&mut [1.0f32], ReduceOp::Sum).unwrap();
    });
}

#[test]
fn partial_results_keep_an_order_where_they_are_not_rounded() {
    on_ranks(4, |mut comm| {
        use oxccl::{Pin, bf16, plans::algorithms::Algorithm};
        let input: Vec<f32> =
            (0..1000).map(|i| (i * 37 + comm.rank() * 91) as f32 * 0.37).collect();
        comm.set_order(Order::Tree).unwrap();
        let mut results = Vec::new();
        for algorithm in
            [Algorithm::OneShot, Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling]
        {
            comm.set_pin(Pin { algorithm: Some(algorithm), ..Pin::default() }).unwrap();
            let mut output = input.clone();
            comm.all_reduce_in_place(&mut output, ReduceOp::Sum).unwrap();
            results.push(output);
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        // 16-bit floats accumulate in 32 bits, so partial results would lose some.
        let error = comm.all_reduce_in_place(&mut [bf16::ONE], ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
        comm.set_pin(Pin::default()).unwrap();
        comm.all_reduce_in_place(&mut [bf16::ONE], ReduceOp::Sum).unwrap();
    });
}

#[test]
fn what_does_not_exist_for_these_ranks_says_what_it_needs() {
    use oxccl::plans::algorithms::{Algorithm, Inner, Outer};
    let pinned = |ranks: usize, algorithm: Algorithm, needed: &'static str| {
        on_ranks(ranks, |mut comm| {
            comm.set_pin(oxccl::Pin { algorithm: Some(algorithm), ..Default::default() }).unwrap();
            let error = comm.all_reduce_in_place(&mut [1.0f32], ReduceOp::Sum).unwrap_err();
            assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(needed) && text.contains("there are one_shot/ll"), "{text}");
        });
    };
    pinned(3, Algorithm::HalvingDoubling, "it needs a number of ranks that is a power of two");
    pinned(2, Algorithm::MultiRing, "it needs at least 3 ranks");
    let hierarchical = Algorithm::Hierarchical(Inner::Direct, Outer::Tree);
    pinned(2, hierarchical, "does not exist for 2 ranks with 2 on a node: it needs at least two");
}
