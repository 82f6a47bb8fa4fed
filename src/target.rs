//! What ranks compute on.

use oxccl_plans::tune::DeviceKind;
use std::fmt;
use std::str::FromStr;

/// What ranks compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host's processors, in host memory.
    #[default]
    Host,
    /// A GPU, by its number in the process; without one, a rank takes its number modulo how many
    /// there are.
    Cuda(Option<usize>),
}

impl Device {
    /// What to do about a stream or a call of the other kind.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Device::Host => "its calls go on host streams (oxccl::Stream)",
            Device::Cuda(_) => "its calls go on streams of that GPU (oxccl::cuda::Stream)",
        }
    }

    /// The kind, as tuning tables have it.
    pub fn table_kind(self) -> DeviceKind {
        match self {
            Device::Host => DeviceKind::Host,
            Device::Cuda(_) => DeviceKind::Cuda,
        }
    }

    /// The kind, which all ranks share.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Device::Host => "host",
            Device::Cuda(_) => "cuda",
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cuda(Some(ordinal)) => write!(f, "cuda:{ordinal}"),
            other => f.write_str(other.kind()),
        }
    }
}

impl FromStr for Device {
    type Err = ();

    fn from_str(text: &str) -> Result<Device, ()> {
        match text {
            "host" => Ok(Device::Host),
            "cuda" => Ok(Device::Cuda(None)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").ok_or(())?;
                ordinal.parse().map(|ordinal| Device::Cuda(Some(ordinal))).map_err(drop)
            }
        }
    }
}
