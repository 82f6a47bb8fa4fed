//! A large world.

use std::io::Write;
use std::thread;
use std::time::Instant;

use oxccl_transports::{Bootstrap, shm};

use crate::common::{deadline, held, server};

/// A connection a rank, however many there are, and a message to each for an exchange.
#[test]
fn a_thousand_ranks_meet() {
    const RANKS: usize = 1024;
    // Both ends of each connection are here; a rank has its own twice, and listens.
    if let Err(why) = allow_descriptors(4 * RANKS as u64 + 200) {
        return skip("a_thousand_ranks_meet", &why);
    }
    let (id, _server) = server();
    let (id, start) = (&id, Instant::now());
    let rank = move |rank: usize| {
        let mut bootstrap = shm::connect(id, rank, RANKS, deadline()).unwrap();
        let joined = start.elapsed();
        let all = bootstrap.all_gather(&(rank as u32).to_le_bytes(), deadline()).unwrap();
        let numbers = all.iter().map(|piece| u32::from_le_bytes(piece[..].try_into().unwrap()));
        assert!(numbers.eq(0..RANKS as u32));
        let gathered = start.elapsed();
        let held = if rank == 0 { held().0 } else { 0 };
        bootstrap.all_gather(&[], deadline()).unwrap();
        bootstrap.liveness().close(0);
        (joined, gathered, held)
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let small = || thread::Builder::new().stack_size(256 << 10);
        let spawn = |number| small().spawn_scoped(scope, move || rank(number)).unwrap();
        let ranks: Vec<_> = (0..RANKS).map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let (joined, gathered) = (ends.iter().map(|e| e.0).max(), ends.iter().map(|e| e.1).max());
    println!("joined after {joined:?}, gathered after {gathered:?}, {} files", ends[0].2);
    assert!(ends[0].2 < 4 * RANKS + 200, "{} files for {RANKS} ranks", ends[0].2);
}

/// Lets this process open so many files.
pub fn allow_descriptors(needed: u64) -> Result<(), String> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| error.to_string())?;
    if hard < needed {
        return Err(format!("needs {needed} open files, the limit is {hard}"));
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), hard);
    raised.map_err(|error| error.to_string())
}

/// Past the harness, which keeps what tests print.
pub fn skip(name: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}
