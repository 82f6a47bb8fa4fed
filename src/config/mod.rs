//! All that can be configured, and the only place that reads the environment.

#[cfg(test)]
mod document;
mod links;
mod log_level;
mod settings;
mod table;
#[cfg(test)]
mod tests;
mod value;

use crate::device::{LinkPorts, StagingShape, last_level_cache_bytes};
use crate::error::Error;
use crate::target::Device;
pub use links::{FabricKind, GpuDirect};
pub use log_level::LogLevel;
use oxccl_plans::algorithms::Encoding;
use oxccl_plans::schedule::Slots;
use oxccl_plans::topology::Placement;
use oxccl_plans::tune::Limits;
use oxccl_transports::Nodes;
use oxccl_transports::silence::LEAST_SILENCE;
pub use settings::{Advanced, Config};
use std::ffi::OsString;
use std::time::Duration;

/// A time-out by which something ends also where calls wait without end.
pub(crate) fn patience(timeout: Duration) -> Duration {
    if timeout > FAR { Config::default().timeout } else { timeout }
}

/// A longer time-out is none.
const FAR: Duration = Duration::from_secs(1 << 30);

impl Config {
    /// The defaults for GPUs: more channels, since a thread block moves less than a core may; and a
    /// heap of 8 MiB, since memory of a GPU is taken at once.
    pub fn cuda() -> Config {
        Config::of(Device::Cuda(None))
    }

    /// The defaults for this device.
    fn of(device: Device) -> Config {
        match device {
            Device::Host => Config { device, ..Config::default() },
            Device::Cuda(_) => Config {
                device,
                max_channels: Limits::GPU.max_channels,
                heap_bytes: 8 << 20,
                advanced: Advanced {
                    link_slot_bytes: Limits::GPU.link_slot_bytes,
                    ll_slot_bytes: Limits::GPU.ll_slot_bytes,
                    ..Advanced::default()
                },
                ..Config::default()
            },
        }
    }

    /// The defaults, changed by the process's environment variables.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable whose value cannot be.
    pub fn from_env() -> Result<Config, Error> {
        Config::from_lookup(|name| std::env::var_os(name))
    }

