//! Safe functions stay safe: no counts, whatever they are, lead a call out of its buffers. A call
//! that leaves them ends this process.
//!
//! The library is compiled without overflow checks here (Cargo.toml), as users' release builds are:
//! sums that wrap go on wrapped.
#![allow(clippy::unwrap_used)]

mod common;
mod hostile_counts;

use common::{Rng, seed};
use hostile_counts::{Guarded, Tally, run};
use oxccl::bucket::GradientBuckets;
use oxccl::{Collectives, Communicator, Config, Error, ReduceOp, Stream};

/// Lists of steps in a campaign.
const LISTS: u64 = 60;

fn campaign(seed: u64) -> Tally {
    let mut tally = Tally::default();
    for list in 0..LISTS {
        let mut rng = Rng(seed ^ list << 32);
        let data: Vec<u8> = (0..160).map(|_| (rng.next() >> 24) as u8).collect();
        let of_list = run(&data);
        tally.done += of_list.done;
        tally.overflows += of_list.overflows;
        tally.refused += of_list.refused;
    }
    tally
}

#[test]
fn no_counts_lead_a_call_out_of_its_buffers() {
    for seed in [1, seed()] {
        let tally = campaign(seed);
        println!("{tally:?}");
        let Tally { done, overflows, refused } = tally;
        assert!(
            done > 400 && overflows > 80 && refused > 80,
            "{tally:?}: the campaign tries little"
        );
    }
}

/// Runs it on each of two ranks.
fn on_two(work: impl Fn(&Communicator) + Sync) {
    let ranks = Communicator::local_with(2, &Config::default()).unwrap();
    std::thread::scope(|scope| {
        for comm in &mut ranks.into_iter() {
            let work = &work;
            scope.spawn(move || work(&comm));
        }
    });
}

fn overflows<T: std::fmt::Debug>(result: Result<T, Error>, call: &str, argument: &str) {
    let error = result.unwrap_err();
    let text = format!("{argument} of {call} come to more than 9223372036854775807 bytes");
    assert!(
        matches!(error, Error::Overflow { .. }) && error.to_string().starts_with(&text),
        "{error}"
    );
}

#[test]
fn sums_that_wrap_are_refused() {
    // Together they wrap to 4.
    let counts = [8, usize::MAX - 3];
    on_two(|comm| {
        let mut to = Guarded::<f32>::new(4);
        let from = Guarded::<f32>::new(8);
        overflows(comm.all_gather_v(&*from, &mut *to, &counts), "all_gather", "counts");
        overflows(comm.all_gather_v_in_place(&mut *to, &counts), "all_gather", "counts");
        let result = comm.reduce_scatter_v(&*to, &mut [0.0; 8], &counts, ReduceOp::Sum);
        overflows(result, "reduce_scatter", "counts");
        let result = comm.all_to_all_v(&*from, &[4, 4], &mut *to, &counts);
        overflows(result, "all_to_all", "recv_counts");
        let result = comm.all_to_all_v(&*to, &counts, &mut [0.0; 8], &[4, 4]);
        overflows(result, "all_to_all", "send_counts");
        let result = comm.group(|group| group.all_gather_v(&*from, &mut *to, &counts));
        overflows(result, "all_gather", "counts");
        let own = if comm.rank() == 0 { [8, usize::MAX - 3] } else { [usize::MAX - 3, 8] };
        let result = comm.group(|group| group.all_to_all_v(&*from, &own, &mut *to, &own));
        overflows(result, "all_to_all", "send_counts");
        let (stream, mut small) = (Stream::new().unwrap(), comm.alloc_host::<f32>(4).unwrap());
        let large = comm.alloc_host::<f32>(8).unwrap();
        let result = comm.on(&stream).all_gather_v(&large, &mut small, &counts);
        overflows(result, "all_gather", "counts");
        to.check();
        // Nothing was sent, so the communicator goes on.
        comm.barrier().unwrap();
    });
}

#[test]
fn memory_that_no_machine_has_is_refused() {
    on_two(|comm| {
        overflows(comm.alloc_host::<u8>(usize::MAX), "alloc", "count");
        overflows(comm.alloc_host::<u8>(isize::MAX as usize), "alloc", "count");
        overflows(comm.alloc_host::<f32>(usize::MAX / 4), "alloc", "count");
        overflows(comm.alloc_host::<f64>(usize::MAX / 8 + 2), "alloc", "count");
        let error = comm.alloc_host::<u8>(isize::MAX as usize - 4096).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        for capacity_bytes in [0, usize::MAX] {
            let parameters = [usize::MAX, 5];
            let made = GradientBuckets::<i8>::with_capacity(comm, &parameters, capacity_bytes);
            overflows(made, "buckets", "parameters");
        }
    });
}

#[test]
fn a_message_names_what_all_parts_are() {
    let config = Config { timeout: std::time::Duration::from_millis(300), ..Config::default() };
    let mut ranks = Communicator::local_with(2, &config).unwrap().into_iter();
    let (first, second) = (ranks.next().unwrap(), ranks.next().unwrap());
    let error = first.all_gather_v(&[1.0f32; 3], &mut [0.0; 8], &[3, 5]).unwrap_err();
    assert!(error.to_string().contains("all_gather of 8 float in uneven parts"), "{error}");
    drop(second);
}
