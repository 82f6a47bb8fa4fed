//! How far predictions are from what has been measured, class by class.
//!
//! A class's percentage is what four fifths of the published measurements in it keep within, of
//! those that nothing was fitted on: `plans/tests/published.rs` computes it anew, and fails where
//! it is not what is said here.

use crate::topology::{Network, Processor};
use serde::Serialize;

/// Up to so many bytes a call is short.
pub const SHORT_BYTES: u64 = 256 << 10;
/// From so many bytes on a call is long.
pub const LONG_BYTES: u64 = 256 << 20;

/// Ranks of the largest world that has been measured.
pub const MOST_RANKS: usize = 256;

/// Predictions of one class, and how far they are off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Band {
    /// The class.
    pub class: Class,
    /// Four fifths of what has been measured is at most so many percent longer, or shorter by as
    /// much the other way round.
    pub percent: u32,
    /// Of so many measurements.
    pub rows: usize,
}

/// What is alike in how it is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Short calls on one node, by kernels over peers' memory: their instructions are counted, and
    /// their launches fitted.
    Kernels,
    /// Short calls of NCCL on one node.
    Short,
    /// Calls between short and long on one node.
    Middle,
    /// Long calls on one node: what links carry.
    Long,
    /// Short calls of NCCL on several nodes.
    ShortAcross,
    /// Calls between short and long on several nodes.
    MiddleAcross,
    /// Long calls on several nodes.
    LongAcross,
}

/// Whose kernels are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This project's.
    Own,
    /// NCCL's.
    Nccl,
}

/// All classes.
pub const BANDS: [Band; 7] = [
    Band { class: Class::Kernels, percent: 20, rows: 114 },
    Band { class: Class::Short, percent: 20, rows: 189 },
    Band { class: Class::Middle, percent: 18, rows: 215 },
    Band { class: Class::Long, percent: 10, rows: 209 },
    Band { class: Class::ShortAcross, percent: 20, rows: 10 },
    Band { class: Class::MiddleAcross, percent: 22, rows: 16 },
    Band { class: Class::LongAcross, percent: 10, rows: 57 },
];

impl Class {
    /// Of a call of so many bytes. No class is measured on hosts, on devices of which it is not
    /// known what NCCL's kernels cost, in larger worlds, nor of this project's short calls over
    /// several nodes. Where GPUs have a link to each other instead of a switch, no kernels over
    /// peers' memory were measured; over several such nodes, calls that are not long were on one
    /// network, and took a multiple of what is predicted.
    pub fn of(whose: Whose, network: &Network, bytes: u64) -> Option<Class> {
        let is_known = network.nccl_costs().is_some();
        let is_host = network.device(0).processor == Processor::Cpu;
        if is_host || !is_known || network.ranks() > MOST_RANKS {
            return None;
        }
        let one_node = network.nodes() == 1;
        let is_meshed = network.is_meshed();
        match bytes {
            ..=SHORT_BYTES if whose == Whose::Own => {
                (one_node && !is_meshed).then_some(Class::Kernels)
            }
            ..=SHORT_BYTES if one_node => Some(Class::Short),
            ..LONG_BYTES if is_meshed && !one_node => None,
            ..=SHORT_BYTES => Some(Class::ShortAcross),
            LONG_BYTES.. if one_node => Some(Class::Long),
            LONG_BYTES.. => Some(Class::LongAcross),
            _ if one_node => Some(Class::Middle),
            _ => Some(Class::MiddleAcross),
        }
    }

    /// What it is.
    pub fn in_words(self) -> &'static str {
        match self {
            Class::Kernels => "up to 256 KiB, one node, kernels over peers' memory",
            Class::Short => "up to 256 KiB, one node, NCCL",
            Class::Middle => "between, one node",
            Class::Long => "from 256 MiB, one node",
            Class::ShortAcross => "up to 256 KiB, several nodes, NCCL",
            Class::MiddleAcross => "between, several nodes",
            Class::LongAcross => "from 256 MiB, several nodes",
        }
    }

    /// How far its predictions are off.
    pub fn band(self) -> Option<Band> {
        BANDS.into_iter().find(|band| band.class == self)
    }
}
