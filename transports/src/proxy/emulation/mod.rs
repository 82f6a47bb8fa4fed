//! Links as they are wanted for tests and trials, with the feature `emulation`. Without it they are
//! as the network is, and this is a few empty types.

#[cfg(any(test, not(feature = "emulation")))]
#[cfg_attr(feature = "emulation", expect(dead_code, unreachable_pub, reason = "for its test"))]
mod absent;
#[cfg(feature = "emulation")]
mod conditions;
#[cfg(feature = "emulation")]
mod slowed;

use super::wire::Wire;
#[cfg(not(feature = "emulation"))]
pub use absent::{BadConditions, Conditions, Egress};
#[cfg(feature = "emulation")]
pub use conditions::{BadConditions, Conditions};
#[cfg(feature = "emulation")]
pub use slowed::Egress;

/// How links between nodes are to behave.
#[derive(Clone, Debug, Default)]
pub struct Emulation {
    /// Beyond what the network does.
    pub conditions: Conditions,
    /// What the node's ranks share where the conditions have a bandwidth.
    pub egress: Option<Egress>,
}

impl Emulation {
    /// The wire under these conditions. `seed` is of their random numbers.
    #[cfg(feature = "emulation")]
    pub(super) fn applied(&self, wire: Box<dyn Wire>, seed: u64) -> Box<dyn Wire> {
        if !self.conditions.slow() {
            return wire;
        }
        Box::new(slowed::Slowed::new(wire, self.conditions, self.egress.clone(), seed))
    }

    /// The wire as it is.
    #[cfg(not(feature = "emulation"))]
    pub(super) fn applied(&self, wire: Box<dyn Wire>, _seed: u64) -> Box<dyn Wire> {
        wire
    }
}
