//! Each violation by name, on schedules small enough to be read.

use super::*;
use crate::collective::Collective;
use crate::schedule::{
    Chunking, Flag, Instruction, Lane, Link, Members, Operand, RankBuilder, Read, Slots, Source,
    Write,
};

const SLOTS: Slots = Slots { ll: 2, ll128: 2, slots: 2 };

fn link(peer: usize, lane: Lane) -> Link {
    Link::new(peer, lane)
}

fn schedule(
    collective: Collective,
    chunking: (Chunking, Chunking),
    part: impl Fn(&mut RankBuilder),
) -> Schedule {
    let list = |rank| {
        let mut builder = RankBuilder::new(rank, SLOTS, Tree::Left);
        part(&mut builder);
        builder.finish()
    };
    let lists = (0..collective.ranks).map(list).collect();
    Schedule {
        collective,
        input: chunking.0,
        output: chunking.1,
        scratch: 0,
        slots: SLOTS,
        lists_per_rank: 1,
        lists,
    }
}

const WHOLE: (Chunking, Chunking) = (Chunking::Whole, Chunking::Whole);
const GATHER: (Chunking, Chunking) = (Chunking::Whole, Chunking::PerRank(1));

/// Both ranks send their input to the other and reduce the two, by rank.
fn exchange(lane: Lane) -> Schedule {
    schedule(Collective::new(Kind::AllReduce, 2), WHOLE, |b| {
        let peer = 1 - b.rank();
        b.send(Operand::Input(0), link(peer, lane));
        let mut reads = [Read::Raw(Operand::Input(0)), Read::RecvRaw(link(peer, lane))];
        reads.rotate_left(b.rank());
        b.transfer(&reads, &[Write::To(Operand::Output(0))], true);
    })
}

/// Both ranks fetch the other's input in place.
fn fetch() -> Schedule {
    schedule(Collective::new(Kind::AllGather, 2), GATHER, |b| {
        let peer = 1 - b.rank();
        b.enter(&[peer]);
        b.copy(Operand::Input(0), &[Operand::Output(b.rank())]);
        b.copy(Operand::Window { peer, buffer: Buffer::Input, chunk: 0 }, &[Operand::Output(peer)]);
        b.barrier(&[peer]);
    })
}

fn refused(schedule: Schedule) -> Violation {
    verify(schedule, Order::Any, false).expect_err("it is wrong")
}

fn position(schedule: &Schedule, rank: usize, wanted: impl Fn(&Instruction) -> bool) -> usize {
    schedule.lists[rank].iter().position(wanted).expect("it is there")
}

#[test]
fn an_exchange_is_proven_in_every_promise() {
    for lane in [Lane::Ll, Lane::Slots] {
        for promise in [Order::Any, Order::Rank, Order::Tree] {
            let verified = verify(exchange(lane), promise, true).expect("it is right");
            assert!(verified.single_rounding() && verified.in_place());
            assert_eq!(verified.promise(), promise);
            assert_eq!(verified.schedule(), &exchange(lane));
        }
    }
    verify(fetch(), Order::Any, true).expect("it is right");
}

#[test]
fn partial_results_are_rounded_again() {
    // A chain of three: rank 1 stores the sum of two in a slot.
    let chain = schedule(Collective::rooted(Kind::Reduce, 3, 2), WHOLE, |b| {
        let own = Read::Raw(Operand::Input(0));
        let (next, previous) =
            (link(b.rank() + 1, Lane::Slots), link(b.rank().wrapping_sub(1), Lane::Slots));
        match b.rank() {
            0 => b.send(Operand::Input(0), next),
            1 => b.transfer(&[Read::RecvRaw(previous), own], &[Write::Send(next)], false),
            _ => b.transfer(&[Read::Recv(previous), own], &[Write::To(Operand::Output(0))], true),
        }
    });
    let verified = verify(chain.clone(), Order::Rank, true).expect("a left fold by rank");
    assert!(!verified.single_rounding());
    verify(chain, Order::Tree, true).expect("of three, it is the tree as well");
}

