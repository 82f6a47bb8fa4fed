//! Messages in groups: any pattern arrives without deadlock, and a message that its other end does
//! not expect has a name.
#![allow(clippy::unwrap_used)]

use oxccl::{Advanced, Collectives, Communicator, Config, Error, Group, ReduceOp};
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use std::time::Duration;

/// Bytes from one rank to another.
type Sent = (usize, usize, usize);

fn byte(sent: &Sent, number: usize, at: usize) -> u8 {
    (sent.0 * 31 + sent.1 * 7 + number * 13 + at) as u8
}

/// Runs `rank` on a thread for every rank and returns what they return, in rank order.
fn on_ranks<T: Send>(n: usize, config: &Config, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let ranks = Communicator::local_with(n, config).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn add<'a>(
    group: &mut Group<'a>,
    rank: usize,
    messages: &[(usize, &Sent)],
    buffers: &'a mut [Vec<u8>],
) -> Result<(), Error> {
    for ((_, (from, to, _)), buffer) in messages.iter().zip(buffers) {
        if *from == rank {
            group.send(buffer, *to)?
        } else {
            group.recv(buffer, *from)?
        };
    }
    Ok(())
}

/// A rank's own messages, from the last to the first if `turned`, a collective in their midst, and
/// the group once more.
fn exchange(comm: &Communicator, sent: &[Sent], turned: bool) {
    let rank = comm.rank();
    let own = |(_, one): &(usize, &Sent)| one.0 == rank || one.1 == rank;
    let mut mine: Vec<(usize, &Sent)> = sent.iter().enumerate().filter(own).collect();
    if turned {
        // Between two ranks the order stays, so only the pairs are turned.
        mine.sort_by_key(|(number, one)| (usize::MAX - one.0 - one.1, *number));
    }
    for _ in 0..2 {
        let mut buffers: Vec<Vec<u8>> = mine
            .iter()
            .map(|(number, one)| {
                let fill = |at| if one.0 == rank { byte(one, *number, at) } else { 0xee };
                (0..one.2).map(fill).collect()
            })
            .collect();
        let mut sum = [rank as i32; 5];
        let launches = comm.launches();
        comm.group(|group| {
            let (first, second) = buffers.split_at_mut(mine.len() / 2);
            let (early, late) = mine.split_at(first.len());
            add(group, rank, early, first)?;
            group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            add(group, rank, late, second)
        })
        .unwrap();
        assert_eq!(comm.launches(), launches + 1);
        assert_eq!(sum, [(0..comm.world_size() as i32).sum::<i32>(); 5]);
        for ((number, one), buffer) in mine.iter().zip(&buffers) {
            let wrong = (0..one.2).find(|at| buffer[*at] != byte(one, *number, *at));
            assert_eq!(wrong, None, "message {number}, {one:?}");
        }
    }
    assert_eq!(comm.plans(), 1);
}

#[test]
fn any_pattern_arrives() {
    let case = (2usize..=6).prop_flat_map(|ranks| {
        let len = prop_oneof![Just(0usize), 1usize..300, 300usize..40_000];
        let pair = (0..ranks, 1..ranks).prop_map(move |(from, by)| (from, (from + by) % ranks));
        let sent = (pair, len).prop_map(|((from, to), len)| (from, to, len));
        (Just(ranks), prop::collection::vec(sent, 0..40), 1usize..3, 1usize..4)
    });
    let mut runner = TestRunner::new(Cases { cases: 40, ..Cases::default() });
    let run = |(ranks, sent, channels, of_messages): (usize, Vec<Sent>, usize, usize)| {
        // Slots so small that many messages do not fit into them.
        let pin = oxccl::Pin { channels: Some(channels), ..Default::default() };
        let config = Config {
            pin,
            advanced: Advanced {
                slot_bytes: Some(1024),
                ll_slot_bytes: 128,
                message_channels: Some(of_messages),
                ..Advanced::default()
            },
            ..Config::default()
        };
        on_ranks(ranks, &config, |comm| exchange(&comm, &sent, comm.rank() % 2 == 1));
        Ok(())
    };
    runner.run(&case, run).unwrap();
}

/// 64 messages of 100 KiB each way between two ranks, which have 4 slots of 64 KiB.
#[test]
fn more_messages_than_slots() {
    let sent: Vec<Sent> = (0..128).map(|at| (at % 2, 1 - at % 2, 100 << 10)).collect();
    on_ranks(2, &Config::default(), |comm| exchange(&comm, &sent, false));
}

