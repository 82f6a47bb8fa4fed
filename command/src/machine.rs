//! What this machine is, and how fast its memory and its cores' ways to each other are.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The processor's name, as /proc/cpuinfo has it.
pub(crate) fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        ["model name", "Model", "cpu model"].contains(&key.trim()).then(|| value.trim().to_owned())
    });
    model.unwrap_or_else(|| format!("unknown {} processor", std::env::consts::ARCH))
}

/// The cores that this thread may run on.
pub(crate) fn usable_cores() -> Vec<usize> {
    match sched_getaffinity(Pid::from_raw(0)) {
        Ok(set) => (0..CpuSet::count()).filter(|core| set.is_set(*core) == Ok(true)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Keeps this thread, and those it starts, on one core.
pub(crate) fn pin_to(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// What the machine can do at best, right now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// One cache line from core to core, one way; unknown with fewer than two cores.
    pub(crate) one_way_ns: Option<f64>,
    /// A large copy by one core, bytes copied per second.
    pub(crate) copy_gbps: f64,
}

impl Probe {
    /// Measures it; takes about a quarter of a second.
    pub(crate) fn measure() -> Probe {
        Probe { one_way_ns: one_way_ns(), copy_gbps: copy_gbps() }
    }
}

impl std::fmt::Display for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.one_way_ns {
            Some(latency) => write!(f, "core to core {latency:.0} ns one way")?,
            None => write!(f, "core to core unknown (one usable core)")?,
        }
        write!(f, ", memcpy {:.1} GB/s by one core", self.copy_gbps)
    }
}

/// Two threads on the first two cores hand one cache line to and fro.
fn one_way_ns() -> Option<f64> {
    const TURNS: u32 = 20_000;
    const ATTEMPTS: usize = 5;
    let cores = usable_cores();
    let [first, second, ..] = cores[..] else { return None };
    #[repr(align(128))]
    struct Line(AtomicU32);
    let line = Line(AtomicU32::new(0));
    // A deadline, so that a machine that is too busy to run both threads cannot hang us.
    let deadline = Instant::now() + Duration::from_secs(2);
    let wait_for = |value: u32| {
        let mut polls = 0u32;
        while line.0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
            polls += 1;
            if polls.is_multiple_of(4096) && Instant::now() > deadline {
                return false;
            }
        }
        true
    };
    let play = |core: usize, offset: u32| {
        pin_to(core).ok()?;
        let mut best = f64::INFINITY;
        for attempt in 0..ATTEMPTS as u32 {
            let start = Instant::now();
            for turn in 0..TURNS {
                let value = 2 * (attempt * TURNS + turn) + offset;
                if !wait_for(value) {
                    return None;
                }
                line.0.store(value + 1, Ordering::Release);
            }
            best = best.min(start.elapsed().as_nanos() as f64 / f64::from(2 * TURNS));
        }
        Some(best)
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| play(first, 0));
        let other = scope.spawn(|| play(second, 1));
        let (one, other) = (one.join().ok().flatten(), other.join().ok().flatten());
        one.zip(other).map(|(one, _)| one)
    })
}

/// Copies far more than a cache holds.
fn copy_gbps() -> f64 {
    const BYTES: usize = 64 << 20;
    let source = vec![1u8; BYTES];
    let mut destination = vec![2u8; BYTES];
    let best = (0..4).map(|_| {
        let start = Instant::now();
        destination.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut destination);
        start.elapsed()
    });
    let best = best.min().unwrap_or_default().as_secs_f64();
    BYTES as f64 / best / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_name_and_cores() {
        assert!(!cpu_model().is_empty());
        assert!(!usable_cores().is_empty());
    }

    #[test]
    fn a_probe_says_something_possible() {
        let probe = Probe::measure();
        assert!(probe.copy_gbps > 0.01, "{probe}");
        assert!(probe.one_way_ns.is_none_or(|ns| ns > 1.0), "{probe}");
    }
}