#[test]
fn waiting_for_each_other_is_a_deadlock() {
    let both_wait = schedule(Collective::new(Kind::AllGather, 2), GATHER, |b| {
        let peer = 1 - b.rank();
        b.recv_copy(link(peer, Lane::Slots), Operand::Output(peer));
        b.send(Operand::Input(0), link(peer, Lane::Slots));
        b.copy(Operand::Input(0), &[Operand::Output(b.rank())]);
    });
    let stuck = |rank, peer| Stuck {
        rank,
        list: 0,
        step: 0,
        peer,
        peer_list: 0,
        awaited: Awaited::Counter {
            flag: Flag::Tail(link(peer, Lane::Slots)),
            value: 1,
            reached: 0,
        },
    };
    let violation = refused(both_wait);
    assert_eq!(violation, Violation::Deadlock(vec![stuck(0, 1), stuck(1, 0)]));
    assert!(
        violation
            .to_string()
            .contains("rank 0, step 0 waits for rank 1: 1.slots.tail is +0, not +1")
    );
}

#[test]
fn a_credit_is_needed_for_every_slot() {
    let mut one_more = exchange(Lane::Slots);
    let credit =
        position(&one_more, 0, |one| matches!(one, Instruction::Wait { flag: Flag::Head(_), .. }));
    let Instruction::Wait { value, .. } = &mut one_more.lists[0][credit] else { unreachable!() };
    *value -= 1;
    let found = refused(one_more);
    assert!(matches!(found, Violation::Credit { rank: 0, reader: 1, credit: -1, .. }), "{found}");
}

/// A rank that has heard from its peer in this round knows that earlier rounds are over there, and
/// that all slots are free.
#[test]
fn an_answer_needs_no_credit() {
    let collective = Collective::rooted(Kind::Gather, 2, 0);
    let mut answer = schedule(collective, GATHER, |b| match b.rank() {
        0 => {
            b.send(Operand::Tokens, link(1, Lane::Ll));
            b.copy(Operand::Input(0), &[Operand::Output(0)]);
            b.recv_copy(link(1, Lane::Slots), Operand::Output(1));
        }
        _ => {
            b.recv_copy(link(0, Lane::Ll), Operand::PeerTokens(0));
            b.send(Operand::Input(0), link(0, Lane::Slots));
        }
    });
    let credit =
        position(&answer, 1, |one| matches!(one, Instruction::Wait { flag: Flag::Head(_), .. }));
    answer.lists[1].remove(credit);
    verify(answer, Order::Any, true).expect("the tokens say that rank 0 has entered");
}

/// The head of a lane whose messages announce themselves is no release on a GPU.
#[test]
fn a_credit_of_lines_says_nothing_else() {
    let collective = Collective::rooted(Kind::Broadcast, 2, 0);
    let fetched = |lane: Lane, head: i64| {
        let mut fetched = schedule(collective, WHOLE, |b| match b.rank() {
            0 => {
                b.enter(&[1]);
                b.copy(Operand::Input(0), &[Operand::Output(0)]);
                b.send(Operand::Input(0), link(1, lane));
            }
            _ => {
                b.enter(&[0]);
                let window = Operand::Window { peer: 0, buffer: Buffer::Input, chunk: 0 };
                b.copy(window, &[Operand::Output(0)]);
                b.recv_copy(link(0, lane), Operand::Output(0));
            }
        });
        let flag = Flag::Head(link(1, lane));
        fetched.lists[0].push(Instruction::Wait { flag, value: head });
        fetched
    };
    verify(fetched(Lane::Slots, 1), Order::Any, false).expect("the head is a release");
    // Behind the tokens it is the second message.
    let left = refused(fetched(Lane::Ll, 2));
    assert!(matches!(left, Violation::Leaves { rank: 0, peer: 1, .. }), "{left}");
}

