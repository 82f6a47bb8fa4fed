//! Deadlocks, and what no executor takes.

use super::*;
use crate::schedule::{Flag, Instruction, Lane, Link, Operand, Source};
use crate::verify::Violation;

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    let link = |peer| Link::new(peer, Lane::Slots);
    let wait = |peer| Instruction::Wait { flag: Flag::Tail(link(peer)), value: 1 };
    let mut schedule = schedule_of(Kind::AllReduce, Algorithm::Ring, Encoding::Slots, 3);
    // Everybody waits for what nobody has sent yet.
    for (rank, list) in schedule.lists.iter_mut().enumerate() {
        list.insert(0, wait((rank + 2) % 3));
    }
    let case = Case::new("dgx-h100", Kind::AllReduce, 3, 1 << 20);
    let subject = Subject::schedule(&schedule).unwrap();
    let layout = case.layout(schedule.input, schedule.output);
    let error = simulate(&subject, &layout, &case.network, &case.options).unwrap_err();
    let SimulationError::Schedule(Violation::Deadlock(stuck)) = &error else { panic!("{error}") };
    assert!(stuck.len() == 3 && stuck[0].step == 0, "{stuck:?}");
    let text = error.to_string();
    assert!(text.contains("rank 0, step 0 waits for rank 2: 2.slots.tail is +0, not +1"), "{text}");
}

#[test]
fn an_ll_message_that_never_comes_is_a_deadlock_too() {
    let mut schedule = schedule_of(Kind::AllGather, Algorithm::Direct, Encoding::Ll, 2);
    schedule.lists[1].clear();
    let case = Case::new("dgx-h100", Kind::AllGather, 2, 1 << 10);
    let subject = Subject::schedule(&schedule).unwrap();
    let layout = case.layout(schedule.input, schedule.output);
    let error = simulate(&subject, &layout, &case.network, &case.options).unwrap_err().to_string();
    assert!(error.contains("deadlock: rank 0, step 3 waits for rank 1: from 1.ll#0"), "{error}");
}

#[test]
fn what_no_executor_takes_is_refused_before() {
    let ranks = 2;
    let bad = Instruction::ReduceCopy {
        sources: vec![Source::plain(Operand::Input(7))],
        destinations: vec![Operand::Output(0)],
        tree: Default::default(),
        finish: false,
    };
    let schedule = Schedule {
        collective: Collective::new(Kind::AllReduce, ranks),
        input: Chunking::Whole,
        output: Chunking::Whole,
        scratch: 0,
        slots: SLOTS,
        lists_per_rank: 1,
        lists: vec![vec![bad]; ranks],
    };
    assert!(matches!(Subject::schedule(&schedule), Err(SimulationError::Schedule(_))));
    let case = Case::new("dgx-h100 x 2", Kind::AllReduce, 16, 1 << 20);
    let push = find(Kind::AllReduce, Algorithm::TwoShotPush, Encoding::Windows).unwrap();
    let error = case.entry(push).unwrap_err();
    assert!(matches!(error, SimulationError::WindowAcross { .. }), "{error}");
}