    /// The defaults, changed by what `lookup` gives for a variable's name.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable whose value cannot be.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config, Error> {
        let mut config = Config::default();
        for setting in settings::all() {
            setting.read(&mut config, &lookup)?;
            if setting.field == "device" {
                config = Config::of(config.device);
            }
        }
        config.check()?;
        Ok(config)
    }

    /// [`Config::log`], or what the environment says: programs that never ask it are logged, too.
    pub(crate) fn granted_log(&self) -> Result<Option<LogLevel>, Error> {
        let mut asked = Config { log: self.log, ..Config::default() };
        if let Some(log) = settings::all().find(|setting| setting.field == "log")
            && asked.log.is_none()
        {
            log.read(&mut asked, &|name: &str| std::env::var_os(name))?;
        }
        Ok(asked.log)
    }

    /// Checks what no type can.
    pub(crate) fn check(&self) -> Result<(), Error> {
        settings::all().try_for_each(|setting| setting.check(self))
    }

    /// What all ranks need alike: the settings' names and values.
    pub(crate) fn compared(&self) -> Vec<(&'static str, String)> {
        let compared = |setting: &table::Setting| Some((setting.field, setting.compared(self)?));
        settings::all().filter_map(compared).collect()
    }

    /// The settings other than the device that differ from their defaults, and their values.
    pub(crate) fn changed(&self) -> Vec<(&'static str, String)> {
        let usual = Config::of(self.device);
        let values = |setting: &table::Setting| (setting.field, (setting.shown)(self));
        let differs = |setting: &&table::Setting| (setting.shown)(self) != (setting.shown)(&usual);
        settings::all().filter(differs).map(values).collect()
    }

    /// [`Advanced::cache_bytes`], or what the machine says.
    pub fn last_level_cache_bytes(&self) -> usize {
        self.advanced.cache_bytes.unwrap_or_else(last_level_cache_bytes)
    }

    /// [`Advanced::silence`] within its bounds.
    pub(crate) fn granted_silence(&self) -> Duration {
        let most = patience(self.timeout);
        self.advanced.silence.unwrap_or(most).min(self.timeout).max(LEAST_SILENCE)
    }

    /// Which of so many ranks share a node, as far as it is said here: by `ranks_per_node`, or by
    /// `nodes`.
    pub fn placement(&self, ranks: usize) -> Placement {
        let pretended = || Nodes::blocks(ranks, self.nodes?).sizes_of_runs();
        match self.ranks_per_node {
            Some(per_node) => Placement::uniform(per_node),
            None => {
                pretended().map_or(Placement::one_node(ranks), |sizes| Placement::of_sizes(&sizes))
            }
        }
    }

    /// What calls have of channels and slots.
    pub fn limits(&self) -> Limits {
        let usual = match self.device {
            Device::Host => Limits::HOST,
            Device::Cuda(_) => Limits::GPU,
        };
        Limits {
            max_channels: self.max_channels,
            message_channels: self
                .advanced
                .message_channels
                .unwrap_or(usual.message_channels)
                .min(self.max_channels),
            slot_bytes: self.advanced.slot_bytes.or(usual.slot_bytes),
            link_slot_bytes: self.advanced.link_slot_bytes,
            ll_slot_bytes: self.advanced.ll_slot_bytes,
            slots: Slots { slots: self.advanced.slots, ..usual.slots },
            pipeline_parts: self.advanced.pipeline,
        }
    }

    /// Memory that the connections to one rank of another node take, where there are so many nodes;
    /// RDMA pins it.
    pub fn link_memory_bytes(&self, nodes: usize) -> usize {
        let (shape, slot_bytes) =
            (self.staging(1, 1), self.limits().plain_slot_bytes(nodes, nodes));
        LinkPorts::len_bytes(&StagingShape { slot_bytes, ..shape })
    }

    /// How ranks lay out staging memory, of which so many are on one node.
    pub(crate) fn staging(&self, ranks: usize, beside: usize) -> StagingShape {
        let limits = self.limits();
        let Slots { ll, ll128, slots } = limits.slots;
        let nodes = if beside < ranks { 2 } else { 1 };
        StagingShape {
            ranks,
            beside,
            to_itself: self.schedule.is_some(),
            channels: self.max_channels,
            message_channels: limits.message_channels,
            message_sets: limits.channels_of_message(Encoding::Windows, nodes),
            ll_slots: ll,
            ll128_slots: ll128,
            ll_slot_bytes: self.advanced.ll_slot_bytes,
            slots,
            slot_bytes: limits.plain_slot_bytes(1, beside),
        }
    }

    /// Checks what is said of nodes against where the ranks are, and fills in what is not said.
    pub(crate) fn place(&mut self, nodes: &Nodes) -> Result<(), Error> {
        let fail = |variable, detail: String| Err(Error::Config { variable, detail });
        if let Some(wanted) = self.nodes.filter(|wanted| *wanted != nodes.count()) {
            let detail = format!(
                "is {wanted}, but the ranks are on {}: set it only where all are on one machine",
                nodes.count()
            );
            return fail("nodes", detail);
        }
        let slot_bytes = self.limits().plain_slot_bytes(nodes.count(), nodes.world());
        self.advanced.slot_bytes = Some(slot_bytes);
        if nodes.count() == 1 {
            return Ok(());
        }
        let most = nodes.ranks_per_block();
        match self.ranks_per_node {
            Some(ranks) if !most.is_multiple_of(ranks) => {
                let detail =
                    format!("is {ranks}, but only {most} consecutive ranks always share a node");
                fail("ranks_per_node", detail)
            }
            _ => {
                self.ranks_per_node.get_or_insert(most);
                Ok(())
            }
        }
    }
}