#[test]
fn an_arrival_has_to_be_awaited() {
    let mut blind = exchange(Lane::Slots);
    let wait =
        position(&blind, 1, |one| matches!(one, Instruction::Wait { flag: Flag::Tail(_), .. }));
    blind.lists[1].remove(wait);
    assert!(matches!(refused(blind), Violation::Arrival { rank: 1, .. }));
}

#[test]
fn messages_and_counters_say_the_same() {
    let mut silent = exchange(Lane::Ll);
    silent.lists[0].pop();
    let head = Flag::Head(link(1, Lane::Ll));
    assert_eq!(
        refused(silent),
        Violation::Unannounced { rank: 0, flag: head, announced: 0, done: 1 }
    );

    let mut boast = exchange(Lane::Ll);
    boast.lists[0].pop();
    boast.lists[0].push(Instruction::Signal { flag: head, value: 2 });
    assert!(matches!(
        refused(boast),
        Violation::Signal { rank: 0, value: 2, done: 1, announced: 0, .. }
    ));

    let mut late = exchange(Lane::Ll);
    for instruction in &mut late.lists[0] {
        if let Instruction::ReduceCopy { destinations, .. } = instruction {
            for operand in destinations {
                if let Operand::PeerSlot { message, .. } = operand {
                    *message = 1;
                }
            }
        }
    }
    assert!(matches!(refused(late), Violation::Message { rank: 0, expected: 0, .. }));

    let unread = schedule(Collective::rooted(Kind::Broadcast, 2, 0), WHOLE, |b| match b.rank() {
        0 => {
            b.send(Operand::Input(0), link(1, Lane::Ll));
            b.send(Operand::Input(0), link(1, Lane::Ll));
            b.copy(Operand::Input(0), &[Operand::Output(0)]);
        }
        _ => b.recv_copy(link(0, Lane::Ll), Operand::Output(0)),
    });
    assert_eq!(
        refused(unread),
        Violation::Unread { from: 0, to: 1, lane: Lane::Ll, sent: 2, received: 1 }
    );
}

#[test]
fn windows_open_with_the_tokens_and_close_with_the_exit_barrier() {
    let is_fetch = |one: &Instruction| one.uses_window();
    let mut early = fetch();
    let step = position(&early, 0, is_fetch);
    let copy = early.lists[0].remove(step);
    early.lists[0].insert(0, copy);
    assert!(matches!(refused(early), Violation::Closed { rank: 0, step: 0, peer: 1, .. }));

    // No exit barrier at all: rank 1 is gone when rank 0 comes to fetch.
    let mut open = fetch();
    for list in &mut open.lists {
        list.truncate(list.len() - 2);
    }
    let found = refused(open);
    assert!(matches!(found, Violation::Race { rank: 0, other: 1, .. }), "{found}");

    // Rank 1 does not say when it has fetched.
    let mut silent = fetch();
    let wait = silent.lists[0].pop();
    assert!(matches!(wait, Some(Instruction::Wait { .. })));
    let signal =
        position(&silent, 1, |one| matches!(one, Instruction::Signal { flag: Flag::Tail(_), .. }));
    silent.lists[1].remove(signal);
    let input = Violation::Leaves { rank: 0, peer: 1, buffer: Buffer::Input, chunk: 0 };
    assert_eq!(refused(silent), input);
}

#[test]
fn unordered_accesses_are_a_race() {
    // Rank 0 fetches what rank 1 has copied to its output, without waiting until it has.
    let hasty = schedule(Collective::new(Kind::AllGather, 2), GATHER, |b| {
        let peer = 1 - b.rank();
        let copy = Operand::Window { peer, buffer: Buffer::Output, chunk: peer };
        let input = Operand::Window { peer, buffer: Buffer::Input, chunk: 0 };
        b.enter(&[peer]);
        b.copy(Operand::Input(0), &[Operand::Output(b.rank())]);
        b.copy(if b.rank() == 0 { copy } else { input }, &[Operand::Output(peer)]);
        b.barrier(&[peer]);
    });
    let found = refused(hasty);
    assert!(matches!(found, Violation::Race { rank: 0, other: 1, .. }), "{found}");
}

