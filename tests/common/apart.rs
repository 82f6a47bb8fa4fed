//! Threads that meet as processes do: they share memory files, and nothing else.

use oxccl::{Communicator, Config, UniqueId};

/// Runs each rank in a thread, over connections as between processes of one machine.
pub fn run(ranks: usize, config: &Config, rank: impl Fn(Communicator) + Sync) {
    let (id, server) = UniqueId::create().unwrap();
    std::thread::scope(|scope| {
        for number in 0..ranks {
            let (id, rank) = (&id, &rank);
            scope.spawn(move || rank(Communicator::connect(id, number, ranks, config).unwrap()));
        }
    });
    drop(server);
}
