//! Steps that take longer by chance.

use super::servers::Time;
use crate::random::Random;

/// By how much steps take longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// A launch, a step or a message's way takes so many percent longer on average, exponentially
    /// distributed.
    pub percent: f64,
    /// Equal seeds give equal times.
    pub seed: u64,
}

/// The delays of one list of instructions on one bundle of channels.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    mean: f64,
    random: Random,
}

impl Noise {
    /// Those of a process.
    pub(super) fn delays(self, process: usize) -> Delays {
        let seed = self.seed.wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(process as u64);
        Delays { mean: self.percent / 100.0, random: Random::new(seed) }
    }
}

impl Delays {
    /// What something that takes so long takes more.
    pub(super) fn of(&mut self, duration: Time) -> Time {
        let exponential = -(1.0 - self.random.part()).ln();
        (duration as f64 * self.mean * exponential) as Time
    }
}