#[test]
fn in_place_something_may_be_overwritten_that_is_needed() {
    let rotated = schedule(
        Collective::new(Kind::AllToAll, 2),
        (Chunking::PerRank(1), Chunking::PerRank(1)),
        |b| {
            let peer = 1 - b.rank();
            b.enter(&[peer]);
            b.copy(Operand::Input(b.rank()), &[Operand::Output(b.rank())]);
            b.copy(
                Operand::Window { peer, buffer: Buffer::Input, chunk: b.rank() },
                &[Operand::Output(peer)],
            );
            b.barrier(&[peer]);
        },
    );
    verify(rotated.clone(), Order::Any, false).expect("with separate buffers it is right");
    let found = verify(rotated, Order::Any, true).expect_err("in place it is not");
    assert!(matches!(found, Violation::InPlace(_)), "{found}");
}

#[test]
fn values_must_be_what_was_promised() {
    let missing = schedule(Collective::new(Kind::AllReduce, 2), WHOLE, |_| {});
    assert_eq!(refused(missing), Violation::Missing { rank: 0, chunk: 0 });

    let mut alone = exchange(Lane::Ll);
    for instruction in &mut alone.lists[0] {
        if let Instruction::ReduceCopy { sources, .. } = instruction {
            sources.insert(0, sources[0]);
            sources.truncate(if sources.len() == 2 { 1 } else { 3 });
        }
    }
    let found = refused(alone);
    let Violation::WrongValue { rank: 0, chunk: 0, expected, found } = found else {
        panic!("{found}")
    };
    assert_eq!(expected, "every rank's contribution once (rank 0 contributes more than once)");
    assert_eq!(found, "final ((x0[0] + x0[0]) + x1[0])");

    let mut swapped = exchange(Lane::Ll);
    for instruction in &mut swapped.lists[1] {
        if let Instruction::ReduceCopy { sources, .. } = instruction {
            sources.reverse();
        }
    }
    verify(swapped.clone(), Order::Any, true).expect("any order will do");
    let found = verify(swapped, Order::Rank, true).expect_err("not this one");
    assert!(
        found.to_string().ends_with("should be final (x0[0] + x1[0]) and is final (x1[0] + x0[0])"),
        "{found}"
    );
}

#[test]
fn a_barrier_holds_every_rank() {
    let ring = |steps: usize| {
        schedule(Collective::new(Kind::Barrier, 3), WHOLE, move |b| {
            let (next, previous) = ((b.rank() + 1) % 3, (b.rank() + 2) % 3);
            for _ in 0..steps {
                b.send(Operand::Tokens, link(next, Lane::Ll));
                b.recv_copy(link(previous, Lane::Ll), Operand::PeerTokens(previous));
            }
        })
    };
    assert_eq!(refused(ring(1)), Violation::LeavesBarrier { rank: 0, peer: 1 });
    verify(ring(2), Order::Any, false).expect("twice around three ranks");
}

