//! What ranks share as threads of one process, under every interleaving:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p oxccl-transports --test loom`.
#![cfg(loom)]

use std::time::{Duration, Instant};

use loom::sync::atomic::Ordering;
use loom::thread;
use oxccl_transports::{Bootstrap, Cause, Error, LocalBootstrap, local};

/// Models have no time: nothing times out.
fn never() -> Instant {
    Instant::now() + Duration::from_secs(1 << 20)
}

fn pair() -> (LocalBootstrap, LocalBootstrap) {
    let [a, b] = local(2).try_into().expect("two ranks");
    (a, b)
}

fn aborted(rank: usize) -> Cause {
    Cause::Aborted { rank, reason: format!("by {rank}") }
}

#[test]
fn the_first_cause_wins_and_is_there_when_the_word_is() {
    loom::model(|| {
        let (a, b) = pair();
        let (left, right) = (a.liveness(), b.liveness());
        let one = thread::spawn(move || left.abort(aborted(0)));
        let two = thread::spawn(move || right.abort(aborted(1)));
        let seen = a.liveness();
        let early = seen.cause();
        if seen.abort_word().load(Ordering::Acquire) != 0 {
            let now = seen.cause().expect("the word comes after the cause");
            assert!(early.is_none_or(|early| early == now), "it stays");
        }
        one.join().unwrap();
        two.join().unwrap();
        for liveness in [a.liveness(), b.liveness()] {
            assert_ne!(liveness.abort_word().load(Ordering::Acquire), 0);
            let cause = liveness.cause();
            assert!([Some(aborted(0)), Some(aborted(1))].contains(&cause));
        }
        a.liveness().close(0);
        b.liveness().close(0);
    });
}

#[test]
fn bytes_are_exchanged_twice() {
    // Without a bound this takes minutes; three preemptions find what there is to find.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut a, mut b) = pair();
        let other = thread::spawn(move || {
            for round in 0..2 {
                assert_eq!(b.all_gather(&[1, round], never()).unwrap(), [[0, round], [1, round]]);
            }
            b.liveness().close(2);
        });
        for round in 0..2 {
            assert_eq!(a.all_gather(&[0, round], never()).unwrap(), [[0, round], [1, round]]);
        }
        a.liveness().close(2);
        other.join().unwrap();
    });
}

#[test]
fn an_abort_wakes_whoever_waits() {
    loom::model(|| {
        let (mut a, b) = pair();
        let other = thread::spawn(move || b.liveness().abort(aborted(1)));
        match a.all_gather(&[], never()) {
            Err(Error::Stopped(cause)) => assert_eq!(cause, aborted(1)),
            other => panic!("{other:?}"),
        }
        other.join().unwrap();
    });
}

#[test]
fn a_death_wakes_whoever_waits() {
    loom::model(|| {
        let (mut a, b) = pair();
        let other = thread::spawn(move || drop(b));
        match a.all_gather(&[], never()) {
            Err(Error::Stopped(cause)) => assert_eq!(cause, Cause::Died { rank: 1 }),
            other => panic!("{other:?}"),
        }
        other.join().unwrap();
    });
}

#[test]
fn a_goodbye_wakes_whoever_waits() {
    loom::model(|| {
        let (mut a, b) = pair();
        let other = thread::spawn(move || b.liveness().close(5));
        match a.all_gather(&[], never()) {
            Err(Error::Left { rank: 1, calls: 5 }) => {}
            other => panic!("{other:?}"),
        }
        other.join().unwrap();
        assert_eq!(a.liveness().cause(), None, "no death");
        a.liveness().close(0);
    });
}
