//! Ranks that are processes: those that are killed, and what is left at the end of one.

use oxccl_transports::{Bootstrap, Cause, Error, Secret, ShmBootstrap, UniqueId, shm};

use crate::common::{
    self, Rank, deadline, held, in_shm_threads, server, wait_for_cause, wait_until,
};
use crate::{join, soon, unserved};

#[test]
fn a_killed_process_is_named_by_all_survivors() {
    let (id, _server) = server();
    let survivors = start(&id, 4, &[(0, "names_the_dead"), (3, "names_the_dead")]);
    let mut victim = Rank::start(&id, 2, 4, "names_the_dead");
    let mine = join(&id, 1, 4).join().unwrap().unwrap();
    victim.kill();
    assert_eq!(wait_for_cause(&mine), Cause::Died { rank: 2 });
    succeed(survivors);
    assert!(!victim.wait().success());
}

#[test]
fn the_serving_rank_is_named_when_it_is_killed() {
    let id = unserved();
    let mut serving = Rank::start(&id, 0, 3, "serves");
    let survivor = start(&id, 3, &[(1, "names_the_dead")]);
    let mine = join(&id, 2, 3).join().unwrap().unwrap();
    serving.kill();
    assert_eq!(wait_for_cause(&mine), Cause::Died { rank: 0 });
    succeed(survivor);
    assert!(!serving.wait().success());
}

#[test]
fn ranks_go_on_without_a_launcher_that_served() {
    let id = unserved();
    let mut launcher = Rank::start(&id, 0, 2, "only_serves");
    let ranks = [0, 1].map(|rank| join(&id, rank, 2)).map(|j| j.join().unwrap().unwrap());
    launcher.kill();
    std::thread::scope(|scope| {
        for mut rank in ranks {
            scope.spawn(move || {
                for round in 0..3 {
                    let told = rank.all_gather(&[rank.rank() as u8, round], deadline()).unwrap();
                    assert_eq!(told, [[0, round], [1, round]]);
                }
                assert_eq!(rank.liveness().cause(), None);
                rank.liveness().close(3);
            });
        }
    });
    assert!(!launcher.wait().success());
}

#[test]
fn nothing_is_held_after_the_end() {
    let (id, _server) = server();
    succeed(start(&id, 1, &[(0, "holds_nothing")]));
}

/// Waits until it hears of a death, which must be the one that the tests bring about.
pub fn names_the_dead(bootstrap: &mut ShmBootstrap) {
    let told = wait_for_cause(bootstrap);
    let expected = match bootstrap.world() {
        3 => Cause::Died { rank: 0 },
        _ => Cause::Died { rank: 2 },
    };
    assert_eq!(told, expected);
    match bootstrap.share(&[], deadline()) {
        Err(Error::Stopped(cause)) => assert_eq!(cause, expected),
        other => panic!("{other:?}"),
    }
}

/// In a process of its own, where nobody else opens files: what was open before is open after.
pub fn holds_nothing() {
    let case = |bootstrap: &mut dyn Bootstrap| {
        let region = std::sync::Arc::new(oxccl_transports::Region::create("test", 4096).unwrap());
        let open = held().0;
        let all = bootstrap.share(&[region], deadline()).unwrap();
        bootstrap.all_gather(&[], deadline()).unwrap();
        assert!(open > 0 && all.iter().flatten().count() == 3);
        bootstrap.liveness().close(0);
    };
    // The first time, the system may open what it keeps.
    in_shm_threads(3, case);
    let before = held();
    in_shm_threads(3, case);
    common::in_local_threads(3, case);
    let (id, server) = server();
    let wrong = UniqueId::new(id.host(), id.port(), Secret::from_bytes([9; 32]));
    assert!(shm::connect(&wrong, 0, 1, deadline()).is_err());
    assert!(shm::connect(&id, 0, 2, soon()).is_err());
    drop(server);
    wait_until("all threads and files to be given back", || held() == before);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("memfd:test"), "no region stays mapped");
}

fn start(id: &UniqueId, world: usize, cases: &[(usize, &str)]) -> Vec<Rank> {
    cases.iter().map(|&(rank, case)| Rank::start(id, rank, world, case)).collect()
}

fn succeed(ranks: Vec<Rank>) {
    ranks.into_iter().for_each(|rank| assert!(rank.wait().success()));
}