#[test]
fn operands_are_checked_before_anything_runs() {
    let copy = |source, destination| Instruction::ReduceCopy {
        sources: vec![Source::plain(source)],
        destinations: vec![destination],
        tree: Tree::Left,
        finish: false,
    };
    let misuse = |instruction| {
        let mut schedule = fetch();
        schedule.lists[1] = vec![instruction];
        match refused(schedule) {
            Violation::Operand { rank: 1, step: 0, misuse, .. } => misuse,
            Violation::Instruction { rank: 1, step: 0, misuse } => misuse,
            other => panic!("{other}"),
        }
    };
    let (input, output) = (Operand::Input(0), Operand::Output(0));
    let slot = |link| Operand::Slot { link, message: 0, segment: 0 };
    let window = |peer, buffer| Operand::Window { peer, buffer, chunk: 0 };
    assert_eq!(misuse(copy(Operand::PeerTokens(0), output)), Misuse::WriteOnly);
    assert_eq!(misuse(copy(input, input)), Misuse::ReadOnly);
    assert_eq!(misuse(copy(input, window(0, Buffer::Input))), Misuse::ReadOnly);
    assert_eq!(misuse(copy(window(1, Buffer::Input), output)), Misuse::OwnPeer);
    assert_eq!(misuse(copy(window(2, Buffer::Input), output)), Misuse::NoSuchRank);
    assert_eq!(misuse(copy(Operand::Input(1), output)), Misuse::NoSuchChunk);
    assert_eq!(misuse(copy(slot(link(0, Lane::Sync)), output)), Misuse::NoSlots);
    assert_eq!(
        misuse(Instruction::Signal { flag: Flag::Tail(link(0, Lane::Ll)), value: 1 }),
        Misuse::NoCounter
    );
    let wide = |sources, destinations, finish| Instruction::ReduceCopy {
        sources,
        destinations,
        tree: Tree::Left,
        finish,
    };
    assert_eq!(misuse(wide(vec![], vec![output], false)), Misuse::NoOperands);
    assert_eq!(
        misuse(wide(vec![Source::plain(input); 300], vec![output], false)),
        Misuse::TooManyOperands
    );
    assert_eq!(misuse(wide(vec![Source::plain(input)], vec![output; 2], false)), Misuse::Twice);
    assert_eq!(misuse(wide(vec![Source::plain(input)], vec![output], true)), Misuse::DoesNotReduce);
}

#[test]
fn the_schedule_has_to_fit_its_collective() {
    let malformed = |change: fn(&mut Schedule)| {
        let mut schedule = fetch();
        change(&mut schedule);
        refused(schedule)
    };
    let short = malformed(|schedule| drop(schedule.lists.pop()));
    assert_eq!(short, Violation::Schedule(Malformed::Ranks { ranks: 2, lists: 1 }));
    let root = malformed(|schedule| schedule.collective.root = 2);
    assert_eq!(root, Violation::Schedule(Malformed::Root { root: 2, receiver: 0, ranks: 2 }));
    let chunking = malformed(|schedule| schedule.output = Chunking::Whole);
    assert_eq!(chunking, Violation::Schedule(Malformed::Chunking(Kind::AllGather)));
    let slots = malformed(|schedule| schedule.slots.ll = 3);
    assert_eq!(slots, Violation::Schedule(Malformed::Slots(3)));
}

/// Two chunks in one message.
fn packed() -> Schedule {
    let (collective, parts) = (Collective::rooted(Kind::Broadcast, 2, 0), Chunking::Parts(2));
    schedule(collective, (parts, parts), |b| match b.rank() {
        0 => {
            let mut message = b.open_outgoing(link(1, Lane::Slots));
            for chunk in 0..2 {
                let segment = message.segment();
                b.copy(Operand::Input(chunk), &[Operand::Output(chunk), segment]);
            }
            b.close_outgoing(message);
        }
        _ => {
            let mut message = b.open_incoming(link(0, Lane::Slots));
            for chunk in 0..2 {
                let segment = message.segment();
                b.copy(segment, &[Operand::Output(chunk)]);
            }
            b.close_incoming(message);
        }
    })
}

#[test]
fn segments_are_announced_and_given_back_together() {
    let verified = verify(packed(), Order::Any, true).expect("it is right");
    assert_eq!(verified.schedule().most_segments()[1], (Lane::Slots, 2));
    let is_signal = |one: &Instruction| matches!(one, Instruction::Signal { .. });

    // Announced when only the first is written, given back when only the first is read.
    for rank in 0..2 {
        let mut early = packed();
        let signal = position(&early, rank, is_signal);
        early.lists[rank].swap(signal - 1, signal);
        let found = refused(early);
        let expected = matches!(found, Violation::Signal { value: 1, done: 0, .. });
        assert!(expected, "rank {rank}: {found}");
    }

    // The second is never read.
    let mut unread = packed();
    unread.lists[1].truncate(2);
    assert!(matches!(refused(unread), Violation::Unread { sent: 1, received: 0, .. }));

    // Out of order.
    let mut swapped = packed();
    swapped.lists[1].swap(1, 2);
    assert!(matches!(refused(swapped), Violation::Message { rank: 1, step: 1, .. }));
}