#[test]
fn ranks_without_messages_are_not_involved() {
    on_ranks(4, &Config::default(), |comm| {
        let mut buffer = [comm.rank() as u64; 3000];
        for _ in 0..3 {
            match comm.rank() {
                1 => comm.group(|group| group.send(&buffer, 3)).map(|_| ()),
                3 => comm.group(|group| group.recv(&mut buffer, 1)).map(|_| ()),
                _ => Ok(()),
            }
            .unwrap();
            comm.barrier().unwrap();
        }
        assert_eq!(buffer, [if comm.rank() == 3 { 1 } else { comm.rank() as u64 }; 3000]);
    });
}

/// The errors of ranks that make these groups of messages, none where one succeeded.
fn errors(
    n: usize,
    timeout_ms: u64,
    group: impl Fn(&Communicator) -> Result<(), Error> + Sync,
) -> Vec<Option<Error>> {
    let config = Config { timeout: Duration::from_millis(timeout_ms), ..Config::default() };
    on_ranks(n, &config, |comm| {
        let error = group(&comm).err();
        // Whoever closes would end the others' groups before they have found out themselves.
        std::thread::sleep(Duration::from_millis(if error.is_some() { 0 } else { timeout_ms * 3 }));
        error
    })
}

#[test]
fn messages_that_differ_name_bucket_and_rank() {
    for len in [3, 200_000] {
        let found = errors(2, 20_000, |comm| {
            let (mut first, second) = ([0u8; 64], vec![0u8; len]);
            let mut other = vec![0u8; len + 1];
            comm.group(|group| match comm.rank() {
                0 => group.recv(&mut first, 1).and_then(|_| group.send(&second, 1)),
                _ => group.recv(&mut other, 0).and_then(|_| group.send(&first, 0)),
            })
            .map(|_| ())
        });
        let expected = |error: &Option<Error>| {
            matches!(
                error,
                Some(Error::Mismatch { bucket: Some(1), rank: 1, argument: "count", .. })
            ) || matches!(error, Some(Error::Mismatch { bucket: Some(0), rank: 0, .. }))
        };
        assert!(found.iter().any(expected), "{found:?}");
        assert!(found.iter().all(Option::is_some), "{found:?}");
    }
}

#[test]
fn types_that_differ_are_found_though_the_bytes_are_as_many() {
    let found = errors(2, 20_000, |comm| {
        let (floats, mut bytes) = ([1f32; 10], [0u8; 40]);
        comm.group(|group| match comm.rank() {
            0 => group.send(&floats, 1),
            _ => group.recv(&mut bytes, 0),
        })
        .map(|_| ())
    });
    assert!(found.iter().all(Option::is_some), "{found:?}");
    let mismatch =
        |error: &Option<Error>| matches!(error, Some(Error::Mismatch { bucket: Some(0), .. }));
    assert!(found.iter().any(mismatch), "{found:?}");
}

/// In a group of all ranks, and in one of messages alone.
#[test]
fn a_message_that_nobody_receives_is_named() {
    for with_collective in [true, false] {
        let found = errors(3, 200, |comm| {
            let (message, mut sum) = ([1u8; 10], [1f32; 4]);
            if comm.rank() != 0 && !with_collective {
                return Ok(());
            }
            comm.group(|group| {
                if with_collective {
                    group.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
                }
                if comm.rank() == 0 {
                    group.send(&message, 1)?;
                }
                Ok(())
            })
        });
        let Some(error @ Error::TimedOut { .. }) = &found[0] else { panic!("{found:?}") };
        let bucket = usize::from(with_collective);
        let expected = format!("rank 1 did not receive bucket {bucket}, a send of 10 uint8");
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(found[1].is_none() && found[2].is_none(), "{found:?}");
    }
}

#[test]
fn an_all_to_all_with_counts_that_differ_is_named() {
    let found = errors(2, 20_000, |comm| {
        let counts = if comm.rank() == 0 { [[1, 2], [1, 2]] } else { [[3, 1], [2, 1]] };
        let [send, recv] = counts;
        let (from, mut to) = (vec![1f32; send.iter().sum()], vec![0f32; recv.iter().sum()]);
        comm.group(|group| group.all_to_all_v(&from, &send, &mut to, &recv)).map(|_| ())
    });
    let named = |error: &Option<Error>| {
        matches!(error, Some(Error::Mismatch { bucket: Some(0), argument: "count", .. }))
    };
    assert!(found.iter().any(named), "{found:?}");
}

/// Short and long ones, within nodes and between them.
#[test]
fn messages_between_nodes() {
    let sent: Vec<Sent> =
        (0..24).map(|at| (at % 4, (at + 1 + at / 12) % 4, [3, 700, 150_000][at % 3])).collect();
    let config = Config { nodes: Some(2), heap_bytes: 64 << 20, ..Config::default() };
    on_ranks(4, &config, |comm| exchange(&comm, &sent, false));
}
