//! The timing loop, the same that the peers' programs under benches/peers run.
//!
//! ```text
//! once: call for a while
//! for each: warm up; calibrate: double k until k calls take at least half of the wanted time;
//! repeats x { barrier; k calls; elapsed / k, maximum over ranks };
//! report the median and the minimum of the repeats
//! ```

use std::time::{Duration, Instant};

use oxccl::{Collectives, Communicator, Error, ReduceOp};

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Calls before everything else.
    pub(super) warmup: usize,
    /// Calls in a loop; otherwise as many as `wanted` needs.
    pub(super) iterations: Option<usize>,
    /// Calls that count as one iteration.
    pub(super) aggregated: usize,
    /// Loops.
    pub(super) repeats: usize,
    /// About how long a loop takes.
    pub(super) wanted: Duration,
}

/// The time of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Timing {
    /// Median over the repeats.
    pub(super) median_us: f64,
    /// Minimum over the repeats.
    pub(super) min_us: f64,
    /// Calls in a loop.
    pub(super) calls: usize,
}

/// The most calls that calibration comes to.
const MOST_CALLS: usize = 1 << 20;

/// How long ranks call before anything is timed.
const SETTLED: Duration = Duration::from_millis(150);

/// Lets ranks that have just begun run for a while: where they share cores, a scheduler that does
/// not know them yet lets one wait for another as long as a tick.
pub(super) fn settle(control: &Communicator) -> Result<(), Error> {
    let (begin, mut settled) = (Instant::now(), [0u32]);
    while settled == [0] {
        settled = [u32::from(begin.elapsed() >= SETTLED)];
        control.all_reduce_in_place(&mut settled, ReduceOp::Max)?;
    }
    Ok(())
}

/// Times `call`; all ranks do it together, and get the same answer.
pub(super) fn measure(
    control: &Communicator,
    effort: &Effort,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<Timing, Error> {
    let calls = warm_up(control, effort, &mut call)?;
    let mut times = Vec::with_capacity(effort.repeats);
    for _ in 0..effort.repeats {
        times.push(repeat(control, calls, &mut call)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(Timing { median_us: median(&times), min_us: times[0], calls })
}

/// Warms up, and says how many calls make a loop.
pub(super) fn warm_up(
    control: &Communicator,
    effort: &Effort,
    call: &mut impl FnMut() -> Result<(), Error>,
) -> Result<usize, Error> {
    for _ in 0..effort.warmup {
        call()?;
    }
    Ok(match effort.iterations {
        Some(iterations) => iterations * effort.aggregated,
        None => calibrate(control, effort.wanted, call)?.max(effort.aggregated),
    })
}

/// Microseconds a call, of the slowest rank.
pub(super) fn repeat(
    control: &Communicator,
    calls: usize,
    call: &mut impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    control.barrier()?;
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    let mut slowest = [start.elapsed().as_secs_f64() * 1e6 / calls as f64];
    control.all_reduce_in_place(&mut slowest, ReduceOp::Max)?;
    Ok(slowest[0])
}

/// The faster of two repeats counts, so that one hiccup does not end it.
pub(super) fn calibrate(
    control: &Communicator,
    wanted: Duration,
    call: &mut impl FnMut() -> Result<(), Error>,
) -> Result<usize, Error> {
    let enough_us = wanted.as_secs_f64() * 1e6 / 2.0;
    let mut calls = 1;
    while calls < MOST_CALLS {
        let fastest = repeat(control, calls, call)?.min(repeat(control, calls, call)?);
        if fastest * calls as f64 >= enough_us {
            break;
        }
        calls *= 2;
    }
    Ok(calls)
}

/// The middle of sorted times, or of the two around it.
pub fn median(sorted: &[f64]) -> f64 {
    let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    (sorted[low] + sorted[high]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFORT: Effort = Effort {
        warmup: 2,
        iterations: Some(3),
        aggregated: 2,
        repeats: 4,
        wanted: Duration::from_millis(1),
    };

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
        assert_eq!(median(&[5.0]), 5.0);
    }

    #[test]
    fn calls_are_as_many_as_asked_for() {
        let comm = &Communicator::local(1).unwrap()[0];
        let mut count = 0;
        let call = || {
            count += 1;
            Ok(())
        };
        let timing = measure(comm, &EFFORT, call).unwrap();
        assert_eq!(timing.calls, 6);
        assert_eq!(count, 2 + 4 * 6);
        assert!(timing.min_us <= timing.median_us);
    }

    #[test]
    fn calibration_comes_to_an_end_and_takes_its_time() {
        let comm = &Communicator::local(1).unwrap()[0];
        let call = || {
            std::thread::sleep(Duration::from_micros(50));
            Ok(())
        };
        let timing = measure(comm, &Effort { iterations: None, ..EFFORT }, call).unwrap();
        assert!(timing.calls.is_power_of_two() && timing.calls <= 16, "{timing:?}");
        let nothing = measure(comm, &Effort { iterations: None, ..EFFORT }, || Ok(())).unwrap();
        assert!(nothing.calls > 1000);
    }
}