#[test]
fn what_goes_from_slot_to_slot_has_the_length_of_its_chunk() {
    // Rank 1 hands on what rank 0 sends to rank 2, and keeps nothing of it.
    let collective = Collective::send_recv(3, 0, 2);
    let handed_on = schedule(collective, WHOLE, |b| match b.rank() {
        0 => b.send(Operand::Input(0), link(1, Lane::Ll)),
        1 => b.transfer(
            &[Read::Recv(link(0, Lane::Ll))],
            &[Write::Send(link(2, Lane::Slots))],
            false,
        ),
        _ => b.recv_copy(link(1, Lane::Slots), Operand::Output(0)),
    });
    let step = position(&handed_on, 1, |one| matches!(one, Instruction::ReduceCopy { .. }));
    let verified = verify(handed_on, Order::Any, false).expect("it is right");
    assert_eq!(verified.origin(1, step), Some((0, Buffer::Input, 0)));
    assert_eq!(verified.origin(2, 1), None);
}

/// What accepts less must be enough where it is meant to be: otherwise all proofs would be slow
/// ones.
#[test]
fn schedules_that_only_pass_messages_need_no_clocks() {
    use crate::algorithms::{Encoding, catalogue};
    use crate::topology::Placement;
    let passes = |kind, encoding| kind != Kind::Barrier && encoding != Encoding::Windows;
    for entry in catalogue().filter(|entry| passes(entry.kind, entry.encoding)) {
        for ranks in [2, 3, 4, 6, 8] {
            let collective = match entry.kind {
                Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
                kind => Collective::new(kind, ranks),
            };
            let placement = Placement::uniform(if ranks == 3 { 1 } else { 2 });
            let Ok(schedule) = entry.schedule(collective, placement, Order::Any, SLOTS) else {
                continue;
            };
            let routes = structure::check(&schedule, entry.in_place).unwrap();
            let proof = from_below(&schedule, &routes, Order::Any, entry.in_place);
            assert!(proof.is_some(), "{entry:?} {ranks}");
        }
    }
}

#[test]
fn more_chunks_than_can_be_numbered_are_refused() {
    let chunking = Chunking::Parts(1 << 29);
    let many = schedule(Collective::new(Kind::AllReduce, 2), (chunking, chunking), |_| {});
    let expected = Malformed::Chunks { ranks: 2, chunks: 1 << 29 };
    assert_eq!(refused(many), Violation::Schedule(expected));
}

/// A switch reduces the ranks' chunks, and spreads the results.
fn switched() -> Schedule {
    use crate::algorithms::{Algorithm, Encoding, find};
    use crate::topology::Placement;
    let entry = find(Kind::AllReduce, Algorithm::Nvls, Encoding::Windows).expect("it is there");
    let collective = Collective::new(Kind::AllReduce, 3);
    entry.schedule(collective, Placement::one_node(3), Order::Any, SLOTS).expect("for 3 ranks")
}

fn is_switched(instruction: &Instruction) -> bool {
    instruction.uses_multicast()
}

#[test]
fn a_switch_reduces_in_any_order_and_in_no_other() {
    assert!(verify(switched(), Order::Any, true).is_ok());
    for order in [Order::Rank, Order::Tree] {
        let found = verify(switched(), order, false).expect_err("a switch promises no order");
        assert!(matches!(found, Violation::WrongValue { .. }), "{found}");
        assert!(found.to_string().contains("any order of"), "{found}");
    }
}

