//! What disturbs calls: others' traffic, flows that collide, steps that take longer by chance.

use clap::Args;
use oxccl::plans::simulate::Noise;
use oxccl::plans::topology::{Network, Topology};

use crate::failure::Failure;

/// What disturbs calls.
#[derive(Args, Clone, Debug)]
pub(super) struct Chance {
    /// Others take so many percent of what the fabric's links carry.
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..100))]
    load: u8,
    /// What two adapters exchange stays on one link of a leaf switch to the spine and on one from
    /// it, by chance (ECMP), instead of being spread over all; needs a topology with a spine.
    #[arg(long)]
    ecmp: bool,
    /// Launches, steps and messages take so many percent longer on average, exponentially
    /// distributed.
    #[arg(long, value_name = "PERCENT", value_parser = noise)]
    noise: Option<f64>,
    /// Equal seeds make equal choices by chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn noise(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=1000.0).contains(percent));
    percent.ok_or_else(|| format!("{text:?} is no number from 0 to 1000"))
}

impl Default for Chance {
    fn default() -> Chance {
        Chance { load: 0, ecmp: false, noise: None, seed: 1 }
    }
}

impl Chance {
    /// Whether ranks that are alike may behave differently.
    pub(super) fn differs(&self) -> bool {
        self.ecmp || self.noise.is_some()
    }

    pub(super) fn noise(&self) -> Option<Noise> {
        let seed = self.seed;
        self.noise.map(|percent| Noise { percent, seed })
    }

    /// The network as it is then.
    ///
    /// # Errors
    /// A topology that has not what is disturbed.
    pub(super) fn disturb(
        &self,
        topology: &Topology,
        network: Network,
    ) -> Result<Network, Failure> {
        let name = &topology.name;
        let network = match self.load {
            0 => network,
            _ if network.nodes() == 1 => {
                let why = format!("--load: all ranks are on one node of {name}");
                return Err(Failure::Usage(why));
            }
            load => network.with_load(f64::from(load) / 100.0),
        };
        if !self.ecmp {
            return Ok(network);
        }
        let spine = topology.fabric.as_ref().and_then(|fabric| fabric.spine.as_ref());
        let Some(spine) = spine else {
            return Err(Failure::Usage(format!(
                "--ecmp: {name} has no spine, so that flows cannot collide; add [fabric.spine] to \
                 its file (docs/simulator.md)"
            )));
        };
        Ok(network.with_collisions(spine.uplinks, self.seed))
    }

    /// What is said of it above a table.
    pub(super) fn in_words(&self) -> Option<String> {
        let load = (self.load > 0).then(|| format!("others take {} % of the fabric", self.load));
        let ecmp = self.ecmp.then(|| "flows collide (ECMP)".to_owned());
        let noise = self.noise.map(|percent| format!("steps take {percent} % longer on average"));
        let seed = self.differs().then(|| format!("seed {}", self.seed));
        let said: Vec<String> = [load, ecmp, noise, seed].into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}