#[test]
fn a_switch_reads_and_writes_the_memory_of_all() {
    let of_1 = |change: &dyn Fn(&mut Vec<Instruction>)| {
        let mut schedule = switched();
        change(&mut schedule.lists[1]);
        schedule
    };
    let at = position(&switched(), 1, is_switched);
    // Before all have said where their buffers are.
    let early = of_1(&|list| list.swap(at - 3, at));
    assert!(matches!(refused(early), Violation::Closed { rank: 1, .. }));
    // Another rank's chunk, which that rank handles at the same time.
    let twice = of_1(&|list| {
        let Instruction::ReduceCopy { sources, destinations, .. } = &mut list[at] else { return };
        sources[0].operand =
            Operand::Multicast { of: Members::All, buffer: Buffer::Input, chunk: 2 };
        destinations[0] = Operand::Multicast { of: Members::All, buffer: Buffer::Output, chunk: 2 };
    });
    assert!(matches!(refused(twice), Violation::Race { .. }));
    // Others may leave while it is written.
    let unguarded = of_1(&|list| {
        list.retain(|one| !matches!(one, Instruction::Signal { flag: Flag::Tail(of), .. } if of.lane == Lane::Sync))
    });
    assert!(verify(unguarded, Order::Any, false).is_err());
    // A contribution is premultiplied once, and nothing is reduced twice.
    let plain = of_1(&|list| {
        let Instruction::ReduceCopy { sources, .. } = &mut list[at] else { return };
        sources[0].raw = false;
    });
    let fault = Arithmetic::NotPremultiplied;
    assert_eq!(refused(plain), Violation::Arithmetic { rank: 1, step: at, fault });
}

#[test]
fn a_switch_of_a_node_reaches_that_nodes_ranks() {
    let of_node = |local: usize| {
        let mut schedule = switched();
        for instruction in schedule.lists.iter_mut().flatten() {
            let Instruction::ReduceCopy { sources, destinations, .. } = instruction else {
                continue;
            };
            let operands = sources.iter_mut().map(|source| &mut source.operand);
            for operand in operands.chain(destinations) {
                if let Operand::Multicast { of, .. } = operand {
                    *of = Members::Node(local);
                }
            }
        }
        schedule
    };
    assert!(verify(of_node(3), Order::Any, true).is_ok());
    // Another node's ranks have contributed nothing.
    assert!(matches!(
        refused(of_node(1)),
        Violation::Undefined { .. } | Violation::WrongValue { .. }
    ));
    for local in [0, 2, 4, usize::MAX] {
        let Violation::Operand { misuse, .. } = refused(of_node(local)) else { panic!("{local}") };
        assert_eq!(misuse, Misuse::NoSuchRank, "{local}");
    }
}

#[test]
fn a_switch_does_nothing_else_besides() {
    let mut beside = switched();
    let at = position(&beside, 0, is_switched);
    let Instruction::ReduceCopy { destinations, .. } = &mut beside.lists[0][at] else { return };
    destinations.push(Operand::Output(0));
    let misuse = Misuse::BesideMulticast;
    assert_eq!(refused(beside), Violation::Instruction { rank: 0, step: at, misuse });
    let mut to_peer = switched();
    let Instruction::ReduceCopy { destinations, .. } = &mut to_peer.lists[0][at] else { return };
    let operand = Operand::Window { peer: 1, buffer: Buffer::Output, chunk: 0 };
    destinations[0] = operand;
    assert_eq!(refused(to_peer), Violation::Operand { rank: 0, step: at, operand, misuse });
    let mut input = switched();
    let Instruction::ReduceCopy { destinations, .. } = &mut input.lists[0][at] else { return };
    let operand = Operand::Multicast { of: Members::All, buffer: Buffer::Input, chunk: 0 };
    destinations[0] = operand;
    let misuse = Misuse::ReadOnly;
    assert_eq!(refused(input), Violation::Operand { rank: 0, step: at, operand, misuse });
}
